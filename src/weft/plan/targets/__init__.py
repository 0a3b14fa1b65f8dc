"""targets: one folder for each way to make kernels, and the list of them.

In: the name of a target, `weft.target.Target`. Out: its `Toolchain`, which schedules, prints, builds, times, judges and saves
kernels for it. A new target is a folder with a subclass of `Toolchain`, and a line in `TOOLCHAINS`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from weft.errors import TargetError
from weft.lazy import export_lazily
from weft.plan.targets.base import Toolchain
from weft.plan.targets.cpp import Cpp
from weft.plan.targets.triton import TritonGpu
from weft.target import Target

if TYPE_CHECKING:
    from weft.plan.targets.base import Built
    from weft.plan.targets.launches import LaunchSpec, launch_specs

TOOLCHAINS: list[type[Toolchain]] = [
    Cpp,
    TritonGpu,
]


def toolchain(target: Target) -> Toolchain:
    """Returns the toolchain of a target.

    Raises:
        TargetError: there is no such target, or a GPU without its architecture.
    """
    found = next((each for each in TOOLCHAINS if target.kind in each.kinds), None)
    if found is None:
        raise TargetError(f"there is no target {str(target)!r}", todo=_meant(str(target)))
    if not found.knows(target):
        raise TargetError(f"the target {str(target)!r} names no known architecture", todo=_meant(str(target)))
    return found(target)


def _meant(text: str) -> str:
    """Says what to write instead of `text`, which names no target."""
    every = [name for each in TOOLCHAINS for name in each.architectures or each.kinds]
    known = [name for name in every if name.partition(":")[0] == text.partition(":")[0]] or every
    plain = (
        text.strip().lower().replace("sm_", "cuda:").replace("sm", "cuda:").replace("rocm", "hip").replace("amd", "hip")
    )
    plain = {"gpu": "cuda", "nvidia": "cuda"}.get(plain, plain)
    parts = {name: (name, *name.split(":")) for name in known}
    near = [name for name, own in parts.items() if plain in own or plain.partition(":")[2] in own[1:]]
    near = near or get_close_matches(plain, known, n=3)
    listed = " or ".join(f'"{name}"' for name in near or known)
    return f"did you mean {listed}?" if near else f"use {listed}"


__all__ = ["TOOLCHAINS", "Built", "LaunchSpec", "Toolchain", "launch_specs", "toolchain"]

export_lazily(__name__)
