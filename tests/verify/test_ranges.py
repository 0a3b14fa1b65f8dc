"""Which magnitudes candidates bear: planted ones that bear less are left out, with the reason; what weft makes by itself stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.capture import capture
from weft.cascade import Chains, FoundChains
from weft.errors import ScheduleError, WeftError
from weft.fuse.safety import Safe, make_safe
from weft.lab.workloads.reductions import weighted_variance
from weft.pipeline import PRIORITY, fuse, normalize
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.targets.candidates import Example
from weft.target import Target
from weft.tensor.bounded import BoundedDomain, Lane, numbers, packed
from weft.tensor.dtypes import DType
from weft.tensor.laws import cancel_shifts, expand_sums, sizes_in_place
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Convert, apply
from weft.verify import Ranges

X, Y, W = torch.randn(16, 64), torch.randn(24, 64), torch.randn(64, 32)


def program_of(fn, *args) -> TensorProgram:
    found: list[TensorProgram] = []

    def backend(gm, example_inputs):
        program = capture(gm, example_inputs).program
        assert program is not None
        found.append(normalize(program))
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend)(*args)
    return found[0]


def lowered(program: TensorProgram) -> BlockProgram:
    return lower(sizes_in_place(program))


def variance(x):
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def scaled_norm(x):
    """The largest first, as LAPACK has it: squares are of numbers up to 1."""
    most = x.abs().amax(-1, keepdim=True)
    return most[:, 0] * (x / most).square().sum(-1).sqrt()


def plain_norm(x):
    return x.square().sum(-1).sqrt()


def cosines(x, y):
    return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T


def ratio(x, y):
    return (x / y) ** 2


def ratio_of_squares(x, y):
    return x**2 / y**2


def geometric_mean(x):
    return torch.exp(torch.log(x.abs()).mean(-1))


def root_of_the_product(x):
    return x.abs().prod(-1) ** (1.0 / x.shape[-1])


def log_softmax_by_hand(x):
    return torch.log(x.exp() / x.exp().sum(-1, keepdim=True))


def standardised_softmax(x):
    return torch.softmax((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), -1)


def small_squares(x):
    return (x * 1e-15).square().sum(-1)


def squares_made_small(x):
    return x.square().sum(-1) * 1e-30


def exponential(x):
    return torch.exp(x)


def root_of_a_larger_one(x):
    return torch.exp(2 * x).sqrt()


def raw_moments(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def attention(x, y):
    return torch.softmax(x @ y.T, -1) @ y


PLANTED: dict[str, tuple[Any, ...]] = {
    # what was written, what a wrong law makes of it, the operation that is named
    "softmax without its shift": (lambda x: torch.softmax(x, -1), (X,), cancel_shifts, "exp"),
    "attention without its shift": (attention, (X, Y), cancel_shifts, "exp"),
    "log-softmax without its shift": (lambda x: torch.log_softmax(x, -1), (X,), log_softmax_by_hand, "exp"),
    "a variance of raw moments": (variance, (X,), expand_sums, "*"),
    "a variance of raw moments, written": (variance, (X,), raw_moments, "square"),
    "a norm without its scale": (scaled_norm, (X,), plain_norm, "square"),
    "a quotient of squares": (ratio, (X, torch.randn(16, 64)), ratio_of_squares, "square"),
    "a product in place of logarithms": (geometric_mean, (X,), root_of_the_product, "*"),
    "a sum of squares, scaled too late": (small_squares, (X,), squares_made_small, "square"),
    "an exponential of twice the number": (exponential, (X,), root_of_a_larger_one, "exp"),
    "in float64": (scaled_norm, (X.double(),), plain_norm, "square"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_candidate_that_bears_less_is_found(name):
    fn, args, wrong, operation = PLANTED[name]
    program = program_of(fn, *args)
    other = wrong(program) if wrong in (cancel_shifts, expand_sums) else program_of(wrong, *args)
    assert {n.name for n in other.inputs} == {n.name for n in program.inputs}
    assert Ranges(program).lost(lowered(program)) is None
    lost = Ranges(program).lost(lowered(other))
    assert lost is not None
    assert operation in lost.operation
    assert "covers a smaller range than what was written" in str(lost)
    low, high = lost.written
    assert low <= lost.exponent <= high


def test_rule_4_where_both_sides_have_a_scale_is_found(monkeypatch):
    program = program_of(cosines, X, Y)
    assert all(Ranges(program).lost(s.program) is None for s in fuse(lowered(program)).snapshots)
    monkeypatch.setattr("weft.fuse.swap_scale_dot.stays_in_range", lambda *_: True)
    moved = fuse(lowered(program), PRIORITY).last
    lost = Ranges(program).lost(moved)
    assert lost is not None
    assert len(lost.changed) == 2  # one alone may be large


def test_one_exponent_for_a_row_loses_nothing():
    program = program_of(lambda q, k, v: torch.softmax(q @ k.T, -1) @ v, X, Y, Y + 1)
    fused = fuse(lowered(cancel_shifts(program))).last
    assert Ranges(program).lost(fused) is not None
    assert Ranges(program).lost(make_safe(fused).program) is None


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: torch.softmax(x, -1), (X,)),
        (lambda x: torch.logsumexp(x, -1), (X,)),
        (lambda q, k, v: torch.softmax(q @ k.T / 8, -1) @ v, (X, Y, Y + 1)),
        (lambda x: F.silu(x) * torch.sigmoid(x), (X,)),
        (lambda x, w: F.layer_norm(x, (64,)) @ w, (X, W)),
        (lambda x, w: F.rms_norm(x, (64,)) @ w, (X, W)),
        (variance, (X,)),
        (scaled_norm, (X,)),
        (cosines, (X, Y)),
        # Sums of what is float64, and what is computed of them before it is float32 again.
        (lambda x, y: F.cosine_similarity(x, y, dim=-1), (X, X + 1)),
        (lambda x: x.std(-1), (X,)),
        (standardised_softmax, (X,)),
        # Squares that lose digits before they vanish.
        (weighted_variance, (X, X + 1)),
        (lambda x: torch.softmax(x.half() * 4, -1), (X,)),
        (lambda x: torch.softmax(x.masked_fill(x < 0, -torch.inf), -1), (X,)),
        (lambda x: torch.softmax(x, -1).topk(3), (X,)),
        (lambda x: torch.relu(x @ x.T), (X,)),
        (lambda x: x.prod(-1), (X,)),
        # What is divided by its own size may be multiplied first: the weight is of ordinary size.
        (lambda x, r, w: (x / r) @ w, (X, X[:, :1].abs() + 1, W)),
    ],
)
def test_no_candidate_of_wefts_own_is_left_out(fn, args):
    program = program_of(fn, *args)
    example = Example({s.name: 64 for s in program.spaces()}, {n.name: len(n.axes) - 1 for n in program.inputs}, 2)
    ranges = Ranges(program)
    assert any(borne.any() for borne in ranges.borne or ())
    for made in candidates(program, example):
        assert ranges.lost(made) is None


def candidates(program: TensorProgram, example: Example) -> list[BlockProgram]:
    """All that would have been scheduled."""
    found: list[BlockProgram] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.plan.choose.select._way", lambda ways, *_: found.append(ways.fused) or stop())
        with pytest.raises(WeftError):
            looked_at_closely(select(program, example))
    assert found
    return found


def stop():
    raise ScheduleError("only what would be scheduled is looked at")


# In the choice of a candidate.


def unsafe(program: BlockProgram) -> Safe:
    """Fused programs with their exponentials as they are, and the claim that nothing is amiss."""
    return replace(make_safe(program), program=program, plain=0)


@pytest.fixture
def without_safety(monkeypatch):
    monkeypatch.setattr("weft.fuse.safety.make_safe", unsafe)
    monkeypatch.setattr(
        "weft.plan.choose.select.chains", lambda program, running=False: Chains(program, FoundChains((), (), ()))
    )


def test_the_choice_leaves_out_what_bears_less(without_safety):
    program = program_of(lambda q, k, v: torch.softmax(q @ k.T, -1) @ v, X, Y, Y + 1)
    example = Example({s.name: 512 for s in program.spaces()}, {n.name: len(n.axes) - 1 for n in program.inputs}, 2)
    found = looked_at_closely(select(program, example))
    assert found.chosen.origin == "rules that keep every rounding"
    reasons = [c.reason for c in found.considered if c.seconds is None]
    assert any("covers a smaller range" in r and "exp" in r and "overflows" in r for r in reasons)


def test_nothing_that_bears_less_is_timed_on_a_gpu(without_safety):
    program = program_of(lambda x: torch.softmax(x, -1), X)
    example = Example({s.name: 64 for s in program.spaces()}, {"x": 1}, 2, Target.parse("cuda:90"))
    found = looked_at_closely(select(program, example))
    assert {c.origin for c in (found.chosen, *(found.others or ()))} == {"rules that keep every rounding"}
    assert any("covers a smaller range" in c.reason for c in found.considered)


def test_explain_says_what_is_borne_and_what_was_left_out(without_safety, tmp_path):
    with weft.options(cache_dir=tmp_path):
        program = weft.optimize(lambda x, y: torch.softmax(x @ y.T, -1) @ (y + 1), (X * 100, Y), threads=1)
    sections = dict(program.explain().sections)
    assert "covers a smaller range than what was written" in sections["candidates"]
    lines = sections["magnitudes"].splitlines()
    assert lines[0].startswith("magnitudes up to ")
    assert "(as written: magnitudes up to " in lines[0]
    assert any(line.startswith("all magnitudes: exponential") for line in lines)
    assert any("up to" in line and "sum of products" in line for line in lines)
    torch.testing.assert_close(program(X * 100, Y), torch.softmax(X * 100 @ Y.T, -1) @ (Y + 1), rtol=1e-3, atol=1e-3)


def test_a_statement_names_where_a_square_overflows():
    program = program_of(plain_norm, X)
    (square,) = (line for line in Ranges(program).said(lowered(program)) if "square" in line)
    assert square.startswith(("magnitudes from 1.1e-19 up to 9.2e+18", "magnitudes from 2.2e-19 up to 9.2e+18"))


def test_integers_alone_have_no_magnitudes():
    program = program_of(lambda i: i * i, torch.arange(8))
    assert Ranges(program).lost(lowered(program)) is None
    assert Ranges(program).said(lowered(program)) == ()


# The domain.


def squares(value: float, dtype: DType):
    """The square of a number, and sums of one and of products of one, in `dtype`; in lanes without and with a range."""
    domain = BoundedDomain((Lane.unbounded, Lane.bounded))
    x = domain.convert(packed(np.array([[value] * 2])), dtype, semantic=False)
    square = domain.elementwise(apply("mul", Arg(0), Arg(0)), [x], dtype)
    return [
        numbers(v) for v in (square[0], domain.reduce(Monoid.sum, square, [0]), domain.contract(x, [0], x, [0], []))
    ]


@pytest.mark.parametrize("value", [2.0**70, 2.0**-80])
def test_sums_have_the_range_of_what_is_summed(value):
    for free, bounded in squares(value, DType.float64):
        assert free == bounded == value**2
    for free, bounded in squares(value, DType.float32):
        assert free == value**2
        assert bounded in (0, np.inf)


def test_operations_have_the_range_of_their_operands():
    """Both emitters compute it so: what becomes float32 at the end was float64 on the way."""
    domain = BoundedDomain((Lane.unbounded, Lane.bounded))
    x = domain.convert(packed(np.array([[2.0**70] * 2])), DType.float64, semantic=False)
    root = Convert(DType.float32, apply("sqrt", apply("mul", Arg(0), Arg(0))))
    assert numbers(domain.elementwise(root, [x], DType.float32)).tolist() == [[2.0**70] * 2]
    square = numbers(domain.elementwise(apply("mul", Arg(0), Arg(0)), [x], DType.float32))
    assert square.tolist() == [[2.0**140, np.inf]]


def test_small_numbers_lose_digits_before_they_vanish():
    """But in types of 16 bits, products of matrices and functions, where machines differ."""
    domain = BoundedDomain((Lane.unbounded, Lane.bounded))
    x = packed(np.array([[1.75 * 2.0**-75] * 2]))
    small = 3.0625 * 2.0**-150
    product = numbers(domain.elementwise(apply("mul", Arg(0), Arg(0)), [x], DType.float32))[0]
    np.testing.assert_array_equal(product, [small, 2.0**-148])
    assert numbers(domain.contract(x, [0], x, [0], [])).tolist() == [small, 0]
    assert numbers(domain.convert(packed(np.array([[2.0**-16] * 2])), DType.float16, semantic=True))[0].tolist() == [
        2.0**-16,
        0,
    ]


def test_lanes_differ_only_in_their_range():
    domain = BoundedDomain((Lane.unbounded, Lane.bounded, Lane.narrower))
    x = packed(np.array([[2.0**65] * 3, [2.0**-65] * 3, [2.0**60] * 3]))
    square = numbers(domain.elementwise(apply("mul", Arg(0), Arg(0)), [x], DType.float32))
    np.testing.assert_array_equal(square[0], [2.0**130, np.inf, np.nan])
    np.testing.assert_array_equal(square[1], [2.0**-130, 2.0**-130, 0])
    np.testing.assert_array_equal(square[2], [2.0**120, 2.0**120, np.nan])
    (event,) = domain.events.values()
    assert event.over.tolist() == [False, True, True]


def test_a_sum_overflows_by_the_magnitudes_of_its_terms():
    """x - x, each beyond the range, is no 0: in which order terms are added up, nobody promised."""
    domain = BoundedDomain((Lane.unbounded, Lane.bounded))
    x, one = packed(np.array([[2.0**100] * 2, [-(2.0**100)] * 2])), packed(np.array([[2.0**60] * 2, [2.0**60] * 2]))
    found = numbers(domain.contract(x, [0], one, [0], []))
    assert found[0] == 0
    assert np.isinf(found[1])


def test_an_infinity_that_was_there_before_is_no_overflow():
    domain = BoundedDomain((Lane.unbounded, Lane.narrower))
    x = packed(np.array([[-np.inf] * 2, [1.0] * 2]))
    found = numbers(domain.elementwise(apply("sub", Arg(0), Arg(0)), [x], DType.float32))
    assert np.isnan(found[0]).all()
    scaled = numbers(
        domain.elementwise(
            apply("add", Arg(0), apply("abs", Arg(0))), [packed(np.array([[np.inf] * 2]))], DType.float32
        )
    )
    assert np.isinf(scaled).all()
    assert not domain.events
