"""Lists every source file with the first line of its docstring: `PYTHONPATH=src:tests python -m testkit.files [ROOM ...]`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "weft"


def index(rooms: Sequence[str] = ()) -> dict[str, str]:
    """Map each file under `src/weft`, of these rooms or of all, to what the first line of its docstring says."""
    found: dict[str, str] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if not rooms or name.startswith(tuple(f"{room.rstrip('/')}/" for room in rooms)):
            text = ast.get_docstring(ast.parse(path.read_text()))
            found[name] = text.partition("\n")[0] if text else ""
    return found


if __name__ == "__main__":
    listed = index(sys.argv[1:])
    width = max(map(len, listed), default=0)
    print("\n".join(f"{name:{width}}  {said}" for name, said in listed.items()))
