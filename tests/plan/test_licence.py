"""The licence of a kernel is that nothing was refuted; what its verdict claims is kept with it, whole."""

from __future__ import annotations

import pytest
import torch

import weft
from testkit.afresh import chosen_afresh
from weft.errors import VerificationError
from weft.options import options
from weft.plan.choose import checked as checked_module
from weft.run import stats
from weft.verify import Aspect, Shown, Verdict

CLASSES = (
    Shown(Aspect.rational, "of degree 3", decides=True, bound=2.0**-60),
    Shown(Aspect.constants, "agrees at numbers beside 3.7", decides=False),
)
SAID = {
    "equal": Verdict(True, 1e-19, "agrees", ({"m": 3},), CLASSES[:1], (1073741827,), agrees=True),
    "agrees": Verdict(None, None, "agrees up to 3.7", ({"m": 3}, {"m": 1}), CLASSES, (1073741827,), agrees=True),
    "without a number": Verdict(True, None, "agrees", classes=CLASSES[:1], primes=(2, 3), agrees=True),
    "undecided": Verdict(None, None, "could not be run"),
    "refuted": Verdict(False, None, "differs"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_kept_is_the_whole_verdict(name):
    assert Verdict.from_json(SAID[name].to_json()) == SAID[name]


def checked(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> checked_module.CheckedCandidate:
    monkeypatch.setattr(checked_module, "verify", lambda *_, **__: verdict)
    return checked_module.CheckedCandidate(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["equal", "agrees", "without a number"])
def test_what_agrees_may_run_whether_or_not_it_is_shown_equal(monkeypatch, name):
    assert checked(monkeypatch, SAID[name]).verdict() is SAID[name]


@pytest.mark.parametrize("name", ["undecided", "refuted"])
def test_what_is_refuted_or_could_not_be_run_may_not(monkeypatch, name):
    with pytest.raises(VerificationError, match=SAID[name].reason):
        checked(monkeypatch, SAID[name]).verdict()
    with pytest.raises(VerificationError):
        checked(monkeypatch, SAID["equal"]).of({"verdict": SAID[name].to_json()})


@pytest.mark.parametrize("kept", [{}, {"verdict": "agrees"}, {"verdict": {"equal": True}}, {"verdict": None}])
def test_what_cannot_be_read_is_checked_again(monkeypatch, kept):
    assert checked(monkeypatch, SAID["equal"]).of(kept) is SAID["equal"]


def test_a_kept_verdict_is_taken_as_it_is_unless_asked_for_always(monkeypatch):
    kept = {"verdict": SAID["agrees"].to_json()}
    assert checked(monkeypatch, SAID["equal"]).of(kept) == SAID["agrees"]
    with options(verify="always"):
        assert checked(monkeypatch, SAID["equal"]).of(kept) == SAID["equal"]


def test_a_kernel_that_only_agrees_runs_and_says_so_warm_too(monkeypatch, tmp_path):
    """Not PyTorch's to run: nothing was refuted. From the cache it must not come back as equal."""
    x = torch.randn(5, 7)
    with weft.options(cache_dir=str(tmp_path)), chosen_afresh():
        with monkeypatch.context() as patch:
            patch.setattr(checked_module, "verify", lambda *_, **__: SAID["agrees"])
            cold = weft.optimize(lambda x: torch.relu(x) + 1, (x,))
        before = stats.snapshot().cache_hits
        warm = weft.optimize(lambda x: torch.relu(x) + 1, (x,))
        assert stats.snapshot().cache_hits > before
    for program in (cold, warm):
        assert not program.fallbacks
        (kernel,) = program.kernels
        assert kernel.verdict == SAID["agrees"]
        assert "agrees, but is not shown equal: agrees up to 3.7" in str(program)
