"""What each kind of addition touches, as docs/extending.md says; the examples of the page run with the other pages'."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch

import weft
from testkit.extending import SOURCES, added_row, files_that_name
from weft.block import ranges
from weft.pipeline import EXTENSION, INSTEAD, PASSES, PRIORITY
from weft.tensor import optable
from weft.tensor.optable import DERIVED, DerivedRow

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"


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


def test_all_operators_together_touch_a_hundred_and_seventy_three() -> None:
    listed = ("Rank", "Collapse", "Dot", "Pointwise", "Fill", "Stage", "Join", "Index")
    assert sum(len(files_that_name(name)) for name in listed) <= 173


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
    rows = re.findall(r"^\| `.*$", section("A block operator"), re.MULTILINE)
    named = {path.removeprefix("src/weft/") for row in rows for path in re.findall(r"`(src/weft/[\w./]+\.py)`", row)}
    assert named == set(files_that_name("Rank"))


def section(title: str) -> str:
    """A section of the page."""
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    """The examples of a section in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)


def with_lines(text: str, diff: str) -> str:
    """The text with the added line of each piece of `diff` beside the other line of the piece, which stands in it once."""
    for piece in diff.strip("\n").split("\n\n"):
        (old,) = (line[1:] for line in piece.splitlines() if line.startswith(" "))
        assert f"\n{text}".count(f"\n{old}\n") == 1, old
        text = text.replace(f"{old}\n", "".join(f"{line[1:]}\n" for line in piece.splitlines()))
    return text


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and the tests, with the page's law and rule added as the page says."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    order = copy / "src/weft/pipeline/order.py"
    for title in ("A law", "A rule"):
        for diff in blocks(title, "diff"):
            order.write_text(with_lines(order.read_text(), diff))
        for block in blocks(title, "python"):
            path = re.match(r"# ([\w/]+\.py)\n", block)
            if path is not None:
                own = "from weft.fuse.compute_once import compute_once\n" if path[1].startswith("tests/") else ""
                (copy / path[1]).write_text(own + block.removeprefix(path[0]))
    return copy


def ran(folder: Path, *command: str) -> str:
    """Return what a command of Python prints in a checkout."""
    path = os.pathsep.join(str(folder / name) for name in ("src", "tests"))
    environment = {**os.environ, "PYTHONPATH": path, "WEFT_MEASURE": "never"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_pages_law_and_rule_touch_their_own_files_and_the_list_and_the_rule_passes_its_test(checkout: Path) -> None:
    files = ("tests/test_extending.py", "tests/fuse/test_compute_once.py")
    wanted = "(a_pass_touches and (compute_once or drop_double_negation)) or test_compute_once"
    assert "5 passed" in ran(checkout, "-m", "pytest", "-q", *files, "-k", wanted)


def test_the_pages_law_is_applied_to_every_graph_before_equal_values_are_merged(checkout: Path) -> None:
    code = "from weft.pipeline import LAWS, PASSES; print(*(law.name for law in LAWS)); print('compute_once' in PASSES)"
    assert re.search(r" drop_double_negation merge_equal .*\nTrue$", ran(checkout, "-c", code).strip())


def test_the_pages_files_are_in_the_style_of_the_house(checkout: Path) -> None:
    files = ("fuse/compute_once.py", "tensor/laws/drop_double_negation.py")
    for command in (("check",), ("format", "--check")):
        ran(checkout, "-m", "ruff", *command, *(f"src/weft/{file}" for file in files))


@pytest.fixture
def doubled() -> Callable[[torch.Tensor], torch.Tensor]:
    """An operation that weft has no row for."""

    @torch.library.custom_op("weft_tests::doubled", mutates_args=())
    def own(x: torch.Tensor) -> torch.Tensor:
        return x + x

    own.register_fake(torch.empty_like)
    return own


def test_an_added_row_goes_when_the_with_ends(doubled: Callable[[torch.Tensor], torch.Tensor]) -> None:
    row = DerivedRow("doubled", ("weft_tests.doubled",), ("real",), "x + x")
    x = (torch.rand(3),)
    with added_row(row):
        assert weft.optimize(doubled, x).fallbacks == ()
    assert len(weft.optimize(doubled, x).fallbacks) == 1


def test_a_row_that_another_one_took_the_place_of_comes_back() -> None:
    before = optable.derived("aten.sigmoid")
    assert before is not None
    other = DerivedRow("negated", ("aten.sigmoid",), ("real",), "-x")
    with added_row(other):
        with added_row(again := replace(other, name="again")):
            assert optable.derived("aten.sigmoid") is again
        assert optable.derived("aten.sigmoid") is other
    assert optable.derived("aten.sigmoid") is before


def test_a_row_goes_when_what_is_done_with_it_fails() -> None:
    before = optable.derived("aten.sigmoid")
    with pytest.raises(ZeroDivisionError), added_row(DerivedRow("negated", ("aten.sigmoid",), ("real",), "-x")):
        raise ZeroDivisionError
    assert optable.derived("aten.sigmoid") is before
