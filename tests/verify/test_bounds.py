"""No bound that a verdict states is exceeded by what happens modulo small primes (benchmarks/bounds.py, a small share of it)."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bounds() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        return import_module("bounds")


@pytest.mark.parametrize("kind", ["polynomials", "quotients", "functions", "exponentials"])
def test_wrong_programs_are_accepted_no_more_often_than_is_stated(bounds: Any, kind: str) -> None:
    pairs = [pair for pair in bounds.pairs() if pair.kind == kind]
    assert len(pairs) >= 2
    found = [bounds.measured(pair, chain, 2000) for pair in pairs for chain in bounds.CHAINS[::3]]
    assert not [m for m in found if m.exceeds]
    assert any(m.accepted > 0 for m in found), "a bound that nothing comes near says nothing of itself"


def test_a_bound_may_be_attained(bounds: Any) -> None:
    """A product of d factors has d roots: one less in the degree would be a wrong bound."""
    for pair in (p for p in bounds.pairs() if "roots" in p.name):
        found = bounds.measured(pair, (23, 47), 4000)
        assert 0.7 * found.bound < found.accepted
        assert not found.exceeds
        degree = int(pair.name.split()[0])
        wrong = bounds.Measured(pair.kind, pair.name, 47, (degree - 1) / 47, found.accepted, found.points)
        assert wrong.exceeds or degree == 8, "noise hides one in eight"


def test_a_share_above_its_bound_is_seen(bounds: Any) -> None:
    assert bounds.Measured("", "", 47, 0.1, 0.2, 2000).exceeds
    assert not bounds.Measured("", "", 47, 0.1, 0.11, 2000).exceeds
    assert not bounds.Measured("", "", 47, 3.0, 1.0, 2000).exceeds
