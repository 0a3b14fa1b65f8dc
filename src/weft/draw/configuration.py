"""A concrete schedule as tables: its variables, what fits, and what its columns take (Napkin, tables 2 to 5)."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cost import ConcreteSchedule
from weft.cost.chip import OnChip
from weft.cost.concrete.columns import Column, Engine
from weft.cost.concrete.variables import Variable
from weft.draw.document import Prose, Table

_UNITS = (Engine.matrix, Engine.vector, Engine.special, Engine.shared)
_IN_REGISTERS = (Engine.matrix, Engine.vector, Engine.special)
_OUTSIDE = "outside"


def configuration(schedule: ConcreteSchedule) -> tuple[Prose | Table, ...]:
    """Lay out `schedule` as the paper does: variables, what fits, cycles of each column, and what overlaps."""
    names = _letters(len(schedule.variables))
    group, chip = schedule.group_name, schedule.chip
    spare = f", {schedule.producers} are left to move data" if schedule.producers else ""
    said = f"{schedule.groups} {group}s compute{spare}: a thread block has {chip.thread_block // schedule.blocks.group} at most"
    return _variables(schedule, names), _room(schedule), Prose(said), _columns(schedule, names), _overlap(schedule)


def _variables(schedule: ConcreteSchedule, names: list[str]) -> Table:
    """List what is allocated, each once; of axes it says how many elements a block has."""
    rows = tuple(
        (name, ", ".join(v.holds), _size(v), str(v.kind.dtype), v.kind.memory.value, v.kind.layout.value, *_bytes(v))
        for name, v in zip(names, schedule.variables, strict=True)
    )
    head = ("", "variable", "size", "type", "place", "layout", "bytes a thread block", f"bytes a {schedule.group_name}")
    return Table("variables, each allocated once for all that it holds in turn", head, rows, numbers=2)


def _size(variable: Variable) -> str:
    if not variable.axes:
        return " x ".join(map(str, variable.sizes))
    return " x ".join(f"{axis} {size}" for axis, size in zip(variable.axes, variable.sizes, strict=True))


def _bytes(variable: Variable) -> tuple[str, str]:
    """Return the bytes of a variable in the column of the thread block, or in that of a thread group."""
    said = f"{variable.bytes:,}"
    return (said, "") if variable.kind.shared else ("", said)


def _room(schedule: ConcreteSchedule) -> Table:
    """Sum up the bytes of each memory, beside what there is of it."""
    group, chip = schedule.group_name, schedule.chip
    there = {OnChip.registers: int(chip.level("registers").bytes), OnChip.shared: chip.thread_block_bytes}
    rows = tuple(
        (
            memory.value,
            f"{schedule.bytes(memory, shared=True):,}",
            f"{schedule.bytes(memory):,}",
            f"{room:,}",
            f"{schedule.fits(memory):.2f}",
        )
        for memory, room in there.items()
    )
    head = ("total", "bytes a thread block", f"bytes a {group}", f"bytes of {chip.name}", f"{group}s that fit")
    return Table("what fits", head, rows, numbers=4)


def _columns(schedule: ConcreteSchedule, names: list[str]) -> Table:
    """List the columns in order, with the variables in use and how long each keeps which unit busy."""
    rows: list[tuple[str, ...]] = []
    for column in schedule.columns:
        busy = schedule.column_cycles(column)
        moved = schedule.column_bytes(column)
        cells = (*(_number(busy.get(unit, 0.0)) for unit in _UNITS), _number(moved))
        rows.append((column.loop or _OUTSIDE, _what(column), "".join(names[i] for i in column.live), *cells))
    head = ("loop", "column", "in use", *(unit.value for unit in _UNITS), "bytes moved")
    title = f"columns: cycles of all {schedule.group_name}s together, and bytes, in an iteration of the loop"
    return Table(title, head, tuple(rows), numbers=5)


def _what(column: Column) -> str:
    return "".join(f"{each}: " for each in column.inside) + column.what


def _number(found: float) -> str:
    """Write it in three digits or more; nothing where it is 0."""
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}" if found else ""


def _overlap(schedule: ConcreteSchedule) -> Table:
    """Say for each loop how long an iteration takes where its units work at once; of no loop where there is none."""
    loops = [loop for loop in schedule.loops if loop] or [""]
    rows = tuple(row for loop in loops for row in _overlapped(schedule, loop))
    group = schedule.group_name
    head = (
        "loop", "units", "busiest", "cycles in turn", "at once", f"{group}s",
        "TFLOP/s", "of the chip", "GB/s needed", "of the chip",
    )  # fmt: skip
    title = f"columns of different units overlap if so many {group}s are at different ones; rates: a multiprocessor's, the chip's"
    return Table(title, head, rows, numbers=7)


def _overlapped(schedule: ConcreteSchedule, loop: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for all units, and one without shared memory, which the paper does not count."""
    busy = schedule.cycles(loop)
    for name, units in (("all", _UNITS), ("without shared memory", _IN_REGISTERS)):
        cycles = {unit: c for unit, c in busy.items() if unit in units}
        if not cycles or (units is not _UNITS and len(cycles) == len(busy)):
            continue
        most = max(cycles, key=lambda unit: cycles[unit])
        flops, moved = schedule.flops_per_second(loop, units) / 1e12, schedule.bandwidth(loop, units) / 1e9
        every = schedule.chip.multiprocessors
        rates = map(_number, (flops, flops * every, moved, moved * every))
        yield (
            loop or _OUTSIDE, name, most.value, _number(sum(cycles.values())), _number(cycles[most]),
            str(schedule.pipelines(loop, units)), *rates,
        )  # fmt: skip


def _letters(count: int) -> list[str]:
    """Name variables A, B .. Z, A1 .."""
    return [chr(ord("A") + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(count)]
