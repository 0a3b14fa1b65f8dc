"""Which values of a program can be infinite, or no number, only where what exponentials raise is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from weft.tensor.program import Cast, Constant, Elementwise, Extent, Iota, Monoid, Node, Reduction
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, is_zero


def is_exponential(node: Node) -> bool:
    """Tell whether `node` raises something to a power of e, and does nothing else."""
    return isinstance(node, Elementwise) and node.expr == apply("exp", Arg(0))


def is_raised(expr: Scalar, raised: Collection[int]) -> bool:
    """Tell whether `expr` is made of exponentials, of arguments that are, and of finite literals alone: over the reals it is
    a number wherever what they raise is. A factor of another kind, or a divisor, may be infinite by itself.

    Args:
        expr: of an elementwise operation.
        raised: the arguments that are made of exponentials alone.
    """
    match expr:
        case Arg(index):
            return index in raised
        case Apply("exp", _):
            return True
        case Apply("mul", (x, Lit(value)) | (Lit(value), x)):
            return isfinite(value) and is_raised(x, raised)
        case Apply("where", (_, *branches)):
            return all(is_zero(each) or is_raised(each, raised) for each in branches)
        case Apply("add" | "mul" | "maximum" | "minimum", args):
            return all(is_raised(each, raised) for each in args)
        case _:
            return False


@dataclass(frozen=True)
class FiniteAsRaised:
    """Which values are finite wherever all that some exponentials raise is; `raised`: that, and what it is a sum of."""

    values: Mapping[str, Node]
    raised: Collection[str]
    _known: dict[str, bool] = field(default_factory=dict[str, bool])

    def of(self, value: str) -> bool:
        """Tells whether this is one: an extremum or a sum of what is raised, the logarithm of a sum of exponentials of it, or
        made of element numbers and finite constants.

        The converse does not hold for all of these: one -inf makes a sum or a minimum infinite, and an extremum of several rows
        is infinite for all of them where one row is. There the judge refuses kernels without the shift.
        """
        waiting = [value]
        while waiting:
            name = waiting[-1]
            read = self._made_of(self.values[name])
            unknown = [v for v in read or () if v not in self.raised and v not in self._known]
            if name in self._known or not unknown:
                waiting.pop()
                self._known[name] = read is not None and all(v in self.raised or self._known[v] for v in read)
            waiting += unknown
        return self._known[value]

    def _made_of(self, node: Node) -> Sequence[str] | None:
        """Returns what must be such for `node` to be; None where it is none, whatever it is made of."""
        match node:
            case Iota() | Extent():
                return ()
            case Constant(value=number):
                return () if isfinite(number) else None
            case Reduction(monoid=Monoid.max | Monoid.min | Monoid.sum, arg=arg) | Cast(arg=arg, semantic=False):
                return (arg.value,)
            case Elementwise(expr=Apply("log", (Arg(),)), args=(use,)):
                return () if self._is_total(self.values[use.value]) else None
            case Elementwise(expr=expr, args=args):
                sizes = {i for i, use in enumerate(args) if isinstance(self.values[use.value], Extent)}
                return tuple(use.value for use in args) if _is_plain(expr, sizes) else None
            case _:
                return None

    def _is_total(self, node: Node) -> bool:
        """Tells whether `node` sums up exponentials: 0 or infinite only where all that they raise is, or some of it."""
        match node:
            case Reduction(monoid=Monoid.sum, arg=use):
                return is_exponential(self.values[use.value])
            case _:
                return False


def _is_plain(expr: Scalar, sizes: Collection[int]) -> bool:
    """Tells whether `expr` is finite wherever all that it reads is: a choice, or linear. `sizes`: the arguments that are sizes."""

    def is_number(each: Scalar) -> bool:
        return (isinstance(each, Lit) and isfinite(each.value)) or (isinstance(each, Arg) and each.index in sizes)

    match expr:
        case Arg():
            return True
        case Lit():
            return is_number(expr)
        case Apply("neg" | "maximum" | "minimum" | "add" | "sub", args):
            return all(_is_plain(a, sizes) for a in args)
        case Apply("mul", (left, right)):
            return (is_number(left) and _is_plain(right, sizes)) or (is_number(right) and _is_plain(left, sizes))
        case Apply("div", (inner, divisor)):
            return is_number(divisor) and divisor != Lit(0.0) and _is_plain(inner, sizes)
        case _:
            return False
