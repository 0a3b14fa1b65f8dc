"""The entrance: deciding whether a graph can be captured at all, and capturing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from weft.capture.captured import Captured
from weft.capture.memory import apart
from weft.capture.record import gradients_possible, record
from weft.capture.refused import refused, refused_at_once
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
        return refused(error.what, where)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the capture, eager still runs
        note(error)
        return refused(f"capture failed: {type(error).__name__}: {error}", None)


def _captured(gm: fx.GraphModule, example_inputs: Sequence[Any], *, doubles: bool, guarded: bool) -> Captured:
    found = refused_at_once(gm, example_inputs)
    if found is not None:
        return found
    recording = record(gm, meaning, doubles=doubles)
    held = recording.constants
    written = [recording.inputs.index(slot) for slot, _ in recording.writes]
    if written and gradients_possible(gm):
        return refused("it writes into an input where gradients may be recorded", None)
    if not apart((*example_inputs, *held), written):
        return refused("it writes into an input that shares memory with another one, or within itself", None)
    names = [str(n.target) for n in gm.graph.nodes if n.op == "placeholder"]
    return translate(recording, [*names, *(f"constant_{i}" for i in range(len(held)))], guarded=guarded)
