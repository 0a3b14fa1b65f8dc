"""Loops run over the spans that comparisons of indices leave, and compute what they computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.emit.comparing import compare, scheduled
from testkit.masks.conditions import CONDITIONS, column_sums, row_maxima, row_sums, weighted
from testkit.masks.limited import between, demand_right, ends, fused, narrowed
from weft.block.check import check
from weft.block.program import BlockProgram, Graph, Map
from weft.block.ranges import Part, Spans
from weft.block.spans import Span
from weft.block.walk import maps
from weft.cost.traffic import traffic
from weft.errors import ScheduleError
from weft.masks import limit
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Scalar
from weft.verify import verify

PROGRAMS = (row_sums, row_maxima, column_sums, weighted)
EVERY = pytest.mark.parametrize("condition", CONDITIONS)


def with_spans(program: BlockProgram, change: Callable[[Spans], Spans]) -> BlockProgram:
    """`program` with every range that is narrowed changed."""

    def changed(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=changed(n.body), range=change(n.range) if isinstance(n.range, Spans) else n.range)
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=changed(program.graph))


def plainly(program: BlockProgram, tile: int, *, peel: bool = True) -> BlockProgram:
    """`program` with every loop in steps of `tile`, spans peeled."""
    loops = tuple(
        (m.name, LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else tile),), peel and isinstance(m.range, Spans)))
        for m in maps(program.graph)
    )
    return apply(program, Schedule(loops))


@EVERY
@pytest.mark.parametrize("make", PROGRAMS)
def test_the_loop_runs_over_a_span(make: Callable[[Scalar], TensorProgram], condition: str) -> None:
    expr, (low, high) = CONDITIONS[condition]
    found = limit(fused(make(expr)))
    check(found)
    (spans,) = narrowed(found)
    if make is column_sums:  # over the rows, it lies on the other side of the diagonal
        low, high = (None if e is None else -e for e in (high, low))
    assert ends(spans) == [between(low, high)]


@pytest.mark.one_in(3)
@EVERY
@pytest.mark.parametrize("make", PROGRAMS)
def test_any_schedule_of_a_span_computes_what_was_written(
    make: Callable[[Scalar], TensorProgram], condition: str
) -> None:
    program = make(CONDITIONS[condition][0])
    limited, rng = limit(fused(program)), random.Random(f"{make.__name__} {condition}")
    demand_right(program, limited, rng)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", PROGRAMS)
def test_kernels_compute_what_the_interpreter_computes(make: Callable[[Scalar], TensorProgram], tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    blocks: list[BlockProgram] = []
    for expr, _ in CONDITIONS.values():
        limited = limit(fused(make(expr)))
        blocks += [scheduled(limited, rng), plainly(limited, rng.choice((2, 3, 5)))]
    names = [s.name for s in make(CONDITIONS["twice"][0]).spaces()]
    compare(blocks, names, tmp_path, rng, DType.float32, quickly=True)


@EVERY
def test_a_span_that_leaves_too_much_out_is_refuted(condition: str) -> None:
    program = row_sums(CONDITIONS[condition][0])
    limited = limit(fused(program))
    (spans,) = narrowed(limited)
    (span,) = spans.spans
    for place, each in enumerate(span.holds):
        holds = (*span.holds[:place], each.more(-1), *span.holds[place + 1 :])
        narrower = Spans((Span(holds),))
        assert verify(program, plainly(with_spans(limited, lambda _, b=narrower: b), 3)).equal is False


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c != "either of two"])
def test_blocks_that_lie_in_a_span_have_no_mask(condition: str) -> None:
    applied = plainly(limit(fused(row_sums(CONDITIONS[condition][0]))), 3)
    parts = {m.range.part: m for m in maps(applied.graph) if isinstance(m.range, Spans)}
    comparing = {part for part, node in parts.items() if "where" in str(node.body)}
    assert comparing == {Part.edge}
    assert Part.full in parts


def test_half_the_work_of_a_square_is_left() -> None:
    program = fused(weighted(CONDITIONS["column <= row"][0]))
    sizes = {s.name: 256 if s.example in (5, 7) else 8 for s in weighted(CONDITIONS["twice"][0]).spaces()}
    all_, half = (sum(traffic(plainly(p, 8), sizes).matrix_flops.values()) for p in (program, limit(program)))
    assert 0.5 < half / all_ < 0.53


def test_a_sum_that_is_not_the_identity_is_left_as_it_is() -> None:
    """Beyond the diagonal, 1 is added for every element."""
    program = fused(row_sums(CONDITIONS["column <= row"][0], 1.0))
    assert limit(program) is program


def test_a_span_is_not_split_into_segments() -> None:
    limited = limit(fused(row_sums(CONDITIONS["column <= row"][0])))
    loops = tuple(
        (m.name, LoopSchedule((*((Level(LevelPlace.split, 2),) if m.state else ()), Level(LevelPlace.loop, 2))))
        for m in maps(limited.graph)
    )
    with pytest.raises(ScheduleError, match="cannot be split"):
        apply(limited, Schedule(loops))
