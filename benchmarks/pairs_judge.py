"""How well predicted times rank measured ones: rank correlations, and what the model's first choices cost."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pairs_correction import Calibration, Observation, fitted
from pairs_space import PairSpace, features, read
from pairs_workloads import problem, workloads

from weft.target import Target

FIRST = 8
"""So many of the model's first choices are compared with the fastest of all, as if a tuner had timed these."""
NEAR = 0.05
"""A regret up to this is near enough."""

Floats = NDArray[np.float64]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; 0 where one side has no order."""
    a, b = (_ranks(np.array(each)) for each in (one, other))
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread else 0.0


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[place]


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Kendall's tau-b; 0 where one side has no order."""
    a, b = (np.sign(np.subtract.outer(np.array(each), np.array(each))) for each in (one, other))
    spread = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / spread if spread else 0.0


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return how much longer the fastest of the first `FIRST` by prediction takes than the fastest of all, as a share."""
    first = np.argsort(np.array(predicted), kind="stable")[:FIRST]
    return float(np.array(measured)[first].min() / min(measured)) - 1


@dataclass(frozen=True, slots=True)
class Score:
    """How well one workload's pairs are ranked."""

    spearman: float
    kendall: float
    regret: float

    @staticmethod
    def of(predicted: Sequence[float], measured: Sequence[float]) -> Score:
        """Compute it for times in the same order."""
        return Score(spearman(predicted, measured), kendall(predicted, measured), regret(predicted, measured))


@dataclass(frozen=True)
class Judged:
    """A workload: how many pairs were measured, how many failed, and the scores without and with a correction."""

    name: str
    pairs: int
    failed: int
    plain: Score
    corrected: Score


def observations(found: Mapping[str, Any]) -> list[Observation]:
    """Return the pairs of a file of `pairs.py time` that were measured."""
    return [
        Observation(each["workload"], features(each["breakdown"]), each["predicted"], each["seconds"])
        for each in found["pairs"]
        if "seconds" in each
    ]


def again(found: Mapping[str, Any]) -> dict[str, Any]:
    """Predict every pair again with this checkout's model; says which pairs this weft no longer has."""
    pairs: list[dict[str, Any]] = []
    for about in found["workloads"]:
        target = Target.parse(about["target"])
        workload = workloads(target)[about["workload"]]
        space = PairSpace(problem(workload, tuple(about["sizes"]), target), target)
        lost = 0
        for each in found["pairs"]:
            if each["workload"] != about["workload"]:
                continue
            way = space.way(each["program"], read(each["schedule"])) if each["program"] in space.fused else None
            if way is None:
                lost += 1
            else:
                pairs.append({**each, "predicted": way.cost.predicted_seconds, "breakdown": space.breakdown(way)})
        if lost:
            sys.stdout.write(
                f"{about['workload']}: {lost} pairs left out, which this weft does not have or takes not to fit\n"
            )
    return {**found, "pairs": pairs}


def judged(found: Mapping[str, Any]) -> list[Judged]:
    """Score every workload of which at least two pairs were measured; the correction is fitted to all others."""
    seen = observations(found)
    failed = [each["workload"] for each in found["pairs"] if "seconds" not in each]
    rows: list[Judged] = []
    for name in dict.fromkeys(each.group for each in seen):
        own, others = ([e for e in seen if (e.group == name) is mine] for mine in (True, False))
        if len(own) < 2:
            continue
        measured = [each.measured for each in own]
        plain = Score.of([each.predicted for each in own], measured)
        better = plain if not others else Score.of([e.predicted for e in corrected(own, fitted(others))], measured)
        rows.append(Judged(name, len(own), failed.count(name), plain, better))
    return rows


def corrected(own: Sequence[Observation], by: Calibration) -> list[Observation]:
    """Correct predictions."""
    return [replace(each, predicted=each.predicted * by.factor(each.features)) for each in own]


def table(rows: Sequence[Judged]) -> str:
    """Print scores, a workload a line, and their medians."""
    lines = [
        f"{'':28}{'pairs':>6}{'failed':>7}   {'Spearman':>16}  {'Kendall':>16}  {'regret':>18}",
        f"{'':41}" + 3 * "   plain corrected",
    ]
    lines += [f"{r.name:28}{r.pairs:6}{r.failed:7}" + _scores(r.plain, r.corrected) for r in rows]
    if rows:
        medians = [
            Score(
                *(statistics.median(getattr(each, name) for each in some) for name in ("spearman", "kendall", "regret"))
            )
            for some in ([r.plain for r in rows], [r.corrected for r in rows])
        ]
        lines.append(f"{'median':28}{'':13}" + _scores(*medians))
        near = [
            sum(score.regret <= NEAR for score in some)
            for some in ([r.plain for r in rows], [r.corrected for r in rows])
        ]
        lines.append(f"within {NEAR:.0%} of the fastest: {near[0]} of {len(rows)}, with a correction {near[1]}")
    return "\n".join(lines)


def _scores(plain: Score, better: Score) -> str:
    pairs = ((plain.spearman, better.spearman), (plain.kendall, better.kendall))
    said = "".join(f"{one:8.2f}{other:10.2f}" for one, other in pairs)
    return f"{said}{plain.regret:8.1%}{better.regret:10.1%}"
