"""What a peeled first iteration costs, beside the extension that it stands in for (rules 7 and 6)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.block import paper
from testkit.fuse import peelable
from testkit.schedules import random_schedule
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.walk import maps, spaces
from weft.cost import Machine, MemoryLevel, Traffic, by_kernel, estimate, on_chip_bytes, total, traffic
from weft.errors import ScheduleError
from weft.fuse import Fusion
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain

MADE = {**paper.EXAMPLES, "one_query": peelable.one_query, "batch": peelable.batch}
FUSED: dict[str, Fusion] = {name: fuse(lower(make())) for name, make in MADE.items()}
ALTERNATIVES = {f"{n}_{a.beside}": canonical(a.program) for n, f in FUSED.items() for a in f.alternatives}


def scheduled(rng: random.Random, program: BlockProgram) -> BlockProgram:
    for _ in range(100):
        try:
            return apply(program, random_schedule(program, rng))
        except ScheduleError:
            continue
    pytest.fail("no random schedule fits")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALTERNATIVES)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_traffic_is_what_the_interpreter_counts(name: str, seed: int, data: st.DataObject) -> None:
    program = scheduled(random.Random(seed), ALTERNATIVES[name])
    sizes = {s.name: data.draw(st.integers(2, 9), s.name) for s in spaces(program) if s.fixed is None}
    inputs = {n: np.ones([a.space.size(sizes) for a in k.lists]) / 7 for n, k in program.inputs}
    with np.errstate(invalid="ignore", divide="ignore"):
        counted = interpret(program, inputs, sizes, Fp64Domain(), on_chip=True)[1]
    found = traffic(program, sizes)
    assert dict(found.loaded) == dict(+counted.loaded)
    assert dict(found.stored) == dict(+counted.stored)
    assert dict(found.operations) == dict(+counted.operations)
    assert dict(found.starts) == dict(+counted.starts)
    assert on_chip_bytes(program, sizes) == counted.on_chip


def blocks(program: BlockProgram, tile: int) -> BlockProgram:
    """`program` in blocks of one size, its outermost loops on the grid."""
    top = {n.name for n in program.graph.nodes}
    chosen = [
        (m.name, LoopSchedule((Level(LevelPlace.grid if m.name in top else LevelPlace.loop, 1 if m.unit else tile),)))
        for m in maps(program.graph)
    ]
    return apply(program, Schedule(tuple(chosen)))


def both(name: str, sizes: dict[str, int], tile: int) -> tuple[Traffic, Traffic]:
    """Counts what rule 6's first snapshot and rule 7's alternative to it move and do."""
    fusion = FUSED[name]
    alternative = fusion.alternatives[0]
    extended = fusion.snapshots[alternative.beside].program
    one, other = (traffic(blocks(canonical(p), tile), sizes) for p in (extended, alternative.program))
    return one, other


def moved(found: Traffic) -> int:
    return sum(found.loaded.values()) + sum(found.stored.values())


def test_four_blocks_of_l_compute_the_scores_once() -> None:
    """Attention: rule 6 computes every block of scores for each block of L, rule 7 once."""
    sizes, tile = {"M": 64, "N": 128, "D": 64, "L": 64}, 16
    six, seven = both("attention", sizes, tile)
    scores, mixed = 2 * 64 * 128 * 64, 2 * 64 * 128 * 64
    assert sum(six.matrix_flops.values()) == 4 * scores + mixed
    assert sum(seven.matrix_flops.values()) == scores + mixed
    assert sum(seven.operations.values()) < sum(six.operations.values())
    # Queries and keys are read four times by rule 6; rule 7 stores a row of blocks, and loads it three times.
    assert moved(seven) < moved(six)
    (kept,) = seven.local
    assert seven.stored[kept] == 64 * 128 * 4
    assert seven.loaded[kept] == 3 * 64 * 128 * 4
    assert not six.local


def test_short_heads_move_less_when_they_are_computed_again() -> None:
    """With 4 columns in Q and K it is cheaper to read them again than to keep the scores: rule 6 moves less."""
    six, seven = both("attention", {"M": 64, "N": 128, "D": 4, "L": 64}, 16)
    assert moved(six) < moved(seven)
    assert sum(seven.operations.values()) < sum(six.operations.values())


def test_one_block_of_l_needs_no_rest() -> None:
    """Nothing is repeated where there is one block: rule 7 stores scores that nobody reads, and else does the same."""
    six, seven = both("attention", {"M": 64, "N": 128, "D": 64, "L": 16}, 16)
    assert sum(six.flops.values()) == sum(seven.flops.values())
    assert moved(seven) == moved(six) + 64 * 128 * 4


def test_the_estimate_ranks_them() -> None:
    """Rule 7 is predicted to win where arithmetic is slow, rule 6 where memory is slow and heads are short."""
    fusion = FUSED["attention"]
    programs = [blocks(canonical(p), 16) for p in (fusion.snapshots[1].program, fusion.alternatives[0].program)]

    def seconds(flops: float, rate: float, depth: int) -> list[float]:
        machine = Machine(1, flops, {DType.float32: flops}, (MemoryLevel("memory", float("inf"), rate),), 16, 0.0)
        sizes = {"M": 64, "N": 1024, "D": depth, "L": 128}
        return [total(estimate(p, sizes, machine)).predicted_seconds for p in programs]

    six, seven = seconds(1e9, 1e12, 64)
    assert seven < six / 2
    six, seven = seconds(1e15, 1e9, 2)
    assert six < seven


def test_two_launches_write_the_parts_of_one_list() -> None:
    program = blocks(ALTERNATIVES["one_query_1"], 4)
    sizes = {"D": 3, "N": 6, "L": 10}
    (whole,) = program.graph.outputs
    first, rest = by_kernel(program, sizes)
    assert len(kernels(program)) == 2
    assert (first.stored[whole], rest.stored[whole]) == (4 * 4, 6 * 4)
    assert whole in first.shared & rest.shared
    found = traffic(program, sizes)
    assert found.stored[whole] == found.lists[whole] == 10 * 4
    assert [first.iterations, rest.iterations] == [1, 2]
