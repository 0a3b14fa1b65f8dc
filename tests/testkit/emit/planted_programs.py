"""Functions whose printed kernels faults are planted in, with inputs that are hard to get right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Planted:
    """A function, the shapes that it is traced for, and others that it is called with.

    Attributes:
        shapes: of its arguments; the first are those of the example.
        dtypes: of its arguments, float32 where there is no other.
        view: what is passed in place of each made argument: a view of it, say.
    """

    fn: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    dtypes: tuple[torch.dtype, ...] = ()
    view: Callable[[torch.Tensor], torch.Tensor] = lambda t: t

    def example(self) -> Tensors:
        """Arguments to trace with."""
        return self._made(self.shapes[0], lambda t: t)

    def calls(self, *, few: bool = False) -> Iterator[Tensors]:
        """Arguments that are ordinary, large, in rows of different scale, nearly equal, tiny; with gaps in memory.

        Of all shapes; where `few`, for a slow interpreter, of the first alone, and not all of these.
        """
        for number, shapes in enumerate(self.shapes[:1] if few else self.shapes):
            torch.manual_seed(number)
            for change in _CHANGES[::2] if few else _CHANGES:
                yield self._made(shapes, change)
            yield tuple(map(_with_gaps, self._made(shapes, _rows)))

    def _made(self, shapes: tuple[tuple[int, ...], ...], change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        dtypes = self.dtypes or (torch.float32,) * len(shapes)
        return tuple(self.view(_tensor(s, d, change)) for s, d in zip(shapes, dtypes, strict=True))


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) < 0.6
    if not dtype.is_floating_point:
        return torch.randint(0, 5, shape, dtype=dtype)
    return change(torch.randn(shape)).to(dtype)


def _with_gaps(t: torch.Tensor) -> torch.Tensor:
    """Puts others between the elements in memory."""
    if not t.ndim:
        return t
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), 77).to(t.dtype)
    wide[..., ::2] = t
    return wide[..., ::2]


PERIOD = 5
"""Rows that are so far apart have one scale."""


def _rows(t: torch.Tensor) -> torch.Tensor:
    """Each row 30 times the one before, and then from the start."""
    return (
        t * 30.0 ** (torch.arange(t.shape[0]) % PERIOD - PERIOD // 2).reshape(-1, *[1] * (t.ndim - 1))
        if t.ndim > 1
        else t
    )


_CHANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t,
    lambda t: 40 * t,
    _rows,
    lambda t: 300 + t,
    lambda t: -300 - t.abs(),
    lambda t: 1e-6 * t,
)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q, k, v, mask):
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def two_of_a_product(x, w):
    y = x @ w
    return torch.relu(y), torch.sigmoid(y)


def two_of_a_softmax(x):
    p = torch.softmax(x, -1)
    return p, p * x


def weighted_variance(x, w):
    mean = (x * w).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return (w * (x - mean) ** 2).sum(-1) / w.sum(-1)


_ROWS = (((70, 130),), ((7, 4100),), ((1, 1),))
_PAIR = (((70, 130), (70, 130)), ((7, 4100), (7, 4100)))
_QKV = (((70, 16),) * 3, ((1100, 16),) * 3)
_HEADS = (((2, 3, 70, 16),) * 3, ((1, 2, 1100, 16),) * 3)
_WITH_WEIGHTS = tuple((*s, s[0][1:], s[0][1:]) for s in _ROWS[:2])
_WITH_MASK = tuple((*s, (s[0][0], s[0][0])) for s in _QKV)
_PRODUCT = (((70, 130), (130, 40), (40,)), ((65, 300), (300, 65), (65,)))

PROGRAMS: dict[str, Planted] = {
    "softmax": Planted(lambda x: torch.softmax(x, -1), (_ROWS[1], _ROWS[0], _ROWS[2])),
    "log-softmax": Planted(lambda x: torch.log_softmax(x, -1), _ROWS),
    "logsumexp": Planted(lambda x: torch.logsumexp(x, -1), _ROWS),
    "attention": Planted(F.scaled_dot_product_attention, _HEADS),
    "causal attention": Planted(causal, tuple(tuple((1, *s) for s in shapes) for shapes in _QKV)),
    "masked attention": Planted(masked, _WITH_MASK, (*(torch.float32,) * 3, torch.bool)),
    "LayerNorm": Planted(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), _WITH_WEIGHTS),
    "RMSNorm and product": Planted(lambda x, w: F.rms_norm(x, (x.shape[-1],)) @ w, tuple(s[:2] for s in _PRODUCT)),
    "product, bias, gelu": Planted(lambda x, w, b: F.gelu(x @ w + b), _PRODUCT),
    "gated product": Planted(lambda x, w, v: F.silu(x @ w) * (x @ v), tuple((*s[:2], s[1]) for s in _PRODUCT)),
    "argmax": Planted(lambda x: x.argmax(-1), _ROWS),
    "topk": Planted(lambda x: x.topk(3), _ROWS[:2]),
    "sum of all": Planted(lambda x: x.sum(), (((300000,),), ((140001,),), ((5,),))),
    "variance": Planted(lambda x: x.var(-1, correction=0), _ROWS),
    "weighted variance": Planted(lambda x, w: weighted_variance(x, w.abs() + 0.1), _PAIR),
    "moments": Planted(lambda x: (x.mean(-1), x.var(-1, correction=0)), _ROWS),
    "extrema": Planted(lambda x: (x.amax(-1), x.amin(-1)), _ROWS),
    "three results": Planted(lambda x, y: (x + y, x * y, (x - y).sum(-1)), _PAIR),
    "two results of a product": Planted(two_of_a_product, tuple(s[:2] for s in _PRODUCT)),
    "two results of a softmax": Planted(two_of_a_softmax, _ROWS),
    "column sums": Planted(lambda x: (x.sum(0), x.amax(0)), (((130, 70),), ((3000, 9),), ((9, 5000),))),
    "softmax of bfloat16": Planted(lambda x: torch.softmax(x, -1), _ROWS, (torch.bfloat16,)),
    "variance of float64": Planted(lambda x: x.var(-1, correction=0), _ROWS, (torch.float64,)),
    "softmax of columns, a view": Planted(lambda x: torch.softmax(x, -1), (((130, 70),), ((4100, 7),)), view=lambda t: t.mT),
    "every other column": Planted(lambda x: (x * 2 + 1).sum(-1), (((70, 260),), ((7, 8200),)), view=lambda t: t[:, ::2]),
    "integers": Planted(lambda i: (i * 3 + 1).sum(-1), _ROWS, (torch.int64,)),
    "chosen and counted": Planted(lambda x: (torch.where(x > 0, x, -2 * x), (x > 0).sum(-1)), _ROWS),
    "lower triangle": Planted(lambda x: x.tril().sum(-1), (((70, 70),), ((600, 600),))),
}  # fmt: skip
