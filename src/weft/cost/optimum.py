"""Optimal transfers between two levels of memory, and their sums over many (FlashAttention on a Napkin, sections 3, 4 and A.2).

In: transfers as a sum of terms in the sizes of groups, and the memory that the groups take. Out: the fewest transfers
as a sum of powers of the memory's size, `H*(a, M) = sum of alpha_t(a) * M^-beta_t` (equation 1), and what levels of
memory, quantisation, intermediate caches and cross-transfer levels make of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from weft.errors import UnsupportedError

Expr: TypeAlias = Any
"""An expression of SymPy's, which has no types that a checker could follow."""

sp: Any = import_module("sympy")

MEMORY: Expr = sp.Symbol("memory", positive=True)
"""Values that the lower level has room for."""


@dataclass(frozen=True, slots=True)
class Power:
    """`alpha * M^-beta` values: `alpha` of sizes, `beta` at least 0."""

    alpha: Expr
    beta: Expr


@dataclass(frozen=True, slots=True)
class TransferLevel:
    """A level of memory as sums of weighted transfers have it (equation 5).

    Attributes:
        name: for reports.
        values: how many it has room for.
        weight: seconds for each value sent to it; negative where data is there before (section A.2.3).
    """

    name: str
    values: Expr
    weight: Expr

    def cached(self, children: int, child: TransferLevel) -> TransferLevel:
        """Return the level as a cache of what its `children` keep: as much as fits these (theorem 2)."""
        return TransferLevel(self.name, children * child.values, self.weight)

    def crossed(self, children: int, weight: Expr) -> tuple[TransferLevel, TransferLevel]:
        """Return the levels in this one's place where `children` of them send values to each other (theorem 3).

        Args:
            children: how many are linked: a cluster of multiprocessors, GPUs of one host.
            weight: seconds for each value sent among them.
        """
        linked = TransferLevel(f"{children} x {self.name}", children * self.values, self.weight - weight)
        return linked, TransferLevel(self.name, self.values, sp.sympify(weight))


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fewest transfers for each size of the lower level.

    Attributes:
        powers: summed; by rising `beta`, and each `beta` once.
        groups: the sizes of groups that attain it, by name.
    """

    powers: tuple[Power, ...]
    groups: Mapping[str, Expr]

    @property
    def values(self) -> Expr:
        """The values that are sent, a sum of powers of `MEMORY`."""
        return sp.Add(*(p.alpha * MEMORY**-p.beta for p in self.powers))

    def at(self, values: Expr | float) -> Expr:
        """Return the values that are sent where the lower level has room for so many."""
        return self.values.subs(MEMORY, values)

    def bytes(self, width: Expr | int) -> Expr:
        """Return the bytes sent where a value has `width` of them, and `MEMORY` is in bytes: `alpha M^-beta width^(1+beta)`
        each (equation 3).
        """
        return sp.Add(*(p.alpha * MEMORY**-p.beta * sp.sympify(width) ** (1 + p.beta) for p in self.powers))

    def weighted(self, levels: Iterable[TransferLevel]) -> Expr:
        """Return the seconds that transfers to all `levels` take (equation 2)."""
        return sp.Add(*(level.weight * self.at(level.values) for level in levels))

    def gained(self, level: TransferLevel, children: int, weight: Expr) -> Expr:
        """Return the seconds that cross-transfers among `children` of `level` save (section A.2.3)."""
        return sp.simplify(self.weighted([level]) - self.weighted(level.crossed(children, weight)))

    def __str__(self) -> str:
        """Return `H*` as text."""
        return " + ".join(str(_factored(p.alpha * MEMORY**-p.beta)) for p in self.powers)


def optimum(transfers: Expr, memory: Expr, groups: Sequence[Expr]) -> Optimum:
    """Solve `minimise transfers where memory <= M` for the sizes of groups (equation 4), in closed form.

    The problem is a geometric program. It is solved by its dual, which has one solution where there are as many terms with groups
    as groups: at the optimum each term's share of the sum is then known from the exponents alone.

    Args:
        transfers: a sum of products of powers of `groups`.
        memory: one such product, in the limit of large groups (A.2): what is weaved by all of them.
        groups: sizes that may be chosen.

    Raises:
        UnsupportedError: there is no closed form: shares depend on sizes, or a group that costs nothing to make small.
    """
    constant, terms = sp.Integer(0), defaultdict[tuple[Expr, ...], Expr](lambda: sp.Integer(0))
    for term in sp.Add.make_args(sp.expand(transfers)):
        coefficient, exponents = _monomial(term, groups)
        if any(exponents):
            terms[exponents] += coefficient
        else:
            constant += coefficient
    held, of_memory = _monomial(sp.factor_terms(sp.expand(memory)), groups)
    known = [Power(constant, sp.Integer(0))] if constant != 0 else []
    if not terms:
        return Optimum(tuple(known), {})
    shares, beta = _dual(list(terms), of_memory)
    parts = [((e, sp.factor_terms(c)), share) for (e, c), share in zip(terms.items(), shares, strict=True)]
    alpha = held**beta * sp.Mul(*((c / share) ** share for (_, c), share in parts))
    sizes = _sizes(groups, [(e, share * alpha * MEMORY**-beta / c) for (e, c), share in parts], of_memory, held)
    return Optimum((*known, Power(_joined(alpha), beta)), sizes)


def _joined(product: Expr) -> Expr:
    """Return a product of powers, of sizes and of sums of them, with each base once: all are positive."""
    return sp.powsimp(sp.expand_power_base(product, force=True), force=True)


def _factored(values: Expr) -> Expr:
    """Return a sum of products over one denominator, with what all terms have in common before them."""
    over, under = values.as_numer_denom()
    return sp.factor_terms(over / under)


def _monomial(term: Expr, groups: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]]:
    """Split a product of powers into what has no groups in it, and the exponent of each group.

    Raises:
        UnsupportedError: it is none.
    """
    coefficient, rest = sp.sympify(term).as_independent(*groups, as_Add=False)
    powers = rest.as_powers_dict()
    exponents = tuple(sp.sympify(powers.get(g, 0)) for g in groups)
    if not powers.keys() <= {*groups, sp.Integer(1)}:
        raise UnsupportedError(
            f"{term} is no product of powers of {', '.join(map(str, groups))}: no closed form is known"
        )
    return coefficient, exponents


def _dual(terms: Sequence[tuple[Expr, ...]], memory: tuple[Expr, ...]) -> tuple[list[Expr], Expr]:
    """Return each term's share of the optimum, and how fast that falls with memory: shares sum to 1, and cancel the
    exponents of each group.
    """
    shares = sp.symbols(f"share:{len(terms)}")
    beta = sp.Symbol("beta")
    equations = [sum(shares) - 1]
    equations += [
        sum(share * term[i] for share, term in zip(shares, terms, strict=True)) + beta * memory[i]
        for i in range(len(memory))
    ]
    solutions = list(sp.linsolve(equations, [*shares, beta]))
    if len(solutions) != 1 or any(each.free_symbols for each in solutions[0]):
        raise UnsupportedError("which blocks are best depends on how the sizes compare: no closed form is known")
    *found, exponent = solutions[0]
    if any(each <= 0 for each in found) or exponent < 0:
        raise UnsupportedError("transfers fall without end as a group changes: it must be held to a size")
    return found, exponent


def _sizes(
    groups: Sequence[Expr],
    terms: Sequence[tuple[tuple[Expr, ...], Expr]],
    memory: tuple[Expr, ...],
    held: Expr,
) -> dict[str, Expr]:
    """Solve for the groups, whose powers in each term, and in memory, are known at the optimum: linear in logarithms."""
    rows = sp.Matrix([*(exponents for exponents, _ in terms), memory])
    inverse = (rows.T * rows).LUsolve(rows.T)
    powers = [*(value for _, value in terms), MEMORY / held]
    return {
        str(g): _joined(sp.Mul(*(p**e for p, e in zip(powers, inverse.row(i), strict=True))))
        for i, g in enumerate(groups)
    }


def best_cluster(best: Optimum, level: TransferLevel, weights: Mapping[int, float]) -> int:
    """Return how many children of `level` should be linked; 1 where none gains (section A.2.3).

    Args:
        best: of the algorithm, its sizes being symbols or numbers: what a size gains is compared by its factor alone.
        level: the children, each by itself.
        weights: seconds for each value sent among so many.
    """
    gains = {
        n: sp.simplify(best.gained(level, n, sp.Float(weight)) / best.powers[-1].alpha) for n, weight in weights.items()
    }
    if any(gain.free_symbols for gain in gains.values()):
        raise UnsupportedError("what a cluster gains depends on sizes: give them as numbers")
    found = max(gains, key=lambda n: gains[n])
    return found if gains[found] > 0 else 1
