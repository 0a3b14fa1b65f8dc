"""How much of a long list a run of the tests tries: a share spread over the list; with WALK_ALL=1 in the environment all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

WALK_ALL = os.environ.get("WALK_ALL") == "1"


def share(items: Iterable[T], one_in: int, start: int = 0) -> list[T]:
    """Every `one_in`-th of `items` from number `start` on; all of them where the whole walk is asked for."""
    return list(items) if WALK_ALL else list(items)[start % one_in :: one_in]
