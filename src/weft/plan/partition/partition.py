"""Where one kernel ends and the next begins: regions of a tensor program, in the order in which they run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import Protocol, TypeAlias

from weft.plan.partition.stages import depths
from weft.tensor.axes import Space
from weft.tensor.laws import part
from weft.tensor.made_again import stored_uses
from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    uses,
)


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that are fused together: a tensor program whose inputs and outputs are values of the whole program."""

    program: TensorProgram

    @property
    def uses(self) -> tuple[str, ...]:
        """The values of the whole program that the region reads."""
        return tuple(n.name for n in self.program.inputs)

    @property
    def results(self) -> tuple[str, ...]:
        """The values of the whole program that the region makes for others."""
        return self.program.outputs

    @property
    def waits(self) -> tuple[str, ...]:
        """The values that must be there before it runs: those that it reads."""
        return self.uses

    @property
    def looks(self) -> bool:
        """True where the region only looks at elements: it has no kernel."""
        return all(isinstance(n, Reindex) for n in self.program.nodes)


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One call into PyTorch.

    Attributes:
        name: that of the opaque nodes' call.
        uses: the values of the whole program that it reads.
        results: the values of the whole program that it makes.
        after: what the call made whose turn is before its own, where it has one (`TensorProgram.turns`).
    """

    name: str
    uses: tuple[str, ...]
    results: tuple[str, ...]
    after: tuple[str, ...] = ()

    @property
    def waits(self) -> tuple[str, ...]:
        """The values that must be there before it runs."""
        return (*self.uses, *self.after)


Task: TypeAlias = Region | TorchCall


class Waiting(Protocol):
    """What runs once some values are there, and makes others."""

    @property
    def waits(self) -> tuple[str, ...]:
        """The values that must be there before it runs."""
        ...

    @property
    def results(self) -> tuple[str, ...]:
        """The values that it makes for others."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """A program in stages, in the order in which they run."""

    stages: tuple[Task, ...]


# Fusing looks at all pairs of operators, again after each rewrite: a region with more takes longer to find than it saves.
MOST_NODES = 64


def partition(program: TensorProgram) -> tuple[Task, ...]:
    """Cut `program` into stages, each after those whose values it waits for.

    Connected operations stay together up to three cuts: an opaque operation is a stage of its own, a contraction that would
    read, in its own region, what another contraction made starts a new region (one accumulating loop nest a kernel; `Cuts` joins
    regions where that is cheaper), and a region has at most `MOST_NODES` operations. What is looked up in is in memory before.
    """
    depth = depths(program)
    local = program.local
    groups = [part for group in _connected(program, depth, local) for part in _parts(group)]
    stages: list[tuple[int, int, Task]] = []
    position = {n.name: i for i, n in enumerate(program.nodes)}
    for members in groups:
        first = members[0]
        stage = _call(program, members) if isinstance(first, Opaque) else with_local(program, members, local)
        stages.append((depth[first.name], position[first.name], stage))
    return tuple(stage for _, _, stage in sorted(stages, key=lambda s: s[:2]))


def stage_of(program: TensorProgram, members: Collection[Node], again: Collection[str] = ()) -> Task:
    """Make one stage of `members`, the nodes of a call into PyTorch or operations of a region.

    The values `again`, and what is made of numbers, are made by each region that wants them.
    """
    ordered = sorted(members, key=lambda n: program.places[n.name])
    if any(isinstance(n, Opaque) for n in ordered):
        return _call(program, ordered)
    return with_local(program, ordered, program.local.union(again))


def united(program: TensorProgram, regions: Sequence[Region], again: Collection[str] = ()) -> Region:
    """Join `regions` into one; the values `again` are made by each region that wants them."""
    if len(regions) == 1:
        return regions[0]
    own = {n.name: n for r in regions for n in r.program.nodes}
    local = program.local.union(again)
    return _region(program, sorted(own.values(), key=lambda n: program.places[n.name]), local)


def apart(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` into parts with one contraction each, one after the other: one may want as a batch what another
    wants in blocks.
    """
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    starts = [i for i, n in enumerate(members) if isinstance(n, Contraction)][1:]
    if not starts:
        return (region,)
    ends = [*starts, len(members)]
    return tuple(with_local(program, members[a:b], local) for a, b in zip([0, *starts], ends, strict=True))


def taken_apart(program: TensorProgram, region: Region, names: Collection[str]) -> tuple[Region, ...]:
    """Return the operations of `region` that make `names`, as a region; none where every region makes these for itself."""
    local = program.local
    members = [n for n in region.program.nodes if n.name in names and n.name not in local]
    return (with_local(program, members, local),) if members else ()


def between_passes(
    program: TensorProgram, region: Region, sizes: Mapping[str, int]
) -> tuple[tuple[Region, ...], frozenset[str]]:
    """Cut `region`, which multiplies nothing, into the passes over its operands that its reductions ask for, one after the other.

    Reductions of one pass that run along different axes are parts of their own. So every part is a nest of loops that blocks
    of any size go through.

    Args:
        program: of which `region` is a part.
        region: to cut.
        sizes: elements of each space, by name.

    Returns:
        The parts, `region` alone where there is one; and the values that each part makes for itself, since to read again what they
        are made of moves no more than to write them once and read them.
    """
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    if any(isinstance(n, Contraction | Opaque) for n in members):
        return (region,), frozenset()
    passes = _passes(program, members)
    again = _made_again(program, region, members, passes, sizes)
    parts: dict[tuple[int, frozenset[Space]], list[Node]] = {}
    along = _reduced_along(program, members, passes)
    for node in members:
        if node.name not in again:
            parts.setdefault((passes[node.name], along[node.name]), []).append(node)
    if len(parts) < 2:
        return (region,), frozenset()
    every = local | again
    return tuple(with_local(program, part, every) for _, part in sorted(parts.items(), key=_first)), again


def _first(part: tuple[tuple[int, frozenset[Space]], list[Node]]) -> int:
    return part[0][0]


def _spaces(node: Node) -> frozenset[Space]:
    return frozenset(a.space for a in node.axes)


def summed_over(node: Contraction | Reduction | Ranking | Scan) -> frozenset[Space]:
    """Return the spaces that `node` combines elements along."""
    return frozenset(a.space for a in ((node.over,) if isinstance(node, Ranking | Scan) else node.over))


def _passes(program: TensorProgram, members: Sequence[Node]) -> dict[str, int]:
    """Number the pass over its operands in which each value is made: of what a reduction makes, one is over first."""
    found: dict[str, int] = {}
    finished: dict[str, frozenset[Space]] = {}  # the axes of values that are there when a pass is over
    for node in members:
        own = 0
        for value in stored_uses(program, node):
            waits = value in finished and (
                isinstance(node, Reduction | Ranking | Scan) or not _spaces(node) <= finished[value]
            )
            own = max(own, found.get(value, 0) + waits)
        if isinstance(node, Reduction | Ranking) or any(
            v in finished and found[v] == own for v in stored_uses(program, node)
        ):
            finished[node.name] = _spaces(node)
        found[node.name] = own
    return found


def _reduced_along(
    program: TensorProgram, members: Sequence[Node], passes: Mapping[str, int]
) -> dict[str, frozenset[Space]]:
    """Return the spaces of the reductions of its own pass that each value depends on, with those it is reduced along itself."""
    found: dict[str, frozenset[Space]] = {}
    for node in members:
        own = [found[v] for v in stored_uses(program, node) if v in found and passes[v] == passes[node.name]]
        if isinstance(node, Reduction | Ranking | Scan):
            own.append(summed_over(node))
        found[node.name] = frozenset[Space]().union(*own)
    return found


def _made_again(
    program: TensorProgram,
    region: Region,
    members: Sequence[Node],
    passes: Mapping[str, int],
    sizes: Mapping[str, int],
) -> frozenset[str]:
    """Find the elementwise values of `members` that later passes make again, since that takes no more reading."""
    values = program.values()

    def elements(name: str) -> int:
        return prod(a.space.size(sizes) for a in values[name].axes)

    readers: dict[str, set[int]] = {}
    for node in reversed(members):
        for value in stored_uses(program, node):
            readers.setdefault(value, set()).add(passes[node.name])
    made_of: dict[str, frozenset[str]] = {}
    again: set[str] = set()
    for node in members:
        read = frozenset[str]().union(*(made_of.get(v, frozenset((v,))) for v in stored_uses(program, node)))
        later = len({p for p in readers.get(node.name, ()) if p > passes[node.name]})
        plain = isinstance(node, Elementwise | Cast) and node.name not in region.results
        if plain and sum(map(elements, read)) * later <= elements(node.name) * (later + 1):
            again.add(node.name)
            made_of[node.name] = read
    return frozenset(again)


def with_local(program: TensorProgram, members: Sequence[Node], local: Collection[str]) -> Region:
    """Make the region of `members`, with the `local` values that they read: every region that wants these makes them itself."""
    values = program.values()
    own = {n.name: n for n in members}
    waiting = [v for n in members for v in uses(n)]
    while waiting:
        name = waiting.pop()
        if name in local and name not in own:
            own[name] = values[name]
            waiting += uses(values[name])
    return _region(program, sorted(own.values(), key=lambda n: program.places[n.name]), local)


def in_order(stages: Sequence[Task]) -> tuple[Task, ...]:
    """Sort `stages`, each after those whose values it waits for; otherwise in their order."""
    found = sorted_by(waits_of(stages))
    assert found is not None, "what is one stage waits for none that waits for it"
    return tuple(stages[i] for i in found)


def waits_of(stages: Sequence[Waiting]) -> tuple[frozenset[int], ...]:
    """Return the numbers of the stages that each of `stages` waits for."""
    maker = {name: i for i, s in enumerate(stages) for name in s.results}
    return tuple(frozenset(maker[v] for v in s.waits if v in maker) for s in stages)


def sorted_by(waits: Sequence[Collection[int]]) -> tuple[int, ...] | None:
    """Sort the numbers of what waits for each other, each behind those that it waits for; otherwise the least first.

    None where some wait for each other.
    """
    left = [len(own) for own in waits]
    behind: list[list[int]] = [[] for _ in waits]
    for number, own in enumerate(waits):
        for other in own:
            behind[other].append(number)
    ready, done = [number for number, count in enumerate(left) if not count], list[int]()
    while ready:
        number = heappop(ready)
        done.append(number)
        for other in behind[number]:
            left[other] -= 1
            if not left[other]:
                heappush(ready, other)
    return tuple(done) if len(done) == len(waits) else None


def linear(stages: Sequence[Task]) -> tuple[Task, ...]:
    """Sort `stages` into a chain: each after those whose values it waits for, and right after the one that most of them lead to.

    Among the values that a stage waits for, the one with the longest path of stages before it comes last, so that a chain with
    short branches into it stays together. Where PyTorch makes that one, or the stage itself, it comes first: no kernel
    joins the two, and a short branch is better made beside its reader. Views do not count as steps of a path, and views of
    inputs come first of all.
    """
    waits = [sorted(own) for own in waits_of(stages)]
    height: list[int] = []
    for stage, own in zip(stages, waits, strict=True):
        step = not (isinstance(stage, Region) and stage.looks)
        height.append(step + max((height[i] for i in own), default=0))
    waited = {i for own in waits for i in own}
    order = [i for i, steps in enumerate(height) if not steps]
    done = set(order)
    waiting = [i for i in reversed(range(len(stages))) if i not in waited]
    while waiting:
        place = waiting[-1]
        missing = sorted((i for i in waits[place] if i not in done), key=lambda i: (height[i], i))
        if missing and any(isinstance(stages[i], TorchCall) for i in (place, missing[-1])):
            missing.insert(0, missing.pop())
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if place not in done:
            done.add(place)
            order.append(place)
    return tuple(stages[i] for i in order)


def _connected(program: TensorProgram, depth: Mapping[str, int], local: Collection[str]) -> list[list[Node]]:
    """Group the nodes: opaque ones by call, the others by being connected within one depth, through what is local too."""
    parent = {n.name: n.name for n in program.nodes}

    def find(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    kinds = {n.name: n.call if isinstance(n, Opaque) else None for n in program.nodes}
    calls: dict[str, str] = {}
    read_by_calls = {v for n in program.nodes if isinstance(n, Opaque) for v in n.uses}
    rankings: dict[Ranking, str] = {}
    for node in program.nodes:
        if isinstance(node, Ranking):  # both results come of one loop
            parent[find(node.name)] = find(rankings.setdefault(node.both, node.name))
        if isinstance(node, Opaque):
            parent[find(node.name)] = find(calls.setdefault(node.call, node.name))
            continue
        for value in stored_uses(program, node):
            if value in parent and kinds[value] is None and depth[value] == depth[node.name]:
                parent[find(value)] = find(node.name)
    groups: dict[str, list[Node]] = {}
    for node in program.nodes:
        if node.name not in local or node.name in program.outputs or node.name in read_by_calls:
            groups.setdefault(find(node.name), []).append(node)
    return list(groups.values())


def _parts(group: list[Node]) -> list[list[Node]]:
    """Cut `group` into parts of at most `MOST_NODES`, one after the other, where the fewest dimensions go from part to part."""
    if len(group) <= MOST_NODES or isinstance(group[0], Opaque):
        return [group]
    last = {v: i for i, node in enumerate(group) for v in uses(node)}
    parts: list[list[Node]] = []
    start = 0
    while len(group) - start > MOST_NODES:
        alive = dict[str, int]()
        best, least = start + MOST_NODES, None
        for place in range(start, start + MOST_NODES):
            node = group[place]
            alive[node.name] = 1 + 2 * len(node.axes)
            alive = {v: weight for v, weight in alive.items() if last.get(v, -1) > place}
            if place + 1 >= start + MOST_NODES // 2 and (least is None or sum(alive.values()) <= least):
                best, least = place + 1, sum(alive.values())
        parts.append(group[start:best])
        start = best
    return [*parts, group[start:]]


def _call(program: TensorProgram, members: Sequence[Node]) -> TorchCall:
    first, *rest = (n for n in members if isinstance(n, Opaque))
    return TorchCall(first.call, first.uses, (first.name, *(n.name for n in rest)), program.turns.get(first.name, ()))


def _region(program: TensorProgram, members: Sequence[Node], local: Collection[str]) -> Region:
    own = {n.name for n in members}
    elsewhere = set(program.outputs)
    if own.issubset(local):  # for whom nobody makes it: what is returned, and what PyTorch reads
        elsewhere |= {n.name for n in members if any(isinstance(r, Opaque) for r in program.readers.get(n.name, ()))}
    else:
        elsewhere = (_wanted(program, members, local) | elsewhere) - set(local)
    outputs = tuple(n.name for n in members if n.name in elsewhere)
    return Region(part(program, tuple(n.name for n in members), outputs))


def _wanted(program: TensorProgram, members: Sequence[Node], local: Collection[str]) -> set[str]:
    """Find the values of `members` that others read, and those of which the `local` ones among these are made again there."""
    own, wanted = {n.name for n in members}, set[str]()
    for node in reversed(members):
        readers = program.readers.get(node.name, ())
        if any(r.name not in own or (r.name in wanted and r.name in local) for r in readers):
            wanted.add(node.name)
    return wanted
