"""The error rule: what is as good as eager passes, and planted errors do not."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import JudgementError, ReferenceDTypeError, WeftError
from weft.verify import judge
from weft.verify.judge import (
    Draws,
    IndexGap,
    allowed_error,
    reference,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


class Pair(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


def case(dtype: torch.dtype, rows: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's result and the reference."""
    x, w = torch.randn(rows, 64).to(dtype), torch.randn(64, 30).to(dtype)
    exact = reference(linear, (x, w))
    assert isinstance(exact, torch.Tensor)
    return linear(x, w), exact


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eager_itself_passes(dtype: torch.dtype) -> None:
    eager, exact = case(dtype)
    verdict = judge(eager, eager, exact)
    assert verdict
    assert verdict.check() is verdict
    assert verdict.reason == ""
    (output,) = verdict.outputs
    assert output.error == output.eager_error == float((eager.double() - exact).abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_percent_wrong_elements_fail(dtype: torch.dtype) -> None:
    eager, exact = case(dtype)
    out = eager.clone()
    out.view(-1)[:: out.numel() // 12] += 1.0
    assert not judge(out, eager, exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_single_wrong_element_fails_and_is_named(dtype: torch.dtype) -> None:
    eager, exact = case(dtype)
    out = eager.clone()
    out[17, 5] += 2 * allowed_error(eager, exact) + 1e-12
    verdict = judge(out, eager, exact)
    assert not verdict.ok
    assert verdict.outputs[0].worst == (17, 5)
    with pytest.raises(JudgementError, match=r"17, 5"):
        verdict.check()


@given(st.floats(0.1, 3.0), st.integers(0, 5))
def test_the_bound_is_the_rule(factor: float, place: int) -> None:
    """Exactly 2 e(eager) + 2 eps max|ref| divides right from wrong."""
    exact = torch.tensor([1.0, -8.0, 2.0, 0.0, 5.0, math.pi], dtype=torch.float64)
    eager = exact.float()
    eager[2] += 1e-5
    bound = 2 * float((eager.double() - exact).abs().max()) + 2 * 2.0**-23 * 8.0
    out = exact.float()
    out[place] += factor * bound
    error = float((out.double() - exact).abs().max())
    verdict = judge(out, eager, exact)
    assert verdict.outputs[0].bound == pytest.approx(bound, rel=1e-12)
    assert verdict.ok == (error <= bound)


def test_nan_and_inf_must_be_where_eager_has_them() -> None:
    exact = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0], dtype=torch.float64)
    eager = exact.float()
    assert judge(eager.clone(), eager, exact)
    for swap in ((0, 1), (0, 2), (0, 3), (2, 3), (1, 2)):
        out = eager.clone()
        out[list(swap)] = eager[list(reversed(swap))]
        verdict = judge(out, eager, exact)
        assert not verdict
        assert verdict.outputs[0].error == math.inf
        assert verdict.outputs[0].worst is not None
    for place in (1, 2, 3):
        out = eager.clone()
        out[place] = 0.0
        assert judge(out, eager, exact).outputs[0].worst == (place,)
    finite = torch.nan_to_num(eager)
    assert not judge(finite, eager, exact)
    assert not judge(eager, finite, exact.nan_to_num())


def test_elements_that_are_not_finite_hide_no_error_and_loosen_no_bound() -> None:
    exact = torch.tensor([math.inf, 1.0, math.nan], dtype=torch.float64)
    eager = exact.float()
    out = torch.tensor([math.inf, 1.1, math.nan])
    (output,) = judge(out, eager, exact).outputs
    assert not output.ok
    assert output.bound == 2 * 2.0**-23


def test_where_only_the_reference_is_infinite_the_element_does_not_count() -> None:
    eager, exact = torch.tensor([1.0, 3.0]), torch.tensor([1.0, math.inf], dtype=torch.float64)
    assert judge(eager, eager, exact)
    assert not judge(torch.tensor([1.0, math.nan]), eager, exact)
    assert not judge(torch.tensor([9.0, 3.0]), eager, exact)


def test_dtype_shape_and_structure_must_be_eagers() -> None:
    eager, exact = case(torch.float32)
    assert "dtype" in judge(eager.bfloat16(), eager, exact).reason
    assert "shape" in judge(eager[:1], eager, exact).reason
    assert "shape" in judge(eager, eager, exact[:1]).reason
    assert "structure" in judge((eager,), eager, exact).reason
    assert "structure" in judge([eager], [eager, eager], [exact, exact]).reason
    assert not judge({"b": eager}, {"a": eager}, {"a": exact})
    assert not judge(None, eager, exact)
    assert judge((eager, None, 3), (eager, None, 3), (exact, None, 3))
    assert not judge((eager, None, 3), (eager, None, 4), (exact, None, 4))


def test_a_nested_result_has_one_line_per_output() -> None:
    eager, exact = case(torch.float32)
    index = torch.arange(3)
    theirs, wide = {"a": [eager, Pair(eager, index)]}, {"a": [exact, (exact, index)]}
    verdict = judge({"a": (eager, (eager + 1, index))}, theirs, wide)
    assert [o.name for o in verdict.outputs] == ["out['a'][0]", "out['a'][1][0]", "out['a'][1][1]"]
    assert [o.ok for o in verdict.outputs] == [True, False, True]
    assert len(str(verdict).splitlines()) == 3
    assert "WRONG" in str(verdict).splitlines()[1]


def test_a_python_float_is_judged_too() -> None:
    assert judge(math.nan, math.nan, math.nan)
    assert not judge(1.5, 1.0, 1.0)


def test_the_maxima_are_taken_over_all_draws_together() -> None:
    exact = [torch.tensor([v], dtype=torch.float64) for v in (1.0, 2.0)]
    eager = [torch.tensor([1.0 + 1e-3]), torch.tensor([2.0])]
    out = [torch.tensor([1.0]), torch.tensor([2.0 + 1e-3])]
    assert not judge(out[1], eager[1], exact[1])
    verdict = judge(Draws(out), Draws(eager), Draws(exact))
    assert verdict
    assert (verdict.outputs[0].draw, verdict.outputs[0].worst) == (1, (0,))
    out[0] += 0.1
    assert not judge(Draws(out), Draws(eager), Draws(exact))


@pytest.mark.parametrize("large", [0, 1])
def test_the_largest_result_of_any_draw_sets_the_scale(large: int) -> None:
    exact = [torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    exact[large] *= 1000.0
    eager = [x.float() for x in exact]
    verdict = judge(Draws(eager), Draws(eager), Draws(exact))
    assert verdict.outputs[0].bound == 2 * 2.0**-23 * 1000.0


def test_an_error_in_any_draw_fails() -> None:
    draws = [case(torch.float32) for _ in range(4)]
    eager, exact = Draws([e for e, _ in draws]), Draws([x for _, x in draws])
    assert judge(eager, eager, exact)
    for bad in range(4):
        out = [e.clone() for e in eager.results]
        out[bad][3, 3] = math.nan
        verdict = judge(Draws(out), eager, exact)
        assert not verdict
        assert verdict.outputs[0].draw == bad
    several = judge(Draws([(e,) for e in eager.results]), eager, exact)
    assert not several


def test_draws_that_do_not_match_are_an_error() -> None:
    eager, exact = case(torch.float32)
    with pytest.raises(WeftError, match="number of draws"):
        judge(Draws([eager]), eager, exact)
    with pytest.raises(WeftError, match="number of draws"):
        judge(Draws([eager]), Draws([eager, eager]), Draws([exact]))
    with pytest.raises(WeftError, match="no draws"):
        Draws([])


def test_integer_and_bool_outputs_must_be_equal() -> None:
    exact = torch.arange(6).reshape(2, 3)
    assert judge(exact.clone(), exact, exact)
    out = exact.clone()
    out[1, 2] = 0
    verdict = judge(out, exact, exact)
    assert not verdict
    assert (verdict.outputs[0].error, verdict.outputs[0].worst) == (1.0, (1, 2))
    flags = exact > 2
    assert judge(flags, flags, flags)
    assert not judge(~flags, flags, flags)


def test_an_index_may_differ_only_where_the_winner_is_not_clear() -> None:
    scores = torch.tensor([[1.0, 1.0 + 1e-9, 0.0], [5.0, 1.0, 2.0]], dtype=torch.float64)
    exact, eager_scores = scores.argmax(1), scores.float()
    eager = eager_scores.argmax(1)
    assert eager.tolist() != exact.tolist()
    gap = IndexGap(torch.tensor([1e-9, 3.0], dtype=torch.float64), allowed_error(eager_scores, scores))
    assert judge(eager, eager, exact, gaps=gap)
    assert judge(exact, eager, exact, gaps=gap)
    assert not judge(exact, eager, exact)
    assert not judge(torch.tensor([0, 2]), eager, exact, gaps=gap)
    both = Draws([(eager,), (eager,)])
    gaps = Draws([(gap,), (gap,)])
    assert judge(both, both, Draws([(exact,), (exact,)]), gaps=gaps)
    with pytest.raises(WeftError, match="gaps"):
        judge(both, both, both, gaps=(gap,))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
def test_empty_outputs_pass(shape: tuple[int, ...]) -> None:
    eager = torch.empty(shape)
    assert judge(eager.clone(), eager, eager.double())
    index = torch.empty(shape, dtype=torch.int64)
    assert judge(index, index, index)


def test_a_reference_in_another_dtype_is_an_error() -> None:
    eager, exact = case(torch.float32)
    with pytest.raises(ReferenceDTypeError, match=r"torch\.float64"):
        judge(eager, eager, exact.float())
    with pytest.raises(TypeError, match="integer"):
        judge(torch.arange(3), torch.arange(3), torch.arange(3).double())
    with pytest.raises(ReferenceDTypeError, match="not a tensor"):
        judge(eager, eager, None)


def test_reference_runs_in_fp64_and_changes_nothing() -> None:
    layer = torch.nn.Linear(4, 3).bfloat16()
    x = torch.randn(2, 4, dtype=torch.bfloat16, requires_grad=True)
    exact = reference(layer, (x,))
    assert isinstance(exact, torch.Tensor)
    assert exact.dtype == torch.float64
    assert not exact.requires_grad
    assert layer.weight.dtype == torch.bfloat16
    assert layer.bias is not None
    wide = x.detach().double() @ layer.weight.detach().double().T + layer.bias.detach().double()
    torch.testing.assert_close(exact, wide, rtol=1e-14, atol=1e-14)


def test_reference_reaches_nested_and_keyword_inputs_and_new_tensors() -> None:
    def fn(pair: tuple[torch.Tensor, torch.Tensor], *, scale: dict[str, object]) -> torch.Tensor:
        x, index = pair
        assert index.dtype == torch.int64
        value = scale["s"]
        assert isinstance(value, torch.Tensor)
        x.add_(1.0)
        return x * value + torch.full((2,), 0.1)

    x, scale = torch.zeros(2), torch.ones(())
    exact = reference(fn, ((x, torch.zeros(1, dtype=torch.int64)),), {"scale": {"s": scale}})
    assert isinstance(exact, torch.Tensor)
    assert exact.tolist() == [1.1, 1.1]
    assert x.tolist() == [0.0, 0.0]
    assert torch.get_default_dtype() == torch.float32
