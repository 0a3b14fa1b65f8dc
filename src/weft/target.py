"""Where kernels run: the CPU, or a GPU of some architecture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from weft.errors import TargetError

_KINDS = ("cpu", "cuda", "hip")
ARCHITECTURES = {"cuda": ("80", "90", "100"), "hip": ("gfx942",)}
"""Those that kernels are tested for, oldest first, by kind; `weft.cost.gpu` knows others of the kind that they are like."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target: "cpu", "cuda:90", "hip:gfx942".

    Attributes:
        kind: whose code is made.
        arch: compute capability without its point ("90"), or AMD's name of the chip; empty for a CPU.
    """

    kind: Literal["cpu", "cuda", "hip"]
    arch: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind

    @property
    def is_gpu(self) -> bool:
        """True where the target's kernels are Triton's."""
        return self.kind != "cpu"

    @staticmethod
    def parse(text: str) -> Target:
        """Return the target that `text` names in full.

        Raises:
            TargetError: there is no such target, or a GPU without its architecture.
        """
        kind, _, arch = text.partition(":")
        if kind not in _KINDS:
            raise TargetError(f"there is no target {text!r}", todo=_meant(text))
        shape = {"cpu": "", "cuda": r"\d{2,3}", "hip": r"gfx[0-9a-f]{3,4}"}[kind]
        if not re.fullmatch(shape, arch):
            raise TargetError(f"the target {text!r} names no architecture that there is", todo=_meant(text, kind))
        return Target(kind, arch)


CPU = Target("cpu")


def _meant(text: str, kind: str = "") -> str:
    """Say what to write instead of `text`, which names no target; `kind`, where that much is right."""
    known = [str(CPU), *(f"{each}:{arch}" for each, archs in ARCHITECTURES.items() for arch in archs)]
    known = [name for name in known if name.partition(":")[0] == kind] or known
    plain = (
        text.strip().lower().replace("sm_", "cuda:").replace("sm", "cuda:").replace("rocm", "hip").replace("amd", "hip")
    )
    plain = {"gpu": "cuda", "nvidia": "cuda"}.get(plain, plain)
    parts = {name: (name, *name.split(":")) for name in known}
    near = [name for name, own in parts.items() if plain in own or plain.partition(":")[2] in own[1:]]
    near = near or get_close_matches(plain, known, n=3)
    listed = " or ".join(f'"{name}"' for name in near or known)
    return f"did you mean {listed}?" if near else f"use {listed}"
