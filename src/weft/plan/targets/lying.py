"""How tensors lie in memory: their strides and where they start, which decide what binary of a GPU's kernel a call needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.tensor.laws import View

DIVISIBLE = 16
"""Triton compiles for sizes, strides and addresses in bytes that are divisible by so many, and for others."""


@dataclass(frozen=True, slots=True)
class Lying:
    """How a tensor lies in memory.

    Attributes:
        strides: of each dimension, in elements; 0 where its elements are one, as in an expanded tensor.
        start: what is left of the address of its first element when that is divided by `DIVISIBLE`.
    """

    strides: tuple[int, ...]
    start: int = 0

    @staticmethod
    def of(tensor: torch.Tensor) -> Lying | None:
        """Tells how a strided tensor lies; None of another one, or where that is not known before the call.

        One without memory is taken to begin as far from an aligned address as from its storage's.
        """
        if tensor.layout != torch.strided:
            return None
        numbers: tuple[object, ...] = (tensor.storage_offset(), *tensor.stride())
        if not all(isinstance(number, int) for number in numbers):
            return None
        real = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta
        address = tensor.data_ptr() if real else int(tensor.storage_offset()) * tensor.element_size()
        return Lying(tuple(tensor.stride()), address % DIVISIBLE)

    def viewed(self, view: View, shape: Sequence[int], element_bytes: int) -> Lying:
        """Tells how `view` lies in a tensor of this `shape` that lies so, its elements of so many bytes.

        A dimension that runs backwards is turned in a copy, which has the strides of what it is a copy of.
        """
        strides = view.strides(self.strides)
        if min(strides, default=0) < 0:
            return Lying(self.strides).viewed(view.turned(), shape, element_bytes)
        offset = view.offset(shape, self.strides) * element_bytes
        return Lying(strides, (self.start + offset) % DIVISIBLE)

    def repeats(self, shape: Sequence[int]) -> bool:
        """Tells whether different elements of a tensor of this `shape` lie at one place, as those of windows do; elements of a
        dimension of stride 0 are one.
        """
        reach = 1
        for stride, size in sorted((s, n) for s, n in zip(self.strides, shape, strict=True) if s and n > 1):
            if stride < reach:
                return True
            reach += stride * (size - 1)
        return False


def dense(shape: Sequence[int], innermost: int | None = None) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps, with dimension `innermost` its last."""
    order = list(range(len(shape)))
    if innermost is not None:
        order.append(order.pop(innermost))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def as_lies(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns strides for a tensor of another `shape` that calls a kernel as one with these `strides` does: those that are 1 are,
    and those that are divisible by `DIVISIBLE`. Each element has a place of its own.
    """
    found, reach = [0] * len(shape), 1
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim] or float("inf"), -dim))
    for dim in order:
        step = reach
        if strides[dim] % DIVISIBLE == 0:
            step = -(-reach // DIVISIBLE) * DIVISIBLE
        elif strides[dim] != 1:
            step = max(reach, 2)
            step += step % DIVISIBLE == 0
        found[dim] = step
        reach = step * max(shape[dim], 1)
    return tuple(found)


def laid_out(made: torch.Tensor, lying: Lying) -> torch.Tensor:
    """Returns a tensor of the elements of `made` that lies so; `made` itself where it does. Its place is PyTorch's own.

    Along dimensions of stride 0 it has the first elements. No other elements may share a place (`Lying.repeats`).
    """
    if made.stride() == lying.strides and not lying.start:
        return made
    reach = 0 if 0 in made.shape else 1 + sum((n - 1) * s for n, s in zip(made.shape, lying.strides, strict=True))
    start = lying.start // made.element_size()
    found = made.new_empty(start + reach).as_strided(made.shape, lying.strides, start)
    once = tuple(slice(None) if stride else slice(0, 1) for stride in lying.strides)
    found[once].copy_(made[once])
    return found
