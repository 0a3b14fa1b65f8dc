"""The pictures of the guide are what `weft.lab.diagrams` draws now."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.draw import svg
from weft.lab.diagrams import DRAWN, drawn

FOLDER = Path(__file__).parents[2] / "docs/guide/diagrams"


@pytest.mark.parametrize("name", list(DRAWN))
def test_pictures_of_the_guide_are_up_to_date(name: str) -> None:
    """If not: make diagrams."""
    pictures = {file: svg(picture) for file, picture in drawn(name)}
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob(f"{name}-*.svg")} == pictures


def test_there_are_no_others() -> None:
    assert all(any(path.name.startswith(f"{name}-") for name in DRAWN) for path in FOLDER.glob("*.svg"))
