"""Rankings in block programs: the checker, the interpreter's blocks, segments merged in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.normal import signature
from testkit.block.rankings import FIRST, ORDERS, every, ranking, rows
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Fill, Index, Map, Rank
from weft.block.walk import maps
from weft.errors import InvalidProgramError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.order import NOTHING, Order
from weft.tensor.program import TensorProgram


def edited(change: Callable[[Rank], Rank]) -> BlockProgram:
    """A program with its ranking changed."""
    return every(lower(ranking(2)), lambda n: change(n) if isinstance(n, Rank) else n)


def indexed_by_rows(program: BlockProgram) -> BlockProgram:
    (outer,) = program.graph.nodes
    assert isinstance(outer, Map)
    return every(program, lambda n: replace(n, axis=outer.axis) if isinstance(n, Index) else n)


def scheduled(program: TensorProgram, tiles: dict[str, tuple[Level, ...]]) -> BlockProgram:
    """`program`, lowered, with these levels for the loops over each space."""
    lowered = lower(program)
    loops = tuple((m.name, LoopSchedule(tiles[m.axis.space.name])) for m in maps(lowered.graph))
    return apply(lowered, Schedule(loops))


def in_blocks(size: int) -> tuple[Level, ...]:
    return (Level(LevelPlace.loop, size),)


WHOLE = (Level(LevelPlace.whole),)
MALFORMED = (
    ("what is ranked has the result's axes and its own", lambda: edited(lambda r: replace(r, dims=r.dims[1:]))),
    ("numbers tell elements apart along what is ranked", lambda: indexed_by_rows(lower(ranking(2)))),
    ("numbers have only axes of what they number", lambda: edited(lambda r: replace(r, numbers=r.acc[1]))),
    ("a ranking goes on with the same axes", lambda: edited(lambda r: replace(r, acc=(r.arg, r.acc[1])))),
    ("numbers are int64", lambda: edited(lambda r: replace(r, numbers=r.arg))),
    ("values are carried in their accumulator type", lambda: edited(lambda r: replace(r, dtype=DType.float64))),
    ("the loop over a ranking has one block", lambda: scheduled(ranking(2), {"M": in_blocks(2), "R": in_blocks(2), "N": WHOLE})),
)  # fmt: skip


@pytest.mark.parametrize(("condition", "made"), MALFORMED, ids=[c.replace(" ", "-") for c, _ in MALFORMED])
def test_a_violated_condition_is_named(condition: str, made: Callable[[], BlockProgram]) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        check(made())
    assert caught.value.condition == condition


def test_padding_that_could_win_is_refused() -> None:
    """Without the fill that says that padding is not there."""
    applied = scheduled(ranking(2), {"M": in_blocks(2), "R": WHOLE, "N": in_blocks(3)})
    check(applied)
    with pytest.raises(InvalidProgramError, match=r"padding along .* holds inf"):
        check(every(applied, lambda n: replace(n, value=0.0) if isinstance(n, Fill) else n))


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("count", [None, 1, 2, 5])
def test_blocks_of_any_length_give_what_the_evaluator_gives(count: int | None, order: Order) -> None:
    program, domain = ranking(count, order), Fp64Domain()
    for size in (1, 2, 5, 6, 11):
        x = rows(np.random.default_rng(size), size)
        wanted = evaluate(program, {"x": x}, domain)
        for block in (1, 2, 3, 4, size):
            levels = (*in_blocks(2 * block), *in_blocks(block)) if block % 2 else in_blocks(block)
            applied = scheduled(program, {"M": in_blocks(2), "R": WHOLE, "N": levels})
            found, _ = interpret(applied, {"x": x}, {"M": len(x), "N": size}, domain)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{size} in {block}")


def test_without_a_schedule_a_ranking_is_one_block_whatever_is_asked_for() -> None:
    x = rows(np.random.default_rng(0), 8)
    wanted = evaluate(ranking(3), {"x": x}, Fp64Domain())
    found, _ = interpret(lower(ranking(3)), {"x": x}, {"M": len(x), "N": 8}, Fp64Domain(), {"N": 4, "R": 1})
    np.testing.assert_array_equal(found[1], wanted[1])


def test_what_comes_first_is_the_lowest_index_of_the_greatest() -> None:
    x = np.array([[1.0, 3.0, np.nan, 3.0, -0.0, 0.0]])
    for order, values, places in (
        (FIRST, [np.nan, 3.0, 3.0, 1.0], [2, 1, 3, 0]),
        (ORDERS[1], [np.nan, -0.0, 0.0, 1.0], [2, 4, 5, 0]),
        (ORDERS[2], [-0.0, 0.0, 1.0, 3.0], [4, 5, 0, 1]),
    ):
        found = evaluate(ranking(4, order), {"x": x}, Fp64Domain())
        np.testing.assert_array_equal(found[0][0], values)
        np.testing.assert_array_equal(found[1][0], places)
        assert list(np.signbit(found[0][0][1:3])) == list(np.signbit(values[1:3]))


def test_a_ranking_longer_than_its_axis_ends_in_nothing() -> None:
    values, places = evaluate(ranking(3), {"x": np.array([[1.0, 2.0]])}, Fp64Domain())
    assert values.tolist() == [[2.0, 1.0, -np.inf]]
    assert places.tolist() == [[1, 0, NOTHING]]


def test_integers_are_ranked_to_the_ends_of_their_type() -> None:
    ends = np.iinfo(np.int64)
    x = np.array([[ends.min, 5, ends.max, ends.min]])
    assert evaluate(ranking(4, FIRST, DType.int64), {"x": x}, Fp64Domain())[1].tolist() == [[2, 1, 0, 3]]
    assert evaluate(ranking(4, ORDERS[1], DType.int64), {"x": x}, Fp64Domain())[1].tolist() == [[0, 3, 1, 2]]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_segments_merged_in_any_order_are_the_whole(order: Order) -> None:
    """The merge of states is the same operator, and knows no order of segments."""
    domain, count = Fp64Domain(), 4
    for size, parts in itertools.product((9, 23), (2, 3, 7)):
        rng = np.random.default_rng((size, parts))
        x, numbers = rows(rng, size), np.arange(size)
        whole = domain.ranked(x, np.broadcast_to(numbers, x.shape), count, order)
        cuts = np.array_split(rng.permutation(size), parts)
        states = [domain.ranked(x[:, c], np.broadcast_to(numbers[c], (len(x), len(c))), count, order) for c in cuts]
        while len(states) > 1:
            rng.shuffle(states)
            both = [np.concatenate(pair, axis=-1) for pair in zip(states.pop(), states.pop(), strict=True)]
            x_both, numbers_both = both
            states.append(domain.ranked(x_both, numbers_both, count, order))
        for a, b in zip(states[0], whole, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rankings_are_told_apart_in_normal_form_and_by_name() -> None:
    assert "largest2(" in listing(lower(ranking(2)))
    assert len({signature(lower(ranking(2, order))) for order in ORDERS}) == len(ORDERS)
    assert signature(lower(ranking(2))) != signature(lower(ranking(3)))
