"""What a target asks of the blocks and iterations of a placed program, set at its loops (`weft.block.places`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.block.accumulation import adds_floats, rounds_to_bytes
from weft.block.places import LoopDemands, Place
from weft.block.program import BlockNode, BlockProgram, Dot, Graph, Map
from weft.block.typed import typed
from weft.block.walk import maps, with_maps
from weft.schedule.kernels import kernels
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Granularity:
    """What a target asks of blocks and iterations.

    Attributes:
        matmul: the fewest rows, columns and elements in depth of a matmul of blocks.
        depth_bytes: the fewest bytes of each row of its operands, in depth.
        ahead: its compiler can have the loads of several iterations in flight.
        chain: at most so many iterations of a loop add to one sum, which is then merged into what came before; 0: all of them do.
        parts: an iteration may do some rows of its blocks alone, as many as a mask leaves.
    """

    matmul: int = 1
    depth_bytes: int = 1
    ahead: bool = False
    chain: int = 0
    parts: bool = False


EXACT = Granularity(chain=16, parts=True)
"""Of a target whose blocks have just their elements, so that each number of a state is one chain of additions."""
# A loop by single elements has this times as many iterations in a sum: each adds one term.
_SINGLE = 4


def multiplied(left: DType, right: DType) -> tuple[DType, DType]:
    """Return the types as which matrix units multiply operands of types `left` and `right`: float32 where they differ."""
    alike = left is right or (left.is_kept and right.is_kept)
    return (left, right) if alike else (DType.float32, DType.float32)


def added_apart(factor: DType, *, tf32: bool) -> bool:
    """Tell whether a matmul of blocks is added to the sum of those before it by itself, not by the unit that multiplies.

    Sums of float32 are short chains, one for each block, and one of these; those of int8 have 32 bits in a block, and 64 in all.

    Args:
        factor: the type as which factors are multiplied (`multiplied`).
        tf32: those of float32 are rounded to tf32.
    """
    return factor is DType.int8 or (factor is DType.float32 and not tf32)


def with_demands(program: BlockProgram, granularity: Granularity) -> BlockProgram:
    """Set what the target asks of each loop of an applied `program`: loops of different launches share no blocks."""
    if not granularity.parts:
        program = replace(program, graph=with_maps(program.graph, _in_whole_blocks))
    if granularity == EXACT:
        return replace(program, graph=with_maps(program.graph, lambda node: _chained(node, granularity.chain)))
    loops, demands = list(maps(program.graph)), dict[Axis, LoopDemands]()
    assert len({node.axis for node in loops}) == len(loops), "every loop has an axis of its own"
    segments = frozenset(node.range.segment[0].space for node in loops if node.range.segment is not None)
    for part in kernels(program):
        least = _of_matmuls(program, part.nodes, granularity)
        for node in maps(Graph((), part.nodes, ())):
            own = least.get(node.axis, 1)
            covering = max([own, *(n for axis, n in least.items() if axis.space == node.axis.space)])
            unroll = _unrolled(node, segments) if granularity.ahead else 1
            pipelined = granularity.ahead and unroll == 1 and _is_pipelined(node)
            demands[node.axis] = LoopDemands(own, covering, unroll, pipelined)
    return replace(
        program,
        graph=with_maps(
            program.graph, lambda node: _chained(replace(node, demands=demands[node.axis]), granularity.chain)
        ),
    )


def _chained(node: Map, chain: int) -> Map:
    """Return `node`, with at most so many iterations to a sum if it carries sums of floats that its body does not see.

    What is rounded at a running scale is rounded by all that came before: that stays one state.
    """
    state = node.state
    if chain == 0 or state is None or state.shown or not adds_floats(state.merge) or rounds_to_bytes(state.update):
        return node
    return replace(node, demands=replace(node.demands, chain=chain * (_SINGLE if node.unit else 1)))


def _in_whole_blocks(node: Map) -> Map:
    """Return `node`, whose guard leaves out iterations alone."""
    return node if node.guard is None else replace(node, guard=replace(node.guard, rows=None))


def _of_matmuls(program: BlockProgram, nodes: Sequence[BlockNode], granularity: Granularity) -> dict[Axis, int]:
    """Map the axes of blocks that are multiplied, rows, columns, and what is contracted, to the fewest elements of each."""
    found: dict[Axis, int] = {}
    for node, types in typed(program, nodes):
        if isinstance(node, Dot) and len(node.dims) == 2:
            narrowest = min(t.bytes for t in multiplied(types[node.left].dtype, types[node.right].dtype))
            deep = max(granularity.matmul, granularity.depth_bytes // narrowest)
            wanted = {**dict.fromkeys(node.dims, granularity.matmul), node.over: deep}
            found |= {axis: max(least, found.get(axis, 0)) for axis, least in wanted.items()}
    return found


def _unrolled(node: Map, segments: frozenset[Space]) -> int:
    """Count the iterations of a loop that run as one, so that what they load comes at once: of one that merges `segments`."""
    merge = node.axis.space in segments and node.unit and node.state is not None
    if not merge or any(isinstance(n, Map) for n in node.body.nodes):
        return 1
    return max(n for n in (1, 2, 4, 8) if node.axis.space.size({}) % n == 0)


def _is_pipelined(node: Map) -> bool:
    """Tell whether `node` runs several iterations one after the other, which have no such loops in them."""
    repeats = not node.runs_once and node.place is not Place.grid
    return repeats and all(inner.runs_once for inner in maps(node.body))
