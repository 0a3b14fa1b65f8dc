"""Loops that copy elements as they lie, printed: where they begin, and what is left of the loops beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.emit.cpp.elements import NestValues
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.moves import EitherOf, Whence, rest, source
from weft.emit.cpp.places import spelled_at
from weft.emit.cpp.plan import Nest, Put, Work
from weft.emit.cpp.scalar import bits
from weft.emit.cpp.segments import replaced
from weft.emit.cpp.values import Gather, ItemMemory, Lazy, Panel, Value, resolved
from weft.emit.ranges import Scope
from weft.emit.text import factor, minus, stripped, times
from weft.tensor.axes import Axis
from weft.tensor.scalar import Lit, Scalar, arguments


@dataclass(frozen=True, slots=True)
class Head:
    """Where the elements of a loop, or of one run of it, begin: a pointer, and elements from one to the next."""

    at: str
    step: str


class Copies(NestValues):
    """The stores of one nest that only move elements.

    Attributes:
        runs: where look-ups read in the current run of the innermost loop.
        moved: the element that each store moves, in the innermost loop.
    """

    def __init__(self, frame: Frame, scope: Scope, nest: Nest) -> None:
        super().__init__(frame, scope, nest)
        self.runs: dict[Lazy, Head] = {}
        self.moved: dict[ItemMemory, str] = {}

    def _moves(self, works: Sequence[Work], axis: Axis, start: str) -> Sequence[Work]:
        """Declare where the stores that only move elements find them in the loop over `axis`, from `start` on; returned is what
        is left for it to do, these stores among it.
        """
        found: dict[Work, Whence] = {}
        for work in works:
            target = None if work.store is None else work.store.target
            if target is None or target.variable or axis not in target.dims or len(work.order) < len(self.nest.order):
                continue
            whence = source(work.reads[0], axis, target.dtype, lambda c, lazy: self._still(c, lazy, axis))
            if whence is not None and self._head_of(whence, axis) is not None:
                found[work] = whence
        left, moved = rest(works, list(found))
        name = self.index[axis]
        self.index[axis] = start
        for work in moved:
            assert work.store is not None
            head = self._head_of(found[work], axis)
            assert head is not None
            at, step = (self.frame.names.make(f"{work.store.target.base}_{part}") for part in ("from", "step"))
            self.frame.out.line(f"const auto* const {at} = {stripped(head.at)};")
            self.frame.out.line(f"const i64 {step} = {stripped(head.step)};")
            self.moved[work.store.target] = f"{at}[{times(factor(minus(name, start)), step)}]"
            left.append(Work(work.order, (), store=work.store))
        self.index[axis] = name
        return left

    def _copied(self, works: Sequence[Work], rows: Axis, columns: Axis) -> bool:
        """Print the two innermost loops, over `rows` and `columns`, at once, where all they do is to copy an item as it lies."""
        store = works[-1].store
        if store is None or any(axis not in store.target.dims for axis in (rows, columns)):
            return False
        whence = source(works[-1].reads[0], columns, store.target.dtype, lambda _condition, _lazy: False)
        if (
            not isinstance(whence, ItemMemory)
            or rows not in whence.dims
            or rest(works, works[-1:]) != ([], [works[-1]])
        ):
            return False
        first = {**self.index, rows: "0", columns: "0"}
        parts = [
            text
            for memory in (store.target, whence)
            for text in (
                f"&{bits(spelled_at(memory, first), memory.dtype)}",
                memory.strides[rows],
                memory.strides[columns],
            )
        ]
        counts = self.scope[rows].valid, self.scope[columns].valid
        self.frame.out.line(f"weft::copy_items({', '.join((*parts, *counts))});")
        return True

    def _still(self, expr: Scalar, lazy: Lazy, axis: Axis) -> bool:
        """Tell whether `expr`, a part of that of `lazy`, comes out alike all along a loop over `axis`, or this run of it."""
        left = replaced(expr, {part: Lit(value=True) for part in self.known.get(lazy, {})})
        for arg in (resolved(lazy.args[number]) for number in arguments(left)):
            spelled = arg.expr if isinstance(arg, Lazy) and arg.is_spelled else None
            inside = isinstance(arg, Lazy) and spelled is not None and self._still(spelled, arg, axis)
            if isinstance(arg, Panel) or (axis in arg.dims and not inside):
                return False
        return True

    def _head_of(self, whence: Whence, axis: Axis) -> Head | None:
        """Spell where the elements lie that a loop over `axis` moves; None where they do not lie at equal steps."""
        match whence:
            case EitherOf(lazy=lazy, condition=condition):
                first, second = self._head_of(whence.first, axis), self._head_of(whence.second, axis)
                if first is None or second is None:
                    return None
                chosen = factor(self._spelled(lazy, condition).text)
                step = first.step if first.step == second.step else f"({chosen} ? {first.step} : {second.step})"
                return Head(f"({chosen} ? {first.at} : {second.at})", step)
            case ItemMemory():
                step = self.unit.get(whence.strides[axis], whence.strides[axis])
                return Head(f"&{spelled_at(whence, self.index, self.unit)}", step)
            case Lazy(node=Gather(memory=memory, sizes=sizes) as node):
                steady = not sizes and axis in memory.dims and all(axis not in _dims(a) for a in whence.args)
                if whence in self.runs or not steady:
                    return self.runs.get(whence)
                step = self.unit.get(memory.strides[axis], memory.strides[axis])
                return Head(f"&{memory.base}[{self._offset(whence, node)}]", step)
            case _:
                return None

    def _set_aside(self, moved: Sequence[Put]) -> None:
        """Declare locals for elements that are moved: each is read before any is written."""
        for target in (s.target for s in moved):
            name = self.frame.names.make("element")
            self.frame.out.line(f"const auto {name} = {self.moved[target]};")
            self.moved[target] = name


def _dims(value: Value) -> tuple[Axis, ...]:
    value = resolved(value)
    return () if isinstance(value, Panel) else value.dims
