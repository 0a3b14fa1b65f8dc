"""The passes from a tensor program to a block program."""

from __future__ import annotations

from collections.abc import Mapping

from weft.block import lower
from weft.block.program import BlockProgram
from weft.cascade import chains
from weft.tensor.passes import Bears, Conditioning, tensor_pass
from weft.tensor.program import TensorProgram


@tensor_pass(takes=("lengths", "doubles"))
def to_blocks(program: TensorProgram, lengths: Mapping[str, int] | None = None, doubles: bool = True) -> BlockProgram:
    """Lower every operation alone (Blockbuster's Table 2)."""
    return lower(program, lengths=lengths, doubles=doubles)


@tensor_pass(Conditioning.rounding, Bears.checked, takes=("lengths", "doubles"))
def chains_to_loops(
    program: TensorProgram, lengths: Mapping[str, int] | None = None, doubles: bool = True
) -> BlockProgram:
    """Lower chains of dependent reductions as one loop each, and every other operation alone."""
    chained = chains(program)
    return lower(chained.program, chained.found.folds, lengths, doubles=doubles)


@tensor_pass(Conditioning.rounding, Bears.checked, takes=("lengths", "doubles"))
def chains_to_rounding_loops(
    program: TensorProgram, lengths: Mapping[str, int] | None = None, doubles: bool = True
) -> BlockProgram:
    """Lower chains of dependent reductions as loops that round at the scale so far; else as `chains_to_loops`."""
    chained = chains(program, running=True)
    return lower(chained.program, chained.found.folds, lengths, doubles=doubles)
