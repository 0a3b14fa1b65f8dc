"""Takes the screenshots of `docs/guide/reports.md`: `python -m weft.lab.screenshots docs/guide/reports`.

The report is of attention for a GPU that need not be there, by the model's choice, so that it says the same on any machine. They
are taken with Chromium, without a window.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from weft.api.optimize import optimize
from weft.api.report import Report
from weft.draw import Section
from weft.draw.page import page
from weft.errors import CommandError
from weft.lab.diagrams import DRAWN

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_CHIP = "H100 SXM"
_SCHEDULE = "concrete schedule of"


@dataclass(frozen=True, slots=True)
class Screenshot:
    """One picture.

    Attributes:
        width, height: in pixels.
        shown: how the titles of those sections begin that are unfolded beside what always is.
        dark: the system's colours are dark.
        alone: only these sections are on the page.
    """

    width: int
    height: int
    shown: tuple[str, ...]
    dark: bool = False
    alone: bool = False


SCREENSHOTS: Mapping[str, Screenshot] = {
    "light.png": Screenshot(1000, 1300, ("roofline",)),
    "dark.png": Screenshot(1000, 1300, ("roofline",), dark=True),
    "phone.png": Screenshot(390, 1300, ("roofline",)),
    "schedule.png": Screenshot(1100, 1660, (_SCHEDULE,), alone=True),
}
"""By the names of their files."""


def chromium() -> str | None:
    """Find a browser to take them with, and for tests: its path, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def take(picture: Screenshot, report: Report, path: Path) -> None:
    """Write a screenshot of `report` to `path`.

    Raises:
        CommandError: there is no Chromium, or it failed.
    """
    browser = chromium()
    if browser is None:
        raise CommandError("there is no Chromium here", todo="make browser installs one (Debian, Ubuntu)")
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder, "report.html")
        held.write_text(page(_sections(picture, report), "What weft made of your function"), encoding="utf-8")
        command = (
            browser, *_FLAGS, *(("--force-dark-mode",) if picture.dark else ()), f"--user-data-dir={folder}/profile",
            f"--window-size={picture.width},{picture.height}", f"--screenshot={path.resolve()}", held.as_uri(),
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode or not path.is_file():
            raise CommandError(f"{browser} took no screenshot: {done.stderr.strip()[-500:]}", todo="run it by hand")


def example() -> Report:
    """Write the report that is shown."""
    function, sizes = DRAWN["attention"]
    inputs = function.inputs(sizes, torch.bfloat16, 0)
    program = optimize(function.make(sizes), inputs, target="cuda:90", effort="none", judge="off")
    return program.explain(_CHIP)


def _sections(picture: Screenshot, report: Report) -> tuple[Section, ...]:
    """Unfold what the picture shows."""
    shown = [part for part in report.parts if part.title.startswith(picture.shown)]
    parts = shown if picture.alone else report.parts
    return tuple(replace(part, level=1) if part in shown else part for part in parts)


def main(folder: Path) -> None:
    """Take all of them, and remove others that are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    report = example()
    for name, picture in SCREENSHOTS.items():
        take(picture, report, folder / name)
    for old in folder.glob("*.png"):
        if old.name not in SCREENSHOTS:
            old.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
