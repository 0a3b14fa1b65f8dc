"""`torch.compiler.set_stance` means with weft what it means with PyTorch's own compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo import eval_frame
from torch._dynamo.testing import CompileCounter
from torch.compiler import set_stance

import weft
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing

WEIGHT = torch.randn(8, 12)
WAYS = ["compile", "backend", "background"]
FORBIDDING = ["force_eager", "eager_on_recompile", "fail_on_recompile"]


def body(x):
    return torch.softmax(torch.relu(x @ WEIGHT), -1)


class Counted:
    """A function compiled in one of the ways, and what its calls did."""

    def __init__(self, way: str, **options: object):
        torch._dynamo.reset()
        self.python = 0

        def function(x):
            if not torch.compiler.is_compiling():
                self.python += 1
            return body(x)

        more: dict[str, object] = {"compile": "background"} if way == "background" else {}
        options = {"measure": "never"} | options | more
        if way == "backend":
            compile_: Any = torch.compile
            self.fast = compile_(function, backend="weft", options=options)
        else:
            self.fast = weft.compile(function, **options)

    def __call__(self, length: int) -> str:
        """Calls it, checks the result, and says what ran: the function itself, what was compiled, or a graph that is new."""
        x, python, graphs = torch.randn(length, 8), self.python, graphs_so_far()
        with torch.no_grad():
            torch.testing.assert_close(self.fast(x), body(x))
            assert weft.ready(self.fast, 300)
        if graphs_so_far() > graphs:
            return "new"
        return "function" if self.python > python else "compiled"


def graphs_so_far() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(eval_frame, "_EXAMPLE_INPUTS", None)  # by line: what "eager_then_compile" saw in other tests


@pytest.mark.parametrize("way", WAYS)
def test_force_eager(way) -> None:
    counted, asked = Counted(way), weft.stats().asked
    with set_stance("force_eager"):
        assert [counted(5), counted(6)] == ["function"] * 2
    assert weft.stats().asked == asked
    assert counted(5) == "new"
    with set_stance("force_eager"):
        assert counted(5) == "function"
    assert counted(5) == "compiled"


@pytest.mark.parametrize("way", WAYS)
def test_fail_on_recompile(way) -> None:
    counted = Counted(way)
    with set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
        counted(5)
    assert [counted(5), counted(6)] == ["new"] * 2
    with set_stance("fail_on_recompile"):
        assert [counted(5), counted(6), counted(7), counted(700)] == ["compiled"] * 4
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            counted(1)


@pytest.mark.parametrize("way", WAYS)
def test_eager_on_recompile(way) -> None:
    counted = Counted(way)
    with set_stance("eager_on_recompile"):
        assert counted(5) == "function"
    assert counted(5) == "new"
    with set_stance("eager_on_recompile"):
        assert [counted(5), counted(6)] == ["compiled", "function"]
    assert counted(6) == "new"


@pytest.mark.parametrize("way", WAYS)
def test_eager_then_compile(way) -> None:
    counted = Counted(way)
    with set_stance("eager_then_compile"):
        # The second length differs from the first, so that one graph serves for all.
        assert [counted(5), counted(6), counted(7)] == ["function", "new", "compiled"]
    assert counted(8) == "compiled"


class TestTrials:
    """What is timed at the first call of a class of sizes."""

    @pytest.fixture
    def trials(self, monkeypatch):
        """The trials made; PyTorch wins those with a length of over 100, weft the others."""
        found = []

        def measured(candidates, given):
            found.append(next(a.shape[0] for a in given.arguments if isinstance(a, torch.Tensor)))
            times = (0.1, 1.0, 1.0) if found[-1] <= 100 else (1.0, 0.1, 1.0)
            return Timed(tuple(map(Timing, times[: len(candidates)])))

        monkeypatch.setattr(trial, "measure", measured)
        return found

    @pytest.mark.parametrize("stance", FORBIDDING[1:])
    def test_a_stance_that_forbids_compiling_forbids_trials(self, trials, stance) -> None:
        counted = Counted("backend", measure="auto")
        assert [counted(5), counted(6)] == ["new"] * 2
        made = list(trials)
        with set_stance(stance):
            assert counted(900) == "compiled"
        assert trials == made
        assert counted(900) == "compiled"
        assert trials != made

    @pytest.mark.parametrize("stance", FORBIDDING[1:])
    def test_nothing_is_asked_for_in_the_background(self, stance) -> None:
        counted = Counted("background", measure="auto")
        assert [counted(5), counted(6)] == ["new"] * 2
        asked = weft.stats().asked
        with set_stance(stance):
            assert counted(900) == "compiled"
        assert weft.stats().asked == asked
        counted(900)
        assert weft.stats().asked == asked + 1

    @pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
    def test_what_ran_without_a_trial_is_not_taken_for_faster(self, trials, stance) -> None:
        counted = Counted("compile", measure="auto")
        assert [counted(500), counted(600)] == ["new", "new"]
        with set_stance(stance):
            counted(5)
        trials.clear()
        counted(5)
        assert trials == [5]

    def test_a_forced_backend_serves_where_the_function_itself_would(self, trials) -> None:
        counted, other = Counted("compile", measure="auto"), CompileCounter()
        assert [counted(500), counted(500)] == ["new", "function"]
        with set_stance("default", force_backend=other):
            assert counted(500) == "new"
        assert other.frame_count == 1
        assert counted(500) == "function"


@pytest.mark.parametrize("stance", [*FORBIDDING, "eager_then_compile"])
def test_what_is_asked_for_in_so_many_words_is_done(stance) -> None:
    x, w = torch.randn(5, 8), torch.randn(8, 12)
    with set_stance(stance):
        assert len(weft.optimize(body, x).kernels) == 1
        assert weft.equivalent(lambda x, w: x @ w, lambda x, w: x.mT.mT @ w, (x, w)).equal


def test_a_program_follows_the_stance() -> None:
    x = torch.randn(5, 8)
    program = weft.optimize(body, x)
    for stance in FORBIDDING:
        with set_stance(stance):
            torch.testing.assert_close(program(x), body(x))
