"""What loops over spans a fused program has, and where they begin and end."""

from __future__ import annotations

import random
import re

from testkit.emit.comparing import scheduled
from weft.block import lower
from weft.block.copies import canonical
from weft.block.linear import Linear
from weft.block.program import BlockProgram
from weft.block.ranges import Part, Spans
from weft.block.spans import OWN, Span
from weft.block.walk import maps
from weft.pipeline import RULES_THAT_KEEP_PRECISION, fuse
from weft.tensor.axes import Axis
from weft.tensor.program import TensorProgram
from weft.verify import verify


def fused(program: TensorProgram) -> BlockProgram:
    """The last snapshot of `program`: products joined too."""
    return canonical(fuse(lower(program), RULES_THAT_KEEP_PRECISION, checked=True).last)


def narrowed(program: BlockProgram) -> list[Spans]:
    return [m.range for m in maps(program.graph) if isinstance(m.range, Spans)]


def band(outer: Axis, low: int | None = None, high: int | None = None, part: Part = Part.all) -> Spans:
    """The elements j with `low` <= j - i <= `high` for the elements i of the current block of `outer`."""
    across = Linear.index(OWN).plus(Linear.index(outer), -1)
    holds = () if low is None else (across.more(-low),)
    holds += () if high is None else (across.times(-1).more(high),)
    return Spans((Span(holds),), part)


def ends(spans: Spans) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The least and the greatest elements of each span, as text; indices of loops are `i`."""

    def text(end: Linear) -> str:
        return re.sub(r"[a-z]\w*(\.\d+)?", "i", str(end)).removesuffix("+0").replace("+0)", ")")

    return [(tuple(map(text, low)), tuple(map(text, high))) for low, high in (span.ends for span in spans.spans)]


def between(low: int | None, high: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ends of a span between two diagonals."""
    below, above = (() if d is None else (f"i{d:+d}" if d else "i",) for d in (low, high))
    return below, above


def demand_right(program: TensorProgram, limited: BlockProgram, rng: random.Random) -> None:
    """Verify `limited` under a few random schedules; raises AssertionError where one does not compute `program`."""
    for _ in range(4):
        verdict = verify(program, scheduled(limited, rng), seed=rng.randrange(1000))
        assert verdict.equal, verdict
