"""How the current elements of values are spelled inside a loop nest."""

from __future__ import annotations

from collections.abc import Sequence

from weft.block.program import Extent, Literal
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.places import indices, spelled_at
from weft.emit.cpp.plan import Nest
from weft.emit.cpp.scalar import Text, coerced, expression, loaded, number
from weft.emit.cpp.segments import replaced
from weft.emit.cpp.values import Gather, ItemMemory, Lazy, Panel, Value, resolved
from weft.emit.kinds import kind_of
from weft.emit.ranges import Scope
from weft.emit.text import factor, plus, stripped, times
from weft.tensor.scalar import Arg, Scalar, arguments


class NestValues:
    """The values of one nest, where its loops stand.

    Attributes:
        index: what stands for the element number along each axis.
        local: values whose current element a local holds; `buffers`: those that an earlier loop left in an array.
        known: conditions in values that a local holds, in a run in which they come out alike.
        unit: other names for strides, which are 1 where the loops are compiled for that.
    """

    def __init__(self, frame: Frame, scope: Scope, nest: Nest) -> None:
        self.frame, self.scope, self.nest = frame, scope, nest
        names = indices(len(nest.order))
        self.index = dict(zip(nest.order, names, strict=True))
        self.local: dict[Value, Text] = {}
        self.buffers: dict[Lazy, ItemMemory] = {}
        self.known: dict[Lazy, dict[Scalar, str]] = {}
        self.unit: dict[str, str] = {}

    def _value(self, value: Value) -> Text:
        """Spell the current element of `value`."""
        value = resolved(value)
        if value in self.local:
            return self.local[value]
        match value:
            case ItemMemory():
                return loaded(spelled_at(value, self.index, self.unit), value.dtype)
            case Lazy(counts=(axis, True)):
                return Text(self.scope[axis].base, "int")
            case Lazy(counts=(axis, False)):
                return Text(f"({self.scope[axis].base} + {self.index[axis]})", "int")
            case Lazy(node=Literal(value=literal, dtype=dtype)):
                return Text(number(literal, kind_of(dtype)), kind_of(dtype))
            case Lazy(node=Extent(space=space, dtype=dtype, axis=axis)):
                size = self.frame.size(space) if axis is None else self.scope[axis].valid
                return Text(coerced(Text(size, "int"), kind_of(dtype)), kind_of(dtype))
            case Lazy(is_spelled=True, expr=expr) if expr is not None:
                kind = kind_of(value.dtype)
                return Text(f"({stripped(coerced(self._spelled(value, expr), kind))})", kind)
            case Lazy() if value in self.buffers:
                return loaded(spelled_at(self.buffers[value], self.index), self.buffers[value].dtype)
            case Lazy() | Panel():
                raise AssertionError(value)

    def _spelled(self, lazy: Lazy, expr: Scalar) -> Text:
        """Spell `expr`, a part of that of `lazy`, with what is known in this run."""
        known = self.known.get(lazy, {})
        expr = replaced(expr, {part: Arg(len(lazy.args) + number) for number, part in enumerate(known)})
        read, nothing = arguments(expr), Text("", "int")
        args = [self._value(a) if number in read else nothing for number, a in enumerate(lazy.args)]
        return expression(expr, [*args, *(Text(name, "bool") for name in known.values())])

    def _offset(self, lazy: Lazy, node: Gather) -> str:
        """Spell how far the element lies from the first one that `node` may read, if what says where it lies are places."""
        places = [factor(self._value(a).text) for a in lazy.args]
        strides = (self.unit.get(stride, stride) for stride in node.strides)
        return plus(*map(times, places, strides), *self._along(node.memory))

    def _within(self, node: Gather, args: Sequence[Value]) -> str:
        """Spell the condition that each of `args` is a place in its dimension."""
        places = (factor(self._value(a).text) for a in args)
        pairs = zip(places, node.sizes, strict=True)
        return " && ".join(f"(uint64_t){place} < (uint64_t){size}" for place, size in pairs)

    def _along(self, memory: ItemMemory) -> list[str]:
        """Spell how far the current element of an item lies from its first, axis by axis."""
        return [times(self.index[a], self.unit.get(memory.strides[a], memory.strides[a])) for a in memory.dims]
