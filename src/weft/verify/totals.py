"""Which programs' kernels may have more range than eager: those whose maxima are of all that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, is_zero


def has_totals(program: TensorProgram) -> bool:
    """Tell whether `program` divides by, and takes logarithms of, nothing but whole sums of exponentials.

    A kernel that takes a maximum off exponents has numbers where eager's exponentials overflow. What lies far below the maximum
    is lost: nothing, beside the sum of the same exponentials. Where these are multiplied first by what may be 0, as in
    `exp(s) * w / (exp(s) * w).sum()`, the maximum may be of one that does not count, and results be lost that eager has.
    """
    if not any(isinstance(n, Elementwise) and "exp" in applied(n.expr) for n in program.nodes):
        return False
    found = _Kinds()
    for node in program.nodes:
        found.add(node)
    return found.total


class _Kind(Enum):
    """What a value is a product of: no exponentials, exponentials alone, or both."""

    other = 0
    raised = 1
    weighed = 2


@dataclass
class _Kinds:
    """What the values so far are; whether every divisor is made of exponentials alone, or of none."""

    values: dict[str, _Kind] = field(default_factory=dict[str, _Kind])
    total: bool = True

    def add(self, node: Node) -> None:
        """Take note of the value of `node`."""
        match node:
            case Elementwise():
                found = self.expression(node.expr, [self.of(u.value) for u in node.args])
            case Cast(arg=arg):
                found = self.of(arg.value) if node.dtype.is_float else self.number([self.of(arg.value)])
            case Reduction(monoid=Monoid.sum | Monoid.max | Monoid.min, arg=arg):
                found = self.of(arg.value)
            case Contraction(left=left, right=right):
                found = self.product(self.of(left.value), self.of(right.value))
            case Reindex(source=source):
                found = self.of(source)
            case Scan(args=args):
                found = self.number([self.of(u.value) for u in args])
            case Reduction(arg=arg) | Ranking(arg=arg):
                found = self.number([self.of(arg.value)])
            case Lookup(source=source):
                found = self.number([self.of(source)])
            case Input() | Constant() | Iota() | Extent() | Opaque():
                found = _Kind.other
        self.values[node.name] = found

    def of(self, name: str) -> _Kind:
        """Return what a value is; of inputs, `other`."""
        return self.values.get(name, _Kind.other)

    def number(self, kinds: Sequence[_Kind]) -> _Kind:
        """Take note that plain numbers are needed of values of these kinds."""
        self.total &= _Kind.weighed not in kinds
        return _Kind.other

    @staticmethod
    def product(left: _Kind, right: _Kind) -> _Kind:
        """Return the kind of a product."""
        return left if left is right else _Kind.weighed

    def expression(self, expr: Scalar, args: Sequence[_Kind]) -> _Kind:
        """Return the kind of an expression of arguments of these kinds."""
        match expr:
            case Arg(index):
                return args[index]
            case Lit():
                return _Kind.other
            case Convert(_, inner):
                return self.expression(inner, args)
            case Apply("exp", (inner,)):
                self.number([self.expression(inner, args)])
                return _Kind.raised
            case Apply("mul", (x, Lit()) | (Lit(), x)) | Apply("div", (x, Lit())) | Apply("neg", (x,)):
                return self.expression(x, args)
            case Apply("where", (condition, *branches)):
                self.number([self.expression(condition, args)])
                return self.alike([self.expression(each, args) for each in branches if not is_zero(each)])
            case Apply(op, operands):
                return self.applied(op, [self.expression(each, args) for each in operands])
            case _:
                assert_never(expr)

    def applied(self, op: str, kinds: Sequence[_Kind]) -> _Kind:
        """Return the kind of an operation on operands of these kinds."""
        match op, kinds:
            case "mul", (left, right):
                return self.product(left, right)
            case "div", (above, below):
                self.number([below])
                cancels = (above is _Kind.other) == (below is _Kind.other)
                return _Kind.other if cancels else _Kind.weighed
            case (("add" | "sub" | "maximum" | "minimum"), _):
                return self.alike(kinds)
            case _:
                return self.number(kinds)

    @staticmethod
    def alike(kinds: Sequence[_Kind]) -> _Kind:
        """Return the kind of a sum or a choice."""
        return kinds[0] if len(set(kinds)) == 1 else _Kind.weighed if kinds else _Kind.other
