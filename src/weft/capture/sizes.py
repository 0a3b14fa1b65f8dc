"""Facts about sizes."""

from __future__ import annotations

from typing import Any


def symbolic(size: Any) -> bool:
    """Tells whether a size is known only when the program runs; as typed, a size is always an int."""
    return not isinstance(size, int)
