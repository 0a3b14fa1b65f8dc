"""The target of the device that tensors live on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.target import CPU, Target


def home(arguments: Sequence[Any]) -> Target:
    """Returns the target that the tensors of `arguments` live on: the first GPU among their devices, the CPU where
    there is none.
    """
    device = gpu_of(arguments)
    return CPU if device is None else of_device(device)


def gpu_of(arguments: Sequence[Any]) -> torch.device | None:
    """Returns the first GPU that a tensor of `arguments` lives on; None where all are on the CPU."""
    return next((a.device for a in arguments if isinstance(a, torch.Tensor) and a.device.type == "cuda"), None)


def of_device(device: torch.device) -> Target:
    """Returns the architecture of a GPU of this machine."""
    found: Any = vars(torch.cuda)["get_device_properties"](device)  # not fully known to type checkers
    if torch.version.hip is not None:
        return Target("hip", found.gcnArchName.partition(":")[0])
    return Target("cuda", f"{found.major}{found.minor}")
