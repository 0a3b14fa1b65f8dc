"""The documents' examples run, and print what they say.

Every ```python block of a page runs, in order, in one namespace; a ```text block right after one shows all that it prints. A
```console block holds commands of `weft` (lines that begin with "$ "), each with all that it prints. "..." stands for any text.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft import errors
from weft.cli.main import main
from weft.errors import WeftError
from weft.run import stats

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# With something to run: a page without examples cannot be wrong about them.
PAGES = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if {"python", "console"}.intersection(language for language, _ in _BLOCK.findall(path.read_text()))
]


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, text, the line it begins in, and whether only space lies before it and the last."""

    language: str
    text: str
    line: int
    follows: bool


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(match[1], match[2], line, not text[end : match.start()].strip()))
        end = match.end()
    return found


def executed(page: str, text: str) -> list[str]:
    """Runs a page; what was printed otherwise than the page says."""
    namespace: dict[str, object] = {"__name__": "page"}
    wrong: list[str] = []
    printed = ""
    # The lines of the page's other text are empty in what Python sees: errors then name the page's own lines.
    lines = ["\n"] * text.count("\n")
    for block in blocks(text):
        if block.language == "python":
            lines[block.line - 1 : block.line - 1 + block.text.count("\n")] = block.text.splitlines(keepends=True)
    linecache.cache[page] = (len(text), None, lines, page)
    for block in blocks(text):
        if block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)
            printed = out.getvalue()
        elif block.language == "text" and block.follows:
            wrong += differing(page, block.line, block.text, printed)
        elif block.language == "console":
            for command, said in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
                assert command.startswith("weft "), command
                result = CliRunner().invoke(main, shlex.split(command)[1:])
                assert result.exit_code == 0, result.output
                wrong += differing(page, block.line, said, result.output)
    return wrong


def differing(page: str, line: int, said: str, printed: str) -> list[str]:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if doctest.OutputChecker().check_output(said, printed, flags):
        return []
    return [f"{page}:{line} says\n{said}but this was printed\n{printed}"]


@pytest.mark.parametrize("page", PAGES)
def test_examples_run_and_print_what_the_page_says(page: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_JUDGE", "first")
    monkeypatch.setattr(stats, "_PROCESS", stats.Counters())  # a page counts from the beginning of a process
    monkeypatch.chdir(tmp_path)
    assert executed(page, (ROOT / page).read_text()) == []


def test_a_wrong_example_is_noticed() -> None:
    page = "# T\n\n```python\nprint('a\\nbc')\n```\n\n```text\na\n...c\n```\n"
    assert executed("page.md", page) == []
    assert len(executed("page.md", page.replace("...c", "...d"))) == 1
    assert executed("page.md", page.replace("```\n\n```text", "```\nNot output:\n```text").replace("...c", "d")) == []
    assert len(executed("page.md", "```console\n$ weft cache path\n/nowhere\n```\n")) == 1
    with pytest.raises(ZeroDivisionError) as error:
        executed("page.md", page.replace("print('a\\nbc')", "1 / 0"))
    assert error.traceback[-1].path == Path("page.md") or str(error.traceback[-1].path).endswith("page.md")
    assert error.traceback[-1].lineno == 3  # from 0


def test_troubleshooting_tells_of_every_error() -> None:
    text = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
    named = {k for k, v in vars(errors).items() if isinstance(v, type) and issubclass(v, WeftError)} - {"WeftError"}
    assert {name for name in named if f"\n## {name}\n" not in text} == set()
