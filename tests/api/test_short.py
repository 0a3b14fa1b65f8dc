"""Sizes 1 and 0 after others: traced anew by PyTorch, run by the kernels that are there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.api import known as general


@pytest.fixture(autouse=True)
def _nothing_known():
    general._known.clear()


def walked(fn, shapes, **options) -> list[int]:
    """Binaries emitted at each call of a walk over shapes; each result is held against eager's."""
    torch.compiler.reset()
    fast, emitted = weft.compile(fn, **options), list[int]()
    with torch.no_grad():
        for shape in shapes:
            x, before = torch.randn(shape), weft.stats().binaries_emitted
            torch.testing.assert_close(fast(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)
            emitted.append(weft.stats().binaries_emitted - before)
    return emitted


def attention(x):
    return torch.softmax(x @ x.mT / 8, -1) @ x


def causal(x):
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
    return torch.softmax((x @ x.mT).masked_fill(mask, float("-inf")), -1) @ x


def heads(x):
    parts = x.view(x.shape[0], 2, 16).transpose(0, 1)
    return F.gelu(parts).transpose(0, 1).contiguous().reshape(x.shape[0], 32) + torch.arange(x.shape[0])[:, None]


@pytest.mark.parametrize("fn", [attention, causal, heads], ids=lambda fn: fn.__name__)
def test_a_walk_over_lengths_compiles_nothing_after_the_second(fn):
    walk = [64, 128, 65, 17, 333, 1, 90, 0, 1]
    assert sum(walked(fn, [(length, 32) for length in walk])[2:]) == 0


def own_attention(x):
    """Computes attention as models do: there is no mask for a single place."""
    q = x.view(x.shape[0], 2, 16).transpose(0, 1)
    single = x.shape[0] == 1
    made = (
        F.scaled_dot_product_attention(q, q, q) if single else F.scaled_dot_product_attention(q, q, q, is_causal=True)
    )
    return made.transpose(0, 1).reshape(x.shape)


def below_the_diagonal(x):
    if x.shape[0] > 1:
        keep = ~torch.full((x.shape[0], x.shape[0]), True).triu(1)
        return torch.where(keep, x @ x.mT, 0.0) @ x
    return (x @ x.mT) @ x


@pytest.mark.parametrize("fn", [own_attention, below_the_diagonal], ids=lambda fn: fn.__name__)
def test_what_a_mask_leaves_as_it_is_at_length_1_is_no_other_graph(fn):
    walk = [64, 128, 65, 1, 90, 1]
    assert sum(walked(fn, [(length, 32) for length in walk])[2:]) == 0


def test_lengths_that_are_the_same_in_several_tensors():
    def masked(x, mask):
        return torch.softmax((x @ x.mT) + mask[:, None], -1) @ x

    torch.compiler.reset()
    fast, emitted = weft.compile(masked), list[int]()
    with torch.no_grad():
        for length in (64, 128, 65, 1, 90):
            x, mask, before = torch.randn(length, 24), torch.randn(length), weft.stats().binaries_emitted
            torch.testing.assert_close(fast(x, mask), masked(x, mask), rtol=1e-4, atol=1e-5)
            emitted.append(weft.stats().binaries_emitted - before)
    assert sum(emitted[2:]) == 0


def test_lengths_and_batches_together():
    def normalised(x):
        return F.layer_norm(x, (8,)) * 2 + x.mean(1, keepdim=True)

    shapes = [(4, 9, 8), (5, 7, 8), (3, 12, 8), (1, 6, 8), (6, 1, 8), (1, 1, 8), (0, 5, 8), (1, 9, 8), (7, 30, 8)]
    assert sum(walked(normalised, shapes)[2:]) == 0


def test_a_walk_that_begins_with_1_has_a_class_for_it_and_one_for_all_others():
    emitted = walked(attention, [(length, 24) for length in (1, 40, 50, 1, 70, 0, 1)])
    assert sum(emitted[2:]) == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2 + 1 if x.shape[0] == 1 else x * 3 + 1,
        lambda x: x.squeeze() * 2 + 1,
        lambda x: x[: x.shape[0] // 2].sum(0) + x[2:].sum(0),
        lambda x: x.sum(0) / x.shape[0] + x.mean(0),
        lambda x: (
            F.interpolate(x[None], size=2 * x.shape[0], mode="nearest") if x.shape[1] == 1 else x.sort(0).values + 1
        ),
        lambda x: (x.amax(0) if x.shape[0] else x.sum(0)) * 2,
    ],
)
def test_what_is_another_function_at_1_is_computed_as_it_is_there(fn):
    walked(fn, [(5, 6), (9, 6), (1, 6), (0, 6), (7, 6)])


def test_what_runs_is_tried_against_pytorch_there_too(tmp_path):
    walked(attention, [(n, 16) for n in (5, 9, 1, 8, 1)], measure="auto", cache_dir=tmp_path)


def test_writes_reach_the_users_tensors():
    def count(x, seen):
        seen.add_(1)
        x.mul_(2)
        return torch.exp(x) + seen

    fast, own, other = weft.compile(count), torch.zeros(1), torch.zeros(1)
    with torch.no_grad():
        for length in (5, 9, 1, 0, 7):
            x = torch.randn(length, 3)
            y = x.clone()
            torch.testing.assert_close((fast(x, own), x, own), (count(y, other), y, other))


def test_other_options_have_kernels_of_their_own():
    walked(attention, [(5, 40), (9, 40)])
    assert sum(walked(attention, [(1, 40)], verify_trials=3)) > 0


def test_tensors_that_a_function_holds_must_be_the_same():
    def scaled(by):
        held = torch.tensor([by, 1.0])

        def fn(x):
            return torch.exp(x) * torch.tensor([by, 1.0]) + held

        return fn

    walked(scaled(2.0), [(5, 2), (9, 2)])
    walked(scaled(3.0), [(1, 2)])
