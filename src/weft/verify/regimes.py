"""Hard inputs for a program: what range, rounding and special values can go wrong on, one kind a group of rows.

A *row* is what one index of a parallel space holds: of a space that nothing is summed, ranked or shifted along, so that a row's
results come of that row alone. Rows of all regimes lie in one input, one beside the other: a block of rows holds large and tiny
ones together, and a maximum over all rows would hide the tiny ones, which is why each group of rows is judged by itself. An input
without rows is of one regime at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.tensor.arrays import is_numpys
from weft.tensor.axes import Axis
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Input,
    Lookup,
    Monoid,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
)
from weft.verify.drawer import Drawer


@dataclass(frozen=True, slots=True)
class Rows:
    """What is to be filled: the shape, rows first, what is summed along last; the type; what draws."""

    shape: tuple[int, ...]
    dtype: DType
    draws: Drawer

    @property
    def normal(self) -> Array:
        """Standard normal elements."""
        return self.draws.normal(self.shape, self.dtype)

    @property
    def columns(self) -> Array:
        """The number of each place of a row, along the last dimension."""
        return self.draws.here(np.arange(self.shape[-1]))


Filling: TypeAlias = Callable[[Rows], Array]
"""Makes elements, in float64."""


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of elements.

    Attributes:
        name: in words, for a verdict.
        fill: makes elements of a floating type.
        beside: the same for inputs but the first: products of all must have a number.
    """

    name: str
    fill: Filling
    beside: Filling | None = None


def _scaled(wide: float, half: float) -> Filling:
    """Draws normal elements times `wide`, or for types of few exponents times `half`."""

    def fill(rows: Rows) -> Array:
        return rows.normal * (half if rows.dtype is DType.float16 or rows.dtype.is_kept else wide)

    return fill


def _of_one_sign(wide: float, half: float) -> Filling:
    """Draws the same, each row of one sign: where sums cancel, what is lost below the normal numbers does not show."""
    scaled = _scaled(wide, half)

    def fill(rows: Rows) -> Array:
        found = scaled(rows)
        first = found[(slice(None), *(slice(0, 1) for _ in rows.shape[1:]))]
        return np.copysign(found, first)

    return fill


def _off_centre(rows: Rows) -> Array:
    centre = {DType.float16: 1e3, DType.bfloat16: 64.0}.get(rows.dtype, 16.0 if rows.dtype.is_kept else 1e4)
    return centre + rows.normal


def _constant(rows: Rows) -> Array:
    """Draws one element for each row and repeats it all through the row."""
    size = 10.0 if rows.dtype.is_kept else 1234.567
    one = size * (1.0 + rows.draws.uniform((rows.shape[0], *(1 for _ in rows.shape[1:]))))
    return np.broadcast_to(one, rows.shape)


def _ties(rows: Rows) -> Array:
    return rows.draws.integers(-1, 3, rows.shape)


def _zeros(rows: Rows) -> Array:
    return np.copysign(0.0, rows.normal)


def _masked(rows: Rows) -> Array:
    return np.broadcast_to(rows.draws.here(np.full((1,) * len(rows.shape), -np.inf)), rows.shape)


def _masked_first(rows: Rows) -> Array:
    """Draws rows whose first half is minus infinity: blocks that are masked whole, the first among them."""
    return np.where(rows.columns < rows.shape[-1] // 2, -np.inf, rows.normal)


def _one_ahead(rows: Rows) -> Array:
    """Puts one element far above the others, at the end of a row or at its beginning: what was made of the others must shrink."""
    found = rows.normal
    last = rows.draws.uniform((*rows.shape[:-1], 1)) < 0.5
    return np.where(rows.columns == np.where(last, rows.shape[-1] - 1, 0), found + 16.0, found)


def _with_one(value: float) -> Filling:
    def fill(rows: Rows) -> Array:
        found, count = rows.normal, math.prod(rows.shape[1:])
        if not found.size:
            return found
        at = rows.draws.rng.integers(count, size=(rows.shape[0], 1))
        places = rows.draws.here(np.arange(count))
        return np.where(places == rows.draws.here(at), value, found.reshape(rows.shape[0], count)).reshape(rows.shape)

    return fill


REGIMES = (
    Regime("ordinary", _scaled(1.0, 1.0)),
    Regime("large", _scaled(1e4, 100.0)),
    Regime("tiny", _of_one_sign(1e-25, 1e-5), _of_one_sign(1e-10, 1e-2)),
    Regime("off centre", _off_centre),
    Regime("constant rows", _constant),
    Regime("one element ahead", _one_ahead),
    Regime("equal elements", _ties),
    Regime("zeros of both signs", _zeros),
    Regime("subnormal", _scaled(1e-40, 1e-7)),
    Regime("rows of minus infinity", _masked),
    Regime("rows that begin with minus infinity", _masked_first),
    Regime("a NaN", _with_one(np.nan)),
    Regime("an infinity", _with_one(np.inf)),
)
"""Every kind, the ordinary one first."""
ROWS = 4
"""Rows of each kind in one input, where it has as many: the draws that the error rule takes its maxima over."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which inputs have rows, and along which space.

    Attributes:
        rows: by input, the space of its rows; the others have none.
        slots: those spaces, each once.
    """

    rows: Mapping[str, str]
    slots: tuple[str, ...]


def layout_of(program: TensorProgram, most: int = 2, roomy: Collection[str] = ()) -> RowLayout:
    """Chooses the rows of each input, along `most` spaces at most.

    An input takes a space of its own where it can, so that large rows of one meet tiny rows of another; one that is `roomy`,
    of which there are many in any case, before others.
    """
    parallel = _parallel(program)
    floats = [n for n in program.inputs if n.dtype.is_float or n.dtype is DType.bool]
    options = {n.name: [a.space.name for a in n.axes if a.space.name in parallel] for n in floats}
    rows: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in sorted(options, key=lambda each: len(options[each])):
        free = [s for s in options[name] if s in taken or len(taken) < most]
        if free:
            # The last one of those least taken: leading spaces are batches.
            least = min(taken.get(s, 0) for s in free)
            alike = [s for s in free if taken.get(s, 0) == least]
            rows[name] = ([s for s in alike if s in roomy] or alike)[-1]
            taken[rows[name]] = least + 1
    return RowLayout(rows, tuple(taken))


def _parallel(program: TensorProgram) -> set[str]:
    """Names the spaces whose indices stay apart all through the program."""
    found = {s.name for s in program.spaces()}
    mixed: set[str] = set()

    def twice(axes: Sequence[Axis]) -> None:
        names = [a.space.name for a in axes]
        mixed.update(name for name in names if names.count(name) > 1)

    for node in (*program.inputs, *program.nodes):
        match node:
            case Reduction() | Contraction():
                mixed.update(a.space.name for a in node.over)
            case Scan():
                mixed.add(node.over.space.name)
            case Ranking():
                mixed.add(node.over.space.name)
                mixed.update(() if node.rank is None else (node.rank.space.name,))
            case Reindex():
                for index in node.index:
                    if index.axis is None:
                        mixed.update(a.space.name for a, _ in index.terms)
                mixed.update(_sources(program, node))
            case Lookup():
                source = program.values()[node.source].axes
                mixed.update(a.space.name for a, own in zip(source, node.along, strict=True) if own is None)
            case Opaque():
                mixed.update(a.space.name for a in node.axes)
            case Input() | Elementwise() | _:
                pass
        twice(node.axes)
        for use in getattr(node, "args", ()):
            twice(use.axes)
    return found - mixed


def _sources(program: TensorProgram, node: Reindex) -> set[str]:
    """Names the spaces of the source that the indices of `node` do not simply go along."""
    axes = program.values()[node.source].axes
    return {
        a.space.name
        for a, index in zip(axes, node.index, strict=True)
        if index.axis is None or index.axis.space != a.space
    }


def labels(count: int, start: int) -> Array:
    """Returns the regime of each of `count` rows: neighbours are of different ones; `start` is that of the first row."""
    return (np.arange(count) * 5 + start) % len(REGIMES)


def drawn(
    node: Input,
    sizes: Mapping[str, int],
    layout: RowLayout,
    regime: int,
    draws: Drawer,
    reduced: set[str],
    *,
    first: bool,
) -> Array:
    """Draws elements for an input: rows of all regimes, else all of the one.

    Args:
        node: the input.
        sizes: by name of the space.
        layout: where rows are.
        regime: of an input without rows; else that of the first row.
        draws: what draws.
        reduced: spaces that something is summed along, which go to the end of a row.
        first: whether it is the first input.

    Returns:
        float64 that the input's type holds, bool, or int64, in numpy's memory.
    """
    shape = tuple(a.space.size(sizes) for a in node.axes)
    if node.dtype.kind == "int":
        return _integers(shape, node.dtype, draws.rng, regime)
    space = layout.rows.get(node.name)
    dim = None if space is None else next(d for d, a in enumerate(node.axes) if a.space.name == space)
    order = sorted((d for d in range(len(shape)) if d != dim), key=lambda d: node.axes[d].space.name in reduced)
    rest = tuple(shape[d] for d in order)
    if dim is None:
        made = _filled(1, rest, node.dtype, regime, draws, first).reshape(rest)
    else:
        kinds = labels(shape[dim], regime)
        each = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
        filled = [_filled(len(own), rest, node.dtype, int(kinds[own[0]]), draws, first) for own in each]
        made = np.concatenate(filled)[np.argsort(np.concatenate(each))]
    if node.dtype is DType.bool and made.ndim > 1 and regime % 2:  # whole blocks of a mask are empty
        half = made.shape[-1] // 2
        columns = draws.here(np.arange(made.shape[-1]) - int(draws.rng.integers(0, half + 1)))
        made = made & ~((columns >= 0) & (columns < half))
    turned = made.transpose(tuple(map(int, np.argsort(order if dim is None else [dim, *order]))))
    return np.array(turned, order="C") if is_numpys(turned) else turned


def _filled(count: int, row: tuple[int, ...], dtype: DType, regime: int, draws: Drawer, first: bool) -> Array:
    """Draws `count` rows of a regime, of the shape `row` each."""
    if dtype is DType.bool:
        share = (0.5, 0.5, 1.0, 0.0, 0.8)[regime % 5]
        return draws.uniform((count, *row)) < share
    with np.errstate(all="ignore"):
        kind = REGIMES[regime]
        fill = kind.fill if first or kind.beside is None else kind.beside
        return rounded(fill(Rows((count, *(row or (1,))), dtype, draws)), dtype).reshape(count, *row)


def _integers(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator, regime: int) -> Array:
    """Draws small integers, which are compared with indices, and now and then any."""
    low, high = dtype.bounds
    if regime % 4 == 3:
        return rng.integers(low, high, shape, dtype=np.int64, endpoint=True)
    if regime % 4 == 2:
        return rng.integers(max(low, -100), 100, shape, dtype=np.int64)
    return rng.integers(0, 8, shape, dtype=np.int64)


def reduced_spaces(program: TensorProgram) -> set[str]:
    """Names the spaces that something is summed or ranked along."""
    found: set[str] = set()
    for node in program.nodes:
        match node:
            case Reduction() | Contraction():
                found.update(a.space.name for a in node.over)
            case Ranking() | Scan():
                found.add(node.over.space.name)
            case _:
                pass
    return found


def added_spaces(program: TensorProgram) -> set[str]:
    """Names the spaces along which floats are added up."""
    found: set[str] = set()
    for node in program.nodes:
        match node:
            case Reduction(monoid=Monoid.sum) | Contraction() if node.dtype.is_float:
                found.update(a.space.name for a in node.over)
            case _:
                pass
    return found
