"""emit.triton: Triton for one launch of an applied block program.

In: the program, a launch's operators, and the order of dimensions of each tensor it reads and writes. Out: a Python module with
one `@triton.jit` function, and what its launcher must know; `demand_legal` refuses before what no kernel can do. Grid loops
become program ids, other loops `for` loops that carry their state in variables, items tensors whose lanes beyond the valid
elements hold what a `Fill` put there, matmuls `tl.dot`. A list that one loop makes and another reads stays in registers, where
both go over all of it at once.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.emit.triton.frame import BlockConstant, Constant, WholeConstant
    from weft.emit.triton.kernel import GRANULARITY, GridLoop, TritonKernel, emit
    from weft.emit.triton.legality import demand_legal

__all__ = [
    "GRANULARITY",
    "BlockConstant",
    "Constant",
    "GridLoop",
    "TritonKernel",
    "WholeConstant",
    "demand_legal",
    "emit",
]

export_lazily(__name__)
