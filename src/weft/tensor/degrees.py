"""The domain of degrees: bounds of what a program is as a formula, and what it holds besides formulas.

How likely random elements of a finite field tell two formulas apart, their degrees say (Schwartz and Zippel). So every value is
taken for a quotient of polynomials in the elements of the inputs, over a whole number. Bounded are each polynomial's degree, the
size of its coefficients, and how many different exponentials it has (`Polynomial`). Functions without laws give new variables.
Nothing is capped: a power of 2^31 has that degree. What is no such formula (maxima, comparisons, casts, integers that are data) is
noted as met (`Met`), and the bounds of what comes of it mean nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from weft.tensor import optable
from weft.tensor.domain import Array, Structural, at, by_doubling, by_pairs, contract_arrays, nearest, wrapped
from weft.tensor.dtypes import DType
from weft.tensor.field import ExactValue
from weft.tensor.formula import ONE, Formula, Met, Polynomial, made, repeated, summed, variable
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.merge import StateMerge
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

_NUMBERS = Fp64Domain()
_DATA = np.zeros((), np.int8)


DegreeValue: TypeAlias = Formula | ExactValue

_EXTREMA = ("maximum", "minimum")
_COMPARISONS = ("lt", "le", "gt", "ge")
_TIES = ("eq", "ne")


class DegreeDomain:
    """Values are bounds (`Formula`); indices and what follows from them alone are exact, as in `FieldDomain`.

    `met` collects, over all that is evaluated, what is no formula.

    Args:
        arbitrary: integers that are data, casts and comparisons with constants are what they are in a field that has them so.
    """

    def __init__(self, *, arbitrary: bool = False) -> None:
        self.met = Met()
        self._arbitrary = arbitrary

    def shape(self, v: DegreeValue) -> tuple[int, ...]:
        """Returns the value's sizes."""
        return tuple(v.array.shape) if isinstance(v, ExactValue) else v.shape

    def lift(self, fn: Structural, *values: DegreeValue) -> DegreeValue:
        """Bounds all the values together, in the shape that `fn` gives."""
        if all(isinstance(v, ExactValue) for v in values):
            return ExactValue(np.asarray(fn(*(v.array for v in values if isinstance(v, ExactValue)))))
        shape = np.shape(fn(*(np.broadcast_to(_DATA, self.shape(v)) for v in values)))
        return replace(self._either(values), shape=tuple(shape))

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> DegreeValue:
        """Repeats a number."""
        if dtype.is_float:
            return _number(float(value), tuple(shape))
        return ExactValue(np.broadcast_to(_NUMBERS.full((), value, dtype), tuple(shape)))

    def iota(self, size: int, dtype: DType) -> DegreeValue:
        """Counts from 0 to `size` - 1, exactly."""
        return self._settled(ExactValue(np.arange(size)), dtype)

    def poison(self, shape: Sequence[int], dtype: DType) -> DegreeValue:
        """Returns a variable of its own."""
        return Formula(tuple(shape), Polynomial(1), whole=not dtype.is_float)

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> DegreeValue:
        """Returns an input: a variable for each element."""
        del rng
        whole = not dtype.is_float and not self._arbitrary
        self.met.integers = self.met.integers or whole
        self.met.arbitrary = self.met.arbitrary or not (dtype.is_float or whole)
        return Formula(tuple(shape), Polynomial(1), whole=whole)

    def elementwise(self, expr: Scalar, args: Sequence[DegreeValue], dtype: DType) -> DegreeValue:
        """Bounds `expr` over the arguments."""
        shape = np.broadcast_shapes(*(self.shape(a) for a in args))
        found = self._settled(self._scalar(expr, args), dtype)
        if isinstance(found, ExactValue):
            return found if found.array.shape == shape else ExactValue(np.broadcast_to(found.array, shape))
        return replace(found, shape=shape)

    def _scalar(self, expr: Scalar, args: Sequence[DegreeValue]) -> DegreeValue:
        match expr:
            case Arg(index):
                return args[index]
            case Lit(float() as value):
                return _number(value, ())
            case Lit(value):
                return ExactValue(np.asarray(value))
            case Apply(op, inner):
                return self._apply(op, [self._scalar(a, args) for a in inner])
            case Convert(dtype, inner):
                return self.convert(self._scalar(inner, args), dtype, semantic=True)

    def _apply(self, op: str, args: Sequence[DegreeValue]) -> DegreeValue:
        row = optable.row(op)
        exact = [a.array for a in args if isinstance(a, ExactValue)]
        if row.closed and len(exact) == len(args):
            with np.errstate(all="ignore"):
                found = row.meaning(*exact)
            return _fixed(found) if found.dtype.kind == "f" else ExactValue(found)
        if op == "where":
            mask = args[0]
            if isinstance(mask, Formula) and not mask.whole and not mask.fixed:
                yes, no = (_formula(a) for a in args[1:])
                chosen = self._add(no, self._mul(mask, self._sub(yes, no)))
                finite = not any(a.infinite for a in (yes, no))
                return chosen if finite else self._either([chosen, self._function(op, [mask, yes, no])])
            found = self._either(args[1:])
            if isinstance(mask, ExactValue) or mask.fixed:
                return found
            # Numbers that data chooses among are data that is known.
            return Formula((), whole=True) if found.fixed else replace(found, number=None)
        if row.closed and all(_is_whole(a) for a in args):
            return Formula((), whole=True)
        if isinstance(row.field, Apply):
            return self._scalar(row.field, args)
        return self._operation(row, [_formula(a) for a in args])

    def _operation(self, row: optable.Row, formulas: Sequence[Formula]) -> Formula:
        op = row.name
        match op:
            case "logical_not":
                return self._sub(_number(1.0, ()), formulas[0])
            case "logical_and":
                return self._mul(*formulas)
            case "logical_or":
                return self._sub(self._add(*formulas), self._mul(*formulas))
            case "isnan" | "isinf":
                self.met.special.add(op)
                return Formula((), whole=True)
            case _ if op in _COMPARISONS or op in _TIES:
                return self._compared(op, formulas, Formula((), whole=True))
            case _ if op in _EXTREMA:
                return self._compared(op, formulas, self._either(formulas))
            case "abs" | "sign":
                if self._arbitrary and op == "abs":
                    return self._function(op, formulas, even=True)
                number = formulas[0].number
                found = (
                    replace(formulas[0], number=None if number is None else abs(number))
                    if op == "abs"
                    else variable(formulas)
                )
                return self._compared(op, [*formulas, _number(0.0, ())], found)
            case _ if row.rounding == "steps" or (row.field is None and row.closed):
                self.met.unbounded.add(f"{op}, which is known at integers")
                return self._function(op, formulas)
            case _ if row.field is None:
                return self._function(op, formulas)
            case _:
                return getattr(self, f"_{row.field}")(*formulas)

    # Arithmetic, named after the table's column `field`

    def _add(self, a: Formula, b: Formula) -> Formula:
        for one, other in ((a, b), (b, a)):
            if one.number == 0.0:
                return other
        first, second = a.top.scaled(b.divisor) * b.bottom, b.top.scaled(a.divisor) * a.bottom
        return made(a, b, first + second, a.bottom * b.bottom, a.poles * b.poles, a.divisor + b.divisor)

    def _sub(self, a: Formula, b: Formula) -> Formula:
        return self._add(a, self._neg(b))

    def _neg(self, a: Formula) -> Formula:
        return a if a.number is None else replace(a, number=-a.number)

    def _mul(self, a: Formula, b: Formula) -> Formula:
        return made(a, b, a.top * b.top, a.bottom * b.bottom, a.poles * b.poles, a.divisor + b.divisor)

    def _div(self, a: Formula, b: Formula) -> Formula:
        if b.number is not None:  # the same whole number for all elements, which sums keep
            return made(a, b, a.top.scaled(b.divisor), a.bottom, a.poles, a.divisor + b.top.bits)
        top, bottom = a.top.scaled(b.divisor) * b.bottom, a.bottom * b.top
        return made(a, b, top, bottom, a.poles * b.poles * b.top, a.divisor)

    def _exp(self, a: Formula) -> Formula:
        self.met.exponentials = True
        if a.number is not None and math.isinf(a.number):
            return _number(0.0, ()) if a.number < 0 else a
        self._without_exponentials("an exponent", a)
        inside = a.top * a.bottom * a.poles
        power = replace(ONE, power=max(1, inside.degree), power_bits=inside.bits + a.divisor)
        return replace(a, top=power, bottom=ONE, divisor=0.0, number=None)

    def _pow(self, a: Formula, b: Formula) -> Formula:
        if b.number is not None and abs(b.number) == 0.5:
            root = self._function("sqrt", [a])
            return root if b.number > 0 else self._div(_number(1.0, ()), root)
        if b.number is None or not float(b.number).is_integer():
            self.met.unbounded.add("a power that is no whole number")
            if not b.fixed:
                return self._function("pow", [a, b])
            power = repeated(a, 1 << min(math.ceil(b.top.bits), 1000))  # some may be whole
            return self._either([power, self._div(_number(1.0, ()), power), self._function("pow", [a, b])])
        n = abs(int(b.number))
        if n == 0:
            return _number(1.0, ())
        power = repeated(a, n)
        return power if b.number > 0 else self._div(_number(1.0, ()), power)

    # What is no arithmetic

    def _function(self, name: str, args: Sequence[Formula], *, even: bool = False) -> Formula:
        """Returns a new variable for each element, and keeps the bounds of its arguments; of an `even` function each has two."""
        if all(a.fixed for a in args):
            return replace(variable(args), fixed=True)
        self.met.functions.add(name)
        for each in args:
            self._without_exponentials(f"the argument of {name}", each)
        argument = ONE
        for each in args:
            argument = argument | each.argument | (each.top * each.bottom).scaled(1.0 + each.divisor)
        poles = ONE
        for each in args:
            poles = poles * each.poles
        return replace(
            variable(args),
            poles=poles,
            applied=1 + even + sum(a.applied for a in args),
            argument=argument,
            fixed=False,
        )

    def _without_exponentials(self, where: str, a: Formula) -> None:
        if a.top.power or a.bottom.power or a.poles.power or a.argument.power:
            self.met.unbounded.add(f"exponentials in {where}")

    def _compared(self, op: str, args: Sequence[Formula], found: Formula) -> Formula:
        """Returns `found`, after noting what decides between `args`: a random order, or the place of numbers in it."""
        numbers = [a for a in args if a.fixed]
        if any(a.whole for a in args):
            return found  # what is shown of integers is said of them
        if any(a.number is None for a in numbers):
            self.met.constants.add("numbers that are computed")
            return found
        if len(numbers) == len(args):
            return found
        if op in _TIES and not numbers:  # different formulas are hardly ever equal at random elements
            if self._arbitrary:
                tied = self._function("eq", [self._sub(*args)], even=True)
                return tied if op == "eq" else self._sub(_number(1.0, ()), tied)
            self.met.constants.add("elements with each other, for equality")
            return found
        apart = [
            a.number for a in numbers if a.number is not None and math.isfinite(a.number) and (a.number or op in _TIES)
        ]
        if not apart:
            self.met.order = True
        elif self._arbitrary:
            return self._function(f"{op} with {apart[0]:.6g}", args)
        else:
            self.met.constants.add(f"{apart[0]:.6g}")
        return found

    def _either(self, values: Sequence[DegreeValue]) -> Formula:
        """Bounds each of the values."""
        if all(_is_whole(v) for v in values):
            return Formula((), whole=True)
        found, *others = (_formula(v) for v in values)
        for each in others:
            # A divisor of either divides the product.
            tops = found.top.scaled(each.divisor) | each.top.scaled(found.divisor)
            same = found.number is not None and found.number == each.number
            found = Formula(
                (),
                tops,
                found.bottom | each.bottom,
                found.poles | each.poles,
                found.divisor + each.divisor,
                max(found.applied, each.applied),
                found.argument | each.argument,
                found.number if same else None,
                found.fixed and each.fixed,
                found.infinite or each.infinite,
            )
        return found

    def _settled(self, v: DegreeValue, dtype: DType) -> DegreeValue:
        if not isinstance(v, ExactValue):
            return v
        return _formula(v) if dtype.is_float else ExactValue(wrapped(v.array, dtype))

    def convert(self, v: DegreeValue, dtype: DType, semantic: bool) -> DegreeValue:
        """Converts by keeping precision casts as they are; a rounding is a function without laws; nothing is said of integers."""
        if isinstance(v, ExactValue):
            if semantic and dtype.is_float:
                return _fixed(rounded(v.array.astype(np.float64), dtype))
            return self._settled(v, dtype)
        if v.whole:
            return v
        if self._arbitrary and dtype.kind == "int":
            self.met.unbounded.add(f"a cast to {dtype}")
            return replace(self._function(f"cast to {dtype}", [v]), shape=v.shape)
        if dtype is DType.bool:
            return replace(self._compared("ne", [v, _number(0.0, ())], Formula((), whole=True)), shape=v.shape)
        if not dtype.is_float:
            self.met.truncated = self.met.truncated or not v.fixed
            return Formula(v.shape, whole=True)
        if not semantic:
            self.met.precision = self.met.precision or dtype.bytes <= 2
            return v
        if dtype is DType.float64:
            return v
        self.met.rounded.add(str(dtype))
        self.met.unbounded.add(f"a cast to {dtype}, which is known at integers")
        return replace(self._function(f"cast to {dtype}", [v]), shape=v.shape)

    def contract(
        self,
        left: DegreeValue,
        left_axes: Sequence[int],
        right: DegreeValue,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> DegreeValue:
        """Sums as many products as the labels that are summed have points."""
        if isinstance(left, ExactValue) and isinstance(right, ExactValue):
            a, b = left.array.astype(np.int64), right.array.astype(np.int64)
            return ExactValue(contract_arrays(np.matmul, a, left_axes, b, right_axes, out_axes))
        labels = (*left_axes, *right_axes)
        sizes = dict(zip(labels, (*self.shape(left), *self.shape(right)), strict=True))
        shape = tuple(sizes[x] for x in out_axes)
        count = math.prod(size for label, size in sizes.items() if label not in out_axes)
        if _is_whole(left) and _is_whole(right):
            return Formula(shape, whole=True)
        if count == 0:
            return _number(0.0, shape)
        return replace(summed(self._mul(_formula(left), _formula(right)), count), shape=shape)

    def reduce(self, monoid: Monoid, v: DegreeValue, dims: Sequence[int]) -> DegreeValue:
        """Bounds the repeated operation."""
        if isinstance(v, ExactValue):
            return ExactValue(_NUMBERS.reduce(monoid, v.array, dims))
        kept = tuple(n for d, n in enumerate(v.shape) if d not in dims)
        count = math.prod(v.shape[d] for d in dims)
        if v.whole:
            return Formula(kept, whole=True)
        if count == 0:
            return _number(monoid.identity, kept)
        match monoid:
            case Monoid.sum:
                return replace(summed(v, count), shape=kept)
            case Monoid.prod:
                return replace(repeated(v, count), shape=kept)
            case Monoid.max | Monoid.min:
                return replace(self._compared("maximum", [v, v], v), shape=kept)

    def prefixes(self, monoid: Monoid, v: DegreeValue) -> DegreeValue:
        """Combines pairs."""
        return by_doubling(self, monoid, v)

    def merges(
        self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[DegreeValue]
    ) -> tuple[DegreeValue, ...]:
        """Merges pairs."""
        return by_pairs(self, merge, kinds, states)

    def ranked(self, v: DegreeValue, numbers: DegreeValue, count: int, order: Order) -> tuple[DegreeValue, DegreeValue]:
        """Bounds the values by any of those that there are; their places are data."""
        assert isinstance(numbers, ExactValue), "indices are known"
        if isinstance(v, ExactValue):
            values, places = _NUMBERS.ranked(v.array, numbers.array, count, order)
            return ExactValue(values), ExactValue(places)
        shape = (*v.shape[:-1], count)
        if not v.whole:
            self._compared("maximum", [v, v], v)
        return replace(v, shape=shape), Formula(shape, whole=True)

    def lookup(self, source: DegreeValue, index: Sequence[DegreeValue | Array]) -> DegreeValue:
        """Bounds what is read by any of the elements; where data says which, they are no longer known."""
        known = [i.array if isinstance(i, ExactValue) else i for i in index]
        arrays = [i for i in known if not isinstance(i, Formula)]
        if len(arrays) == len(index):
            places = tuple(nearest(i, size) for i, size in zip(arrays, self.shape(source), strict=True))
            return self.lift(at(places), source)
        self.met.lookups = True
        shape = np.broadcast_shapes(*(i.shape for i in known))
        return Formula(shape, whole=True) if _is_whole(source) else replace(_formula(source), shape=shape)


def _number(value: float, shape: tuple[int, ...]) -> Formula:
    """Returns a float as a whole number over a power of 2; infinities and NaN have no size."""
    if not math.isfinite(value):
        return Formula(shape, number=value, fixed=True, infinite=True)
    top, bottom = value.as_integer_ratio()
    bits = float(max(abs(top), 1).bit_length())
    return Formula(shape, replace(ONE, bits=bits), divisor=float(bottom.bit_length() - 1), number=value, fixed=True)


def _fixed(values: Array) -> Formula:
    """Bounds floats that are known."""
    if values.size == 1:
        return replace(_number(float(values.reshape(())), ()), shape=values.shape)
    finite = [float(v).as_integer_ratio() for v in np.unique(values[np.isfinite(values)])]
    bits = max((abs(top).bit_length() for top, _ in finite), default=1)
    divisor = max((bottom.bit_length() - 1 for _, bottom in finite), default=0)
    return Formula(tuple(values.shape), replace(ONE, bits=float(bits + divisor)), divisor=float(divisor), fixed=True)


def _formula(v: DegreeValue) -> Formula:
    """Returns exact values as the formula that they are among elements."""
    if isinstance(v, Formula):
        return v
    array = v.array
    if array.size == 1:
        return replace(_number(float(array.reshape(())), ()), shape=tuple(array.shape))
    bits = float(max(int(array.max()), -int(array.min()), 1).bit_length()) if array.size else 0.0
    return Formula(tuple(array.shape), replace(ONE, bits=bits), fixed=True)


def _is_whole(v: DegreeValue) -> bool:
    return isinstance(v, ExactValue) or v.whole
