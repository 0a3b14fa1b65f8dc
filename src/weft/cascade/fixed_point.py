"""The fixed-point identity: whether an element is one product of data and earlier results, and of which (RedFuser, 4.2.2).

For a point (x0, d0) where F is invertible, F(x, d) * F(x0, d0) = F(x, d0) * F(x0, d) says that F = G * H with

    G(x) = F(x, d0) * F(x0, d0) ** -1        H(d) = F(x0, d)

in the monoid that goes with the reduction: times for a sum, plus for an extremum, and times for a product too, which has H as often
as there are elements. The two sides are compared on random elements of finite fields, where identities of sums, products,
quotients and exponentials hold exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.cascade.algebra import ONE, ZERO, difference, is_one, product, total
from weft.cascade.chain import Chain, Link, Result
from weft.cascade.monomial import monomial, simplified
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, Scalar, arguments, operations, substitute

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
    args = [values.get(i, domain.constant(0.0, DType.float64)) for i in range(max(used, default=-1) + 1)]
    left = domain.elementwise(combine(expr, at_both), args, DType.float64)
    right = domain.elementwise(combine(of_data, of_results), args, DType.float64)
    return domain.equal(left, right)
