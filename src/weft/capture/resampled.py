"""Calls that read a tensor at places on another grid: pooling over windows, resampling to another size.

    max_pool1d(x, 2, 2)[.., i]        =  max(x[.., 2 i], x[.., 2 i + 1])
    upsample_nearest1d(x, 2 n)[.., i] =  x[.., i // 2]                                   memory that repeats, no lookup
    upsample_nearest1d(x, n)[.., i]   =  x[.., p[i]]                                     p: the places that eager reads, a constant
    upsample_bilinear2d(x, ..)        =  of four such lookups the sum, with a weight each; of two along one dimension

Whatever a window has beside the tensor is padding, which is read nowhere (`weft.capture.windows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name

from weft.capture.sizes import symbolic
from weft.capture.statistics import widened

_WINDOW = 9
"""So many elements of a window at most are read one by one, each a load of its own."""
_TIMES = 40
"""By whole factors up to this eager repeats each element as often; by some larger ones, 41 first, its places are rounded down."""

_Side: TypeAlias = tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, Any]]
"""For each element of a result along a dimension, a place in the tensor, and the share of what lies there."""


def _each(value: Any, count: int, default: Sequence[int] = ()) -> list[int]:
    """Lists a number for each of `count` dimensions, of which one may stand for all, or none for the `default`."""
    found = [value] if isinstance(value, int) else list(value)
    found = found or list(default)
    return found * count if len(found) == 1 else found


def _places(
    tensor: torch.Tensor, sizes: Sequence[int], steps: Sequence[int], apart: Sequence[int], counts: Sequence[Any]
) -> Iterator[torch.Tensor]:
    """Yields for each place in a window what lies there in all windows: a slice of `tensor` along its last dimensions."""
    for offsets in product(*map(range, sizes)):
        part = tensor
        for number, (offset, step, far, count) in enumerate(zip(offsets, steps, apart, counts, strict=True)):
            first = offset * far
            part = part[
                (slice(None),) * (tensor.ndim - len(sizes) + number)
                + (slice(first, first + (count - 1) * step + 1, step),)
            ]
        yield part


def _windows(
    tensor: torch.Tensor,
    sizes: Sequence[int],
    steps: Sequence[int],
    padding: Sequence[int],
    apart: Sequence[int],
    pad: float,
) -> Iterator[torch.Tensor] | None:
    """Yields `_places` of `tensor` padded with the number `pad`; None where windows are large, or sizes are read at each call."""
    rank = len(sizes)
    if math.prod(sizes) > _WINDOW or tensor.ndim < rank or any(map(symbolic, tensor.shape[-rank:])):
        return None
    counts = [
        (int(n) + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(tensor.shape[-rank:], sizes, steps, padding, apart, strict=True)
    ]
    if min(counts) < 1:
        return None
    if any(padding):
        tensor = torch.constant_pad_nd(tensor, [p for side in reversed(padding) for p in (side, side)], pad)
    return _places(tensor, sizes, steps, apart, counts)


def _max_windows(
    tensor: torch.Tensor, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Iterator[torch.Tensor], list[int], tuple[list[int], list[int], list[int]]] | None:
    """Yields what lies at each place of the windows of a pooling by the largest element, the padding being the least number.

    Returns:
        that; sizes of a window; steps, padding and distances. None where PyTorch pools.
    """
    sizes = _each(kernel_size, rank)
    rest = (_each(stride, rank, sizes), _each(padding, rank), _each(dilation, rank))
    if ceil_mode or not tensor.is_floating_point():
        return None
    found = _windows(tensor, sizes, *rest, -math.inf)
    return None if found is None else (found, sizes, rest)


def _max_pool(rank: int) -> Callable[..., Any]:
    """Makes the parts of a pooling over the last `rank` dimensions by the largest element; NaN is larger than all."""

    def parts(
        tensor: torch.Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        windows = _max_windows(tensor, rank, kernel_size, stride, padding, dilation, ceil_mode)
        if windows is None:
            return NotImplemented
        most = next(windows[0])
        for part in windows[0]:
            most = torch.maximum(most, part)
        return most

    return parts


def _max_pool_with_places(
    tensor: torch.Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Computes the largest element of each window over two dimensions, and its number: the last NaN's, else the first largest's."""
    windows = _max_windows(tensor, 2, kernel_size, stride, padding, dilation, ceil_mode)
    if windows is None:
        return NotImplemented
    found, sizes, rest = windows
    most = next(found)
    wide = tensor.shape[-1]
    rows, columns = (
        torch.arange(n) * step - before for n, step, before in zip(most.shape[-2:], *rest[:2], strict=True)
    )
    corner = rows.unsqueeze(1) * wide + columns
    # Where all is -inf, the first element that is none of the padding.
    down, across = (
        torch.where(at < 0, at.remainder(far), at) for at, far in zip((rows, columns), rest[2], strict=True)
    )
    place = (down.unsqueeze(1) * wide + across).expand(most.shape)
    for offsets, part in zip(list(product(*map(range, sizes)))[1:], found, strict=True):
        down, across = (offset * far for offset, far in zip(offsets, rest[2], strict=True))
        larger = (part > most) | part.isnan()
        most = torch.where(larger, part, most)
        place = torch.where(larger, corner + (down * wide + across), place)
    return most, place


def _avg_pool(rank: int) -> Callable[..., Any]:
    """Makes the parts of a pooling over the last `rank` dimensions by the mean, of what is no padding where it says so."""

    def parts(
        tensor: torch.Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        sizes = _each(kernel_size, rank)
        rest = (_each(stride, rank, sizes), _each(padding, rank), [1] * rank)
        if ceil_mode or not tensor.is_floating_point():
            return NotImplemented
        found = _windows(widened(tensor), sizes, *rest, 0.0)
        if found is None:
            return NotImplemented
        total = next(found)
        for part in found:
            total = total + part
        if count_include_pad or divisor_override is not None or not any(rest[1]):
            return (total / (divisor_override or math.prod(sizes))).to(tensor.dtype)
        inside: Any = 1.0
        for count in map(_inside, tensor.shape[-rank:], total.shape[-rank:], sizes, *rest[:2]):
            inside = np.multiply.outer(inside, count)
        return (total / torch.tensor(inside, dtype=total.dtype)).to(tensor.dtype)

    return parts


def _inside(old: int, new: int, size: int, step: int, padding: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Counts for each window along a dimension the elements that are no padding."""
    first = np.arange(new, dtype=np.float64) * step - padding
    return np.minimum(first + size, old) - np.maximum(first, 0)


def _scale(old: int, new: int, given: float | None, kind: type[np.floating[Any]] = np.float32) -> Any:
    """Returns how far apart elements of the result are in the tensor, as eager computes it in numbers of this kind."""
    return kind(1.0 / given) if given is not None and given > 0 else kind(old) / kind(new)


def _factors(tensor: torch.Tensor, given: Sequence[Any]) -> list[float | None]:
    """Lists the factor for each dimension that is resampled, None where none is said: overloads have them apart or as a list."""
    said = cast("Sequence[Any]", given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return list(said) if len(said) == tensor.ndim - 2 else [None] * (tensor.ndim - 2)


def _sizes(tensor: torch.Tensor, output_size: Any, factors: Any) -> list[Any]:
    """Lists the sizes of the result, which are given or follow from factors."""
    if output_size is not None:
        return list(output_size)
    return [int(n * f) if not symbolic(n) else n * int(f) for n, f in zip(tensor.shape[2:], factors, strict=True)]


def _nearest(tensor: torch.Tensor, output_size: Any, *given: Any) -> Any:
    """Repeats elements, a whole number of times as memory that repeats, else by the places that eager reads."""
    scales = _factors(tensor, given)
    sizes = _sizes(tensor, output_size, scales)
    made = tensor
    for dim, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        old = tensor.shape[dim]
        times = _times(old, size, scale)
        if times is not None:
            made = made if times == 1 else made.repeat_interleave(times, dim)
        elif symbolic(old) or symbolic(size) or (scale is not None and size in (old, 2 * old)):
            return NotImplemented  # of as many elements, or twice, eager's kernels differ in whether the factor counts
        else:
            kind = np.float64 if tensor.dtype == torch.float64 and tensor.device.type == "cpu" else np.float32
            at = np.floor(np.arange(size, dtype=kind) * _scale(old, size, scale, kind)).astype(np.int64)
            made = made.index_select(dim, torch.tensor(np.minimum(at, old - 1)))
    return made


def _times(old: Any, new: Any, scale: float | None) -> int | None:
    """Tells how often each element is repeated; None where not each is as often."""
    if not symbolic(old) and not symbolic(new):
        times = new // old
    elif scale is not None:
        times = int(scale)
    else:
        return None
    if (
        not 1 <= times <= _TIMES
        or (scale is not None and scale != times)
        or not statically_known_true(old * times == new)
    ):
        return None
    return times


def _linear(tensor: torch.Tensor, output_size: Any, align_corners: bool, *given: Any) -> Any:
    """Adds up, of the two elements on both sides along each dimension, shares that their nearness decides."""
    scales = _factors(tensor, given)
    sizes = _sizes(tensor, output_size, scales)
    if not tensor.is_floating_point() or any(map(symbolic, (*tensor.shape[2:], *sizes))):
        return NotImplemented
    along = list(zip(tensor.shape[2:], sizes, scales, strict=True))
    if not align_corners and any(old == new and scale not in (None, 1.0) for old, new, scale in along):
        return NotImplemented  # some of eager's kernels copy then, others go by the factor
    wide = widened(tensor)
    kind = np.float64 if wide.dtype == torch.float64 else np.float32
    sides = [_sides(int(old), int(new), scale, kind, corners=align_corners) for old, new, scale in along]
    parts = [_share(wide, corner) for corner in product(*sides)]
    while len(parts) > 1:
        parts = [first + second for first, second in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0].to(tensor.dtype)


def _share(tensor: torch.Tensor, corner: Sequence[_Side]) -> torch.Tensor:
    """Returns what lies at one corner of where each element of the result is, times the share that it has."""
    behind = range(len(corner) - 1, -1, -1)  # dimensions after each, along which its places and shares are the same
    places = (torch.tensor(at).reshape(-1, *[1] * n) for (at, _), n in zip(corner, behind, strict=True))
    shares = (torch.tensor(share).reshape(-1, *[1] * n) for (_, share), n in zip(corner, behind, strict=True))
    return tensor[(slice(None), slice(None), *places)] * reduce(torch.mul, shares)


def _sides(old: int, new: int, scale: float | None, kind: type[np.floating[Any]], *, corners: bool) -> list[_Side]:
    """Lists for each element of the result the places before and after it, and the share of each; of as many elements, its own."""
    numbers = np.arange(new, dtype=kind)
    if corners:
        at = numbers * (kind(old - 1) / kind(new - 1) if new > 1 else kind(0))
    else:
        at = np.maximum(_scale(old, new, scale, kind) * (numbers + kind(0.5)) - kind(0.5), kind(0))
    before = np.minimum(np.floor(at).astype(np.int64), old - 1)
    after = before if old == new else np.minimum(before + 1, old - 1)
    share = np.clip(at - before.astype(kind), 0, 1).astype(kind)
    return [(before, kind(1) - share), (after, share)]


RESAMPLED: dict[str, Callable[..., Any]] = {
    **{f"aten.max_pool{rank}d.default": _max_pool(rank) for rank in (1, 2)},
    "aten.max_pool2d_with_indices.default": _max_pool_with_places,
    **{f"aten.avg_pool{rank}d.default": _avg_pool(rank) for rank in (1, 2)},
    **{f"aten.upsample_nearest{rank}d.{overload}": _nearest for rank in (1, 2, 3) for overload in ("default", "vec")},
    **{
        f"aten.upsample_{name}.{overload}": _linear
        for name in ("linear1d", "bilinear2d")
        for overload in ("default", "vec")
    },
}
"""By overload; NotImplemented leaves the call whole."""
