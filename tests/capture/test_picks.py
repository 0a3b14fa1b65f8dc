"""Places read from what is computed: gathers of one element a row, and the losses made of them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from weft import optimize
from weft.tensor.program import Lookup, Opaque


def calls(captured):
    return sorted(n.target for n in captured.program.nodes if isinstance(n, Opaque))


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 5, 3)], ids=["one", "rows", "points"])
def test_losses(weft, shape, reduction, weight):
    torch.manual_seed(0)
    x, scale = torch.randn(shape), torch.rand(5) + 0.5
    target = torch.randint(0, 5, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())

    def loss(x, target, scale):
        per_class = scale.to(x.dtype) if weight else None
        return functional.cross_entropy(x, target, per_class, reduction=reduction, ignore_index=2)

    if target.ndim:
        target[0] = 2
    captured = weft.compare(loss, x, target, scale)
    assert captured.fallbacks == ()
    assert calls(captured) == []


def test_smoothed(weft):
    x, target = torch.randn(4, 5), torch.randint(0, 5, (4,))
    assert weft.compare(lambda x, t: functional.cross_entropy(x, t, label_smoothing=0.1), x, target).fallbacks == ()


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_gathers_of_computed_rows(weft, dim, dtype):
    x = torch.randn(4, 5, 3).mul(9).to(dtype)
    index = torch.randint(0, x.shape[dim], [1 if d == dim % 3 else n for d, n in enumerate(x.shape)])
    captured = weft.compare(lambda x, i: (x * 2).gather(dim, i) + 1, x, index)
    assert calls(captured) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i),  # an input is in memory
        lambda x, i: (x * 2).gather(1, i.expand(-1, 2)),  # several places a row
        lambda x, i: (x * 2).gather(1, i[:3]),  # of some rows
        lambda x, i: (x > 0).gather(1, i),
    ],
)
def test_looked_up_in_memory(weft, function):
    captured = weft.compare(function, torch.randn(4, 5), torch.randint(0, 5, (4, 1)))
    assert calls(captured) == []
    assert any(isinstance(n, Lookup) for n in captured.program.nodes)


def test_left_to_pytorch(weft):
    captured = weft.compare(
        lambda x, i: functional.nll_loss(x, i[:, 0]), torch.randn(4, 5), torch.randint(0, 5, (4, 1))
    )
    assert calls(captured) == ["aten.nll_loss_nd"]


@pytest.mark.parametrize("bad", [5, -1])
@pytest.mark.parametrize(
    "function", [lambda x, i: (x * 2).gather(1, i), lambda x, i: functional.cross_entropy(x, i[:, 0])]
)
def test_a_place_that_does_not_exist_is_eagers_error(function, bad):
    x, index = torch.randn(4, 5), torch.tensor([[1], [bad], [0], [3]])
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        function(x, index)
    program = optimize(function, (x, index.clamp(0, 4)))
    assert not program.fallbacks
    with pytest.raises(type(wanted.value)) as found:
        program(x, index)
    assert str(wanted.value).splitlines()[0] in str(found.value)


def test_all_ignored_is_no_error(weft):
    x, target = torch.randn(4, 5), torch.full((4,), -100)
    assert weft.run(functional.cross_entropy, x, target).isnan()
    target[1] = 3
    weft.compare(functional.cross_entropy, x, target)


def test_a_row_of_no_places_has_none(weft):
    x, index = torch.randn(4, 0), torch.zeros(4, 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="out of bounds"):
        (x * 2).gather(1, index)
    with pytest.raises(RuntimeError, match="out of bounds"):
        weft.run(lambda x, i: (x * 2).gather(1, i), x, index)


def test_an_ignored_row_loses_plain_zero(weft):
    x, target = torch.randn(4, 5), torch.tensor([-100, 2, -100, 0])
    found = weft.run(lambda x, t: functional.cross_entropy(x, t, reduction="none"), x, target)
    assert found.signbit().tolist() == [False] * 4
