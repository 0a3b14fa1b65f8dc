"""Choices in the cache: taken for what they were made for, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from weft.options import Options
from weft.plan.kept import keep, recalled
from weft.plan.packed import packed
from weft.plan.partition import Call, Cut
from weft.run.cache import CacheFolder
from weft.run.key import cache_key

CUT = Cut((Call("sort_1", ("x",), ("y",)),))
OWN, OTHER = {"chosen": "cuts", "program": "y = sort(x)"}, {"chosen": "cuts", "program": "y = sort(x + 1)"}


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path / "cache"))
    keep(OWN, CUT, options, meta={"said": 1})
    assert recalled(OWN, Cut, options) == (CUT, {"said": 1})
    assert recalled(OTHER, Cut, options) is None


@pytest.mark.parametrize("parts", [OTHER, {**OWN, "more": ""}, {}])
def test_what_was_made_for_another_program_is_not_taken(tmp_path: Path, parts: Mapping[str, str]) -> None:
    """Whole, of the right kind, under the right key."""
    options = Options(cache_dir=str(tmp_path / "cache"))
    CacheFolder(options.cache_dir).store(cache_key(OWN), {"chosen.json": packed(CUT)}, parts=parts)
    assert recalled(OWN, Cut, options) is None
    keep(OWN, CUT, options)
    assert recalled(OWN, Cut, options) is not None
