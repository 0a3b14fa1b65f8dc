"""Families of candidates: which passes a program goes through, and the block programs that come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.block.program import BlockProgram
from weft.fuse import Fusion, Rule, fused_by
from weft.phases import phase
from weft.tensor.passes import Pass, Rewritten, Setting
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class Family:
    """The passes of some candidates.

    Attributes:
        origin: what its candidates are called; "" where they are named after their snapshot alone.
        before: passes from a tensor program to a block program.
        rules, extend, instead: as `weft.fuse.fused_by` takes them.
        after: passes on what fusion gives.
        chains: it is for programs with chains of dependent reductions.
    """

    origin: str
    before: tuple[Pass[..., Any], ...]
    rules: tuple[Rule, ...]
    extend: tuple[Rule, ...]
    instead: tuple[Rule, ...]
    after: tuple[Pass[..., Any], ...]
    chains: bool = False

    def begun(self, program: TensorProgram, setting: Setting) -> Rewritten[BlockProgram]:
        """Lower `program`; raises UnsupportedError where it has no block program."""
        return Rewritten(program).under(self.before, setting)

    @phase("rules")
    def fusion(self, lowered: BlockProgram, setting: Setting, *, checked: bool = False) -> Fusion:
        """Fuse what was lowered, by the rules that are for `setting`; with `checked`, the checker runs after every rewrite."""
        rules = (tuple(r for r in group if r.applies(setting)) for group in (self.rules, self.extend, self.instead))
        return fused_by(lowered, *rules, checked=checked)


def snapshots(
    family: Family, program: TensorProgram, setting: Setting, *, checked: bool = False
) -> Iterator[tuple[str, Rewritten[BlockProgram]]]:
    """Yield the name and the program of each snapshot of `family`, and of each alternative, as fusion leaves them.

    Args:
        family: says how.
        program: a region.
        setting: of the passes.
        checked: run the checker after every rewrite.

    Raises:
        UnsupportedError: there is no block program.
    """
    begun = family.begun(program, setting)
    for name, made, trace in family.fusion(begun.program, setting, checked=checked).ends():
        steps = (*begun.steps, *(change.step for change in trace))
        origin = ", ".join(part for part in (family.origin, name) if part) if family.extend else family.origin
        yield origin, Rewritten(made, steps)
