"""What is compared over finite fields, and what is random in it: the primes, the elements, the functions, the order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from weft.errors import WeftError
from weft.tensor import modular
from weft.tensor.degrees import DegreeDomain
from weft.tensor.domain import Domain
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain, FieldElements
from weft.tensor.modular import LONGEST, chain, chains
from weft.tensor.program import Monoid, Reduction, TensorProgram, expressions
from weft.tensor.scalar import applied
from weft.verify.classes import Held
from weft.verify.inputs import (
    exhausting,
    joins_outcomes,
    literals,
    ordered,
    turns,
    with_all_integers,
    with_indices,
    with_numbers,
)
from weft.verify.verdict import Verdict

V = TypeVar("V")

FAILURES = (WeftError, ValueError, IndexError, KeyError, ArithmeticError, AssertionError)
"""What a program may raise that cannot be run where it is to be checked."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What is random in a verdict.

    Attributes:
        chains: of primes, one for each trial.
        seed: of all else, together with these.
        arbitrary: what may be is an arbitrary function (`FieldDomain`).
    """

    chains: tuple[tuple[int, ...], ...]
    seed: int
    arbitrary: bool = False

    @staticmethod
    def of(programs: Sequence[TensorProgram], trials: int, seed: int, primes: Sequence[int] | None) -> Draw:
        """Draws as many primes in each chain as exponentials are nested deep, and one more.

        Raises:
            ValueError: `primes` are not those of a verdict of these programs and of so many trials.
        """
        count = 1 + min(max(map(_exponentials, programs), default=0), LONGEST - 1)
        if primes is None:
            return Draw(tuple(chain(count) for _ in range(trials)), seed)
        given = chains(primes, count)
        if len(given) != trials:
            raise ValueError(f"{len(primes)} primes are not those of a verdict of {trials} trials")
        return Draw(given, seed)

    @property
    def primes(self) -> tuple[int, ...]:
        """The primes of all chains."""
        return tuple(p for each in self.chains for p in each)

    @property
    def trials(self) -> int:
        """The number of trials."""
        return len(self.chains)

    @property
    def begin(self) -> int:
        """Tell which draw with numbers of interest is the first: where there is no time for all, each verdict makes others."""
        return modular.key(self.seed, "first of the draws with numbers", self.chains) % (1 << 31)

    def field(self, programs: Sequence[TensorProgram], trial: int, numbers: Sequence[float] = ()) -> FieldDomain:
        """Makes a field for values of `programs`, and of a schedule that has these `numbers`."""
        moduli = self.chains[trial % self.trials]
        domain = field_for(programs, modular.key(self.seed, trial, moduli), moduli, arbitrary=self.arbitrary)
        for number in numbers:
            domain.full((), number, DType.float64)
        return domain

    def rng(self, trial: int, sizes: Sequence[int]) -> np.random.Generator:
        """Makes the source of the inputs of one trial, which nobody knows before the primes; numbers of interest need no hiding."""
        return np.random.default_rng((self.seed, trial, *sizes, *(self.chains[trial] if trial < self.trials else ())))


def field_for(
    programs: Sequence[TensorProgram], seed: int, moduli: tuple[int, ...] | None = None, *, arbitrary: bool = False
) -> FieldDomain:
    """Makes a field for values of `programs`, modulo a chain of primes, by default one that follows from the seed.

    Its order knows their numbers from the start. It learns a number where it first meets it; then what an element like 1/2 is
    taken for would depend on what ran before, and two runs of one program could differ.
    """
    domain = FieldDomain(seed, moduli, arbitrary=arbitrary)
    for program in programs:
        for number in literals(program):
            domain.full((), float(number), DType.float64)
    return domain


class Subject(ABC):
    """Two programs, and where they are compared: at some choices of sizes."""

    programs: tuple[TensorProgram, ...]
    places: tuple[Mapping[str, Any], ...]
    orders: int = 0
    """How many trials more where results depend on an order: of few elements, half of the orders tell nothing."""
    idle: int = 0
    """How many draws more at the first place, of masks whose blocks are left out: two draws may have none that tells."""
    together: int = 1
    """How many of the further draws are run at once, in one field."""
    numbers: tuple[float, ...] = ()
    """Numbers of the second that the programs need not have: its field knows them from the start, as it does theirs."""
    guards: bool = False
    """The second may ask for infinities and NaN where the first does not: no rewrite's claim is about these."""

    def most_turns(self, place: Mapping[str, Any]) -> int | None:
        """Returns how many draws with numbers of interest are tried at `place` at most; None: all."""
        del place
        return None

    @abstractmethod
    def sizes_at(self, place: Mapping[str, Any]) -> Mapping[str, int]:
        """Returns the sizes of the inputs' spaces."""

    @abstractmethod
    def inputs(self, place: Mapping[str, Any], domain: Domain[V], rng: np.random.Generator) -> dict[str, V]:
        """Draws random inputs."""

    @abstractmethod
    def wanted(self, place: Mapping[str, Any], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs of the one."""

    @abstractmethod
    def found(self, place: Mapping[str, Any], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs of the other."""

    def all_found(
        self, place: Mapping[str, Any], draws: Sequence[Mapping[str, V]], domain: Domain[V]
    ) -> Iterator[tuple[V, ...]]:
        """Computes the outputs of the other on each of these inputs."""
        return (self.found(place, inputs, domain) for inputs in draws)

    def difference(self, draw: Draw) -> Verdict | None:
        """Returns the verdict where they differ, or cannot be run; None where they agree everywhere."""
        for number, place in enumerate(self.places):
            try:
                different = self._different(place, draw, first=number == 0)
            except FAILURES as error:
                # A program that cannot even be run is not shown equal to anything: fail closed, and say why.
                why = f"could not be run at {dict(place)}: {getattr(error, 'what', error)}"
                return Verdict(None, None, why, primes=draw.primes)
            if different is not None:
                return Verdict(False, None, f"output {different} differs at {dict(place)}", primes=draw.primes)
        return None

    def _different(self, place: Mapping[str, Any], draw: Draw, *, first: bool) -> int | None:
        """Returns the first output that differs in any of the trials: more of them at the first place, with numbers of interest."""
        programs, trials, sizes = self.programs, draw.trials, self.sizes_at(place)
        more = first and not draw.arbitrary
        numbers = turns(programs, sizes, self.most_turns(place)) if more else 0
        further = numbers + self.idle if more else 0
        orders = self.orders if any(map(ordered, programs)) else 0

        def drawn(trial: int, domain: FieldDomain) -> dict[str, FieldElements]:
            rng = draw.rng(trial, tuple(sizes.values()))
            inputs = with_indices(self.inputs(place, domain, rng), programs, domain, rng, sizes)
            if not trials <= trial < trials + numbers:
                return inputs
            return with_numbers(inputs, programs, domain, rng, trial - trials, sizes, draw.begin)

        groups = [(trial,) for trial in range(trials)]
        groups += _of_one_chain(range(trials, trials + further), trials, self.together)
        groups += [(trial,) for trial in range(trials + further, trials + further + orders)]
        for some in groups:
            domain = draw.field(programs, some[0], self.numbers)
            different = self._differs(place, [drawn(trial, domain) for trial in some], domain)
            if different is not None:
                return different
        return self._different_integers(draw) if more else None

    def _different_integers(self, draw: Draw) -> int | None:
        """Returns the first output that differs where the inputs that are not floats go through all values."""
        place = self.table()
        for turn in range(exhausting(self.programs, self.sizes_at(place)) or 0):
            domain = draw.field(self.programs, turn, self.numbers)
            inputs = self.inputs(place, domain, draw.rng(draw.trials + turn, ()))
            different = self._differs(place, [with_all_integers(inputs, self.programs, domain, turn)], domain)
            if different is not None:
                return different
        return None

    def _differs(
        self, place: Mapping[str, Any], every: Sequence[Mapping[str, FieldElements]], domain: FieldDomain
    ) -> int | None:
        """Returns the first output that differs on any of these inputs."""
        every_wanted = [self.wanted(place, inputs, domain) for inputs in every]
        for wanted, found in zip(every_wanted, self.all_found(place, every, domain), strict=True):
            different = _first_difference(domain, wanted, found)
            if different is not None:
                return different
        return None

    def table(self) -> Mapping[str, Any]:
        """Returns a place where the inputs that are not floats go through all values."""
        return self.places[0]

    def held(self, draw: Draw) -> Held:
        """Finds the classes of operations of both at all places; of the second only if a bound may follow."""
        domain = DegreeDomain(arbitrary=draw.arbitrary)
        held = Held(domain.met, exhausted=bool(exhausting(self.programs, self.sizes_at(self.table()))))
        for place in self.places:
            inputs = self.inputs(place, domain, np.random.default_rng(0))
            wanted = self.wanted(place, inputs, domain)
            special = set(held.met.special)
            held.add(wanted, self.found(place, inputs, domain) if held.bounded else wanted, draw.chains[0])
            if self.guards:
                held.met.special = special
        return held

    def claim(self, draw: Draw) -> Held:
        """Finds the classes of operations of both, given that they agree.

        If integers, casts to them or comparisons with numbers leave the claim open, both are tried again with these as
        arbitrary functions.
        """
        held = self.held(draw)
        arbitrary = replace(draw, arbitrary=True)
        closes = held.may_close and not any(map(joins_outcomes, self.programs))
        if closes and self.difference(arbitrary) is None:
            return self.held(arbitrary)
        return held


def _of_one_chain(draws: range, trials: int, together: int) -> list[tuple[int, ...]]:
    """Parts draws into groups that have one chain of primes each, of so many at the most."""
    groups = (
        draws[chain::trials][begin : begin + together]
        for chain in range(trials)
        for begin in range(0, len(draws), together)
    )
    return [tuple(some) for some in groups if some]


def _exponentials(program: TensorProgram) -> int:
    """Counts the operations of `program` that raise to a power of e: a bound on how deep they are nested.

    An expression may hold several, nested or not; each counts. So does a product: a loop may carry it by the power of e that its
    logarithms add up to.
    """
    exprs = [expr for n in program.nodes for expr in expressions(n)]
    products = sum(isinstance(n, Reduction) and n.monoid is Monoid.prod for n in program.nodes)
    return products + sum(op in ("exp", "expm1", "decay") for expr in exprs for op in applied(expr))


def _first_difference(
    domain: FieldDomain, wanted: Sequence[FieldElements], found: Sequence[FieldElements]
) -> int | None:
    if len(wanted) != len(found):
        return min(len(wanted), len(found))
    pairs = enumerate(zip(wanted, found, strict=True))
    return next((i for i, (a, b) in pairs if domain.shape(a) != domain.shape(b) or not domain.equal(a, b)), None)
