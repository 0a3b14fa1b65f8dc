"""The law of centres: differences to a mean are taken relative to an element of the row, which keeps their digits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from weft.tensor.axes import Affine, Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import merge_equal, remove_dead
from weft.tensor.laws.draft import Draft
from weft.tensor.laws.names import fresh
from weft.tensor.passes import Bears, Conditioning, tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Node,
    Reduction,
    Reindex,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply

_MOST_WORK = 16
"""Operations that an element may be made by once more, for its row."""
_NEAR = {DType.float64: 2.0**970, DType.float32: 2.0**103}
"""Half the distance between the two greatest numbers of a type: what is smaller can be subtracted from each without overflow."""


@tensor_pass(Conditioning.rounding, Bears.checked)
def centre_at_an_element(program: TensorProgram) -> TensorProgram:
    """Takes differences to the mean of a row relative to its first element; `program` itself where there are none.

                                                       s[m] = x[m, 0]
        t[m] = sum over n of x[m, n]                   y[m, n] = x[m, n] - s[m]
        u[m, n] = x[m, n] - t[m] / extent(n)    ==>    t[m] = sum over n of y[m, n]
                                                       u[m, n] = y[m, n] - t[m] / extent(n)

    The mean less x is treated alike. If the sum is divided by a number c, the length of the rows in the example, t / c
    becomes t / c - s (1 - extent(n) / c): nothing is added while rows have that length.

    Condition: x is an input, a view of one, looked up in such, or made elementwise of such, and t / extent(n) is its mean and is
    not rounded before it is subtracted; s is 0 where the element is too large to be subtracted from others of its type, or is no
    number. Exact for any s.

    Conditioning: better. A mean that is rounded as the sum of a long row is makes differences of a row that is constant, or nearly
    so, and their squares, nothing but rounding; about one of the row's elements a constant row is 0 from the start, whatever the
    order of its sum, and what lies near a large number is subtracted from it exactly. An element far from the rest costs those a
    rounding at the size of its own difference, which is the largest result.
    """
    law = _Centring(program)
    made = law.made_by(law.add)
    return remove_dead(merge_equal(made)) if law.changed else program


@dataclass(frozen=True, slots=True)
class _Mean:
    """What a difference subtracts: the mean `divided`, of the sum `total` over the axes `over` of the difference.

    `number` is what divides it, where that is no size but a number that the size is equal to in the example.
    """

    divided: Elementwise
    total: Reduction
    over: tuple[Axis, ...]
    number: float | None = None


@dataclass
class _Centring(Draft):
    """What the law has made.

    Attributes:
        changed: whether it has met a mean.
        placed: the elements that were appended for the row at hand, by their value and index, None where there is none: a joint
            reads its index many times.
    """

    changed: bool = False
    placed: dict[tuple[str, tuple[Axis | None, ...]], Use | None] = field(
        default_factory=dict[tuple[str, tuple["Axis | None", ...]], "Use | None"]
    )

    def add(self, node: Node) -> None:
        """Appends `node`; where it subtracts a mean from its own data, about an element of these."""
        match node:
            case Elementwise(expr=Apply("sub", (Arg(i), Arg(j))), args=(_, _)) if i != j and node.dtype in _NEAR:
                if not any(self.centred(node, data, i + j - data, less_mean=data == i) for data in (i, j)):
                    self.nodes.append(node)
            case _:
                self.nodes.append(node)

    def centred(self, node: Elementwise, data: int, subtracted: int, *, less_mean: bool) -> bool:
        """Appends `node`, which is its operand `data` less the operand `subtracted` or the other way round, if that is the mean."""
        mean = self.mean(node, node.args[data], node.args[subtracted])
        first = None if mean is None else self.first(node.args[data], mean.over)
        if mean is None or first is None:
            return False
        self.about(node, mean, first, (node.args[data], node.args[subtracted]), less_mean=less_mean)
        return True

    def mean(self, node: Elementwise, data: Use, subtracted: Use) -> _Mean | None:
        """Reads `subtracted` as the mean of `data`; None where it is not."""
        divided = self.values[subtracted.value]
        if not isinstance(divided, Elementwise) or divided.dtype is not node.dtype:
            return None
        match divided.expr:
            case Apply("div" | "mul" as op, (Arg(i), below)):
                above = divided.args[i]
            case _:
                return None
        total = self.values[above.value]
        if not isinstance(total, Reduction) or total.monoid is not Monoid.sum or total.dtype is not node.dtype:
            return None
        count, size = self.count(below, divided, op), _size(total.over)
        number = float(count.number) if count is not None and not count.spaces and count != size else None
        if total.arg.value != data.value or (count != size and (number is None or number != _in_example(total.over))):
            return None
        outer = dict(zip(divided.axes, subtracted.axes, strict=True))
        bound = {own: outer[a] for own, a in zip(total.axes, above.axes, strict=True)}
        over: list[Axis] = []
        for own, here in zip(total.arg.axes, data.axes, strict=True):
            if own in total.over and here not in (*subtracted.axes, *over):
                over.append(here)
            elif bound.get(own) != here:
                return None
        return _Mean(divided, total, tuple(over), number) if len(over) == len(total.over) else None

    def count(self, below: Scalar, divided: Elementwise, op: str) -> _Count | None:
        """Reads what a sum is divided by as a number and sizes."""
        match below:
            case Lit(value) if op == "div":
                return _Count(Fraction(value), ())
            case Arg(i) if op == "div":
                return self.sizes(divided.args[i])
            case _:
                return None

    def sizes(self, use: Use) -> _Count | None:
        """Reads a value as a product of a number and sizes."""
        match self.values[use.value]:
            case Extent(space=space):
                return _of(space)
            case Constant(value=value):
                return _Count(Fraction(value), ())
            case Elementwise(expr=Apply("mul", (Arg(i), Arg(j))), args=args):
                one, other = self.sizes(args[i]), self.sizes(args[j])
                return None if one is None or other is None else one.times(other)
            case _:
                return None

    def fresh(self, stem: str) -> str:
        """Makes up a name that no value has in a graph of which the program is a part: there views of inputs are called by it."""
        return fresh(stem, self.taken, ".")

    def first(self, data: Use, over: Sequence[Axis]) -> Use | None:
        """Appends the nodes for the element of `data` with index 0 along `over`; None where it is no input's."""
        if any(a.space.size({a.space.name: a.space.example or 1}) == 0 for a in over):
            return None
        before, taken = len(self.nodes), set(self.taken)
        self.placed.clear()
        found = self.place(data.value, [None if a in over else a for a in data.axes])
        if found is None or len(self.nodes) - before > _MOST_WORK:
            del self.nodes[before:]
            self.taken = taken
            return None
        return found

    def place(self, value: str, index: Sequence[Axis | None]) -> Use | None:
        """Appends the nodes for the elements of a value that have index 0 where `index` has no axis."""
        node = self.values[value]
        kept = tuple(a for a in index if a is not None)
        if len(kept) == len(index):
            return Use(value, kept)
        key = value, tuple(index)
        if key not in self.placed:
            self.placed[key] = self.element(node, index)
        return self.placed[key]

    def element(self, node: Node, index: Sequence[Axis | None]) -> Use | None:
        """Appends the nodes for elements of `node` that nothing stands for yet; arguments as those of `place`."""
        bound = dict(zip(node.axes, index, strict=True))
        kept = tuple(dict.fromkeys(a for a in index if a is not None))
        match node:
            case Input():
                places = tuple(Affine() if a is None else Affine.of(a) for a in index)
                made: Node = Reindex(self.fresh(node.name), kept, node.dtype, node.name, places)
            case Reindex() if isinstance(self.values[node.source], Input):
                made = replace(
                    node, name=self.fresh(node.name), axes=kept, index=tuple(_at(i, bound) for i in node.index)
                )
            case Iota():
                made = Constant(self.fresh(node.name), (), node.dtype, 0)
            case Lookup():
                looked = self.looked(node, bound)
                if looked is None:
                    return None
                made = replace(looked, name=self.fresh(node.name), axes=kept)
            case Elementwise():
                args: list[Use] = []
                for each in node.args:
                    if (use := self.place(each.value, [bound[a] for a in each.axes])) is None:
                        return None
                    args.append(use)
                made = replace(node, name=self.fresh(node.name), axes=kept, args=tuple(args))
            case Cast():
                arg = self.place(node.arg.value, [bound[a] for a in node.arg.axes])
                if arg is None:
                    return None
                made = replace(node, name=self.fresh(node.name), axes=kept, arg=arg)
            case _:
                return None
        return self.append(made)

    def looked(self, node: Lookup, bound: Mapping[Axis, Axis | None]) -> Lookup | None:
        """Appends the nodes that `node` reads and finds elements by; its axes are bound as in `place`."""
        source = self.values[node.source]
        left = [
            own
            for own, i in zip(source.axes, node.index, strict=True)
            if not isinstance(i, Axis) or bound[i] is not None
        ]
        here = self.place(source.name, [own if own in left else None for own in source.axes])
        index: list[Axis | Use] = []
        for each in node.index:
            match each:
                case Axis():
                    index += [] if (axis := bound[each]) is None else [axis]
                case Use():
                    found = self.place(each.value, [bound[a] for a in each.axes])
                    if found is None:
                        return None
                    index.append(found)
        return None if here is None else replace(node, source=here.value, index=tuple(index))

    def about(self, node: Elementwise, mean: _Mean, first: Use, operands: tuple[Use, Use], *, less_mean: bool) -> None:
        """Appends `node`, of data and their mean, about the element `first` of the data."""
        data, kept = operands[0], operands[1].axes
        first, element = self.converted(first)
        small = apply("lt", apply("abs", element), Lit(_NEAR[node.dtype]))
        shift = apply("where", small, element, Lit(0.0))
        about = apply("sub", Arg(0), shift)
        near = replace(node, name=self.fresh(node.name), expr=about, args=(data, first))
        use = Use(near.name, near.axes)
        total = Reduction(
            self.fresh(mean.total.name), kept, node.dtype, Monoid.sum, use, mean.over, mean.total.location
        )  # fmt: skip
        above = next(i for i, u in enumerate(mean.divided.args) if u.value == mean.total.name)
        args = tuple(Use(total.name, total.axes) if i == above else u for i, u in enumerate(mean.divided.args))
        divided = replace(mean.divided, name=self.fresh(mean.divided.name), axes=kept, args=args)
        self.nodes += [near, total, divided]
        if mean.number is not None:
            divided = self.off_the_size(divided, mean, first, shift)
        both = apply("sub", about, Arg(2)) if less_mean else apply("sub", Arg(2), about)
        # Made anew of the data: what reads it and what is summed are in different loops, and a row would be kept between them.
        self.nodes.append(replace(node, expr=both, args=(data, first, Use(divided.name, kept))))
        self.changed = True

    def off_the_size(self, divided: Elementwise, mean: _Mean, first: Use, shift: Scalar) -> Elementwise:
        """Appends `divided` less what it is off the mean where rows are not as long as the number that divides their sum."""
        sizes = [Extent(self.fresh(divided.name), (), divided.dtype, axis.space) for axis in mean.over]
        self.nodes += sizes
        size: Scalar = Arg(2)
        for number in range(1, len(sizes)):
            size = apply("mul", size, Arg(2 + number))
        off = apply("mul", shift, apply("sub", Lit(1.0), apply("div", size, Lit(mean.number or 1.0))))
        args = (Use(divided.name, divided.axes), first, *(Use(each.name, ()) for each in sizes))
        made = replace(divided, name=self.fresh(divided.name), expr=apply("sub", Arg(0), off), args=args)
        self.nodes.append(made)
        return made

    def converted(self, use: Use) -> tuple[Use, Scalar]:
        """Finds what `use` is a cast of, and makes the cast part of an expression: of an input it is then no value of its own."""
        made = {n.name: n for n in self.nodes[-_MOST_WORK:] if isinstance(n, Cast) and n.semantic}
        dtypes: list[DType] = []
        while use.value in made:
            cast = made[use.value]
            dtypes.append(cast.dtype)
            use = Use(cast.arg.value, cast.arg.axes)
        expr: Scalar = Arg(1)
        for dtype in reversed(dtypes):
            expr = Convert(dtype, expr)
        return use, expr


def _at(index: Affine, bound: Mapping[Axis, Axis | None]) -> Affine:
    """Returns `index` over the axes that its own are bound to; one bound to none is 0."""
    terms: dict[Axis, int] = {}
    for axis, coefficient in index.terms:
        here = bound[axis]
        if here is not None:
            terms[here] = terms.get(here, 0) + coefficient
    return replace(index, terms=tuple((a, c) for a, c in terms.items() if c))


@dataclass(frozen=True, slots=True)
class _Count:
    """A number times the sizes of spaces."""

    number: Fraction
    spaces: tuple[str, ...]

    def times(self, other: _Count) -> _Count:
        """Multiplies both."""
        return _Count(self.number * other.number, tuple(sorted((*self.spaces, *other.spaces))))


def _of(space: Space) -> _Count:
    return _Count(Fraction(1), (space.name,)) if space.fixed is None else _Count(Fraction(space.fixed), ())


def _in_example(axes: Sequence[Axis]) -> float | None:
    """Counts the elements along `axes` in the example; None without one."""
    sizes = [axis.space.fixed or axis.space.example for axis in axes]
    return float(math.prod(size for size in sizes if size)) if all(sizes) else None


def _size(axes: Sequence[Axis]) -> _Count:
    """Counts the elements along `axes`."""
    found = _Count(Fraction(1), ())
    for axis in axes:
        found = found.times(_of(axis.space))
    return found
