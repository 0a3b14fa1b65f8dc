"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import importlib
import logging
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from testkit.files import index
from weft.options import Options, variable_of

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
DOCS = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
LONGEST_FUNCTION = 61
LONGEST_FILE = 500

# Each word is cut in two so that this file does not hold it: folders of one machine, words about
# how the work was organised, and addresses of registries have no place in the project.
FORBIDDEN = re.compile(
    "|".join(
        a + b
        for a, b in [
            (r"(?<![\w.}-])/wo", r"rk/"),
            (r"/ro", r"ot/"),
            (r"/ho", r"me/\w"),
            (r"/tmp/d", r"ev|/tmp/we" + r"ft"),
            (r"\.lib", r"rary/"),
            (r"DEVEL", r"OPERS\.md"),
            (r"(?:this|that|earlier|previous|next|helper|lead's) ses", r"sion\b"),
            (r"\bissue ", r"#?\d"),
            (r"pypi\.", r"org|pythonhosted\.org"),
            (r"download\.py", r"torch\.org"),
            (r"npm", r"js\.(?:org|com)"),
        ]
    )
)


def _files_of_the_project() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_speaks_of_where_or_by_whom_it_was_written() -> None:
    files = _files_of_the_project()
    assert ROOT / "pyproject.toml" in files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if (match := FORBIDDEN.search(line))
    ]
    assert found == []


def test_each_folder_says_what_it_is() -> None:
    folders = {path.parent for path in SOURCES}
    assert folders
    silent = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").exists()
        or ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) is None
    ]
    assert silent == []


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= LONGEST_FUNCTION
    ]
    assert long == []


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    files = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


@pytest.mark.parametrize("name", DOCS)
def test_paths_in_the_docs_exist(name: str) -> None:
    """A path in backticks, or a relative link, names something in the repository."""
    text = (ROOT / name).read_text()
    bare = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paths = re.findall(r"`([\w./-]+(?:\.(?:py|md|h|toml|yaml)|/))`", bare)
    paths += re.findall(r"\]\((?!\w+:|#)([^)#]+)", bare)
    bases = [ROOT, ROOT / "src/weft", (ROOT / name).parent]
    gone = [path for path in paths if not any((base / path).exists() for base in bases)]
    assert gone == []


def test_the_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/README.md").read_text()))
    pages = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "decisions"}
    assert pages - linked == {"README.md"}


def test_every_file_says_in_a_line_what_it_is_for() -> None:
    listed = index()
    assert len(listed) == len(SOURCES)
    assert [name for name, said in listed.items() if not said.endswith((".", ":", ";")) and len(said) < 20] == []
    fuse = index(["fuse"])
    assert fuse == {name: said for name, said in listed.items() if name.startswith("fuse/")}


def test_make_targets_in_the_readme_exist() -> None:
    named = set(re.findall(r"`?make ([a-z]+)\b`?", (ROOT / "README.md").read_text()))
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= made


def test_the_readme_lists_every_option() -> None:
    text = (ROOT / "README.md").read_text()
    variables = [variable_of(entry.name) for entry in fields(Options)]
    assert [variable for variable in variables if f"`{variable}`" not in text] == []


def test_entry_points_lead_somewhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    backends = project["entry-points"]["torch_dynamo_backends"]
    for point in [*project["scripts"].values(), *backends.values()]:
        module, _, name = point.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), point


def test_what_tests_share_is_named_unlike_a_room() -> None:
    """Only `testkit` and test files lie under tests/, so that PYTHONPATH=src:tests lets nobody import what is named like a room."""
    tests = ROOT / "tests"
    kept = [path for path in sorted(tests.rglob("*.py")) if "testkit" not in path.relative_to(tests).parts]
    shared = [str(path) for path in kept if not path.name.startswith("test_") and path.name != "conftest.py"]
    assert shared == []
    folders = {path.name for path in tests.iterdir() if path.is_dir()} - {"testkit"}
    meant = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.module}"
        for path in [*tests.rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in folders
    ]
    assert meant == []


def test_the_log_of_a_failing_test_has_warnings_but_no_traces(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("weft_tests.traces")
    logger.setLevel(logging.DEBUG)
    logger.debug("a page of what PyTorch traces")
    logger.warning("something is wrong")
    assert caplog.messages == ["something is wrong"]


# Emitters mirror each other, and so do a node of a tensor program and of a block program.
NAMED_TWICE = {"Body", "Bounds", "Constant", "Extent", "Frame", "Json", "Scope", "Text", "Value", "Writer"}


def test_a_word_names_one_class() -> None:
    """Public classes and type aliases: where two of one name are needed, both get a longer one."""
    named: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.ClassDef(name=name) | ast.AnnAssign(ast.Name(name), ast.Name("TypeAlias")):
                    named.setdefault(name, []).append(str(path.relative_to(ROOT)))
                case _:
                    pass
    doubled = {name: files for name, files in named.items() if len(files) > 1 and not name.startswith("_")}
    assert {name: files for name, files in doubled.items() if name not in NAMED_TWICE} == {}
    assert doubled.keys() >= NAMED_TWICE, "named once now: no exception is needed"
