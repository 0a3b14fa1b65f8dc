"""Chips in files come back whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.cost import CHIPS, read_chip
from weft.cost.chip import Chip
from weft.cost.chip_file import Origin, chip_json
from weft.errors import FileError, MissingFileError

MEASURED = {
    "levels.L2.bytes_per_second": Origin("measured", "reads", 0.02),
    "vector.float32": Origin("measured", "", 0.0),
}


def body(chip: Chip = CHIPS["MI300X"]) -> dict[str, Any]:
    return json.loads(json.dumps(chip_json(chip, MEASURED, Origin("published"), date="2026-01-01", machine="a rack")))


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_comes_back(name: str, tmp_path: Path) -> None:
    written = body(CHIPS[name])
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(written, allow_nan=False))
    assert read_chip(path) == CHIPS[name]


def test_each_figure_says_how_it_was_got() -> None:
    written = body()
    rate = CHIPS["MI300X"].level("L2").bytes_per_second
    assert written["levels"][2]["bytes_per_second"] == {
        "how": "measured",
        "by": "reads",
        "unit": "bytes/s",
        "median": rate,
        "spread": 0.02,
    }
    assert written["vector"]["float32"] == {"how": "measured", "unit": "operations/cycle", "median": 256, "spread": 0.0}
    assert written["hertz"] == {"how": "published", "unit": "Hz", "value": 2.1e9}
    assert written["warp"] == {"how": "published", "value": 64}


LOSSES = [
    (("version",), 1, "version 1; this weft reads version 2"),  # without units
    (("version",), 3, "version 3; this weft reads version 2"),
    (("version",), True, "version True"),
    (("format",), "weft", "format"),
    (("hertz",), None, "lacks hertz"),
    (("date",), None, "date"),
    (("more",), 1, "unknown fields: more"),
    (("levels", 1, "instances"), None, "levels[1] lacks instances"),
    (("levels", 1, "name"), "L2", "two levels have one name"),
    (("levels",), [], "levels is not a list"),
    (("matrix", "int8", "rows"), None, "matrix.int8 lacks rows"),
    (("matrix", "int8", "rows", "value"), 1.5, "matrix.int8.rows is 1.5, not a whole number"),
    (("matrix", "int8", "left", "value"), "disk", "matrix.int8.left is 'disk'"),
    (("matrix", "int9"), {}, "matrix has unknown types: int9"),
    (("vector", "float32"), None, "vector has no float32"),
    (("vector", "float32", "median"), None, "vector.float32 lacks median"),
    (("vector", "float32", "spread"), -1, "vector.float32.spread is -1"),
    (("vector", "float32", "how"), "guessed", "vector.float32 does not say whether"),
    (("hertz", "unit"), "GHz", "hertz is in 'GHz'; this weft reads it in 'Hz'"),
    (("hertz", "unit"), None, "hertz lacks unit"),
    (("warp", "unit"), "threads", "warp has unknown fields: unit"),
    (("levels", 1, "bytes", "unit"), "KiB", "levels[1].bytes is in 'KiB'"),
    (("vector", "float32", "unit"), "FLOP/s", "vector.float32 is in 'FLOP/s'"),
    (("hertz", "value"), "2.1e9", "hertz is '2.1e9', not a number"),
    (("hertz", "value"), True, "hertz is True, not a number"),
    (("hertz", "value"), 0, "hertz is 0, which it cannot be"),
    (("hertz", "value"), 10**400, "not a number"),
    (("hertz", "value"), float("inf"), "Infinity is no figure"),
    (("hertz", "value"), "infinite", "hertz is 'infinite'"),
    (("producers", "value"), 1, "producers is 1"),
]


@pytest.mark.parametrize(("place", "value", "said"), LOSSES, ids=[said for *_, said in LOSSES])
def test_a_bad_file_is_refused(place: tuple[Any, ...], value: Any, said: str, tmp_path: Path) -> None:
    """`value` at `place`; None: nothing there."""
    written = body()
    held: Any = written
    for name in place[:-1]:
        held = held[name]
    if value is None:
        del held[place[-1]]
    else:
        held[place[-1]] = value
    (tmp_path / "chip.json").write_text(json.dumps(written))
    with pytest.raises(FileError) as raised:
        read_chip(tmp_path / "chip.json")
    assert said in raised.value.what
    assert raised.value.todo == "measure again with weft doctor --measure FILE.json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "format"),
        (b"\xff", "not text"),
        (b'{"format": "weft chip", "format": "weft chip"}', "appears twice"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_chip_at_all_is_refused(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "chip.json").write_bytes(text)
    with pytest.raises(FileError, match=said):
        read_chip(tmp_path / "chip.json")
    with pytest.raises(MissingFileError):
        read_chip(tmp_path / "gone.json")
