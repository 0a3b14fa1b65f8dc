"""The graph that a trial may ask for, with the library's matmuls: a child chooses for it while this process times and judges.

Where a graph's kernels do not win clearly it is planned a second time (`weft.plan.measure.trial`). Which regions that plan has does
not depend on what the first one's kernels take, but for which matmuls the library gets: a child takes these to be all that the
model leaves to the library. Record 0067.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from weft.capture import Captured
from weft.errors import WeftError
from weft.options import current
from weft.plan.execute.given import begin, inputs_of
from weft.plan.execute.laws import after_laws
from weft.plan.execute.library import for_the_library, left_to_the_library
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.regions import Regions, lone_matmuls
from weft.plan.execute.selections import Chosen, chosen_since, remember_all, remembered
from weft.plan.partition.partition import Region
from weft.plan.targets.graphs import capturing
from weft.run.cache import CacheFolder
from weft.run.meanwhile import Meanwhile
from weft.run.spread import are_side_by_side
from weft.tensor.program import TensorProgram

_NICE = 10
"""Compilers work for kernels that are wanted for certain: they have the processors first."""


def foreseeing(
    captured: Captured, program: TensorProgram, known: Regions, times: LibraryTimes, arguments: Sequence[Any]
) -> Callable[[], None]:
    """Have a child choose for the graph with the library's matmuls as soon as `known` tells what `program` is cut into.

    Returned is what waits for the child, and has this process know what it chose; it does nothing where nothing was begun: with few
    processors, without a trial, or with no matmul that the library could take.
    """
    begun: list[Meanwhile[list[Chosen]]] = []
    trial = (
        current().measure != "never"
        and current().compile != "first"
        and current().verify != "always"
        and not capturing()
    )

    def cut(regions: Sequence[Region]) -> None:
        calls = {call for region in regions for call in lone_matmuls(captured, region)}
        for call in calls:
            times.of(call)
        if calls:
            choose = partial(_choose, captured, program, regions, known, times, arguments)
            begun.append(Meanwhile([partial(_chosen, choose)], _taken))

    if trial and known.scheme is None and not captured.left and captured.leaving is not None and are_side_by_side():
        known.told = cut

    def take() -> None:
        for each in begun:
            each.wait()

    return take


def _choose(
    captured: Captured,
    program: TensorProgram,
    cut: Sequence[Region],
    known: Regions,
    times: LibraryTimes,
    arguments: Sequence[Any],
) -> None:
    """Cut the graph with the library's matmuls and select for its regions, but for those that the graph without has too."""
    own, times.measures = known.to_choose(cut), False
    calls = for_the_library(captured, program, cut, own, times, [None] * len(cut))
    other = left_to_the_library(captured, calls)
    if other is None or other.program is None:
        return
    made = after_laws(other, own.target)
    begin(own, other, made.program, inputs_of(other, made.program, arguments), known.masks)
    own.stages(other.program, made)


def _taken(_: int, found: Sequence[Chosen]) -> None:
    """Remember what a child chose, for whoever selects for these regions next."""
    remember_all(found)
    with suppress(WeftError):  # whoever needs the cache folder says what is wrong with it
        folder = CacheFolder()
        for each in found:
            folder.lookup(each.key[0], counted=False)  # what a child keeps, this process has used


def _chosen(choose: Callable[[], object]) -> list[Chosen]:
    with suppress(OSError):
        os.nice(_NICE)
    before = remembered()
    choose()
    return chosen_since(before)
