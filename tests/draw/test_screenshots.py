"""Screenshots of the guide: which there are, and that one command takes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import weft
from weft.draw import Prose, Section
from weft.errors import CommandError
from weft.lab import screenshots
from weft.lab.screenshots import SCREENSHOTS, Screenshot, chromium, take

FOLDER = Path(__file__).parents[2] / "docs/guide/reports"


def size_of(path: Path) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", head[16:24])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> weft.Report:
    """Take them of a report that is quickly made."""
    report = weft.Report((Section("roofline", (Prose("a"),)),))
    monkeypatch.setattr(screenshots, "example", lambda: report)
    return report


def test_the_guide_has_those_that_the_command_takes() -> None:
    """If not: make screenshots."""
    assert {path.name: size_of(path) for path in FOLDER.glob("*.png")} == {
        name: (picture.width, picture.height) for name, picture in SCREENSHOTS.items()
    }
    shown = (FOLDER.parent / "reports.md").read_text(encoding="utf-8")
    assert all(f"](reports/{name})" in shown for name in SCREENSHOTS)


def test_the_report_has_what_is_shown() -> None:
    titles = [title for title, _ in screenshots.example().sections]
    for picture in SCREENSHOTS.values():
        assert all(any(title.startswith(start) for title in titles) for start in picture.shown)


def test_the_command_takes_all_and_removes_others(small: weft.Report, tmp_path: Path) -> None:
    if chromium() is None:
        pytest.skip("there is no Chromium here: make browser installs one (Debian, Ubuntu)")
    (tmp_path / "old.png").touch()
    screenshots.main(tmp_path)
    assert {path.name: size_of(path) for path in tmp_path.iterdir()} == {
        name: (picture.width, picture.height) for name, picture in SCREENSHOTS.items()
    }
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()


def test_without_a_browser_it_says_what_to_do(
    small: weft.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screenshots, "chromium", lambda: None)
    (tmp_path / "light.png").write_bytes(b"old")
    with pytest.raises(CommandError, match="no Chromium") as raised:
        screenshots.main(tmp_path)
    assert "make browser" in raised.value.todo
    assert (tmp_path / "light.png").read_bytes() == b"old"
    monkeypatch.setattr(screenshots, "chromium", lambda: "false")
    with pytest.raises(CommandError, match="took no screenshot"):
        take(Screenshot(10, 10, ()), small, tmp_path / "new.png")
