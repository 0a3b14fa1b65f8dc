"""A correction of predicted times that is fitted to measured ones: log(measured / predicted), linear in a few features.

Predictions of one program under many schedules are wrong together (a rate is off) and apart (what the model leaves out). Only the
second changes which schedule comes first, so the weights are fitted within each program, by ridge regression, and what all of a
program's predictions have in common is left to the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost.estimate import Cost
from weft.cost.gpu_model import Breakdown

# Of a feature's distance from its mean, in standard deviations: what is further away was not measured.
_FARTHEST = 3.0
_RIDGE = 0.03
# Multiprocessors hold so many threads at most.
_THREADS = 2048


@dataclass(frozen=True, slots=True)
class Observation:
    """A launch, or several that run one after the other: what was predicted and what was measured, in seconds.

    Attributes:
        group: the program, at its sizes, that it is one way to run.
        features: by name; all observations have the same ones.
    """

    group: str
    features: Mapping[str, float]
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted correction; for each feature its mean and deviation where it was fitted, and its weight.

    Attributes:
        bias: log(measured / predicted) where all features have their means.
    """

    names: tuple[str, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float

    def factor(self, features: Mapping[str, float]) -> float:
        """Returns what a predicted time is to be multiplied by; KeyError where a feature is missing."""
        found = np.array([features[name] for name in self.names])
        return math.exp(self.bias + float(self._standard(found) @ np.array(self.weights)))

    def _standard(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        return _standard(features, np.array(self.means), np.array(self.deviations))

    def to_json(self) -> dict[str, Any]:
        """Returns the correction as JSON."""
        return asdict(self)

    @staticmethod
    def from_json(written: Mapping[str, Any]) -> Calibration:
        """Reads what `to_json` gave; KeyError or TypeError otherwise."""
        names = tuple(written["names"])
        means, deviations, weights = (tuple(written[each]) for each in ("means", "deviations", "weights"))
        return Calibration(names, means, deviations, weights, float(written["bias"]))


def fitted(seen: Sequence[Observation], ridge: float = _RIDGE) -> Calibration:
    """Fits a correction.

    Args:
        seen: at least one; times are positive.
        ridge: how much a weight costs, beside the mean squared error, for features of deviation 1.
    """
    names = tuple(seen[0].features)
    features = np.array([[each.features[name] for name in names] for each in seen], dtype=np.float64)
    wanted = np.array([math.log(each.measured / each.predicted) for each in seen])
    means, deviations = features.mean(0), features.std(0)
    standard = _standard(features, means, deviations)
    groups = np.array([each.group for each in seen])
    within, apart = standard.copy(), wanted.copy()
    for group in dict.fromkeys(groups.tolist()):
        own = groups == group
        within[own] -= standard[own].mean(0)
        apart[own] -= wanted[own].mean()
    square = within.T @ within / len(seen) + ridge * np.eye(len(names))
    weights = np.linalg.solve(square, within.T @ apart / len(seen))
    bias = float(np.mean(wanted - standard @ weights))
    lists: list[list[float]] = [each.tolist() for each in (means, deviations, weights)]
    return Calibration(names, tuple(lists[0]), tuple(lists[1]), tuple(lists[2]), bias)


def _standard(
    features: NDArray[np.float64], means: NDArray[np.float64], deviations: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Measures features from their means, in deviations; one that is the same everywhere is 0."""
    apart = np.where(deviations > 0, features - means, 0.0) / np.where(deviations > 0, deviations, 1.0)
    return np.clip(apart, -_FARTHEST, _FARTHEST)


def gpu_features(launches: Sequence[Breakdown]) -> dict[str, float]:
    """Computes the features of launches that run one after the other on a GPU: shares of the predicted time, and how full it is.

    Of several launches, the one that is predicted to take longest says how full.
    """
    predicted = sum(each.predicted_seconds for each in launches)
    longest = max(launches, key=lambda each: each.predicted_seconds)
    found, cycles = longest.found, longest.cycles
    busy = cycles.matmuls + cycles.waiting + cycles.vectors + cycles.accesses
    bounds = [each.bounds for each in launches]
    return {
        "launches": float(len(launches)),
        "memory": sum(each.memory for each in bounds) / predicted,
        "arithmetic": sum(each.arithmetic for each in bounds) / predicted,
        "cache": sum(each.cache for each in bounds) / predicted,
        "matmuls": cycles.matmuls / busy if busy else 0.0,
        "waiting": cycles.waiting / busy if busy else 0.0,
        "accesses": cycles.accesses / busy if busy else 0.0,
        "warps": math.log2(longest.warps),
        "stages": math.log2(longest.stages),
        "registers": math.log2(found.registers),
        "spilled": math.log2(1 + found.spilled),
        "threads": math.log2(found.resident * found.threads / _THREADS),
        "waves": math.log2(found.waves),
        "unfilled": (1 - found.last_wave) / found.waves,
    }


def cpu_features(launches: Sequence[Cost]) -> dict[str, float]:
    """Computes the features of launches that run one after the other on a CPU: how much is moved again, and what for."""
    predicted = sum(each.predicted_seconds for each in launches)
    moved = sum(each.bytes_read + each.bytes_written for each in launches)
    unique = sum(each.unique_bytes for each in launches)
    flops = sum(each.flops for each in launches)
    return {
        "launches": float(len(launches)),
        "floor": sum(each.floor_seconds for each in launches) / predicted,
        "again": math.log2(max(moved, 1) / max(unique, 1)),
        "intensity": math.log2(max(flops, 1) / max(unique, 1)),
        "written": sum(each.bytes_written for each in launches) / max(moved, 1),
    }
