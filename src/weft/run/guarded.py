"""Guarded memory to test a kernel in: it shows whether something was written beside a tensor.

The memory is shared with children of this process (`weft.run.child`), so that what a kernel leaves there is seen here.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

# Bytes before and behind each tensor; and what those of an input, and all of a tensor before it is written, hold: NaN for every
# floating type, and integers that hardly any program makes. Those of an output hold something else: a row too many is made of what
# lies behind the input, and a NaN comes out of arithmetic with the bits that it had.
_GUARD = 512
POISON, _BESIDE_OUTPUTS = 0xFF, 0xA5


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor's bytes; its guards begin where those of the one before it ended, and hold `guard`."""

    guarded: int
    begin: int
    end: int
    guard: int
    read_only: bytes | None


@dataclass(eq=False)
class Guarded:
    """Memory for tensors of the CPU, given out once.

    Args:
        size: how many bytes; pages that nothing touches take no memory.

    Raises:
        OSError: the system gives no such memory.
    """

    size: int
    used: int = 0
    _pieces: list[_Piece] = field(default_factory=list[_Piece])

    def __post_init__(self) -> None:
        self._map = mmap.mmap(-1, self.size)
        self._bytes = np.frombuffer(self._map, np.uint8)  # numpy's own loops: one thread, and nothing to wait for
        self._torch = torch.frombuffer(self._map, dtype=torch.uint8)

    def allocate(
        self, sizes: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype, device: torch.device | None = None
    ) -> torch.Tensor:
        """Allocates a poisoned tensor, as `torch.empty_strided` does; MemoryError where there is no room left."""
        assert device is None or device.type == "cpu"
        reach = _reach(sizes, strides)
        guarded, begin, end = self._take(reach * dtype.itemsize, _BESIDE_OUTPUTS)
        self._pieces.append(_Piece(guarded, begin, end, _BESIDE_OUTPUTS, None))
        return self._view(begin, end, dtype).as_strided(tuple(sizes), tuple(strides))

    def holding(self, values: Array, dtype: torch.dtype, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
        """Makes a tensor that nothing may write to, with these strides, its first element so many elements behind 64 bytes.

        What lies between its elements is poison.

        Args:
            values: the bits of its elements: of the width of `dtype`.
        """
        shift = offset * values.itemsize
        guarded, begin, end = self._take(_reach(values.shape, strides) * values.itemsize + shift, POISON)
        if values.size:
            flat = np.frombuffer(self._map, values.dtype, (end - begin - shift) // values.itemsize, begin + shift)
            steps = [s * values.itemsize for s in strides]
            np.lib.stride_tricks.as_strided(flat, values.shape, steps)[...] = values
        self._pieces.append(_Piece(guarded, begin, end, POISON, self._map[begin:end]))
        return self._view(begin + shift, end, dtype).as_strided(values.shape, tuple(strides))

    def touched(self) -> str | None:
        """Says in words what was written that should not have been; None where nothing was."""
        for piece in self._pieces:
            for first, last in ((piece.guarded, piece.begin), (piece.end, piece.end + _GUARD)):
                if not bool((self._bytes[first:last] == piece.guard).all()):
                    return "something was written beside a tensor"
            if piece.read_only is not None and self._map[piece.begin : piece.end] != piece.read_only:
                return "an input was written to"
        return None

    def _take(self, count: int, guard: int) -> tuple[int, int, int]:
        """Takes a piece of so many bytes: returned are where its guards begin, where it begins, and its end."""
        guarded = self.used
        begin = -(-(guarded + _GUARD) // 64) * 64
        end = begin + count
        if end + _GUARD > self.size:
            raise MemoryError(f"{end + _GUARD} bytes are wanted of {self.size}")
        self._bytes[guarded : end + _GUARD] = guard
        self._bytes[begin:end] = POISON
        self.used = end + _GUARD
        return guarded, begin, end

    def _view(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        count = (end - begin) // dtype.itemsize
        if not count:
            return torch.empty(0, dtype=dtype)
        return self._torch[begin : begin + count * dtype.itemsize].view(dtype)


@dataclass(eq=False)
class GuardedOnGpu:
    """The same on a GPU, a piece of memory for each tensor.

    Args:
        device: the GPU.
    """

    device: torch.device
    _pieces: list[tuple[torch.Tensor, int, torch.Tensor | None]] = field(
        default_factory=list["tuple[torch.Tensor, int, torch.Tensor | None]"]
    )

    def allocate(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates a poisoned tensor, as `torch.empty_strided` does; OutOfMemoryError where there is no room left."""
        flat = self._take(_reach(sizes, strides) * dtype.itemsize, _BESIDE_OUTPUTS)
        return flat.view(dtype).as_strided(tuple(sizes), tuple(strides))

    def holding(self, values: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        """Makes a tensor that nothing may write to, of these elements with these strides; they are copied if they lie elsewhere."""
        count = _reach(values.shape, strides) * values.itemsize
        flat = self._take(count, POISON)
        made = flat.view(values.dtype).as_strided(tuple(values.shape), tuple(strides))
        made.copy_(values)
        whole, _, _ = self._pieces[-1]
        self._pieces[-1] = whole, count, whole.clone()
        return made

    def touched(self) -> str | None:
        """Says in words what was written that should not have been; None where nothing was: the GPU is asked once."""
        changed = [(flat != held).any() for flat, _, held in self._pieces if held is not None]
        guards = [g for flat, n, held in self._pieces if held is None for g in (flat[:_GUARD], flat[_GUARD + n :])]
        if guards:
            changed.append((torch.cat(guards) != _BESIDE_OUTPUTS).any())
        if not changed or not bool(torch.stack(changed).any()):
            return None
        for flat, n, held in self._pieces:
            guard = _BESIDE_OUTPUTS if held is None else POISON
            if any(bool((part != guard).any()) for part in (flat[:_GUARD], flat[_GUARD + n :])):
                return "something was written beside a tensor"
        return "an input was written to"

    def _take(self, count: int, guard: int) -> torch.Tensor:
        """Takes a piece of so many bytes, between guards that hold `guard`."""
        flat = torch.full((2 * _GUARD + -(-count // 16) * 16,), guard, dtype=torch.uint8, device=self.device)
        if guard != POISON:
            flat[_GUARD : _GUARD + count] = POISON
        self._pieces.append((flat, count, None))
        return flat[_GUARD : _GUARD + count]


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Counts the elements that a tensor spans."""
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
