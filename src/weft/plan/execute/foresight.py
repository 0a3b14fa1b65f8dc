"""The graph that a trial may ask for, with the library's matmuls: a child chooses for it while this process times and judges.

Where a graph's kernels do not win clearly it is planned a second time (`weft.plan.measure.trial`). Which regions that plan has does
not depend on what the first one's kernels take, but for which matmuls the library gets: a child takes these to be all that the
model leaves to a library at its best. Record 0067.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
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
from weft.run.cache import CacheFolder
from weft.run.spread import are_side_by_side, spreading
from weft.tensor.program import TensorProgram

_SECONDS = 60.0
"""After so many since it began, the child is ended."""
_NICE = 10
"""Compilers work for kernels that are wanted for certain: they have the processors first."""


def foreseeing(
    captured: Captured, program: TensorProgram, known: Regions, arguments: Sequence[Any]
) -> Callable[[], None]:
    """Have a child choose for the graph with the library's matmuls as soon as `known` tells what `program` is cut into.

    Returned is what waits for the child, and has this process know what it chose; it does nothing where nothing was begun: with few
    processors, without a trial, or with no matmul that the library could take.
    """
    begun: list[Foresight] = []
    trial = current().measure != "never" and current().compile != "first" and current().verify != "always"

    def cut(regions: Sequence[Region]) -> None:
        if any(lone_matmuls(captured, region) for region in regions):
            begun.append(Foresight(partial(_choose, captured, program, regions, known, arguments)))

    if trial and known.scheme is None and not captured.left and captured.leaving is not None and are_side_by_side():
        known.told = cut

    def take() -> None:
        for each in begun:
            each.take()

    return take


def _choose(
    captured: Captured, program: TensorProgram, cut: Sequence[Region], known: Regions, arguments: Sequence[Any]
) -> None:
    """Cut the graph with the library's matmuls and select for its regions, but for those that the graph without has too."""
    own = known.to_choose(cut)
    calls = for_the_library(captured, program, cut, own, LibraryTimes(), [None] * len(cut))
    other = left_to_the_library(captured, calls)
    if other is None or other.program is None:
        return
    made = after_laws(other, own.target)
    begin(own, other, made.program, inputs_of(other, made.program, arguments), known.masks)
    own.stages(other.program, made)


class Foresight:
    """What a child chooses that may be asked for.

    A thread takes it as it comes, so that the child ends whether or not somebody asks.
    """

    def __init__(self, choose: Callable[[], object]) -> None:
        """Begin: `choose` selects for regions, as this process would; where it raises, nothing is foreseen.

        It is called in a forked child, which has one thread and no GPU, and must begin no compiler.
        """
        self._until = time.monotonic() + _SECONDS
        held = ExitStack()
        coming = held.enter_context(spreading([partial(_chosen, choose)], _SECONDS))
        self._reader = threading.Thread(target=_read, args=(held, coming), name="weft-foresight", daemon=True)
        self._reader.start()

    def take(self) -> None:
        """Wait until what the child chose is remembered, for whoever selects for these regions next."""
        self._reader.join(max(0.0, self._until - time.monotonic()))


def _read(held: ExitStack, coming: Iterator[tuple[int, list[Chosen]]]) -> None:
    with held:
        for _, found in coming:
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
