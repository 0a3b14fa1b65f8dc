"""From a decomposed chain to one loop and what follows it: H of the paper is applied at the finish, once for each result."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from weft.block.fold import Fold
from weft.block.references import restored
from weft.block.rename import fresh
from weft.block.walk import operands
from weft.cascade.algebra import (
    ZERO,
    above_least,
    difference,
    is_one,
    negative,
    power,
    product,
    quotient,
    repeatedly,
    total,
    where_invertible,
)
from weft.cascade.basis import Carried, carried, expansion, expr_axes, squared
from weft.cascade.centres import COUNT, Decomposition, below_its_maximum, centres
from weft.cascade.chain import Chain, Link, Result, argument
from weft.cascade.components import (
    LETTERS,
    Centre,
    Combined,
    Exponent,
    Key,
    Logarithms,
    Multiplied,
    axes_of,
    layout,
    scale_of,
)
from weft.cascade.graphing import Graphing
from weft.cascade.rounding import Scaling
from weft.cascade.separate import Factor, NotSeparableError, Shift, far_apart, summands
from weft.cascade.state import StateWriter
from weft.errors import Location
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, Node, Use
from weft.tensor.scalar import Apply, Arg, ArgumentTable, Convert, Lit, Scalar, apply, arguments, parts, substitute


def fold(found: Decomposition, values: Mapping[str, Node]) -> Fold:
    """Makes the loop that computes what the chain wants.

    Args:
        found: the chain, decomposed.
        values: of the program, by name.
    """
    return _Folding(found, values).fold()


def _computed_in(chain: Chain, values: Mapping[str, Node]) -> DType:
    """Returns the type that a chain is computed in as it is written: float64 where anything in it is.

    Not where anything else in the program is: its elements would be others than those that are read outside the loop, which are
    rounded, and a maximum of them none of those.
    """
    read = (values[o.value].dtype for o in chain.operands if isinstance(o, Use))
    wide = DType.float64 in (*read, *(link.dtype for link in chain.links))
    made = (part for link in chain.links for part in parts(link.element.expr))
    wide = wide or any(isinstance(part, Convert) and part.dtype is DType.float64 for part in made)
    return DType.float64 if wide else DType.float32


def _factors(found: Decomposition, index: int) -> tuple[Logarithms | None, Multiplied | None]:
    """Returns what is carried of a product of what depends on earlier results: nothing where all factors are the same."""
    (factor,) = found.terms[index][0].factors
    data = None if is_one(factor.data) else factor.data
    raised = None if factor.raised is None else factor.raised.data
    logarithms = None if data is None and raised is None else Logarithms(data, raised)
    return logarithms, None if data is None else Multiplied(data)


def _magnified(chain: Chain, index: int) -> bool:
    """Tells whether a reduction is a product of what depends on earlier results: their errors come n times into it, for
    n elements.
    """
    link = chain.links[index]
    return link.monoid is Monoid.prod and chain.dependent(link.element.expr)


def _wider(found: Decomposition, index: int) -> bool:
    """Tells whether what is carried for a reduction needs more digits, or a wider range, than its results have.

    A product of blocks is computed as its operands are: units for it have no wider type.
    """
    link = found.chain.links[index]
    summed = link.monoid is Monoid.sum and len(link.element.sides) == 1
    return _magnified(found.chain, index) or (summed and any(far_apart(found.chain, t) for t in found.terms[index]))


def _keys(found: Decomposition, index: int) -> list[Key]:
    """Lists what is carried for a reduction, the first time that it is met."""
    link, terms = found.chain.links[index], found.terms[index]
    if link.monoid is Monoid.sum:
        return [carried(t, link.element.rounded) for t in terms]
    if _magnified(found.chain, index):
        return [key for key in _factors(found, index) if key is not None]
    return [Combined(terms[0].factors[0].data, link.monoid)]


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A value after the loop: `expr` times a power of exp(z - h) for each exponent that it is still relative to."""

    expr: Scalar
    relative: tuple[tuple[Shift, int], ...] = ()


class _Folding:
    """The making of one fold."""

    def __init__(self, found: Decomposition, values: Mapping[str, Node]) -> None:
        self.found, self.chain, self.values = found, found.chain, values
        self.centres, self.given = centres(found, values), _computed_in(found.chain, values)
        # What a product magnifies, or several results bring into range, is in float64.
        self.real = DType.float64 if any(_wider(found, i) for i in range(len(self.chain.links))) else self.given
        self.order = _order(self.chain)
        self.make = fresh({argument(i) for i in range(len(self.chain.operands))})
        self.names: dict[Key, str] = {}
        self.after = Graphing(self.order, self.real, self.make)
        self.args = ArgumentTable[str]()
        self.known: dict[int, _Scaled] = {}
        for i, operand in enumerate(self.chain.operands):
            if isinstance(operand, Use):
                self.after.dims[argument(i)] = frozenset(operand.axes)

    def fold(self) -> Fold:
        """Makes the loop, its state, and what comes after; only what the results take is carried."""
        makes: list[tuple[str, str]] = []
        for value, index in self.chain.wanted:
            makes.append((value, self._made(value, self._plain(self._result(index)))))
        for value, finish in self.chain.finished:
            makes.append((value, self._made(value, self._by_axes(finish))))
        sums = [key for key in self.names if isinstance(key, Carried)]
        single = [key for key in self.names if isinstance(key, Combined | Logarithms | Multiplied)]
        carrying = layout(self.chain, sums, single, self.centres, self.names, self.make)
        widened = self.real is not self.given
        body, state = StateWriter(
            self.chain, carrying, self.centres, self.order, self.real, widened, self.make, self._locations()
        ).state()
        read = {n for each in (*body, *self.after.nodes) for n in operands(each)} | set(state.feeds)
        args = tuple(
            (argument(i), o) for i, o in enumerate(self.chain.operands) if isinstance(o, Use) and argument(i) in read
        )
        return Fold(self.chain.axes, (self.chain.over,), args, body, state, tuple(self.after.nodes), tuple(makes))

    def _made(self, value: str, expr: Scalar) -> str:
        """Makes a result, in the type and with all the axes that its value has, also those along which it is the same."""
        dtype = self.values[value].dtype.accumulator
        name = self.after.point("t", expr, self.args, None if dtype is self.real else dtype)
        axes = frozenset(self.chain.axes)
        return name if self.after.dims[name] == axes else self.after.point("t", Arg(0), (name,), dtype, axes)

    def _by_axes(self, expr: Scalar) -> Scalar:
        """Writes `expr` after the loop, with any part of fewer axes than its reader as a value of its own: made once
        for all of these.
        """
        match expr:
            case Apply(op, args):
                own = expr_axes(self.chain, expr)
                made: list[Scalar] = []
                for arg in args:
                    part = self._by_axes(arg)
                    if isinstance(arg, Apply | Convert) and expr_axes(self.chain, arg) != own:
                        part = self.args.arg(self.after.point("t", part, self.args))
                    made.append(part)
                return Apply(op, tuple(made))
            case Convert(dtype, inner):
                return Convert(dtype, self._by_axes(inner))
            case Arg() | Lit():
                return self._plain(self._value(expr))

    def _locations(self) -> dict[Key, Location | None]:
        """Returns the users' lines that sums and extrema come from."""
        found: dict[Key, Location | None] = {}
        for index, link in enumerate(self.chain.links):
            for key in _keys(self.found, index):
                found.setdefault(key, link.location)
        return found

    def _component(self, key: Key) -> Arg:
        """Returns a component of the state, after the loop."""
        if key not in self.names:
            self.names[key] = self.make(LETTERS[type(key)])
            self.after.dims[self.names[key]] = axes_of(self.chain, key)
        return self.args.arg(self.names[key])

    def _result(self, index: int) -> _Scaled:
        """Returns the result of a reduction."""
        if index not in self.known:
            link = self.chain.links[index]
            if link.monoid is Monoid.sum:
                made = self._sum(index, link)
            elif _magnified(self.chain, index):
                made = _Scaled(self._product(index))
            else:
                made = _Scaled(self._component(*_keys(self.found, index)))
            name = self.after.point("t", made.expr, self.args, location=link.location)
            self.known[index] = _Scaled(self.args.arg(name), made.relative)
        return self.known[index]

    def _product(self, index: int) -> Scalar:
        """Computes the product of n factors data * H * exp(g - h) from their signs, and their geometric mean n times.

        The mean is a number wherever most factors are; to the power of n it is 0 or infinite where the product is. A factor
        of 0 or infinity need only have the right sign: multiplied with the power itself, it could become NaN.
        """
        (term,) = self.found.terms[index]
        (factor,) = term.factors
        logarithms, multiplied = _factors(self.found, index)
        count = self._component(COUNT)
        mean = self._plain(self._value(term.scale))
        if logarithms is not None:
            exponent: Scalar = quotient(self._component(logarithms), count)
            if factor.raised is not None:
                if not below_its_maximum(self.chain, factor.raised):
                    raise NotSeparableError(
                        f"{self._exponential(index, factor.raised)} is not bounded by its own maximum: "
                        "in a product one factor may be infinite and another 0"
                    )
                exponent = difference(exponent, self._plain(self._value(factor.raised.result)))
            mean = product(mean, apply("exp", exponent))
        each = self.args.arg(self.after.point("each", mean, self.args))
        every = apply("pow", each, count)
        if multiplied is None:
            return every
        signs = self._component(multiplied)
        once = apply("mul", apply("abs", each), apply("pow", apply("sign", each), count))
        decided = apply("logical_or", apply("eq", signs, ZERO), apply("isinf", signs))
        return apply("mul", signs, apply("where", decided, once, every))

    def _sum(self, index: int, link: Link) -> _Scaled:
        parts: list[_Scaled] = []
        for term in self.found.terms[index]:
            key, scale = carried(term, link.element.rounded), self._value(term.scale)
            if any(isinstance(self.centres[shift], Exponent) for shift, _ in key.shifts):
                parts += self._about_exponent(index, key, scale)
                continue
            value = _Scaled(self._settled(key), tuple((shift, 1) for shift in key.raised))
            for scaling in key.scaled:
                value = self._lost(scaling, value)
            if not all(below_its_maximum(self.chain, shift) for shift in key.raised):
                value = self._unbounded(index, key, value)
            parts.append(_multiplied(scale, value))
        if len(parts) == 1:
            return parts[0]
        result = self._plain(parts[0])
        for part in parts[1:]:
            result = total(result, self._plain(part))
        return _Scaled(result)

    def _about_exponent(self, index: int, key: Carried, scale: _Scaled) -> list[_Scaled]:
        """Returns the summands of a sum with a difference that is relative to the exponent of the same data.

        Each is brought back before it is multiplied by how far the exponent is from what is subtracted, which may be very far where
        the exponential of that is 0.
        """
        for raised in key.raised:
            if not below_its_maximum(self.chain, raised):
                self._refuse_factors(index, raised)
        relative = tuple((raised, 1) for raised in key.raised)
        found: list[_Scaled] = []
        for coefficient, moves, part in expansion(key, frozenset(shift for shift, _ in key.shifts)):
            value = self._plain(_multiplied(scale, _Scaled(self._component(part), relative)))
            for shift, exponent in moves:
                by = self._apart(shift, self._component(self.centres[shift]))
                value = product(value, power(self.args.arg(self.after.point("by", by, self.args)), exponent))
            found.append(_Scaled(product(Lit(float(coefficient)), value)))
        return found

    def _refuse_factors(self, index: int, shift: Shift) -> None:
        raise NotSeparableError(
            f"{self._exponential(index, shift)} is not bounded by its own maximum, and has other factors"
        )

    def _unbounded(self, index: int, key: Carried, value: _Scaled) -> _Scaled:
        """Sums exponentials whose shift is not their maximum: where one is infinite the sum may be so too, not NaN.

        Relative to the running exponent such an element is inf - inf; the sum of exp(g - h) is what the greatest gives. And
        what the least does where h is -inf, if it can be: infinite, or NaN if that is -inf too.

        Raises:
            NotSeparableError: there are other factors, whose signs decide which infinity it is.
        """
        shift = key.raised[0]
        if key.factors != (Factor(raised=shift),):
            self._refuse_factors(index, shift)
        z = self._component(Exponent(shift.data))
        greatest = self.args.arg(self.after.point("top", self._factor(shift), self.args))
        found = apply("where", apply("eq", z, Lit(math.inf)), greatest, self._plain(value))
        if above_least(shift.result):
            return _Scaled(found)
        below = self._plain(self._value(shift.result))
        least = apply("exp", difference(self._component(Combined(shift.data, Monoid.min)), below))
        return _Scaled(apply("where", apply("eq", below, Lit(-math.inf)), least, found))

    def _exponential(self, index: int, shift: Shift) -> str:
        """Describes an exponential of a reduction's element, for a reader."""
        return f"{self.chain.links[index].node}: exp({self.chain.show(shift.data)} - {self.chain.show(shift.result)})"

    def _lost(self, scaling: Scaling, value: _Scaled) -> _Scaled:
        """Sums what is rounded at a running scale; where nothing can be divided by the last one, what it is rounded to then.

        That is R(0 / 0) of a row of zeros, R(inf / inf) of an infinity and R(NaN): the row's largest element by the scale.
        """
        of = scale_of(scaling).of
        (largest,) = arguments(of)
        scale, most = self._plain(self._value(of)), self._plain(self._value(Arg(largest)))
        none = substitute(scaling.around, lambda _: apply("div", most, scale))
        name = self.after.point("lost", where_invertible(scale, Lit(1.0), none), self.args)
        return _multiplied(value, _Scaled(self.args.arg(name)))

    def _factor(self, shift: Shift) -> Scalar:
        """Computes exp(z - h), the factor that a sum relative to the running exponent is short of."""
        return restored(negative(self._apart(shift, self._component(Exponent(shift.data)))))

    def _apart(self, shift: Shift, running: Scalar) -> Scalar:
        """Computes what `shift` subtracts, less its running value: one summand after the other, for the first is near that value.

        The logarithm of a sum of exponentials is m + log(t): rounded as one number it has lost log(t) where m is large.
        """
        first, *rest = summands(self.chain, shift.result)
        result = difference(self._plain(self._value(first)), running)
        for part in rest:
            result = total(result, self._plain(self._value(part)))
        return result

    def _settled(self, key: Carried) -> Scalar:
        """Computes the carried sum relative to what its differences subtract, in place of the running means.

        A sum that is infinite since squares of numbers are stays so; where a mean is infinite, so are data, and that makes NaN.
        """
        moved = frozenset(shift for shift, _ in key.shifts)
        parts = tuple(expansion(key, moved))
        beside = {part for _, _, part in parts}
        result: Scalar = Lit(0.0)
        overflowed = apply("isinf", self._component(key))
        for coefficient, moves, part in parts:
            summand: Scalar = self._component(part)
            for shift, exponent in moves:
                apart = self.args.arg(self.after.point("by", self._from_centre(shift, beside), self.args))
                overflowed = apply("logical_and", overflowed, apply("lt", apply("abs", apart), Lit(math.inf)))
                summand = repeatedly(apart, exponent, summand)
            result = total(result, product(Lit(float(coefficient)), summand))
        return apply("where", overflowed, self._component(key), result) if squared(key) else result

    def _from_centre(self, shift: Shift, parts: Collection[Carried]) -> Scalar:
        """Computes how far what `shift` subtracts lies from its running value; `parts` is what is carried beside it.

        A mean lies from any centre as far as the mean of the differences to it, sum(w * (g - c)) / sum(w): small numbers. The mean
        less the centre is two large ones, and the first has lost as much as a long sum of numbers far from 0 loses.
        """
        centre = self.centres[shift]
        if isinstance(centre, Centre) and centre.mean:
            (weight,) = centre.below.factors
            moment = Carried((replace(weight, powers=((shift, 1),)),), (None,))
            if moment in parts:
                return quotient(self._component(moment), self._component(centre.below))
        return self._apart(shift, self._component(centre))

    def _plain(self, of: _Scaled) -> Scalar:
        """Returns the value itself: brought back from what it is relative to."""
        expr = of.expr
        for shift, exponent in of.relative:
            apart = self.args.arg(self.after.point("by", self._factor(shift), self.args))
            expr = product(expr, power(apart, exponent)) if exponent > 0 else quotient(expr, power(apart, -exponent))
        return expr

    def _value(self, expr: Scalar) -> _Scaled:
        """Computes an expression of results and of what is fixed."""
        match expr:
            case Lit():
                return _Scaled(expr)
            case Arg(i):
                operand = self.chain.operands[i]
                return (
                    self._result(operand.index) if isinstance(operand, Result) else _Scaled(self.args.arg(argument(i)))
                )
            case Apply("mul", (left, right)):
                return _multiplied(self._value(left), self._value(right))
            case Apply("div", (left, right)):
                return _multiplied(self._value(left), self._value(right), inverse=True)
            case Apply("neg", (inner,)):
                value = self._value(inner)
                return _Scaled(apply("neg", value.expr), value.relative)
            case Apply(op, args):
                return _Scaled(Apply(op, tuple(self._plain(self._value(a)) for a in args)))
            case Convert(dtype, inner):
                return _Scaled(Convert(dtype, self._plain(self._value(inner))))


def _multiplied(left: _Scaled, right: _Scaled, *, inverse: bool = False) -> _Scaled:
    relative = dict(left.relative)
    for shift, exponent in right.relative:
        relative[shift] = relative.get(shift, 0) + (-exponent if inverse else exponent)
    expr = quotient(left.expr, right.expr) if inverse else product(left.expr, right.expr)
    return _Scaled(expr, tuple((s, e) for s, e in relative.items() if e))


def _order(chain: Chain) -> tuple[Axis, ...]:
    """Returns the order of axes in items: as in the values that are read."""
    read = (a for o in chain.operands if isinstance(o, Use) for a in o.axes)
    return tuple(dict.fromkeys((*read, *chain.axes, chain.over)))
