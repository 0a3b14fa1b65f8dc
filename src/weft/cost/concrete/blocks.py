"""Sizes of the blocks of a concrete schedule: the least common multiples of what units, threads and transfers ask (5.1, 5.2).

In: the operations of a launch, and a chip. Out: for each axis how many elements a block has, and of which number that is a
multiple.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from weft.block.program import Map
from weft.cost.chip import Chip, MatrixUnit
from weft.cost.concrete.operations import ColumnLoop, ColumnValue, Operation
from weft.errors import UnsupportedError
from weft.schedule import multiplied
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True, eq=False)
class UnitMatmul:
    """A matmul of blocks and the unit that does it: rows of `left` times columns of `right`, summed along `over`."""

    operation: Operation
    left: ColumnValue
    right: ColumnValue
    rows: Axis
    columns: Axis
    over: Axis
    dtype: DType
    unit: MatrixUnit


def every(found: Sequence[Operation | ColumnLoop]) -> Iterator[Operation]:
    """Yield all operations, those of loops too."""
    for each in found:
        if isinstance(each, ColumnLoop):
            yield from every(each.body)
        else:
            yield each


def products(found: Sequence[Operation | ColumnLoop], chip: Chip, computed: DType) -> dict[int, UnitMatmul]:
    """Return the matmuls of blocks by `id` of their operation, which outlives it.

    Raises:
        UnsupportedError: the chip has no unit for such operands.
    """
    loaded = {id(op.makes[0]): op for op in every(found) if op.load is not None}

    def dtype(value: ColumnValue) -> DType:
        return value.dtype if id(value) in loaded else computed

    known: dict[int, UnitMatmul] = {}
    for op in every(found):
        node = op.matmul
        if node is None:
            continue
        left, right = op.reads if node.dims[0] in op.reads[0].dims else op.reads[::-1]
        kind = multiplied(dtype(left), dtype(right))[0]
        unit = chip.unit_of(kind)
        if unit is None:
            raise UnsupportedError(f"{chip.name} has no unit that multiplies blocks of {kind}")
        known[id(op)] = UnitMatmul(op, left, right, node.dims[0], node.dims[1], node.over, kind, unit)
    return known


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """How many elements the blocks of each axis have.

    Attributes:
        rows: the axis of which each thread has one.
        group: threads that go through the columns together.
        sizes: elements of the block of a thread group, or of a loop's iteration.
        multiples: of what a block is a multiple, by axis.
        pieces: elements that row by row work takes at once, of axes that matmuls are summed along.
        parts: elements that a matmul's results are made of at once.
    """

    rows: Axis | None
    group: int
    sizes: Mapping[Axis, int]
    multiples: Mapping[Axis, int]
    pieces: Mapping[Axis, int]
    parts: Mapping[Axis, int]


def blocks(
    found: Sequence[Operation | ColumnLoop],
    groups: Sequence[Map],
    known: Mapping[int, UnitMatmul],
    chip: Chip,
    given: Mapping[str, int],
    sizes: Mapping[str, int],
) -> BlockSizes:
    """Return the least blocks, or those that are `given` by the names of loops, and what they are multiples of.

    Raises:
        UnsupportedError: a given block is no such multiple.
    """
    threads = max((p.unit.threads for p in known.values()), default=chip.warp)
    own = [m.axis for m in groups if not m.unit]
    rows = next((p.rows for p in known.values() if p.rows in own), own[-1] if own else None)
    multiples: dict[Axis, int] = {} if rows is None else {rows: threads}
    pieces: dict[Axis, int] = {}
    parts: dict[Axis, int] = {}

    def ask(of: dict[Axis, int], axis: Axis, number: int) -> None:
        of[axis] = lcm(of.get(axis, 1), number)

    for each in known.values():
        ask(multiples, each.rows, each.unit.rows)
        ask(multiples, each.columns, each.unit.columns)
        ask(multiples, each.over, each.unit.depth)
        ask(pieces, each.over, each.unit.depth)
        ask(parts, each.columns, each.unit.columns)
    for op in every(found):
        load = op.load
        last = load.at[-1].plain if load is not None and load.at else None
        if load is not None and last is not None and last in load.dims:
            ask(multiples, last, max(1, chip.transfer_bytes // load.dtype.bytes))
    names = {m.axis: m.name for m in groups} | {loop.node.axis: loop.node.name for loop in _loops(found)}
    least = {axis: multiples.get(axis, 1) for axis in names}
    chosen = {axis: given.get(name, least[axis]) for axis, name in names.items()}
    wrong = [names[axis] for axis, size in chosen.items() if size % least[axis] and size < axis.space.size(sizes)]
    if wrong:
        each = ", ".join(f"{name}: of {multiples[axis]}" for axis, name in names.items() if name in wrong)
        raise UnsupportedError(f"blocks are no multiples of what units and transfers ask: {each}")
    units = {m.axis for m in groups if m.unit} | {loop.node.axis for loop in _loops(found) if loop.node.unit}
    return BlockSizes(rows, threads, {a: 1 if a in units else n for a, n in chosen.items()}, multiples, pieces, parts)


def _loops(found: Sequence[Operation | ColumnLoop]) -> Iterator[ColumnLoop]:
    for each in found:
        if isinstance(each, ColumnLoop):
            yield each
            yield from _loops(each.body)
