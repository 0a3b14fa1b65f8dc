"""Calls that put elements where integers say, recorded as what each element of the result then is: a comparison of its number.

    out[n] = x[n] + sum over k of where(index[k] == n, y[k], 0)         scatter_add, index_add
    out[n] = where(n == index, y, x[n])                                 one element

Each element of the result is compared with each index. So that is as much work as PyTorch's store times the fewer of the two: few
indices, or few places, are kernels, which what comes before and after them joins; many are stored by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name

from weft.capture.picks import checked
from weft.capture.sizes import symbolic

_FEW = 16
"""So many indices or places at most are compared with all of the others where elements lie behind each."""
_FEW_COUNTED = 64
"""So many places at most are counted: PyTorch's own histogram takes as long for each number."""
_ROW = 8
"""So many elements at least must be moved with each index where a part is moved to a place that only the run knows."""


def _alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))


def _few(*counts: Any, most: int = _FEW) -> bool:
    """Tells whether one of these numbers is known to be small."""
    return any(not symbolic(count) and count <= most for count in counts)


def _same_along(source: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Returns `source`, if it is the same all along dimension `dim`, which is below 0, with size 1 there; else None."""
    if -dim > source.ndim or statically_known_true(source.shape[dim] == 1):
        return source
    step = source.stride(dim)
    return source.narrow(dim, 0, 1) if not symbolic(step) and step == 0 else None


def places(size: Any, behind: int) -> torch.Tensor:
    """Numbers the places of a dimension with so many dimensions behind it."""
    return torch.arange(size).reshape(-1, *[1] * behind)


class _Where:
    """Which index says which place along dimension `dim` of `tensor`, as a comparison of all with all.

    Attributes:
        few: there are so few of one or the other that this is cheap.
    """

    def __init__(self, tensor: torch.Tensor, dim: int, index: torch.Tensor, most: int = _FEW) -> None:
        self.dim, self.behind, self.count = dim, tensor.ndim - dim - 1, index.shape[dim]
        self.one = not symbolic(self.count) and self.count == 1
        self.few = _few(tensor.shape[dim], self.count, most=most)
        self._index = checked(index.long(), tensor.shape[dim], dim)
        self._places = places(tensor.shape[dim], self.behind + (not self.one))

    def equal(self) -> torch.Tensor:
        """Compares places with indices, which have a dimension behind that of the places; none where there is one index."""
        return self._places == (self._index if self.one else self._index.unsqueeze(self.dim))

    def wide(self, source: torch.Tensor) -> torch.Tensor:
        """Gives what is stored the dimensions of `equal`."""
        return source if self.one else source.unsqueeze(self.dim)

    def any(self) -> torch.Tensor:
        """Tells of each place whether an index is it."""
        return self.equal() if self.one else self.equal().any(self.dim + 1)

    def last(self) -> torch.Tensor:
        """Finds for each place the last index that is it, by its number; -1 where none is."""
        return torch.where(self.equal(), places(self.count, self.behind), -1).amax(self.dim + 1)


def _added(tensor: torch.Tensor, where: _Where, source: torch.Tensor) -> Any:
    """Adds what is stored at each place to what is there."""
    if not where.few or tensor.dtype == torch.bool:
        return NotImplemented
    found = torch.where(where.equal(), where.wide(source), 0)
    wide = torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype
    total = found if where.one else found.to(wide).sum(where.dim + 1, dtype=wide)
    return (tensor + total).to(tensor.dtype)


def _replaced(tensor: torch.Tensor, where: _Where, source: torch.Tensor) -> Any:
    """Puts what is stored in place of what is there; of several with one index the last, as eager does it in order."""
    same = _same_along(source, where.dim - tensor.ndim)
    if where.one or same is not None:
        return torch.where(where.any(), source if same is None else same, tensor) if where.few else NotImplemented
    if not where.few:
        return NotImplemented
    last = where.last()
    whole = list(tensor.shape)
    whole[where.dim] = where.count
    read = source.expand(whole).gather(where.dim, last.clamp(min=0).expand(tensor.shape))
    return torch.where(last >= 0, read, tensor)


def _filled(tensor: torch.Tensor, where: _Where, value: Any) -> Any:
    return torch.where(where.any(), value, tensor) if where.few else NotImplemented


# What has an index for each element.


def _each(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> tuple[int, _Where] | None:
    """Compares indices of which there is one for each element; None where some dimension has fewer than the tensor's."""
    if tensor.ndim == 0 or index.ndim != tensor.ndim:
        return None
    dim %= tensor.ndim
    others = [d for d in range(tensor.ndim) if d != dim]
    if not _alike([index.shape[d] for d in others], [tensor.shape[d] for d in others]):
        return None
    return dim, _Where(tensor, dim, index)


def _cut(source: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Leaves out of `source` what has no index."""
    for dim, size in enumerate(shape):
        source = source if statically_known_true(source.shape[dim] == size) else source.narrow(dim, 0, size)
    return source


def _scatter(tensor: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    found = _each(tensor, dim, index)
    return NotImplemented if found is None else _replaced(tensor, found[1], _cut(src, index.shape))


def _scatter_value(tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    found = _each(tensor, dim, index)
    return NotImplemented if found is None else _filled(tensor, found[1], value)


def _scatter_add(tensor: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    found = _each(tensor, dim, index)
    return NotImplemented if found is None else _added(tensor, found[1], _cut(src, index.shape))


_COMBINED: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "amax": (torch.amax, torch.maximum, float("-inf")),
    "amin": (torch.amin, torch.minimum, float("inf")),
}


def _scatter_reduce(
    tensor: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Combines what is stored at each place, and where `include_self` what is there; elsewhere nothing changes."""
    if reduce == "sum" and include_self:
        return _scatter_add(tensor, dim, index, src)
    found = _each(tensor, dim, index)
    if found is None or reduce not in _COMBINED or not tensor.is_floating_point() or not found[1].few:
        return NotImplemented
    where, (over, both, nothing) = found[1], _COMBINED[reduce]
    each = torch.where(where.equal(), where.wide(_cut(src, index.shape)), nothing)
    best = each if where.one else over(each, where.dim + 1)
    return torch.where(where.any(), both(tensor, best) if include_self else best, tensor)


# What has an index for each row.


def _rows(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> _Where | None:
    """Compares indices of which there is one for each row along `dim`."""
    if tensor.ndim == 0 or index.ndim > 1 or index.dtype not in (torch.int64, torch.int32):
        return None
    dim %= tensor.ndim
    return _Where(tensor, dim, index.reshape([-1 if d == dim else 1 for d in range(tensor.ndim)]))


def _index_add(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1) -> Any:
    where = _rows(tensor, dim, index)
    if where is None or source.ndim != tensor.ndim or source.dtype != tensor.dtype:
        return NotImplemented
    return _added(tensor, where, source if alpha == 1 else source * alpha)


def _index_copy(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    where = _rows(tensor, dim, index)
    if where is None or source.ndim != tensor.ndim:
        return NotImplemented
    return _replaced(tensor, where, source)


def _index_fill(tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    where = _rows(tensor, dim, index)
    return NotImplemented if where is None else _filled(tensor, where, value)


def _index_put(
    tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    """Stores at indices along one dimension, whose negative ones count from the end; or one number where a mask holds."""
    dims = [d for d, each in enumerate(indices) if each is not None]
    index = indices[dims[0]] if len(dims) == 1 else None
    if index is None:
        return NotImplemented
    dim, size = dims[0], tensor.shape[dims[0]]
    if index.dtype == torch.bool:
        if accumulate or values.ndim or not _alike(index.shape, tensor.shape[dim : dim + index.ndim]):
            return NotImplemented
        return torch.where(index.reshape(*index.shape, *[1] * (tensor.ndim - dim - index.ndim)), values, tensor)
    if index.ndim > 1:
        return NotImplemented
    where = _rows(tensor, dim, torch.where(index < 0, index + size, index))
    if where is None:
        return NotImplemented
    if index.ndim == 0 and values.ndim > tensor.ndim - 1 - dim:
        values = values.unsqueeze(values.ndim - (tensor.ndim - 1 - dim))
    return _added(tensor, where, values) if accumulate else _replaced(tensor, where, values)


# What is at places that the program knows.


def _select_scatter(tensor: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> Any:
    dim %= tensor.ndim
    size = tensor.shape[dim]
    if symbolic(index):
        return NotImplemented
    here = places(size, tensor.ndim - dim - 1) == (index if index >= 0 else index + size)
    return torch.where(here, src.unsqueeze(dim), tensor)


def _slice_scatter(
    tensor: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    """Puts `src` in a slice: each place within it reads the element of `src` at its number there, others one that they leave."""
    del end
    dim %= tensor.ndim
    size, count, behind = tensor.shape[dim], src.shape[dim], tensor.ndim - dim - 1
    if statically_known_true(count == size):
        return src.clone()
    if symbolic(start or 0) or symbolic(count):
        return NotImplemented
    start = start or 0
    first: Any = slice(start, None).indices(size)[0] if not symbolic(size) else start if start >= 0 else size + start
    place = torch.arange(size) - first
    inside = (place >= 0) & (place < count * step)
    if step > 1:
        inside, place = inside & (place % step == 0), torch.div(place, step, rounding_mode="floor")
    inside = inside.reshape(-1, *[1] * behind)
    same, row = _same_along(src, dim - src.ndim), src.shape[dim + 1 :]
    if same is None and not any(map(symbolic, row)) and torch.Size(row).numel() < _ROW:
        return NotImplemented
    read = src.index_select(dim, place.clamp(0, count - 1)) if same is None else same
    return torch.where(inside, read, tensor)


# What counts.


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> Any:
    """Compares each class with all; how many there are must be said."""
    if symbolic(num_classes) or num_classes < 1 or index.dtype != torch.int64:
        return NotImplemented
    return (checked(index, num_classes, -1).unsqueeze(-1) == torch.arange(num_classes)).long()


def _histc(tensor: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002 - ATen's names
    """Counts what lies in each of `bins` parts of a range that is given; the greatest number is in the last of them."""
    if (
        symbolic(bins)
        or not 0 < bins <= _FEW_COUNTED
        or not min < max
        or tensor.dtype in (torch.float16, torch.bfloat16)
    ):
        return NotImplemented
    numbers = tensor.reshape(-1)
    inside = (numbers >= min) & (numbers <= max)
    along = (torch.where(inside, numbers, min) - min) * bins
    if tensor.is_floating_point():
        along = along / (max - min)
    elif isinstance(max - min, int) or float(max - min).is_integer():
        along = torch.div(along.long(), int(max - min), rounding_mode="floor")
    else:
        return NotImplemented
    part = along.long().clamp(max=bins - 1)
    counted = (part == torch.arange(bins).unsqueeze(1)) & inside
    return torch.where(counted, 1.0, 0.0).sum(1).to(tensor.dtype)


STORES: dict[str, Callable[..., Any]] = {
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_fill.int_Scalar": _index_fill,
    "aten.index_fill.int_Tensor": _index_fill,
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter_value,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
}
"""By overload; NotImplemented leaves the call whole. Memory that is there already PyTorch had better write into."""

COUNTS: dict[str, Callable[..., Any]] = {"aten.histc.default": _histc, "aten.one_hot.default": _one_hot}
"""By overload: what counts or numbers elements by comparison."""
