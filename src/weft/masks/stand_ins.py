"""Numbers that stand for -inf under a softmax: where they vanish, they are -inf."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf

from weft.block.linear import Linear
from weft.masks.known import Facts, KnownNumber, KnownValue, of_expression
from weft.tensor.axes import Axis
from weft.tensor.laws import remove_dead
from weft.tensor.passes import tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, parts

_FAR = -1e9
_FEWEST_DIGITS = -65504.0
"""The lowest number of float16 stands for -inf as well: what is kept is in that type, too."""


@tensor_pass()
def stand_ins_as_nothing(program: TensorProgram) -> TensorProgram:
    """Exclude with -inf what is masked by a number that vanishes beside the rest of its row.

        s[i, j] = where(j <= i, x[i, j], -1e9)               s[i, j] = where(j <= i, x[i, j], -inf)
        m[i] = max over j of s[i, j]                  ==>    m[i] = max over j of s[i, j]
        e[i, j] = exp(s[i, j] - m[i])                        e[i, j] = exp(s[i, j] - m[i])

    So it is where `where(j <= i, 0, -1e9)` is added to x.

    Condition: the number is at most -1e9, or the lowest of its type; its value is read by the maximum of its row and by differences
    with that, under exponentials alone; comparisons of indices alone decide what is masked, and leave each row an element, whatever
    the sizes are; x is made of products and sums of data, and is no data itself, which may hold such numbers (of padding, say)
    where this mask holds none.

    It does not hold of real numbers, whose exponentials are never 0: no check over a field is made across it. In floats
    exp(-1e9 - m) is 0 where a kept element of the row is more than -1e9 + 110: that scores are is what is taken for granted.
    """
    found = _StandIns(program)
    nodes = tuple(found.replaced(n) for n in program.nodes)
    return program if nodes == program.nodes else remove_dead(replace(program, nodes=nodes))


@dataclass(frozen=True)
class _Masked:
    """A value that is `kept` where the condition is `when`, and masked elsewhere."""

    kept: Use
    condition: Use
    when: bool


class _StandIns:
    def __init__(self, program: TensorProgram) -> None:
        self.values: Mapping[str, Node | Input] = program.values()
        self.outputs: Collection[str] = program.outputs
        self.readers: dict[str, list[Node]] = {}
        for node in program.nodes:
            for name in uses(node):
                self.readers.setdefault(name, []).append(node)

    def replaced(self, node: Node) -> Node:
        """Return `node` with -inf in place of its number, where that changes no result."""
        masked = self.masked(node)
        over = None if masked is None else self.under_exponentials(node)
        if masked is None or over is None or not isinstance(node, Elementwise):
            return node
        if not self.computed(masked.kept.value) or not self.leaves_some(masked, over):
            return node
        branches = (Arg(1), Lit(-inf)) if masked.when else (Lit(-inf), Arg(1))
        return replace(node, expr=Apply("where", (Arg(0), *branches)), args=(masked.condition, masked.kept))

    def masked(self, node: Node | Input) -> _Masked | None:
        """Read `node` as a mask of a value, or as a value to which one is added."""
        match node:
            case Elementwise(expr=Apply("where", (Arg(c), Arg(kept), Lit(value))), args=args) if _far(value):
                return _Masked(args[kept], args[c], when=True)
            case Elementwise(expr=Apply("where", (Arg(c), Lit(value), Arg(kept))), args=args) if _far(value):
                return _Masked(args[kept], args[c], when=False)
            case Elementwise(expr=Apply("add", (Arg(), Arg())), args=(one, other)):
                return self.added(one, other) or self.added(other, one)
            case _:
                return None

    def added(self, kept: Use, bias: Use) -> _Masked | None:
        match self.values[bias.value]:
            case Elementwise(axes=axes, expr=Apply("where", (Arg(c), Lit(yes), Lit(no))), args=args) if (
                yes == 0 and _far(no)
            ) or (no == 0 and _far(yes)):
                condition = args[c].within(dict(zip(axes, bias.axes, strict=True)))
                return _Masked(kept, condition, when=yes == 0)
            case _:
                return None

    def under_exponentials(self, node: Node) -> Axis | None:
        """Return the axis of the rows whose maximum is subtracted from `node` under exponentials, if nothing else reads it."""
        readers = self.readers.get(node.name, [])
        maxima = [r for r in readers if isinstance(r, Reduction) and r.monoid is Monoid.max and len(r.over) == 1]
        shifted = [r for r in readers if isinstance(r, Elementwise)]
        if node.name in self.outputs or len(maxima) != 1 or len(maxima) + len(shifted) != len(readers) or not shifted:
            return None
        (most,) = maxima
        place = most.arg.axes.index(most.over[0])
        if not all(self.is_shifted(each, node, most) for each in shifted):
            return None
        return node.axes[place]

    def is_shifted(self, of: Elementwise, node: Node, most: Reduction) -> bool:
        """Tell whether `of` is `node` less the maxima of its rows, and exponentials alone read it."""
        if of.expr != Apply("sub", (Arg(0), Arg(1))) or [u.value for u in of.args] != [node.name, most.name]:
            return False
        row = dict(zip(most.arg.axes, of.args[0].axes, strict=True))
        if of.args[1] != Use(most.name, tuple(row[a] for a in most.axes)) or of.name in self.outputs:
            return False
        readers = self.readers.get(of.name, [])
        return all(isinstance(r, Elementwise) and r.expr == Apply("exp", (Arg(0),)) for r in readers)

    def computed(self, name: str) -> bool:
        """Tell whether a value is made of products and sums alone, without masks and data of its shape."""
        match self.values[name]:
            case Contraction() | Constant() | Iota() | Extent():
                return True
            case Reduction(monoid=Monoid.sum):
                return True
            case Input(axes=axes):
                return not axes
            case Cast(arg=arg):
                return self.computed(arg.value)
            case Elementwise(expr=expr, args=args):
                return not any(_hides(part) for part in parts(expr)) and all(self.computed(u.value) for u in args)
            case _:
                return False

    def leaves_some(self, masked: _Masked, over: Axis) -> bool:
        """Tell whether the mask leaves each row the element at the row's own number, or the first one."""
        condition = masked.condition
        rows = [a for a in condition.axes if a != over]
        own = [Linear.index(a) for a in rows if a.space == over.space]
        facts = Facts(tuple(Linear.index(a) for a in rows))
        indices: dict[Axis, KnownValue] = {a: Linear.index(a) for a in rows}
        first: KnownValue = KnownNumber(0)
        return any(
            self.known(condition, {**indices, over: place}, facts) == KnownNumber(masked.when)
            for place in (*own, first)
        )

    def known(self, use: Use, indices: Mapping[Axis, KnownValue], facts: Facts) -> KnownValue:
        """Say what is known of an element of a value that indices decide."""
        node = self.values[use.value]
        inner = {own: indices.get(axis) for own, axis in zip(node.axes, use.axes, strict=True)}
        match node:
            case Iota(axes=(axis,)):
                return inner[axis]
            case Constant(value=value):
                return KnownNumber(value)
            case Extent(space=space):
                return Linear(sizes=((space, 1),)) if space.fixed is None else KnownNumber(space.fixed)
            case Elementwise(expr=expr, args=args):
                return of_expression(expr, [self.known(u, inner, facts) for u in args], facts)
            case _:
                return None


def _far(value: float) -> bool:
    return -inf < value and (value <= _FAR or value == _FEWEST_DIGITS)


def _hides(part: Scalar) -> bool:
    """Tell whether a part of an expression may be as low as what stands for -inf, whatever its operands are."""
    match part:
        case Apply("where" | "maximum" | "minimum", _):
            return True
        case Lit(value):
            return abs(value) >= -_FEWEST_DIGITS
        case _:
            return False
