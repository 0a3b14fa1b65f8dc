"""How far indices must go until everything that they decide has been decided either way.

`arange(8192) < 500` looks the same at sizes 10 and 500: a check at small sizes says nothing about the 500. So what a program
computes from indices is computed here as plain numbers at the sizes that it really has (or, of symbols, at sizes beyond all its
numbers), at some positions along each space. Each comparison, rounding, wrap and bit operation is watched: every outcome that
occurs, and every change of outcome from one position to the next, must occur in what is checked, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, arguments
from weft.verify.inputs import literals, random_inputs

FARTHEST = 1 << 16
"""The index up to which checks go along a space whose size is a symbol."""

# Numbers that no size exceeds.
_LARGEST = 1 << 31
# Positions that are looked at in one value, at most, and along one space that indices decide nothing along.
_MOST_POSITIONS = 1 << 19
_FEW = 2
# Where a size is a symbol: about as many as there are where programs are checked.
_AT_RUN_TIME = 12

_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne", "maximum", "minimum")
_BESIDE_ZERO = ("sign", "abs", "logical_and", "logical_or")
_STEPS = (
    "floor_divide",
    "trunc_divide",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
)


def thresholds(program: TensorProgram, fixed: Mapping[str, int]) -> dict[str, int]:
    """Finds the index that each space must reach for all to be seen that indices decide.

    Args:
        program: without opaque operations.
        fixed: the spaces to say it of, which have no fixed size in `program`, and the number of their elements.

    Returns:
        The least index by name of the space, for those along which indices decide something; together they are about the least
        that does.
    """
    indexed = _indexed(program)
    iotas = {n.name: n.axes[0].space.name for n in program.nodes if isinstance(n, Iota)}
    along = set(iotas.values())
    if not along & fixed.keys():
        return {}
    probe, watched = _probe(program, indexed, fixed)
    if not watched:
        return {}
    positions = _positions(program, watched, fixed, along)
    rng = np.random.default_rng(0)
    sizes = {name: len(found) for name, found in positions.items()}
    inputs = random_inputs(replace(probe, inputs=program.inputs), sizes, Fp64Domain(), rng)
    for node in probe.inputs:
        if node.name in iotas:
            inputs[node.name] = positions[iotas[node.name]]
        elif node.name not in inputs:
            inputs[node.name] = Fp64Domain().random([sizes[a.space.name] for a in node.axes], node.dtype, rng)
    values = evaluate(probe, inputs, Fp64Domain(), sizes=sizes)
    reach = {name: fixed[name] - 1 for each in watched for name in each.whole if name in fixed}
    for each, left, right in zip(watched, values[::2], values[1::2], strict=True):
        first = right.reshape(-1)[:1].reshape([1] * right.ndim) if each.steps else right
        outcome = (left < first) + 2 * (left > first).astype(np.int8)
        _extend(reach, outcome, each.axes, positions, fixed)
    return reach


def of_symbols(program: TensorProgram, fixed: Mapping[str, int]) -> tuple[dict[str, int], frozenset[str]]:
    """Finds such indices where sizes are symbols: for spaces beyond all numbers that indices may be compared with.

    Args:
        program: without opaque operations.
        fixed: the spaces whose sizes are known, and the number of their elements.

    Returns:
        The least index by name of the space, at most `FARTHEST`; and the spaces along which it would be more.
    """
    indexed = _indexed(program)
    names = {s.name for s in program.spaces() if s.fixed is None} - fixed.keys()
    if not names & {n.axes[0].space.name for n in program.nodes if isinstance(n, Iota)}:
        return {}, frozenset()
    deciding = replace(program, nodes=tuple(n for n in program.nodes if n.name in indexed or isinstance(n, Constant)))
    numbers = {int(abs(v)) for v in literals(deciding) if np.isfinite(v) and abs(v) < _LARGEST}

    def reached(most: int) -> dict[str, int]:
        size = 2 * max((n for n in numbers if n <= most), default=0) + _AT_RUN_TIME
        found = thresholds(program, {**fixed, **dict.fromkeys(names, size)})
        return {name: index for name, index in found.items() if name in names}

    near = reached(FARTHEST)
    far = reached(_LARGEST) if any(n > FARTHEST for n in numbers) else near
    reach = {name: min(index, FARTHEST) for name, index in near.items()}
    return reach, frozenset(name for name, index in (*near.items(), *far.items()) if index > FARTHEST)


# What is watched.


@dataclass(frozen=True, slots=True)
class _Watch:
    """Two numbers at each point: which of them is greater is watched, or where `steps`, when the second one changes.

    Attributes:
        axes: of the points.
        expr: the numbers, of `args`.
        whole: spaces that it depends on all of.
    """

    axes: tuple[Axis, ...]
    expr: tuple[Scalar, Scalar]
    args: tuple[Use, ...]
    steps: bool
    whole: frozenset[str]


_Indexed: TypeAlias = Mapping[str, frozenset[str]]
"""Values that depend on an index, by name, each with the spaces that it depends on all of."""


def _indexed(program: TensorProgram) -> _Indexed:
    """Finds what indices decide; a value that was summed or ranked counts only if it depends on nothing but indices."""
    indexed: dict[str, frozenset[str]] = {}
    data = {n.name for n in program.inputs}
    for node in program.nodes:
        if isinstance(node, Iota):
            indexed[node.name] = frozenset()
            continue
        if not data.isdisjoint(uses(node)):
            data.add(node.name)
        found = [indexed[name] for name in uses(node) if name in indexed]
        whole = frozenset[str]().union(*found)
        match node:
            case Contraction() | Reduction() if found and node.name not in data:
                indexed[node.name] = whole | {a.space.name for a in node.over}
            case Ranking() | Scan() if found and node.name not in data:
                indexed[node.name] = whole | {node.over.space.name}
            case Elementwise() | Cast() | Reindex() if found:
                indexed[node.name] = whole
            case _:
                pass
    return indexed


def _probe(
    program: TensorProgram, indexed: _Indexed, fixed: Mapping[str, int]
) -> tuple[TensorProgram, tuple[_Watch, ...]]:
    """Returns the part of `program` that indices decide in, its indices inputs, its outputs what is watched, two for each."""
    nodes: list[Node] = []
    given = list(program.inputs)
    watched: list[_Watch] = []
    outputs: list[str] = []
    values = program.values()
    dtypes = {n.name: n.dtype for n in values.values()}
    for node in program.nodes:
        if isinstance(node, Extent) and node.space.name in fixed:
            nodes.append(Constant(node.name, (), node.dtype, fixed[node.space.name]))
        elif isinstance(node, Iota | Contraction | Reduction | Scan | Ranking | Opaque):
            given.append(Input(node.name, node.axes, node.dtype))
        else:
            nodes.append(node)
        if isinstance(node, Lookup):
            watching, sizes = _insides(node, values[node.source].axes, indexed, fixed)
            nodes += sizes
        else:
            watching = _watches(node, indexed, dtypes)
        for watch in watching:
            for expr in watch.expr:
                outputs.append(f"{node.name} watched {len(outputs)}")
                nodes.append(Elementwise(outputs[-1], watch.axes, DType.float64, expr, watch.args))
            watched.append(watch)
    probe = remove_dead(TensorProgram(tuple(given), tuple(nodes), tuple(outputs)))
    read = {name for n in probe.nodes for name in uses(n)}
    return replace(probe, inputs=tuple(n for n in given if n.name in read)), tuple(watched)


def _insides(
    node: Lookup, source: tuple[Axis, ...], indexed: _Indexed, fixed: Mapping[str, int]
) -> tuple[list[_Watch], list[Node]]:
    """Returns what is watched of a lookup that reads nothing where an index is none: both ends; and the sizes that this reads."""
    watched, sizes = list[_Watch](), list[Node]()
    for dim, (index, axis) in enumerate(zip(node.index, source, strict=True)):
        if node.masked and isinstance(index, Use) and index.value in indexed:
            name, space = f"{node.name} size {dim}", axis.space
            known = fixed.get(space.name)
            size = Extent(name, (), DType.int64, space) if known is None else Constant(name, (), DType.int64, known)
            sizes.append(size)
            args, whole = (index, Use(name, ())), indexed[index.value]
            watched += [_Watch(index.axes, (Arg(0), end), args, steps=False, whole=whole) for end in (Lit(0), Arg(1))]
    return watched, sizes


def _watches(node: Node, indexed: _Indexed, dtypes: Mapping[str, DType]) -> Iterator[_Watch]:
    match node:
        case Cast() if node.arg.value in indexed:
            args, expr, dtype = (node.arg,), Convert(node.dtype, Arg(0)), node.dtype
        case Elementwise() if node.name in indexed:
            args, expr, dtype = node.args, node.expr, node.dtype
            if dtype.kind == "int" and dtype is not DType.int64:
                expr = Convert(dtype, expr)
        case _:
            return
    known = frozenset(i for i, use in enumerate(args) if use.value in indexed)
    whole = frozenset[str]().union(*(indexed[args[i].value] for i in known))
    integers = all(dtypes[use.value].kind != "float" for use in args)
    for left, right, steps in _decisions(expr, known, integers):
        yield _Watch(node.axes, (left, right), args, steps, whole)


def _decisions(expr: Scalar, indexed: frozenset[int], integers: bool) -> Iterator[tuple[Scalar, Scalar, bool]]:
    """Yields what is compared in `expr` if that depends on an index, and whether it is compared with its own first value."""
    match expr:
        case Arg() | Lit():
            return
        case Convert(dtype, inner):
            yield from _decisions(inner, indexed, integers)
            if arguments(inner) & indexed and not dtype.is_float and not (integers and dtype is DType.int64):
                yield expr, inner, False
                yield expr, expr, True
        case Apply(op, args):
            for each in args:
                yield from _decisions(each, indexed, integers)
            if not arguments(expr) & indexed:
                return
            match args:
                case (left, right) if op in _COMPARE:
                    yield left, right, False
                case (left, right) if op == "fmod":
                    quotient = apply("trunc", apply("div", left, right))
                    yield quotient, quotient, True
                case (inner,) if op in _BESIDE_ZERO:
                    yield inner, Lit(0), False
                case _ if op in _BESIDE_ZERO:
                    yield expr, Lit(0), False
                case _ if op in _STEPS or optable.row(op).rounding == "steps":
                    yield expr, expr, True
                case _:
                    pass


# Where it is looked at.


def _positions(
    program: TensorProgram, watched: Sequence[_Watch], fixed: Mapping[str, int], along: set[str]
) -> dict[str, Array]:
    """Chooses the indices that are looked at along each space: the first ones, those beside numbers of the program, the last."""
    numbers = [int(abs(v)) for v in literals(program) if np.isfinite(v) and abs(v) < 2**62]
    beside = {n + d for n in numbers for d in (-1, 0, 1)}
    large = max(len({a for a in w.axes if a.space.name in along & fixed.keys()}) for w in watched)
    others = max(len({a for a in w.axes if a.space.name not in along & fixed.keys()}) for w in watched)
    most = max(16, int((_MOST_POSITIONS / _FEW ** min(others, 6)) ** (1 / max(large, 1))))
    positions: dict[str, Array] = {}
    for space in program.spaces():
        if space.name not in fixed or space.name not in along:
            size = space.fixed or (_AT_RUN_TIME if space.name in along else _FEW)
            positions[space.name] = np.arange(size)
            continue
        size = fixed[space.name]
        if size <= most:
            positions[space.name] = np.arange(size)
            continue
        wanted = {n for n in beside if 0 <= n < size}
        spread = np.linspace(most // 2, size - 1, max(most // 2 - len(wanted), 8)).astype(np.int64)
        positions[space.name] = np.array(sorted({*range(most // 2), *spread.tolist(), *wanted}))
    return positions


# How far it goes.


def _extend(
    reach: dict[str, int],
    outcome: Array,
    axes: tuple[Axis, ...],
    positions: Mapping[str, Array],
    fixed: Mapping[str, int],
) -> None:
    """Raises `reach` until each outcome and each change of it along an axis occurs, where that takes least."""
    for along in (None, *range(len(axes))):
        if along is None:
            kinds, shifted = outcome, 0
        else:
            if axes[along].space.name not in fixed:
                continue
            before, after = (np.delete(outcome, end, along) for end in (-1, 0))
            kinds, shifted = np.where(before == after, -1, 4 * before + after), 1
        for kind in np.unique(kinds):
            if kind < 0:
                continue
            places = np.nonzero(np.atleast_1d(kinds == kind))
            needed: dict[str, Array] = {}
            for dim, (axis, place) in enumerate(zip(axes, places, strict=False)):  # a number has a place, and no axis
                name = axis.space.name
                if name in fixed:
                    index = positions[name][place + (shifted if dim == along else 0)]
                    needed[name] = np.maximum(needed[name], index) if name in needed else index
            if not needed:
                continue
            sizes = [np.log2(2.0 + np.maximum(index, reach.get(name, 0))) for name, index in needed.items()]
            best = int(np.argmin(np.sum(sizes, axis=0)))
            for name, index in needed.items():
                reach[name] = max(reach.get(name, 0), int(index[best]))
