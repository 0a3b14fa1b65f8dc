"""Sizes that no tensor of a kernel shows are passed to it."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.plan import Plan
from weft.plan.execute.sizes import SizeSource, found
from weft.tensor import Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.dtypes import DType
from weft.tensor.program import Extent, Input, TensorProgram


def mean_of_running_sums(x):
    return torch.sort(x.sum(0), 0).values / x.shape[0]


def rows_of_nothing(x):
    return torch.sort(x, 0).values.sum() + torch.arange(x.shape[0]) * 2.0


def of_a_slice(x):
    return torch.sort(x[2:].sum(0), 0).values / x[2:].shape[0]


@pytest.mark.parametrize("function", [mean_of_running_sums, rows_of_nothing, of_a_slice])
def test_the_kernel_gets_the_size_that_there_is(function):
    plans: list[Plan] = []

    def backend(gm, example_inputs):
        plans.append(compile_graph(gm, example_inputs))
        return plans[-1].run

    fast = torch.compile(function, backend=backend, dynamic=True)
    for rows in (7, 5, 9, 700):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    (plan,) = plans
    assert {f.operation for f in plan.fallbacks} == {"aten.sort"}, plan.fallbacks
    assert any(kernel.sizes for kernel in plan.kernels)


def test_a_size_is_read_off_what_shows_it_or_follows():
    m, k, gone = Space("M"), Space("K"), Space("N")
    x = Input("x", (Axis("k", k), Axis("m", m)), DType.float32)
    rest = Space("R")
    program = TensorProgram((x,), (Extent("t", (), DType.float32, gone),), ("t",), derived=(Derived(rest, m, 2, None),))
    assert found(m, program, {"x"}) == SizeSource("x", 1)
    assert found(rest, program, {"x"}) == SizeSource("x", 1, (program.derived[0],))
    with pytest.raises(weft.errors.UnsupportedError, match="the size of N cannot be read from"):
        found(gone, program, {"x"})
    with pytest.raises(weft.errors.UnsupportedError):
        found(m, program, set())


def test_a_size_is_read_off_a_multiple_of_it_and_by_whichever_rule_leads_somewhere():
    heads, every, some = Space("H"), Space("S"), Space("Q")
    x = Input("x", (Axis("s", every),), DType.float32)
    rules = (Derived(some, Space("gone"), 0, 2), Derived(some, every, 2, None), Derived(every, heads, times=4))
    program = TensorProgram((x,), (Extent("t", (), DType.float32, heads),), ("t",), derived=rules)
    assert found(heads, program, {"x"}) == SizeSource("x", 0, (Derived(heads, every, step=4),))
    assert found(some, program, {"x"}) == SizeSource("x", 0, (rules[1],))
    assert program.sizes({"H": 3})["S"] == 12


def rows_of_a_mask(x):
    # The mask is as long as x by a number alone: what shows that it is as long comes only later, through a call of PyTorch's.
    one, other = torch.arange(x.shape[0]), torch.arange(x.shape[0]) + 0
    kept = torch.where(other <= one[:, None], 1.0, 0.0).amax(-1) > 0.5
    return torch.where(kept[:, None], torch.tanh(torch.sort(x * 2, 0).values), 0.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_that_only_a_number_says_costs_no_call(dynamic):
    plans: list[Plan] = []

    def backend(gm, example_inputs):
        plans.append(compile_graph(gm, example_inputs))
        return plans[-1].run

    fast = torch.compile(rows_of_a_mask, backend=backend, dynamic=dynamic)
    for rows in (7, 12):
        x = torch.randn(rows, 6)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), rows_of_a_mask(x))
    assert [[f.operation for f in plan.fallbacks] for plan in plans] == [["aten.sort"]] * (1 if dynamic else 2)
