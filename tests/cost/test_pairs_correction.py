"""Corrections of predicted times: what is fitted within programs, and what is not."""

from __future__ import annotations

import json
import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "pairs_correction.py"


def loaded() -> Any:
    """Load the tool's module, which lies in no package."""
    spec = spec_from_file_location("pairs_correction", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = loaded()
Calibration, Observation, fitted = TOOL.Calibration, TOOL.Observation, TOOL.fitted

SLOPES = {"one": 0.5, "other": -0.3}


def seen(groups: dict[str, float], noise: float = 0.0, apart: float = 0.0, each: int = 60) -> list[Any]:
    """Pairs whose measured times follow `SLOPES`, and a factor of each group; `apart`: how far features of groups lie apart."""
    rng = np.random.default_rng(7)
    found: list[Any] = []
    for number, (group, bias) in enumerate(groups.items()):
        for _ in range(each):
            features = {"one": rng.normal() + apart * number, "other": 3 * rng.normal() + 10, "same": 5.0}
            wanted = bias + sum(slope * features[name] for name, slope in SLOPES.items()) + noise * rng.normal()
            predicted = float(np.exp(rng.normal()))
            found.append(Observation(group, features, predicted, predicted * math.exp(wanted)))
    return found


def test_what_measured_times_follow_is_found_again() -> None:
    found = fitted(seen({"a": 0.2, "b": 0.2}), ridge=1e-9)
    [unseen] = seen({"c": 0.2}, each=1)
    assert unseen.predicted * found.factor(unseen.features) == pytest.approx(unseen.measured, rel=1e-3)


def test_what_all_pairs_of_a_program_have_in_common_says_nothing_of_a_feature() -> None:
    # Between the programs, more of "one" goes with far less time; within each, with more.
    found = fitted(seen({"a": 8.0, "b": 0.0, "c": -8.0}, noise=0.1, apart=2.0), ridge=1e-6)
    low, high = ({"one": n, "other": 10.0, "same": 5.0} for n in (1.0, 3.0))
    assert found.factor(high) / found.factor(low) == pytest.approx(math.exp(2 * SLOPES["one"]), rel=0.1)


def test_features_beyond_those_that_were_measured_are_taken_to_be_the_last_ones() -> None:
    found = fitted(seen({"a": 0.0}), ridge=1e-9)
    farthest = found.means[0] + 3 * found.deviations[0]
    far, further = ({"one": n, "other": 10.0, "same": 5.0} for n in (farthest, 100 * farthest))
    assert found.factor(further) == pytest.approx(found.factor(far))
    assert found.factor(far) > 1.2 * found.factor({"one": found.means[0], "other": 10.0, "same": 5.0})


def test_a_feature_that_never_changed_counts_for_nothing() -> None:
    found = fitted(seen({"a": 0.0}))
    assert found.weights[found.names.index("same")] == 0.0
    one, other = ({"one": 0.0, "other": 10.0, "same": n} for n in (5.0, 50.0))
    assert found.factor(one) == found.factor(other)


def test_ridge_draws_weights_towards_nothing() -> None:
    free, held = (fitted(seen({"a": 0.0}, noise=0.2), ridge=ridge) for ridge in (1e-9, 1.0))
    assert all(abs(h) <= 0.6 * abs(f) for f, h in zip(free.weights, held.weights, strict=True))


def test_a_correction_goes_through_json() -> None:
    found = fitted(seen({"a": 0.3, "b": 0.1}, noise=0.1))
    assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(KeyError):
        found.factor({"one": 1.0})
