"""What docs/extending.md runs with: additions that last as long as a `with`, and the files that an addition touches."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

from weft.plan import targets
from weft.tensor import optable
from weft.tensor.optable import DerivedRow

SOURCES = Path(__file__).resolve().parents[2] / "src" / "weft"


@contextmanager
def added_row(row: DerivedRow) -> Generator[None]:
    """Have the operation table hold `row`, as if it stood in `DERIVED`, in place of rows for the same ATen operations.

    Afterwards the table is as it was.
    """
    found: dict[str, DerivedRow] = cast("Any", optable)._DERIVED_BY_ATEN
    before = dict(found)
    found |= dict.fromkeys(row.aten, row)
    try:
        yield
    finally:
        found.clear()
        found |= before


@contextmanager
def added_target(toolchain: type[targets.Toolchain]) -> Generator[None]:
    """Have the list of targets hold `toolchain`, as if it stood in `TOOLCHAINS`."""
    targets.TOOLCHAINS.append(toolchain)
    try:
        yield
    finally:
        targets.TOOLCHAINS.remove(toolchain)


def files_that_name(name: str) -> tuple[str, ...]:
    """List the files under src/weft whose code uses or imports `name`."""
    return tuple(p.relative_to(SOURCES).as_posix() for p in sorted(SOURCES.rglob("*.py")) if name in _names(p))


@cache
def _names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used | {a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names}
