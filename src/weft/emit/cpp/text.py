"""Text: indentation, identifiers, and arithmetic on expressions that are text."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from weft.emit.text import Spelling

INCLUDE_DIR = Path(__file__).parent
"""Where `prelude.h` lies."""

RESERVED = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "const_cast constexpr continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register return short "
    "signed sizeof static struct switch template this throw true try typedef typeid typename union "
    "unsigned using virtual void volatile wchar_t while xor xor_eq main "
    # what the frame of a kernel and the prelude's macros use
    "weft i64 words threads team scratch products program wrong dense lane start count "
    "i j i0 i1 i2 i3 errno unix linux stdin stdout stderr"
)

SPELLING = Spelling("weft::min_index", "weft::max_index", "/", "weft::ceil_div")


class Writer:
    """Lines of code at a depth."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str) -> None:
        """Write one line; a directive stands at the left edge."""
        self.lines.append(text if text.startswith("#") else "  " * self.depth + text)

    def comment(self, text: str) -> None:
        """Write a line of comment; whatever the text holds, it cannot end early or go on on the next line."""
        self.line(f"// {' '.join(text.split()).rstrip(chr(92))}")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None]:
        """Write `head {` ... `}`."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)
