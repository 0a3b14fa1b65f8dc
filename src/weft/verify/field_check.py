"""Checking a block program against the tensor program that it came from, over finite fields.

Both are run on random field elements at small sizes that exercise every edge: less than a block, one block, whole blocks and a
rest, segments of unequal length, as far as it takes to see all that indices decide (`weft.verify.thresholds`); and, at the first
of them, on inputs that are numbers the program compares with. Algebraic identities hold exactly there; the check says nothing
about rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.errors import WeftError
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.field import CHAIN, FieldDomain, FieldElements
from weft.tensor.program import Elementwise, Monoid, Ranking, Reduction, TensorProgram
from weft.tensor.scalar import operation_count
from weft.verify.fixed_sizes import Freed, different_size, freed
from weft.verify.inputs import ORDERING, literals, random_inputs, turns, with_numbers
from weft.verify.sizes import edge_sizes, small_tiles
from weft.verify.verdict import Verdict

# Residues modulo the last prime are what is compared.
_PRIME = CHAIN[-1]


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
    wrong = different_size(program, applied)
    if wrong is not None:
        return Verdict(False, None, wrong)
    return _verified(freed(program, applied), trials, seed)


def _verified(of: Freed, trials: int, seed: int) -> Verdict:
    """The verdict at sizes that reach every edge, and as far as `of` says."""
    program, applied = of.program, small_tiles(of.applied, of.reach)
    tried: list[Mapping[str, int]] = []
    given = {rule.space.name for rule in program.derived}
    for chosen in edge_sizes(applied, of.most, of.reach):
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
                    None, None, f"could not be run at {dict(sizes)}: {getattr(error, 'what', error)}", tuple(tried)
                )
            different = _first_difference(domain, wanted, found)
            if different is not None:
                return Verdict(False, None, f"output {different} differs at sizes {dict(sizes)}", (*tried, sizes))
        tried.append(sizes)
    if not tried:
        return Verdict(None, None, "no small sizes satisfy what the program says of its sizes")
    probability = _error_probability(program, trials)
    reason = (
        f"agrees over fields of {_PRIME.bit_length()} bits, {trials} times at each of {len(tried)} choices of sizes"
    )
    return Verdict(True, probability, reason + _caveat(program), tuple(tried), agrees=True)


def equivalent(
    first: TensorProgram,
    second: TensorProgram,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    trials: int = 2,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> Verdict:
    """Tells whether two tensor programs compute the same outputs, with the same shapes, order of dimensions and element types.

    Args:
        first, second: inputs of one name are one tensor; either may lack some.
        shapes: choices of shapes for all inputs by name, one size per axis; both are run at each.
        trials: how often both are run at each choice, with other values.
        seed: of the values.
        sizes: of spaces that no input tells, by name.
    """
    dtypes = [[p.values()[name].dtype for name in p.outputs] for p in (first, second)]
    if dtypes[0] != dtypes[1]:
        kinds = [", ".join(map(str, found)) or "nothing" for found in dtypes]
        return Verdict(False, None, f"the first gives {kinds[0]}, the second {kinds[1]}")
    known = {n.name: n.dtype for p in (first, second) for n in p.inputs}
    programs = (first, second)
    for number, chosen in enumerate(shapes):
        # More of them at the first shapes, with the numbers that the programs compare with among the inputs.
        told = {
            a.space.name: size
            for p in programs
            for n in p.inputs
            for a, size in zip(n.axes, chosen[n.name], strict=True)
        }
        for trial in range(trials + (turns(programs, told) if number == 0 else 0)):
            domain = field_for(programs, hash((seed, trial)) & 0x7FFFFFFF)
            rng = np.random.default_rng((seed, trial))
            values = {name: domain.random(chosen[name], dtype, rng) for name, dtype in known.items()}
            if trial >= trials:
                values = with_numbers(values, programs, domain, rng, trial - trials)
            try:
                one, other = (
                    returned(p, evaluate(p, {n.name: values[n.name] for n in p.inputs}, domain, sizes=sizes), domain)
                    for p in (first, second)
                )
            except (WeftError, ValueError, IndexError, KeyError, ArithmeticError) as error:
                return Verdict(None, None, f"could not be run at {dict(chosen)}: {getattr(error, 'what', error)}")
            different = _first_difference(domain, one, other)
            if different is not None:
                return Verdict(False, None, f"output {different} differs at shapes {dict(chosen)}")
    probability = max(_error_probability(p, trials) for p in (first, second))
    reason = f"agree over fields of {_PRIME.bit_length()} bits"
    return Verdict(True, probability, reason + (_caveat(first) or _caveat(second)), agrees=True)


def _caveat(program: TensorProgram) -> str:
    """What the probability does not cover: what a comparison selects is only seen where a random order selects it."""
    exprs = [n.expr for n in program.nodes if isinstance(n, Elementwise)]
    ranks = any(isinstance(n, Ranking) for n in program.nodes)
    if not ranks and not any(operation_count(expr, op) for expr in exprs for op in ORDERING):
        return ""
    return "; comparisons and maxima under random orders, where ties and bounds that few numbers reach do not show"


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
    degree = 2.0 ** min(len(program.nodes), 20)
    return float((degree / _PRIME) ** trials)
