"""Masks over indices: however they are spelled, the program compares indices, and attention is one kernel's worth of operations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from weft.pipeline import normalize


def attention(scores_mask):
    def function(q, k, v):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores_mask(scores), -1) @ v

    return function


def ones_tril(s):
    return s.masked_fill(torch.ones(s.shape[-2:]).tril() == 0, -torch.inf)


def bool_tril(s):
    return s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)


def ones_triu_bool(s):
    return s.masked_fill(torch.triu(torch.ones(s.shape[-2:]), diagonal=1).bool(), float("-inf"))


def additive_triu(s):
    return s + torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype).triu(1)


def additive_where(s):
    i = torch.arange(s.shape[-1])
    return s + torch.where(i[None, :] <= i[:, None], 0.0, -torch.inf).to(s.dtype)


def comparison(s):
    i = torch.arange(s.shape[-1])
    return s.masked_fill(i[None, :] > i[:, None], -torch.inf)


def negated(s):
    i = torch.arange(s.shape[-1])
    return torch.where(torch.logical_not(i[:, None] >= i), -torch.inf, s)


def in_place(s):
    mask = torch.zeros(s.shape[-2:], dtype=s.dtype)
    mask.masked_fill_(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s + mask


def in_place_tril(s):
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).tril_().logical_not(), -torch.inf)


SPELLINGS = (
    ones_tril,
    bool_tril,
    ones_triu_bool,
    additive_triu,
    additive_where,
    comparison,
    negated,
    in_place,
    in_place_tril,
)


def comparisons(program):
    """The lines of the program, normalised, that compare, and how many values select."""
    lines = str(normalize(program)).splitlines()
    return [line for line in lines if any(f" {op} " in line for op in ("<", "<=", ">", ">=", "==", "!="))], sum(
        "where(" in line for line in lines
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_one_comparison_and_one_selection(weft, spelling, dtype):
    captured = weft.compare(attention(spelling), *(torch.randn(2, 7, 4).to(dtype) for _ in range(3)))
    assert captured.fallbacks == ()
    compared, selections = comparisons(captured.program)
    assert len(compared) == 1
    assert selections == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(5, 9), (9, 5), (1, 4), (6, 6)])
def test_attention_of_pytorch_is_causal_from_the_top_left(weft, sizes, dynamic):
    queries, keys = sizes
    inputs = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 5)
    captured = weft.compare(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *inputs, dynamic=dynamic
    )
    assert captured.fallbacks == ()
    compared, selections = comparisons(captured.program)
    assert len(compared) == selections == 1


def test_attention_with_a_scale_and_masks(weft):
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 6)
    bias, mask = torch.randn(3, 5, 7), torch.rand(2, 1, 5, 7) > 0.3
    mask[0, 0, 1] = False
    bias[1, 2] = -torch.inf
    for given in (None, bias, mask, bias[0], mask[:, :, :1]):
        captured = weft.compare(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3), q, k, v, given
        )
        assert captured.fallbacks == ()


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_grouped_heads(weft, kv_heads, masked):
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, kv_heads, 7, 4), torch.randn(2, kv_heads, 7, 4)
    mask = torch.rand(2, 6, 5, 7) > 0.1 if masked else None
    captured = weft.compare(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True), q, k, v, mask
    )
    # The heads are split and merged by views.
    assert {f.operation for f in captured.fallbacks} <= {
        "aten.view",
        "aten._unsafe_view",
        "aten.reshape",
        "aten.flatten",
    }


def test_dropout_stays_whole(weft):
    inputs = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    weft.run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), *inputs)
    (fallback,) = weft.only.fallbacks
    assert fallback.operation == "aten.scaled_dot_product_attention"
    assert "random" in fallback.reason


@pytest.mark.filterwarnings("ignore::weft.errors.LeftToPyTorchWarning")
def test_a_mask_of_more_dimensions_than_the_query_is_pytorchs_error():
    """Broadcast, it would give the result a dimension more."""
    q, mask = torch.randn(1, 2, 5, 4), torch.ones(1, 1, 1, 5, 5, dtype=torch.bool)
    attention = torch.compile(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), backend="weft")
    with pytest.raises((RuntimeError, ValueError), match="broadcast shape"):
        attention(q, mask)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", ["tril", "triu"])
@pytest.mark.parametrize("diagonal", [-3, -1, 0, 1, 2, 9])
@pytest.mark.parametrize("shape", [(4, 6), (2, 5, 3), (1, 6), (6, 1), (2, 1, 1)])
def test_triangles(weft, name, diagonal, shape):
    captured = weft.compare(lambda x: getattr(torch, name)(x, diagonal) * 2, torch.randn(shape))
    assert captured.fallbacks == ()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
def test_triangles_of_other_types(weft, dtype):
    x = torch.arange(24).reshape(4, 6).to(dtype)
    assert weft.compare(lambda x: (x.tril(1), x.triu()), x).fallbacks == ()


def test_a_mask_beside_a_cache_is_made_of_the_cache_length(weft):
    def function(x, past):
        steps, before = x.shape[0], past.shape[0]
        both = torch.cat((past, x))
        later = torch.arange(before + steps)[None, :] > torch.arange(before, before + steps)[:, None]
        return torch.softmax((x @ both.T).masked_fill(later, -torch.inf), -1) @ both

    for dynamic in (False, True):
        captured = weft.compare(function, torch.randn(3, 8), torch.randn(5, 8), dynamic=dynamic)
        assert not captured.fallbacks
