"""Triton kernels whose loops go over spans, run in Triton's interpreter: it must be asked for before Triton is imported."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from testkit.emit.triton_cases import GRID, LOOP, WHOLE, Case, error, levels
from testkit.masks.conditions import SPANS, row_sums, weighted
from testkit.masks.limited import fused
from testkit.walk import WALK_ALL
from weft.block.copies import canonical
from weft.block.program import Map
from weft.block.walk import maps
from weft.emit.triton import GRANULARITY
from weft.masks import limit
from weft.schedule import LoopSchedule, Schedule, apply
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Scalar


def over_spans(make: Callable[[Scalar], TensorProgram], condition: str, *, peel: bool) -> Case:
    """A loop over spans, beside blocks of 32 rows, 16 elements a block; the spans are wider than a block here and there."""
    program = canonical(limit(fused(make(SPANS[condition][0]))))
    first, *_ = maps(program.graph)

    def given(node: Map) -> LoopSchedule:
        if node is first:
            return levels((GRID, 4))
        return levels((LOOP, 2), peel=peel) if node.range.narrowed else levels(WHOLE)

    applied = apply(program, Schedule(tuple((m.name, given(m)) for m in maps(program.graph))), GRANULARITY)
    names = dict.fromkeys(s.name for s in make(SPANS[condition][0]).spaces())
    return Case(applied, {name: 45 - 4 * place for place, name in enumerate(names)})


def cases() -> dict[str, Case]:
    """Each condition, as the mask of sums and of a softmax's numerator; the loop with and without blocks of its own for no mask."""
    found = {
        f"spans {make.__name__} {name}{' parted' if peel else ''}": (make, name, peel)
        for make in (row_sums, weighted)
        for name, (_, spans) in SPANS.items()
        for peel in (True, False)
        if spans and (WALK_ALL or peel)
    }
    return {name: over_spans(make, condition, peel=peel) for name, (make, condition, peel) in found.items()}


def main(folder: Path) -> None:
    """Run every case; print a JSON object by case: its error in units of rounding."""
    print(json.dumps({name: error(case, folder, random.Random(name)) for name, case in cases().items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
