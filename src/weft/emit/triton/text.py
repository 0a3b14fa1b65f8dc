"""Python as text: lines at a depth, and the words that no name may be."""

from __future__ import annotations

import keyword
from collections.abc import Generator
from contextlib import contextmanager

from weft.emit.text import Spelling

RESERVED = " ".join([*keyword.kwlist, "tl triton float int min max range program weft"])

SPELLING = Spelling("min", "max", "//", "tl.cdiv")


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


def call(function: str, *args: str) -> str:
    """Spell a call."""
    return f"{function}({', '.join(args)})"


def bracketed(items: list[str]) -> str:
    """Spell a tuple."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
