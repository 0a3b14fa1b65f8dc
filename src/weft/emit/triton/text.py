"""Python as text: lines at a depth, and the words that no name may be."""

from __future__ import annotations

import keyword
from collections.abc import Generator
from contextlib import contextmanager

from weft.emit.text import factor

RESERVED = " ".join([*keyword.kwlist, "tl triton float int min max range program weft"])


class Writer:
    """Lines of Python at a depth."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append("    " * self.depth + text)

    def comment(self, text: str) -> None:
        """Write a line of comment, whatever the text holds."""
        self.line(f"# {' '.join(text.split())}")

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """Write `head:` and what it holds."""
        self.line(f"{head}:")
        self.depth += 1
        yield
        self.depth -= 1


def at_most(left: str, right: str) -> str:
    """Return the smaller of two sizes."""
    if left == right:
        return left
    if left.isdigit() and right.isdigit():
        return str(min(int(left), int(right)))
    return f"min({left}, {right})"


def at_least(left: str, right: str) -> str:
    """Return the larger of two sizes."""
    if left == right:
        return left
    if left.isdigit() and right.isdigit():
        return str(max(int(left), int(right)))
    return f"max({left}, {right})"


def whole_blocks(size: str, tile: str) -> str:
    """Count the elements of `size` that lie in whole blocks of `tile`."""
    return size if tile == "1" else f"{factor(size)} // {tile} * {tile}"


def blocks_of(size: str, tile: str) -> str:
    """Count the blocks of `tile` elements that `size` elements make."""
    if tile == "1":
        return size
    if size.isdigit() and tile.isdigit():
        return str(-(-int(size) // int(tile)))
    return f"tl.cdiv({size}, {tile})"


def call(function: str, *args: str) -> str:
    """Spell a call."""
    return f"{function}({', '.join(args)})"


def bracketed(items: list[str]) -> str:
    """Spell a tuple."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
