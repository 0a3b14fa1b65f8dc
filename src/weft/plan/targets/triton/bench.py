"""Where kernels for a GPU run to be judged."""

from __future__ import annotations

import torch

from weft.plan.targets.bench import Bench
from weft.plan.targets.lying import Lying, as_lies
from weft.run.guarded import GuardedOnGpu


class GpuBench(Bench):
    """Runs kernels on a GPU, on a piece of its memory for each tensor.

    Raises:
        OutOfMemoryError: `holding` and launchers, where the GPU has no room left.
    """

    def __init__(self, device: torch.device) -> None:
        self.memory = GuardedOnGpu(device)

    def holding(self, values: torch.Tensor, number: int, lying: Lying) -> torch.Tensor:
        """Makes an input that lies as the example's does: the binary is for that."""
        del number
        assert isinstance(self.memory, GuardedOnGpu)
        return self.memory.holding(values, as_lies(values.shape, lying.strides))
