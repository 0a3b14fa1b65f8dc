"""Text: indentation, identifiers, and arithmetic on expressions that are text."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

INCLUDE_DIR = Path(__file__).parent
"""Where `prelude.h` lies."""

_RESERVED = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "const_cast constexpr continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register return short "
    "signed sizeof static struct switch template this throw true try typedef typeid typename union "
    "unsigned using virtual void volatile wchar_t while xor xor_eq main "
    # what the frame of a kernel and the prelude's macros use
    "weft i64 words threads scratch products program dense lane i j i0 i1 i2 i3 errno unix linux stdin stdout stderr"
)
_WORD = re.compile(r"[\w.]+")
_PRODUCT = re.compile(r"[\w.]+( \* [\w.]+)*")


class Names:
    """Identifiers of one function, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(_RESERVED.split())

    def make(self, wish: str) -> str:
        """`wish`, or what comes nearest to it: an identifier that nothing else has."""
        stem = re.sub(r"\W+", "_", wish, flags=re.ASCII).strip("_") or "v"
        stem = re.sub(r"__+", "_", f"v{stem}" if stem[0].isdigit() else stem)
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name


class Writer:
    """Lines of code at a depth."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str) -> None:
        """One line; a directive stands at the left edge."""
        self.lines.append(text if text.startswith("#") else "  " * self.depth + text)

    def comment(self, text: str) -> None:
        """A line of comment; whatever the text holds, it cannot end early or go on on the next line."""
        self.line(f"// {' '.join(text.split()).rstrip(chr(92))}")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Generator[None]:
        """`head {` ... `}`."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)


def factor(text: str) -> str:
    """`text` as it can stand in a product."""
    return text if _PRODUCT.fullmatch(text) or _is_call(text) else f"({text})"


def times(*factors: str) -> str:
    """The product, with constants folded."""
    number, rest = 1, list[str]()
    for each in factors:
        if each.isdigit():
            number *= int(each)
        else:
            rest.append(factor(each))
    if number == 0 or not rest:
        return str(number)
    return " * ".join(([] if number == 1 else [str(number)]) + rest)


def plus(*terms: str) -> str:
    """The sum, with constants folded."""
    number, rest = 0, list[str]()
    for each in terms:
        if each.isdigit():
            number += int(each)
        else:
            rest.append(each)
    return " + ".join(rest + ([str(number)] if number or not rest else []))


def minus(left: str, right: str) -> str:
    """The difference."""
    if left == right:
        return "0"
    if right == "0":
        return left
    if left.startswith(f"{right} + "):
        return left[len(right) + 3 :]
    return f"{left} - {right if _PRODUCT.fullmatch(right) or _is_call(right) else f'({right})'}"


def at_most(left: str, right: str) -> str:
    """The smaller of two sizes."""
    if left == right:
        return left
    if left.isdigit() and right.isdigit():
        return str(min(int(left), int(right)))
    return f"weft::min_index({left}, {right})"


def blocks_of(size: str, tile: str) -> str:
    """How many blocks of `tile` elements `size` elements make."""
    if tile == "1":
        return size
    if size.isdigit() and tile.isdigit():
        return str(-(-int(size) // int(tile)))
    return f"weft::ceil_div({size}, {tile})"


def stripped(text: str) -> str:
    """`text` without the parentheses around all of it."""
    return text[1:-1] if text.startswith("(") and _closes(text, 0) == len(text) - 1 else text


def is_word(text: str) -> bool:
    """True for an identifier or a number."""
    return _WORD.fullmatch(text) is not None


def _is_call(text: str) -> bool:
    start = re.match(r"[\w:]*\(", text)
    return start is not None and _closes(text, start.end() - 1) == len(text) - 1


def _closes(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return -1
