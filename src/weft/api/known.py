"""Graphs for all sizes that serve others of one size: one with a size of 1 or 0 runs the kernels of the one for all."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.capture import ArgumentPlace, Captured, Outline, serves
from weft.defects import note
from weft.options import current
from weft.plan import Plan, Runner

_MOST = 128
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class General:
    """A graph with sizes that change from call to call, and what runs it, for as long as PyTorch holds that.

    Attributes:
        outline: of the graph.
        settings: all beside the graph that its kernels depend on.
        run: takes its arguments.
        kernels: how many it has.
    """

    outline: Outline
    settings: tuple[Any, ...]
    run: weakref.ref[Callable[..., Sequence[Any]]]
    kernels: int


_known: deque[General] = deque(maxlen=_MOST)


def remember(captured: Captured, made: Plan, run: Runner) -> None:
    """Lets `run`, which stands for a graph, serve others that are the same at one size.

    To be called once the graph is planned, which may add guards.
    """
    outline = _outline(captured) if made.kernels else None
    if outline is not None and outline.is_general:
        with _lock:
            _known.append(General(outline, _settings(), weakref.ref(run), len(made.kernels)))


def served(captured: Captured) -> tuple[Runner, tuple[ArgumentPlace, ...], int] | None:
    """Finds what runs a graph with a size of 1 or 0, how to call it, and how many kernels it has; None where nothing known does."""
    outline = _outline(captured)
    if outline is None or not outline.is_short:
        return None
    with _lock:
        known = list(_known)
    for each in reversed(known):
        run = each.run()
        if run is None or each.settings != _settings():
            continue
        places = _places(each.outline, outline)
        if places is not None:
            return run, places, each.kernels
    return None


def _places(general: Outline, special: Outline) -> tuple[ArgumentPlace, ...] | None:
    try:
        return serves(general, special)
    except Exception as error:  # noqa: BLE001 - a defect of weft's: the graph is compiled for itself, and it is reported
        note(error)
        return None


def _outline(captured: Captured) -> Outline | None:
    """Returns the outline of a captured graph; None for one that cannot be compared with others, which is compiled for itself."""
    try:
        return None if captured.recording is None else Outline.of(captured.recording)
    except Exception as error:  # noqa: BLE001 - likewise
        note(error)
        return None


def called_with(run: Runner, places: Sequence[ArgumentPlace]) -> Runner:
    """Makes a runner that calls `run` with those arguments of another graph that are at `places`."""

    def call(*arguments: Any) -> Sequence[Any]:
        return run(*[arguments[p] if isinstance(p, int) else arguments[p[0]].shape[p[1]] for p in places])

    return call


def _settings() -> tuple[Any, ...]:
    return current(), torch.get_num_threads(), torch.get_float32_matmul_precision()
