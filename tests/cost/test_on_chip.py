"""Bytes alive at once: by hand, by the model and by the interpreter; and which segments can be held whole."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.block import programs
from testkit.cost import chains, levels
from testkit.cost.whole import LONGEST, fits_whole, held_whole, longest_whole
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import dependents, on_chip_bytes
from weft.errors import ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.fp64 import Fp64Domain


def counted(program: BlockProgram, sizes: Mapping[str, int]) -> int:
    inputs = {n: np.ones([a.space.size(sizes) for a in k.lists]) / 7 for n, k in program.inputs}
    return interpret(program, inputs, sizes, Fp64Domain(), on_chip=True)[1].on_chip


def loop(*sizes: int) -> tuple[Level, ...]:
    return tuple(Level(LevelPlace.loop, size) for size in sizes)


WHOLE = (Level(LevelPlace.whole),)


def test_a_tiled_product_by_hand():
    """Blocks of x and w and their product, fp32; the bias comes when the operands are gone; the result has the sum's place."""
    program = chains.one_loop(programs.linear_relu())
    tiles = {"M": 4, "N": 3, "K": 5}
    made = tuple((m.name, LoopSchedule((Level(LevelPlace.loop if m.state else LevelPlace.grid, tiles[m.axis.space.name]),)))
                 for m in maps(program.graph))  # fmt: skip
    sizes = {"M": 8, "N": 9, "K": 10}
    applied = apply(program, Schedule(made))
    by_hand = 4 * (4 * 3 + 4 * 5 + 5 * 3)
    assert on_chip_bytes(applied, sizes) == counted(applied, sizes) == by_hand


def test_a_list_between_loops_is_held_and_a_result_is_not():
    """Unfused, the partial products of all blocks of k are one list inside an iteration; the result goes to memory."""
    program = canonical(lower(programs.ALL["batched"]()))
    made = tuple(
        (m.name, LoopSchedule((Level(LevelPlace.grid if m.axis.space.name in "BMN" else LevelPlace.loop, 1 if m.unit else 3),)))
        for m in maps(program.graph)
    )  # fmt: skip
    applied = apply(program, Schedule(made))
    sizes = {"B": 2, "M": 5, "K": 7, "N": 6}
    item = 4 * 3 * 3
    # Three partial products; then the sum so far, and the list.
    assert on_chip_bytes(applied, sizes) == counted(applied, sizes)
    assert on_chip_bytes(applied, sizes) == max(2 * item + 2 * item + item, 3 * item + item + item)


@pytest.mark.parametrize("keys", [1, 8, 24, 64, 65, 130, 256, 300])
def test_attention_held_whole_by_hand(keys):
    """BERT-base, 128 queries, fp16: the state is m, l and O in fp32; then either the two operands and the scores, or both forms
    of the probabilities and two numbers a row, or the probabilities, the sums of the block and the values."""
    program = chains.made("attention in half")
    applied = apply(program, chains.schedule(program, 128, WHOLE))
    state = 128 * (4 + 4 + 64 * 4)
    scores = 128 * 64 * 2 + keys * 64 * 2 + 128 * keys * 4
    rounding = 128 * keys * (4 + 2) + 2 * 128 * 4
    products = 128 * keys * 2 + keys * 64 * 2 + 4 * 128 * 4
    expected = state + max(scores, rounding, products)
    sizes = {**levels.bert_sizes(), "M": keys}
    assert on_chip_bytes(applied, sizes) == expected
    if keys < 100:
        assert counted(applied, sizes) == expected


FORMS = st.sampled_from([WHOLE, loop(7), loop(12, 5), (Level(LevelPlace.split, 3), *loop(4))])


@pytest.mark.parametrize("name", ["statistics", "variance", "attention", "attention in half"])
@settings(max_examples=20, deadline=None)
@given(form=FORMS, along=st.integers(1, 50), rows=st.integers(1, 9), peel=st.booleans())
def test_the_model_is_what_the_interpreter_holds(name, form, along, rows, peel):
    program = chains.made(name)
    applied = apply(program, chains.schedule(program, 4, form, peel=peel and form[-1].place is LevelPlace.loop))
    sizes = chains.sizes_of(program, rows, along)
    assert on_chip_bytes(applied, sizes) == counted(applied, sizes)


@pytest.mark.parametrize("name", ["statistics", "variance", "attention in half"])
def test_block_by_block_takes_the_same_for_any_length(name):
    """The storage of the incremental form is constant (3.3); that of the other grows with what it holds."""
    program = chains.made(name)
    streamed = apply(program, chains.schedule(program, 4, loop(16), peel=True))
    whole = apply(program, chains.schedule(program, 4, WHOLE))
    sizes = [chains.sizes_of(program, 4, along) for along in (64, 1 << 12, 1 << 20)]
    assert len({on_chip_bytes(streamed, s) for s in sizes}) == 1
    held = [on_chip_bytes(whole, s) for s in sizes]
    assert held[0] < held[1] < held[2]
    assert on_chip_bytes(streamed, sizes[0]) < held[0]


@pytest.mark.parametrize("capacity", levels.CAPACITIES)
def test_the_longest_segment_fits_and_the_next_does_not(capacity):
    program = chains.made("attention in half")
    schedule = chains.schedule(program, levels.TILE, loop(64))
    chain, sizes = chains.reducing(program), levels.bert_sizes()
    longest = longest_whole(program, schedule, chain, sizes, capacity)
    assert 64 < longest < 512
    assert fits_whole(program, schedule, chain, {**sizes, "M": longest}, capacity)
    assert not fits_whole(program, schedule, chain, {**sizes, "M": longest + 1}, capacity)


def test_nothing_fits_into_nothing_and_all_into_everything():
    program = chains.made("statistics")
    schedule = chains.schedule(program, 4, loop(8))
    sizes = chains.sizes_of(program, 4, 8)
    assert longest_whole(program, schedule, "k", sizes, 0) == 0
    assert longest_whole(program, schedule, "k", sizes, float("inf")) == LONGEST


def test_whole_is_one_block_without_corrections():
    program = chains.made("statistics")
    schedule = held_whole(chains.schedule(program, 4, loop(8), peel=True), "k")
    assert schedule.of("k") == LoopSchedule(WHOLE)
    (state,) = (m.state for m in maps(apply(program, schedule).graph) if m.state is not None)
    assert dependents(state) == 1


def test_a_loop_of_single_elements_cannot_be_held_whole():
    program = canonical(lower(programs.ALL["batched"]()))
    unit = next(m.name for m in maps(program.graph) if m.unit)
    made = Schedule(tuple((m.name, LoopSchedule(loop(1))) for m in maps(program.graph)))
    with pytest.raises(ScheduleError):
        fits_whole(program, made, unit, dict.fromkeys("BMKN", 4), 1 << 20)


# Section 5.4.


def test_what_the_paper_says_of_both_forms():
    """Fewer corrections at every length; only short segments fit; the lengths that give three waves of blocks do not."""
    rows = list(levels.segments())
    for row in rows:
        streamed, whole = (c.outputs + c.running for c in row.corrections)
        assert whole <= streamed
        assert (whole == streamed) == (row.keys <= levels.BLOCK)
        assert row.bytes[0] <= row.bytes[1]
    large = levels.CAPACITIES[1]
    assert [row.keys for row in rows if row.bytes[1] <= large] == [32, 64, 128, 256]
    assert all(row.bytes[0] <= large for row in rows)
    three = min(rows, key=lambda row: abs(row.waves - 3))
    assert three.bytes[1] > large >= three.bytes[0]


def test_the_page_has_the_tables_that_are_counted():
    text = levels.PAGE.read_text()
    assert levels.written(text) == text, "PYTHONPATH=src:tests python -m testkit.cost.levels writes them"
