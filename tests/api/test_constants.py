"""Graphs that hold tensors, or tensors without elements, have kernels; they are right at each call, and saved whole."""

from __future__ import annotations

import pytest
import torch

import weft


def cached(x, keys):
    """Writes a decoder's cache and mask as models do: what is held is asked for its type, and joined when it is empty."""
    cache = torch.tensor([], dtype=x.dtype, device=x.device)
    cache = torch.cat([cache, keys], -2)
    scores = x @ cache.transpose(-1, -2) * torch.tensor(0.25, device=x.device)
    lowest = torch.tensor(torch.finfo(x.dtype).min, device=x.device)
    mask = torch.arange(keys.shape[-2]) > torch.arange(x.shape[-2])[:, None]
    weights = torch.tensor([1.0, 0.5, 0.25], dtype=x.dtype)
    scores = torch.where(mask, lowest, scores)
    return torch.softmax(scores, -1) @ cache * weights[: x.shape[0], None, None], cache


def inputs(dtype=torch.float32):
    return torch.randn(3, 5, 8, dtype=dtype), torch.randn(3, 7, 8, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_with_constants_has_kernels(dtype):
    given = inputs(dtype)
    program = weft.optimize(cached, given)
    assert program.kernels
    assert not program.fallbacks
    torch.testing.assert_close(program(*given), cached(*given), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "entry", [weft.compile, lambda f, **options: torch.compile(f, backend="weft", options=options)]
)
def test_constants_of_compiled_functions(entry):
    torch.compiler.reset()
    before = weft.stats().fallbacks
    compiled = entry(cached, measure="never")
    with torch.no_grad():
        for _ in range(2):
            given = inputs()
            torch.testing.assert_close(compiled(*given), cached(*given))
    assert weft.stats().fallbacks == before


def test_constants_are_saved(tmp_path):
    given = inputs()
    path = weft.optimize(cached, given).save(tmp_path / "cached")
    loaded = weft.load(path)
    for _ in range(2):
        given = inputs()
        torch.testing.assert_close(loaded(*given), cached(*given))


def around_nothing(x):
    rotated = torch.cat([torch.exp(x[..., :6]), torch.tanh(x[..., 6:])], -1)
    nothing = torch.exp(x[..., 6:])
    return torch.softmax(rotated * 2, -1), nothing, nothing.sum(-1) + 1


def test_a_part_without_elements_costs_only_itself(tmp_path):
    x = torch.randn(4, 6)
    program = weft.optimize(around_nothing, x)
    assert len(program.kernels) == 2
    assert {f.operation for f in program.fallbacks} == {"aten.exp", "aten.sum"}
    torch.testing.assert_close(program(x), around_nothing(x))
    torch.testing.assert_close(weft.load(program.save(tmp_path / "nothing"))(x), around_nothing(x))


def test_sizes_that_come_to_nothing_later():
    def function(x, w):
        return torch.exp(x[2:]) @ w, torch.exp(x[2:]).sum(0), torch.softmax(x[2:], -1)

    torch.compiler.reset()
    compiled = weft.compile(function, measure="never")
    w = torch.randn(6, 3)
    with torch.no_grad():
        for rows in (9, 7, 4, 3, 2, 1, 0):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x, w), function(x, w), msg=f"{rows} rows")


def test_what_eager_refuses_of_nothing_is_refused():
    with pytest.raises(IndexError, match="non-zero size"):
        weft.optimize(lambda x: (x[4:].amax(0), torch.exp(x)), torch.randn(4, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (e := torch.eye(a.shape[-1])) @ e,
        lambda a: a @ torch.eye(a.shape[-1], dtype=torch.bfloat16).float(),
        lambda a: a.bfloat16() @ torch.ones(a.shape[-1], 5, dtype=torch.bfloat16).tril(),
        lambda a: torch.eye(6).double() @ torch.eye(6).double() + a[:, :6],
    ],
)
def test_products_of_what_indices_decide(function):
    a = torch.randint(-3, 4, (6, 9)).float()
    with weft.options(measure="never"):
        program = weft.optimize(function, (a,))
    assert program.fallbacks == ()
    assert torch.equal(program(a), function(a))
