"""The law of picks: if one element of a computed row is read, it is picked before the computation, not after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import tensor_pass
from weft.tensor.program import (
    Cast,
    Elementwise,
    Extent,
    Iota,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
    reads_through,
)
from weft.tensor.scalar import Apply, Arg, Lit, apply


@tensor_pass()
def pick_first(program: TensorProgram) -> TensorProgram:
    """Pick one element of a row before elementwise work on the row, not after it.

                                                                  e[m, n] = where(n == i[m], x[m, n], 0)
        y[m, n] = x[m, n] - a[m]                                  p[m] = sum over n of e[m, n]
        e[m, n] = where(n == i[m], y[m, n], 0)             ==>    q[m] = p[m] - a[m]
        s[m] = sum over n of e[m, n]                              s[m] = where(i[m] >= 0 and i[m] < extent(n), q[m], 0)

    so that the pick need not wait for `a`, which other sums over the row may have to make first. Condition: the operation reads
    one operand that has the axis, once, a float where the sum is one; i is an integer that lacks it. Conditioning: none, the same
    operations on the one value that counts; a pick adds zeros to it.
    """
    picking = _Picking(program)
    return picking.made_by(picking.add)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of the axis `over`: the one where `test`, which compares it with `index`, holds."""

    over: Axis
    test: Use
    index: Use


@dataclass
class _Picking(Draft):
    def add(self, node: Node) -> None:
        """Append `node`; where it is a pick, what it picks from first."""
        found = self.pick(node) if isinstance(node, Reduction) and node.monoid is Monoid.sum else None
        if found is None or not isinstance(node, Reduction):
            self.nodes.append(node)
            return
        place, value = found
        picked = self.picked(value, place, node)
        if picked.value == value.value:
            self.nodes.append(node)
            return
        self.guard(node, picked, place)

    def pick(self, node: Reduction) -> tuple[_Place, Use] | None:
        """Return the place that a sum leaves, and the value that it is picked of."""
        selected = self.values[node.arg.value]
        if len(node.over) != 1 or not isinstance(selected, Elementwise) or selected.dtype is not node.dtype:
            return None
        bound = dict(zip(selected.axes, node.arg.axes, strict=True))
        match selected.expr:
            case Apply("where", (Arg(test), Arg(value), Lit(nothing))) if nothing == 0:
                condition, read = (selected.args[i].within(bound) for i in (test, value))
            case _:
                return None
        index = self.compared(condition, node.over[0])
        return None if index is None else (_Place(node.over[0], condition, index), read)

    def compared(self, condition: Use, over: Axis) -> Use | None:
        """Return the value that the index along `over` is compared with."""
        node = self.values[condition.value]
        if not isinstance(node, Elementwise) or node.expr != apply("eq", Arg(0), Arg(1)):
            return None
        one, other = reads_through(node, condition)
        for place, index in ((one, other), (other, one)):
            integer = self.values[index.value].dtype.kind == "int"
            if (
                isinstance(self.values[place.value], Iota)
                and place.axes == (over,)
                and over not in index.axes
                and integer
            ):
                return index
        return None

    def picked(self, use: Use, place: _Place, whole: Reduction) -> Use:
        """Return the value of `use` at the place, or `use` itself where nothing is won by looking at what it is made of."""
        node = self.values[use.value]
        inner = _varying(node, use, place.over)
        if inner is None or node.dtype is not whole.dtype:
            return use
        if self.values[inner.value].dtype.kind != whole.dtype.kind:
            return use  # a sum of floats does not have room for every integer
        read = self.picked(inner, place, whole)
        if read == inner:
            read = self.summed(inner, place, whole)
        axes = tuple(a for a in use.axes if a != place.over)
        axes += tuple(a for a in read.axes if a not in axes)
        match node:
            case Elementwise():
                args = tuple(read if u == inner else u for u in reads_through(node, use))
                made = replace(node, name=self.fresh(node.name), axes=axes, args=args)
            case _:
                made = replace(node, name=self.fresh(node.name), axes=axes, arg=read)
        return self.append(made)

    def summed(self, value: Use, place: _Place, whole: Reduction) -> Use:
        """Return the sum over the row that leaves `value` at the place."""
        axes = value.axes + tuple(a for a in place.test.axes if a not in value.axes)
        name, total = self.fresh(whole.name), self.fresh(whole.name)
        nothing = 0.0 if whole.dtype.is_float else 0
        expr = apply("where", Arg(0), Arg(1), Lit(nothing))
        read = self.append(Elementwise(name, axes, whole.dtype, expr, (place.test, value), whole.location))
        kept = tuple(a for a in axes if a != place.over)
        return self.append(Reduction(total, kept, whole.dtype, Monoid.sum, read, (place.over,), whole.location))

    def guard(self, node: Reduction, picked: Use, place: _Place) -> None:
        """Append what `node` is: 0 where no place was picked."""
        extent, least, below, inside = (self.fresh(node.name) for _ in range(4))
        index, kind = place.index, self.values[place.index.value].dtype
        self.nodes += [
            Extent(extent, (), kind, place.over.space),
            _row(least, apply("ge", Arg(0), Lit(0)), (index,), node),
            _row(below, apply("lt", Arg(0), Arg(1)), (index, Use(extent, ())), node),
            _row(inside, apply("logical_and", Arg(0), Arg(1)), (Use(least, index.axes), Use(below, index.axes)), node),
        ]
        nothing = Lit(0.0 if node.dtype.is_float else 0)
        args = (Use(inside, index.axes), picked)
        expr = apply("where", Arg(0), Arg(1), nothing)
        self.nodes.append(Elementwise(node.name, node.axes, node.dtype, expr, args, node.location))


def _varying(node: Node, use: Use, over: Axis) -> Use | None:
    """Return the one operand of `node`, used as `use`, that has the axis `over`; None where there is not just one, or a call."""
    if not isinstance(node, Elementwise | Cast):
        return None
    varying = [u for u in reads_through(node, use) if over in u.axes]
    return varying[0] if len(varying) == 1 else None


def _row(name: str, expr: Apply, args: tuple[Use, ...], node: Reduction) -> Elementwise:
    """Make a condition for each row."""
    axes = tuple(dict.fromkeys(a for u in args for a in u.axes))
    return Elementwise(name, axes, DType.bool, expr, args, node.location)
