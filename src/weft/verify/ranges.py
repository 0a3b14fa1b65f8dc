"""Which magnitudes of its inputs a program bears, and whether a candidate for its kernel bears as much.

A program is run at many magnitudes of its inputs at once, twice at each: with the range of its types, and with numbers that neither
overflow nor vanish (`weft.tensor.bounded`). Where both give the same result, the program bears that magnitude. What relates values
to each other, as in exp(x - max(x)), needs no rule of its own: the numbers are there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.block.interpret import interpret
from weft.block.program import BlockNode, BlockProgram, Collapse, Dot, Graph, Pointwise
from weft.block.walk import every, maps
from weft.errors import UnsupportedError, WeftError
from weft.tensor.bounded import BoundedDomain, Event, Lane, kind_of, numbers, packed
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.program import Contraction, Input, Monoid, Ranking, Reduction, TensorProgram
from weft.tensor.scalar import Scalar, parts, show
from weft.verify.sizes import over_spaces, symbols_for

# Elements of each space; those of what is reduced, and of its blocks.
_FEW, _REDUCED, _BLOCK = 2, 4, 2
# Relative, of results: without rounding, what differs at all differs by far more or by far less.
_CLOSE = 2.0**-10
# How close to each other the elements are that are nearly equal, and how far apart rows of different scale, as exponents.
_NEARLY, _ROWS_APART = 2.0**-12, 20
# The powers of 2 that inputs are multiplied with: in sixteenths of the type's largest exponent; for exponentials, as they are; for
# elements that are nearly equal, in sixteenths.
_SIXTEENTHS, _FOR_EXPONENTIALS, _OF_NEAR = range(-14, 15, 2), (3, 5, 7), (-8, -4, 0, 2, 4, 6, 8, 12, 14)
# Of more inputs than these, several change their magnitude together.
_GROUPS = 6
# A result has forgotten how large inputs are where 2 to the first changes it by less than 2 to the second.
_LARGER, _AS_BEFORE = 16, 8
# Elements of an input in all lanes, at most: where fixed sizes make more, nothing is said.
_MOST_ELEMENTS = 1 << 20


class Shape:
    """Names of what elements of one input are like beside each other."""

    mixed, near, rows = range(3)


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """The choices of magnitudes at which a program is run.

    Attributes:
        exponents: of each floating input by name, the power of 2 that it is multiplied with at each choice.
        shapes: at each choice, what its elements are like.
        changed: at each choice, the inputs whose magnitude is not 1.
    """

    exponents: Mapping[str, Array]
    shapes: Array
    changed: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.shapes)


@dataclass(frozen=True, slots=True)
class Lost:
    """A magnitude that a candidate does not bear and the program as written does.

    Attributes:
        operation: what leaves the range, in words.
        exponent: of the magnitude, a power of 2.
        written: exponents of the least and the largest magnitude that the program as written bears beside it.
        changed: the inputs of that magnitude; that of the others is 1.
    """

    operation: str
    exponent: int
    written: tuple[int, int]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        inputs = f"{' and '.join(self.changed)} of magnitude"
        least, largest = (f"{2.0**k:.1g}" if abs(k) < 1000 else f"2**{k}" for k in self.written)
        return (
            f"covers a smaller range than what was written: it loses {inputs} {2.0**self.exponent:.1g} ({self.operation}); "
            f"what was written covers {least} to {largest}"
        )


class Ranges:
    """What magnitudes `program` bears, found when it is first asked for."""

    def __init__(self, program: TensorProgram) -> None:
        self._given = program
        self._symbols = symbols_for(program)

    @cached_property
    def _program(self) -> TensorProgram:
        return over_spaces(self._given, self._symbols)

    @cached_property
    def _floats(self) -> tuple[Input, ...]:
        return tuple(n for n in self._program.inputs if n.dtype.is_float)

    @cached_property
    def _wide(self) -> bool:
        nodes = (*self._program.inputs, *self._program.nodes)
        return any(n.dtype is DType.float64 and n.axes for n in nodes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = {
            s.name: _REDUCED if s.name in self._reduced else _FEW for s in self._program.spaces() if s.fixed is None
        }
        for node in self._program.nodes:
            if isinstance(node, Ranking) and node.over.space.fixed is None:
                sizes[node.over.space.name] = max(_REDUCED, node.count // _BLOCK * _BLOCK + _BLOCK)
        given = {rule.space.name for rule in self._program.derived}
        return self._program.sizes({name: size for name, size in sizes.items() if name not in given})

    @cached_property
    def _reduced(self) -> frozenset[str]:
        """The spaces, by name, that something is reduced over."""
        over = [n.over for n in self._program.nodes if isinstance(n, Contraction | Reduction)]
        return frozenset(a.space.name for axes in over for a in axes)

    @cached_property
    def _magnitudes(self) -> Magnitudes:
        groups = [tuple(n.name for n in self._floats[i::_GROUPS]) for i in range(min(_GROUPS, len(self._floats)))]
        return _magnitudes(self._floats, [*groups, *self._forgotten(groups)])

    def _forgotten(self, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Lists several of the groups whose common magnitude the results do not depend on: q and k of a softmax, x and
        y of x / y.

        Others need not be large or small at once: a weight that multiplies what is normalised is of ordinary size.
        """
        together = (
            [groups, *itertools.combinations(groups, 2)] if len(groups) > 2 else [groups] if len(groups) > 1 else []
        )
        several = [tuple(n for group in each for n in group) for each in together]
        exponents = {n.name: np.array([0, *(_LARGER * (n.name in each) for each in several)]) for n in self._floats}
        choices = Magnitudes(exponents, np.full(1 + len(several), Shape.mixed), ((), *several))
        domain = BoundedDomain((Lane.unbounded,) * len(choices), wide=self._wide)
        if not several:
            return []
        found = evaluate(self._program, self._inputs(domain, choices), domain, sizes=self._sizes)
        same = np.ones(len(choices), np.bool_)
        for each in map(numbers, found):
            with np.errstate(all="ignore"):
                size = np.abs(each.astype(domain.real)).max(axis=tuple(range(each.ndim - 1)), initial=0.0)
                same &= np.abs(np.log2(size / size[0])) < _AS_BEFORE
        forgotten = [each for each, forgets in zip(several, same[1:], strict=True) if forgets]
        return forgotten[:1] if forgotten[:1] == several[:1] else forgotten

    @cached_property
    def borne(self) -> tuple[Array, ...] | None:
        """For each element of each output, and choice, whether the program as written bears it; None: it cannot be run."""
        if not self._floats or 0 in self._sizes.values():
            return None
        try:
            domain = BoundedDomain(_twice(self._magnitudes, Lane.narrower), wide=self._wide)
            found = evaluate(self._program, self._inputs(domain, self._magnitudes), domain, sizes=self._sizes)
        except _ERRORS:
            return None
        count = len(self._magnitudes)
        left = [(e.over | e.under)[count:] for e in domain.events.values()]
        # Where some of what is compared is lost, an index may be right by chance.
        intact = ~np.any(left, axis=0) if left else np.ones(count, np.bool_)
        borne = [_same(each, count) for each in found]
        return tuple(b if numbers(f).dtype.kind == "f" else b & intact for b, f in zip(borne, found, strict=True))

    def lost(self, candidate: BlockProgram) -> Lost | None:
        """Finds the magnitude nearest to 1 at which `candidate` loses what the program as written gives; None where it bears all.

        None too where one of the two cannot be run at small sizes: the check over finite fields says so.

        Args:
            candidate: a block program of the same inputs and outputs, without places.
        """
        if self.borne is None:
            return None
        candidate = over_spaces(candidate, self._symbols)
        domain = BoundedDomain(
            _twice(self._magnitudes, Lane.bounded), wide=self._wide or _computes_doubles(candidate.graph)
        )
        count = len(self._magnitudes)
        try:
            found = self._run(candidate, domain, self._magnitudes)
        except _ERRORS:
            return None
        lost = [borne & ~_same(each, count) for each, borne in zip(found, self.borne, strict=True)]
        bad = np.logical_or.reduce([each.reshape(-1, count).any(axis=0) for each in lost])
        return self._lost(bad, lost, domain) if bad.any() else None

    def said(self, candidate: BlockProgram) -> tuple[str, ...]:
        """Says what magnitudes of its inputs `candidate` bears, and each of its exponentials, squares and products, a line each.

        All inputs have the same magnitude here, and elements of both signs. An exponential that vanishes loses nothing. Empty where
        it cannot be run at small sizes, or has no floating input.
        """
        if not self._floats or 0 in self._sizes.values():
            return ()
        candidate = over_spaces(candidate, self._symbols)
        every = _all_alike(self._floats)
        values, programs = self._program.values(), list[Array]()
        least = [values[name].dtype.least_normal for name in self._program.outputs]
        domain = BoundedDomain(_twice(every, Lane.bounded), wide=self._wide or _computes_doubles(candidate.graph))
        try:
            written = evaluate(self._program, self._inputs(domain, every), domain, sizes=self._sizes)
            domain.events.clear()
            for found in (written, self._run(candidate, domain, every)):
                whole = [
                    _same(e, len(every), n).reshape(-1, len(every)).all(axis=0)
                    for e, n in zip(found, least, strict=True)
                ]
                programs.append(np.logical_and.reduce(whole))
        except _ERRORS:
            return ()
        exponents = every.exponents[max(self._floats, key=lambda n: n.dtype.exponents[1]).name]
        before, own = (_interval(exponents, ~each, ~each) for each in programs)
        lines = [f"{own}: the results (as written: {before})"]
        count, none = len(every), np.zeros(len(every), np.bool_)
        for node, expr in _operations(candidate.graph):
            event = domain.events.get((id(node), id(expr)))
            over = none if event is None else event.over[count:]
            under = none if event is None or kind_of(expr) == "exponential" else event.under[count:]
            lines.append(f"{_interval(exponents, over, under)}: {operation_text(node, expr)}")
        return tuple(dict.fromkeys(lines))

    def _lost(self, bad: Array, lost: Sequence[Array], domain: BoundedDomain) -> Lost:
        """Describes what is lost at the choice of `bad` that is nearest to 1; `lost` says which elements of each output are."""
        count, magnitudes = len(self._magnitudes), self._magnitudes
        exponents = np.array([self._exponent(i) for i in range(count)])
        worst = min(np.flatnonzero(bad), key=lambda i: (abs(exponents[i]), i))
        fine = np.zeros(count, np.bool_)  # where the program as written bears what is lost there
        for each, borne in zip(lost, self.borne or (), strict=True):
            fine |= borne[each[..., worst]].any(axis=0)
        alike = [magnitudes.changed[i] == magnitudes.changed[worst] for i in range(count)]
        beside = exponents[fine & alike & (magnitudes.shapes == magnitudes.shapes[worst])]
        left = [e for e in domain.events.values() if (e.over | e.under)[count + worst]]
        operation = _described(left[0], over=bool(left[0].over[count + worst])) if left else "a difference of such"
        ends = int(beside.min()), int(beside.max())
        return Lost(operation, int(exponents[worst]), ends, magnitudes.changed[worst])

    def _exponent(self, choice: int) -> int:
        return int(max((self._magnitudes.exponents[n][choice] for n in self._magnitudes.changed[choice]), key=abs))

    def _run(self, candidate: BlockProgram, domain: BoundedDomain, magnitudes: Magnitudes) -> tuple[Array, ...]:
        peeled = {m.axis.space.name for m in maps(candidate.graph) if m.range.follows is not None}
        sizes = {**self._sizes}
        blocks = {name: _BLOCK for name in {*self._reduced, *peeled} if sizes.get(name, 1) % _BLOCK == 0}
        inputs = self._inputs(domain, magnitudes)
        return interpret(candidate, inputs, sizes, domain, blocks, watch=domain.at)[0]

    def _inputs(self, domain: BoundedDomain, magnitudes: Magnitudes) -> dict[str, Array]:
        """Draws the inputs at all choices, in each half of the lanes."""
        rng = np.random.default_rng(0)
        found: dict[str, Array] = {}
        for node in self._program.inputs:
            shape = [a.space.size(self._sizes) for a in node.axes]
            if not node.dtype.is_float:
                values = rng.integers(0, 2, shape) if node.dtype.kind == "bool" else rng.integers(0, _REDUCED, shape)
                found[node.name] = packed(
                    np.asarray(values, np.bool_ if node.dtype.kind == "bool" else np.int64)[..., None]
                )
                continue
            if math.prod(shape) * len(magnitudes) > _MOST_ELEMENTS:
                raise UnsupportedError(f"{node.name} has too many elements")
            exponents = magnitudes.exponents[node.name]
            # Rows of different scale are those of what changes its magnitude; the others stay about 1.
            shapes = np.where((exponents == 0) & (magnitudes.shapes == Shape.rows), Shape.mixed, magnitudes.shapes)
            values = _elements(shape, rng, domain.real)[shapes]
            values = np.moveaxis(values, 0, -1) * np.exp2(exponents.astype(domain.real))
            halves = len(domain.lanes) // len(magnitudes)
            found[node.name] = packed(np.concatenate([values] * halves, axis=-1), wide=node.dtype is DType.float64)
        return found


# What a program raises that cannot be run at these sizes; anything else is a defect.
_ERRORS = (WeftError, IndexError, KeyError)


def _all_alike(inputs: Sequence[Input]) -> Magnitudes:
    """Lists every power of 2 that all inputs can be multiplied with."""
    low = max((n.dtype.exponents[0] for n in inputs), default=0)
    high = min((n.dtype.exponents[1] for n in inputs), default=0)
    exponents = np.arange(low + 2, high - 2, max(1, (high - low) // 256))
    names = tuple(n.name for n in inputs)
    return Magnitudes(dict.fromkeys(names, exponents), np.full(len(exponents), Shape.mixed), (names,) * len(exponents))


def _interval(exponents: Array, over: Array, under: Array) -> str:
    """Names in words the magnitudes about 1 that are neither too large nor too small for an operation."""
    largest = min(exponents[over & (exponents >= 0)], default=None)
    least = max(exponents[under & (exponents < 0)], default=None)
    if largest == 0:
        return "none"
    ends = [] if least is None else [f"from {2.0 ** (int(least) + 1):.2g}"]
    ends += [] if largest is None else [f"up to {2.0 ** (int(largest) - 1):.2g}"]
    return "magnitudes " + " ".join(ends) if ends else "all magnitudes"


def _operations(graph: Graph) -> Iterator[tuple[BlockNode, Scalar | None]]:
    """Yields the exponentials, squares and products of floats in a graph and in those of its loops."""
    for node in every(graph.nodes):
        match node:
            case Pointwise() if node.dtype.is_float:
                yield from ((node, each) for each in reversed(parts(node.expr)) if kind_of(each) != "other")
            case Dot() | Collapse(_, Monoid.prod):
                yield node, None
            case _:
                pass


def _computes_doubles(graph: Graph) -> bool:
    """Tells whether anything in a graph or in its loops is computed in float64, be it only on the way."""
    return any(isinstance(n, Pointwise) and n.dtype is DType.float64 for n in every(graph.nodes))


def _magnitudes(inputs: Sequence[Input], groups: Sequence[tuple[str, ...]]) -> Magnitudes:
    """Takes the inputs of each group from the least magnitude to the largest, while the others are about 1."""
    highest = max((n.dtype.exponents[1] for n in inputs), default=128)
    step = max(1, highest // 16)
    mixed = sorted({*(step * k for k in _SIXTEENTHS), *_FOR_EXPONENTIALS})
    near = [step * k for k in _OF_NEAR]
    rows = [k for k in mixed if abs(k) < highest - 2 * _ROWS_APART][::2]
    of_shapes = ((Shape.mixed, mixed), (Shape.near, near), (Shape.rows, rows))
    choices = [(group, shape, k) for group in groups for shape, exponents in of_shapes for k in exponents]
    exponents: dict[str, Array] = {}
    for node in inputs:
        low, high = node.dtype.exponents
        wanted = np.array([k if node.name in group else 0 for group, _, k in choices])
        exponents[node.name] = np.clip(wanted, low + 2, high - 2)
    shapes = np.array([shape for _, shape, _ in choices])
    return Magnitudes(exponents, shapes, tuple(group for group, _, _ in choices))


def _elements(shape: Sequence[int], rng: np.random.Generator, real: Any) -> Array:
    """Draws elements about 1, as each `Shape` has them: of both signs; nearly equal; in rows of different scale."""
    mixed = np.exp2(rng.uniform(-1, 1, shape)) * rng.choice((-1.0, 1.0), shape)
    near = 1 + _NEARLY * rng.standard_normal(shape)
    number = sum(
        (np.arange(n).reshape([-1 if i == d else 1 for i in range(len(shape))]) for d, n in enumerate(shape[:-1])),
        np.zeros(()),
    )
    return np.stack((mixed, near, mixed * np.exp2(_ROWS_APART * ((number + 1) % 3 - 1)))).astype(real)


def _twice(magnitudes: Magnitudes, lane: Lane) -> tuple[Lane, ...]:
    count = len(magnitudes)
    return (*[Lane.unbounded] * count, *[lane] * count)


def _same(result: Array, count: int, least: float = 0.0) -> Array:
    """Tells for each element and choice whether the ranged result is that without a range; below `least` it may be any
    such number.
    """
    values = numbers(result)
    values = np.broadcast_to(values, (*values.shape[:-1], 2 * count))
    free, bounded = values[..., :count], values[..., count:]
    if values.dtype.kind != "f":
        return free == bounded
    with np.errstate(all="ignore"):
        small = np.maximum(np.abs(free), np.abs(bounded)) < least
        return np.isfinite(free) & ((np.abs(free - bounded) <= _CLOSE * np.abs(free)) | small)


def _described(event: Event, *, over: bool) -> str:
    """Says what left the range, and in which of the user's lines."""
    what = "overflows" if over else "underflows"
    return f"{operation_text(event.node, event.expr)} {what}"


def operation_text(node: Any, expr: Scalar | None) -> str:
    """Writes an operation of `node`, an operator of a block program, as text, with the user's line where it is known."""
    match node:
        case Pointwise() if expr is not None:
            said = show(expr, node.args)
        case Dot():
            said = f"sum of products {node.left} * {node.right}"
        case Collapse():
            said = f"{'product' if node.monoid is Monoid.prod else node.monoid.name} of {node.arg}"
        case _:
            said = "sum"
    kind = kind_of(expr)
    said = f"{kind} {said}" if kind in ("exponential", "square") else said
    location = getattr(node, "location", None)
    return said if location is None else f"{said} at {location}"
