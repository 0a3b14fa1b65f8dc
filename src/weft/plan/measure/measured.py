"""The record of a trial: times, how far they scatter, how busy the machine was, and whether to believe them."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from weft.plan.measure.clock import Timing
from weft.run.cache import Json

Choice: TypeAlias = Literal["weft", "library", "PyTorch"]

# weft's kernels run unless PyTorch is faster by more than timings of one function differ from one another; the library's matmuls
# are taken where they save this much.
_MARGIN, _GAIN = 1.03, 0.02
# Trials that one measurement is made of at most; and the spread from which on a time says little.
_MOST_TRIALS, _NOISY = 5, 0.25
# Seconds that all trials of a graph may take together, or how many calls' time where a call is slow.
_MOST_SECONDS, _MOST_CALLS = 0.5, 2.5
# Cores that others may use beyond those that are free, before a machine counts as busy.
_SPARE_CORES = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of a call: weft's kernels, PyTorch, and where it was tried, weft's with the library's matmuls.

    Infinite for what refused, so that PyTorch ran in its place.

    Attributes:
        weft, eager, library: the times.
        load: how many cores other processes used during the last trial.
        cores: how many the candidates use; 0 where others do not slow them (on a GPU).
        trials: how many trials there were, of whose times the least are taken.
        spent: seconds of the calls that were made for all trials, beside those whose results a user got.
    """

    weft: Timing
    eager: Timing
    library: Timing | None = None
    load: float = field(default=0.0, kw_only=True)
    cores: int = field(default=0, kw_only=True)
    trials: int = field(default=1, kw_only=True)
    spent: float = field(default=0.0, kw_only=True)

    @property
    def chosen(self) -> Choice:
        """Names what runs."""
        library = math.inf if self.library is None else self.library.seconds
        return _choice(self.weft.seconds, self.eager.seconds, library)

    @property
    def whole(self) -> bool:
        """Tells whether no candidate refused."""
        return all(math.isfinite(timing.seconds) for timing in self._timings.values())

    @property
    def doubts(self) -> tuple[str, ...]:
        """Says why another trial may choose otherwise."""
        found: list[str] = []
        ends = [(t.seconds * (1 - t.spread), t.seconds * (1 + t.spread)) for t in self._timings.values()]
        if any(_choice(*((*times, math.inf)[:3])) != self.chosen for times in itertools.product(*ends)):
            found.append("the times are too close to tell")
        if any(timing.spread > _NOISY for timing in self._timings.values()):
            found.append("the times vary")
        if self.cores and self.load + self.cores > (os.cpu_count() or 1) + _SPARE_CORES:
            found.append("other processes kept the machine busy")
        return tuple(found)

    @property
    def is_to_be_repeated(self) -> bool:
        """Tells whether the next process is to try again, which takes one more call at least."""
        affordable = self.spent < max(_MOST_SECONDS, _MOST_CALLS * self.eager.seconds)
        return self.trials < _MOST_TRIALS and affordable and bool(self.doubts)

    def again(self, later: Measured) -> Measured:
        """Joins both trials: what disturbs a call only makes it slower, so the least time of each candidate counts."""
        library = min(filter(None, (self.library, later.library)), key=_seconds, default=None)
        weft, eager = min(self.weft, later.weft, key=_seconds), min(self.eager, later.eager, key=_seconds)
        sums = {"trials": self.trials + later.trials, "spent": self.spent + later.spent}
        return replace(later, weft=weft, eager=eager, library=library, **sums)

    def written(self) -> dict[str, Json]:
        """Writes it as an entry of the cache says it."""
        names = {"weft": self.weft, "eager": self.eager, "library": self.library}
        times: dict[str, Json] = {name: None if t is None else t.seconds for name, t in names.items()}
        spreads: dict[str, Json] = {name: round(t.spread, 4) for name, t in names.items() if t is not None}
        conditions: dict[str, Json] = {"load": round(self.load, 2), "cores": self.cores}
        return {**times, "spread": spreads, **conditions, "trials": self.trials, "spent": round(self.spent, 4)}

    @staticmethod
    def read(meta: Mapping[str, Json]) -> Measured | None:
        """Reads what `written` gave; None for anything else."""
        match meta:
            case {
                "weft": float(weft),
                "eager": float(eager),
                "spread": {"weft": float(first), "eager": float(second)} as spreads,
                "load": float(load),
                "cores": int(cores),
                "trials": int(trials),
                "spent": float(spent),
            }:
                pass
            case _:
                return None
        library = None
        match meta, spreads:
            case {"library": float(seconds)}, {"library": float(third)}:
                library = Timing(seconds, third)
            case _:
                pass
        made = Timing(weft, first), Timing(eager, second), library
        return Measured(*made, load=load, cores=cores, trials=trials, spent=spent)

    @property
    def _timings(self) -> dict[str, Timing]:
        named = {"weft": self.weft, "PyTorch": self.eager, "weft with library matmuls": self.library}
        return {name: timing for name, timing in named.items() if timing is not None}

    def __str__(self) -> str:
        chosen = "weft with library matmuls" if self.chosen == "library" else self.chosen
        times = ", ".join(f"{name} {timing}" for name, timing in self._timings.items())
        again = "; the next process measures again" if self.is_to_be_repeated else ""
        doubts = f" ({'; '.join(self.doubts)}{again})" if self.doubts else ""
        return f"{chosen} runs: {times}{doubts}"


def _seconds(timing: Timing) -> float:
    return timing.seconds


def _choice(weft: float, eager: float, library: float = math.inf) -> Choice:
    if min(weft, library) > _MARGIN * eager:
        return "PyTorch"
    return "library" if library < (1 - _GAIN) * weft else "weft"
