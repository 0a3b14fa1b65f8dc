"""What printing one kernel shares in every language: identifiers, sizes, lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from weft.emit.text import Names, Spelling
from weft.errors import Location
from weft.tensor.axes import Space


class Comments(Protocol):
    """Lines of code that take comments.

    Attributes:
        lines: what is written so far.
        depth: of the next line: the number of blocks around it.
    """

    lines: list[str]
    depth: int

    def comment(self, text: str) -> None:
        """Write a line of comment, whatever the text holds."""
        ...


W = TypeVar("W", bound=Comments)


@dataclass
class KernelFrame(ABC, Generic[W]):
    """One kernel being printed.

    Attributes:
        names: its identifiers.
        sizes: those of the run-time sizes, by space.
        out: its lines.
    """

    names: Names
    sizes: Mapping[str, str]
    out: W
    spelling: ClassVar[Spelling]
    _located: tuple[tuple[str, ...], int, int] = field(default=((), 0, 0), init=False, repr=False)

    def size(self, space: Space) -> str:
        """Return the number of elements of `space`."""
        return str(space.fixed) if space.fixed is not None else self.sizes[space.name]

    @abstractmethod
    def hold(self, text: str, wish: str) -> str:
        """Print that a new name is the integer `text`, and return the name."""

    @abstractmethod
    def leave(self, condition: str) -> None:
        """Print that a program of the grid for which `condition` holds has nothing to do."""

    def location(self, locations: Sequence[Location | None]) -> None:
        """Print a comment that says which of the user's lines the next lines compute, unless the comment above says so already.

        A comment holds down to the next one, and no further than to where a block begins or ends.
        """
        said = tuple(dict.fromkeys(str(place) for place in locations if place is not None))
        if not said:
            return
        before, depth, end = self._located
        lines = self.out.lines
        if (said, self.out.depth) != (before, depth) or any(_interrupts(line, lines[end - 1]) for line in lines[end:]):
            for each in said:
                self.out.comment(each)
        self._located = said, self.out.depth, len(lines)


def _interrupts(line: str, before: str) -> bool:
    """Tell whether `line` is a comment, or deeper or less deep than `before`."""
    return line.lstrip().startswith(("#", "//")) or _indent(line) != _indent(before)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
