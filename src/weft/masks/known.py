"""What is known of a value without running the program: a number, a sum of indices and sizes, or a state that did not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import numpy as np

from weft.block.linear import Linear
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.optable import row
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar


@dataclass(frozen=True, slots=True)
class KnownNumber:
    """The same number in every element.

    Attributes:
        value: the number.
        raw: it is a tensor's own, or made of such numbers alone: it has not been added to anything as a mask yet.
    """

    value: float | int | bool
    raw: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Start:
    """What a component of a loop's state was before the iteration; at least `least`, where that is known."""

    component: str
    least: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Distance:
    """The magnitude of an integer."""

    of: Linear


@dataclass(frozen=True, slots=True)
class Endless:
    """A number of which nothing is known but where it may be infinite, or none.

    Attributes:
        low: tensors of which elements that are -inf make it -inf, and nothing else.
        of: tensors of which elements that are -inf make it any infinity, or none.
    """

    low: frozenset[str]
    of: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """Return all of these tensors."""
        return self.low | self.of


KnownValue: TypeAlias = KnownNumber | Linear | Distance | Start | Endless | None
"""None: nothing is known."""


@dataclass
class Facts:
    """What is taken for granted: each of `hold` is at least 0 everywhere, and elements of the tensors `excluded` are -inf.

    `asked`: what was asked for and is not known.
    """

    hold: tuple[Linear, ...] = ()
    excluded: frozenset[str] = frozenset()
    asked: dict[Linear, None] = field(default_factory=dict[Linear, None])

    def reaches(self, value: KnownValue) -> bool:
        """Tells whether a value may be infinite because of what is excluded."""
        return isinstance(value, Endless) and not value.all.isdisjoint(self.excluded)

    def decide(self, linear: Linear) -> bool | None:
        """Tells whether `linear` is at least 0; None where that is not the same everywhere."""
        if linear.number is not None:
            return linear.number >= 0
        for fact in self.hold:
            more, sum_ = linear.plus(fact, -1).number, linear.plus(fact).number
            if more is not None and more >= 0:
                return True
            if sum_ is not None and sum_ < 0:
                return False
        self.asked[linear] = None
        return None


# At least 0 exactly where the comparison of a with b holds: so many times a, so many times b, and a constant.
_COMPARISONS = {"lt": (-1, 1, -1), "le": (-1, 1, 0), "gt": (1, -1, -1), "ge": (1, -1, 0)}
_NEVER_FLOAT = (DType.int32, DType.int64)


def of_expression(expr: Scalar, args: Sequence[KnownValue], facts: Facts) -> KnownValue:
    """Says what is known of `expr`, whose arguments are `args`.

    An operand that a number makes irrelevant counts as finite: 0 x is 0, and -inf + x is -inf. A mask that excludes an
    operand this way does not let its NaN through (docs/guide/masks.md). What a mask has been added to stays excluded
    whatever is subtracted from it; from a `raw` -inf, x is subtracted as from any number: -inf - x is NaN where x is -inf.
    A state that is subtracted from itself counts as finite too: the difference is 0. What is infinite where the mask is -inf,
    a sum of the same tensor's numbers, is no operand that the mask excludes: 0 times it is not known.
    """
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            return KnownNumber(value)
        case Convert(dtype, inner):
            return _converted(of_expression(inner, args, facts), dtype)
        case Apply(op, operands):
            values = [of_expression(o, args, facts) for o in operands]
            found = _applied(op, values, facts)
            return _endless(op, values) if found is None and row(op).result != "bool" else found
        case _:
            assert_never(expr)


def _endless(op: str, values: Sequence[KnownValue]) -> Endless | None:
    """Returns where the result of an operation on such values may be infinite."""
    match op:
        case "tanh" | "erf" | "sign":
            return None
        case "exp" | "exp2" | "expm1" | "decay" | "coarse_decay":
            return bounded(values)
        case "maximum":
            return summed(values) if all(isinstance(v, Endless) for v in values) else bounded(values)
        case "add" | "minimum":
            return summed(values)
        case "where":
            return summed(values[1:])
        case "sub":
            return summed([values[0], endless(values[1:])])
        case "mul" | "div" if any(isinstance(v, KnownNumber) and v.value > 0 for v in values[1:]):
            return summed(values[:1])
        case "mul" if isinstance(values[0], KnownNumber) and values[0].value > 0:
            return summed(values[1:])
        case _:
            return endless(values)


def summed(values: Sequence[KnownValue]) -> Endless | None:
    """Returns where a sum of such values may be infinite: -inf where that is all that they may be."""
    parts = [v for v in values if isinstance(v, Endless)]
    of, low = (frozenset[str]().union(*sets) for sets in ([p.of for p in parts], [p.low for p in parts]))
    return Endless(low - of, of) if parts else None


def bounded(values: Sequence[KnownValue]) -> Endless | None:
    """Returns where a number may be infinite that is none where all of such values are -inf."""
    found = summed(values)
    return Endless(frozenset(), found.of) if found is not None and found.of else None


def endless(values: Sequence[KnownValue]) -> Endless | None:
    """Returns where any number that is made of such values may be infinite."""
    found = summed(values)
    return None if found is None else Endless(frozenset(), found.all)


def _converted(value: KnownValue, dtype: DType) -> KnownValue:
    match value:
        case KnownNumber(number) if dtype is DType.bool:
            return KnownNumber(bool(number))
        case KnownNumber(number) if dtype.is_float:
            # Rounding could make of a number another one; small integers and infinities have every float's precision.
            exact = number in (0, 1, float("-inf"), float("inf"))
            return KnownNumber(float(number), value.raw) if exact else None
        case KnownNumber(bool(number)):
            return KnownNumber(int(number))
        case Linear() if dtype in _NEVER_FLOAT:
            return value
        case _:
            return None


def _applied(op: str, values: list[KnownValue], facts: Facts) -> KnownValue:
    match op, values:
        case "sub", [Start() as left, Start() as right] if left == right:
            return KnownNumber(0.0)
        case "where", [KnownNumber(chosen), first, second]:
            return first if chosen else second
        case "where", [_, first, second]:
            return first if first == second and isinstance(first, KnownNumber) else None
        case (("lt" | "le" | "gt" | "ge"), [left, right]):
            return _compared(op, left, right, facts)
        case (("eq" | "ne"), [left, right]) if _linear(left) is not None and _linear(right) is not None:
            return _equal(op, [_compared(each, left, right, facts) for each in ("ge", "le")])
        case "abs", [Linear() as linear]:
            return Distance(linear)
        case (("add" | "sub" | "mul" | "floor_divide"), [left, right]) if (
            _linear(left) is not None and _linear(right) is not None
        ):
            return _sum(op, left, right)
        case _:
            pass
    numbers = [v for v in values if isinstance(v, KnownNumber)]
    return _computed(op, numbers) if len(numbers) == len(values) else _partly(op, values, facts)


def _compared(op: str, left: KnownValue, right: KnownValue, facts: Facts) -> KnownValue:
    match left, right:
        case Distance(of), _ if op in ("lt", "le"):  # |a| <= b is a <= b and -a <= b
            both = [_compared(op, one, right, facts) for one in (of, Linear().plus(of, -1))]
            return (
                KnownNumber(value=False)
                if KnownNumber(value=False) in both
                else both[0]
                if both[0] == both[1]
                else None
            )
        case Distance(), _:
            found = _compared({"gt": "le", "ge": "lt"}[op], left, right, facts)
            return KnownNumber(not found.value) if isinstance(found, KnownNumber) else None
        case _, Distance():
            return _compared({"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[op], right, left, facts)
        case _:
            a, b = _linear(left), _linear(right)
            if a is None or b is None:
                return None
            times_a, times_b, constant = _COMPARISONS[op]
            decided = facts.decide(Linear(constant=constant).plus(a, times_a).plus(b, times_b))
            return None if decided is None else KnownNumber(decided)


def _equal(op: str, ends: Sequence[KnownValue]) -> KnownValue:
    """Says whether two numbers are equal ("eq") or not, given whether one is at least the other and at most it."""
    if KnownNumber(value=False) in ends:
        return KnownNumber(op == "ne")
    return None if None in ends else KnownNumber(op == "eq")


def _linear(value: KnownValue) -> Linear | None:
    """Reads `value` as an integer; masks and fractions are none."""
    match value:
        case Linear():
            return value
        case KnownNumber(bool()):
            return None
        case KnownNumber(int(number)):
            return Linear(constant=number)
        case _:
            return None


def _sum(op: str, left: KnownValue, right: KnownValue) -> KnownValue:
    """Computes the sum, difference, product or quotient of two integers."""
    a, b = _linear(left), _linear(right)
    assert a is not None
    assert b is not None
    match op:
        case "mul":
            by, of = (a, b) if b.number is None else (b, a)
            return None if by.number is None else _plain(of.times(by.number))
        case "floor_divide":
            return None if b.number is None or b.number <= 0 else _plain(a.over(b.number))
        case _:
            return _plain(a.plus(b, 1 if op == "add" else -1))


def _plain(linear: Linear) -> KnownValue:
    return linear if linear.number is None else KnownNumber(linear.number)


def _computed(op: str, known: list[KnownNumber]) -> KnownValue:
    found, numbers = row(op), [each.value for each in known]
    with np.errstate(all="ignore"):
        result = np.asarray(found.meaning(*(np.asarray(n) for n in numbers))).item()
    if op not in ("add", "sub") and all(map(_in_between, numbers)) and not _in_between(result):
        return None  # exp(-1e9) is 0 in numbers alone: no finite number takes the place of -inf
    return KnownNumber(bool(result) if found.result == "bool" else result, any(each.raw for each in known))


def _in_between(number: float) -> bool:
    """Tells whether a number is neither 0 nor infinite; a condition is in between."""
    return isinstance(number, bool) or (number != 0 and abs(number) < float("inf"))


def _partly(op: str, values: list[KnownValue], facts: Facts) -> KnownValue:
    """Returns the result where one operand decides it alone; None where none does."""
    numbers = [v for v in values if isinstance(v, KnownNumber)]
    if len(values) == 1:
        return None
    number, raw = (numbers[0].value, numbers[0].raw) if len(numbers) == 1 else (None, False)
    other = next(v for v in values if not isinstance(v, KnownNumber))
    match op:
        case "logical_and" if number is False:
            return KnownNumber(value=False)
        case "logical_or" if number is True:
            return KnownNumber(value=True)
        case "logical_and" | "logical_or" if number is not None:
            return other
        case "mul" if number == 0:
            return None if facts.reaches(other) else KnownNumber(0.0)
        case "add" | "sub" if number == float("-inf") and (op == "add" or (values[1] is other and not raw)):
            return KnownNumber(float("-inf"))
        case "maximum" if number == float("-inf") or (
            isinstance(other, Start) and number is not None and number <= other.least
        ):
            return other
        case "minimum" if number == float("inf"):
            return other
        case "add" if number == 0:
            return other
        case "mul" if number == 1:
            return other
        case "sub" | "div" if isinstance(values[1], KnownNumber) and number == (0 if op == "sub" else 1):
            return other
        case _:
            return None


def renamed(value: KnownValue, old: Axis, new: Axis) -> KnownValue:
    """Returns `value` as it is seen where the axis `old` is called `new`."""
    return value.along(old, new) if isinstance(value, Linear) else value


KnownValues: TypeAlias = Mapping[str, KnownValue]
