"""PyTorch for calls that kernels refuse when they run: where eager works, what is compiled works."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import CompilerError, TargetError, UnsupportedError
from weft.run import stats

REFUSALS = (UnsupportedError, CompilerError, TargetError, torch.OutOfMemoryError)
"""What a call raises when its kernels cannot run: a size that no kernel takes, a binary that cannot be made or loaded, no room."""


@dataclass(eq=False)
class Instead:
    """Runs a graph in PyTorch when its kernels have refused a call.

    A binary that cannot be made or loaded is asked for once; a call with other sizes, or when there is more memory, may go.

    Attributes:
        eager: runs the graph in PyTorch.
        gone: not empty once there is no use in asking the kernels again.
    """

    eager: Callable[..., Sequence[Any]]
    gone: list[str] = field(default_factory=list[str])

    def note(self, error: Exception) -> None:
        """Says why PyTorch runs a call."""
        stats.count("fallbacks")
        if isinstance(error, CompilerError | TargetError):
            self.gone.append(str(error))
        warn("this call", error)


SAID: set[str] = set()
"""What was warned of that concerns all graphs of this process alike."""


def warn(what: str, error: Exception) -> None:
    """A warning that weft has PyTorch run something, and why; where the machine is the reason, once in a process."""
    if isinstance(error, CompilerError | TargetError):
        if error.what in SAID:
            return
        SAID.add(error.what)
    warnings.warn(f"weft runs {what} in PyTorch: {error}", RuntimeWarning, stacklevel=4)
