"""Masks whose conditions leave several spans, windows far away, blocks or nothing: the results are eager's, and work is skipped."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import weft
from testkit.masks.limited import ends
from weft.api.program import Program
from weft.block.ranges import Spans
from weft.block.walk import maps

Condition = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

CONDITIONS: dict[str, tuple[Condition, list[tuple[tuple[str, ...], tuple[str, ...]]]]] = {
    "prefix": (lambda i, j: (j < 9) | (j <= i), [((), ("i",)), ((), ("8",))]),
    "window": (lambda i, j: (i - j).abs() < 7, [(("i-6",), ("i+6",))]),
    "far": (lambda i, j: (i - j >= 40) & (i - j < 52), [(("i-51",), ("i-40",))]),
    "window and global": (
        lambda i, j: ((i - j < 9) | (j < 3)) & (j <= i), [((), ("2", "i")), (("i-8",), ("i",))]
    ),
    "dilated": (lambda i, j: ((i - j) % 3 == 0) & (i - j < 20) & (j <= i), [(("i-19",), ("i",))]),
    "blocks": (lambda i, j: i // 16 == j // 16, [(("16*(i)//16",), ("16*(i)//16+15",))]),
    "blocks in a range": (
        lambda i, j: (i // 8 - j // 8 >= 0) & (i // 8 - j // 8 <= 2), [(("8*(i)//8-16",), ("8*(i)//8+7",))]
    ),
    "outside": (lambda i, j: ~((i - j).abs() < 200), [((), ("i-200",)), (("i+200",), ())]),
}  # fmt: skip
LENGTHS = ((513, 509), (33, 140), (140, 33), (2, 2))
EVERY = pytest.mark.parametrize("name", CONDITIONS)


def kept(name: str, x: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    return CONDITIONS[name][0](i, j)


def attention(name: str) -> Callable[..., torch.Tensor]:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~kept(name, scores), -math.inf), -1) @ v

    return f


def mean(name: str) -> Callable[..., torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        mask = kept(name, x)
        return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    return f


def logsumexp(name: str) -> Callable[..., torch.Tensor]:
    return lambda x: torch.logsumexp(x.masked_fill(~kept(name, x), -math.inf), -1)


def product(name: str) -> Callable[..., torch.Tensor]:
    """A matrix that is 0 outside of the spans, times a dense one."""
    return lambda x, y: torch.where(kept(name, x), x, 0.0) @ y


def spans(program: Program) -> list[Spans]:
    found = [maps(kernel.block_program.graph) for kernel in program.kernels]
    return [m.range for each in found for m in each if isinstance(m.range, Spans)]


def right(program: Program, f: Callable[..., torch.Tensor], *given: torch.Tensor) -> weft.Judgement:
    return weft.judge(program(*given), f(*given), f(*(t.double() for t in given)))


def tensors(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, n, 16).to(dtype) for n in (rows, columns, columns))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CONDITIONS), *(("outside", d) for d in (torch.bfloat16, torch.float16))],
    ids=str,
)
def test_attention_goes_over_the_spans(name: str, dtype: torch.dtype) -> None:
    """Rows whose mask is empty are NaN, as in eager."""
    f = attention(name)
    program = weft.optimize(f, tensors(*LENGTHS[0], dtype))
    assert program.fallbacks == ()
    for rows, columns in LENGTHS:
        found = right(program, f, *tensors(rows, columns, dtype))
        assert found.ok, (rows, columns, found)
    assert spans(program)
    assert {tuple(sorted(ends(each))) for each in spans(program)} == {tuple(sorted(CONDITIONS[name][1]))}


@pytest.mark.one_in(5)
@EVERY
@pytest.mark.parametrize("make", [mean, logsumexp])
def test_masked_reductions_go_over_the_spans(make: Callable[[str], Callable[..., torch.Tensor]], name: str) -> None:
    f = make(name)
    program = weft.optimize(f, (torch.randn(513, 509),))
    for rows, columns in LENGTHS:
        x = torch.randn(rows, columns)
        for given in (x, x * 1e4, x + 1e4):
            found = right(program, f, given)
            assert found.ok, (rows, columns, found)
    assert spans(program)


@pytest.mark.one_in(2)
@EVERY
def test_matrices_of_blocks_are_multiplied_by_their_blocks(name: str) -> None:
    f = product(name)
    program = weft.optimize(f, (torch.randn(70, 70), torch.randn(70, 20)))
    for rows, columns in LENGTHS:
        assert right(program, f, torch.randn(rows, columns), torch.randn(columns, 20)).ok, (rows, columns)


def test_rows_of_any_length() -> None:
    f = attention("window and global")
    program = weft.optimize(f, tensors(70, 70))
    for rows, columns in ((4099, 4099), (1, 1), (1, 97), (97, 1), (0, 7)):
        assert right(program, f, *tensors(rows, columns)).ok, (rows, columns)


def test_a_window_of_any_width_and_place() -> None:
    """Bounds that are sizes: the window lies where the sequences end alike."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT
        i, j = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2], torch.arange(k.shape[-2])
        return torch.softmax(torch.where((j <= i) & ((i - j < 9) | (j < 2)), scores, -math.inf), -1) @ v

    program = weft.optimize(f, tensors(30, 70))
    for rows, columns in ((30, 70), (1, 140), (65, 65), (9, 200), (20, 7)):
        found = right(program, f, *tensors(rows, columns))
        assert found.ok, (rows, columns, found)
    assert spans(program)
