"""Where kernels run to be judged, and by which measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from weft.plan.targets.lying import Lying
from weft.run.guarded import Guarded, GuardedOnGpu
from weft.run.launch import Launcher
from weft.tensor.laws import View
from weft.tensor.program import TensorProgram

MEMORY = 1 << 28
"""Bytes of memory that kernels are judged in, of which what is not touched costs nothing."""

_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the kernels of one region are judged by.

    Attributes:
        written: the region's program as it was cut.
        centred: what laws made of it, with the reindexings that became views.
        views: those.
        names: the space of `written` for each name of a space of the kernels' program.
        example: sizes by those names.
        lying: how inputs of the kernels' program lie in calls like the example.
        constant: the spaces of `written` that are as long at each call as in the example, by name.
        device: the GPU that runs them; None: a CPU.
    """

    written: TensorProgram
    centred: TensorProgram
    views: tuple[View, ...]
    names: Mapping[str, str]
    example: Mapping[str, int]
    lying: Mapping[str, Lying]
    constant: frozenset[str] = frozenset()
    device: torch.device | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The example's sizes by the names of the spaces of `written`."""
        return {self.names[name]: size for name, size in self.example.items() if name in self.names}


class Serving(Protocol):
    """Tells at which sizes kernels can be judged without another binary."""

    def at_least(self, name: str, size: int) -> int:
        """Returns the least size of a space from `size` on that may be served; the example's where there is none near."""
        ...

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Tells whether calls of these sizes are."""
        ...


@dataclass(eq=False)
class Bench:
    """Where kernels run to be judged: on the CPU, on memory with guards, each when it is launched.

    Raises:
        MemoryError: `holding` and launchers, where there is no room left.
    """

    memory: Guarded | GuardedOnGpu = field(default_factory=lambda: Guarded(MEMORY))

    def holding(self, values: torch.Tensor, number: int, lying: Lying) -> torch.Tensor:
        """Makes an input that nothing may write to; `number` counts the cases, `lying` is how the example's lies."""
        del lying
        assert isinstance(self.memory, Guarded)
        bits = values.contiguous().view(_OF_WIDTH[values.itemsize]).numpy()
        return self.memory.holding(bits, values.dtype, several_strides(bits.shape, number), offset=number % 3)

    def launcher(self, made: Any) -> Launcher:
        """Makes a launcher for a kernel whose outputs lie in this memory."""

        def allocate(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return self.memory.allocate(sizes, strides, dtype=dtype)

        return made.launching(allocate)

    def ended(self, meanwhile: Callable[[], None]) -> str | None:
        """Runs what was launched, if it has not run, and says what went wrong; `meanwhile` is work to do beside it."""
        del meanwhile
        return self.memory.touched()


def several_strides(shape: Sequence[int], number: int) -> tuple[int, ...]:
    """Chooses strides: dense at first; then with gaps between rows, with steps, and turned round."""
    order = list(range(len(shape)))
    if number % 4 == 3:
        order.reverse()
    strides = [0] * len(shape)
    step = 2 if number % 4 == 2 else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
        step += 3 if number % 4 == 1 else 0
    return tuple(strides)
