"""Tuning on a GPU: candidates that fail, are wrong or have no time, and what is kept of them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import weft
from testkit.block import programs
from weft.errors import UnsupportedError
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.targets.base import Refused
from weft.plan.targets.candidates import Candidate, Example, Selection
from weft.plan.targets.triton import rounds, tune
from weft.plan.targets.triton.tune import tuned
from weft.run.gpu import Assembled, Job, assemble
from weft.target import Target
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram

H200 = Target("cuda", "90")


@functools.cache
def candidates() -> Selection:
    program = programs.linear_relu(DType.bfloat16)
    return looked_at_closely(select(program, Example({"M": 64, "N": 64, "K": 64}, {}, 1, H200)))


def searching(monkeypatch: pytest.MonkeyPatch, **changed: float) -> None:
    """Change how much a quick tuning tries: of as many binaries as it likes."""
    known = tune.SEARCHES["quick", True]
    monkeypatch.setitem(
        tune.SEARCHES, ("quick", True), replace(known, **{"binaries": math.inf, "closely": 4, **changed})
    )


@pytest.fixture
def selection(monkeypatch: pytest.MonkeyPatch) -> Selection:
    """Candidates for a GPU that is said to be here."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    searching(monkeypatch, programs=4)
    return candidates()


def timing(seconds: Callable[[Candidate], float], made: list[Candidate]) -> type:
    """Stands for what times candidates on a GPU: `seconds` gives a time, or raises."""

    class Timing(rounds.CandidateTimer):
        def __init__(self, *_: Any) -> None:
            self.device, self.inputs = torch.device("cpu"), dict[str, torch.Tensor]()
            self.timer = SimpleNamespace(median=lambda run, best: seconds(self.now))

        def _run(self, ready: rounds.Ready) -> Callable[[], tuple[torch.Tensor, ...]]:
            self.now = ready.candidate
            made.append(ready.candidate)
            return lambda: ()

    return Timing


def of(stages: int, origin: str) -> Candidate:
    """The likeliest candidate with other stages, under another name: another program."""
    chosen = candidates().chosen
    schedule = replace(chosen.schedule, stages=stages)
    return replace(chosen, applied=copy(chosen.applied), schedule=schedule, origin=origin)


def right(_: Candidate) -> None:
    """Says of every candidate that it may run."""


def tune_it(
    monkeypatch: pytest.MonkeyPatch,
    selection: Selection,
    tmp_path: Any,
    made: type,
    tune_seconds: int | None = None,
    refused: Refused = right,
) -> Selection:
    monkeypatch.setattr(rounds, "CandidateTimer", made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    with weft.options(cache_dir=str(tmp_path), tune_seconds=tune_seconds):
        return tuned(selection, torch.device("cuda", 0), refused)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("no room"), "memory did not suffice"),
        (RuntimeError("CUDA error: invalid argument (CUDA_ERROR_INVALID_VALUE)\nmore"), "CUDA error: invalid argument"),
        (UnsupportedError("too few registers"), "too few registers"),
    ],
)
def test_a_candidate_that_fails_when_it_is_timed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, error: Exception, said: str
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    *_, failing, best = tune._each_once((selection.chosen, *(selection.others or ())), 4)

    def seconds(candidate: Candidate) -> float:
        if candidate is failing:
            raise error
        return 1e-6 if candidate is best else 2e-6

    found = tune_it(monkeypatch, selection, tmp_path, timing(seconds, []))
    assert found.chosen is best
    said_of = {c.origin: c.reason for c in found.considered if c.reason}
    assert any(said in reason for reason in said_of.values())
    assert "\nmore" not in str(list(said_of.values()))
    assert bool(freed) == isinstance(error, torch.OutOfMemoryError)


def test_no_memory_to_time_any_takes_the_likeliest_and_remembers_nothing(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    def none(candidate: Candidate) -> float:
        raise torch.OutOfMemoryError("no room")

    class NoRoom(rounds.CandidateTimer):
        def __init__(self, *_: Any) -> None:
            raise torch.OutOfMemoryError("no room for operands")

    for made in (timing(none, []), NoRoom):
        found = tune_it(monkeypatch, selection, tmp_path, made)
        assert found.chosen is selection.chosen
        assert not found.settled
        assert sum("memory did not suffice" in c.reason for c in found.considered) >= 4
    timed: list[Candidate] = []
    found = tune_it(monkeypatch, selection, tmp_path, timing(lambda candidate: 1e-6, timed))
    assert timed  # now that there is room
    assert found.settled


def test_one_of_each_number_of_thread_blocks_is_compared_before_others(selection: Selection) -> None:
    tried = (selection.chosen, *(selection.others or ()))
    most = 2 * tried[0].cost.predicted_seconds
    counts = {each.cost.thread_blocks for each in tried if each.cost.predicted_seconds <= most}
    found = tune._each_once(tried, 64)
    assert found[0] is tried[0]
    assert 1 < len(counts) < len(found)
    assert {each.cost.thread_blocks for each in found[: len(counts)]} == counts
    assert len({id(each.applied) for each in found}) == len(found)


def test_candidates_without_kernels_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    """Two of four programs that are to be tried have no kernels: the fifth and sixth are tried in their place."""
    tried = (selection.chosen, *(selection.others or ()))
    first = tune._each_once(tried, 4)
    more = tune._each_once(tried, 8)[len(first) :][:2]
    lost = {id(each.applied) for each in first[-2:]}
    whole = rounds._printed

    def printed(program: TensorProgram, candidate: Candidate, example: Example) -> Any:
        if id(candidate.applied) in lost:
            return UnsupportedError("too much shared memory")
        return whole(program, candidate, example)

    monkeypatch.setattr(rounds, "_printed", printed)
    searching(monkeypatch, programs=4, closely=0)
    timed: list[Candidate] = []
    tune_it(monkeypatch, selection, tmp_path, timing(lambda _: 1e-6, timed))
    assert len(more) == len(lost) == 2
    assert {id(each.applied) for each in timed} == {id(each.applied) for each in (*first, *more)} - lost


def test_the_next_are_tried_where_the_first_have_no_kernels(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    one, two, three, four, five = (of(3, name) for name in "abcde")
    lost = {id(c.applied) for c in (one, two, three, four)}
    whole = rounds._printed

    def printed(program: TensorProgram, candidate: Candidate, example: Example) -> Any:
        if id(candidate.applied) in lost:
            return UnsupportedError("too much shared memory")
        return whole(program, candidate, example)

    monkeypatch.setattr(rounds, "_printed", printed)
    given = replace(selection, chosen=one, others=(two, three, four, five))
    found = tune_it(monkeypatch, given, tmp_path, timing(lambda _: 1e-6, []))
    assert {c.origin[0] for c in found.considered if c.seconds is not None and c.origin[1] == ":"} == {"e"}


# Several regions: the first rounds of all are timed before any is done with.


def test_what_was_timed_ahead_is_not_timed_again(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    timed: list[Candidate] = []
    begun: list[object] = []
    rested: list[rounds.Rounds] = []

    def rest(self: rounds.Rounds) -> None:
        rested.append(self)

    monkeypatch.setattr(rounds, "CandidateTimer", timing(lambda _: float(len(timed)), timed))
    monkeypatch.setattr(rounds.Rounds, "rest", rest)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(tune, "begun", lambda task: begun.append(task) or task)
    device = torch.device("cuda", 0)
    with weft.options(cache_dir=str(tmp_path)):
        ahead = tuple(tune.started(selection, device))
        first = len(begun)
        assert (first, len(timed), len(rested)) == (4, 0, 0)
        tune.go_on(ahead)
        assert (len(timed), len(rested)) == (4, 1)
        assert len(begun) > first  # other warps and stages of the best are compiled meanwhile
        found = tuned(selection, device, right, ahead=ahead)
        assert len(timed) == len(begun)
        assert len({(id(each.applied), each.schedule) for each in timed}) == len(timed)
        assert found.chosen is timed[0]
    with weft.options(cache_dir=str(tmp_path / "other")):
        alone = tuned(selection, device, right)
    assert [c.origin for c in alone.considered] == [c.origin for c in found.considered]


def test_what_could_not_be_timed_ahead_is_timed_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    def fails(self: rounds.Rounds, candidates: Any) -> None:
        raise RuntimeError("the GPU is gone for a moment")

    timed: list[Candidate] = []
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    with weft.options(cache_dir=str(tmp_path)):
        ahead = tuple(tune.started(selection, device))
        with monkeypatch.context() as patch:
            patch.setattr(rounds.Rounds, "run", fails)
            with pytest.raises(RuntimeError):
                tune.go_on(ahead)
        monkeypatch.setattr(rounds, "CandidateTimer", timing(lambda _: float(len(timed)), timed))
        assert tuned(selection, device, right, ahead=ahead).chosen is timed[0]


def test_a_tuning_that_may_take_so_long_is_not_begun_beside_others(selection: Selection, tmp_path: Any) -> None:
    with weft.options(cache_dir=str(tmp_path), tune_seconds=5):
        assert not any(isinstance(each, tune.Tuning) for each in tune.started(selection, torch.device("cuda", 0)))


# The fastest is taken only if it is right.


def fastest_first(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, *wrong: Candidate
) -> tuple[Selection, list[Candidate]]:
    """A tuning in which the likeliest is the fastest, and some are wrong; and which candidates were asked about, in order."""
    timed: list[Candidate] = []
    asked: list[Candidate] = []

    def refused(candidate: Candidate) -> str | None:
        asked.append(candidate)
        return "its code is wrong" if candidate in wrong else None

    searching(monkeypatch, programs=6, closely=0)
    made = timing(lambda _: float(len(timed)), timed)
    return tune_it(monkeypatch, selection, tmp_path, made, refused=refused), asked


def test_a_wrong_winner_gives_way_to_the_next_and_this_is_kept(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    a, b, c = (of(3, name) for name in "abc")
    given = replace(selection, chosen=a, others=(b, c))
    found, asked = fastest_first(monkeypatch, given, tmp_path, a)
    assert found.chosen is b
    assert [each.origin for each in asked] == ["a", "b"]
    said = {each.origin[0]: each for each in found.considered if each.origin[1] == ":"}
    assert (said["a"].seconds, said["a"].reason) == (None, "its code is wrong")
    assert (said["b"].seconds, said["c"].seconds) == (2.0, 3.0)
    again, asked = fastest_first(monkeypatch, given, tmp_path, a)
    assert again.chosen.origin == "b"
    assert again.considered == found.considered
    assert not asked


def test_warps_and_stages_of_a_wrong_program_are_passed_over_but_not_its_plain_loop() -> None:
    a, b = of(3, "a"), of(3, "b")
    deeper, plain = (replace(a, schedule=replace(a.schedule, stages=n)) for n in (4, 1))
    chosen, _ = tune._first_right((a, deeper, plain, b), lambda each: "wrong" if each is a else None)
    assert chosen is plain
    chosen, reasons = tune._first_right((a, deeper, b), lambda each: "wrong" if each is a else None)
    assert chosen is b
    assert {name: said.partition(":")[0] for name, said in reasons.items()} == {
        a.name: "wrong",
        deeper.name: "not judged",
    }


def test_where_none_of_a_few_is_right_the_fastest_is_kept(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    """Whoever builds it finds that it is wrong, in the next process too, and times nothing for that."""
    every = [of(3, name) for name in "abcdef"]
    given = replace(selection, chosen=every[0], others=tuple(every[1:]))
    found, asked = fastest_first(monkeypatch, given, tmp_path, *every)
    assert found.chosen is every[0]
    assert [each.origin for each in asked] == list("abcdef")[: tune._JUDGED]
    found, asked = fastest_first(monkeypatch, given, tmp_path, *every)
    assert (found.chosen.origin, asked) == ("a", [])


def test_the_first_that_is_right_serves_untimed_where_no_tuning_is_known(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    known = selection.chosen
    impossible = replace(known, schedule=replace(known.schedule, warps=3), origin="impossible")
    wrong, good, unasked = of(3, "wrong"), of(2, "good"), of(1, "unasked")
    given = replace(selection, chosen=impossible, others=(wrong, good, unasked))
    with weft.options(compile="first"):
        found, asked = fastest_first(monkeypatch, given, tmp_path, wrong)
        assert found.chosen is good
        assert not found.settled
        assert [each.origin for each in asked] == ["wrong", "good"]
        assert [(each.origin[:5], each.seconds) for each in found.considered[-2:]] == [("impos", None), ("wrong", None)]
        again, asked = fastest_first(monkeypatch, given, tmp_path, wrong)
        assert (again.chosen, len(asked)) == (good, 2)  # an untimed choice is not kept
    tuned_one, _ = fastest_first(monkeypatch, replace(given, chosen=unasked, others=(good,)), tmp_path, unasked)
    assert tuned_one.chosen is good
    with weft.options(compile="first"):
        taken, asked = fastest_first(monkeypatch, given, tmp_path)
    assert (taken.chosen.schedule, asked) == (good.schedule, [])  # what was tuned before serves
    assert taken.settled


def test_where_a_few_untimed_ones_are_wrong_the_likeliest_of_them_is_taken(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    every = [of(3, name) for name in "abcdef"]
    given = replace(selection, chosen=every[0], others=tuple(every[1:]))
    with weft.options(compile="first"):
        found, asked = fastest_first(monkeypatch, given, tmp_path, *every)
    assert found.chosen is every[0]  # whoever builds it finds that it is wrong
    assert len(asked) == tune._JUDGED


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ("4,3 8,4 8,3 8,2 4,4 8,6 4,2", "4,3 8,3 4,4 4,2 8,4 8,2"),  # one of both is changed before both are
        ("8,4,1.05 8,3 8,2,1.9 4,4,2.1 4,3,3", "8,4 8,3 8,2"),  # what is predicted to be far off takes a compiler long
    ],
)
def test_the_second_round_tries_warps_and_stages_like_the_best_and_none_far_off(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, given: str, tried: str
) -> None:
    def candidate(warps: float, stages: float, seconds: float = 1.0) -> Candidate:
        chosen = selection.chosen
        schedule = replace(chosen.schedule, warps=int(warps), stages=int(stages))
        return replace(chosen, schedule=schedule, cost=replace(chosen.cost, predicted_seconds=seconds))

    searching(monkeypatch, programs=4, closely=1)
    first, *others = [candidate(*map(float, each.split(","))) for each in given.split()]
    timed, known = list[Candidate](), replace(selection, chosen=first, others=tuple(others))
    tune_it(monkeypatch, known, tmp_path, timing(lambda _: 1.0 / len(timed), timed))
    assert " ".join(f"{each.schedule.warps},{each.schedule.stages}" for each in timed) == tried


@pytest.mark.parametrize("fails", [False, True])
def test_quick_tuning_compiles_fourteen_binaries_at_most(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, *, fails: bool
) -> None:
    """Those of candidates in several launches count, and those that fail; small ones that merge do not."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    tried: list[Candidate] = []
    whole = rounds._printed

    def printed(program: TensorProgram, candidate: Candidate, example: Example) -> Any:
        tried.append(candidate)
        lost = fails and len(tried) < 3
        return UnsupportedError("too much shared memory") if lost else whole(program, candidate, example)

    monkeypatch.setattr(rounds, "_printed", printed)
    tune_it(monkeypatch, selection, tmp_path, timing(lambda _: 1e-6, []))
    assert 7 <= tune._binaries(tried) <= 14
    assert len(tried) == len({(id(each.applied), each.schedule) for each in tried})


def test_two_binaries_where_nothing_is_multiplied(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    """A softmax of long rows."""
    rows = weft.optimize(
        lambda t: torch.softmax(t, -1), (torch.randn(64, 4096),), target="cuda:90", effort="none", judge="off"
    )
    program = rows.plans[0].regions[0].program
    sizes = dict(zip((s.name for s in program.spaces()), (64, 4096), strict=True))
    own = looked_at_closely(select(program, Example(sizes, {}, 1, H200)))
    timed: list[Candidate] = []
    tune_it(monkeypatch, own, tmp_path, timing(lambda _: 1e-6, timed))
    assert 1 <= tune._binaries(timed) <= 2
    del selection


def test_what_needs_no_kernel_is_not_tuned(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    monkeypatch.setattr(tune, "kernels", lambda _: ())
    timed: list[Candidate] = []
    found = tune_it(monkeypatch, selection, tmp_path, timing(lambda _: 1e-6, timed))
    assert not timed
    assert found.chosen is selection.chosen
    assert found.others == ()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The tuner's clock, which moves where a test moves it."""
    found = [100.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def test_a_tuning_that_was_cut_short_is_kept_for_those_with_as_little_time(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, now: list[float]
) -> None:
    timed: list[Candidate] = []
    settled: list[bool] = []

    def slowly(candidate: Candidate) -> float:
        now[0] += 6.0
        return 1.0 / len(timed)  # the last one is the fastest

    def tuned_in(seconds: int | None) -> tuple[int, Candidate]:
        timed.clear()
        found = tune_it(monkeypatch, selection, tmp_path, timing(slowly, timed), seconds)
        settled.append(found.settled)
        return len(timed), found.chosen

    count, half = tuned_in(10)
    assert count == 2
    assert not settled.pop()
    assert tuned_in(10)[0] == 0
    assert tuned_in(11)[0] == 2
    count, whole = tuned_in(None)
    assert count > 4
    assert settled[-1]
    assert whole.schedule != half.schedule
    assert [tuned_in(seconds)[0] for seconds in (None, 9)] == [0, 0], "a whole tuning is good for all"
    assert tuned_in(9)[1].schedule == whole.schedule


def test_the_time_for_tuning_bounds_compiling_but_for_one_candidate(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any, now: list[float]
) -> None:
    given: list[float] = []

    def slow(job: Job, seconds: float) -> Assembled:
        given.append(seconds)
        if seconds < rounds.COMPILING:
            now[0] += 10.0
        return assemble(job, seconds if seconds <= 0 else rounds.COMPILING)

    monkeypatch.setattr("weft.run.gpu.build.assemble", slow)
    monkeypatch.setattr(rounds, "side_by_side", functools.partial(rounds.side_by_side, workers=1))
    found = tune_it(monkeypatch, selection, tmp_path, timing(lambda candidate: 1e-6, []), 5)
    assert given[:2] == [rounds.COMPILING, 5.0]
    assert given[2:]
    assert all(left < 0 for left in given[2:])
    assert found.chosen is selection.chosen
    assert any("out of time" in c.reason for c in found.considered)


def test_while_a_graph_is_captured_nothing_is_timed(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any
) -> None:
    monkeypatch.setattr(tune, "capturing", lambda: True)
    timed: list[Candidate] = []
    found = tune_it(monkeypatch, selection, tmp_path, timing(lambda candidate: 1e-6, timed))
    assert found.chosen is selection.chosen
    assert not timed
    assert not found.settled


def test_untimed_by_an_option_is_settled(monkeypatch: pytest.MonkeyPatch, selection: Selection, tmp_path: Any) -> None:
    timed: list[Candidate] = []
    with weft.options(effort="none"):
        found = tune_it(monkeypatch, selection, tmp_path, timing(lambda candidate: 1e-6, timed))
    assert found.settled
    assert not timed
