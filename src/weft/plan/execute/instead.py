"""PyTorch for calls that kernels refuse when they run: where eager works, what is compiled works."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import CompilerError, LeftToPyTorchWarning, Location, NotBuiltError, TargetError, UnsupportedError
from weft.run import stats

REFUSALS = (UnsupportedError, CompilerError, TargetError, torch.OutOfMemoryError)
"""What a call raises when its kernels cannot run: a size that no kernel takes, a binary that cannot be made or loaded, no room."""

_MOST_REFUSED = 256
_heard = threading.local()


@dataclass(eq=False)
class Instead:
    """Runs a graph in PyTorch when its kernels have refused a call.

    The same call again goes to PyTorch at once, one that memory did not suffice for is asked about again; other sizes may go.
    Where Triton or the driver does not do at all, no kernel is asked any more.

    Attributes:
        eager: runs the graph in PyTorch.
        gone: not empty once there is no use in asking the kernels again.
        refused: calls that kernels do not take, the oldest first.
        lacking: told of a call that a kernel has no binary for yet (NotBuiltError), and of which kernel and class.
    """

    eager: Callable[..., Sequence[Any]]
    gone: list[str] = field(default_factory=list[str])
    refused: dict[Hashable, None] = field(default_factory=dict[Hashable, None])
    lacking: Callable[[Sequence[Any], str], None] | None = None

    def knows(self, arguments: Sequence[Any]) -> bool:
        """Tells whether PyTorch runs a call without the kernels being asked."""
        known = bool(self.gone) or _call_of(arguments) in self.refused
        if known:
            _hear(UnsupportedError)
        return known

    def note(self, error: Exception, arguments: Sequence[Any], *, raised: bool = False) -> None:
        """Remembers a call that was refused, and says why PyTorch runs it, unless the error is `raised`."""
        _hear(type(error))
        if isinstance(error, NotBuiltError) and self.lacking is not None:
            self.lacking(arguments, error.what)
            return
        if _is_of_the_machine(error):
            self.gone.append(str(error))
        elif not isinstance(error, torch.OutOfMemoryError):
            self.refused[_call_of(arguments)] = None
            while len(self.refused) > _MOST_REFUSED:
                self.refused.pop(next(iter(self.refused)), None)
        if not raised:
            stats.count("fallbacks")
            warn("this call", error)


def _is_of_the_machine(error: Exception) -> bool:
    """Tells whether no kernel can be expected to do better: Triton or the driver is missing, too old or set up wrongly.

    A kernel that Triton refuses for a class of sizes is named by its error.
    """
    return isinstance(error, TargetError) or (isinstance(error, CompilerError) and not error.kernel)


def _call_of(arguments: Sequence[Any]) -> Hashable:
    """Returns all of a call that its kernels' classes depend on, and more: sizes themselves."""
    return tuple(
        (a.shape, a.stride(), a.device, a.data_ptr() % 16) if isinstance(a, torch.Tensor) else a
        for a in arguments
        if isinstance(a, torch.Tensor | int)
    )


@contextmanager
def heard() -> Generator[list[type[Exception]]]:
    """Collects what this thread's calls meanwhile were refused with, one error type for each call that PyTorch ran."""
    before, _heard.found = getattr(_heard, "found", None), (found := list[type[Exception]]())
    try:
        yield found
    finally:
        _heard.found = before


def _hear(error: type[Exception]) -> None:
    found: list[type[Exception]] | None = getattr(_heard, "found", None)
    if found is not None:
        found.append(error)


SAID: set[str] = set()
"""What was warned of that concerns all graphs of this process alike."""
_SHOWN: dict[Any, Any] = {}
"""Python's note of the warnings that it has shown, so that each is shown once at a line, as its filters say."""


def warn(what: str, error: Exception) -> None:
    """Warns with LeftToPyTorchWarning that PyTorch runs something, and why; if the machine is the reason, once in a process.

    It is given at the line that the error is about, or the user's that called, so that none of weft's own is shown.
    """
    if isinstance(error, CompilerError | TargetError):
        if error.what in SAID:
            return
        SAID.add(error.what)
    message, place = f"weft runs {what} in PyTorch: {error}", getattr(error, "where", None)
    place = place if isinstance(place, Location) else Location.of_caller()
    if place is None:
        warnings.warn(message, LeftToPyTorchWarning, stacklevel=4)
    else:
        warnings.warn_explicit(message, LeftToPyTorchWarning, place.file, place.line, registry=_SHOWN)
