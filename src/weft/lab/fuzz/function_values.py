"""Values and layouts of the tensors that random functions are called with: a table of each, one row a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Shape = tuple[int, ...]
Make = Callable[[Shape, torch.dtype, torch.Generator], torch.Tensor]
StandIn = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def generator(*numbers: int) -> torch.Generator:
    """Makes a source of random numbers that depends on `numbers` alone."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % (1 << 61)
    return torch.Generator().manual_seed(seed)


def _normal(shape: Shape, numbers: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=numbers, dtype=torch.float64)


def _scaled(scale: float) -> Make:
    def make(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
        most = torch.finfo(dtype).max / 8
        return (_normal(shape, numbers) * scale).clamp(-most, most).to(dtype)

    return make


def _any_magnitude(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    exponent = torch.rand(shape, generator=numbers, dtype=torch.float64) * 60 - 30
    most = torch.finfo(dtype).max / 8
    return (_normal(shape, numbers) * 10**exponent).clamp(-most, most).to(dtype)


def _rows_apart(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    """Draws rows that differ by many orders of magnitude; within a row there is no such difference."""
    rows = torch.rand(shape[:-1], generator=numbers, dtype=torch.float64) * 8 - 4
    return (_normal(shape, numbers) * 10 ** (rows[..., None] if shape else rows)).to(dtype)


def _with(*special: float) -> Make:
    def make(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
        info = torch.finfo(dtype)
        known = {"max": info.max, "least": info.smallest_normal / 4}
        values = torch.tensor([known.get(str(s), s) for s in special], dtype=torch.float64)
        picked = values[torch.randint(len(special), shape, generator=numbers)]
        chosen = torch.rand(shape, generator=numbers) < 0.15
        return torch.where(chosen, picked, _normal(shape, numbers)).to(dtype)

    return make


def _same(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    """Draws rows of one number."""
    rows = torch.rand((*shape[:-1], 1), generator=numbers, dtype=torch.float64) * 2000 - 1000
    return (rows.expand(shape).clone() if shape else rows[0]).to(dtype)


def _whole(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=numbers).to(dtype)


def _integers(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    low = 0 if dtype is torch.uint8 else -9
    return torch.randint(low, 10, shape, generator=numbers).to(dtype)


def _extreme_integers(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, info.min + 1, info.max - 1, 0, 1], dtype=torch.int64)
    picked = ends[torch.randint(len(ends), shape, generator=numbers)]
    chosen = torch.rand(shape, generator=numbers) < 0.3
    return torch.where(chosen, picked, _integers(shape, torch.int64, numbers)).to(dtype)


def _truths(shape: Shape, share: float, numbers: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=numbers) < share


def _of(floats: Make, *, extreme: bool = False, share: float = 0.5) -> Make:
    """Makes values of any element type: `floats` for those with fractions, and parts of complex numbers."""

    def make(shape: Shape, dtype: torch.dtype, numbers: torch.Generator) -> torch.Tensor:
        if dtype is torch.bool:
            return _truths(shape, share, numbers)
        if dtype.is_complex:
            real = dtype.to_real()
            return torch.complex(floats(shape, real, numbers), floats(shape, real, numbers))
        if dtype.is_floating_point:
            return floats(shape, dtype, numbers)
        return (_extreme_integers if extreme else _integers)(shape, dtype, numbers)

    return make


VALUES: Mapping[str, Make] = {
    "normal": _of(_scaled(1.0)),
    "special": _of(_with(float("nan"), float("inf"), float("-inf"), -0.0, 0.0), extreme=True),
    "ends": _of(_with(-0.0, 0.0, "max", "least", 1.0), extreme=True, share=0.9),  # type: ignore[arg-type]
    "infinite": _of(_with(float("-inf")), extreme=True, share=0.1),
    "large": _of(_scaled(1e30), extreme=True),
    "small": _of(_scaled(1e-30)),
    "logits": _of(_scaled(30.0)),
    "any magnitude": _of(_any_magnitude, extreme=True),
    "rows apart": _of(_rows_apart),
    "rows of one number": _of(_same, share=1.0),
    "whole": _of(_whole, extreme=True),
    "zeros": _of(_scaled(0.0), share=0.0),
}
"""Numbers, bools and integers by kind."""


def stand_in(draw: int, *, huge: bool) -> StandIn:
    """Puts other numbers in place of infinities and NaN for each `draw`; of any size, or for infinities `huge` ones of
    their sign.
    """

    def change(values: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
        if values.is_complex():
            return torch.complex(change(values.real, numbers), change(values.imag, numbers))
        if not values.is_floating_point():
            return values
        others = [_normal(values.shape, numbers) for _ in range(draw + 1)][-1]
        large = torch.copysign(1e100 * (1 + others.abs()), values.double())
        others = torch.where(values.isinf(), large, others) if huge else others
        return torch.where(values.isfinite(), values, others.to(values.dtype))

    return change


def _transposed(values: torch.Tensor) -> torch.Tensor:
    return values.mT.contiguous().mT if values.dim() > 1 else values


def _stepped(values: torch.Tensor) -> torch.Tensor:
    return torch.stack((values, torch.ones_like(values)), -1)[..., 0] if values.dim() else values


def _offset(values: torch.Tensor) -> torch.Tensor:
    return torch.cat((values[:1], values))[values[:1].shape[0] :] if values.dim() else values


def _expanded(values: torch.Tensor) -> torch.Tensor:
    """Repeats the first element along the first dimension; only that element is kept."""
    return values[:1].expand(values.shape) if values.dim() and values.shape[0] else values


def _columns_expanded(values: torch.Tensor) -> torch.Tensor:
    return values[..., :1].expand(values.shape) if values.dim() and values.shape[-1] else values


def _negated(values: torch.Tensor) -> torch.Tensor:
    """Returns a view that has PyTorch's bit for negation, of floats."""
    if values.dtype not in (torch.float32, torch.float64):
        return values
    return torch.complex(torch.zeros_like(values), values).conj().imag


def _conjugated(values: torch.Tensor) -> torch.Tensor:
    return values.conj() if values.is_complex() else values


def _part(values: torch.Tensor) -> torch.Tensor:
    """Returns the first half of a larger tensor's columns."""
    return torch.cat((values, values), -1)[..., : values.shape[-1]] if values.dim() else values


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda values: values,
    "transposed": _transposed,
    "every other": _stepped,
    "offset": _offset,
    "part": _part,
    "expanded": _expanded,
    "columns expanded": _columns_expanded,
    "negated": _negated,
    "conjugated": _conjugated,
}
"""Ways to lie in memory, each of a dense tensor."""

VIEWS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda base: base,
    "all of it": lambda base: base.view(base.shape),
    "later rows": lambda base: base[1:] if base.dim() else base,
    "every other column": lambda base: base[..., ::2] if base.dim() else base,
    "transposed": lambda base: base.mT if base.dim() > 1 else base,
}
"""Ways in which an argument shares memory with another one."""
