"""Warnings when PyTorch runs a whole graph, or what takes most of its time, and why."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name

from weft.api.recompiles import OWN, traced_function
from weft.capture import Fallback, every_node
from weft.capture.sizes import in_example
from weft.defects import note
from weft.errors import LeftToPyTorchWarning, Location, UnsupportedError
from weft.plan import Plan, mostly_left

_LARGE = 256
"""Elements: a graph whose tensors are all smaller (a mask's length, a step's number) is not worth a word, whatever runs it."""
_SHOWN = 3
_NUMBER = re.compile(r"\d+")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_said: set[tuple[str, str, str]] = set()


def say_what_is_lost(gm: torch.fx.GraphModule, made: Plan, arguments: Sequence[Any]) -> None:
    """Warn where PyTorch runs all of a graph, or what is predicted to take most of its time; once for a function and a cause.

    Nothing is said of graphs that weft has kernels for and that are measured to be slower, nor of views and of tiny tensors.

    Args:
        gm: the graph, as Dynamo handed it over.
        made: what became of it.
        arguments: example arguments of the graph.
    """
    if made.kernels:
        what = "most of this graph's work"
        try:
            left = mostly_left(made, arguments)
        except Exception as error:  # noqa: BLE001 - a graph keeps its kernels though nobody can say how much of it they are
            note(error)
            return
    else:
        what, left = "this graph", tuple(f for f in made.fallbacks if not f.is_faster)
        if not (_asks_for_gradients(gm) or _is_large(gm)):
            return
    if not left:
        return
    where = left[0].location or Location.of_caller()
    cause = (*_function(where), _NUMBER.sub("#", left[0].reason))
    if cause not in _said:
        _said.add(cause)
        message = f"weft leaves {what} to PyTorch: {UnsupportedError(_reasons(left), where=where, todo=_todo(left))}"
        place = where or Location(__file__, 0)
        warnings.warn_explicit(message, LeftToPyTorchWarning, place.file, place.line)


def _function(where: Location | None) -> tuple[str, str]:
    """Identify the function that is traced: by its file and name, or for one of PyTorch's (a module's call) by the line."""
    code = traced_function()
    if code is not None and not code.co_filename.startswith(OWN):
        return code.co_filename, _RESUMED.sub(r"\1", code.co_name)
    return "", str(where)


def _reasons(left: Sequence[Fallback]) -> str:
    if left[0].operation == "graph":
        return left[0].reason
    others = f"; and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return "; ".join(f"{f.operation}: {f.reason}" for f in left[:_SHOWN]) + others


def _todo(left: Sequence[Fallback]) -> str:
    advice = "nothing, if that is fine"
    if "gradients" in left[0].reason:
        advice = "call it under torch.no_grad() or torch.inference_mode(), if you need no gradients"
    silence = 'warnings.filterwarnings("ignore", category=weft.errors.LeftToPyTorchWarning)'
    return f"{advice}; to silence this warning: {silence}"


def _asks_for_gradients(gm: torch.fx.GraphModule) -> bool:
    return any(each.requires_grad for each in _examples(gm))


def _is_large(gm: torch.fx.GraphModule) -> bool:
    """Tell whether any tensor has some size; of sizes that change from call to call, at the example."""
    return any(each.is_nested or math.prod(map(in_example, each.shape)) >= _LARGE for each in _examples(gm))


def _examples(gm: torch.fx.GraphModule) -> list[torch.Tensor]:
    found = [leaf for node in every_node(gm) for leaf in pytree.tree_leaves(node.meta.get("example_value"))]
    return [each for each in found if isinstance(each, torch.Tensor)]
