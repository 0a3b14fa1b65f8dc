"""Calls that put elements where integers say, recorded as what each element of the result then is: a comparison of its number.

    out[n] = where(n == i[1], y[1], where(n == i[0], y[0], x[n]))         scatter, index_copy
    out[n] = where(n == i, x[n] + y, x[n])                                scatter_add, index_add
    out[n] = y[last], or x[n] where there is none; last: max of all s with n == i[s]     index_put of several rows

Each element of the result is compared with each index. So a few indices cost little beside the copy of what is stored into, in a
kernel that what comes before and after joins. Where the comparisons are reduced, as in the last form, a CPU goes to the one place
that each index says (`weft.block.one_hot`), so that there may be many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name

from weft.capture.describe import dense, packed
from weft.capture.picks import checked
from weft.capture.sizes import in_example, symbolic

FEW, FEW_ROWS = 8, 2
"""So many indices at most are compared with each place: of those that each row has, and of those that say where rows are put."""
_COUNTED = 4096
"""So many comparisons at most take no longer than PyTorch's own histogram, or its loop over rows that are put somewhere."""
_MOST = 1 << 26
"""So many pairs of a place and an index at most on a CPU, where a kernel compares none of them: PyTorch compares all, if the kernel
is refused."""
_IN_CACHE, _CROWDED = 1 << 18, 4
"""Rows are combined in a kernel where all they are put into has so few elements, or so many of them meet: else memory is gone over
once more than by PyTorch."""
_NOTHING = torch.iinfo(torch.int64).min
"""What a maximum of integers begins with."""
_WRITTEN = 8
"""Rows are put somewhere in a kernel, which writes all rows, where they are at least one in so many."""
_FOREVER = 2**62
"""Stands for the end of a slice that ends where the dimension does, and whatever is larger."""
_ROW = 8
"""So many elements at least must lie behind each place where a part is moved to places that the program knows."""


def _alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))


def _same_along(source: torch.Tensor, dim: int) -> torch.Tensor | None:
    """Returns `source`, if it is the same all along dimension `dim`, which is below 0, with size 1 there; else None."""
    if -dim > source.ndim or statically_known_true(source.shape[dim] == 1):
        return source
    step = source.stride(dim)
    return source.narrow(dim, 0, 1) if not symbolic(step) and step == 0 else None


def _places(size: Any, behind: int) -> torch.Tensor:
    """Numbers the places of a dimension with so many dimensions behind it."""
    return torch.arange(size).reshape(-1, *[1] * behind)


class _Stored:
    """A few elements, or rows, that are put somewhere.

    Attributes:
        masks: for each, in order, where it is put.
        parts: for each what it is; both broadcast to what it is put into.
    """

    def __init__(self, tensor: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> None:
        index = checked(index.long(), tensor.shape[dim], dim)
        here = _places(tensor.shape[dim], tensor.ndim - dim - 1)
        count = index.shape[dim]
        self.masks = [here == index.narrow(dim, number, 1) for number in range(count)]
        self.parts = _parts(source, dim - tensor.ndim, count)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """Yields pairs of where and what."""
        return iter(zip(self.masks, self.parts, strict=True))


def _parts(source: Any, dim: int, count: int) -> list[Any]:
    """Lists what of `source`, a tensor or a number, is put to each of so many places along dimension `dim`, which is below 0."""
    same = _same_along(source, dim) if isinstance(source, torch.Tensor) else source
    return [source.narrow(dim, number, 1) if same is None else same for number in range(count)]


def _few(count: Any, most: int) -> bool:
    return not symbolic(count) and 0 < count <= most


def _replaced(tensor: torch.Tensor, stored: Iterable[tuple[torch.Tensor, Any]]) -> torch.Tensor:
    """Puts what is stored in place of what is there; of several in one place the last, as eager does in order."""
    for mask, part in stored:
        tensor = torch.where(mask, part, tensor)
    return tensor


_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "amax": torch.maximum,
    "amin": torch.minimum,
    "prod": torch.mul,
    "sum": torch.add,
}


def _combined(
    tensor: torch.Tensor, stored: Iterable[tuple[torch.Tensor, Any]], kind: str, *, include_self: bool = True
) -> Any:
    """Combines what is stored in a place, and where `include_self` what is there before; sums of 16 bits are rounded once."""
    if kind not in _COMBINED or tensor.dtype == torch.bool:
        return NotImplemented
    wide = torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype
    found, seen = tensor.to(wide), None
    for mask, part in stored:
        both = _COMBINED[kind](found, part.to(wide))
        if not include_self:
            both = part.to(wide) if seen is None else torch.where(seen, both, part.to(wide))
            seen = mask if seen is None else seen | mask
        found = torch.where(mask, both, found)
    return found.to(tensor.dtype)


# What has an index for each element.


def _each(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> _Stored | None:
    """Compares indices of which there is one for each element; None where they are many, or some dimension has fewer."""
    if tensor.ndim == 0 or index.ndim != tensor.ndim:
        return None
    dim %= tensor.ndim
    others = [d for d in range(tensor.ndim) if d != dim]
    if not _few(index.shape[dim], FEW) or not _alike(
        [index.shape[d] for d in others], [tensor.shape[d] for d in others]
    ):
        return None
    if isinstance(source, torch.Tensor):
        for d, size in enumerate(index.shape):  # what has no index is not stored
            source = source if statically_known_true(source.shape[d] == size) else source.narrow(d, 0, size)
    return _Stored(tensor, dim, index, source)


def _scatter(tensor: torch.Tensor, dim: int, index: torch.Tensor, src: Any) -> Any:
    found = _each(tensor, dim, index, src)
    return _many(tensor, dim, index, None, src) if found is None else _replaced(tensor, found)


def _scatter_add(tensor: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Any:
    return _scatter_reduce(tensor, dim, index, src, "sum")


def _scatter_reduce(
    tensor: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    found = _each(tensor, dim, index, src)
    if found is None and include_self and reduce in _COMBINED and tensor.dtype != torch.bool:
        return _many(tensor, dim, index, reduce, src)
    return NotImplemented if found is None else _combined(tensor, found, reduce, include_self=include_self)


def _many(tensor: torch.Tensor, dim: int, index: torch.Tensor, kind: str | None, source: Any) -> Any:
    """Puts, or combines, whole rows where an index is the same all along them, and puts a number anywhere in rows."""
    if tensor.ndim == 0 or index.ndim != tensor.ndim:
        return NotImplemented
    dim %= tensor.ndim
    others = [d for d in range(tensor.ndim) if d != dim]
    number = not isinstance(source, torch.Tensor) or source.ndim == 0
    whole = _alike([index.shape[d] for d in others], [tensor.shape[d] for d in others])
    if not whole or any(_same_along(index, d - tensor.ndim) is None for d in others):
        return _number_along_rows(tensor, dim, index, source) if number and kind is None else NotImplemented
    source = source if number else source[tuple(slice(n) for n in index.shape)]
    first = index[tuple(slice(None) if d == dim else 0 for d in range(tensor.ndim))]
    return _many_rows(tensor, dim, first, kind, source)


# What has an index for each row.


def _rows(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> _Stored | None:
    """Compares indices of which there is one for each row along `dim`; None where they are many."""
    if tensor.ndim == 0 or index.ndim > 1 or not _few(index.numel(), FEW_ROWS):
        return None
    if isinstance(source, torch.Tensor) and source.ndim not in (0, tensor.ndim):
        return None
    dim %= tensor.ndim
    return _Stored(tensor, dim, index.reshape([-1 if d == dim else 1 for d in range(tensor.ndim)]), source)


def _index_add(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1) -> Any:
    if source.ndim != tensor.ndim or source.dtype != tensor.dtype:
        return NotImplemented
    source = source if alpha == 1 else source * alpha
    stored = _rows(tensor, dim, index, source)
    if stored is None:
        return _many_rows(tensor, dim, index, "sum", source)
    return _combined(tensor, stored, "sum")


def _index_copy(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    stored = _rows(tensor, dim, index, source)
    if stored is None:
        return _many_rows(tensor, dim, index, None, source)
    return _replaced(tensor, stored) if source.ndim == tensor.ndim else NotImplemented


def _index_fill(tensor: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    size = tensor.shape[dim] if tensor.ndim else 1
    index = torch.where(index < 0, index + size, index)  # unlike in other stores
    stored = _rows(tensor, dim, index, value)
    return _many_rows(tensor, dim, index, None, value) if stored is None else _replaced(tensor, stored)


def _many_rows(tensor: torch.Tensor, dim: int, index: torch.Tensor, kind: str | None, source: Any) -> Any:
    """Puts, or combines, many rows along dimension `dim`, or puts a number there."""
    rows = isinstance(source, torch.Tensor) and source.ndim > 0
    if tensor.ndim == 0 or index.ndim != 1 or (rows and source.ndim != tensor.ndim):
        return NotImplemented
    dim %= tensor.ndim
    index = index.long()
    return _put(tensor, dim, index, source) if kind is None else _combined_rows(tensor, dim, index, source, kind)


def _index_put(
    tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> Any:
    """Stores at indices along dimensions side by side, negative ones counted from the end; or one number where a mask holds."""
    dims = [d for d, each in enumerate(indices) if each is not None]
    given = [each for each in indices if each is not None]
    if len(given) == 1 and given[0].dtype == torch.bool:
        return NotImplemented if accumulate else _masked(tensor, dims[0], given[0], values)
    if dims != list(range(dims[0], dims[0] + len(dims))) or any(
        each.ndim > 1 or each.dtype not in (torch.int32, torch.int64)
        for each in given  # of bytes: masks
    ):
        return NotImplemented
    count = max((each.shape[0] for each in given if each.ndim), default=1)
    if any(each.ndim and each.shape[0] not in (1, count) for each in given):
        return NotImplemented
    if not _few(count, FEW_ROWS):
        return _put_many(tensor, dims, given, values, accumulate=accumulate)
    behind = tensor.ndim - dims[-1] - 1
    if (
        not any(each.ndim for each in given) and values.ndim > behind
    ):  # no dimension of the values stands for the indices
        values = values.unsqueeze(values.ndim - behind)
    masks = [torch.ones((), dtype=torch.bool)] * count
    for dim, each in zip(dims, given, strict=True):
        size = tensor.shape[dim]
        index = checked(torch.where(each < 0, each + size, each).long(), size, dim).reshape(-1)
        here = _places(size, tensor.ndim - dim - 1)
        own = [here == index.narrow(0, number if each.numel() > 1 else 0, 1) for number in range(count)]
        masks = [one if mask.ndim == 0 else mask & one for mask, one in zip(masks, own, strict=True)]
    parts = _parts(values, -behind - 1, count)
    parts = [part if part.ndim <= behind else _with_units(part, behind, len(dims) - 1) for part in parts]
    stored = zip(masks, parts, strict=True)
    return _combined(tensor, stored, "sum") if accumulate else _replaced(tensor, stored)


def _put_many(
    tensor: torch.Tensor, dims: Sequence[int], given: Sequence[torch.Tensor], values: torch.Tensor, *, accumulate: bool
) -> Any:
    """Puts `values` at many indices along dimensions side by side, or adds them: as one dimension, and one index for each place."""
    first, past = dims[0], dims[-1] + 1
    sizes = tensor.shape[first:past]
    if values.ndim > tensor.ndim - len(dims) + 1 or (len(dims) > 1 and not packed(tensor)):
        return NotImplemented
    count = max((each.shape[0] for each in given if each.ndim), default=1)
    index, *others = (torch.where(each < 0, each + n, each).long() for each, n in zip(given, sizes, strict=True))
    if others:
        index = checked(index, sizes[0], first)
    for dim, each in enumerate(others, first + 1):
        index = index * tensor.shape[dim] + checked(each, tensor.shape[dim], dim)
    whole = tensor.flatten(first, past - 1)
    if values.ndim:
        values = values.expand([*tensor.shape[:first], count, *tensor.shape[past:]])
    index = index.expand(count)
    made = _combined_rows(whole, first, index, values, "sum") if accumulate else _put(whole, first, index, values)
    return made if made is NotImplemented else made.unflatten(first, sizes)


def _put(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Any:
    """Puts rows of `source`, or a number, at the indices `index` along dimension `dim`: of several in one place the last."""
    size = tensor.shape[dim]
    if not _pays(tensor, size, index.shape[0]):
        return NotImplemented
    last = _last(index, size)
    same = _same_along(source, dim - tensor.ndim) if isinstance(source, torch.Tensor) else source
    found = source.index_select(dim, last.clamp(min=0)) if same is None else same
    # The first of them decides how the result lies in memory: as what is stored into does.
    return torch.where((last < 0).reshape(-1, *[1] * (tensor.ndim - dim - 1)), tensor, found)


_IDENTITIES: dict[str, Callable[[torch.dtype], float]] = {
    "amax": lambda dtype: -torch.inf if dtype.is_floating_point else _NOTHING,
    "amin": lambda dtype: torch.inf if dtype.is_floating_point else -_NOTHING - 1,
    "prod": lambda _: 1,
    "sum": lambda _: 0,
}
"""What each kind of combination begins with, in the type that it is computed in."""
_REDUCED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "amax": torch.amax,
    "amin": torch.amin,
    "prod": torch.prod,
    "sum": torch.sum,
}


def _combined_rows(tensor: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, kind: str) -> Any:
    """Combines rows of `source`, one for each of the indices `index` along dimension `dim`, with what is there."""
    size, count = tensor.shape[dim], index.shape[0]
    small = in_example(tensor.numel()) <= _IN_CACHE or in_example(count) >= _CROWDED * in_example(size)
    small &= tensor.ndim == 1 or in_example(tensor[0].numel()) >= _ROW
    if dim or tensor.dtype == torch.bool or tensor.device.type != "cpu" or not small or not _pays(tensor, size, count):
        return NotImplemented  # with dimensions before the rows, what is said of rows would be stored for all of them
    said = _said(index, size).reshape(size, index.shape[0], *[1] * (tensor.ndim - 1))
    wide = torch.promote_types(tensor.dtype, torch.float32 if tensor.dtype.is_floating_point else torch.int64)
    parts = torch.where(said, source.to(wide), _IDENTITIES[kind](wide))
    found = _REDUCED[kind](parts, 1)
    both = _COMBINED[kind](tensor.to(wide), found).to(tensor.dtype)
    # What nothing is added to keeps its sign, if it is a zero.
    return torch.where(found == 0, tensor, both) if kind == "sum" and tensor.dtype.is_floating_point else both


def _number_along_rows(tensor: torch.Tensor, dim: int, index: torch.Tensor, number: Any) -> Any:
    """Puts a number at places of their own row, which is the last dimension."""
    size = tensor.shape[-1]
    if (
        dim != tensor.ndim - 1
        or not _alike(index.shape[:-1], tensor.shape[:-1])
        or not _pays(tensor, size, index.shape[-1])
    ):
        return NotImplemented
    return torch.where(_last(checked(index.long(), size, dim), size) < 0, tensor, number)


def _last(index: torch.Tensor, size: Any) -> torch.Tensor:
    """Finds for each of `size` places the last of `index`, along its last dimension, that says it; below 0 where none does.

    Each index says one place, and what it says of others is what a maximum begins with: a kernel goes to that place alone
    (`weft.block.one_hot`).
    """
    return torch.where(_said(index, size), torch.arange(index.shape[-1]), _NOTHING).amax(-1)


def _said(index: torch.Tensor, size: Any) -> torch.Tensor:
    """Compares each of `size` places with each index along its last dimension.

    Indices of rows are looked up among the places: so they are checked, and where programs are judged with fewer places, indices
    are drawn among these. Others are checked before.
    """
    places = torch.arange(size)
    index = places.index_select(0, index) if index.ndim == 1 else index
    return index.unsqueeze(-2) == places.unsqueeze(1)


def _pays(tensor: torch.Tensor, size: Any, count: Any) -> bool:
    """Tells whether as many indices of so many places of `tensor` are better put there by a kernel, which writes all places."""
    if not in_example(size) or in_example(count) * _WRITTEN < in_example(size):
        return False
    if tensor.device.type == "cpu":
        return in_example(size) * in_example(count) <= _MOST
    return not symbolic(size) and not symbolic(count) and count * size <= _COUNTED


def _with_units(part: torch.Tensor, behind: int, more: int) -> torch.Tensor:
    """Gives `part` so many more dimensions of size 1 with `behind` ones behind them."""
    shape = list(part.shape)
    return part.reshape([*shape[: len(shape) - behind], *[1] * more, *shape[len(shape) - behind :]])


def _masked(tensor: torch.Tensor, dim: int, mask: torch.Tensor, value: torch.Tensor) -> Any:
    """Puts one number where `mask`, which covers dimensions from `dim` on, holds."""
    if value.ndim or not _alike(mask.shape, tensor.shape[dim : dim + mask.ndim]):
        return NotImplemented
    return torch.where(mask.reshape(*mask.shape, *[1] * (tensor.ndim - dim - mask.ndim)), value, tensor)


# What is at places that the program knows.


def _select_scatter(tensor: torch.Tensor, src: torch.Tensor, dim: int, index: int) -> Any:
    dim %= tensor.ndim
    size = tensor.shape[dim]
    if symbolic(index) or not dense(tensor):  # eager leaves the gaps where they are
        return NotImplemented
    here = _places(size, tensor.ndim - dim - 1) == (index if index >= 0 else index + size)
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
    dim %= tensor.ndim
    size, count, behind = tensor.shape[dim], src.shape[dim], tensor.ndim - dim - 1
    if statically_known_true(count == size) and dense(tensor):
        return src.clone()
    same, row = _same_along(src, dim - src.ndim), src.shape[dim + 1 :]
    if symbolic(start or 0) or symbolic(end or 0) or not dense(tensor):
        return NotImplemented
    if symbolic(size) and (start or 0) < 0 and step > 1:  # where it begins decides which places it takes
        return NotImplemented
    first, past = _bounds(size, start, end)
    if same is None and (any(map(symbolic, (size, count, *row))) or torch.Size(row).numel() < _ROW):
        if step != 1 or symbolic(size) or symbolic(count) or not packed(tensor):
            return NotImplemented
        # Elements side by side are copied as runs, which joins know how to do.
        parts = (tensor.narrow(dim, 0, first), src, tensor.narrow(dim, first + count, size - first - count))
        return torch.cat([part for part in parts if part.shape[dim]], dim)
    number = torch.arange(size)
    place = number - first
    inside = place >= 0 if past is None else (place >= 0) & (number < past)
    if step > 1:
        inside, place = inside & (place % step == 0), torch.div(place, step, rounding_mode="floor")
    read = src.index_select(dim, place.clamp(0, count - 1)) if same is None else same
    return torch.where(~inside.reshape(-1, *[1] * behind), tensor, read)  # it lies in memory as `tensor` does


def _bounds(size: Any, start: int | None, end: int | None) -> tuple[Any, Any]:
    """Finds the first place of a slice and the one past its last, None where nothing is past it."""
    if not symbolic(size):
        return slice(start, end).indices(size)[:2]
    first, past = ((n if n is None or n >= 0 else size + n) for n in (start, end))
    return first or 0, None if end is not None and end >= _FOREVER else past


# What counts.


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> Any:
    """Compares each class with all; how many there are must be said."""
    if symbolic(num_classes) or num_classes < 1 or index.dtype != torch.int64:
        return NotImplemented
    return (checked(index, num_classes, -1).unsqueeze(-1) == torch.arange(num_classes)).long()


def _histc(tensor: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002 - ATen's names
    """Counts what lies in each of `bins` parts of a range that is given; the greatest number is in the last of them."""
    if symbolic(bins) or bins <= 0 or not min < max or not in_example(tensor.numel()):
        return NotImplemented
    if bins * in_example(tensor.numel()) > (_MOST if tensor.device.type == "cpu" else _COUNTED):
        return NotImplemented
    if tensor.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    numbers = tensor.reshape(-1)
    inside = (numbers >= min) & (numbers <= max)
    part = ((torch.where(inside, numbers, min) - min) * bins / (max - min)).long().clamp(max=bins - 1)
    counted = (part == torch.arange(bins).unsqueeze(1)) & inside
    return torch.where(counted, 1.0, 0.0).sum(1).to(tensor.dtype)


STORES: dict[str, Callable[..., Any]] = {
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_fill.int_Scalar": _index_fill,
    "aten.index_fill.int_Tensor": _index_fill,
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
}
"""By overload; NotImplemented leaves the call whole. Memory that is there already PyTorch had better write into."""
MANY = {
    **dict.fromkeys(
        (call.rpartition(".")[0] for call in STORES),
        f"it puts more than {FEW} elements of a row, or {FEW_ROWS} rows, where integers say, or is of a form that weft lacks",
    ),
    "aten.histc": f"it takes more than {_COUNTED} comparisons ({_MOST} on a CPU), or its range is not given",
}
"""Why such calls are PyTorch's, by overload packet."""

COUNTS: dict[str, Callable[..., Any]] = {"aten.histc.default": _histc, "aten.one_hot.default": _one_hot}
"""By overload: what counts or numbers elements by comparison."""
