"""Where tensors live, as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.cost import gpu
from weft.errors import TargetError
from weft.run.gpu import interpreted
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


def runs(target: Target) -> bool:
    """Tells whether weft runs kernels for `target` on tensors that live there: those for AMD's GPUs it only makes."""
    return target.kind != "hip" or interpreted.is_asked_for()


def demand_running(target: Target) -> None:
    """Raises TargetError where weft has no kernels for `target`, or does not run them."""
    if target.is_gpu:
        gpu(target)
    if not runs(target):
        raise TargetError(
            f"weft compiles kernels for {target}, but does not run them",
            todo="nothing: PyTorch runs this; weft.optimize(..., target=...) gives the kernels' text and binary",
        )
