"""How much memory near the cores one iteration of the grid takes, and how long a segment can be held there whole.

A loop with state goes block by block, in storage that does not depend on its range (the incremental form of RedFuser, 3.3), or has
one block that covers its range: then nothing is corrected, and all that the range makes lies on chip at once (sections 4.3, 5.4).
What is alive at once is `weft.block.residency`'s to say, here with sizes alone: nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from weft.block.check import Scope, Types, body_types, infer, update_types
from weft.block.program import BlockProgram, BlockType, Broadcast, Graph, Map
from weft.block.residency import Frame, LiveBytes, LoopFrame, global_lists
from weft.block.walk import maps, results
from weft.cost.traffic import CurrentBlocks, classes, elements, numbered_axes
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis

LONGEST = 1 << 30
"""Elements of the longest segment that is looked at."""

_WHOLE = LoopSchedule((Level(LevelPlace.whole),))


def on_chip_bytes(program: BlockProgram, sizes: Mapping[str, int]) -> int:
    """Counts the most bytes of items, and of lists of its own, that an iteration of the grid has at once; of kernels
    the greatest.

    Equal to `on_chip` of the interpreter's traffic.

    Args:
        program: with places (a schedule was applied); checked.
        sizes: elements of each space, by name; all at least 1.
    """
    walk = _Walk(sizes, numbered_axes(program.graph), global_lists(program))
    frame = Frame(walk.memory, program.graph, {}, {})
    walk.graph(program.graph, dict(program.inputs), Scope({}, applied=True), {}, frame)
    return walk.memory.peak


def held_whole(schedule: Schedule, loop: str) -> Schedule:
    """Returns `schedule` with one block that covers the range of `loop`: the form without corrections."""
    return replace(schedule, loops=tuple((n, _WHOLE if n == loop else levels) for n, levels in schedule.loops))


def fits_whole(program: BlockProgram, schedule: Schedule, loop: str, sizes: Mapping[str, int], capacity: float) -> bool:
    """Tells whether all that the range of `loop` makes in one iteration of the grid fits into `capacity` bytes.

    Args:
        program: without places.
        schedule: for it; what it says of `loop` does not matter.
        loop: the name of a loop, with state or without.
        sizes: elements of each space, by name: those of the loop's are the segment's.
        capacity: bytes near a core: shared memory, or a second-level cache.

    Raises:
        ScheduleError: the loop cannot have one block (it goes by single elements, or shares its blocks with others).
    """
    return on_chip_bytes(apply(program, held_whole(schedule, loop)), sizes) <= capacity


def longest_whole(
    program: BlockProgram, schedule: Schedule, loop: str, sizes: Mapping[str, int], capacity: float
) -> int:
    """Finds the most elements of the space of `loop` that fit whole, as `fits_whole` has it, at the given other sizes.

    0 where not even one does; `LONGEST` where nothing grows with the space.

    Raises:
        ScheduleError: as `fits_whole`.
    """
    applied = apply(program, held_whole(schedule, loop))
    space = next(m.axis.space.name for m in maps(program.graph) if m.name == loop)

    def fits(size: int) -> bool:
        return on_chip_bytes(applied, {**sizes, space: size}) <= capacity

    least, most = 0, LONGEST + 1
    while most - least > 1:
        size = min(2 * least + 1, (least + most) // 2)  # doubles until it is too long
        least, most = (size, most) if fits(size) else (least, size)
    return least


@dataclass
class _Walk:
    sizes: Mapping[str, int]
    numbered: frozenset[Axis]
    own: frozenset[str]
    memory: LiveBytes = field(default_factory=LiveBytes)

    def graph(self, graph: Graph, inputs: Types, scope: Scope, steps: CurrentBlocks, frame: Frame) -> Types:
        """Infers the types of the values of `graph`, whose bytes `frame` accounts for."""
        types = infer(graph, inputs, scope)
        for number, node in enumerate(graph.nodes):
            if isinstance(node, Map):
                frame.enter(number, node)
                frame.leave(number, node, self.loop(node, types, scope, steps))
            elif all(types[name].lists for name in results(node)):
                frame.joined(number, node)
            else:
                frame.made(number, node, {name: _bytes(types[name], steps) for name in results(node)})
        return types

    def loop(self, node: Map, types: Types, scope: Scope, steps: CurrentBlocks) -> dict[str, int]:
        """Counts the bytes of each result of `node` that are alive after it."""
        state = node.state
        components = () if state is None else state.components
        kinds = {c.name: BlockType((), c.dims, c.dtype) for c in components}
        frame = LoopFrame(self.memory, node, self.own, {name: _bytes(kind, steps) for name, kind in kinds.items()})
        given, inside = body_types(node, types), scope.inside(node)
        for count, step in classes(node, steps, self.sizes, self.numbered):
            if not count:
                continue
            with self.memory.repeated(count):
                inner = {**steps, node.axis: step}
                loaded = (f for f in node.inputs if not isinstance(f.access, Broadcast) and not given[f.inner].lists)
                during = frame.body({f.inner: _bytes(given[f.inner], inner) for f in loaded})
                body = self.graph(node.body, given, inside, inner, during)
                after = None
                if state is not None:
                    after = frame.update(during)
                    self.graph(state.update, update_types(state, body), inside, inner, after)
                frame.end(during, after, count)
        last = None
        if state is not None:
            last = frame.finish()
            self.graph(state.finish, kinds, scope, steps, last)
        return frame.results(last)


def _bytes(kind: BlockType, steps: CurrentBlocks) -> int:
    """Counts the bytes of the valid elements of an item."""
    return elements(kind.dims, steps) * kind.dtype.bytes
