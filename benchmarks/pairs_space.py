"""The pairs of a workload, (fused program, schedule): all that weft would consider, a draw of them, and each as JSON and back."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from pairs_correction import cpu_features, gpu_features
from pairs_workloads import Problem

from weft.block.listing import listing
from weft.cost import Bounds, Breakdown, Cost, Cycles, Resources, gpu, launches_of
from weft.errors import ScheduleError, UnsupportedError
from weft.lab.fuzz.random_schedules import random_schedule
from weft.plan.choose.select import Generated, Priced, generate, price
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Way
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule
from weft.target import CPU, Target
from weft.tensor.program import Contraction
from weft.verify import Ranges

# Tiles, warps and stages of random schedules; how many are tried, and how far behind the best prediction one may lie.
_TILES = {True: (8, 16, 32, 64, 128, 256, 512), False: (16, 32, 64, 128, 256)}
_WARPS, _STAGES = (2, 4, 8), (1, 2, 3, 4)
_TRIES, _FAR = 4000, 30.0
# The share of all pairs, the likeliest, that half of a draw comes from.
_BEST = 10


@dataclass(frozen=True, eq=False)
class Pair:
    """A fused program and a schedule.

    Attributes:
        candidate: both, with what they were predicted to take.
        program: a digest of the fused program.
        drawn: "best", "rest", or empty before a draw.
        random: the schedule is none that weft would consider.
    """

    candidate: Candidate
    program: str
    drawn: str = ""
    random: bool = False

    @property
    def predicted(self) -> float:
        """Seconds, by the model."""
        return self.candidate.cost.predicted_seconds


@dataclass(frozen=True)
class PairSpace:
    """The pairs of a problem; `target` is what they are for."""

    problem: Problem
    target: Target

    @cached_property
    def fused(self) -> dict[str, Priced]:
        """The fused programs that have a kernel and may be chosen, by their digests."""
        program, example, chain = self.problem.program, self.problem.example, toolchain(self.target)
        matmuls = any(isinstance(node, Contraction) for node in program.nodes)
        setting = chain.setting(None if matmuls or not chain.any_order else example.sizes)
        ranges = Ranges(program)
        found: dict[str, Priced] = {}
        for made in generate(program, setting):
            priced = price(made, example) if isinstance(made, Generated) else made
            if isinstance(priced, Priced) and not priced.left_out and ranges.lost(priced.candidate.fused) is None:
                digest = hashlib.sha256(listing(priced.candidate.fused).encode()).hexdigest()[:16]
                found[digest] = priced
        return found

    def all(self, least: int, seed: int) -> list[Pair]:
        """List all pairs that weft would consider, the likeliest first; where they are fewer than `least`, twice as many with
        random schedules.
        """
        found: list[Pair] = []
        for digest, priced in self.fused.items():
            ways = priced.ways.many() or priced.ways.few()
            found += [Pair(_placed(priced.candidate, way), digest) for way in ways]
        if found and len(found) < least:
            found += self._random(2 * least - len(found), found, random.Random(seed))
        return sorted(found, key=lambda pair: pair.predicted)

    def _random(self, count: int, known: Sequence[Pair], rng: random.Random) -> list[Pair]:
        most = _FAR * min(pair.predicted for pair in known)
        seen = {(pair.program, pair.candidate.schedule) for pair in known}
        found: list[Pair] = []
        for _ in range(_TRIES):
            if len(found) == count:
                break
            digest = rng.choice(list(self.fused))
            wanted = self._drawn(self.fused[digest], rng)
            if (digest, wanted) not in seen:
                seen.add((digest, wanted))
                way = self.way(digest, wanted)
                if way is not None and way.cost.predicted_seconds <= most:
                    found.append(Pair(_placed(self.fused[digest].candidate, way), digest, random=True))
        return found

    def _drawn(self, priced: Priced, rng: random.Random) -> Schedule:
        drawn = random_schedule(priced.candidate.fused, rng, _TILES[self.target == CPU])
        if self.target == CPU:
            return drawn
        none = frozenset[str]()
        own = replace(drawn, rows=none, panels=none, transposed=none)
        return replace(own, warps=rng.choice(_WARPS), stages=rng.choice(_STAGES))

    def way(self, digest: str, schedule: Schedule) -> Way | None:
        """Schedule a fused program; None where it cannot be, or where a launch does not fit the target."""
        try:
            way = self.fused[digest].ways.given(schedule)
        except (ScheduleError, UnsupportedError):
            return None
        if self.target == CPU:
            return way
        chip, sizes, innermost = gpu(self.target), self.problem.example.sizes, self.problem.example.innermost
        launches = launches_of(way.applied, sizes, innermost)
        fits = all(e.unfit(chip, schedule.warps_of(merges=e.merges), schedule.stages) is None for e in launches)
        return way if fits else None

    def draw(self, every: Sequence[Pair], count: int, seed: int) -> tuple[list[Pair], list[Pair]]:
        """Shuffle the likeliest tenth of `every`, which are sorted, or of few as many as half of `count`; and the rest."""
        rng = random.Random(seed)
        best = max(len(every) // _BEST, min(len(every), (count + 1) // 2))
        first = [replace(pair, drawn="best") for pair in every[:best]]
        rest = [replace(pair, drawn="rest") for pair in every[best:]]
        rng.shuffle(first)
        rng.shuffle(rest)
        return first, rest

    def breakdown(self, way: Way | Candidate) -> list[dict[str, Any]]:
        """List what the model made the prediction of, launch by launch, as JSON."""
        example = self.problem.example
        if self.target == CPU:
            return [asdict(cost) for cost in toolchain(CPU).costs(example, way.applied, way.schedule)]
        chip, wanted = gpu(self.target), way.schedule
        launches = launches_of(way.applied, example.sizes, example.innermost)
        return [asdict(e.breakdown(chip, wanted.warps_of(merges=e.merges), wanted.stages)) for e in launches]


def _placed(candidate: Candidate, way: Way) -> Candidate:
    return replace(candidate, schedule=way.schedule, applied=way.applied, cost=way.cost)


def features(breakdown: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute the features of a pair from what `PairSpace.breakdown` gave."""
    if "bounds" not in breakdown[0]:
        return cpu_features([Cost(**each) for each in breakdown])
    return gpu_features(list(map(_breakdown, breakdown)))


def _breakdown(found: Mapping[str, Any]) -> Breakdown:
    own: dict[str, Any] = dict(found)
    own |= {"bounds": Bounds(**own["bounds"]), "cycles": Cycles(**own["cycles"]), "found": Resources(**own["found"])}
    return Breakdown(**own)


# Schedules as JSON.

_LEVEL = re.compile(r"(grid|loop|whole|split)(?: (\d+))?")


def written(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON: loops as `explain` shows them."""
    return {
        "loops": {name: str(levels) for name, levels in schedule.loops},
        "rows": sorted(schedule.rows),
        "panels": sorted(schedule.panels),
        "transposed": sorted(schedule.transposed),
        "merging": dict(schedule.merging),
        "together": schedule.together,
        "warps": schedule.warps,
        "stages": schedule.stages,
        "merging_warps": schedule.merging_warps,
    }


def read(found: Mapping[str, Any]) -> Schedule:
    """Read what `written` gave; KeyError, TypeError or ValueError otherwise."""
    own: dict[str, Any] = dict(found)
    own |= {name: frozenset[str](found[name]) for name in ("rows", "panels", "transposed")}
    own["loops"] = tuple((name, _levels(text)) for name, text in found["loops"].items())
    own["merging"] = tuple(found["merging"].items())
    return Schedule(**own)


def _levels(text: str) -> LoopSchedule:
    words = text.split(", ")
    peel = words[-1] == "peeled"
    levels: list[Level] = []
    for word in words[: -1 if peel else None]:
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"no level of a loop: {word!r}")
        levels.append(Level(LevelPlace(match[1]), int(match[2] or 0)))
    return LoopSchedule(tuple(levels), peel)
