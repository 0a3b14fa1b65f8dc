"""Where values lie, as the text of a runner says it; and that a runner makes no tensor for a kernel that can do without."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.plan.execute.strided import Strided, derived, plus, times
from weft.tensor.axes import Space
from weft.tensor.derived import Derived

NUMBERS = st.lists(st.one_of(st.integers(0, 7).map(str), st.sampled_from(["a", "b", "a + b"])), max_size=4)
SIZES = {"a": 3, "b": 5}


@given(NUMBERS)
def test_sums_and_products_are_what_their_parts_are(parts: list[str]) -> None:
    values = [eval(part, dict(SIZES)) for part in parts]
    product = 1
    for value in values:
        product *= value
    assert eval(times(*parts), dict(SIZES)) == product
    assert eval(plus(*parts), dict(SIZES)) == sum(values)


@given(
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.one_of(st.none(), st.integers(-9, 50)),
    st.integers(1, 8),
    st.integers(0, 3),
    st.integers(-2, 5),
)
def test_a_size_that_follows_from_another_is_what_its_rule_says(
    size: int, start: int | None, stop: int | None, step: int, times_over: int, more: int
) -> None:
    rule = Derived(Space("m"), Space("n"), start, stop, step, times_over, more)
    assert eval(derived(rule, "n"), {"n": size}) == rule.size(size)


@pytest.mark.parametrize("start", ["0", "3", "k"])
def test_dimensions_are_merged_and_split_as_pytorch_does(start: str) -> None:
    memory = torch.arange(200.0)
    values = {"memory": memory, "k": 3}
    dense = Strided("memory", ("2", "4", "6"), ("24", "6", "1"), 4, start, dense=True)
    shown: torch.Tensor = eval(dense.tensor, values)
    for first, last in ((0, 1), (1, 2), (0, 2), (1, 1)):
        merged = dense.flattened(first, last)
        assert merged is not None
        assert torch.equal(eval(merged.tensor, values), shown.flatten(first, last))
    for dim, inner in ((1, [2]), (2, [3]), (2, [3, 2])):
        split: torch.Tensor = eval(dense.unflattened(dim, inner).tensor, values)
        assert torch.equal(split, shown.unflatten(dim, [-1, *inner]))
        assert split.stride() == shown.unflatten(dim, [-1, *inner]).stride()
    assert Strided("memory", ("2", "4"), ("1", "2"), 4).flattened(0, 1) is None, "PyTorch copies"
    assert eval(dense.address, values) == shown.data_ptr()


class Calls(TorchDispatchMode):
    """What PyTorch is called for."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_run_allocates_what_kernels_write_and_makes_nothing_else():
    """Views of arguments, dimensions of size 1, heads of a row: a kernel is told where they lie. The rows that the heads
    are put together to are one view.
    """

    def fn(x, w, row):
        q, k, v = (x @ w).view(1, 9, 3, 2, 4).unbind(2)
        scores = torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) + row, -1)
        return (scores @ v.transpose(1, 2)).transpose(1, 2).reshape(1, 9, 8), x[:, 2:, ::3] * 2

    inputs = torch.randn(1, 9, 6), torch.randn(6, 24), torch.randn(1, 1, 1, 9)
    (plan,) = weft.optimize(fn, inputs).plans
    assert not plan.fallbacks
    with Calls() as calls:
        found = plan.run(*inputs)
    allocated = "aten.empty_strided.default"
    assert calls.names.count(allocated) == sum(len(kernel.writes) for kernel in plan.kernels)
    assert [name for name in calls.names if name != allocated] == ["aten.as_strided.default"]
    for made, wanted in zip(found, fn(*inputs), strict=True):
        torch.testing.assert_close(made, wanted)
        assert made.stride() == wanted.contiguous().stride()


def test_a_result_that_pytorch_reads_too_is_seen_by_both():
    def fn(x):
        y = (x * 2).unsqueeze(0)
        return y, torch.sort(y[0], 0).values

    x = torch.randn(4, 5)
    y, total = weft.optimize(fn, x)(x)
    torch.testing.assert_close((y, total), fn(x))
    assert y.stride() == fn(x)[0].stride()


def test_a_view_that_a_region_without_kernels_hands_on_is_made_for_pytorch():
    def fn(x):
        return torch.sort(x[2:, ::2], 0).values, x.T[1:] * 2, x[:, 1:]

    x = torch.randn(7, 6)
    (plan,) = weft.optimize(fn, x).plans
    for other in (x, torch.randn(9, 6)):
        for found, wanted in zip(plan.run(other), fn(other), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_of_a_view_that_no_single_view_says_is_read_by_kernels(dynamic: bool) -> None:
    """The last row of a slice in steps is not at one place from the end of what is sliced, for all sizes: the flip stays a view."""

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(x[::2].flip(0)), torch.tanh(x.exp()[1::2][3:-1:2]).flip(0) + 1

    program = weft.optimize(turned, (torch.randn(16, 8),), dynamic=dynamic)
    assert not program.fallbacks
    compiled = weft.compile(turned, dynamic=dynamic, measure="never")
    for rows in (16, 17, 23):
        x = torch.randn(rows, 8)
        for made, expected in zip(compiled(x), turned(x), strict=True):
            assert torch.allclose(made, expected)


def test_two_regions_call_different_views_of_an_argument_by_one_name():
    """The first column, which means are taken about, and rows from the last to the first, or the first row."""

    def function(x):
        normed = torch.nn.functional.group_norm(x, 1), torch.nn.functional.layer_norm(x.t(), (4,))
        return *normed, x.flip(0), x + x.select(0, 0), x

    x = torch.randn(4, 6)
    for found, wanted in zip(weft.compile(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, wanted)
