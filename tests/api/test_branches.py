"""Functions that are others at other sizes: what one trace shows is no claim about these."""

import pytest
import torch

import weft


def total(a):
    return a.sum(0)


def twice_beyond_50(a):
    return a.sum(0) if a.shape[0] < 50 else 2 * a.sum(0)


def twice_beyond_a_number_that_no_code_holds(a):
    return a.sum(0) if a.shape[0] < sum((20, 30)) else 2 * a.sum(0)


def twice_at_multiples_of_7(a):
    return a.sum(0) if a.shape[0] % 7 else 2 * a.sum(0)


def less_beyond_64(a):
    return a.sum(0) * min(a.shape[0], 64) / a.shape[0]


@pytest.mark.parametrize("fn", [twice_beyond_a_number_that_no_code_holds, twice_at_multiples_of_7])
def test_a_branch_on_a_size_that_was_not_tried_is_no_claim(fn):
    verdict = weft.equivalent(fn, total, (torch.randn(12),))
    assert verdict.equal is None
    assert verdict.error_probability is None
    assert "takes another branch" in verdict.reason


@pytest.mark.parametrize("fn", [twice_beyond_50, less_beyond_64])
def test_a_size_beyond_a_number_in_the_code_is_tried(fn):
    assert weft.equivalent(fn, total, (torch.randn(12),)).equal is False


def test_a_branch_on_a_size_that_was_tried_tells_them_apart():
    def twice_at_13(a):
        return 2 * a.sum(0) if a.shape[0] == 13 else a.sum(0)

    assert weft.equivalent(twice_at_13, total, (torch.randn(12),)).equal is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda a: a.reshape(a.shape[0] // 4, 4).sum((0, 1)), lambda a: a.reshape(-1, 4).sum((1, 0))),
        (lambda a: a[:100].sum(0), lambda a: a[:100].flip(0).sum(0)),
        (lambda a: a.narrow(0, 1, 2) * 1, lambda a: a[1:3] * 1),
    ],
)
def test_what_sizes_must_be_and_bounds_that_were_passed_are_no_such_branch(one, other):
    verdict = weft.equivalent(one, other, (torch.randn(12),))
    assert verdict.equal is True, verdict
