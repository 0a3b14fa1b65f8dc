"""How often wrong programs are accepted modulo small primes, beside the bound of a verdict: docs/measurements/bounds.md.

    python benchmarks/bounds.py [--points N] [--json FILE] [--plot FILE]

Pairs of programs that differ are run at random elements modulo each of some small primes; the share of elements where they agree is
one trial's chance to accept them. The stated bound is that of `weft.verify.classes` for the same prime. Modulo the primes of a real
verdict, above 2^30, nobody would live to see an acceptance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from weft.tensor.builder import Builder
from weft.tensor.degrees import DegreeDomain
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.field import FieldDomain, FieldValue
from weft.tensor.formula import Formula
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.verify.classes import Chances

# Chains of two, each prime twice the one before and one more; the last is that of the field.
CHAINS = ((5, 11), (11, 23), (23, 47), (53, 107), (113, 227), (251, 503), (509, 1019))
_SEEDS = 20
X, Y, Z = Arg(0), Arg(1), Arg(2)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs of three inputs that differ, elementwise."""

    kind: str
    name: str
    first: Scalar
    second: Scalar


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair modulo one prime.

    Attributes:
        bound: the chance that one trial accepts it, at most.
        accepted: the share of `points` random elements at which both give the same.
    """

    kind: str
    name: str
    prime: int
    bound: float
    accepted: float
    points: int

    @property
    def exceeds(self) -> bool:
        """True where the share lies above the bound by more than five standard deviations."""
        bound = min(self.bound, 1.0)
        return self.accepted > bound + 5 * math.sqrt(bound * (1 - bound) / self.points) + 1e-9


def _product(factors: Sequence[Scalar]) -> Scalar:
    found = factors[0]
    for factor in factors[1:]:
        found = apply("mul", found, factor)
    return found


def _sum(terms: Sequence[Scalar]) -> Scalar:
    found = terms[0]
    for term in terms[1:]:
        found = apply("add", found, term)
    return found


def _monomial(rng: np.random.Generator, degree: int) -> Scalar:
    return _product([Arg(int(i)) for i in rng.integers(0, 3, degree)])


def _exponential(times: int, of: Scalar) -> Scalar:
    return apply("exp", apply("mul", of, Lit(float(times))))


def pairs() -> Iterator[Pair]:
    """Yield polynomials with as many roots as their degree, random ones, quotients, powers, functions, and sums of exponentials."""
    rng = np.random.default_rng(0)
    for degree in (1, 2, 4, 8):
        roots = _product([apply("sub", X, Lit(float(i))) for i in range(degree)])
        yield Pair("polynomials", f"{degree} roots", roots, Lit(0.0))
        shared = _sum([_monomial(rng, degree) for _ in range(3)])
        yield Pair("polynomials", f"random, degree {degree}", shared, apply("add", shared, _monomial(rng, degree)))
        yield Pair("polynomials", f"x^{degree + 1} and x", apply("pow", X, Lit(float(degree + 1))), X)
    quotient = apply("div", apply("add", X, Y), Z)
    yield Pair("quotients", "(x + y) / z and (x + 2y) / z", quotient, apply("div", _sum([X, Y, Y]), Z))
    yield Pair("quotients", "x / y and y / x", apply("div", X, Y), apply("div", Y, X))
    yield Pair(
        "quotients", "1 / x + 1 / y and 1 / (x + y)", _inverses(X, Y), apply("div", Lit(1.0), apply("add", X, Y))
    )
    yield Pair("functions", "tanh x and tanh y", apply("tanh", X), apply("tanh", Y))
    yield Pair("functions", "tanh x^2 and tanh xy", apply("tanh", _product([X, X])), apply("tanh", _product([X, Y])))
    yield Pair("exponentials", "e^x and e^y", apply("exp", X), apply("exp", Y))
    yield Pair("exponentials", "x e^y and y e^x", apply("mul", X, apply("exp", Y)), apply("mul", Y, apply("exp", X)))
    for count in (2, 3, 5):
        terms = [apply("mul", Lit(float(rng.integers(1, 5))), _exponential(i, X)) for i in range(count)]
        yield Pair("exponentials", f"{count + 1} terms of one exponent", _sum(terms), _exponential(count, X))
    shifted = apply("mul", apply("exp", X), apply("sub", apply("exp", X), Lit(1.0)))
    yield Pair("exponentials", "e^2x - e^x and 1 - e^-x", shifted, apply("sub", Lit(1.0), _exponential(-1, X)))


def _inverses(*values: Scalar) -> Scalar:
    return _sum([apply("div", Lit(1.0), v) for v in values])


def _programs(pair: Pair) -> tuple[TensorProgram, TensorProgram]:
    def of(expr: Scalar) -> TensorProgram:
        builder = Builder()
        refs = [builder.input(name, [5], DType.float32) for name in "xyz"]
        return builder.finish([builder.elementwise(expr, refs)])

    return of(pair.first), of(pair.second)


def measured(pair: Pair, chain: tuple[int, ...], points: int) -> Measured:
    """Measure how often a pair is accepted over `points` elements under several seeds, beside what is stated of it."""
    programs, equal = _programs(pair), 0
    each = -(-points // _SEEDS)
    for seed in range(_SEEDS):
        domain, rng = FieldDomain(seed, chain), np.random.default_rng((seed, *chain))
        inputs = {name: domain.random((each,), DType.float32, rng) for name in "xyz"}
        one, other = (evaluate(p, {n.name: inputs[n.name] for n in p.inputs}, domain)[0] for p in programs)
        assert isinstance(one, FieldValue)
        assert isinstance(other, FieldValue)
        equal += int(((one.last == other.last) & (one.codes == other.codes)).sum())
    return Measured(pair.kind, pair.name, chain[-1], bound(programs, chain), equal / (each * _SEEDS), each * _SEEDS)


def bound(programs: tuple[TensorProgram, TensorProgram], chain: tuple[int, ...]) -> float:
    """Bound the chance that one trial modulo the last prime of `chain` accepts two programs that differ."""
    domain, rng = DegreeDomain(), np.random.default_rng(0)
    inputs = {name: domain.random((1,), DType.float32, rng) for name in "xyz"}
    one, other = (evaluate(p, {n.name: inputs[n.name] for n in p.inputs}, domain)[0] for p in programs)
    assert isinstance(one, Formula)
    assert isinstance(other, Formula)
    found = Chances.of(one, other, chain)
    return found.rational + found.functions + found.exponentials


def all_measured(points: int, every: Callable[[], Iterator[Pair]] = pairs) -> list[Measured]:
    """Measure every pair modulo every prime."""
    return [measured(pair, chain, points) for pair in every() for chain in CHAINS]


def drawn(found: Sequence[Measured], path: Path) -> None:
    """Draw a picture: what was measured over what is stated, a point for each pair and prime."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Letters as letters, and the same bytes for the same measurements.
    mpl.rcParams.update({"svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    figure = Figure((5.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    styles = {
        "polynomials": ("#0072B2", "o"),
        "quotients": ("#E69F00", "s"),
        "functions": ("#009E73", "D"),
        "exponentials": ("#D55E00", "^"),
    }
    least = 0.3 / max(m.points for m in found)
    for kind, (colour, marker) in styles.items():
        own = [m for m in found if m.kind == kind]
        bounds, shares = [min(m.bound, 1.0) for m in own], [max(m.accepted, least) for m in own]
        axes.plot(
            bounds, shares, linestyle="none", color=colour, marker=marker, markersize=4, fillstyle="none", label=kind
        )
    axes.plot([least, 1.0], [least, 1.0], color="black", linewidth=0.8, label="as often as stated")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="stated: at most this share",
        ylabel="measured: share of wrong elements accepted",
    )
    axes.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measure, write, draw; exits with 1 where a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="elements for each pair and prime")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    found = all_measured(given.points)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(m) for m in found], indent=1) + "\n")
    if given.plot is not None:
        drawn(found, given.plot)
    wrong = [m for m in found if m.exceeds]
    nearest = max(m.accepted / m.bound for m in found)
    text = f"{len(found)} measurements, {len(wrong)} above the bound; at most {nearest:.2f} of what is stated"
    sys.stdout.write("\n".join(map(str, (text, *wrong))) + "\n")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
