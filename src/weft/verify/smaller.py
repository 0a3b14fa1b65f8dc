"""Shrinking an input that shows something: fewer elements, and as many of them 0 or 1 as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Tensors = tuple[torch.Tensor, ...]

_MOST_TRIES = 120
_SIZES = (1, 2, 3, 5)


def smaller(inputs: Tensors, holds: Callable[[Tensors], bool]) -> Tensors:
    """Finds the smallest input for which `holds` is true, as it is for `inputs`.

    Dimensions of one size are cut together, from either end; then tensors, halves of them and so on become 0, or else 1.
    """
    left = _MOST_TRIES
    improved = True
    while improved and left > 0:
        improved = False
        for made in _cuts(inputs):
            left -= 1
            if holds(made):
                inputs, improved = made, True
                break
            if left <= 0:
                break
    for place in range(len(inputs)):
        inputs, left = _plain(inputs, place, holds, left)
    return inputs


def _cuts(inputs: Tensors) -> Iterator[Tensors]:
    """Yields inputs with fewer elements along all dimensions of one size: few, or half of them, or one less; the first
    or the last.
    """
    for size in sorted({n for x in inputs for n in x.shape}, reverse=True):
        for count in dict.fromkeys((*(c for c in _SIZES if c < size), size // 2, size - 1)):
            if 0 < count < size:
                for last in (False, True):
                    yield tuple(_cut(x, size, count, last) for x in inputs)


def _cut(x: torch.Tensor, size: int, count: int, last: bool) -> torch.Tensor:
    for dim, own in enumerate(x.shape):
        if own == size:
            x = x.narrow(dim, size - count if last else 0, count)
    return x.clone(memory_format=torch.contiguous_format)


def _plain(inputs: Tensors, place: int, holds: Callable[[Tensors], bool], left: int) -> tuple[Tensors, int]:
    """Sets parts of one tensor of `inputs` to 0 or 1, the largest parts first."""
    count = inputs[place].numel()
    pending = [(0, count)] if count else []
    while pending and left > 0:
        start, stop = pending.pop(0)
        part = inputs[place].reshape(-1)[start:stop]
        for value in (0, 1):
            if bool((part == value).all()):
                break
            made = inputs[place].clone().reshape(-1)
            made[start:stop] = value
            tried = (*inputs[:place], made.view(inputs[place].shape), *inputs[place + 1 :])
            left -= 1
            if holds(tried):
                inputs = tried
                break
        else:
            if stop - start > 1:
                middle = (start + stop) // 2
                pending += [(start, middle), (middle, stop)]
    return inputs, left
