"""Room for Python's frames, where much is called from far down.

CPython (3.11 to 3.13) keeps the frames of calls in pieces of memory of 16 KiB. A call for which the last piece has no room asks the
system for another one, and gives it back when it returns. PyTorch's tracer calls a backend from far down; where a loop there
happens to call across the end of a piece, each call costs two system calls and a page fault, and all that weft does takes up to
three times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# So many places has the frame of `_called`, which needs a handful: half of 1 MiB and a little more. Pieces double until a frame
# fits, so that the other half is left for the frames of what it calls, a few thousand.
_PLACES = 1 << 16


def roomy(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` run with room for the frames of all that it calls, wherever it is called from."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return _called(function, *args, **kwargs)

    return run


def _called(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


_called.__code__ = _called.__code__.replace(co_stacksize=_PLACES)
