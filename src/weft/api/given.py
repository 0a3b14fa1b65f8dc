"""What users hand to weft's functions, looked at before anything else does: who gets the wrong kind says what it takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from weft.errors import ArgumentError

_ALONE = (str, bytes, Mapping, set, frozenset)
"""What can be iterated over, but is no list of arguments."""


def demand_callable(fn: Any, called: str) -> None:
    """ArgumentError unless `fn`, the argument `called` so, is a function or module."""
    if not callable(fn):
        raise ArgumentError(
            f"{called} is {_kind(fn)}, not a function or module",
            todo="hand over the function itself, fn, not what it returns, fn(x)",
        )


def inputs_of(example_inputs: Any, function: str) -> tuple[Any, ...]:
    """The positional arguments that `example_inputs` is: a single tensor stands for one.

    Raises:
        ArgumentError: it is no list of arguments.
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    array = hasattr(example_inputs, "__array__")
    if array or isinstance(example_inputs, _ALONE) or not isinstance(example_inputs, Iterable):
        one = "x" if array or not isinstance(example_inputs, Mapping) else "inputs['x']"
        raise ArgumentError(
            f"the example inputs are {_kind(example_inputs)}, not the function's arguments",
            todo=f"give them as a tuple, in the function's order: {function}, ({one}, ...))",
        )
    return tuple(cast("Iterable[Any]", example_inputs))


def path_of(path: Any, called: str) -> Path:
    """`path`, as a path; ArgumentError where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"{called} is {_kind(path)}, not a path", todo="give the path of a file, as text or a pathlib.Path"
        )
    return Path(cast("str", path))


def _kind(value: Any) -> str:
    text = repr(value)
    shown = f" ({text})" if len(text) <= 40 else ""
    return f"of type {type(value).__name__}{shown}"
