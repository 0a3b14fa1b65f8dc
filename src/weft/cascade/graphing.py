"""Writing graphs of block operators: nodes over named values, equal ones once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.block.program import BlockNode, Collapse, Dot, Extent, Pointwise
from weft.errors import Location
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Scalar, occurrences, substitute


@dataclass
class Graphing:
    """A graph being written.

    Attributes:
        order: of the axes of every item.
        real: the type that is computed in.
        make: gives names that no graph of the fold has.
        dims: the axes of each value.
        location: of the user's line that what is written comes from.
    """

    order: tuple[Axis, ...]
    real: DType
    make: Callable[[str], str]
    location: Location | None = None
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    dims: dict[str, frozenset[Axis]] = field(default_factory=dict[str, frozenset[Axis]])
    made: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])

    def point(
        self,
        wish: str,
        expr: Scalar,
        args: Sequence[str],
        dtype: DType | None = None,
        dims: frozenset[Axis] | None = None,
        location: Location | None = None,
    ) -> str:
        """Makes `expr` over the values `args` a value; `args` that are not read are left out."""
        if isinstance(expr, Arg) and dtype is None:
            return args[expr.index]
        names = list(dict.fromkeys(args[i] for i in occurrences(expr)))
        expr = substitute(expr, lambda i: Arg(names.index(args[i])))
        found = frozenset[Axis]().union(*(self.dims[n] for n in names)) if dims is None else dims
        key = (expr, tuple(names), dtype, found)
        if key not in self.made:
            name = self.made[key] = self.make(wish)
            self.nodes.append(Pointwise(name, expr, tuple(names), self.ordered(found), dtype or self.real, location))
            self.dims[name] = found
        return self.made[key]

    def collapse(self, wish: str, monoid: Monoid, arg: str, over: Axis) -> str:
        """Combines `arg` along `over`."""
        arg = self.along(arg, over)
        key = ("collapse", monoid, arg, over)
        if key not in self.made:
            name = self.made[key] = self.make(wish)
            self.nodes.append(Collapse(name, monoid, arg, over, self.location))
            self.dims[name] = self.dims[arg] - {over}
        return self.made[key]

    def extent(self, wish: str, axis: Axis) -> str:
        """Returns the number of elements of the current block of `axis`."""
        key = ("extent", axis)
        if key not in self.made:
            name = self.made[key] = self.make(wish)
            self.nodes.append(Extent(name, axis.space, self.real, axis))
            self.dims[name] = frozenset()
        return self.made[key]

    def dot(self, wish: str, left: str, right: str, over: Axis) -> str:
        """Multiplies two items, summed over `over`."""
        name = self.make(wish)
        found = (self.dims[left] | self.dims[right]) - {over}
        if self.ordered(found)[:1] and self.ordered(found)[0] not in self.dims[left]:
            left, right = right, left  # the left operand has the rows of the result
        self.nodes.append(Dot(name, left, right, over, self.ordered(found), self.real, None, self.location))
        self.dims[name] = found
        return name

    def along(self, arg: str, over: Axis) -> str:
        """Returns `arg` with one element for each of `over`: itself, or copies if it is the same for all of them."""
        if over in self.dims[arg]:
            return arg
        return self.point("x", Arg(0), (arg,), self.real, self.dims[arg] | {over})

    def ordered(self, dims: frozenset[Axis]) -> tuple[Axis, ...]:
        """Sorts `dims` into the order that all items have."""
        return tuple(a for a in self.order if a in dims)
