"""The form of a report: titled sections of prose, tables, code, rewrites and pictures. Text is one fold over it, a page another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Prose:
    """Lines to read; also programs and tables in plain text where `listing` is true, which a page sets as code."""

    text: str
    listing: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with as many cells as `head`; the last `numbers` columns are numbers, set to the right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0

    def __str__(self) -> str:
        """Print it as plain text, in columns."""
        lines = (self.head, *self.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        left = len(widths) - self.numbers

        def line(cells: tuple[str, ...]) -> str:
            set_ = (c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
            return "  ".join(set_).rstrip()

        return "\n".join((f"{self.title}:", *(f"  {line(cells)}" for cells in lines)))


@dataclass(frozen=True, slots=True)
class SourceCode:
    """Text in a programming language; a page highlights it, plain text leaves it out."""

    text: str
    language: str


@dataclass(frozen=True, slots=True)
class ShownRewrite:
    """One step, and the programs before and after it, which `str` prints; plain text has the step alone."""

    title: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG element, drawn when a page needs it. Plain text leaves it out."""

    title: str
    draw: Callable[[], str]


Content: TypeAlias = Prose | Table | SourceCode | ShownRewrite | Picture


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        level: of its heading; 1 is what comes first, and stays unfolded in a page.
    """

    title: str
    contents: tuple[Content, ...]
    level: int = 2

    @property
    def text(self) -> str:
        """Its content in plain text; "" where it has none."""
        return "\n".join(filter(None, map(as_text, self.contents)))


def as_text(content: Content) -> str:
    """Print `content` as plain text."""
    match content:
        case Prose(text):
            return text
        case Table():
            return str(content)
        case ShownRewrite(title):
            return title
        case SourceCode() | Picture():
            return ""
        case _:
            assert_never(content)


def plain(sections: Iterable[Section]) -> str:
    """Print sections as plain text; those of which it has nothing to say are left out."""
    return "\n\n".join(f"== {each.title}\n{each.text}" for each in sections if each.text)
