"""Packages whose exports are imported when they are first asked for (PEP 562), so that a process imports what it runs."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping
from importlib.abc import InspectLoader
from types import ModuleType
from typing import Any, TypeAlias

from weft.garbage import uncollected


class _LazyPackage(ModuleType):
    """A package in whose `__init__` the imports under `TYPE_CHECKING` say where its exports are."""

    def __getattr__(self, name: str) -> Any:
        """Import an export, which is called only until the package has it."""
        source = None if name.startswith("__") else _sources(self.__name__).get(name)
        if source is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, original = source
        with uncollected():  # one export may import PyTorch's tracer, or a hundred modules
            found = getattr(importlib.import_module(module), original)
        return self.__dict__.setdefault(name, found)

    def __setattr__(self, name: str, value: Any) -> None:
        """Leave out that `value` is a submodule, called like an export: importing it must not hide the export."""
        if not (isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ())):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """List the exports alone: what the package imports for itself, and its submodules, are not for its users."""
        return sorted(self.__dict__.get("__all__", ()))


def export_lazily(package: str) -> None:
    """Have `package` import each of its exports when it is first asked for.

    Called last in an `__init__` like this one, where type checkers, import-linter and readers see what is exported, and Python
    imports nothing:

        if TYPE_CHECKING:
            from weft.block.check import check
            from weft.block.lower import lower

        __all__ = ["check", "lower"]
        export_lazily(__name__)

    An export may be called like the submodule that defines it: the attribute of the package is then always the export.

    Args:
        package: the `__name__` of the package.
    """
    sys.modules[package].__class__ = _LazyPackage
    _SOURCES.pop(package, None)  # it is being imported anew


_Sources: TypeAlias = Mapping[str, tuple[str, str]]
"""For each export the module that it comes from, and what it is called there."""
_SOURCES: dict[str, _Sources] = {}


def _sources(package: str) -> _Sources:
    """Read from the source of `package` where its exports come from: what is written there is the only list of them."""
    found = _SOURCES.get(package)
    if found is None:
        module = sys.modules[package]
        loader = module.__spec__.loader if module.__spec__ is not None else None
        assert isinstance(loader, InspectLoader)
        found = _SOURCES[package] = _deferred(loader.get_source(package) or "")
    return found


def _deferred(source: str) -> _Sources:
    """List what `source` imports under `if TYPE_CHECKING:`."""
    return {
        alias.asname or alias.name: (statement.module, alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
