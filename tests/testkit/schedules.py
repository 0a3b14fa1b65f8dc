"""Fused programs and random schedules, for tests of everything that comes after scheduling."""

from __future__ import annotations

from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.lab.fuzz.random_schedules import random_schedule
from weft.pipeline import RULES_IN_PLANS, fuse
from weft.tensor.program import TensorProgram

__all__ = ["fused", "random_schedule"]


def fused(program: TensorProgram) -> BlockProgram:
    """`program`, lowered and fused, with the checker run after every rewrite."""
    return canonical(fuse(lower(program), RULES_IN_PLANS, (), checked=True).last)
