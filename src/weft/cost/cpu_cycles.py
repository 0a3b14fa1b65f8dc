"""Cycles of one core for what an operator does on blocks of given lengths, its data in the core's caches.

The products are those of the C++ prelude: `dot` on a panel, `dot_direct` on a block as it lies, which goes row by row, and
`dot_turned`. Their figures were fitted to `benchmarks/products.py`; docs/measurements/cpu-model.md shows both. A cycle is that of
the clock that the processor is sold with, in which a core multiplies and adds up two vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from weft.cost.cpu_work import BlockCopy, BlockProduct, ElementLoop, OperatorWork
from weft.cost.machine import Machine
from weft.tensor.dtypes import DType

# Of a product on a panel: what a call takes, how many steps longer than its depth a block of rows and columns takes, and cycles of
# a vector of columns in one step of a row: nearly twice what the units need, since operands are loaded beside.
_CALL, _LONGER, _STEP = 150.0, 2.0, 0.7
# So many sums are under way at once where units are busy; a single row loads a vector for each that it multiplies.
_CHAINS, _LONE_ROW = 4.5, 2.1
# Pairs of 16 bits of at most so many products, and columns beside whole vectors, are multiplied one by one, in so many cycles each.
_SMALL_PAIRS, _PAIR = 4096, 0.37
# Of a product row by row: a step along the depth, where rows of the right operand are far apart and where they are not; and a
# vector of columns in it.
_FAR_STEP, _ROW_STEP, _ROW_VECTOR = 11.5, 4.0, 1.8
# Of a product whose right operand lies along the depth, of so many rows at most by bytes of an element: a vector of columns,
# and a step of it, for each row. More rows are turned, in parts.
_FEW_ROWS = {2: 2, 4: 5}
_FAR_SUMS, _SUMS = (300.0, 6.7), (90.0, 3.8)
_TURNED_ROWS, _FAR_TURNED = 64, 1.8
# Of a block that is turned: 4 bytes in whole tiles, and an element by itself.
_TILED, _UNTILED = 0.5, 3.0
# An element of a product one by one.
_PLAIN = 2.5
# Of elementwise work: a loop, a row of it, adding up the lanes of one, and an element whose neighbours lie apart.
_LOOP, _ROW, _FOLD, _APART = 20.0, 5.0, 30.0, 4.0
# A longest axis so many times as long as the last one has the innermost loop, but for one of so many elements along which what is
# stored lies side by side (as `weft.emit.cpp.order` has it).
_FAR, _VECTOR = 16, 16
# Of an element that counts in one row, for each operation: no vector has several of them.
_IN_ONE_ROW = 1.0
# Of a staged block: a row that is copied, and 4 bytes of it.
_COPIED_ROW, _COPIED = 10.0, 0.12


def cycles_of(work: OperatorWork, lengths: tuple[int, ...], sizes: Mapping[str, int], machine: Machine) -> float:
    """Compute the cycles of an operator on one block.

    Args:
        work: what it does; a block that is moved takes none by itself.
        lengths: of the block, as `Traffic.operations` has them.
        sizes: elements of each space, by name.
        machine: whose core.
    """
    match work:
        case BlockProduct():
            return _product(work, lengths, sizes, machine)
        case ElementLoop():
            return _elementwise(work, lengths, machine)
        case BlockCopy(dtype=dtype, turned=turned):
            columns, rows = lengths[-1] if lengths else 1, prod(lengths[:-1])
            return (
                _turning(dtype, rows, columns, machine)
                if turned
                else rows * (_COPIED_ROW + columns * dtype.bytes / 4 * _COPIED)
            )
        case _:
            return 0.0


def _elementwise(work: ElementLoop, lengths: tuple[int, ...], machine: Machine) -> float:
    if work.row is not None:
        return prod(lengths) * work.operations * _IN_ONE_ROW
    last, longest = len(lengths) - 1, max(lengths, default=1)
    inner = lengths.index(longest) if lengths and longest >= _FAR * lengths[last] else last
    dense = work.dense
    if dense is not None and lengths[dense] >= _VECTOR and work.apart[dense] < work.apart[inner]:
        # Where as much lies apart either way, as of a turned block, the longer loop tells the time as well.
        inner = dense
    length = lengths[inner] if lengths else 1
    apart = work.apart[inner] if lengths else 0
    # Sums that do not run along the innermost loop are read and written with every element.
    folded, operations = work.over == inner, work.operations * (1 if work.over in (None, inner) else 2)
    each = ceil(length / machine.lanes) * operations + length * apart * _APART
    each += (_FOLD if folded else 0.0) + (0.0 if work.along and not apart else _ROW)
    return prod(lengths) / max(1, length) * each + (0.0 if work.along else _LOOP)


def _product(work: BlockProduct, lengths: tuple[int, ...], sizes: Mapping[str, int], machine: Machine) -> float:
    rows, columns, depth = (1 if side is None else lengths[side] for side in work.sides)
    before = _turning(work.dtype, rows, depth, machine) if work.turned and rows > 1 else 0.0
    if work.plain:
        return before + rows * columns * depth * _PLAIN
    if work.panel:
        return before + _on_panel(work.dtype, rows, columns, depth, machine)
    far = work.row is not None and (columns if work.across else depth) < sizes.get(work.row, 0)
    if work.across or columns == 1:
        step = _FAR_STEP if far else _ROW_STEP
        return before + _LOOP + rows * depth * (step + ceil(columns / machine.lanes) * _ROW_VECTOR)
    if rows <= _FEW_ROWS.get(work.dtype.bytes, rows):
        call, step = _FAR_SUMS if far else _SUMS
        return before + rows * ceil(columns / machine.lanes) * (call + step * depth)
    height = min(rows, _TURNED_ROWS)
    part = _on_panel(work.dtype, columns, height, depth, machine) * (_FAR_TURNED if far else 1.0)
    copies = _turning(work.dtype, height, depth, machine) + 2 * _turning(DType.float32, height, columns, machine)
    return before + rows / height * (part + copies)


def _on_panel(dtype: DType, rows: int, columns: int, depth: int, machine: Machine) -> float:
    steps, slow = depth * machine.vector_flops / machine.matrix_rate(dtype), 0.0
    if dtype.bytes == 2:
        whole = 0 if rows * columns * depth <= _SMALL_PAIRS else columns // machine.lanes * machine.lanes
        slow, columns = rows * (columns - whole) * depth * _PAIR, whole
    vectors = rows * ceil(columns / machine.lanes)
    waiting = max(1.0, _LONE_ROW / rows, _CHAINS / max(1, vectors))
    return _CALL + slow + vectors * (steps + _LONGER) * _STEP * waiting


def _turning(dtype: DType, rows: int, columns: int, machine: Machine) -> float:
    """Compute the cycles of copying a block whose rows lie as columns."""
    return rows * columns * (_TILED * dtype.bytes / 4 if min(rows, columns) >= machine.lanes else _UNTILED)
