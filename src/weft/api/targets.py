"""Finding the target or the chip that a user names, and whether this machine has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Never

import torch

from weft.api.given import kind_of
from weft.cost import CHIPS
from weft.cost import chip as named_chip
from weft.cost.chip import Chip
from weft.errors import ArgumentError, TargetError
from weft.plan import home, of_device
from weft.plan.targets import TOOLCHAINS, toolchain
from weft.target import Target


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
        chain = toolchain(found)
        away = {str(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"}
        if away and not chain.crosses:
            raise TargetError(
                f"the inputs are on {', '.join(sorted(away))}", todo="move them to the CPU, or use target=None"
            )
        return found
    if not torch.cuda.is_available():
        known = ", ".join(f'"{name}"' for each in TOOLCHAINS if "cuda" in each.kinds for name in each.architectures)
        raise TargetError(f"this machine has no GPU for {name!r}", todo=f"name an architecture: {known}")
    return of_device(torch.device(name))


def chip_for(chip: Any) -> Chip | None:
    """Find the chip that a user means by the name of a published one, or by a `Chip`; None for none.

    Raises:
        TargetError: weft knows no chip of that name.
        ArgumentError: it is neither.
    """
    if isinstance(chip, str):
        return named_chip(chip)
    if not isinstance(chip, Chip | None):
        known = ", ".join(sorted(CHIPS))
        raise ArgumentError(f"the chip is {kind_of(chip)}", todo=f"name one ({known}), or give what read_chip returns")
    return chip


def elsewhere(target: Target) -> Callable[..., Never]:
    """Stand for a program whose kernels cannot run on the tensors it was compiled with."""

    def call(*args: Any, **kwargs: Any) -> Never:
        del args, kwargs
        raise TargetError(
            f"this program is for {target}, but the inputs that it was compiled with are not on such a GPU",
            todo="call weft.optimize with inputs on that GPU to run it; its kernels have source and binary here, and with "
            "TRITON_INTERPRET=1 in the environment before weft is imported programs run on the CPU, in Triton's slow interpreter",
        )

    return call
