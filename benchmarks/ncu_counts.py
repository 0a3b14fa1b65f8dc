"""What NVIDIA's profiler (ncu) counted, read from the text that it prints with --csv, and whose launches these are.

A launch is profiled between two readings of a large tensor, which empty the second-level cache: the one before makes all reads come
from memory, and what the launch wrote goes to memory by the end of the one after, whose own writes are none.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
CACHE_READ, CACHE_WRITTEN = "lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum"
OWN = "weft_"
"""How the names of weft's kernels begin."""

_SECTOR = 32.0
_UNITS = {"": 1.0, "byte": 1.0, "b": 1.0, "sector": _SECTOR, "sectors": _SECTOR}
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_UNIT = re.compile(r"(?P<thousands>[kmgt]?)(?P<unit>bytes?|b|sectors?)?", re.IGNORECASE)
_PASSES = re.compile(r"^==PROF== Profiling .*- (\d+) pass(?:es)?$")


class CountsError(Exception):
    """What the profiler printed is not what was expected: the message says how."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """One kernel that was profiled: its name and what was counted, in bytes, by the metric's name."""

    name: str
    bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Profile:
    """What one run of the profiler printed.

    Attributes:
        kernels: in order.
        passes: the most times that a kernel ran to be counted. After the first time the cache is not empty.
        said: what the profiler says of itself beside that.
    """

    kernels: tuple[Profiled, ...]
    passes: int
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """What one launch of weft's moved, in bytes: of the device's memory, and asked of the second-level cache (NaN: not counted)."""

    name: str
    read: float
    written: float
    cache_read: float
    cache_written: float


@dataclass
class _Row:
    name: str
    bytes: dict[str, float] = field(default_factory=dict[str, float])


def read_profile(text: str) -> Profile:
    """Read what ncu prints with `--csv` and `--metrics`: lines of its own, then a table with a line for each kernel and metric.

    Raises:
        CountsError: there is no table, a unit is unknown, or a line is not one of the table.
    """
    lines = text.splitlines()
    own = [line for line in lines if line.startswith("==")]
    passes = [int(found[1]) for found in map(_PASSES.match, own) if found]
    said = tuple(line for line in own if not line.startswith("==PROF== Profiling"))
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise CountsError(f"ncu printed no table: {'; '.join(said[-3:]) or text[-300:]}")
    table = [line for line in lines[first:] if line.startswith('"')]
    rows: dict[str, _Row] = {}
    for line in csv.DictReader(io.StringIO("\n".join(table))):
        try:
            row = rows.setdefault(line["ID"], _Row(line["Kernel Name"]))
            row.bytes[line["Metric Name"]] = in_bytes(line["Metric Value"], line["Metric Unit"])
        except KeyError as error:
            raise CountsError(f"ncu's table has no column {error}") from error
    return Profile(tuple(Profiled(row.name, row.bytes) for row in rows.values()), max(passes, default=1), said)


def in_bytes(value: str, unit: str) -> float:
    """Convert a number as ncu prints it, thousands separated by commas, to bytes; a sector has 32.

    Raises:
        CountsError: the unit or the number is none.
    """
    found = _UNIT.fullmatch(unit.strip())
    try:
        number = float(value.replace(",", ""))
    except ValueError as error:
        raise CountsError(f"ncu counted {value!r} {unit}") from error
    if found is None:
        raise CountsError(f"ncu counted in a unit that is not known: {unit!r}")
    return number * _THOUSANDS[found["thousands"].lower()] * _UNITS[(found["unit"] or "").lower()]


def calls_of(kernels: Sequence[Profiled]) -> list[list[Profiled]]:
    """Cut what was profiled into calls: weft's kernels, each with the reading after it. Two more readings begin the next call."""
    calls: list[list[Profiled]] = []
    readings = 0
    for kernel in kernels:
        own = kernel.name.startswith(OWN)
        if own and (readings > 1 or not calls):
            calls.append([])
        if calls and (own or readings == 0):
            calls[-1].append(kernel)
        readings = 0 if own else readings + 1
    return calls


def counted(call: Sequence[Profiled], names: Sequence[str]) -> list[Counted]:
    """Give what each launch of a call moved, whose kernels have these names, in order: each is followed by a reading.

    Raises:
        CountsError: other kernels ran.
    """
    found = [kernel.name for kernel in call]
    if found[::2] != list(names) or len(found) != 2 * len(names) or any(n.startswith(OWN) for n in found[1::2]):
        raise CountsError(
            f"expected {', '.join(names) or 'nothing'}, each followed by a reading, found {', '.join(found)}"
        )
    return [_launch(own, after) for own, after in zip(call[::2], call[1::2], strict=True)]


def _launch(own: Profiled, after: Profiled) -> Counted:
    missing = [m for m in (READ, WRITTEN) for k in (own, after) if m not in k.bytes]
    if missing:
        raise CountsError(f"{own.name} has no {missing[0]}")
    lacking = float("nan")
    cache = (own.bytes.get(CACHE_READ, lacking), own.bytes.get(CACHE_WRITTEN, lacking))
    return Counted(own.name, own.bytes[READ], own.bytes[WRITTEN] + after.bytes[WRITTEN], *cache)
