"""The planner beside every cut of random graphs: whether one is cheaper than what it finds.

`python -m testkit.plan.covers --count 200` plans so many random graphs of up to 10 operators with invented prices, and compares
each plan's price with the least of all convex cuts under the same prices.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isclose
from types import SimpleNamespace
from typing import cast

from testkit.block import programs
from testkit.block.programs import matmul
from weft.errors import UnsupportedError
from weft.plan.choose.cuts import Cuts
from weft.plan.partition.partition import Region, united, waits_of
from weft.plan.targets.candidates import Selection
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Contraction, Elementwise, Input, Monoid, Node, Opaque, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

F32 = programs.F32
MOST_OPERATORS = 10


def random_graph(
    rng: random.Random, most: int = MOST_OPERATORS, calls: float = 0.4, *, turns: bool = False
) -> TensorProgram:
    """Rows that are multiplied with matrices, added to each other, mapped, scaled by their sums, and now and then left to PyTorch.

    Each reads one or two of the values before it, so that branches leave and join; what nothing reads is returned. `calls` weighs
    how often PyTorch is called; with `turns` these calls keep their order, as calls that draw random numbers do.
    """
    m, width = Axis("m", Space("M")), Space("D")
    inputs, nodes = [Input("x", (m, Axis("d", width)), F32)], list[Node]()
    made = ["x"]
    unread = set[str]()

    def use(name: str, at: Axis) -> Use:
        unread.discard(name)
        return Use(name, (m, at))

    for i in range(rng.randint(3, most)):
        name, into = f"v{i}", Axis(f"d{i}", width)
        near = made[-rng.choice((1, 2, 4)) :]
        match rng.choices(("product", "add", "exp", "scale", "call"), (9, 3, 1, 1, calls))[0]:
            case "product":
                over = Axis(f"k{i}", width)
                inputs.append(Input(f"w{i}", (over, into), F32))
                nodes.append(matmul(name, use(rng.choice(near), over), Use(f"w{i}", (over, into)), over))
            case "add":
                both = (use(rng.choice(near), into), use(rng.choice(made), into))
                nodes.append(Elementwise(name, (m, into), F32, programs.ADD, both))
            case "scale":
                source, over = rng.choice(near), Axis(f"k{i}", width)
                nodes.append(Reduction(f"s{i}", (m,), F32, Monoid.sum, use(source, over), (over,)))
                scaled = apply("div", Arg(0), Arg(1))
                nodes.append(Elementwise(name, (m, into), F32, scaled, (use(source, into), Use(f"s{i}", (m,)))))
            case "call":
                source = use(rng.choice(near), into)
                read = (source.value,)
                nodes.append(Opaque(name, (m, into), F32, "aten.sort", name, read, "not in the table", always=turns))
            case _:
                nodes.append(Elementwise(name, (m, into), F32, apply("exp", Arg(0)), (use(rng.choice(near), into),)))
        made.append(name)
        unread.add(name)
    return TensorProgram(tuple(inputs), tuple(nodes), tuple(name for name in made if name in unread))


@dataclass
class Invented:
    """Random prices of regions: of a joined one about what its parts take; some have no kernel.

    `asked` says which were asked for, `told` which the graph was cut into, each with the number of questions before. `thought_of`
    are those that may be asked for, `at_once`: they are all priced when that is said. `none` is the share of pairs of matmuls such
    that no kernel makes the first and hands the second on.
    """

    rng: random.Random
    launch_seconds: float = 1.0
    fine: bool = False
    asked: list[frozenset[str]] = field(default_factory=list[frozenset[str]])
    told: list[tuple[int, frozenset[str]]] = field(default_factory=list[tuple[int, frozenset[str]]])
    known: dict[frozenset[str], tuple[float, float]] = field(
        default_factory=dict[frozenset[str], "tuple[float, float]"]
    )
    at_once: bool = False
    thought_of: list[frozenset[str]] = field(default_factory=list[frozenset[str]])
    none: float = 0.0
    refused: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    def form(self, region: Region) -> frozenset[str]:
        return frozenset(n.name for n in region.program.nodes)

    def at_hand(self, region: Region) -> bool:
        return frozenset(n.name for n in region.program.nodes) in self.thought_of

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        self.thought_of += [frozenset(n.name for n in region.program.nodes) for region in regions]
        return self.at_once

    def settled(self, regions: Sequence[Region]) -> None:
        for region in regions:
            self.told.append((len(self.asked), frozenset(n.name for n in region.program.nodes)))

    def lengths(self, region: Region) -> Mapping[str, int]:
        return {space.name: 64 for space in region.program.spaces()}

    def selection(self, region: Region) -> Selection:
        self.asked.append(frozenset(n.name for n in region.program.nodes))
        work = self._seconds(region)[0]
        if work == inf:
            raise UnsupportedError("no kernel")
        cost = SimpleNamespace(predicted_seconds=work + self.launch_seconds)
        return cast(
            "Selection", SimpleNamespace(work_seconds=work, chosen=SimpleNamespace(cost=cost, off_the_grid=False))
        )

    def least(self, region: Region, reached: float = 1.0) -> float:
        del reached  # invented bounds know no rates
        return self._seconds(region)[1]

    def _seconds(self, region: Region) -> tuple[float, float]:
        names = frozenset(n.name for n in region.program.nodes)
        if names not in self.known:
            products = [n.name for n in region.program.nodes if isinstance(n, Contraction)]
            work = (10 * len(products) + len(names)) * self.rng.uniform(0.6, 1.2)
            least = work * self.rng.uniform(0.4, 1.0)
            none = any(self._refused(a, b) for a in products for b in products if a != b and b in region.results)
            self.known[names] = (inf if none else work), least
        return self.known[names]

    def _refused(self, made: str, handed_on: str) -> bool:
        pair = made, handed_on
        if pair not in self.refused:
            self.refused[pair] = self.rng.random() < self.none
        return self.refused[pair]


@dataclass(frozen=True)
class Compared:
    """What the planner found for a graph, and the least of all cuts."""

    found: float
    least: float
    asked: int
    cuts: int

    @property
    def is_least(self) -> bool:
        """Tell whether no cut is cheaper."""
        return isclose(self.found, self.least)


def compared(program: TensorProgram, prices: Invented) -> Compared:
    """Plan `program`, and price every cut of it."""
    cuts = Cuts(program, prices)
    found = sum(cuts.price(stage) for stage in cuts.stages() if isinstance(stage, Region))
    asked = len(prices.asked)
    every = list(every_cut(Cuts(program, prices)))
    return Compared(found, min(every), asked, len(every))


def every_cut(cuts: Cuts) -> Iterator[float]:
    """Price every way to cut a program's atoms into connected parts that can run one after the other.

    On a CPU a region that has a kernel is not cut inside; what is cut so has all its atoms in other parts.
    """
    atoms = cuts.atoms()
    reads = [set(own) for own in waits_of(atoms)]

    def price(part: frozenset[int]) -> float:
        own = [atoms[i] for i in sorted(part)]
        regions = [atom.stage for atom in own if isinstance(atom.stage, Region)]
        if len(regions) < len(own):
            return 0.0 if len(own) == 1 else inf
        for whole in {region for atom in own for region in atom.inside}:
            cut = any(whole in atoms[i].inside for i in range(len(atoms)) if i not in part)
            if cut and cuts.price(whole) < inf:
                return inf
        joined = united(cuts.program, regions)
        matmuls = sum(isinstance(n, Contraction) for n in joined.program.nodes)
        alike = len({atom.home for atom in own}) == 1
        return cuts.price(joined) if alike or matmuls <= 4 else inf

    known: dict[frozenset[int], float] = {}
    for cut in _cuts(reads):
        for part in cut:
            if part not in known:
                known[part] = price(part)
        yield sum(known[part] for part in cut)


def _cuts(reads: Sequence[set[int]]) -> Iterator[list[frozenset[int]]]:
    """Yield the cuts of a graph: each element joins one of the parts so far, or is a new one; what cannot run is left out."""

    def grown(parts: list[frozenset[int]], place: int) -> Iterator[list[frozenset[int]]]:
        if place == len(reads):
            if all(_is_connected(part, reads) for part in parts) and _can_run(parts, reads):
                yield parts
            return
        for i, part in enumerate(parts):
            yield from grown([*parts[:i], part | {place}, *parts[i + 1 :]], place + 1)
        yield from grown([*parts, frozenset((place,))], place + 1)

    return grown([], 0)


def _is_connected(part: frozenset[int], reads: Sequence[set[int]]) -> bool:
    seen: frozenset[int] = frozenset((min(part),))
    while more := {i for i in part - seen if reads[i] & seen or any(i in reads[j] for j in seen)}:
        seen = seen.union(more)
    return seen == part


def _can_run(parts: Sequence[frozenset[int]], reads: Sequence[set[int]]) -> bool:
    left, done = list(parts), set[int]()
    while left:
        ready = [part for part in left if all(reads[i] <= done | part for i in part)]
        if not ready:
            return False
        left = [part for part in left if part not in ready]
        done |= {i for part in ready for i in part}
    return True


def campaign(count: int, seed: int = 0, most: int = MOST_OPERATORS) -> list[Compared]:
    """Compare for so many random graphs of up to `most` operators."""
    found: list[Compared] = []
    for number in range(seed, seed + count):
        rng = random.Random(number)
        program = random_graph(rng, most)
        found.append(compared(program, Invented(rng, none=rng.choice((0.0, 0.2)))))
    return found


def main() -> None:
    """Print how many plans are the cheapest cut, and how much the others cost above it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operators", type=int, default=MOST_OPERATORS)
    given = parser.parse_args()
    found = campaign(given.count, given.seed, given.operators)
    worse = [each.found / each.least - 1 for each in found if not each.is_least]
    print(
        f"{len(found) - len(worse)} of {len(found)} plans are the cheapest of {sum(each.cuts for each in found)} cuts"
    )
    print(f"prices asked for: {sum(each.asked for each in found)}")
    if worse:
        print(f"others cost up to {max(worse):.1%} more, {sum(worse) / len(worse):.1%} on average")


if __name__ == "__main__":
    main()
