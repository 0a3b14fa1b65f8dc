"""What the laws on tensor programs make of a graph is checked: a law that is wrong is caught, in programs of every kind."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import weft
from weft.errors import LeftToPyTorchWarning, RefutedError
from weft.plan.execute import laws as executable
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Elementwise, Node, TensorProgram
from weft.tensor.scalar import Apply


def short(x, y):
    """Roundings between operations, which the laws drop."""
    return torch.relu(x.bfloat16() + y.bfloat16()) * 2


def around_a_call(x, y):
    """Puts a call into PyTorch between a sum that it reads and a product that reads it."""
    return torch.cumsum(x + y, 0) * 3


def after_a_call(x, y):
    return torch.cumsum(x, 0) + y


def sliced(x, y):
    return x[:, 2:5] + y[:, 1:4]


def from_the_end(x, y):
    return x[-3:] + y[:3]


def counted(x, y):
    """Casts that are no roundings."""
    return (x > 0).to(torch.int64) + (y > 1).sum()


FUNCTIONS = {f.__name__: f for f in (short, around_a_call, after_a_call, sliced, from_the_end, counted)}


def wrong(program: TensorProgram) -> TensorProgram:
    """Sums that are differences."""

    def node(of: Node) -> Node:
        if isinstance(of, Elementwise) and isinstance(of.expr, Apply) and of.expr.op == "add":
            return replace(of, expr=Apply("sub", of.expr.args))
        return of

    return replace(program, nodes=tuple(map(node, program.nodes)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_law_is_caught_before_anything_runs(monkeypatch, name):
    fn, given = FUNCTIONS[name], (torch.randn(6, 5), torch.randn(6, 5))
    assert not any("the laws" in f.reason for f in weft.optimize(fn, given).fallbacks)
    monkeypatch.setattr(executable, "GRAPH", (*executable.GRAPH, tensor_pass()(wrong)))
    with pytest.raises(RefutedError), weft.options(defects="raise"):
        weft.optimize(fn, given)
    with weft.options(defects="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorchWarning)  # users hear of it once
        program = weft.optimize(fn, given)
    assert any("the laws on tensor programs changed what is computed: refuted" in f.reason for f in program.fallbacks)
    assert program.kernels == ()
    torch.testing.assert_close(program(*given), fn(*given))


def of_training(x, mean, variance):
    """The numbers of elements are those of `x`, which what comes after the sum over rows does not read."""
    return F.batch_norm(torch.sort(x, 0).values, mean, variance, training=True)


def test_sizes_that_no_input_of_a_region_tells():
    fast = weft.compile(of_training, measure="never")
    for shape in ((4, 3, 5), (7, 3, 6)):
        x, before = torch.randn(shape), weft.stats()
        found, wanted = ((torch.zeros(3), torch.ones(3)) for _ in range(2))
        with torch.no_grad():
            torch.testing.assert_close(fast(x, *found), of_training(x, *wanted))
        torch.testing.assert_close(found, wanted)
        assert weft.stats().fallbacks - before.fallbacks == 1  # sort alone
        assert weft.stats().kernels > before.kernels
