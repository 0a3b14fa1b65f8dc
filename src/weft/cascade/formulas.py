"""A chain's derivation as the paper prints it: G and H, the update of an iteration (equation 16), the merge of segments (11).

Kernels are made of the same terms in another form (`weft.cascade.state`): they leave for the finish what only scales a result.
In a product what scales each element does so as often as there are elements: `count` of them so far, `count_1` in a segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.cascade.algebra import ONE, ZERO, difference, is_one, monomial, negative, product, simplified, text, total
from weft.cascade.approximation import without
from weft.cascade.basis import carried, expansion
from weft.cascade.centres import Decomposition
from weft.cascade.chain import Chain, Link, Result
from weft.cascade.rounding import Scaling
from weft.cascade.separate import Factor, Term
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.program import Monoid, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply, arguments, operations, substitute

_SAMPLES = 24
_MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class Product:
    """F = G * H, in the monoid that goes with the reduction.

    Attributes:
        data: G, of data.
        result: H, of earlier results.
    """

    data: Scalar
    result: Scalar


def one_product(chain: Chain, link: Link) -> Product | None:
    """Returns the one product that the element of `link` is; None where the identity does not hold at any point tried.

    Any point gives G and H up to a constant that one has and the other lacks: the shortest are given.
    """
    expr = link.element.expr
    extremum = link.monoid in (Monoid.max, Monoid.min)
    used = sorted(arguments(expr))
    data = [i for i in used if chain.over in chain.axes_of(i)]
    results = [i for i in used if i not in data]
    if not any(isinstance(chain.operands[i], Result) for i in results):
        return Product(expr, ZERO if extremum else ONE)
    found: list[Product] = []
    for x0, d0 in _points(data, results):
        at_both = simplified(expr, lambda i, p={**x0, **d0}: p[i])
        if not isinstance(at_both, Lit) or (not extremum and at_both.value == 0):
            continue
        of_data = simplified(expr, lambda i, p=d0: p.get(i, Arg(i)))
        of_results = simplified(expr, lambda i, p=x0: p.get(i, Arg(i)))
        # As they stand: a field has 1 / 448, which no float is, so numbers are worked out for the reader alone.
        points: tuple[Mapping[int, Scalar], ...] = ({**x0, **d0}, d0, x0)
        both, one, other = (substitute(expr, lambda i, p=point: p.get(i, Arg(i))) for point in points)
        if _same(total if extremum else product, expr, both, one, other, used):
            apart = difference if extremum else _divided
            found.append(Product(apart(of_data, at_both), of_results))
    return min(found, key=lambda p: operations(p.data) + operations(p.result), default=None)


def _divided(data: Scalar, by: Scalar) -> Scalar:
    return data if is_one(by) else monomial(data).times(monomial(by), -1).expr


def _points(data: list[int], results: list[int]) -> Iterator[tuple[Mapping[int, Lit], Mapping[int, Lit]]]:
    """Yields points at which F may be invertible: each argument 1 or 0, 1 first."""
    count = len(data) + len(results)
    for values in itertools.islice(itertools.product((1.0, 0.0), repeat=count), _MOST_POINTS):
        lits = [Lit(v) for v in values]
        yield dict(zip(data, lits, strict=False)), dict(zip(results, lits[len(data) :], strict=True))


def _same(
    combine: Callable[[Scalar, Scalar], Scalar],
    expr: Scalar,
    at_both: Scalar,
    of_data: Scalar,
    of_results: Scalar,
    used: list[int],
) -> bool:
    """Tells whether F(x, d) * F(x0, d0) = F(x, d0) * F(x0, d) at random elements."""
    domain = FieldDomain(0)
    rng = np.random.default_rng(0)
    values = {i: domain.random((_SAMPLES,), DType.float64, rng) for i in used}
    args = [values.get(i, domain.full((), 0.0, DType.float64)) for i in range(max(used, default=-1) + 1)]
    left = domain.elementwise(combine(expr, at_both), args, DType.float64)
    right = domain.elementwise(combine(of_data, of_results), args, DType.float64)
    return domain.equal(left, right)


@dataclass(frozen=True, slots=True)
class ReductionFormula:
    """How one reduction of a chain is carried. A primed name is the value with the new block, or of both segments together.

    Attributes:
        result: the value of the program.
        element: F.
        data, result_factor: G and H; None where one product is not enough.
        terms: (H_t, G_t) whose products add up to F.
        keep: whether the prior result is kept, for the corrections of later reductions.
        rounded: the parts of F that an iteration rounds at the scale so far; G and H are of F with their roundings left out.
        correct: what the prior result is combined with; None where nothing needs correcting.
        update: one iteration.
        merge: two segments, `_1` and `_2`.
    """

    result: str
    element: str
    data: str | None
    result_factor: str | None
    terms: tuple[tuple[str, str], ...]
    keep: bool
    correct: str | None
    update: str
    merge: str
    rounded: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.data is None:
            parts = " + ".join(g if h == "1" else f"{h} * {g}" for h, g in self.terms)
            lines = [f"{self.result}: F = {self.element} = {parts}"]
        else:
            but = " roundings left out," if self.rounded else ""
            lines = [f"{self.result}: F = {self.element};{but} G = {self.data}; H = {self.result_factor}"]
        lines += [f"    rounded at the scale so far: {each}" for each in self.rounded]
        if self.keep:
            lines.append(f"    keep {self.result}")
        if self.correct is not None:
            lines.append(f"    correct {self.result} by {self.correct}")
        return "\n".join([*lines, f"    {self.update}", f"    {self.merge}"])


def formulas(found: Decomposition, names: Mapping[str, str] | None = None) -> tuple[ReductionFormula, ...]:
    """Write one formula for each reduction of the chain, in order; values of the program are called by `names`, where
    these have them.
    """
    printing = _Printing(found, names or {})
    return tuple(printing.formula(i) for i in range(len(found.chain.links)))


@dataclass(frozen=True, slots=True)
class _Printing:
    found: Decomposition
    called: Mapping[str, str]

    def name(self, value: str) -> str:
        """Return the name by which a value is called."""
        return self.called.get(value, value)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each operand."""
        own = (o.value if isinstance(o, Use) else self.chain.links[o.index].node for o in self.chain.operands)
        return tuple(map(self.name, own))

    @property
    def results(self) -> frozenset[str]:
        """The names of the results."""
        return frozenset(self.name(link.node) for link in self.chain.links)

    @property
    def chain(self) -> Chain:
        return self.found.chain

    def formula(self, index: int) -> ReductionFormula:
        chain, link = self.chain, self.chain.links[index]
        scaled = tuple(f.scaled for term in self.found.terms[index] for f in term.factors if f.scaled is not None)
        sides = tuple(without([s.around for s in scaled], side) for side in link.element.sides)
        apart = one_product(chain, replace(link, element=replace(link.element, sides=sides)))
        apart = apart or _of_one_term(self.found.terms[index])
        rounded = tuple(self._rounded(s, self._primed) for s in scaled)
        terms = tuple((self.text(t.scale, level=2), self._data(t.factors)) for t in self.found.terms[index])
        element = self.text(link.element.expr)
        keep = any(self._reads(later, index) for later in range(index + 1, len(chain.links)))
        if apart is None:
            return ReductionFormula(
                self.name(link.node), element, None, None, terms, keep, None, *self._expanded(index), rounded
            )
        data, result = self.text(apart.data), self.text(apart.result)
        plain = not arguments(apart.result)
        correction = None if plain else self._correction(index, apart, lambda n: n)
        update, merge = self._products(index, apart, correction)
        return ReductionFormula(
            self.name(link.node), element, data, result, terms, keep, correction, update, merge, rounded
        )

    def _reads(self, later: int, index: int) -> bool:
        """Tell whether the element of `later` reads the result `index`."""
        operands = (self.chain.operands[i] for i in arguments(self.chain.links[later].element.expr))
        return any(o == Result(index) for o in operands)

    def _data(self, factors: tuple[Factor, ...]) -> str:
        """Write the product of the factors of a term, or of a carried sum."""
        parts: list[str] = []
        for factor in factors:
            if not is_one(factor.data):
                parts.append(self.text(factor.data, level=2))
            for shift, exponent in factor.powers:
                base = f"({self.text(shift.data, level=1)} - {self.text(shift.result, level=2)})"
                parts.append(base if exponent == 1 else f"{base}**{exponent}")
            if factor.raised is not None:
                parts.append(f"exp({self.text(factor.raised.data)} - {self.text(factor.raised.result, level=2)})")
            if factor.scaled is not None:
                parts.append(self._rounded(factor.scaled))
        return " * ".join(parts) or "1"

    def _rounded(self, scaling: Scaling, rename: Callable[[str], str] = lambda n: n) -> str:
        inner = product(scaling.data, scaling.result)
        return self.text(substitute(scaling.around, lambda _: inner), rename)

    def _ratio(self, result: Scalar, old: Callable[[str], str], new: Callable[[str], str], level: int) -> str:
        """Write H(new) by H(old)."""
        names = self.names
        count = len(names)
        every = tuple(map(old, names)) + tuple(map(new, names))
        after = substitute(result, lambda i: Arg(i + count) if self._is_result(i) else Arg(i))
        return text(monomial(after).times(monomial(result), -1).expr, every, level)

    def _is_result(self, operand: int) -> bool:
        return isinstance(self.chain.operands[operand], Result)

    def _correction(self, index: int, apart: Product, old: Callable[[str], str]) -> str:
        """Write how H has changed since `old`, once for each element in a product."""
        if self.chain.links[index].monoid is Monoid.sum:
            return self._ratio(apart.result, old, self._primed, 2)
        return f"{self._ratio(apart.result, old, self._primed, 3)}**{old('count')}"

    def _primed(self, name: str) -> str:
        return f"{name}'" if name in self.results else name

    def _products(self, index: int, apart: Product, correction: str | None) -> tuple[str, str]:
        """Write update and merge of what is one product. Nothing corrects extrema: they are of data alone."""
        link = self.chain.links[index]
        own, monoid = self.name(link.node), link.monoid
        element = apart.data
        if monoid in (Monoid.sum, Monoid.prod):
            element = monomial(apart.data).times(monomial(apart.result)).expr
        over = f"{_REDUCED[monoid]} over {self.chain.over} of {text(element, tuple(map(self._primed, self.names)))}"
        if correction is None:
            return f"{own}' = {_both(monoid, own, over)}", f"{own}' = {_both(monoid, own + '_1', own + '_2')}"
        sides = (f"{own}_{s} * {self._correction(index, apart, lambda n, s=s: self._of_segment(n, s))}" for s in (1, 2))
        return f"{own}' = {_both(monoid, f'{own} * {correction}', over)}", f"{own}' = {_both(monoid, *sides)}"

    def _of_segment(self, name: str, segment: int) -> str:
        return f"{name}_{segment}" if name in self.results or name == "count" else name

    def _expanded(self, index: int) -> tuple[str, str]:
        """Write update and merge of a sum of several products: each term with its differences, its exponential and its H moved."""
        own = self.name(self.chain.links[index].node)
        rounded = self.chain.links[index].element.rounded
        joined = " + ".join(self._moved(term, rounded) for term in self.found.terms[index])
        return f"{own}' = {joined} + sum of the block's F(x, d')", f"{own}' = the same for both segments, added"

    def _moved(self, term: Term, rounded: tuple[DType | None, ...]) -> str:
        """Write a term's sum so far, of new results: its own and lower powers of its differences, moved by the binomial theorem."""
        key = carried(term, rounded)
        summands: list[str] = []
        for coefficient, moves, part in expansion(key, frozenset(shift for shift, _ in key.shifts)):
            factors = [] if abs(coefficient) == 1 else [str(abs(coefficient))]
            for shift, exponent in moves:
                by = f"({self.text(shift.result, self._primed)} - {self.text(shift.result, level=2)})"
                factors.append(by if exponent == 1 else f"{by}**{exponent}")
            factors.append(f"S[{self._data(part.factors)}]")
            summands.append(("- " if coefficient < 0 else "+ ") + " * ".join(factors))
        outside = [] if is_one(term.scale) else [self.text(term.scale, self._primed, level=2)]
        outside += [
            f"exp({self.text(shift.result)} - {self.text(shift.result, self._primed, level=2)})" for shift in key.raised
        ]
        outside += [self._ratio(scaling.result, lambda n: n, self._primed, 2) for scaling in key.scaled]
        joined = " ".join(summands).removeprefix("+ ")
        return " * ".join([*outside, f"({joined})" if outside and len(summands) > 1 else joined])

    def text(self, expr: Scalar, rename: Callable[[str], str] = lambda n: n, level: int = 0) -> str:
        """Write `expr` with the names of values."""
        return text(expr, tuple(map(rename, self.names)), level)


def _of_one_term(terms: tuple[Term, ...]) -> Product | None:
    """Return the one product that an element is, if it was separated into one term without differences."""
    if len(terms) != 1 or any(f.powers or f.scaled for f in terms[0].factors):
        return None
    data, result = terms[0].factors[0].data, terms[0].scale
    for factor in terms[0].factors[1:]:
        data = product(data, factor.data)
    for factor in terms[0].factors:
        if factor.raised is not None:
            data = product(data, apply("exp", factor.raised.data))
            result = product(result, apply("exp", negative(factor.raised.result)))
    return Product(data, result)


_REDUCED = {Monoid.sum: "sum", Monoid.prod: "product", Monoid.max: "max", Monoid.min: "min"}


def _both(monoid: Monoid, left: str, right: str) -> str:
    """Combine two parts, as text."""
    match monoid:
        case Monoid.sum:
            return f"{left} + {right}"
        case Monoid.prod:
            return f"{left} * {right}"
        case Monoid.max | Monoid.min:
            return f"{monoid.name}({left}, {right})"
