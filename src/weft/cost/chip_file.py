"""Chips in files: a `Chip` as JSON, each figure with how it was got, and the reader, which refuses what it does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from weft.cost.chip import Chip, ChipLevel, MatrixUnit, OnChip
from weft.errors import FileError, MissingFileError
from weft.tensor.dtypes import DType

FORMAT, VERSION = "weft chip", 2
_MOST = 1e300  # beyond it, an int may have no float
_ENDLESS = "infinite"  # JSON has no infinity
_TODO = "measure again with weft doctor --measure FILE.json"
_MAY_BE_0 = {"bytes_per_second", "special", "threads", "thread_block", "thread_block_bytes", "thread_registers"}
_MAY_BE_BROKEN = {"bytes", "bytes_per_second", "hertz", "flops"} | DType.__members__.keys()

_UNITS = {
    "hertz": "Hz",
    "bytes": "bytes",
    "bytes_per_second": "bytes/s",
    "thread_block_bytes": "bytes",
    "transfer_bytes": "bytes",
    "special": "results/cycle",
    "flops": "operations/cycle",
    **dict.fromkeys(DType.__members__, "operations/cycle"),
}
"""Of figures, by the last part of their path; all others are counts, places, or yes and no."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Origin:
    """How a figure was got.

    Attributes:
        how: "measured", "system" (the system says it, or weft's default where it says nothing) or "published".
        by: what measured it, or where it is published.
        spread: of a measured one: the middle half of its repeats, as a part of their median.
    """

    how: str
    by: str = ""
    spread: float = 0.0


def chip_json(
    chip: Chip, origins: Mapping[str, Origin], others: Origin, *, date: str, machine: str
) -> dict[str, object]:
    """Write `chip` as what JSON can say; `read_chip` reads it.

    Args:
        chip: its measured figures are medians.
        origins: of figures, by their path: "hertz", "vector.float32", "levels.L1.bytes_per_second", "matrix.int8.rows".
        others: of all other figures.
        date: when it was measured, as ISO 8601 has it.
        machine: what was measured, for readers.
    """
    body = cast("dict[str, object]", _written(chip, "", origins, others))
    return {"format": FORMAT, "version": VERSION, "date": date, "machine": machine, **body}


def _written(value: Any, path: str, origins: Mapping[str, Origin], others: Origin) -> object:
    def inner(name: str, held: Any) -> object:
        return held if name == "name" else _written(held, f"{path}.{name}".lstrip("."), origins, others)

    if is_dataclass(value):
        return {entry.name: inner(entry.name, getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {dtype.name: inner(dtype.name, held) for dtype, held in cast("Mapping[DType, Any]", value).items()}
    if isinstance(value, tuple):
        return [
            {"name": level.name, **cast("dict[str, object]", inner(level.name, level))}
            for level in cast("tuple[ChipLevel, ...]", value)
        ]
    origin = origins.get(path, others)
    said = value.name if isinstance(value, Enum) else _ENDLESS if value == math.inf else value
    figure: dict[str, object] = {"how": origin.how, **({"by": origin.by} if origin.by else {}), **_unit(path)}
    return figure | ({"median": said, "spread": origin.spread} if origin.how == "measured" else {"value": said})


def _unit(path: str) -> dict[str, str]:
    name = path.rpartition(".")[2]
    return {"unit": _UNITS[name]} if name in _UNITS else {}


def read_chip(path: str | Path) -> Chip:
    """Read the chip that `weft doctor --measure` wrote to `path`.

    Raises:
        MissingFileError: there is no such file.
        FileError: it cannot be read, is no such file or one of another version, or a figure is missing, unknown or impossible.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(f"there is no file {path}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not text", todo=_TODO) from error
    return _Reader(str(path)).chip(text)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the parts of the file called `file`; every error names the place in it."""

    file: str

    def refuse(self, why: str) -> NoReturn:
        raise FileError(f"{self.file} describes no chip: {why}", todo=_TODO)

    def chip(self, text: str) -> Chip:
        try:
            found: object = json.loads(text, object_pairs_hook=self.once, parse_constant=self.no_number)
        except (ValueError, RecursionError) as error:
            self.refuse(f"it is not JSON: {error}")
        if not isinstance(found, dict) or cast("dict[str, object]", found).get("format") != FORMAT:
            self.refuse(f'it does not say "format": "{FORMAT}"')
        body = dict(cast("dict[str, object]", found))
        version = body.get("version")
        if type(version) is not int or version != VERSION:
            self.refuse(f"it is of version {version!r}; this weft reads version {VERSION}")
        for name in ("date", "machine"):
            self.text(body.get(name), name)
        kept = {name: held for name, held in body.items() if name not in {"format", "version", "date", "machine"}}
        chip = self.parts(Chip, kept, "", levels=self.levels, matrix=self.units, vector=self.rates)
        if DType.float32 not in chip.vector:
            self.refuse("vector has no float32")
        return chip

    def once(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self.refuse(f"a name appears twice among {', '.join(name for name, _ in pairs)}")
        return found

    def no_number(self, said: str) -> NoReturn:
        self.refuse(f"{said} is no figure")

    def parts(self, kind: type[T], found: object, place: str, **readers: Callable[[object], object]) -> T:
        """Read a `kind`: its name is text, parts with `readers` are read by them, and everything else is a figure."""
        at = f"{place}." if place else ""
        names = [entry.name for entry in fields(cast("Any", kind))]
        held = self.object(found, place or "the file", set(names))
        values: dict[str, object] = {}
        for name in names:
            if name == "name":
                values[name] = self.text(held[name], at + name)
            else:
                values[name] = readers[name](held[name]) if name in readers else self.figure(held[name], at + name)
        return kind(**values)

    def object(self, found: object, place: str, names: set[str] | None = None) -> dict[str, object]:
        if not isinstance(found, dict):
            self.refuse(f"{place} is {found!r}, not an object")
        held = cast("dict[str, object]", found)
        if names is not None and (missing := sorted(names - held.keys())):
            self.refuse(f"{place} lacks {', '.join(missing)}")
        if names is not None and (unknown := sorted(held.keys() - names)):
            self.refuse(f"{place} has unknown fields: {', '.join(unknown)}")
        return held

    def text(self, found: object, place: str) -> str:
        return found if isinstance(found, str) and found else self.refuse(f"{place} is {found!r}, not a text")

    def levels(self, found: object) -> tuple[ChipLevel, ...]:
        if not isinstance(found, list) or not found:
            self.refuse("levels is not a list of at least one")
        said = enumerate(cast("Sequence[object]", found))
        levels = tuple(self.parts(ChipLevel, held, f"levels[{number}]") for number, held in said)
        if len({level.name for level in levels}) < len(levels):
            self.refuse("two levels have one name")
        return levels

    def by_type(self, found: object, place: str, read: Callable[[object, str], T]) -> dict[DType, T]:
        held = self.object(found, place)
        if unknown := sorted(held.keys() - DType.__members__.keys()):
            self.refuse(f"{place} has unknown types: {', '.join(unknown)}")
        return {DType[name]: read(said, f"{place}.{name}") for name, said in held.items()}

    def units(self, found: object) -> dict[DType, MatrixUnit]:
        return self.by_type(found, "matrix", lambda said, place: self.parts(MatrixUnit, said, place))

    def rates(self, found: object) -> dict[DType, float]:
        return self.by_type(found, "vector", lambda said, place: cast("float", self.figure(said, place)))

    def figure(self, found: object, place: str) -> object:
        """Read one figure: of the kind that its name in `Chip` stands for."""
        how = self.object(found, place).get("how")
        if how not in ("measured", "system", "published"):
            self.refuse(f'{place} does not say whether it is "measured", "system" or "published"')
        unit = _unit(place)
        names = {"how", *unit, *(("median", "spread") if how == "measured" else ("value",))}
        held = self.object(found, place, names | ({"by"} & self.object(found, place).keys()))
        if unit and held["unit"] != unit["unit"]:
            self.refuse(f"{place} is in {held['unit']!r}; this weft reads it in {unit['unit']!r}")
        if how == "measured":
            self.number(held["spread"], f"{place}.spread", may_be_0=True)
        return self.value(held["median" if how == "measured" else "value"], place)

    def value(self, said: object, place: str) -> object:
        name = place.rpartition(".")[2]
        match name:
            case "left" | "right" | "result":
                if not isinstance(said, str) or said not in OnChip.__members__:
                    self.refuse(f"{place} is {said!r}, none of {', '.join(OnChip.__members__)}")
                return OnChip[said]
            case "producers":
                return said if isinstance(said, bool) else self.refuse(f"{place} is {said!r}, neither true nor false")
            case "bytes" if said == _ENDLESS:
                return math.inf
            case _:
                number = self.number(said, place, may_be_0=name in _MAY_BE_0)
                if not isinstance(number, int) and name not in _MAY_BE_BROKEN:
                    self.refuse(f"{place} is {said!r}, not a whole number")
                return number

    def number(self, said: object, place: str, *, may_be_0: bool) -> float:
        if isinstance(said, bool) or not isinstance(said, int | float) or not abs(said) < _MOST:
            self.refuse(f"{place} is {said!r}, not a number")
        if said < 0 or (said == 0 and not may_be_0):
            self.refuse(f"{place} is {said!r}, which it cannot be")
        return said
