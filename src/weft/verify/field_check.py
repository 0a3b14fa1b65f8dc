"""Checking a block program against the tensor program that it came from, over finite fields.

Both are run on random field elements at small sizes that exercise every edge: less than a block, one block, whole blocks and a
rest, segments of unequal length; and, at the first of them, on inputs that are numbers the program compares with. Algebraic
identities hold exactly there; the check says nothing about rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.block.interpret import interpret
from weft.block.program import BlockProgram, Graph, Map, Place, Rank, maps, spaces
from weft.block.ranges import Band, Rest, Segment
from weft.errors import WeftError
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.field import CHAIN, FieldDomain, FieldElements
from weft.tensor.program import Elementwise, Monoid, Ranking, Reduction, TensorProgram
from weft.tensor.scalar import operation_count
from weft.verify.inputs import ORDERING, literals, random_inputs, turns, with_numbers

# Residues modulo the last prime are what is compared.
_PRIME = CHAIN[-1]
# Tiles that are checked instead of the real ones: each more than twice the one before, no multiple of it.
_SMALL = (3, 7, 16, 33, 67, 135)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found.

    Attributes:
        equal: True, False (refuted), or None (undecided, which runs no more than a refuted one).
        error_probability: at most this likely is a wrong program to be called equal; 1 where it is not called so.
        reason: in words.
        sizes: the sizes at which it was checked.
    """

    equal: bool | None
    error_probability: float
    reason: str
    sizes: tuple[Mapping[str, int], ...] = ()

    def __bool__(self) -> bool:
        return self.equal is True

    def __str__(self) -> str:
        if self.equal:
            return f"equal (wrong with probability at most {self.error_probability:.1e}): {self.reason}"
        return f"{'undecided' if self.equal is None else 'refuted'}: {self.reason}"


def verify(program: TensorProgram, applied: BlockProgram, trials: int = 2, seed: int = 0) -> Verdict:
    """Check `applied` against `program`.

    Args:
        program: what must be computed.
        applied: a scheduled block program with the same inputs, by name, and outputs, in order; checked with small tiles
            (`small_tiles`).
        trials: independent random interpretations at each choice of sizes.
        seed: of the random inputs and of the random functions that stand for what no field has.

    Returns:
        equal where all agree at all sizes; refuted, naming output and sizes, at the first difference; undecided where the
        programs could not be run.
    """
    tried: list[Mapping[str, int]] = []
    applied = small_tiles(applied)
    given = {rule.space.name for rule in program.derived}
    for chosen in edge_sizes(applied):
        sizes = program.sizes({name: size for name, size in chosen.items() if name not in given})
        if 0 in sizes.values():
            continue  # a slice that is empty at this size
        # More of them at the first sizes, with the numbers that the program compares with among the inputs.
        for trial in range(trials + (0 if tried else turns((program,), sizes))):
            domain = field_for((program,), hash((seed, trial)) & 0x7FFFFFFF)
            rng = np.random.default_rng((seed, trial, *sizes.values()))
            try:
                inputs = random_inputs(program, sizes, domain, rng)
                if trial >= trials:
                    inputs = with_numbers(inputs, (program,), domain, rng, trial - trials)
                wanted = evaluate(program, inputs, domain, sizes=sizes)
                found, _ = interpret(applied, inputs, sizes, domain)
            except (WeftError, ValueError, IndexError, KeyError, ArithmeticError, AssertionError) as error:
                # A program that cannot even be run is not shown equal to anything: fail closed, and say why.
                return Verdict(
                    None, 1.0, f"could not be run at {dict(sizes)}: {getattr(error, 'what', error)}", tuple(tried)
                )
            different = _first_difference(domain, wanted, found)
            if different is not None:
                return Verdict(False, 1.0, f"output {different} differs at sizes {dict(sizes)}", (*tried, sizes))
        tried.append(sizes)
    if not tried:
        return Verdict(None, 1.0, "no small sizes satisfy what the program says of its sizes")
    probability = _error_probability(program, trials)
    reason = (
        f"agrees over fields of {_PRIME.bit_length()} bits, {trials} times at each of {len(tried)} choices of sizes"
    )
    return Verdict(True, probability, reason + _caveat(program), tuple(tried))


def equivalent(
    first: TensorProgram,
    second: TensorProgram,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    trials: int = 2,
    seed: int = 0,
) -> Verdict:
    """Whether two tensor programs compute the same outputs, with the same shapes, order of dimensions and element types.

    Args:
        first, second: inputs of one name are one tensor; either may lack some.
        shapes: choices of shapes for all inputs by name, one size per axis; both are run at each.
    """
    dtypes = [[p.values()[name].dtype for name in p.outputs] for p in (first, second)]
    if dtypes[0] != dtypes[1]:
        kinds = [", ".join(map(str, found)) or "nothing" for found in dtypes]
        return Verdict(False, 1.0, f"the first gives {kinds[0]}, the second {kinds[1]}")
    known = {n.name: n.dtype for p in (first, second) for n in p.inputs}
    programs = (first, second)
    for number, chosen in enumerate(shapes):
        # More of them at the first shapes, with the numbers that the programs compare with among the inputs.
        sizes = {
            a.space.name: size
            for p in programs
            for n in p.inputs
            for a, size in zip(n.axes, chosen[n.name], strict=True)
        }
        for trial in range(trials + (turns(programs, sizes) if number == 0 else 0)):
            domain = field_for(programs, hash((seed, trial)) & 0x7FFFFFFF)
            rng = np.random.default_rng((seed, trial))
            values = {name: domain.random(chosen[name], dtype, rng) for name, dtype in known.items()}
            if trial >= trials:
                values = with_numbers(values, programs, domain, rng, trial - trials)
            try:
                one, other = (
                    returned(p, evaluate(p, {n.name: values[n.name] for n in p.inputs}, domain), domain)
                    for p in (first, second)
                )
            except (WeftError, ValueError, IndexError, KeyError, ArithmeticError) as error:
                return Verdict(None, 1.0, f"could not be run at {dict(chosen)}: {getattr(error, 'what', error)}")
            different = _first_difference(domain, one, other)
            if different is not None:
                return Verdict(False, 1.0, f"output {different} differs at shapes {dict(chosen)}")
    probability = max(_error_probability(p, trials) for p in (first, second))
    reason = f"agree over fields of {_PRIME.bit_length()} bits"
    return Verdict(True, probability, reason + (_caveat(first) or _caveat(second)))


def _caveat(program: TensorProgram) -> str:
    """What the probability does not cover: what a comparison selects is only seen where a random order selects it."""
    exprs = [n.expr for n in program.nodes if isinstance(n, Elementwise)]
    ranks = any(isinstance(n, Ranking) for n in program.nodes)
    if not ranks and not any(operation_count(expr, op) for expr in exprs for op in ORDERING):
        return ""
    return "; comparisons and maxima under random orders, where ties and bounds that few numbers reach do not show"


def small_tiles(applied: BlockProgram) -> BlockProgram:
    """`applied` with small tiles in place of large ones, in the same order for each space.

    A tile is a parameter of an applied program: no rewrite and no emitter looks at its value, but for 1, which stays 1 (such a loop
    has no edge). So small ones exercise the same loops, edges, segments and merges at a cost that does not depend on what the
    machine likes.
    """
    wanted: dict[str, set[int]] = {}
    for node in maps(applied.graph):
        if node.tile is not None and not node.unit:
            wanted.setdefault(node.axis.space.name, set()).add(node.tile)
    far = _reach(applied)
    small = {
        name: {1: 1, **{t: s * (1 + far.get(name, 0) // 8) for t, s in zip(sorted(tiles - {1}), _SMALL, strict=False)}}
        for name, tiles in wanted.items()
    }

    def shrunk(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(_shrunk(n) if isinstance(n, Map) else n for n in graph.nodes))

    def _shrunk(node: Map) -> Map:
        tile = node.tile if node.tile is None or node.unit else small[node.axis.space.name].get(node.tile, node.tile)
        return replace(node, tile=tile, body=shrunk(node.body))

    return replace(applied, graph=shrunk(applied.graph))


def _reach(applied: BlockProgram) -> dict[str, int]:
    """How far bands lie from the diagonal, by name of the spaces that they run over and beside."""
    far: dict[str, int] = {}
    for node in maps(applied.graph):
        if isinstance(node.range, Band):
            ends = [abs(d.constant) for d in (node.range.low, node.range.high) if d is not None]
            for axis in (node.axis, node.range.outer):
                far[axis.space.name] = max(far.get(axis.space.name, 0), *ends)
    return far


def edge_sizes(applied: BlockProgram) -> tuple[Mapping[str, int], ...]:
    """Sizes that reach every edge of `applied`: rests at every level, single elements, and whole blocks only.

    A space's sizes follow from the tiles of all loops over it: the sum of distinct tiles and one more leaves a rest at each
    level; with segments there are two blocks for each but the last, which has one short block; and several after a first block
    on its own. Beside a band there are as many more as it lies off the diagonal, and blocks beyond; where sizes say how far that
    is, no two are alike.
    """
    tiles: dict[str, set[int]] = {}
    segments: dict[str, int] = {}
    for space in spaces(applied):
        if space.fixed is None:
            tiles.setdefault(space.name, set())
    for node in maps(applied.graph):
        space = node.axis.space
        if space.fixed is None:
            tiles.setdefault(space.name, set()).add(3 if node.place is Place.whole or node.tile is None else node.tile)
            if isinstance(node.range, Segment):
                segments[space.name] = max(segments.get(space.name, 1), node.range.count)
            elif isinstance(node.range, Rest):  # whole blocks and a rest, after the first block
                segments[space.name] = max(segments.get(space.name, 1), 4)
    rests: dict[str, int] = {}
    exact: dict[str, int] = {}
    for name, found in tiles.items():
        widest = max(found, default=2)
        rests[name] = (
            sum(found) + 1 if name not in segments else max(sum(found) + 1, 2 * widest * (segments[name] - 1) + 1)
        )
        exact[name] = widest
    ranked = {name: count for name, count in _ranked(applied.graph).items() if name in rests}
    for name, count in ranked.items():  # more than are kept, and a block more, so that some are passed over
        widest = exact[name]
        rests[name] += max(0, -(-(count + widest - rests[name]) // widest)) * widest
        exact[name] = (count // widest + 2) * widest
    far = _reach(applied)
    for name in far:
        rests[name] += far[name] + exact[name]
    ranges = [m.range for m in maps(applied.graph) if isinstance(m.range, Band)]
    if any(d is not None and d.sizes for band in ranges for d in (band.low, band.high)):
        for place, name in enumerate(far):
            rests[name] += 2 * place
            exact[name] += 3 * (len(far) - place)
    return (rests, dict.fromkeys(tiles, 1), exact)


def _ranked(graph: Graph) -> dict[str, int]:
    """How many elements rankings keep, by name of the space of what is ranked."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        inner: dict[str, int] = {}
        if isinstance(node, Rank) and node.over is not None:
            inner = {node.over.space.name: node.count}
        elif isinstance(node, Map):
            graphs = (node.body,) if node.state is None else (node.body, node.state.update)
            for each in graphs:
                inner = _most(inner, _ranked(each))
        found = _most(found, inner)
    return found


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def field_for(programs: Sequence[TensorProgram], seed: int) -> FieldDomain:
    """A field for values of `programs`, with as many residues as their exponentials take.

    Its order knows their numbers from the start. It learns a number where it first meets it; then what an element like 1/2 is
    taken for would depend on what ran before, and two runs of one program could differ.
    """
    domain = FieldDomain(seed, max(map(_exponentials, programs), default=0))
    for program in programs:
        for number in literals(program):
            domain.constant(float(number), DType.float64)
    return domain


def _exponentials(program: TensorProgram) -> int:
    """How many operations of `program` raise to a power of e: a bound on how deep they are nested.

    An expression may hold several, nested or not; each counts. So does a product: a loop may carry it by the power of e that its
    logarithms add up to.
    """
    exprs = [n.expr for n in program.nodes if isinstance(n, Elementwise)]
    products = sum(isinstance(n, Reduction) and n.monoid is Monoid.prod for n in program.nodes)
    return products + sum(operation_count(expr, op) for expr in exprs for op in ("exp", "expm1", "decay"))


def _first_difference(
    domain: FieldDomain, wanted: Sequence[FieldElements], found: Sequence[FieldElements]
) -> int | None:
    if len(wanted) != len(found):
        return min(len(wanted), len(found))
    pairs = enumerate(zip(wanted, found, strict=True))
    return next((i for i, (a, b) in pairs if domain.shape(a) != domain.shape(b) or not domain.equal(a, b)), None)


def _error_probability(program: TensorProgram, trials: int) -> float:
    """Schwartz-Zippel: two different polynomials agree at a random point with probability at most degree / |field|.

    The degree is taken to double at each operation, up to 2^20: a bound for short polynomial programs, an estimate for long ones
    and for what passes through exponentials, maxima and random functions (`weft.tensor.field` says what is known of those).
    """
    degree = min(2.0 ** len(program.nodes), 2.0**20)
    return float((degree / _PRIME) ** trials)
