"""emit.triton: Triton for one launch of an applied block program.

In: the program, a launch's operators, and the order of dimensions of each tensor it reads and writes. Out: a Python module with
one `@triton.jit` function, and what its launcher must know. Grid loops become program ids, other loops `for` loops that carry
their state in variables, items tensors whose lanes beyond the valid elements hold what a `Fill` put there, matmuls `tl.dot`. A
list that one loop makes and another reads stays in registers, where both go over all of it at once.
"""

from weft.emit.triton.frame import BlockConstant, Constant, WholeConstant
from weft.emit.triton.kernel import GridLoop, TritonKernel, emit

__all__ = ["BlockConstant", "Constant", "GridLoop", "TritonKernel", "WholeConstant", "emit"]
