"""Packages import their exports when they are first asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from weft.lazy import export_lazily

SOURCES = Path(weft.__file__).parent
LAZY = sorted(
    ".".join(("weft", *path.relative_to(SOURCES).parent.parts))
    for path in SOURCES.rglob("__init__.py")
    if "\nexport_lazily(__name__)\n" in path.read_text()
)


def _imported(package: str) -> list[tuple[str, str, str]]:
    """List what the source of `package` imports under `TYPE_CHECKING`: its name there, the module, the name in that."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text())
    blocks = [each for each in tree.body if isinstance(each, ast.If)]
    assert blocks
    statements = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return [(a.asname or a.name, str(each.module), a.name) for each in statements for a in each.names]


def _in_a_new_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rooms_are_lazy() -> None:
    assert {"weft", "weft.block", "weft.capture", "weft.cost", "weft.plan", "weft.verify"} <= set(LAZY)


@pytest.mark.parametrize("package", LAZY)
def test_exports_are_what_the_source_says(package: str) -> None:
    room = importlib.import_module(package)
    imported = _imported(package)
    assert {name for name, *_ in imported} <= set(room.__all__) <= set(dir(room))
    for name, module, original in imported:
        assert getattr(room, name) is getattr(importlib.import_module(module), original), name
    assert [name for name in room.__all__ if isinstance(getattr(room, name), ModuleType)] == (
        ["errors"] if package == "weft" else []
    )


def test_what_is_listed_is_what_is_exported() -> None:
    """For `dir`, what completes names at a prompt, `import *` and `help`, after submodules were imported too."""
    program = """
import pydoc
import rlcompleter
import weft
import weft.block, weft.draw, weft.plan, weft.verify

assert dir(weft) == sorted(weft.__all__), dir(weft)
assert dir(weft.block) == sorted(weft.block.__all__), dir(weft.block)

completer = rlcompleter.Completer({"weft": weft})
found = set()
while (name := completer.complete("weft.", len(found))) is not None:
    found.add(name.partition(".")[2].rstrip("()"))
assert found == {name for name in weft.__all__ if not name.startswith("_")}, found

taken = {}
exec("from weft import *", taken)
assert taken.keys() - {"__builtins__"} == set(weft.__all__), taken.keys()

text = pydoc.render_doc(weft, renderer=pydoc.plaintext)
assert weft.__doc__.splitlines()[0].partition(": ")[2] in text
for name in ("class Program", "class Verdict", "compile(model", "optimize(", "stats(", "PACKAGE CONTENTS"):
    assert name in text, name
for name in ("TYPE_CHECKING", "import_module", "uncollected"):
    assert name not in text, name
"""
    _in_a_new_process(program)


def test_a_submodule_never_hides_the_export_of_its_name() -> None:
    """Many functions are called like the file that they are in, which may be imported before or after them."""
    namesakes = [
        (package, name, module)
        for package in LAZY
        for name, module, original in _imported(package)
        if name == original and SOURCES.joinpath(*package.split(".")[1:], f"{name}.py").exists()
    ]
    assert ("weft.verify", "judge", "weft.verify.judge") in namesakes
    program = f"""
import importlib
import sys
for package, name, module in {namesakes}:
    importlib.import_module(f"{{package}}.{{name}}")
    found = getattr(importlib.import_module(package), name)
    assert found is getattr(importlib.import_module(module), name), (package, name)
"""
    _in_a_new_process(program)


def test_what_is_no_export_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match=r"module 'weft\.block' has no attribute 'blocks'"):
        _ = importlib.import_module("weft.block").blocks
    with pytest.raises(ImportError, match="cannot import name 'blocks'"):
        exec("from weft.block import blocks")


def test_an_export_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    room = importlib.import_module("weft.block")
    before = room.lower
    monkeypatch.setattr("weft.block.lower", "another")
    assert room.lower == "another"
    monkeypatch.undo()
    assert room.lower is before


def test_threads_may_ask_at_the_same_time() -> None:
    program = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import weft

sys.setswitchinterval(1e-6)
names = [name for name in weft.__all__ if name not in vars(weft)]
assert len(names) > 8
barrier = Barrier(4 * len(names))

def asked(name):
    barrier.wait()
    return getattr(weft, name)

with ThreadPoolExecutor(4 * len(names)) as threads:
    found = list(threads.map(asked, 4 * names))
assert all(each is getattr(weft, name) for each, name in zip(found, 4 * names, strict=True))
"""
    _in_a_new_process(program)


def test_importing_weft_registers_its_cache_artifacts() -> None:
    """`torch.compiler.load_cache_artifacts` may be called before anything is compiled."""
    _in_a_new_process("""
import weft
from torch.compiler._cache import CacheArtifactFactory
assert CacheArtifactFactory.create("weft", "key", b"content").key == "key"
""")


def test_a_package_is_lazy_that_is_written_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports are neither made before they are asked for, nor when others are; an imported name may be another one's alias."""
    folder = tmp_path / "lazily_made"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from weft.lazy import export_lazily\n"
        "if TYPE_CHECKING:\n"
        "    from lazily_made.first import first, old as new\n"
        "    from lazily_made.second import second\n"
        "__all__ = ['first', 'new', 'second']\n"
        "export_lazily(__name__)\n"
    )
    (folder / "first.py").write_text("first, old = 1, 2\n")
    (folder / "second.py").write_text("second = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    made: Any = importlib.import_module("lazily_made")
    loaded = lambda: {name for name in sys.modules if name.startswith("lazily_made.")}  # noqa: E731
    assert not loaded()
    assert (made.new, loaded()) == (2, {"lazily_made.first"})
    assert (made.first, made.second) == (1, 3)
    assert export_lazily.__doc__ is not None
