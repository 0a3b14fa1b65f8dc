"""Loops go over several spans, of any affine comparisons and quotients, and over each element once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.emit.comparing import compare, scheduled
from testkit.masks.conditions import SPANS, column_sums, row_maxima, row_sums, weighted
from testkit.masks.limited import demand_right, ends, fused, narrowed
from weft.block.check import check
from weft.block.linear import Linear
from weft.block.program import BlockProgram, Graph, Map
from weft.block.ranges import Part, Spans
from weft.block.size import value
from weft.block.spans import OWN, Run, Span
from weft.block.walk import maps
from weft.cost.alike import CurrentBlock
from weft.cost.traffic import traffic
from weft.masks import limit
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Scalar
from weft.verify import verify

PROGRAMS = (row_sums, row_maxima, column_sums, weighted)
EVERY = pytest.mark.parametrize("condition", SPANS)
NARROWED = pytest.mark.parametrize("condition", [name for name, (_, found) in SPANS.items() if found])
ROW, COLUMNS = Axis("row", Space("R")), Space("C")


def plainly(program: BlockProgram, tile: int, rows: int | None = None) -> BlockProgram:
    """`program` with every loop in steps of `tile`, those around by `rows`; those over spans parted."""
    loops = tuple(
        (
            m.name,
            LoopSchedule(
                (Level(LevelPlace.loop, 1 if m.unit else rows if rows and m.state is None else tile),), m.range.narrowed
            ),
        )
        for m in maps(program.graph)
    )
    return apply(program, Schedule(loops))


def with_ranges(program: BlockProgram, change: Callable[[Spans], Spans]) -> BlockProgram:
    def changed(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=changed(n.body), range=change(n.range) if isinstance(n.range, Spans) else n.range)
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=changed(program.graph))


@EVERY
def test_the_loop_runs_over_the_spans(condition: str) -> None:
    expr, wanted = SPANS[condition]
    found = limit(fused(row_sums(expr)))
    check(found)
    assert [end for spans in narrowed(found) for end in ends(spans)] == wanted


@pytest.mark.one_in(7)
@EVERY
@pytest.mark.parametrize("make", PROGRAMS)
def test_any_schedule_of_spans_computes_what_was_written(
    make: Callable[[Scalar], TensorProgram], condition: str
) -> None:
    program = make(SPANS[condition][0])
    limited, rng = limit(fused(program)), random.Random(f"{make.__name__} {condition}")
    demand_right(program, limited, rng)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", PROGRAMS)
def test_kernels_compute_what_the_interpreter_computes(make: Callable[[Scalar], TensorProgram], tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    blocks: list[BlockProgram] = []
    for expr, _ in SPANS.values():
        limited = limit(fused(make(expr)))
        blocks += [scheduled(limited, rng), plainly(limited, rng.choice((2, 3)), rng.choice((1, 4)))]
    names = [s.name for s in make(SPANS["nothing"][0]).spaces()]
    compare(blocks, names, tmp_path, rng, DType.float32, quickly=True)


@NARROWED
def test_spans_that_leave_too_much_out_are_refuted(condition: str) -> None:
    """Each end of each span decides something, but for ends that another span's elements lie beyond."""
    program = row_sums(SPANS[condition][0])
    limited = limit(fused(program))
    (spans,) = narrowed(limited)
    for number, span in enumerate(spans.spans):
        narrower = Span((*span.holds, *(each.more(-1) for each in span.holds)))
        kept = Spans((*spans.spans[:number], narrower, *spans.spans[number + 1 :]))
        assert verify(program, plainly(with_ranges(limited, lambda _, s=kept: s), 3)).equal is False


def test_what_lies_in_two_spans_is_counted_once() -> None:
    """A range that goes over an element twice is refuted."""
    program = row_sums(SPANS["a window and the first columns"][0])
    limited = limit(fused(program))
    right = plainly(limited, 3)
    assert verify(program, right).equal
    assert verify(program, with_ranges(right, lambda s: _Overlapping(s.spans, s.part))).equal is False


class _Overlapping(Spans):
    """Spans as they are, one after the other."""

    def runs(self, space: Space, tile: int | None) -> tuple[Run, ...]:
        return tuple(run for span in self.spans for run in Spans((span,), self.part).runs(space, tile))


def test_blocks_that_lie_in_any_span_have_no_mask() -> None:
    applied = plainly(limit(fused(row_sums(SPANS["a window and the first columns"][0]))), 2, 1)
    parts = {m.range.part: m for m in maps(applied.graph) if isinstance(m.range, Spans)}
    assert "where" not in str(parts[Part.full].body)
    assert "where" in str(parts[Part.edge].body)
    assert all(span.decided for spans in narrowed(applied) for span in spans.spans)


def test_what_is_masked_inside_of_a_span_stays_masked() -> None:
    applied = plainly(limit(fused(row_sums(SPANS["every third in a window"][0]))), 2, 1)
    parts = {m.range.part: str(m.body) for m in maps(applied.graph) if isinstance(m.range, Spans)}
    assert parts[Part.full].count("logical_and") < parts[Part.edge].count("logical_and")
    assert "where" in parts[Part.full]


LINES = st.builds(
    lambda times, by, constant: Linear.index(ROW).times(times).over(by).more(constant),
    st.sampled_from((-1, 0, 1, 1, 2)), st.sampled_from((1, 1, 2, 3)), st.integers(-9, 12),
)  # fmt: skip


def _spans(lows: list[Linear], highs: list[Linear]) -> Span:
    own = Linear.index(OWN)
    return Span((*(own.plus(low, -1) for low in lows), *(high.plus(own, -1) for high in highs)))


ANY = st.lists(st.builds(_spans, st.lists(LINES, max_size=2), st.lists(LINES, max_size=2)), min_size=1, max_size=3)


def at(linear: Linear, row: int, own: int) -> int:
    """The number that it is at two indices."""
    found = linear.constant
    for term, factor in linear.terms:
        index = (row if term == ROW else own) if isinstance(term, Axis) else at(term.of, row, own) // term.by
        found += factor * index
    return found


@settings(max_examples=400, deadline=None)
@given(ANY, st.integers(0, 9), st.integers(1, 4), st.integers(0, 14), st.sampled_from((1, 2, 3, 5)))
def test_runs_hold_each_element_once(found: list[Span], begin: int, rows: int, size: int, tile: int) -> None:
    spans, block = [s for s in found if s.holds], {ROW: CurrentBlock(begin, rows)}
    if not spans:
        return
    inside = range(begin, begin + rows)
    every = [{j for j in range(size) if all(at(c, i, j) >= 0 for c in s.holds)} for s in spans for i in inside]
    some = set[int]().union(*every)
    parts: dict[Part, list[int]] = {}
    for part in Part:
        blocks: list[range] = []
        for run in Spans(tuple(spans), part).runs(COLUMNS, tile):
            first, last, stop = (value(each, {"C": size}, block) for each in (run.first, run.last, run.stop))
            blocks += [range(b, min(b + tile, stop)) for b in range(first, last, tile)]
        parts[part] = [j for each in blocks for j in each]
        assert blocks == sorted(blocks, key=lambda b: b.start)
        if part is Part.full:
            assert all(len(b) == tile for b in blocks)
    for visited in (parts[Part.all], parts[Part.full] + parts[Part.edge]):
        assert len(set(visited)) == len(visited)
        assert some <= set(visited) <= set(range(size))
    holding = [set.intersection(*every[n * rows : (n + 1) * rows]) for n in range(len(spans))]
    assert set(parts[Part.full]) <= set().union(*holding)


@pytest.mark.parametrize("make", [row_sums, weighted])
def test_the_bytes_that_are_read_fall(make: Callable[[Scalar], TensorProgram]) -> None:
    program = fused(make(SPANS["a window and the first columns"][0]))
    sizes = {s.name: 256 if s.example in (5, 7) else 8 for s in make(SPANS["nothing"][0]).spaces()}
    all_, some = (sum(traffic(plainly(p, 8), sizes).loaded.values()) for p in (program, limit(program)))
    assert some < 0.2 * all_
