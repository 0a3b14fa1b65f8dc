"""What a name of the program stands for while its kernel is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.block.program import Collapse, Extent, Index, Literal, Pointwise
from weft.emit.kinds import kind_of
from weft.errors import Location
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Scalar, operations, parts


@dataclass(frozen=True, slots=True)
class ListMemory:
    """A list in memory.

    Attributes:
        base: pointer to the element where every axis is at its origin.
        dtype: of an element.
        strides: elements from one index to the next, for each axis.
        origins: for each axis, the element at which the memory starts.
    """

    base: str
    dtype: DType
    strides: tuple[str, ...]
    origins: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class ItemMemory:
    """An item in memory.

    Attributes:
        base: pointer to its first element; or the variable itself.
        dtype: of an element.
        strides: elements from one index to the next, for each of `dims`.
        dims: its axes.
        variable: `base` is a variable that holds an item without axes.
        owned: scratch of this kernel, and not a part of a list.
    """

    base: str
    dtype: DType
    strides: Mapping[Axis, str]
    dims: tuple[Axis, ...]
    variable: bool = False
    owned: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Panel:
    """The right operand of a matmul in the layout that the matrix unit wants."""

    base: str
    dtype: DType
    k: Axis
    n: Axis | None


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where an index lies in a dimension of `size` elements: itself, or if it is none there, the nearest; that is noted."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class Gather:
    """The elements of `memory` that lie so many `strides` on as the arguments say.

    Attributes:
        sizes: of the dimensions, where an argument may be no place in one: then nothing is read, and the element is 0.
    """

    name: str
    memory: ItemMemory
    strides: tuple[str, ...]
    location: Location | None = None
    sizes: tuple[str, ...] = ()


_CHEAP = frozenset(
    "add sub mul neg abs minimum maximum lt le gt ge eq ne where logical_and logical_or logical_not".split()  # noqa: SIM905
)
_FEW = 6


@dataclass(eq=False, slots=True)
class Lazy:
    """A value that is printed where it is used.

    Attributes:
        node: what computes it.
        args: what the node reads.
        dims: axes of the value.
        dtype: of the value.
        memory: where it lies, once something had to put it there.
        home: where it will lie in the end, as part of a list: the place for it, should something need it in memory before.
    """

    node: Pointwise | Collapse | Index | Literal | Extent | IndexPlace | Gather
    args: tuple[Value, ...]
    dims: tuple[Axis, ...]
    dtype: DType
    memory: ItemMemory | None = None
    home: ItemMemory | None = None

    @property
    def expr(self) -> Scalar | None:
        """The expression of each element by itself; None of a reduction, of what is looked up, or is written where it stands."""
        return self.node.expr if isinstance(self.node, Pointwise) else None

    @property
    def counts(self) -> tuple[Axis, bool] | None:
        """The axis whose element number it is, and whether that is of a loop by single elements; None of anything else."""
        return (self.node.axis, self.node.unit) if isinstance(self.node, Index) else None

    @property
    def over(self) -> Axis | None:
        """The axis that a reduction goes over; None of anything else."""
        return self.node.over if isinstance(self.node, Collapse) else None

    @property
    def is_work(self) -> bool:
        """True where a loop computes it; an index, a number or a size is written where it stands."""
        return isinstance(self.node, Pointwise | Collapse | IndexPlace | Gather) and not self.is_spelled

    @property
    def is_spelled(self) -> bool:
        """True of a little arithmetic on indices, numbers and sizes: cheaper again in each iteration than in an array, from which a
        compiler does not see that neighbours read neighbours.
        """
        if (
            not isinstance(self.node, Pointwise)
            or kind_of(self.dtype) not in ("int", "bool")
            or self.memory is not None
        ):
            return False
        cheap = all(part.op in _CHEAP for part in parts(self.node.expr) if isinstance(part, Apply))
        plain = not any(isinstance(part, Convert) for part in parts(self.node.expr))
        few = operations(self.node.expr) <= _FEW
        return cheap and plain and few and all(isinstance(a, Lazy) and (a.is_given or a.is_spelled) for a in self.args)

    @property
    def is_given(self) -> bool:
        """True of an index, a number or a size."""
        return isinstance(self.node, Index | Literal | Extent)


Value: TypeAlias = ItemMemory | Panel | Lazy


def resolved(value: Value) -> Value:
    """Return `value`, looking through copies that change nothing."""
    while isinstance(value, Lazy):
        if value.memory is not None:
            return value.memory
        node = value.node
        if not isinstance(node, Pointwise) or node.expr != Arg(0) or len(value.args) != 1:
            return value
        inner = value.args[0]
        if isinstance(inner, Panel) or kind_of(inner.dtype) != kind_of(value.dtype):
            return value
        value = inner
    return value
