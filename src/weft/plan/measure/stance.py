"""PyTorch's stance (`torch.compiler.set_stance`): whether a call may have something new compiled or timed."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from weft.tracer import eval_frame

T = TypeVar("T")

_MODULE: Any = eval_frame
_COMPILING = ("default", "eager_then_compile", "aot_eager_then_compile")


def may_compile() -> bool:
    """Tell whether the stance lets a call have something new compiled, or timed to choose between what there is."""
    return _MODULE._stance.stance in _COMPILING  # noqa: SLF001 - no public name


def is_default() -> bool:
    """Tell whether a call now does what it does where no stance was set, and with the backend it was compiled for."""
    stance = _MODULE._stance  # noqa: SLF001 - no public name
    return stance.stance == "default" and stance.backend is None


def backend_is_forced() -> bool:
    """Tell whether PyTorch is to compile with another backend than the one a function was compiled for."""
    return _MODULE._stance.backend is not None  # noqa: SLF001 - no public name


@contextmanager
def default_stance() -> Generator[None]:
    """Let PyTorch trace inside, whatever the stance: for what was asked for in so many words, as by `weft.optimize`."""
    if is_default():  # nothing to change, and inside of a traced function PyTorch lets nobody do so
        yield
        return
    with torch.compiler.set_stance("default"):
        yield


def nearest(chosen: Mapping[tuple[int, ...], T], sizes: tuple[int, ...]) -> T | None:
    """Return what was chosen for the size class that is nearest to `sizes`; None where nothing was chosen yet."""
    known = tuple(chosen.items())  # at once: other threads add to it
    if not known:
        return None
    return min(known, key=lambda each: sum(abs(a - b) for a, b in zip(each[0], sizes, strict=True)))[1]
