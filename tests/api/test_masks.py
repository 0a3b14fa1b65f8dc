"""Causal attention and windows, however the mask is spelled: one kernel that skips what the mask empties."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import weft
from testkit.masks.limited import between, ends
from weft.api.program import Program
from weft.block.ranges import Part, Spans
from weft.block.walk import maps

NOTHING = float("-inf")


def scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def indices(s):
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])[None]


def by_where(q, k, v):
    s = scores(q, k)
    i, j = indices(s)
    return torch.softmax(torch.where(j <= i, s, NOTHING), -1) @ v


def by_tril(q, k, v):
    s = scores(q, k)
    kept = torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool).tril()
    return torch.softmax(s.masked_fill(~kept, NOTHING), -1) @ v


def by_tril_of_numbers(q, k, v):
    s = scores(q, k)
    return torch.softmax(s.masked_fill(torch.tril(torch.ones(s.shape[-2], s.shape[-1])) == 0, NOTHING), -1) @ v


def by_adding_triu(q, k, v):
    s = scores(q, k)
    mask = torch.triu(torch.full((s.shape[-2], s.shape[-1]), NOTHING, dtype=s.dtype), diagonal=1)
    return torch.softmax(s + mask, -1) @ v


def by_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def aligned_right(q, k, v):
    s = scores(q, k)
    kept = torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool).tril(diagonal=s.shape[-1] - s.shape[-2])
    return torch.softmax(s.masked_fill(kept.logical_not(), NOTHING), -1) @ v


def of_one_tensor(q, k, v):
    """Queries, keys and values are the same rows: both indices run over one space."""
    s = scores(k, k)
    i, j = indices(s)
    return torch.softmax(torch.where(i >= j, s, NOTHING), -1) @ k


def window(q, k, v):
    s = scores(q, k)
    i, j = indices(s)
    return torch.softmax(s.masked_fill(~((j <= i) & (i - j < 5)), NOTHING), -1) @ v


def weighted(q, k, v):
    """No softmax: a product below the diagonal."""
    return scores(q, k).tril() @ v


CAUSAL = (by_where, by_tril, by_tril_of_numbers, by_adding_triu, by_sdpa, aligned_right, of_one_tensor, weighted)
SHAPES = ((70, 70), (33, 140), (140, 33))


def tensors(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 3, n, 16).to(dtype) for n in (rows, columns, columns))


def narrowed(program: Program) -> list[list[Spans]]:
    """The ranges of each kernel whose idle blocks are left out."""
    return [
        [m.range for m in maps(kernel.block_program.graph) if isinstance(m.range, Spans)] for kernel in program.kernels
    ]


def right(program: Program, f: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...]) -> weft.Judgement:
    return weft.judge(program(*given), f(*given), f(*(t.double() for t in given)))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("f", "dtype"),
    [*((f, torch.float32) for f in CAUSAL), *((f, torch.bfloat16) for f in (by_where, by_adding_triu))],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_a_causal_mask_is_a_loop_up_to_the_diagonal(f, dtype):
    program = weft.optimize(f, tensors(*SHAPES[0], dtype))
    for rows, columns in SHAPES:
        found = right(program, f, tensors(rows, columns, dtype))
        assert found.ok, found
    assert program.fallbacks == ()
    graphs = narrowed(program)
    assert len(graphs) == len(program.plans)
    for found in graphs:
        assert [b.part for b in found] == [Part.full, Part.edge]
        assert all(span.ends[0] == () for b in found for span in b.spans)


def test_a_window_is_a_loop_between_two_diagonals():
    program = weft.optimize(window, tensors(300, 300))
    for rows, columns in ((300, 300), *SHAPES):
        assert right(program, window, tensors(rows, columns)).ok
    assert program.fallbacks == ()
    found = narrowed(program)[0]
    assert [b.part for b in found] == [Part.full, Part.edge]
    assert {tuple(map(tuple, ends(b))) for b in found} == {(between(-4, 0),)}


def test_keys_that_the_mask_excludes_may_hold_anything():
    q, k, v = tensors(40, 40)
    program = weft.optimize(by_where, (q, k, v))
    wanted = program(q, k, v)
    k[:, :, 20:] = math.nan
    found = program(q, k, v)
    assert torch.equal(found[:, :, :20], wanted[:, :, :20])
    assert found[:, :, 20:].isnan().all()


def test_rows_with_nothing_in_them_are_as_in_eager():
    """More queries than keys, aligned on the right: the first rows see no key."""
    given = tensors(9, 4)
    program = weft.optimize(aligned_right, given)
    found, wanted = program(*given), aligned_right(*given)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert wanted[:, :, :5].isnan().all()


def test_logits_of_ten_thousand_and_a_first_block_with_one_key():
    given = tensors(70, 70)
    given = (given[0] * 1e4, *given[1:])
    program = weft.optimize(by_where, given)
    assert right(program, by_where, given).ok


def with_stand_in(nothing: float, keeps, *, added: bool = False, first=lambda s: s) -> Callable[..., torch.Tensor]:
    """Attention to the keys that `keeps` keeps, the others masked by a number; `first` changes the scores before."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        s = first(scores(q, k), *more)
        mask = keeps(*indices(s))
        masked = s + (1.0 - mask.float()) * nothing if added else s.masked_fill(~mask, nothing)
        return torch.softmax(masked, -1) @ v

    return f


def excludes(program: Program) -> bool:
    """Tells whether a number that stands for -inf became that."""
    return any(step.rule == "stand_ins_as_nothing" for step in program.trace)


KEEPING = {
    "before": lambda i, j: j <= i,
    "a window": lambda i, j: (j <= i) & (i - j < 9),
    "a window and the first": lambda i, j: ((i - j).abs() < 5) | (j < 2),
    "the first": lambda i, j: j < 3,
    "a block": lambda i, j: i // 8 == j // 8,
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("keeps", KEEPING)
@pytest.mark.parametrize("nothing", [-1e9, -65504.0, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("added", [False, True])
def test_numbers_that_stand_for_nothing_are_skipped_where_a_row_has_another(nothing, added, keeps):
    """There are as many queries as keys, of one tensor."""
    attend = with_stand_in(nothing, KEEPING[keeps], added=added)

    def f(x: torch.Tensor) -> torch.Tensor:
        return attend(x, x, x)

    program = weft.optimize(f, (torch.randn(2, 300, 16),))
    assert not program.fallbacks
    assert excludes(program)
    assert narrowed(program)[-1] or keeps == "the first"  # that is a matter of price
    for n in (300, 33):
        for scale in (1.0, 5.0):
            assert right(program, f, (torch.randn(2, n, 16) * scale,)).ok


REFUSED = {
    "rows may be empty": (-1e9, lambda i, j: j < i, lambda s: s),
    "rows may be empty beyond the last key": (-1e9, lambda i, j: (i - j >= 2) & (i - j < 9), lambda s: s),
    "scores may be as low": (-1e4, KEEPING["before"], lambda s: s),
    "another mask may leave nothing": (-1e9, KEEPING["before"], lambda s, bias: s + bias),
    "another choice may leave nothing": (-1e9, KEEPING["before"], lambda s, bias: torch.where(bias < 0, -1e9, s)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_numbers_that_may_not_vanish_are_kept(why):
    """Padding of a whole row leaves eager the mean of all values, so it does here."""
    nothing, keeps, first = REFUSED[why]
    f = with_stand_in(nothing, keeps, first=first)
    given = [t[0] for t in tensors(70, 70)]
    if "another" in why:
        given.append(torch.zeros(70))
        given[-1][:9] = -1e9
    program = weft.optimize(f, tuple(given))
    assert not program.fallbacks
    assert not excludes(program)
    assert narrowed(program) == [[]]
    assert right(program, f, tuple(given)).ok


def test_numbers_that_something_else_reads_are_kept():
    def f(q, k, v):
        s = scores(q, k)
        i, j = indices(s)
        masked = s.masked_fill(j > i, -1e9)
        return torch.softmax(masked, -1) @ v, masked.min(-1).values

    given = tensors(40, 40)
    program = weft.optimize(f, given)
    assert not excludes(program)
    for found, wanted in zip(program(*given), f(*given), strict=True):
        torch.testing.assert_close(found, wanted)


KEPT = {
    "the first": lambda k: k[:, :9],
    "from the third": lambda k: k[:, 3:12],
    "the last": lambda k: k[:, -9:],
    "every other": lambda k: k[:, ::2],
    "backwards": lambda k: k[:, :9].flip(1),
    "turned": lambda k: k[:, :9].roll(2, 1),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", KEPT)
def test_a_causal_mask_over_a_slice_of_keys_of_fixed_length(kept):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 9, 8), torch.randn(2, 17, 8), torch.randn(2, 17, 8)

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, KEPT[kept](k), KEPT[kept](v), is_causal=True)

    program = weft.optimize(f, (q, k, v))
    assert not program.fallbacks
    torch.testing.assert_close(program(q, k, v), f(q, k, v))


def test_sizes_that_the_function_states_are_not_checked_at_their_full_length():
    a, b = torch.randn(2048, 2048), torch.randn(8192)

    def f(a, b):
        return torch.eye(2048) * 2 + a, torch.ones(2048, 2048).tril(), torch.where(torch.arange(8192) < 5000, b, 0.0)

    program = weft.optimize(f, (a, b))
    assert not program.fallbacks
    assert all(k.verdict.equal for k in program.kernels)
    for found, wanted in zip(program(a, b), f(a, b), strict=True):
        torch.testing.assert_close(found, wanted)
