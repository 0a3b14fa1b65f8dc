"""Checking a block program against the tensor program that it came from, over finite fields.

Both are run on random field elements at small sizes that exercise every edge: less than a block, one block, whole blocks and a
rest, segments of unequal length, as far as it takes to see all that indices decide (`weft.verify.thresholds`); and, at the first
of them, on inputs that are numbers the program compares with. Algebraic identities hold exactly there; the check says nothing
about rounding. The primes are drawn for each verdict. What agreement shows is said class by class (`weft.verify.classes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from weft.block.interpret import Interpreted
from weft.block.program import BlockProgram
from weft.phases import phase
from weft.tensor.domain import Array, Domain, at
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.program import Cast, Node, Opaque, TensorProgram
from weft.verify.inputs import compares_integers, one_by_one, random_inputs
from weft.verify.masks import masks_of, with_idle_blocks
from weft.verify.moves import Calls, run_moves
from weft.verify.sizes import Freed, different_size, edge_sizes, freed, iterations, small_tiles
from weft.verify.subject import FAILURES, Draw, Subject
from weft.verify.verdict import Verdict

V = TypeVar("V")

# How many times longer tensors are in which all values of bytes are laid out.
_WIDER = 16
# Draws with numbers of interest together make so many iterations of a scheduled program, about half a second's work, or are so few.
_ITERATIONS, _FEWEST_TURNS = 12_000, 4
# Draws more where blocks of masks are left out; and draws that are run at once in one field.
_IDLE, _TOGETHER = 12, 8


@phase("field check")
def verify(
    program: TensorProgram,
    applied: BlockProgram,
    trials: int = 2,
    seed: int = 0,
    primes: Sequence[int] | None = None,
) -> Verdict:
    """Checks `applied` against `program`.

    Args:
        program: what must be computed.
        applied: a scheduled block program with the same inputs, by name, and outputs, in order; checked with small tiles
            (`small_tiles`).
        trials: independent random interpretations at each choice of sizes, each modulo primes of its own.
        seed: of the random inputs and of the random functions that stand for what no field has; the primes are drawn besides.
        primes: those of an earlier verdict, which is then computed again.

    Returns:
        agrees where all agree at all sizes, and is equal where that decides it; refuted, naming output and sizes, at the first
        difference; undecided where the programs could not be run. Precision casts, which a rewrite may move or drop, are none here.
    """
    wrong = different_size(program, applied)
    if wrong is not None:
        return Verdict(False, None, wrong)
    subject, draw = _Scheduled(freed(program, applied)), Draw.of((program,), trials, seed, primes)
    if not subject.places:
        return Verdict(None, None, "no small sizes meet the program's conditions on its sizes")
    different = subject.difference(draw)
    if different is not None:
        return different
    try:
        found = replace(subject.claim(draw), rounded_apart=True, unreached=subject.unreached)
    except FAILURES as error:  # the licence does not hang on the claim
        why = f"agrees over finite fields; how much that shows could not be determined: {error}"
        return Verdict(None, None, why, subject.places, primes=draw.primes, agrees=True)
    made = f"{trials} times at each of {len(subject.places)} choices of sizes"
    return replace(found.verdict(draw.primes, trials, made), sizes=subject.places)


class _Scheduled(Subject):
    """A program and a schedule of it."""

    guards = True

    def __init__(self, of: Freed) -> None:
        self.program, self.programs = of.program, (of.program,)
        self.applied, self.unreached = small_tiles(of.applied, of.reach, of.most), of.unreached
        self.run, self.masks = Interpreted(self.applied), masks_of(self.applied)
        self.idle, self.numbers = (_IDLE if self.masks else 0), self.run.numbers()
        # How integers lie beside what is no number is another draw in each field, and few other integers make up for that.
        self.together = 1 if compares_integers(self.program) else _TOGETHER
        self.places = tuple(self._places(of))

    def _places(self, of: Freed) -> Iterator[Mapping[str, int]]:
        """Yields sizes that reach every edge, and as far as `of` says; not those at which a slice is empty."""
        for chosen in edge_sizes(self.applied, of.most, of.reach):
            free = {name: size for name, size in chosen.items() if name not in self.program.following}
            sizes = self.program.sizes(free)
            if 0 not in sizes.values():
                yield sizes

    def most_turns(self, place: Mapping[str, int]) -> int:
        """Returns fewer draws for loops of many iterations: random ones are tried at each place in any case."""
        return max(_FEWEST_TURNS, _ITERATIONS // max(1, iterations(self.applied.graph, place)))

    def sizes_at(self, place: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the place itself."""
        return place

    def inputs(self, place: Mapping[str, int], domain: Domain[V], rng: np.random.Generator) -> dict[str, V]:
        """Draws inputs of the program; of masks whose blocks are left out, whole blocks are idle in most draws."""
        return with_idle_blocks(random_inputs(self.program, place, domain, rng), self.masks, domain, rng)

    def wanted(self, place: Mapping[str, int], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs by the evaluator."""
        return evaluate(self.program, inputs, domain, sizes=place)

    def found(self, place: Mapping[str, int], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs by the interpreter."""
        return self.run(inputs, place, domain)[0]

    def all_found(
        self, place: Mapping[str, int], draws: Sequence[Mapping[str, V]], domain: Domain[V]
    ) -> Iterator[tuple[V, ...]]:
        """Computes the outputs on all inputs side by side: the interpreter takes its time for operations, hardly for elements."""
        kinds = [{type(each[name]) for each in draws} for name in draws[0]]
        if len(draws) == 1 or any(len(kind) > 1 for kind in kinds):  # what is known in one alone would be known in none
            yield from super().all_found(place, draws, domain)
            return
        inputs = {name: domain.lift(_stacked, *(each[name] for each in draws)) for name in draws[0]}
        together, _ = self.run(inputs, place, domain, draws=len(draws))
        for number in range(len(draws)):
            yield tuple(domain.lift(at(number), output) for output in together)


def _stacked(*arrays: Array) -> Array:
    return np.stack(arrays)


def equivalent(  # noqa: PLR0913 - all but three have defaults
    first: TensorProgram,
    second: TensorProgram,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    trials: int = 2,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    *,
    primes: Sequence[int] | None = None,
    claim: bool = True,
    calls: tuple[Calls, Calls] = ({}, {}),
) -> Verdict:
    """Tells whether two tensor programs compute the same outputs, with the same shapes, order of dimensions and element types.

    Args:
        first, second: inputs of one name are one tensor; either may lack some.
        shapes: choices of shapes for all inputs by name, one size per axis; both are run at each.
        trials: how often both are run at each choice, with other values, modulo other primes.
        seed: of the values; the primes are drawn besides.
        sizes: of spaces that no input tells, by name.
        primes: those of an earlier verdict, which is then computed again.
        claim: work out what agreement shows; else `equal` is None where all agrees.
        calls: what opaque operations of each program call, by name; they may only move elements (`weft.verify.moves`).
    """
    dtypes = [[p.values()[name].dtype for name in p.outputs] for p in (first, second)]
    if dtypes[0] != dtypes[1]:
        kinds = [", ".join(map(str, found)) or "nothing" for found in dtypes]
        return Verdict(False, None, f"the first gives {kinds[0]}, the second {kinds[1]}")
    subject, draw = _Two((first, second), tuple(shapes), sizes, calls), Draw.of((first, second), trials, seed, primes)
    different = subject.difference(draw)
    if different is not None:
        return different
    if not claim:
        return Verdict(None, None, "agree over finite fields", primes=draw.primes, agrees=True)
    found = subject.claim(draw)
    if found.met.precision:
        rounding = _Two((_rounded(first), _rounded(second)), tuple(shapes), sizes, calls)
        found = replace(found, rounded_apart=rounding.difference(draw) is None)
    return found.verdict(draw.primes, trials, f"{trials} times at each of {len(shapes)} choices of shapes")


class _Two(Subject):
    """Two tensor programs, at some shapes of their inputs."""

    orders = 6

    def __init__(
        self,
        programs: tuple[TensorProgram, TensorProgram],
        shapes: tuple[Mapping[str, tuple[int, ...]], ...],
        sizes: Mapping[str, int] | None,
        calls: tuple[Calls, Calls],
    ) -> None:
        self.programs, self.places, self.sizes, self.calls = programs, shapes, sizes, calls
        self.known = {n.name: n.dtype for p in programs for n in p.inputs}

    def table(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the first place; where each result depends on one element of each input, a larger one, with room for more."""
        place = self.places[0]
        fixed = any(p.derived or any(s.fixed is not None for s in p.spaces()) for p in self.programs)
        if fixed or self.sizes or not one_by_one(self.programs):
            return place
        return {name: tuple(size * _WIDER for size in shape) for name, shape in place.items()}

    def sizes_at(self, place: Mapping[str, tuple[int, ...]]) -> Mapping[str, int]:
        """Reads the sizes off the shapes of the inputs."""
        nodes = [n for p in self.programs for n in p.inputs]
        return {a.space.name: size for n in nodes for a, size in zip(n.axes, place[n.name], strict=True)}

    def inputs(self, place: Mapping[str, tuple[int, ...]], domain: Domain[V], rng: np.random.Generator) -> dict[str, V]:
        """Draws inputs of either program."""
        return {name: domain.random(place[name], dtype, rng) for name, dtype in self.known.items()}

    def wanted(self, place: Mapping[str, Any], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs of the first program."""
        del place  # the inputs have it
        return self._outputs(0, inputs, domain)

    def found(self, place: Mapping[str, Any], inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        """Computes the outputs of the second program."""
        del place
        return self._outputs(1, inputs, domain)

    def _outputs(self, which: int, inputs: Mapping[str, V], domain: Domain[V]) -> tuple[V, ...]:
        program, calls = self.programs[which], self.calls[which]
        own = {n.name: inputs[n.name] for n in program.inputs}

        def opaque(node: Opaque, values: tuple[V, ...]) -> V:
            return run_moves(calls, node, values, domain)

        return returned(program, evaluate(program, own, domain, opaque if calls else None, self.sizes), domain)


def _rounded(program: TensorProgram) -> TensorProgram:
    """Gives each of `program`'s casts to a float that holds less a function of its own."""
    values = program.values()

    def rounded(node: Node) -> Node:
        if not isinstance(node, Cast) or not node.dtype.is_float:
            return node
        of = values[node.arg.value].dtype
        holds = not of.is_float or of is node.dtype or of.bytes < node.dtype.bytes
        return node if holds else replace(node, semantic=True)

    return replace(program, nodes=tuple(map(rounded, program.nodes)))
