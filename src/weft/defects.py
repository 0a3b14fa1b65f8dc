"""What fails in weft and should not have: PyTorch runs what it concerns, and the user hears of it once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.errors import RefutedError, WeftError, WrongKernelError
from weft.options import current

_NOTICED: ContextVar[list[Exception] | None] = ContextVar("weft_defects", default=None)


def is_defect(error: BaseException) -> bool:
    """Tells whether weft itself failed: an error of `weft.errors` is a refusal, but for those of a wrong kernel and a wrong law."""
    return not isinstance(error, WeftError) or isinstance(error, WrongKernelError | RefutedError)


def reason_of(error: Exception) -> str:
    """Say to a user why weft does not run something: what weft says of it, or what failed in weft."""
    return error.what if isinstance(error, WeftError) else f"weft failed: {type(error).__name__}: {error}"


def note(error: Exception) -> None:
    """Note that something failed for which PyTorch will run instead, where it is a defect.

    Raises:
        Exception: `error` itself, where the option `defects` says so.
    """
    if not is_defect(error):
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
