"""Tensors joined along a dimension: an element is chosen by a digit, or by its number, and nothing is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.tensor.program import Opaque


def halves(x):
    """Turns pairs of halves, as rotary embeddings do."""
    n = x.shape[-1] // 2
    return torch.cat((-x[..., n:], x[..., :n]), -1)


def pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def turned(x, c, s):
    return x * c + halves(x) * s


def chunked(x):
    one, other = x.chunk(2, dim=-1)
    return torch.cat([-other, one], dim=-1)


X, A = (2, 3, 5, 8), (5, 8)
JOINED = {
    "halves": (turned, X, A, A),
    "chunks": (lambda x, c, s: x * c + chunked(x) * s, X, A, A),
    "pairs": (lambda x, c, s: x * c + pairs(x) * s, X, A, A),
    "halves of heads": (
        lambda x, c, s: turned(x.view(2, 5, 3, 8).transpose(1, 2), c, s).sum(-1),
        (2, 5, 24), A, A,
    ),
    "halves of a product": (lambda x, w: halves(x @ w) * 2, X, (8, 8)),
    "multiplied": (lambda x, y: halves(x) @ halves(y).mT, X, X),
    "in the middle": (lambda x: torch.cat((x[:, :, 2:4] * 2, x[:, :, :2]), 2).exp(), X),
    "twice the same": (lambda f, x: torch.cat((f, f), -1).cos() * x, (5, 4), X),
    "of three": (lambda x, y: torch.cat((x, y, x - y), -1).relu(), X, X),
    "of length 1": (lambda x, y: torch.cat((x[..., :1], y[..., :1]), -1) + 1, X, X),
    "stacked": (lambda x, y: torch.stack((x, y), 2).softmax(2), X, X),
    "stacked in front": (lambda x, y: torch.stack((x, y)).sum(0), (4, 8), (4, 8)),
    "stacked behind": (lambda x, y: torch.stack((x, y), -1) * 2, X, X),
    "one": (lambda x: torch.stack((x.exp(),), 1), X),
    "expanded": (lambda x, y: torch.cat((x, y.expand(X)), -1) * 2, X, (5, 1)),
    "turned": (lambda x, y: torch.cat((x.transpose(-1, -2), y), -1).exp(), (2, 5, 5), (2, 5, 5)),
    "returned": (lambda x: (halves(x), x + 1), X),
    "a part": (lambda x, y: torch.cat((x, y), -1)[..., 4:12] * 2, X, X),
    "of joined": (lambda x, y: torch.cat((halves(x), halves(y)), -1) * 2, X, X),
    "other types": (lambda x, y: torch.cat((x, (4 * y).long()), -1).exp(), X, X),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_joined_dimensions_are_read_digit_by_digit(weft, name):
    function, *shapes = JOINED[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes))
    assert captured.fallbacks == captured.views == ()


@pytest.mark.parametrize("name", ["halves", "chunks", "pairs"])
def test_turned_halves_take_no_call(weft, name):
    """One operation over two digits, whatever comes before and behind."""
    function: Any = JOINED[name][0]
    captured = weft.compare(lambda *given: function(*given).sum(-1), *map(torch.randn, JOINED[name][1:]))
    assert not any(isinstance(n, Opaque) for n in captured.program.nodes)


def test_heads_of_known_size_at_any_batch_and_length(weft):
    def function(x, c, s):
        x = x.view(x.shape[0], x.shape[1], -1, 8).transpose(1, 2)
        return x * c + halves(x) * s

    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft)
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 7), (4, 9)):
            x, c, s = torch.randn(batch, length, 24), torch.randn(length, 8), torch.randn(length, 8)
            torch.testing.assert_close(compiled(x, c, s), function(x, c, s), check_dtype=False)
    assert all(graph.fallbacks == () for graph in weft.graphs)
    assert len(weft.graphs) == 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64])
def test_types(weft, dtype):
    x, y = (torch.randint(0, 2, (3, 4)).to(dtype) for _ in range(2))
    captured = weft.compare(lambda x, y: (torch.cat((x, y), 1), torch.stack((x, y), 1)), x, y)
    assert captured.fallbacks == ()


def test_what_one_tensor_holds_does_not_show_in_another(weft):
    x = torch.tensor([[torch.nan, torch.inf, 1.0, -0.0]])
    found = weft.run(lambda x: halves(x) * 1.0, x)
    torch.testing.assert_close(found, halves(x), equal_nan=True, check_dtype=False)
    assert torch.equal(torch.signbit(found), torch.signbit(halves(x)))


UNEQUAL = {
    "a shorter one": (lambda x, y: torch.cat((x, y[:, :3]), 1) * 2, (3, 4), (3, 4)),
    "one element": (lambda x, y: torch.cat((x, y[:, :1]), 1) * 2, (3, 4), (3, 4)),
    "one element first": (lambda c, x: torch.cat((c.expand(3, -1, -1), x), 1) + 1, (1, 1, 4), (3, 5, 4)),
    "eight": (lambda x, y: torch.cat((x, y) * 4, 1) * 2, (3, 4), (3, 4)),
    "far apart": (lambda x, y: torch.cat((x, y), 1), (2, 5, 400), (2, 5, 400)),
    "rows": (lambda x, y: torch.cat((x, y)).softmax(0), (3, 4), (2, 4)),
    "far apart, stacked": (lambda x, y: torch.stack((x, y), 1), (2, 5, 400), (2, 5, 400)),
    "of merged dimensions": (lambda x, y: torch.cat((halves(x), y), -1) * 2, (5, 8), (5, 3)),
    "beside merged dimensions": (lambda x, y: torch.cat((halves(x), y)) * 2, (5, 8), (2, 8)),
    "of computed": (lambda x, y: torch.cat((x.exp() + 1, y.sigmoid()), 1).sum(1), (3, 4), (3, 2)),
    "of products": (lambda x, y: torch.cat((x @ x.mT, y), -1).softmax(-1), (3, 4), (3, 2)),
    "of sums": (lambda x, y: torch.cat((x.softmax(-1), y), -1) * 2, (3, 4), (3, 2)),
    "of expanded": (lambda x, y: torch.cat((x[:, :1].expand(3, 4), y), 1) * 2, (3, 4), (3, 2)),
    "of joined": (lambda x, y: torch.cat((torch.cat((x, y), 1).exp(), x), 1) * 2, (3, 4), (3, 2)),
    "a part": (lambda x, y: torch.cat((x, y), 1)[:, 2:5] * 2, (3, 4), (3, 2)),
    "a factor": (lambda x, y, z: torch.cat((x, y), 1) @ z, (3, 4), (3, 2), (6, 5)),
    "of permuted": (lambda x, y: torch.cat((x.mT, y), 1) * 2, (3, 4), (4, 2)),
    "partly turned": (lambda x, c, s: torch.cat((turned(x[..., :4], c, s), x[..., 4:]), -1).sum(-1), X, (5, 4), (5, 4)),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", UNEQUAL)
def test_tensors_of_any_lengths_are_read_where_they_are(weft, name, dynamic):
    function, *shapes = UNEQUAL[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes), dynamic=dynamic)
    assert captured.fallbacks == ()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_types_of_unequal_lengths(weft, dtype):
    x, y = torch.randint(0, 2, (3, 4)).to(dtype), torch.randint(0, 2, (3, 3)).to(dtype)
    captured = weft.compare(lambda x, y: torch.cat((x, y), 1), x, y)
    assert captured.fallbacks == ()


def test_infinities_stay_on_their_side(weft):
    x, y = torch.tensor([[torch.nan, torch.inf, 1.0]]), torch.tensor([[-torch.inf, -0.0]])
    found = weft.run(lambda x, y: torch.cat((x, y), 1), x, y)
    torch.testing.assert_close(found, torch.cat((x, y), 1), equal_nan=True, check_dtype=False)


def test_a_growing_cache_is_captured_once(weft):
    torch.compiler.reset()
    compiled = torch.compile(lambda cache, new: torch.cat((cache, new), 2) * 2, backend=weft)
    with torch.no_grad():
        for length in range(3, 9):
            cache, new = torch.randn(1, 2, length, 4), torch.randn(1, 2, 1, 4)
            torch.testing.assert_close(compiled(cache, new), torch.cat((cache, new), 2) * 2, check_dtype=False)
    assert all(graph.fallbacks == () for graph in weft.graphs)
    assert len(weft.graphs) == 2


def test_many_tensors_are_pytorchs(weft):
    captured = weft.compare(lambda x: torch.cat((x,) * 8 + (x + 1,), 1) * 2, torch.randn(3, 4))
    assert [f.operation for f in captured.fallbacks] == ["aten.cat"]
    assert "more than 8 tensors" in captured.fallbacks[0].reason


def test_a_joined_tensor_that_a_call_of_pytorchs_reads_twice(weft):
    captured = weft.compare(lambda x: torch.copysign(torch.cat((x, x), -1), torch.cat((x, x), -1)), torch.randn(2, 2))
    assert [each.operation for each in captured.fallbacks] == ["aten.copysign"]

    def twice(x):
        joined = torch.cat((x, -x), -1)
        return torch.copysign(joined, joined)

    assert [each.operation for each in weft.compare(twice, torch.randn(2, 2)).fallbacks] == ["aten.copysign"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_without_elements_join_nothing(weft, dtype):
    def joined(x):
        return torch.cat([x, x[:, :0], x * 2, x.new_empty(0)], 1) * 2

    assert weft.compare(joined, torch.randn(3, 8, dtype=dtype)).fallbacks == ()


@pytest.mark.parametrize(("start", "end", "step"), [(0.5, 8, 1), (0.25, 4.25, 0.5), (4.0, 0.0, -0.5)], ids=str)
def test_numbers_between_whole_ones_are_counted(weft, start, end, step):
    def places(x):
        return x * torch.arange(start, end, step, dtype=x.dtype)

    assert weft.compare(places, torch.randn(3, 8)).fallbacks == ()


@pytest.mark.parametrize("dynamic", [False, True])
def test_whole_numbers_that_are_written_as_floats_are_counted(weft, dynamic):
    """Count downwards, as XLNet does its positions."""

    def places(x):
        n = x.shape[1]
        downwards = torch.arange(n, -n, -1.0, dtype=torch.int64).float()
        evens, later = torch.arange(0, 16, 2.0, dtype=torch.int64), torch.arange(7.0, 15, dtype=torch.int64)
        return x * downwards[:n] * evens + later

    assert weft.compare(places, torch.randn(3, 8), dynamic=dynamic).fallbacks == ()


def test_numbers_that_are_rounded_are_eagers(weft):
    captured = weft.compare(lambda x: x * torch.arange(0.0, 0.8, 0.1), torch.randn(3, 8))
    assert [f.operation for f in captured.fallbacks] == ["aten.arange"]
