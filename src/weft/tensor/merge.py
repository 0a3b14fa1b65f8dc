"""How parts of a row become one: by a commutative monoid of numbers, or by an associative merge of states of several components."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, parts, show


class Monoid(Enum):
    """What a reduction combines with: a commutative monoid. `value` is also the name of its operation's table row."""

    sum = "add"
    prod = "mul"
    max = "maximum"
    min = "minimum"

    @property
    def identity(self) -> float:
        """The neutral element, in floating point."""
        return {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}[self.name]


@dataclass(frozen=True, slots=True)
class StateMerge:
    """An associative operation on states: what two parts of a row, one right after the other, come to together.

        l = (m, s) = (-inf, 0);  l, r -> (max(m, m'), s exp(m - max(m, m')) + s' exp(m' - max(m, m')))

    Attributes:
        begin: the state of no elements, one number for each component; merged with a state on either side, it leaves that as it is.
        parts: each component of the whole; `Arg(i)` is component i of the left part, and `Arg(size + i)` that of the right one.
    """

    begin: tuple[float, ...]
    parts: tuple[Scalar, ...]

    @staticmethod
    def of(monoid: Monoid) -> StateMerge:
        """Return the merge of states of one number, which `monoid` combines."""
        return _OF_MONOID[monoid]

    @property
    def size(self) -> int:
        """The number of components."""
        return len(self.parts)

    @property
    def monoid(self) -> Monoid | None:
        """The monoid whose numbers are the states; None where it is none of those that have a name."""
        return next((m for m, merge in _OF_MONOID.items() if merge == self), None)

    @property
    def multiplies(self) -> bool:
        """Tell whether it multiplies what may be of any size: such products of a part may be infinite, where a 0 before it makes
        them 0. A factor from 0 to 1, as exp(m - max(m, m')) is, keeps what it multiplies in its range.
        """
        products = (
            p for part in self.parts for p in parts(part) if isinstance(p, Apply) and p.op in ("mul", "fma", "pow")
        )
        return any(not any(map(is_share, product.args[:2])) for product in products)

    def __str__(self) -> str:
        names = tuple(f"{side}{i}" for side in ("left", "right") for i in range(self.size))
        return f"({', '.join(show(part, names) for part in self.parts)})"


_OF_MONOID = {m: StateMerge((m.identity,), (apply(m.value, Arg(0), Arg(1)),)) for m in Monoid}


def is_share(expr: Scalar) -> bool:
    """Tell whether `expr` is a number from 0 to 1, or NaN, whatever its arguments are: an exponential of what cannot be above 0."""
    match expr:
        case Lit(value):
            return 0 <= value <= 1
        case Apply("exp", (Apply("sub", (of, Apply("maximum", greatest))),)):
            return of in greatest
        case Apply("where", (_, first, second)):
            return is_share(first) and is_share(second)
        case _:
            return False


def of_exponentials(weighed: int) -> StateMerge:
    """Return the merge of sums of exponentials: an exponent, and `weighed` sums of which each is to be multiplied by its exp.

        m'' = max(m, m');  s'' = s exp(m - m'') + s' exp(m' - m'')

    It is the law exp(x - m'') = exp(x - m) exp(m - m''), which holds for any exponents; the greatest makes all factors shares, so
    that nothing overflows, and what vanishes is less than a rounding of the rest. A part whose exponent is m'' is taken as it is:
    so are those of -inf, which have seen nothing but -inf, and of inf, whose differences would be NaN.
    """
    size = weighed + 1
    whole = apply("maximum", Arg(0), Arg(size))

    def share(exponent: Scalar) -> Scalar:
        return apply("where", apply("eq", exponent, whole), Lit(1.0), apply("exp", apply("sub", exponent, whole)))

    sums = tuple(
        apply("add", apply("mul", Arg(i), share(Arg(0))), apply("mul", Arg(size + i), share(Arg(size))))
        for i in range(1, size)
    )
    return StateMerge((Monoid.max.identity, *[0.0] * weighed), (whole, *sums))
