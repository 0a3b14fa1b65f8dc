"""The form of a laid-out diagram: columns, and everything that has a position. Printers read nothing else.

Positions are in pixels at the size of the text; `y` grows downwards, and texts stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weft.cost.optimum import Expr
from weft.draw.form import Colour, Columns


class Font(Enum):
    """Sizes of texts, in pixels."""

    label = 10
    text = 12

    def width(self, text: str) -> float:
        """Return how wide `text` is: the font has one width."""
        return len(text) * self.value * 0.605


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text that begins at `x`; `role` names its class of style."""

    x: float
    y: float
    text: str
    font: Font
    role: str

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom."""
        return (
            self.x,
            self.y - self.font.value * 0.8,
            self.x + self.font.width(self.text),
            self.y + self.font.value * 0.22,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """A wire's way: from one point to the next, each a level apart or drawn as a curve. `dotted` is an item without axes."""

    points: tuple[tuple[float, float], ...]
    level: Colour
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Separator:
    """The dashed line between two members of a tuple."""

    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Box:
    """A function, or (`role` "loop") the frame of a loop."""

    x: float
    y: float
    width: float
    height: float
    title: str
    role: str


@dataclass(frozen=True, slots=True)
class Joint:
    """Where wires meet or end in a function: an axis that it sums over, or makes."""

    x: float
    y: float
    level: Colour


@dataclass(frozen=True, slots=True)
class Diagram:
    """A neural circuit diagram with positions.

    Attributes:
        title: for those who see it, and those who hear it.
        columns: what is drawn, with `H` and `M` of each column.
        memory: `M` of the whole: what lasts from block to block; None where no closed form is known.
    """

    title: str
    columns: Columns
    width: float
    height: float
    lines: tuple[Line, ...]
    separators: tuple[Separator, ...]
    boxes: tuple[Box, ...]
    dots: tuple[Joint, ...]
    texts: tuple[Text, ...]

    @property
    def transfers(self) -> Expr | None:
        """`H`: values that change level, summed over the columns; None where no closed form is known."""
        return self.columns.transfers

    @property
    def memory(self) -> Expr | None:
        """`M`: values that a thread block holds from block to block; None where no closed form is known."""
        return self.columns.flow.memory

    @property
    def why_not(self) -> str:
        """Why no closed form is known, or ""."""
        return self.columns.flow.why_not
