"""`split`: a loop with state becomes segments computed apart, and a merge map in a second kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from weft.block.copies import loop_names, merging
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Broadcast,
    Feed,
    Final,
    Graph,
    Iterate,
    Map,
    Stacked,
    State,
    sealed,
)
from weft.block.ranges import All, Segment
from weft.block.rename import fresh, rename_map_axes, values_of
from weft.block.walk import in_order, maps, needed, operands, results
from weft.errors import ScheduleError
from weft.fuse.inside_the_only_loop import is_elementwise, nothing_beside
from weft.schedule.scans import in_segments
from weft.schedule.together import in_blocks, merging_together
from weft.tensor.axes import Axis, Space

_PARTS = 2
"""Maps that stand for a split reduction, or for a scan whose segments merge those before them; other scans have one more."""


@dataclass(frozen=True, slots=True)
class Split:
    """What splitting made: the program, and which loop each new loop takes its levels from (None: a split's own).

    Attributes:
        together: how many parts the merge takes at once.
        by_blocks: loops with state around the loop, which now leave parts for each of their blocks: both halves of each must go by
            the same blocks, one after the other.
    """

    program: BlockProgram
    levels_of: tuple[tuple[str, str | None], ...]
    together: int
    by_blocks: tuple[str, ...] = ()


def split(program: BlockProgram, loop: str, count: int, together: int = 1) -> Split:
    """Split `loop` into `count` segments, each with a state of its own, and merge the states in a map after it.

        for k in range(K): s = update(s, ...)
        out = finish(s)
    becomes
        forall s in range(count):  for k in range(K, segment s): c = update(c, ...);  store(c, P[s])       (first kernel)
        for s in range(count): m = merge(m, load(P[s]));  out = finish(m)                                  (second kernel)

    The maps around the loop are parted in two: what the loop needs stays with the segments, the rest goes with the merge.

    Args:
        program: without places.
        loop: a loop with state, by name.
        count: of segments.
        together: how many parts the merge should take at once; it takes them one by one where its state allows no more. With more
            than one each segment of a scan merges those before it, if it can.

    Raises:
        ScheduleError: where a map with a state around the loop does not go over all of its range, or goes on from another's state;
            where the loop stacks outputs, and its iterations do not see what came before.
    """
    splitter = _Splitter(program, count, together)
    graph = splitter.part(program.graph, _path(program.graph, loop))
    return Split(replace(program, graph=graph), tuple(splitter.levels_of), splitter.together, tuple(splitter.by_blocks))


def _path(graph: Graph, loop: str) -> tuple[str, ...]:
    for node in graph.nodes:
        if isinstance(node, Map):
            if node.name == loop:
                return (loop,)
            inner = _path(node.body, loop)
            if inner:
                return (node.name, *inner)
    return ()


class _Splitter:
    def __init__(self, program: BlockProgram, count: int, together: int) -> None:
        self.count = count
        self.together = together
        self.make = loop_names(program)
        self.levels_of: list[tuple[str, str | None]] = []
        self.by_blocks: list[str] = []
        self.scans = False

    def part(self, graph: Graph, path: tuple[str, ...]) -> Graph:
        """Replace the map of `graph` that `path` begins with by its two parts."""
        if any(isinstance(n, Map) and n.range.one_block for n in graph.nodes):
            raise ScheduleError(f"loop {path[-1]!r} cannot be split: it is in or beside a first iteration on its own")
        node = next(n for n in graph.nodes if isinstance(n, Map) and n.name == path[0])
        parts = self.segments(graph, node) if len(path) == 1 else self.around(graph, node, path[1:])
        nodes = [m for n in graph.nodes for m in (parts if n is node else (n,))]
        return replace(graph, nodes=in_order(nodes, graph.inputs))

    def segments(self, graph: Graph, loop: Map) -> tuple[Map, ...]:
        """Return the map over segments and the merge map that stand for `loop`; and a map that goes over them again, if its
        iterations see what came before. That map can do the merging, too.
        """
        state = loop.state
        if state is not None and state.shown:
            parts = in_segments(loop, self.count, self.make, graph, together=self.together > 1)
            self.scans, self.together = True, self.together if len(parts) == _PARTS else 1
            (first,) = maps(parts[0].body)
            made = (*parts, *(m for m in maps(parts[-1].body) if m.name != loop.name))
            self.levels_of += [*((each.name, None) for each in made), (first.name, loop.name)]
            return parts
        if state is None or any(isinstance(o, Stacked) for o in loop.outputs):
            raise ScheduleError(f"loop {loop.name!r} cannot be split: it stacks outputs or carries no state")
        name = self.make(f"{loop.axis.space.name.lower()}s")
        space = Space(name.upper(), self.count)
        axis, merge_axis = Axis(name, space), Axis(self.make(f"{name}.merge"), space)
        make = fresh(values_of(graph))
        names = [c.name for c in state.components]
        raw = replace(state, finish=Graph(tuple(names), (), tuple(names)))
        partial = replace(loop, state=raw, range=Segment(axis, self.count), outputs=tuple(Final(n, n) for n in names))
        outers = list(dict.fromkeys(f.outer for f in loop.inputs))
        lists = {n: make("parts") for n in names}
        block = merging_together(state, merge_axis) if self.together > 1 else None
        self.together = 1 if block is None else self.together
        single = block is None
        # Where blocks of parts are merged, parts are items with the axis: of one element as they are made.
        alone = () if single else in_blocks(state.components, axis, {*outers, *names})
        left = dict(zip(names, names if single else [node.name for node in alone], strict=True))
        segment = Map(axis.name, axis, tuple(Feed(o, o, Broadcast()) for o in outers), Graph((), (partial, *alone), ()),
                      tuple(Stacked(lists[n], left[n]) for n in names), unit=single)  # fmt: skip
        inner = {n: f"{n}_part" for n in names}
        merged = State(state.components, tuple(inner.values()), block or merging(state), state.merge, state.finish)
        merge = Map(merge_axis.name, merge_axis, tuple(Feed(lists[n], inner[n], Iterate(axis)) for n in names),
                    Graph((), (), ()), loop.outputs, merged, unit=single)  # fmt: skip
        self.levels_of += [(segment.name, None), (merge.name, None)]
        return sealed(segment), sealed(merge)

    def around(self, graph: Graph, node: Map, path: tuple[str, ...]) -> tuple[Map, ...]:
        """Part `node`, a map around the loop, in as many as the loop: all but the last are parallel, a state stays with what its
        iterations feed.
        """
        if node.state is not None and (node.state.resume is not None or node.range != All()):
            raise ScheduleError(
                f"a loop inside {node.name!r} cannot be split: {node.name!r} does not go over all of its range"
            )
        if node.guard is not None:
            raise ScheduleError(
                f"a loop inside {node.name!r} cannot be split: {node.name!r} leaves idle iterations out"
            )
        body = self.part(node.body, path)
        made = [n for n in body.nodes if n not in node.body.nodes and isinstance(n, Map)]
        if node.state is not None:
            if self.scans:
                raise ScheduleError(
                    f"a scan inside {node.name!r} cannot be split: {node.name!r} has a state of its own"
                )
            self.by_blocks.append(node.name)
        make, parts, rest = fresh(values_of(graph)), list[Map](), replace(node, body=body)
        for part in made[:-1]:
            first, rest = self._parted(rest, part, make)
            parts.append(first)
        return (*parts, rest)

    def _parted(self, node: Map, part: Map, make: Callable[[str], str]) -> tuple[Map, Map]:
        """Part the map `node` in what `part`, a map of its body, needs, and the rest; `make` makes up names for what is between."""
        body = node.body
        first_nodes = needed(body.nodes, results(part))
        leaving = {o.inner for o in node.outputs} | {*(() if node.state is None else node.state.feeds)}
        second_nodes = _rest(body, first_nodes, leaving)
        made = {name for n in first_nodes if n not in second_nodes for name in results(n)}
        wanted = {name for n in second_nodes for name in operands(n)} | leaving
        crossing = sorted(made & wanted)
        lists = {name: make(f"{name}") for name in crossing}
        outputs = tuple(Stacked(lists[n], n) for n in crossing)
        feeds = tuple(f for f in node.inputs if _reads(first_nodes, f.inner))
        shell = replace(node, name=self._copy(node.name), inputs=feeds, body=Graph((), first_nodes, ()), state=None)
        shell = nothing_beside(sealed(replace(shell, outputs=outputs)))
        first = rename_map_axes(shell, {node.axis: Axis(shell.name, node.axis.space)})
        kept = tuple(f for f in node.inputs if _reads(second_nodes, f.inner) or f.inner in wanted)
        iterated = tuple(Feed(lists[n], n, Iterate(first.axis)) for n in crossing)
        second = sealed(replace(node, inputs=(*kept, *iterated), body=Graph((), second_nodes, ())))
        return first, second

    def _copy(self, name: str) -> str:
        """Make up a name for the first part of the loop `name`, which takes its levels from it."""
        new = self.make(name)
        self.levels_of.append((new, name))
        return new


def _rest(body: Graph, first: tuple[BlockNode, ...], leaving: set[str]) -> tuple[BlockNode, ...]:
    """Return the operators of `body` that are not of its `first` part, and the elementwise ones of this that they need:
    made again.
    """
    alone: set[str] = set(body.inputs)
    again: list[BlockNode] = []
    for node in first:
        if is_elementwise(node) and alone.issuperset(operands(node)):
            alone.update(results(node))
            again.append(node)
    wanted = {name for n in body.nodes if n not in first for name in operands(n)} | leaving
    repeated = needed(again, wanted)
    return tuple(n for n in body.nodes if n not in first or n in repeated)


def _reads(nodes: Iterable[BlockNode], name: str) -> bool:
    return any(name in operands(n) for n in nodes)
