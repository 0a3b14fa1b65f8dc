"""Significand-exponent pairs: equal over the reals whatever the exponents are, and finite where plain exponentials are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from testkit.block import paper
from testkit.block.normal import signature
from testkit.fuse import exponentials, shared
from testkit.fuse.exponentials import CONVERTED, PLAIN, Narrow
from testkit.fuse.front_ends import attention, attention_by_hand, attention_shifted_by_the_mean, captured
from testkit.fuse.same import assert_same, run
from testkit.schedules import random_schedule
from weft import pipeline
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import BlockProgram, Final, Graph, Map, Pointwise, Stacked
from weft.block.walk import maps, spaces
from weft.errors import ScheduleError
from weft.fuse import Fusion
from weft.fuse.safety import make_safe
from weft.pipeline import RULES_IN_PLANS, RULES_THAT_KEEP_PRECISION, fuse, normalize
from weft.schedule import apply
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import cancel_shifts
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import applied
from weft.verify import verify

PROGRAMS = {**CONVERTED, **PLAIN, "attention": paper.attention}
INF, NAN = np.inf, np.nan
EVERY = pytest.mark.parametrize("name", PROGRAMS)


def stages(made: Callable[[], TensorProgram]) -> list[BlockProgram]:
    """The program unfused, and all snapshots and alternatives of its fusion."""
    lowered = lower(made())
    fusion: Fusion = fuse(lowered)
    return [lowered, *(s.program for s in fusion.snapshots), *(a.program for a in fusion.alternatives)]


def last(made: Callable[[], TensorProgram]) -> BlockProgram:
    return fuse(lower(made())).last


def exps(program: BlockProgram) -> int:
    """Counts the plain exponentials that are computed in `program`."""

    def of(graph: Graph) -> int:
        count = sum(applied(n.expr).count("exp") for n in graph.nodes if isinstance(n, Pointwise))
        for node in graph.nodes:
            if isinstance(node, Map):
                count += of(node.body) + (of(node.state.update) if node.state else 0)
        return count

    return of(program.graph)


def narrow(program: BlockProgram, *inputs: np.ndarray, tile: int = 4) -> tuple[np.ndarray, ...]:
    """Runs `program` in its own element types, by blocks of `tile` columns and all rows, and two of anything else."""
    sizes = {s.name: n for (_, k), v in zip(program.inputs, inputs, strict=True)
             for s, n in zip((a.space for a in k.lists), v.shape, strict=True)}  # fmt: skip
    blocks = {name: tile if name == "N" else size for name, size in sizes.items()}
    given = {name: v for (name, _), v in zip(program.inputs, inputs, strict=True)}
    return interpret(program, given, sizes, Narrow(), blocks)[0]


def eager_softmax(x: np.ndarray) -> np.ndarray:
    """Computes softmax as PyTorch does, in fp64."""
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


@EVERY
def test_before_and_after_are_the_same(name):
    rng = random.Random(name)
    for program in stages(PROGRAMS[name]):
        safe = make_safe(program).program
        check(safe)
        assert safe.graph.outputs == program.graph.outputs
        for _ in range(2):
            blocks = {s.name: rng.randint(1, 3) for s in spaces(program)}
            sizes = {space: size * rng.randint(1, 3) for space, size in blocks.items()}
            assert_same(program, safe, sizes, blocks)


@pytest.mark.one_in(2)
@EVERY
def test_safe_programs_are_verified_under_random_schedules(name):
    rng, tensors, done = random.Random(name), PROGRAMS[name](), 0
    for program in stages(PROGRAMS[name]):
        safe = canonical(make_safe(program).program)
        for _ in range(4):
            try:
                applied = apply(safe, random_schedule(safe, rng, (1, 2, 3, 4)))
            except ScheduleError:
                continue
            check(applied)
            assert (verdict := verify(tensors, applied, trials=1)), verdict
            done += 1
    assert done >= 3


@pytest.mark.parametrize("name", [*CONVERTED, "attention"])
def test_exponentials_that_cancel_are_pairs(name):
    for program in stages(PROGRAMS[name]):
        safe = make_safe(program)
        assert (safe.converted > 0, safe.plain) == (True, 0)


@pytest.mark.parametrize("name", PLAIN)
def test_exponentials_that_do_not_cancel_stay(name):
    for program in stages(PROGRAMS[name]):
        safe = make_safe(program)
        assert (safe.converted, safe.plain > 0) == (0, True)
        assert canonical(safe.program) == canonical(program)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_a_program_whose_exponentials_stay_or_that_has_none_is_left_as_it_is(name):
    for program in stages(paper.EXAMPLES[name]):
        safe = make_safe(program)
        assert safe.converted == 0
        assert canonical(safe.program) == canonical(program)


@EVERY
def test_twice_is_as_once(name):
    for program in stages(PROGRAMS[name]):
        once = make_safe(program).program
        twice = make_safe(once).program
        sizes, blocks = {s.name: 4 for s in spaces(program)}, {s.name: 2 for s in spaces(program)}
        for one, two in zip(run(once, Narrow(), sizes, blocks), run(twice, Narrow(), sizes, blocks), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-6)


def test_safe_attention_is_one_loop_with_three_components_and_no_list():
    safe = make_safe(last(paper.attention)).program
    loops = {m.axis.space.name: m for m in maps(safe.graph)}
    assert sorted(m.axis.space.name for m in maps(safe.graph)) == ["D", "L", "M", "N"]
    state = loops["N"].state
    assert state is not None
    assert len(state.components) == 3
    assert exps(safe) == 0
    for name in ("N", "D"):
        assert all(isinstance(o, Final) for o in loops[name].outputs)
    assert [type(o) for o in loops["M"].outputs] == [Stacked]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_shift_leads_to_one_program(dtype):
    functions = (attention, attention_by_hand, attention_shifted_by_the_mean)
    found = [fuse(lower(cancel_shifts(normalize(captured(f, dtype))))).last for f in functions]
    safe = [make_safe(program) for program in found]
    assert [(s.converted, s.plain) for s in safe] == [(1, 0)] * 3
    assert len({signature(s.program) for s in safe}) == 1


# In numbers.


def rows(*of: tuple[float, ...]) -> np.ndarray:
    return np.asarray(of, np.float64)


@pytest.mark.parametrize(
    "x",
    [
        rows((0, 1, 2, 3, 1, 0, 2, 3), (-200, -199, -198, -197, -199, -200, -198, -197)),
        rows((0, 1, 2, NAN), (1, 2, 3, 4)),
    ],
    ids=["far below", "beside NaN"],
)
def test_each_row_has_an_exponent_of_its_own(x):
    (found,) = narrow(make_safe(last(exponentials.softmax)).program, x)
    np.testing.assert_allclose(found, eager_softmax(x), rtol=1e-5)


@pytest.mark.parametrize("shift", [0.0, -10.0, 11.0, 1e4])
def test_what_is_bounded_needs_no_exponent(shift):
    x = np.concatenate([np.random.default_rng(0).standard_normal((2, 8)) * 3, rows((NAN, *(1,) * 7), (INF, -INF) * 4)])
    for program in stages(lambda: exponentials.bounded(shift)):
        safe = make_safe(program)
        needed = shift > 10.0
        assert (safe.converted, safe.plain, safe.harmless) == ((1, 0, 0) if needed else (0, 0, 1))
        assert (safe.program is program) != needed
        wanted = eager_softmax((20 * np.tanh(x) + shift).astype(np.float32).astype(np.float64))
        np.testing.assert_allclose(narrow(safe.program, x)[0], wanted, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("magnitude", [100.0, 1e4])
def test_large_numbers_neither_overflow_nor_vanish(magnitude):
    x = np.random.default_rng(0).standard_normal((6, 8)) * magnitude
    x[1], x[2] = magnitude, -magnitude
    x[3] = np.where(np.arange(8) % 2, magnitude, -magnitude)
    program = last(exponentials.softmax)
    (found,) = narrow(make_safe(program).program, x)
    np.testing.assert_allclose(found, eager_softmax(x.astype(np.float32).astype(np.float64)), rtol=1e-3, atol=1e-30)
    assert not np.isfinite(narrow(program, x)[0]).all()


def test_attention_with_large_logits():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s) * f for s, f in (((6, 4), 100.0), ((8, 4), 100.0), ((2, 8), 1.0)))
    k[5] = 0.0  # no row's maximum, and in a block with large ones
    q, k = (np.round(a) for a in (q, k))  # scores are exact in fp32, up to their scale
    wanted = eager_softmax((q @ k.T).astype(np.float32) * 0.5) @ v.T
    for program in stages(paper.attention):
        (found,) = narrow(make_safe(program).program, q, k, v)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)


SPECIAL = rows(
    (-INF, -INF, -INF, -INF, 1, 2, -INF, 3),  # the first block is masked
    (1, 2, 3, -INF, -INF, -INF, -INF, -INF),  # the last
    (-INF,) * 8,
    (1, 2, INF, 3, 4, 5, 6, 7),
    (1, 2, 3, 4, 5, NAN, 6, 7),
    (-INF, -INF, -INF, -INF, -INF, -INF, INF, 0),
    (0, 1, 2, 3, 4, 5, 6, 7),
)


@pytest.mark.parametrize("name", ["softmax", "times_the_inverse"])
def test_infinities_and_nan_come_out_where_eager_gives_them(name):
    for program in stages(CONVERTED[name]):
        (found,) = narrow(make_safe(program).program, SPECIAL)
        np.testing.assert_allclose(found, eager_softmax(SPECIAL), rtol=1e-5)  # NaN equals NaN, nothing else does
    assert [bool(np.isnan(r).all()) for r in eager_softmax(SPECIAL)] == [False, False, True, True, True, True, False]


def test_what_a_mask_leaves_out_is_an_exact_zero_whatever_it_was():
    x = rows((1, 2, 3, 4, 5, 6, 7, 80), (-90, -91, -92, -93, -91, -92, -90, 5))
    mask = np.ones((2, 8), bool)
    mask[:, 7] = False
    (found,) = narrow(make_safe(last(exponentials.masked_by_zero)).program, x, mask)
    assert (found[:, 7] == 0.0).all()
    np.testing.assert_allclose(found[0, :7], eager_softmax(x[:1, :7])[0], rtol=1e-4)


def test_headroom_keeps_more_of_float16():
    x = rows((0, -11, -12, -13, -14, -15, -16, -17))
    v = rows((0, 1, 1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 0, 0, 1, 1))  # what is small is what counts
    program = last(exponentials.in_half)
    (found,) = narrow(make_safe(program).program, x, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.fuse.safety._NARROW_HEADROOM", 0.0)
        (less,) = narrow(make_safe(program).program, x, v)
    wanted = eager_softmax(x) @ v.T
    error, other = (np.max(np.abs(f - wanted) / wanted) for f in (found, less))
    assert error < 2e-3
    assert other > 20 * error


# One operand, read by its rows and by its columns.


LEAST = float(np.finfo(np.float32).min)


def single(x: np.ndarray) -> np.ndarray:
    """Rounds x to what fp32 holds of it."""
    return x.astype(np.float32).astype(np.float64)


def softmaxes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Along the rows, and along the columns, in fp64."""
    return eager_softmax(x), eager_softmax(x.T).T


@pytest.mark.parametrize("apart", [10.0, 1e3, 1e30])
def test_rows_and_columns_that_are_far_apart(apart):
    """An exponential that is added up both ways: no exponent may stand for more than either sum takes in."""
    x = np.random.default_rng(0).standard_normal((6, 6)) + apart * np.arange(6)[:, None]
    x[:, 3] -= apart * 2
    x = single(x)
    rows_, columns = softmaxes(x)
    for name, wanted in (("rows_and_columns", rows_ * columns), ("rows_plus_columns", rows_ + columns)):
        for program in stages(CONVERTED[name]):
            (found,) = narrow(make_safe(program).program, x, tile=2)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def squared() -> TensorProgram:
    """The squares of a softmax."""
    made = exponentials.softmax()
    power = exponentials.over("p", exponentials.MUL, "out", "out")
    return TensorProgram(made.inputs, (*made.nodes, power), ("p",))


def product_of_two() -> TensorProgram:
    """Two softmaxes of different rows, multiplied."""
    made = exponentials.two_row_sums()
    return TensorProgram(
        made.inputs, (*made.nodes[:-1], exponentials.over("out", exponentials.MUL, "p", "q")), ("out",)
    )


@pytest.mark.parametrize("x", [LEAST, LEAST / 2, -1e4, 1e4, 3e38, 0.0])
def test_products_of_softmaxes_at_the_ends_of_the_range(x):
    """Exponents that are added or doubled leave the range where their differences do not, and lose digits far from 0."""
    one = np.random.default_rng(0).standard_normal((3, 4)) + x if abs(x) < 1e30 else np.full((3, 4), x)
    one = single(one)
    other = one[:, ::-1]
    (p, _), (q, _) = softmaxes(one), softmaxes(other)
    for program in stages(squared):
        np.testing.assert_allclose(narrow(make_safe(program).program, one)[0], p * p, rtol=1e-6, atol=1e-30)
    for program in stages(product_of_two):
        np.testing.assert_allclose(narrow(make_safe(program).program, one, other)[0], p * q, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("hidden", [NAN, INF, -INF, 3e38])
def test_what_a_mask_leaves_out_leaves_no_trace(hidden):
    """exp(x) where a mask excludes it is 0, whatever x is: neither its NaN nor its exponent is seen."""
    x = rows((1, 2, 3, 4, 5, 6, 7, hidden), (-80, -81, -82, -83, -81, -82, -80, hidden))
    mask = np.ones((2, 8), bool)
    mask[:, 7] = False
    for program in stages(exponentials.masked_by_zero):
        (found,) = narrow(make_safe(program).program, x, mask)
        np.testing.assert_allclose(found[:, :7], eager_softmax(x[:, :7]), rtol=1e-5)
        assert (found[:, 7] == 0.0).all()


def test_an_exponential_whose_shift_went_but_that_cannot_be_a_pair_keeps_it():
    """exp(x - max x) exp(y - max y), over its sum: exponents that are added lose digits, so that neither becomes a pair."""
    far = [exponentials.over(f"d{v}", shared.SUB, v, f"t{v}") for v in "xy"]
    tops = [
        exponentials.Reduction(
            f"t{v}",
            (exponentials.M,),
            exponentials.F32,
            exponentials.Monoid.max,
            exponentials.Use(v, (exponentials.M, exponentials.N)),
            (exponentials.N,),
        )
        for v in "xy"
    ]
    program = TensorProgram((exponentials.X, exponentials.Y), (
        *tops, *far, *(exponentials.over(f"e{v}", exponentials.EXP, f"d{v}") for v in "xy"),
        exponentials.over("ef", exponentials.MUL, "ex", "ey"), exponentials.row_sum("t", "ef", exponentials.M, exponentials.N),
        exponentials.over("out", exponentials.DIV, "ef", "t"),
    ), ("out",))  # fmt: skip
    assert cancel_shifts(program) is not program
    assert pipeline.cancel_shifts(program) is program


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(40))
def test_shared_operands_whose_rows_are_far_apart(seed):
    """Every candidate of random programs gives numbers where the program as written does, and nearly as exact ones."""
    rng, draws = random.Random(seed), np.random.default_rng(seed)
    program = normalize(shared.random_program(rng))
    written = fuse(lower(program), RULES_IN_PLANS, ()).last
    plain, fusion = make_safe(written).plain, fuse(lower(pipeline.cancel_shifts(program)), RULES_THAT_KEEP_PRECISION)
    candidates = [make_safe(s.program) for s in fusion.snapshots]
    for _ in range(4):
        inputs = shared.numbers(draws, 4)
        eager, exact = evaluate(program, inputs, Narrow()), evaluate(program, inputs, Fp64Domain())
        for safe in candidates:
            if safe.plain > plain:
                continue
            found = interpret(safe.program, inputs, {"M": 4}, Narrow(), {"M": rng.choice((1, 2, 4))})[0]
            for mine, theirs, true in zip(found, eager, exact, strict=True):
                seen = np.isfinite(theirs)
                assert np.isfinite(mine[seen]).all(), f"{program}\n{safe.program}\n{inputs}\n{mine}\n{theirs}"
                if (seen := seen & np.isfinite(true)).any():
                    errors = [np.abs(v - true)[seen].max() for v in (mine, theirs)]
                    assert errors[0] <= 8 * (errors[1] + 2**-23 * np.abs(true[seen]).max()), (
                        f"{program}\n{safe.program}"
                    )
