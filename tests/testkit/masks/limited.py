"""What loops over bands a fused program has, and where they begin and end."""

from __future__ import annotations

from weft.block import lower
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.ranges import Band
from weft.block.walk import maps
from weft.pipeline import RULES_THAT_KEEP_PRECISION, fuse
from weft.tensor.program import TensorProgram


def fused(program: TensorProgram) -> BlockProgram:
    """The last snapshot of `program`: products joined too."""
    return canonical(fuse(lower(program), RULES_THAT_KEEP_PRECISION, checked=True).last)


def bands(program: BlockProgram) -> list[Band]:
    return [m.range for m in maps(program.graph) if isinstance(m.range, Band)]


def ends(band: Band) -> tuple[int | None, int | None]:
    low, high = (None if d is None else d.constant for d in (band.low, band.high))
    return low, high
