"""The name of what kernels are made for: the CPU, or a GPU of some architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A target by name: "cpu", "cuda:90", "hip:gfx942". What weft does for it is its toolchain's (`weft.plan.targets`).

    Attributes:
        kind: whose code is made.
        arch: compute capability without its point ("90"), or AMD's name of the chip; empty for a CPU.
    """

    kind: str
    arch: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind

    @staticmethod
    def parse(text: str) -> Target:
        """Return the target that `text` names; whether there is one, `weft.plan.targets.base` says."""
        kind, _, arch = text.partition(":")
        return Target(kind, arch)


CPU = Target("cpu")
