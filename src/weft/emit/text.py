"""Identifiers, and arithmetic on expressions that are text: what is alike in every language, and how languages differ in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(r"[\w.]+")
_PRODUCT = re.compile(r"[\w.]+( \* [\w.]+)*")


class Names:
    """Identifiers of one function, each given once; `reserved` are words that it cannot have."""

    def __init__(self, reserved: str) -> None:
        self._taken: set[str] = set(reserved.split())

    def make(self, wish: str) -> str:
        """Make an identifier that nothing else has: `wish`, or what comes nearest to it."""
        stem = re.sub(r"\W+", "_", wish, flags=re.ASCII).strip("_") or "v"
        stem = re.sub(r"__+", "_", f"v{stem}" if stem[0].isdigit() else stem)
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name


def factor(text: str) -> str:
    """Return `text` as it can stand in a product."""
    return text if _PRODUCT.fullmatch(text) or _is_call(text) else f"({text})"


def times(*factors: str) -> str:
    """Spell the product, with constants folded."""
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
    """Spell the sum, with constants folded."""
    number, rest = 0, list[str]()
    for each in terms:
        if each.isdigit():
            number += int(each)
        else:
            rest.append(each)
    return " + ".join(rest + ([str(number)] if number or not rest else []))


def minus(left: str, right: str) -> str:
    """Spell the difference."""
    if left == right:
        return "0"
    if right == "0":
        return left
    if left.startswith(f"{right} + "):
        return left[len(right) + 3 :]
    return f"{left} - {right if _PRODUCT.fullmatch(right) or _is_call(right) else f'({right})'}"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a language spells arithmetic on sizes.

    Attributes:
        smaller, larger: functions of two sizes.
        divided: stands between a size and what it is divided by, without a remainder.
        ceil_div: the function of two sizes that rounds their quotient up.
    """

    smaller: str
    larger: str
    divided: str
    ceil_div: str

    def at_most(self, left: str, right: str) -> str:
        """Return the smaller of two sizes."""
        if left.isdigit() and right.isdigit():
            return str(min(int(left), int(right)))
        return left if left == right else f"{self.smaller}({left}, {right})"

    def at_least(self, left: str, right: str) -> str:
        """Return the larger of two sizes."""
        if left.isdigit() and right.isdigit():
            return str(max(int(left), int(right)))
        return left if left == right else f"{self.larger}({left}, {right})"

    def whole_blocks(self, size: str, tile: str) -> str:
        """Count the elements of `size` that lie in whole blocks of `tile`."""
        return size if tile == "1" else f"{factor(size)} {self.divided} {tile} * {tile}"

    def blocks_of(self, size: str, tile: str) -> str:
        """Count the blocks of `tile` elements that `size` elements make."""
        if tile == "1":
            return size
        if size.isdigit() and tile.isdigit():
            return str(-(-int(size) // int(tile)))
        return f"{self.ceil_div}({size}, {tile})"


def stripped(text: str) -> str:
    """Return `text` without the parentheses around all of it."""
    return text[1:-1] if text.startswith("(") and _closes(text, 0) == len(text) - 1 else text


def is_word(text: str) -> bool:
    """Tell whether the text is an identifier or a number."""
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
