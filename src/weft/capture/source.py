"""Where in the user's source an operation of Dynamo's graph was written."""

from __future__ import annotations

import inspect
import linecache
import re
from pathlib import Path
from typing import Any

import torch
from torch import fx

from weft.errors import Location

_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_TORCH = str(Path(torch.__file__).parent)


def location_of(node: fx.Node | None) -> Location | None:
    """Finds the user's line that `node` stands for, as well as Dynamo knows it.

    That is the innermost traced line outside PyTorch; where there is none (a compiled
    `nn.Sequential` has no line of its own), the forward of the innermost module class that is not
    PyTorch's, else PyTorch's own line, else None.
    """
    if node is None:
        return None
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if not frame[0].startswith(_TORCH)]
    if users:
        return _line(users[-1][0], int(users[-1][1]))
    modules: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    for _, kind in reversed(modules.values()):
        found = _forward(kind)
        if found is not None:
            return found
    return _line(frames[-1][0], int(frames[-1][1])) if frames else None


def _forward(kind: object) -> Location | None:
    """Finds the first line of the forward of a module class that is not PyTorch's."""
    forward = getattr(kind, "forward", None)
    if not inspect.isfunction(forward) or forward.__code__.co_filename.startswith(_TORCH):
        return None
    return _line(forward.__code__.co_filename, forward.__code__.co_firstlineno)


def _line(file: str, line: int) -> Location:
    return Location(file, line, linecache.getline(file, line).strip())
