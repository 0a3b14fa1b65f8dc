"""Results lie in memory as eager's do: views of computed tensors have their gaps, their order and their repeated elements."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch

import weft

View: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

_MADE: tuple[View, ...] = (
    lambda a: a * 2,
    torch.relu,
    lambda a: a + a.sum(-1, keepdim=True),
    lambda a: torch.softmax(a, 0),
)


def _a_view(rng: random.Random, tensor: torch.Tensor) -> View:
    """Some way to look at `tensor`; it does not depend on the sizes of the first dimension."""
    dim = rng.randrange(tensor.ndim) if tensor.ndim else 0
    size = tensor.shape[dim] if tensor.ndim else 0
    at, step = rng.randrange(max(size, 1)), rng.randint(1, 3)
    choices: list[View] = [lambda t: t.unsqueeze(dim)]
    if tensor.ndim:
        choices += [
            lambda t: t.narrow(dim, at, t.shape[dim] - at),
            lambda t: t.unsqueeze(dim).expand(*[-1] * dim, 3, *[-1] * (t.ndim - dim)),
        ]
    if size > 0:
        choices += [lambda t: t.select(dim, at), lambda t: t[(slice(None),) * dim + (slice(at, None, step),)]] * 2
        choices += [lambda t: t.unfold(dim, 1 + size // 2, step), lambda t: t.split(1, dim)[at]]
    if tensor.ndim > 1:
        choices += [lambda t: t.transpose(dim, 0), lambda t: t.movedim(-1, dim), lambda t: t.diagonal(0, 0, 1)]
    return rng.choice(choices)


def _chain(rng: random.Random, example: torch.Tensor) -> View:
    """Something computed, and one to four views of it."""
    views = [rng.choice(_MADE)]
    tensor = views[0](example)
    for _ in range(rng.randint(1, 4)):
        view = _a_view(rng, tensor)
        tensor = view(tensor)
        views.append(view)

    def run(a: torch.Tensor) -> torch.Tensor:
        for view in views:
            a = view(a)
        return a

    return run


def _agree(mine: tuple[torch.Tensor, ...], eager: tuple[torch.Tensor, ...]) -> None:
    for number, (a, b) in enumerate(zip(mine, eager, strict=True)):
        assert (a.shape, a.stride()) == (b.shape, b.stride()), number
        torch.testing.assert_close(a, b)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(8))
def test_views_of_computed_tensors_have_eagers_strides(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([1, 2, 3, 5, 8]) for _ in range(rng.randint(1, 4))]
    chains = [_chain(rng, torch.zeros(sizes)) for _ in range(8)]

    def together(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(chain(a * (number + 1)) for number, chain in enumerate(chains))

    a = torch.randn(sizes)
    _agree(weft.optimize(together, (a,))(a), together(a))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: ((a * 2)[:, 0], (a * 3)[:, 1:4], (a * 5).mT[1:]),
        lambda a: ((a * 2).sum(0).expand(3, 9), (a * 3).unsqueeze(1).expand(-1, 4, -1), (a * 5)[:, :1]),
        lambda a: ((a * 2)[:, 3:3], (a @ a.mT)[:, 0], (a * 3)[::2, ::3]),
    ],
)
def test_strides_follow_the_sizes_of_each_call(function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    compiled = weft.compile(function)
    for length in (6, 13, 40, 1):
        a = torch.randn(length, 9)
        _agree(compiled(a), function(a))


def test_results_that_share_memory_still_do() -> None:
    def views(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        b = a * 2
        return b[1:], b[:, 0], b

    a = torch.randn(6, 9)
    rows, column, whole = weft.optimize(views, (a,))(a)
    whole.zero_()
    assert not rows.any()
    assert not column.any()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda a: torch.nn.functional.group_norm(a.mT, 1), torch.float32),
        (lambda a: torch.nn.functional.group_norm(a.movedim(1, 0).relu(), 2), torch.float32),
        (lambda a: torch.cat((a.mT, a.mT[..., 64:]), -1), torch.float32),
        (lambda a: a.mT.frac().movedim(1, -1).permute(2, 1, 0), torch.float32),
        (lambda a: a.transpose(0, -1).angle(), torch.complex64),
        (lambda a: torch.cat((a[..., None].mH.unfold(3, 2, 1).select(1, 0),) * 2, 1), torch.complex64),
        (lambda a: torch.sort(a[:, 0], 0).values[:, None].expand(-1, 5, -1), torch.float32),
    ],
    ids=[
        "group_norm",
        "group_norm of a computed tensor",
        "cat",
        "permuted back",
        "a call of PyTorch's",
        "dimensions of size 1",
        "such a one expanded",
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_strides_are_the_calls_own(function: View, dtype: torch.dtype, compiled: bool) -> None:
    """Calls that are taken by their parts count too, and one that PyTorch runs and fake tensors describe otherwise."""
    a = torch.randn(4, 6, 8, dtype=dtype)
    run = weft.compile(function) if compiled else weft.optimize(function, (a,))
    _agree((run(a),), (function(a),))


def test_repeated_elements_are_computed_once(tmp_path) -> None:
    def expanded(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.sum(0).expand(500, 9), (a * 2)[:, None, 1:4].expand(-1, 7, -1)

    a = torch.randn(6, 9)
    program = weft.optimize(expanded, (a,))
    program.save(tmp_path / "expanded.weft")
    for each in (program, weft.load(tmp_path / "expanded.weft")):
        results = each(a)
        _agree(results, expanded(a))
        assert results[0].untyped_storage().nbytes() == 9 * 4


def test_a_stride_that_a_view_after_the_graph_relies_on() -> None:
    def parts(a: torch.Tensor) -> torch.Tensor:
        b = (a * 2)[:, 2:6]
        torch._dynamo.graph_break()
        return b.unflatten(1, (2, 2)).permute(1, 0, 2)

    a = torch.randn(6, 9)
    _agree((weft.compile(parts)(a),), (parts(a),))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: torch.cat((a.imag, a.imag[..., 64:]), -1),
        lambda a: torch.cat((torch.view_as_real(a)[..., 1],)),
        lambda a: torch.cat((torch.fft.fft(a).real,), -1),
        lambda a: torch.sort(a.real, 0).values.sum().expand(2, 3),
    ],
)
def test_a_tensor_of_its_own_does_not_lie_in_an_input(function: View) -> None:
    """Nothing is joined to it: what is joined may be a view of the input that PyTorch made, the result is a copy."""
    a = torch.randn(3, 8, dtype=torch.complex64)
    compiled = weft.optimize(function, (a,))
    expected = function(a)
    result = compiled(a)
    _agree((result,), (expected,))
    before = a.clone()
    result.zero_()
    assert torch.equal(a, before)


def as_a_map(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens as pixels of a picture whose length may be a symbol, through a convolution that PyTorch runs."""
    batch, _, channels = tokens.shape
    pixels = (tokens * 2).permute(0, 2, 1).reshape(batch, channels, 4, 4).contiguous()
    return torch.nn.functional.conv2d(torch.cat((pixels, pixels), 1), torch.ones(8, 8, 1, 1))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_calls_of_pytorchs_after_views_with_symbolic_sizes(compiled: bool, dynamic: bool) -> None:
    for batch in (2, 5, 3):
        tokens = torch.randn(batch, 16, 4)
        if dynamic:
            torch._dynamo.mark_dynamic(tokens, 0)
        run = weft.compile(as_a_map, measure="never") if compiled else weft.optimize(as_a_map, (tokens,))
        with torch.no_grad():
            found, wanted = run(tokens), as_a_map(tokens)
        _agree((found,), (wanted,))
        assert found.view(batch, -1).shape == wanted.view(batch, -1).shape


def _in_one_memory(results: tuple[torch.Tensor, ...]) -> list[list[int]]:
    """For each result, which results lie in its memory."""
    places = [result.untyped_storage().data_ptr() for result in results]
    return [[i for i, place in enumerate(places) if place == own] for own in places]


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a.T.reshape(-1), a.mT.contiguous()),
        lambda a: ((b := torch.relu(a).T).contiguous(), b.reshape(-1), b.clone().reshape(2, -1)),
        lambda a: ((b := a[:1] * 2).sum(0), b[0], b.mean(0), b.squeeze(0), b.amax(0)),
        lambda a: ((b := a * 2).add_(1), b[0], b.T, b + 0),
    ],
)
def test_results_lie_together_where_eagers_do(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> None:
    a = torch.randn(6, 7)
    mine, eager = weft.optimize(function, (a,))(a), function(a)
    _agree(mine, eager)
    assert _in_one_memory(mine) == _in_one_memory(eager)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_view_beside_what_laws_make_the_same(compiled: bool) -> None:
    """An extremum over one element is that element, but a tensor of its own; the view is the one that lies in the input."""

    def both(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a[0].amin(0, keepdim=True), a[0], a[0].sum(0, keepdim=True)

    a = torch.randn(2, 1)
    run = weft.compile(both, measure="never") if compiled else weft.optimize(both, (a,))
    with torch.no_grad():
        least, view, total = run(a)
    view.zero_()
    assert a[0] == 0
    assert least != 0
    assert total != 0


def test_views_of_what_pytorch_alone_can_read_have_eagers_strides():
    """A kernel computes the operand, and PyTorch's result follows it: of complex numbers weft cannot change the order itself."""

    def f(x):
        whole = torch.polar(x.abs(), x)
        return whole[:5].expand(3, 5, 9, 9), whole

    x = torch.rand(9, 9, 9).mT
    with weft.options(measure="never"):
        found = weft.compile(f)(x)
    for mine, eager in zip(found, f(x), strict=True):
        assert mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager)
