"""Whether a trial of a graph's plan against PyTorch may follow, in which other ways of running it serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture import Captured
from weft.options import current
from weft.plan.targets.graphs import capturing

if TYPE_CHECKING:
    from weft.plan.execute.regions import Regions


def a_trial_may_follow(captured: Captured, arguments: int, known: Regions) -> bool:
    """Tell whether a trial on a GPU may ask for the graph with further calls left to PyTorch.

    Args:
        captured: the graph.
        arguments: how many it has.
        known: of its regions.
    """
    now = current()
    free = captured.leaving is not None and known.scheme is None
    asked = now.measure != "never" and now.compile != "first"
    return free and asked and times(known) and not capturing() and repeatable(captured, arguments)


def times(known: Regions) -> bool:
    """Tell whether kernels are timed: on a GPU that is here. On a CPU they are compiled meanwhile, by all processors."""
    return known.device is not None


def repeatable(captured: Captured, arguments: int) -> bool:
    """Tell whether another run of a graph with so many arguments, on copies of them, does the same again.

    It draws no random numbers, calls no other libraries, and writes into no tensor that the graph holds.
    """
    if any(place >= arguments for place, _ in captured.writes):
        return False
    return all(not c.random and c.target.namespace in ("aten", "weft") for c in captured.calls.values())
