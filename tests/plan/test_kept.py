"""Choices in the cache: taken for what they were made for, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import weft
from weft.plan.partition.partition import Cut, TorchCall
from weft.plan.targets.kept import keep, recalled
from weft.plan.targets.packed import packed
from weft.run.cache import CacheFolder
from weft.run.key import cache_key

CUT = Cut((TorchCall("sort_1", ("x",), ("y",)),))
OWN, OTHER = {"chosen": "cuts", "program": "y = sort(x)"}, {"chosen": "cuts", "program": "y = sort(x + 1)"}


@pytest.fixture
def _folder(tmp_path: Path) -> Iterator[None]:
    with weft.options(cache_dir=tmp_path / "cache"):
        yield


@pytest.mark.usefixtures("_folder")
def test_what_was_kept_comes_back() -> None:
    keep(OWN, CUT, meta={"said": 1})
    assert recalled(OWN, Cut) == (CUT, {"said": 1})
    assert recalled(OTHER, Cut) is None


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("parts", [OTHER, {**OWN, "more": ""}, {}])
def test_what_was_made_for_another_program_is_not_taken(parts: Mapping[str, str]) -> None:
    """Whole, of the right kind, under the right key."""
    CacheFolder().store(cache_key(OWN), {"chosen.json": packed(CUT)}, parts=parts)
    assert recalled(OWN, Cut) is None
    keep(OWN, CUT)
    assert recalled(OWN, Cut) is not None
