"""Names of kernels for PyTorch's profiler: the user's functions and lines that a kernel computes."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
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
        on_gpu: names are to stand above the kernels on a GPU's line of time too.
    """

    def __init__(
        self,
        code: CodeType,
        scope: Mapping[str, Any],
        launches: Mapping[str, tuple[str, Sequence[Location]]],
        *,
        on_gpu: bool,
    ) -> None:
        self.code, self.scope, self.launches, self.on_gpu = code, scope, launches, on_gpu

    def __call__(self, *arguments: Any) -> Any:
        """Take the graph's arguments, and give its outputs."""
        return self._run(*arguments)

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        own = {name: _recorded(self.scope[name], self._span(named(*of))) for name, of in self.launches.items()}
        scope = {**self.scope, **own}
        exec(self.code, scope)  # noqa: S102 - the runner's own text
        if "threads" in scope:
            forked.at_most_one_thread_in_children(scope["run"])
        return scope["run"]

    def _span(self, name: str) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes a span of that name."""
        # PyTorch's own compiler records its kernels so: in 0.5 us, where the public function takes 4.6 of a kernel's few.
        quick: Any = getattr(getattr(getattr(torch, "_C"), "_profiler", None), "_RecordFunctionFast", None)  # noqa: B009 - not a public name
        return functools.partial(record_function if self.on_gpu or quick is None else quick, name)


def _recorded(launch: Launcher, span: Callable[[], AbstractContextManager[Any]]) -> Launcher:
    def call(*arguments: Any, **over: Any) -> Any:
        with span():
            return launch(*arguments, **over)

    return call
