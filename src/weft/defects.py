"""What fails in weft and should not have: PyTorch runs what it concerns, and the user hears of it once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.errors import WeftError
from weft.options import current

_NOTICED: ContextVar[list[Exception] | None] = ContextVar("weft_defects", default=None)


def note(error: Exception) -> None:
    """Note that something failed for which PyTorch will run instead. An error of `weft.errors` is a refusal, and no defect.

    Raises:
        Exception: `error` itself, where the option `defects` says so.
    """
    if isinstance(error, WeftError):
        return
    if current().defects == "raise":
        raise error
    found = _NOTICED.get()
    if found is not None:
        found.append(error)


@contextmanager
def noticed() -> Generator[list[Exception]]:
    """Collects the defects that are noted meanwhile, in order."""
    token = _NOTICED.set(found := list[Exception]())
    try:
        yield found
    finally:
        _NOTICED.reset(token)
