"""Dimensions split and merged: views that PyTorch makes of values as they lie, without a copy that eager does not make."""

from __future__ import annotations

import pytest
import torch

from weft.tensor.program import Elementwise, Opaque
from weft.tensor.scalar import Arg


def copies(captured):
    """The operations that only repeat a value in another order."""
    return [n for n in captured.program.nodes if isinstance(n, Elementwise) and n.expr == Arg(0)]


def heads(x, w):
    batch, steps, _ = x.shape
    return (x @ w).view(batch, steps, 2, -1).transpose(1, 2)


def many_heads(x, w, out):
    batch, steps, _ = x.shape
    q, k, v = (heads(x, each) for each in w)
    mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    return mixed.transpose(1, 2).reshape(batch, steps, -1) @ out


@pytest.mark.parametrize("dynamic", [False, True])
def test_heads_are_views_and_one_copy_puts_them_in_order(weft, dynamic):
    x, w, out = torch.randn(3, 5, 6), torch.randn(3, 6, 8), torch.randn(8, 6)
    captured = weft.compare(many_heads, x, w, out, dynamic=dynamic)
    assert captured.fallbacks == ()
    assert {f.operation for f in captured.views} == {"aten.view", "aten.reshape"}
    assert len(copies(captured)) == 1  # eager's reshape makes it too


def test_one_program_serves_other_batches_and_lengths(weft):
    torch.compiler.reset()
    compiled = torch.compile(many_heads, backend=weft, dynamic=True)
    w, out = torch.randn(3, 6, 8), torch.randn(8, 6)
    with torch.no_grad():
        for batch, steps in ((2, 5), (3, 7), (2, 12)):
            x = torch.randn(batch, steps, 6)
            torch.testing.assert_close(compiled(x, w, out), many_heads(x, w, out), check_dtype=False)
    assert len(weft.graphs) == 1


VIEWED = {
    "steps first": (lambda x: x.transpose(0, 1).view(5, 3, 2, 4).permute(1, 2, 0, 3) * 2, (3, 5, 8)),
    "computed": (lambda x: (x + 1).transpose(0, 1).view(5, 3, 2, 4) * 2, (3, 5, 8)),
    "merged back": (lambda x: (x + 1).transpose(0, 2).transpose(0, 2).view(15, 8) * 2, (3, 5, 8)),
    "another call": (lambda x: torch.cumsum((x + 1).permute(2, 0, 1), 0) * 2, (3, 5, 8)),
    "of size 1": (lambda x: torch.cumsum((x + 1).permute(2, 0, 1), -1) * 2, (3, 1, 8)),
}


@pytest.mark.parametrize("name", VIEWED)
def test_what_pytorch_reads_is_not_put_in_order_first(weft, name):
    function, shape = VIEWED[name]
    captured = weft.compare(function, torch.randn(shape))
    assert any(isinstance(n, Opaque) for n in captured.program.nodes)
    assert copies(captured) == []


def test_strides_that_only_eager_has_are_a_copy_not_an_error(weft):
    # A computed tensor of weft's is in the order of its own axes: eager's is in that of the operand's memory.
    weft.compare(lambda x: (x.t() + 1).t().view(-1) * 2, torch.randn(4, 6))
    weft.compare(lambda x: torch.view_as_complex((x.permute(1, 2, 0) + 1).contiguous()).abs(), torch.randn(2, 3, 4))


def test_expanded_heads(weft):
    def function(x):
        repeated = x[:, :, None].expand(2, 3, 4, 5, 6).reshape(2, 12, 5, 6)
        return repeated * 2

    captured = weft.compare(function, torch.randn(2, 3, 5, 6))
    assert captured.fallbacks == ()
    assert [f.operation for f in captured.views] == ["aten.reshape"]
