"""Pairs of functions with known answers: what `weft.equivalent` must, may and must not say of them.

A pair is two Python expressions over named tensors (`TENSORS`), so that its text is its name. What is equal, is so as functions of
the declared element types over the real numbers, wherever it is called: sums and products may be in another order, but special
values, casts, comparisons and other sizes count. `tests/api/test_pairs.py` shows each answer in eager PyTorch before it asks weft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EQUAL, UNEQUAL, EITHER = "equal", "unequal", "either"
"""EITHER: equal, but by a law that weft need not know: True or None, never False."""

_F32, _I64, _BOOL = torch.float32, torch.int64, torch.bool
TENSORS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    **dict.fromkeys("abc", ((5, 7), _F32)),
    "d": ((5, 7), torch.float64),
    **dict.fromkeys(("e", "e2"), ((5, 7), torch.bfloat16)),
    **dict.fromkeys(("h", "h2"), ((5, 7), torch.float16)),
    **dict.fromkeys("ij", ((5, 7), _I64)),
    **dict.fromkeys("lmo", ((5, 7), _BOOL)),
    **dict.fromkeys(("n", "n2"), ((5, 7), torch.int32)),
    **dict.fromkeys(("w", "w2"), ((5, 7), torch.int8)),
    **dict.fromkeys(("u", "u2"), ((5, 7), torch.uint8)),
    "r": ((12, 7), _F32),
    **dict.fromkeys("stx", ((6, 6), _F32)),
    **dict.fromkeys(("p", "p2"), ((6,), _F32)),
    **dict.fromkeys("qkv", ((2, 4, 9, 16), _F32)),
    **dict.fromkeys(("k2", "v2"), ((2, 2, 9, 16), _F32)),
    **dict.fromkeys(("one", "one2"), ((1, 7), _F32)),
    **dict.fromkeys(("none", "none2"), ((0, 7), _F32)),
    **dict.fromkeys((f"m{number}" for number in range(1, 7)), ((10, 14), _BOOL)),
    "y": ((3, 5, 7), _F32),
    "g": ((7,), _F32),
    "g2": ((7,), _F32),
}


@dataclass(frozen=True)
class Pair:
    """Two functions and what is known of them.

    Attributes:
        first, second: expressions over tensors of `TENSORS` and the functions of this module.
        answer: EQUAL, UNEQUAL or EITHER.
        at: for unequal pairs that the examples do not separate: tensors that do, as an expression for each name.
    """

    first: str
    second: str
    answer: str
    at: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.first} | {self.second}"

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that the functions are called with."""
        return tuple(name for name in TENSORS if re.search(rf"(?<![\w.]){name}(?!\w)(?!=[^=])", str(self)))

    @property
    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both, as functions of these tensors."""
        made = (eval(f"lambda {', '.join(self.names)}: {text}", globals()) for text in (self.first, self.second))
        first, second = made
        return first, second

    def examples(self, seed: int = 0, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """Random tensors to call them with; floats as `dtype`, where that is given."""
        torch.manual_seed(seed)
        return tuple(_example(*TENSORS[name], dtype) for name in self.names)

    def separating(self) -> tuple[Tensor, ...]:
        """Tensors on which unequal functions differ."""
        given = dict(zip(self.names, self.examples(), strict=True))
        for name, text in self.at:
            made = eval(text, {**globals(), "given": given[name]})
            given[name] = torch.as_tensor(made, dtype=TENSORS[name][1]).expand(
                torch.as_tensor(made).shape or TENSORS[name][0]
            )
        return tuple(given[name].clone() for name in self.names)


def _example(shape: tuple[int, ...], kind: torch.dtype, dtype: torch.dtype | None) -> Tensor:
    if kind.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(dtype or kind)
    if kind is torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randint(0 if kind is torch.uint8 else -9, 10, shape, dtype=kind)


def compiled(text: str) -> CodeType:
    """The expression `text`, to see that it is one."""
    return compile(text, text, "eval")


def of(answer: str, *pairs: tuple[str, ...]) -> list[Pair]:
    """Pairs of one answer: (first, second), and for unequal ones names, each with the tensor that it must be to see it."""
    return [Pair(first, second, answer, tuple(zip(at[::2], at[1::2], strict=True))) for first, second, *at in pairs]


# What the expressions call, where one expression is not enough.

NAN, INF = math.nan, math.inf


def only(value: float) -> Tensor:
    """A tensor of one number, for every element."""
    return torch.tensor(value, dtype=torch.float64)


def naive_softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def stable_softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention, its division last."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ v) / powers.sum(-1, keepdim=True)


def lower(n: int) -> Tensor:
    """A causal mask, by comparing indices."""
    return torch.arange(n)[:, None] >= torch.arange(n)


def window(n: int, width: int) -> Tensor:
    """A causal mask of so many columns."""
    behind = torch.arange(n)[:, None] - torch.arange(n)
    return (behind >= 0) & (behind < width)


def norm_by_hand(x: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def rms_weight_first(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight) / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def heads_repeated(k: Tensor, times: int) -> Tensor:
    """Each head so many times, by expanding."""
    b, h, n, d = k.shape
    return k[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)


def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)
