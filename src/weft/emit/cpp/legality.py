"""What C++ kernels can do, by types, operators and loops of a placed program: asked before printing, and to choose schedules."""

from __future__ import annotations

from weft.block.program import BlockNode, BlockProgram, Dot, Stage
from weft.block.scope import Types
from weft.block.typed import typed
from weft.block.walk import every
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes
from weft.tensor.dtypes import DType


def demand_legal(program: BlockProgram, kernel: KernelNodes) -> None:
    """Raise UnsupportedError unless a C++ kernel can do what one launch does.

    What cannot be done: matmuls of bools and of numbers of 8 bits with a point, of items with more than two axes, and of types
    that are accumulated apart; staged copies of items with more than two axes.

    Args:
        program: applied (`weft.schedule.apply`).
        kernel: one of `weft.schedule.kernels(program)`.
    """
    if any(isinstance(node, Dot | Stage) for node in every(kernel.nodes)):
        for node, types in typed(program, kernel.nodes):
            _demand_operator(node, types)


def _demand_operator(node: BlockNode, types: Types) -> None:
    match node:
        case Dot(_, left, right, over):
            kinds = (types[left].dtype, types[right].dtype)
            wide = {each.accumulator for each in kinds} != {node.dtype.accumulator}
            if wide or any(each.is_kept or each is DType.bool for each in kinds):
                raise UnsupportedError(f"a matmul of {kinds[0]} and {kinds[1]}", where=node.location)
            for dims in (types[left].dims, types[right].dims):
                if sum(axis != over for axis in dims) > 1:
                    raise UnsupportedError(
                        f"a matmul of items with axes {', '.join(map(str, dims))}: one besides {over} is supported"
                    )
        case Stage() if len(node.dims) > 2:
            raise UnsupportedError(f"staging an item with {len(node.dims)} axes")
        case _:
            pass
