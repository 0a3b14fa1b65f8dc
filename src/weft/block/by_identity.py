"""What is found out of parts of programs, kept by which objects these are.

Rewrites and other sizes of blocks leave most operators of a program as they are: what depends on these alone is worked out once.
Objects are told apart as such, since to compare two operators takes as long as to look at one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_MOST = 1 << 14


class ByIdentity(Generic[T]):
    """A function of objects that do not change, called once for each as long as not too many others come between."""

    def __init__(self, find: Callable[..., T]) -> None:
        self._find = find
        self._found: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    def __call__(self, *parts: Any) -> T:
        """Return what the function gives for `parts`; raises what it raises."""
        key = tuple([id(part) for part in parts])
        known = self._found.get(key)
        if known is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            known = self._found[key] = parts, self._find(*parts)  # the parts are kept: nothing else gets their numbers
        return known[1]
