"""Facts about sizes."""

from __future__ import annotations

from typing import Any


def symbolic(size: Any) -> bool:
    """Tells whether a size is known only when the program runs; as typed, a size is always an int."""
    return not isinstance(size, int)


def expression(size: Any) -> Any:
    """Returns what tells sizes apart, without a guard: the number, or SymPy's expression of a symbolic one."""
    return size.node.expr if symbolic(size) else size


def number_or_expression(size: Any) -> Any:
    """Returns what `expression` does, with a number where a symbol turned out to be one."""
    found = expression(size)
    return int(found) if getattr(found, "is_Integer", False) else found
