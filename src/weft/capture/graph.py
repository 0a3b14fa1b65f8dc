"""The entrance: deciding whether a graph can be captured at all, and capturing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass  # no public name

from weft.capture.captured import Captured, Fallback
from weft.capture.flags import forward_derivatives
from weft.capture.memory import apart
from weft.capture.record import gradient_line, gradients_possible, record
from weft.capture.tape import PLAIN
from weft.capture.translate import meaning, translate
from weft.defects import note
from weft.errors import Location, WeftError
from weft.phases import phase


@phase("capture")
def capture(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, doubles: bool = True, guarded: bool = False
) -> Captured:
    """Captures the tensor program of a graph that Dynamo hands to a backend.

    Args:
        gm: the graph; its placeholders carry Dynamo's fake tensors, on which it is replayed.
        example_inputs: what Dynamo calls the backend with, one per placeholder.
        doubles: whether kernels compute in float64, so that what PyTorch carries in it on a CPU may be too.
        guarded: PyTorch's guards stand before each call of what is made of the graph.

    Returns:
        A program with what it takes to run it, or the reason why PyTorch runs the graph as it is.
        Nothing is raised: a program that eager can run is one that weft can run.
    """
    try:
        return _captured(gm, example_inputs, doubles=doubles, guarded=guarded)
    except WeftError as error:
        where = error.where if isinstance(error.where, Location) else None
        return _refused(error.what, where)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the capture, eager still runs
        note(error)
        return _refused(f"capture failed: {type(error).__name__}: {error}", None)


def refused_at_once(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Captured | None:
    """Tells why PyTorch runs a graph, where that shows without recording it; None where it does not. Arguments as of `capture`."""
    wanted, where = gradient_line(gm)
    if wanted:
        return _refused("gradients are asked for, and weft makes forward kernels only", where)
    if forward_derivatives():
        return _refused("forward-mode derivatives are asked for, and weft makes forward kernels only", None)
    for example in example_inputs:
        if (
            isinstance(example, torch.Tensor)
            and type(example) not in PLAIN
            and not is_traceable_wrapper_subclass(example)
        ):
            return _refused(f"an input is a {type(example).__name__}, not a plain tensor", None)
        if isinstance(example, torch.Tensor) and (example.is_mkldnn or example.is_nested or example.is_quantized):
            return _refused(f"an input is a tensor of layout {example.layout} and type {example.dtype}", None)
        if isinstance(example, torch.Tensor) and example._is_zerotensor():  # noqa: SLF001 - no public name
            return _refused(
                "an input is a tensor of zeros without memory, which PyTorch's tracing cannot tell from others", None
            )
    return None


def _captured(gm: fx.GraphModule, example_inputs: Sequence[Any], *, doubles: bool, guarded: bool) -> Captured:
    refused = refused_at_once(gm, example_inputs)
    if refused is not None:
        return refused
    recording = record(gm, meaning, doubles=doubles)
    held = recording.constants
    written = [recording.inputs.index(slot) for slot, _ in recording.writes]
    if written and gradients_possible(gm):
        return _refused("it writes into an input where gradients may be recorded", None)
    if not apart((*example_inputs, *held), written):
        return _refused("it writes into an input that shares memory with another one, or within itself", None)
    names = [str(n.target) for n in gm.graph.nodes if n.op == "placeholder"]
    return translate(recording, [*names, *(f"constant_{i}" for i in range(len(held)))], guarded=guarded)


def _refused(reason: str, where: Location | None) -> Captured:
    fallback = Fallback("graph", reason, where)
    return Captured(None, fallbacks=(fallback,), refused=fallback)
