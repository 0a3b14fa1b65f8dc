"""Inputs on which a program is tried: random ones, and ones that meet the numbers that stand in the program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, assert_never

import numpy as np

from weft.tensor.axes import Space
from weft.tensor.domain import Array, Domain, Structural
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import remove_dead
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    expressions,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, parts

V = TypeVar("V")

ORDERING = ("maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne", "sign", "abs")
"""Operations of the table whose results depend on an order, or on whether two values are the same."""
_SHARE = 0.5
_MOST_TURNS = 32
# How often each number should be in integers: what it decides may hang on another input at that place.
_OFTEN = 8
_MOST_TABLES = 64
_SEVERAL = 4
_TIES, _TIED_TURNS = (1, 2), 3
# Integers are compared with indices too, and those are small where programs are checked.
_INDICES = range(8)


def random_inputs(
    program: TensorProgram, sizes: Mapping[str, int], domain: Domain[V], rng: np.random.Generator
) -> dict[str, V]:
    """Draws a random value of `domain` for each input of `program`, by name, with the dimensions of its axes."""
    return {n.name: domain.random([a.space.size(sizes) for a in n.axes], n.dtype, rng) for n in program.inputs}


def with_numbers(
    values: Mapping[str, V],
    programs: Sequence[TensorProgram],
    domain: Domain[V],
    rng: np.random.Generator,
    turn: int = 0,
    sizes: Mapping[str, int] | None = None,
    begin: int = 0,
) -> dict[str, V]:
    """Exchanges integers, and about half of all floats, among `values`, inputs of `programs` by name, for numbers of a program.

    Random integers rarely are the one that `where(i == 50256, ..)` waits for, and random elements rarely lie above 1e6.
    Integers become small indices, literals, literals plus and minus 1, and the ends of their type, where arithmetic wraps;
    floats, literals of comparisons, maxima and minima and the numbers on both sides of them. Literals that are only added or
    multiplied are left out of floats: 0 and 1 would hide mistakes. Values that are computed before they are compared may not
    be reached this way.

    Args:
        turn: after `turns` of them, counted from 0, every number has been in every input that has elements. Where a program ranks
            elements, the first turns have equal ones.
        sizes: by name of the space; a size that the programs read is a number of theirs.
        begin: which of the turns with numbers comes first; the others follow in a circle.
    """
    found = dict(values)
    nodes = {n.name: n for p in programs for n in p.inputs}.values()
    if _rank(programs):
        if turn < _TIED_TURNS:
            return {n.name: _of_few(values[n.name], n.dtype, domain, rng) for n in nodes}
        turn -= _TIED_TURNS
    of_type = {dtype: numbers_of_interest(programs, dtype, sizes) for dtype in {n.dtype for n in nodes}}
    for node in nodes:
        numbers = of_type[node.dtype]
        shape = domain.shape(values[node.name])
        count = math.prod(shape)
        if numbers and count:
            exchanged = _exchanged(count, node.dtype)
            choice = np.full(count, -1)
            first = (turn + begin) * exchanged % len(numbers)
            choice[rng.permutation(count)[:exchanged]] = (first + np.arange(exchanged)) % len(numbers)
            constants = [domain.full((), number, node.dtype) for number in numbers]
            found[node.name] = domain.lift(_mixed(choice.reshape(shape)), values[node.name], *constants)
    return found


def with_indices(
    values: Mapping[str, V],
    programs: Sequence[TensorProgram],
    domain: Domain[V],
    rng: np.random.Generator,
    sizes: Mapping[str, int],
) -> dict[str, V]:
    """Exchanges integers among `values` that say where programs read for indices that are there, some counted from the end."""
    found = dict(values)
    for name, spaces in deciding(programs).items():
        lengths = [space.size(sizes) for space in spaces if space.fixed is not None or space.name in sizes]
        if lengths:
            drawn = indices_below(lengths, domain.shape(values[name]), rng, from_end=0.25)
            if not drawn.size:
                continue
            numbers, places = np.unique(drawn, return_inverse=True)  # few, where a dimension is a vocabulary
            constants = (domain.full((), int(number), DType.int64) for number in numbers)
            found[name] = domain.lift(_mixed(places.reshape(drawn.shape)), values[name], *constants)
    return found


def indices_below(
    lengths: Sequence[int], shape: Sequence[int], rng: np.random.Generator, from_end: float = 0.0
) -> Array:
    """Draws indices of dimensions of these lengths, in turn of each; a share of them counted from the end."""
    length = np.resize(np.array(lengths, np.int64), shape)
    drawn = rng.integers(0, length)
    return np.where(rng.uniform(size=tuple(shape)) < from_end, drawn - length, drawn)


def reads_inside(program: TensorProgram, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> bool:
    """Tells whether all that says where `program` reads is an index there, but for lookups that mask what is none.

    inputs: by name, all that this is computed of.
    """
    wanted = _said(program)
    found = _evaluated(program, [name for name, _ in wanted], inputs, sizes)
    return all(np.all((v >= 0) & (v < space.size(sizes))) for v, (_, space) in zip(found, wanted, strict=True))


def reached(program: TensorProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """Finds how long the dimensions must be in which `program` reads where sizes alone say, by name of the space."""
    sourced = _of_inputs(program)
    wanted = [(name, space) for name, space in _said(program) if name not in sourced]
    found: dict[str, int] = {}
    for (_, space), indices in zip(wanted, _evaluated(program, [name for name, _ in wanted], {}, sizes), strict=True):
        found[space.name] = max(found.get(space.name, 1), int(np.max(indices, initial=0)) + 1)
    return found


def _said(program: TensorProgram) -> list[tuple[str, Space]]:
    """Lists the values that say where `program` reads, each with the space of the dimension."""
    values, found = program.values(), list[tuple[str, Space]]()
    for node in (n for n in program.nodes if isinstance(n, Lookup) and not n.masked):
        pairs = zip(node.index, values[node.source].axes, strict=True)
        found += [(index.value, axis.space) for index, axis in pairs if isinstance(index, Use)]
    return found


def _evaluated(
    program: TensorProgram, wanted: Sequence[str], inputs: Mapping[str, Array], sizes: Mapping[str, int]
) -> tuple[Array, ...]:
    """Computes the values `wanted`, which no more of `inputs` need be there for than they are made of."""
    asked = remove_dead(replace(program, outputs=tuple(wanted), output_dims=()))
    read = {name for n in asked.nodes for name in uses(n)}.union(asked.outputs)
    asked = replace(asked, inputs=tuple(n for n in asked.inputs if n.name in read))
    given = {n.name: inputs[n.name] for n in asked.inputs}
    with np.errstate(all="ignore"):
        return evaluate(asked, given, Fp64Domain(), sizes=sizes) if wanted else ()


def deciding(programs: Sequence[TensorProgram]) -> dict[str, tuple[Space, ...]]:
    """Finds the inputs of integers that decide where `programs` look something up, by name, each with the spaces it decides in."""
    found: dict[str, dict[Space, None]] = {}
    for program in programs:
        values = program.values()
        for node in (n for n in program.nodes if isinstance(n, Lookup)):
            for index, axis in zip(node.index, values[node.source].axes, strict=True):
                waiting = [index.value] if isinstance(index, Use) else []
                while waiting:
                    each = values[waiting.pop()]
                    if isinstance(each, Input) and each.dtype.kind == "int":
                        found.setdefault(each.name, {})[axis.space] = None
                    waiting += uses(each)
    return {name: tuple(spaces) for name, spaces in found.items()}


def turns(programs: Sequence[TensorProgram], sizes: Mapping[str, int], most: int | None = None) -> int:
    """Counts the draws of `with_numbers` until every input has had every number, integers several times; 0 where there are none.

    `most`: so many of them at most, besides those with equal elements.
    """
    wanted = 0
    nodes = [n for p in programs for n in p.inputs]
    counts = {dtype: len(numbers_of_interest(programs, dtype, sizes)) for dtype in {n.dtype for n in nodes}}
    for node in nodes:
        exchanged = _exchanged(math.prod(a.space.size(sizes) for a in node.axes), node.dtype)
        often = 1 if node.dtype.is_float else _OFTEN
        wanted = max(wanted, -(-often * counts[node.dtype] // exchanged))
    return min(wanted, _MOST_TURNS if most is None else most, _MOST_TURNS) + (_TIED_TURNS if _rank(programs) else 0)


def ordered(program: TensorProgram) -> bool:
    """Tells whether results depend on an order of what is computed."""
    return any(
        isinstance(n, Ranking)
        or (isinstance(n, Reduction) and n.monoid in (Monoid.max, Monoid.min))
        or any(map(_compares, expressions(n)))
        for n in program.nodes
    )


def compares_integers(program: TensorProgram) -> bool:
    """Tells whether integers of the inputs, or what is made of them, are compared with what may be no integer.

    Integers beside integers are known exactly, whatever the order of elements is; and not where they say where to read.
    """
    values = program.values()
    made = {n.name for n in program.inputs if n.dtype.kind == "int"}
    for node in program.nodes:
        read = {node.source} if isinstance(node, Lookup) else set(uses(node))
        if made.isdisjoint(read):
            continue
        if read <= made:  # what integers choose among is none of them
            made.add(node.name)
        match node:
            case Elementwise():
                args = [(use.value in made, values[use.value].dtype.is_float) for use in node.args]
                if any(_compares_integers(part, args) for part in parts(node.expr)):
                    return True
            case Reduction() | Ranking() | Scan():
                if any(values[name].dtype.is_float for name in read & made):
                    return True
            case _:
                pass
    return False


def _compares_integers(expr: Scalar, args: Sequence[tuple[bool, bool]]) -> bool:
    """Tells of one operation whether it orders what is made of integers beside a float; `args`: of each whether it is either."""
    if not isinstance(expr, Apply) or expr.op not in ORDERING:
        return False
    inside = tuple(parts(expr))
    leaves = [args[part.index] for part in inside if isinstance(part, Arg)]
    floats = any(
        isinstance(part, Convert) or (isinstance(part, Lit) and isinstance(part.value, float)) for part in inside
    )
    return any(integer for integer, _ in leaves) and (floats or any(is_float for _, is_float in leaves))


def joins_outcomes(program: TensorProgram) -> bool:
    """Tells whether many comparisons decide one result together, as `all` and `any` have them: random ones hardly ever all hold."""
    outcomes = {n.name for n in program.inputs if n.dtype is DType.bool}
    for node in program.nodes:
        match node:
            case Reduction() if node.monoid is not Monoid.sum and node.arg.value in outcomes:
                return True
            case Scan() if node.monoid is not Monoid.sum and not outcomes.isdisjoint(uses(node)):
                return True
            case Cast() | Elementwise() | Reindex() if uses(node) and outcomes.issuperset(uses(node)):
                outcomes.add(node.name)
            case _:
                if node.dtype is DType.bool:
                    outcomes.add(node.name)
    return False


def exhausting(programs: Sequence[TensorProgram], sizes: Mapping[str, int]) -> int | None:
    """Counts the draws of `with_all_integers` until the inputs that are not floats have had all values.

    If each result depends on one element of each input, every element takes all values; otherwise all elements together take
    all combinations, which is possible for a few bools only. None where there are no such inputs, or too many values.
    """
    inputs = {n.name: n for p in programs for n in p.inputs if not n.dtype.is_float}
    if not inputs or any(n.dtype.is_foreign or n.dtype.bytes > 1 for n in inputs.values()):
        return None
    counts = [math.prod(a.space.size(sizes) for a in n.axes) for n in inputs.values()]
    every = [len(_values(n.dtype)) for n in inputs.values()]
    if one_by_one(programs):
        found = -(-math.prod(every) // max(1, counts[0]))
    elif min(counts) < _SEVERAL or sum(counts) > _MOST_TABLES:
        return None
    else:
        found = math.prod(n**count for n, count in zip(every, counts, strict=True))
    return found if found <= _MOST_TABLES else None


def one_by_one(programs: Sequence[TensorProgram]) -> bool:
    """Tells whether each result depends on one element of each input that is not of floats, at one place in all of them."""
    inputs = {n.name: n for p in programs for n in p.inputs if not n.dtype.is_float}
    spaces = {tuple(a.space for a in n.axes) for p in programs for n in p.inputs if not n.dtype.is_float}
    return len(spaces) <= len(programs) and all(_pointwise(p, set(inputs)) for p in programs)


def with_all_integers(
    values: Mapping[str, V], programs: Sequence[TensorProgram], domain: Domain[V], turn: int
) -> dict[str, V]:
    """Returns `values`, with part number `turn` of a table of all values of the inputs that are not floats."""
    found, each, apart = dict(values), 1, one_by_one(programs)
    for name, dtype in {n.name: n.dtype for p in programs for n in p.inputs if not n.dtype.is_float}.items():
        shape, every = domain.shape(values[name]), _values(dtype)
        count, base = math.prod(shape), len(every)
        if apart:  # laid out over the elements
            choice = (turn * count + np.arange(count)) // each % base
        else:  # for each element a digit of the turn
            choice = np.array([turn // (each * base**i) % base for i in range(count)], np.int64)
        constants = (domain.full((), v, dtype) for v in every)
        found[name] = domain.lift(_mixed(choice.reshape(shape)), values[name], *constants)
        each *= base if apart else base**count
    return found


def _values(dtype: DType) -> Sequence[int | bool]:
    low, high = dtype.bounds
    return (False, True) if dtype is DType.bool else range(low, high + 1)


def _pointwise(program: TensorProgram, names: set[str]) -> bool:
    """Tells whether every result depends on one element of each input in `names`, in whichever position it is."""
    reached = set(names)
    for node in program.nodes:
        if reached.isdisjoint(uses(node)):
            continue
        if not isinstance(node, Elementwise | Cast):
            return False
        args = node.args if isinstance(node, Elementwise) else (node.arg,)
        if any(use.axes != node.axes for use in args if use.value in reached):
            return False
        reached.add(node.name)
    return not any(isinstance(n, Iota) for n in program.nodes)


def _rank(programs: Sequence[TensorProgram]) -> bool:
    """Tells whether it matters which of equal elements comes first: then the first turns have few different ones."""
    return any(isinstance(n, Ranking) for p in programs for n in p.nodes)


def _of_few(value: V, dtype: DType, domain: Domain[V], rng: np.random.Generator) -> V:
    if dtype is DType.bool or dtype.is_foreign:
        return value
    choice = rng.integers(0, len(_TIES), domain.shape(value))
    return domain.lift(_mixed(choice), value, *(domain.full((), number, dtype) for number in _TIES))


def _exchanged(count: int, dtype: DType) -> int:
    """Counts how many of `count` elements become numbers of the program: of integers all, since no other is compared so often."""
    return max(1, round(count * _SHARE)) if dtype.is_float else count


def numbers_of_interest(
    programs: Sequence[TensorProgram], dtype: DType, sizes: Mapping[str, int] | None = None
) -> tuple[float | int, ...]:
    """Lists the numbers that inputs of `dtype` should be now and then for branches of `programs` to be taken; none for bools.

    Sizes that are read are among them, where they are given by name of the space.
    """
    if dtype is DType.bool or dtype.is_foreign:
        return ()
    found = sorted({v for p in programs for v in literals(p, everywhere=not dtype.is_float) if math.isfinite(v)})
    if dtype.is_float:
        return tuple(dict.fromkeys(number for v in found for number in _beside(float(v), dtype)))
    low, high = dtype.bounds
    read = {n.space for p in programs for n in p.nodes if isinstance(n, Extent)}
    found += [s.size(sizes) for s in read if sizes is not None and (s.fixed is not None or s.name in sizes)]
    near = [math.floor(v) + d for v in dict.fromkeys(found) for d in (0, 1, -1)]
    compared = bool(found) or any(_compares(expr) for p in programs for n in p.nodes for expr in expressions(n))
    says_where = any(isinstance(n, Lookup) for p in programs for n in p.nodes)
    computed = any(n.dtype.kind == "int" and not isinstance(n, Iota | Extent) for p in programs for n in p.nodes)
    ends = (low, high, high // 3) if computed else ()
    indices = (*_INDICES, *(-1 - i for i in _INDICES)) if says_where else _INDICES if compared else ()
    return tuple(n for n in dict.fromkeys((*near, *indices, *ends)) if low <= n <= high)


def _beside(value: float, dtype: DType) -> tuple[float, float, float]:
    """Returns `value` and the numbers of `dtype` (or nearly) on both sides of it."""
    step = max(abs(value), 2.0**-14) * max(dtype.eps, 2.0**-30)
    return (value - step, value, value + step)


def _mixed(choice: Array) -> Structural:
    """Puts in constant number `choice` where that is not negative."""

    def mix(values: Array, *constants: Array) -> Array:
        return np.where(choice < 0, values, np.stack(constants)[choice])

    return mix


def literals(program: TensorProgram, *, everywhere: bool = True) -> Iterator[float | int]:
    """Yields the numbers that operations of `program` have or read; all, or only those that what inputs make is compared with."""
    constants = {n.name: n.value for n in program.nodes if isinstance(n, Constant)}
    sourced = _of_inputs(program)
    for node in program.nodes:
        if isinstance(node, Elementwise):
            args = tuple(constants.get(use.value) for use in node.args)
            made = None if everywhere else frozenset(i for i, use in enumerate(node.args) if use.value in sourced)
            yield from _in_expression(node.expr, args, made, counted=everywhere)
        elif isinstance(node, Scan):
            read = max(len(node.args), 2 * node.merge.size)
            for expr in expressions(node):
                made = None if everywhere else frozenset(range(read))
                yield from _in_expression(expr, (None,) * read, made, counted=everywhere)


def _of_inputs(program: TensorProgram) -> set[str]:
    """Returns the names of the values that depend on what an input, or PyTorch, gives."""
    found = {n.name for n in program.inputs}
    for node in program.nodes:
        if isinstance(node, Opaque) or not found.isdisjoint(uses(node)):
            found.add(node.name)
    return found


def _in_expression(
    expr: Scalar, args: tuple[float | int | bool | None, ...], made: frozenset[int] | None, *, counted: bool
) -> Iterator[float | int]:
    """Yields the numbers in `expr`; where `made` says which of its arguments inputs make, those that such are compared with."""
    match expr:
        case Arg() | Lit():
            value = args[expr.index] if isinstance(expr, Arg) else expr.value
            if counted and value is not None and not isinstance(value, bool):
                yield value
        case Apply(op, inner):
            compared = op in ORDERING and made is not None and not made.isdisjoint(_arguments(expr))
            for arg in inner:
                yield from _in_expression(arg, args, made, counted=made is None or compared)
        case Convert(_, inner):
            yield from _in_expression(inner, args, made, counted=counted)
        case _:
            assert_never(expr)


def _arguments(expr: Scalar) -> Iterator[int]:
    """Yields the numbers of the arguments in `expr`."""
    return (part.index for part in parts(expr) if isinstance(part, Arg))


def _compares(expr: Scalar) -> bool:
    return not frozenset(ORDERING).isdisjoint(applied(expr))
