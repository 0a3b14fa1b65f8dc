"""Names of kernels for PyTorch's profiler: the user's functions and lines that a kernel computes."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from torch.profiler import record_function

from weft.errors import Location
from weft.run import forked
from weft.run.launch import Launcher

_MOST = 4
"""Functions that a name has, and lines of each."""


def named(kernel: str, places: Sequence[Location]) -> str:
    """Name a kernel by what it computes: `weft_m_0: Block.forward (model.py:10, 11)`; `kernel` is what it is called otherwise."""
    lines: dict[tuple[str, str], list[str]] = {}
    for place in places:
        found = lines.setdefault((function_at(place), Path(place.file).name), [])
        if str(place.line) not in found:
            found.append(str(place.line))
    said = [f"{name} ({file}:{_few(numbers)})" for (name, file), numbers in lines.items()]
    return f"{kernel}: {_few(said)}" if said else kernel


def _few(items: Sequence[str]) -> str:
    return ", ".join([*items[:_MOST], *(["..."] if len(items) > _MOST else [])])


def function_at(place: Location) -> str:
    """Find the function that a line is in, with its classes and the functions around it: `Block.forward`; "<module>" for none."""
    around = [name for name, first, last in _functions(place.file) if first <= place.line <= last]
    return ".".join(around) or "<module>"


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """List the functions and classes of a file, outer ones first: name, first and last line; none where it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_defined(tree))


def _defined(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno
        yield from _defined(node)


class Profiled:
    """Runs a plan while PyTorch's profiler is on: each launch is recorded under a name.

    Attributes:
        code: defines `run`, which calls launches by their names in `scope`.
        scope: what it names.
        launches: for each of the launches in `scope` the kernel's own name, and the lines that it computes.
    """

    def __init__(
        self, code: CodeType, scope: Mapping[str, Any], launches: Mapping[str, tuple[str, Sequence[Location]]]
    ) -> None:
        self.code, self.scope, self.launches = code, scope, launches

    def __call__(self, *arguments: Any) -> Any:
        """Take the graph's arguments, and give its outputs."""
        return self._run(*arguments)

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        own = {name: _recorded(self.scope[name], named(*of)) for name, of in self.launches.items()}
        scope = {**self.scope, **own}
        exec(self.code, scope)  # noqa: S102 - the runner's own text
        if "threads" in scope:
            forked.at_most_one_thread_in_children(scope["run"])
        return scope["run"]


def _recorded(launch: Launcher, name: str) -> Launcher:
    def call(*arguments: Any) -> Any:
        with record_function(name):
            return launch(*arguments)

    return call
