"""What a user names as a target, and whether it is here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Never

import torch

from weft.errors import TargetError
from weft.plan import home, of_device, runs
from weft.run.gpu import interpreted
from weft.target import ARCHITECTURES, CPU, Target


def target_for(target: str | torch.device | None, inputs: Sequence[Any]) -> Target:
    """Find the target that a user means.

    Args:
        target: a name, a device of this machine, or None for where the inputs live.
        inputs: example inputs.

    Raises:
        TargetError: there is no such target; it is the CPU and the inputs live elsewhere; or a GPU is meant that is not here.
    """
    if target is None:
        return home(inputs)
    name = str(target)
    device = re.fullmatch(r"cuda(:\d)?", name)
    if device is None:
        found = Target.parse(name)
        away = {str(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"}
        if found == CPU and away:
            raise TargetError(
                f"the inputs are on {', '.join(sorted(away))}", todo="move them to the CPU, or use target=None"
            )
        return found
    if not torch.cuda.is_available():
        known = ", ".join(f'"{kind}:{arch}"' for kind, archs in ARCHITECTURES.items() for arch in archs)
        raise TargetError(f"there is no GPU here that {name!r} could mean", todo=f"name an architecture: {known}")
    return of_device(torch.device(name))


def runs_here(target: Target, where: Target) -> bool:
    """Tell whether kernels for `target` can be called with tensors that live at `where`."""
    return (target == where and runs(target)) or (target.is_gpu and where == CPU and interpreted.is_asked_for())


def elsewhere(target: Target) -> Callable[..., Never]:
    """Stand for a program whose kernels cannot run on the tensors it was compiled with."""

    def call(*args: Any, **kwargs: Any) -> Never:
        del args, kwargs
        raise TargetError(
            f"this program is for {target}, and the inputs that it was compiled with are not on such a GPU",
            todo="call weft.optimize with inputs on that GPU to run it; its kernels have source and binary here, and with "
            "TRITON_INTERPRET=1 in the environment before weft is imported programs run on the CPU, in Triton's slow interpreter",
        )

    return call
