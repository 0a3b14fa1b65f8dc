"""What each kind of addition touches, as docs/extending.md says; the examples of the page run with the other pages'."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch

import weft
from testkit.extending import SOURCES, added_row, files_that_name
from weft.block import ranges
from weft.pipeline import EXTENSION, INSTEAD, PASSES, PRIORITY
from weft.tensor.optable import DERIVED, DerivedRow
from weft.tensor.scalar import apply

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


@cache
def texts(*suffixes: str) -> dict[Path, str]:
    """The package's files of these kinds, by path."""
    return {path: path.read_text() for path in SOURCES.rglob("*") if path.suffix in suffixes}


@pytest.mark.parametrize("name", ["Rank", "Fill", "Stage", "Join"])
def test_a_block_operator_that_rules_do_not_match_touches_twelve_files(name: str) -> None:
    assert 2 <= len(files_that_name(name)) <= 12


@pytest.mark.parametrize("name", sorted(each.__name__ for each in get_args(ranges.Range) if each is not ranges.All))
def test_a_range_touches_eight_files(name: str) -> None:
    assert 2 <= len(files_that_name(name)) <= 8


def test_all_operators_together_touch_a_hundred_and_sixty() -> None:
    listed = ("Rank", "Collapse", "Dot", "Pointwise", "Fill", "Stage", "Join", "Index")
    assert sum(len(files_that_name(name)) for name in listed) <= 160


def test_a_derived_operation_touches_one_file() -> None:
    text = texts(".py", ".h")
    for row in DERIVED:
        if row.name in ("log_ndtr", "hardswish", "mish", "softshrink"):
            named = {p.name for p, t in text.items() if re.search(rf"\b{row.name}\b", t) and "fuzz" not in p.parts}
            assert named == {"derived.py"}, row.name


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_touches_its_own_file_and_the_list(name: str) -> None:
    text = texts(".py")
    own = [p for p, t in text.items() if re.search(rf"^def {name}\(", t, re.MULTILINE) and "@" in t]
    listed = text[SOURCES / "pipeline" / "order.py"]
    assert own
    assert re.search(rf"\b{name}\b", listed)
    if name in {rule.name for rule in (*PRIORITY, *EXTENSION, *INSTEAD)}:
        named = re.compile(rf"\b(?<!fuse\.){name}\b")
        assert {p.relative_to(SOURCES).as_posix() for p, t in text.items() if named.search(t)} == {
            f"fuse/{name}.py",
            "pipeline/order.py",
        }


def test_a_target_is_a_folder_and_a_line() -> None:
    classes = {"Cpp": "plan/targets/cpp/", "TritonGpu": "plan/targets/triton/"}
    for name, folder in classes.items():
        outside = [file for file in files_that_name(name) if not file.startswith(folder)]
        assert outside == ["plan/targets/__init__.py"]


def test_the_table_of_files_names_what_names_the_operator() -> None:
    section = PAGE.read_text().partition("\n## A block operator\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `.*$", section, re.MULTILINE)
    named = {path.removeprefix("src/weft/") for row in rows for path in re.findall(r"`(src/weft/[\w./]+\.py)`", row)}
    assert named == set(files_that_name("Rank"))


def test_an_added_row_goes_when_the_with_ends() -> None:
    row = DerivedRow("entr", ("aten.special_entr",), ("positive",), lambda x: apply("neg", x))
    x = (torch.rand(3),)
    with added_row(row):
        assert weft.optimize(torch.special.entr, x).fallbacks == ()
    assert len(weft.optimize(torch.special.entr, x).fallbacks) == 1
