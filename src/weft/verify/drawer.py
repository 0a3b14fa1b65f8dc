"""What draws the numbers of inputs: numpy, or PyTorch where the kernels run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from weft.tensor.arrays import is_numpys
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.verify.torch_array import TorchArray


@dataclass(frozen=True, slots=True)
class Drawer:
    """What draws numbers, in numpy's memory.

    Attributes:
        rng: numpy's generator, of what is small in any case.
    """

    rng: np.random.Generator

    def here(self, values: Array) -> Array:
        """Returns an array where the numbers are that are drawn."""
        return values

    def normal(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Draws standard normal elements, float64, of no more digits than a type has."""
        if dtype is DType.float64:
            return self.rng.standard_normal(shape)
        return self.rng.standard_normal(shape, np.float32).astype(np.float64)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Draws elements between 0 and 1, float64."""
        return self.rng.uniform(size=shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Array:
        """Draws integers from `low` on and below `high`, as float64."""
        return self.rng.integers(low, high, shape).astype(np.float64)


@dataclass(frozen=True, slots=True)
class TorchDrawer(Drawer):
    """The same on a device: what is large is drawn there, and nothing of it is copied.

    Attributes:
        device: where.
    """

    device: torch.device
    _own: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        own = torch.Generator(self.device).manual_seed(int(self.rng.integers(1 << 62)))
        object.__setattr__(self, "_own", own)

    def here(self, values: Array) -> Array:
        """Returns an array where the numbers are that are drawn."""
        return TorchArray.of(values, self.device) if is_numpys(values) else values

    def normal(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Draws standard normal elements, float64, of no more digits than a type has."""
        kind = torch.float64 if dtype is DType.float64 else torch.float32
        found = torch.empty(shape, dtype=kind, device=self.device).normal_(generator=self._own)
        return TorchArray(found.double()).array

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Draws elements between 0 and 1, float64."""
        return TorchArray(self._empty(shape).uniform_(generator=self._own)).array

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Array:
        """Draws integers from `low` on and below `high`, as float64."""
        return TorchArray(self._empty(shape).random_(low, high, generator=self._own)).array

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self.device)
