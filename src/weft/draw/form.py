"""The form of a neural circuit diagram: what is drawn in columns, before anything has a position (Abbott 2023; Napkin, section 2).

Data and functions alternate. An item of data is a tuple of wires, one for each axis; a step takes items to items.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from weft.cost.optimum import Expr, sp
from weft.tensor.axes import Axis


class Colour(Enum):
    """Where data lies; the paper's two levels, black and orange."""

    device = "device"
    chip = "chip"


@dataclass(frozen=True, slots=True)
class Wire:
    """One axis of an item; `size` is its label: of the whole axis, or of a block, `g_x` on the grid and `s_x` in a loop."""

    axis: Axis
    size: Expr


@dataclass(frozen=True, slots=True)
class DataItem:
    """Data of one program value: a tuple of wires; without any it is a number.

    Attributes:
        key: unique in its diagram.
        name: of an input, an output or a state, else "".
    """

    key: int
    name: str
    wires: tuple[Wire, ...]
    level: Colour

    @property
    def values(self) -> Expr:
        """How many values it has: the product of its labels."""
        return sp.Mul(*(w.size for w in self.wires))


class StepKind(Enum):
    """What a step does: computes, moves between levels, takes or puts a block of a list on chip, or begins a loop's state."""

    operation = "operation"
    load = "load"
    store = "store"
    block = "block"
    start = "start"


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """One function of a column.

    Attributes:
        label: what its box says; "" for what has no box.
        title: the same in words, for readers who hear the picture.
        links: (wire of the inputs, wire of the outputs), both counted from the top over all items: axes that it is mapped over.
        moved: values that change level here, in all runs; None where no closed form is known.
    """

    kind: StepKind
    label: str
    title: str
    inputs: tuple[DataItem, ...]
    outputs: tuple[DataItem, ...]
    links: tuple[tuple[int, int], ...]
    moved: Expr | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that run once for each block of an axis, and the state that goes from one run to the next."""

    label: str
    carried: tuple[str, ...]
    steps: tuple[DrawnElement, ...]


DrawnElement: TypeAlias = DrawnStep | Loop


@dataclass(frozen=True, slots=True)
class Flow:
    """What a kernel, or an unfused program, does: the steps of a diagram in order.

    Attributes:
        inputs: what is there at the beginning.
        outputs: what remains at the end.
        groups: how many thread blocks run it; 1 where nothing is on the grid.
        memory: `M`, values that a thread block holds from block to block of a loop, of several launches the most that one holds;
            None where no closed form is known.
        why_not: why none is known, or "".
    """

    inputs: tuple[DataItem, ...]
    elements: tuple[DrawnElement, ...]
    outputs: tuple[DataItem, ...]
    groups: Expr
    memory: Expr | None
    why_not: str


@dataclass(frozen=True, slots=True)
class DataColumn:
    """The items between two columns of functions, those that only pass among them, and `M` of the column."""

    items: tuple[DataItem, ...]
    memory: Expr | None


@dataclass(frozen=True, slots=True)
class FunctionColumn:
    """The steps between two columns of data, and `H` of the column: None where no closed form is known."""

    steps: tuple[DrawnStep, ...]
    transfers: Expr | None


@dataclass(frozen=True, slots=True)
class Bracket:
    """A loop: the functions of columns `first` to `last` are in it."""

    label: str
    first: int
    last: int
    depth: int


@dataclass(frozen=True, slots=True)
class Columns:
    """A diagram without positions: `data[i]` is what `functions[i]` reads, `data[i + 1]` what is there after it."""

    flow: Flow
    data: tuple[DataColumn, ...]
    functions: tuple[FunctionColumn, ...]
    brackets: tuple[Bracket, ...]

    @property
    def transfers(self) -> Expr | None:
        """`H`: the sum over the columns; None where no closed form is known."""
        if any(column.transfers is None for column in self.functions):
            return None
        return sp.expand(sp.Add(*(column.transfers for column in self.functions)))


def spelled(expr: Expr) -> str:
    """Write an expression as a label: a space for a product, a raised 2 for a square."""
    return str(expr).replace("**2", "²").replace("**", "^").replace("*", " ")
