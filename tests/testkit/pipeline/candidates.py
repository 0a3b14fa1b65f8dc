"""Candidates as `weft.pipeline` makes them: what a family's passes give, in canonical names."""

from __future__ import annotations

from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.pipeline import Family, snapshots
from weft.tensor.passes import Setting
from weft.tensor.program import TensorProgram

SETTING = Setting()


def candidates(family: Family, program: TensorProgram, setting: Setting = SETTING) -> list[BlockProgram]:
    """The programs of the snapshots of `family`, without its alternatives, checked after each rewrite."""
    found = [made for name, made in snapshots(family, program, setting, checked=True) if "peeled" not in name]
    return [canonical(made.under(family.after, setting).program) for made in found]
