"""The graph that a trial may ask for, with the library's matmuls: a child chooses for it while this process times and judges.

Where a graph's kernels do not win clearly it is planned a second time (`weft.plan.measure.trial`). Which matmuls the library gets
depends on what the first plan's kernels take; a child goes by their first times, and so does the plan. Record 0067.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from weft.capture import Captured
from weft.defects import note
from weft.errors import WeftError
from weft.options import current
from weft.plan.execute.calls import lone_matmuls
from weft.plan.execute.laws import after_laws
from weft.plan.execute.library import for_the_library, left_to_the_library
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.regions import Regions
from weft.plan.execute.selections import RememberedSelection, chosen_since, remember_all, remembered
from weft.plan.execute.tried import a_trial_may_follow
from weft.plan.execute.writes import written_over
from weft.plan.partition.partition import Region, Task
from weft.run.cache import CacheFolder
from weft.run.meanwhile import Meanwhile
from weft.run.spread import are_side_by_side
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a child found: the ATen calls that the library gets, and what was chosen for the graph that leaves them to it."""

    calls: tuple[int, ...]
    chosen: Sequence[RememberedSelection]


def foreseen(
    captured: Captured,
    program: TensorProgram,
    arguments: int,
    stages: Sequence[Task],
    known: Regions,
    times: LibraryTimes,
) -> Callable[[], Sequence[int] | None]:
    """Have a child choose for the graph with the library's matmuls.

    Returned is what waits for the child, has this process know what it chose, and gives the calls that the library gets; None where
    no child was begun, or it failed. None is begun with few processors, without a trial, or with no matmul for the library.

    Args:
        captured, program: the graph as written, and after the laws.
        arguments: how many it has.
        stages: what `program` is cut into.
        known: of its regions, kernels of which were timed once.
        times: of the library, which are taken where they are not known.
    """
    cut = [stage for stage in stages if isinstance(stage, Region)]
    calls = (
        {call for region in cut for call in lone_matmuls(captured, region)}
        if _may_be_asked(captured, arguments, known)
        else ()
    )
    if not calls:
        return nothing_foreseen
    try:
        for call in calls:
            times.of(call)
        made = Meanwhile([partial(_choose, captured, program, cut, known, times)], _taken)
    except Exception as error:  # noqa: BLE001 - whatever it is, it costs what is foreseen, and no kernel
        note(error)
        return nothing_foreseen
    return partial(made.result, 0)


def _may_be_asked(captured: Captured, arguments: int, known: Regions) -> bool:
    """Tell whether a trial may ask for the graph with the library's matmuls, and a child can choose for it."""
    tried = a_trial_may_follow(captured, arguments, known)
    return tried and current().verify != "always" and are_side_by_side()


def nothing_foreseen() -> None:
    """Give no calls."""


def _choose(
    captured: Captured, program: TensorProgram, cut: Sequence[Region], known: Regions, times: LibraryTimes
) -> Foreseen:
    """Cut the graph with the library's matmuls and select for its regions, but for those that the graph without has too."""
    own, times.measures, before = known.to_choose(cut), False, remembered()
    calls = for_the_library(captured, program, cut, own, times, list(map(known.leading_seconds, cut)))
    other = left_to_the_library(captured, calls)
    if other is not None and other.program is not None:
        made = after_laws(other, own.target)
        # It has the same inputs, by the same names: of tensors on a GPU nothing can be asked here, not even a view.
        own.begin(own.layouts, constant_sizes(other), written_over(other, made.program), own.masks, own.lying)
        own.stages(other.program, made)
    return Foreseen(tuple(calls), chosen_since(before))


def constant_sizes(captured: Captured) -> frozenset[str]:
    """Name the spaces of a graph that are as long at each call as in the example."""
    return frozenset(space.name for space, number in captured.sizes.items() if not number.symbols)


def _taken(found: Foreseen) -> Sequence[int]:
    """Remember what a child chose, for whoever selects for these regions next; returns the calls that the library gets."""
    remember_all(found.chosen)
    with suppress(WeftError):  # whoever needs the cache folder says what is wrong with it
        folder = CacheFolder()
        for each in found.chosen:
            folder.lookup(each.key[0], counted=False)  # what a child keeps, this process has used
    return found.calls
