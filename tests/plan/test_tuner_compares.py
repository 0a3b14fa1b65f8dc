"""When the tuner takes the results of two candidates for those of one function."""

from __future__ import annotations

import pytest
import torch

from weft.plan.tune import differ, nudged


def test_results_may_differ_by_a_share_of_the_largest() -> None:
    one = torch.tensor([1.0, -8.0, 3.0])
    assert not differ((one,), (one + 1e-3,))
    assert differ((one,), (one + torch.tensor([0.0, 0.0, 0.1]),))
    assert not differ((one.bfloat16(),), ((one + 0.1).bfloat16(),))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_in_one_is_none_in_the_other(wrong: float) -> None:
    one = torch.tensor([1.0, 2.0])
    assert differ((one,), (torch.tensor([1.0, wrong]),))
    assert differ((torch.tensor([1.0, wrong]),), (one,))
    assert not differ((torch.tensor([1.0, wrong]),), (torch.tensor([1.0, wrong]),))


def test_numbers_of_places_may_differ_where_elements_are_as_good_as_equal() -> None:
    one = torch.arange(1000)
    other = one.clone()
    other[3] = 7
    assert not differ((one,), (other,))
    assert differ((one,), (one + 1,))


def test_what_rounding_of_the_operands_moves_far_may_differ_as_far() -> None:
    """The first row's sum cancels: its quotient moves by more than two right kernels may differ by."""
    torch.manual_seed(0)
    x = torch.randn(4, 1024)
    x[0] -= x[0].mean()

    def ratio(t: torch.Tensor) -> torch.Tensor:
        return (t * t).sum(-1) / t.sum(-1)

    def in_another_order(t: torch.Tensor) -> torch.Tensor:
        return (t * t).sum(-1) / t.view(4, 64, 16).sum(1).sum(-1)

    one, other = ratio(x), in_another_order(x)
    moved = ((ratio(x) - ratio(nudged(x))).double().abs(),)
    assert differ((one,), (other,)), "so the next can fail"
    assert not differ((one,), (other,), moved)
    wrong = other.clone()
    wrong[1] *= 1.5
    wrong[1] += one.abs().max() * 0.01
    assert differ((one,), (wrong,), moved), "the other rows are held to their own"


def test_only_floating_operands_are_changed() -> None:
    places = torch.arange(5)
    assert nudged(places) is places
    x = torch.ones(100)
    assert 0 < (nudged(x) - x).abs().max() < 1e-5
