"""Never slower than PyTorch: what `weft.compile` made is tried against it, and the choice is remembered."""

from __future__ import annotations

import math
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.errors import UnsupportedError
from weft.plan.execute.instead import Instead
from weft.plan.measure import clock, trial
from weft.plan.measure.clock import Timed, Timing
from weft.plan.measure.measured import Measured
from weft.plan.measure.spare import spare

NOW = [0.0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own; and a clock that only `slowed` moves, so that a busy machine decides nothing."""
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: NOW[0], process_time=lambda: NOW[0]))
    monkeypatch.setattr(clock, "_busy_seconds", lambda: NOW[0])
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_MEASURE", "auto")


def taking(*seconds: float) -> Timed:
    """Returns what `measure` gives for candidates that take so long."""
    return Timed(tuple(Timing(each) for each in seconds))


def timed(runs, given) -> Timed:
    """Times callables as a trial does."""
    return clock.measure(clock.first_calls(runs, given), given)


def slowed(call, seconds: float, calls: list[str], name: str):
    """`call`, which takes so long and is noted."""

    def slow(*arguments):
        calls.append(name)
        NOW[0] += 0.001 + seconds
        return call(*arguments)

    return slow


def tried(
    monkeypatch,
    *,
    weft_takes: float,
    eager_takes: float,
    calls: list[str],
    fn=lambda x: (torch.exp(x) + 1,),
    dynamic=False,
):
    """A trial of `fn` whose two sides take the given times."""
    found: list[trial.Trial] = []

    def compiled(gm, example):
        plan = compile_graph(gm, example)
        object.__setattr__(plan, "run", slowed(plan.run, weft_takes, calls, "weft"))
        made = trial.faster(plan, slowed(gm.forward, eager_takes, calls, "eager"), trial.changing_sizes(gm))
        assert isinstance(made, trial.Trial)
        found.append(made)
        return made

    torch._dynamo.reset()
    torch.compile(fn, backend=compiled, dynamic=dynamic)(torch.randn(64))
    return found[0]


@pytest.mark.parametrize(("weft_takes", "eager_takes", "winner"), [(0.02, 0.0, "eager"), (0.0, 0.02, "weft")])
def test_the_faster_runs_and_a_second_process_measures_nothing(cache, monkeypatch, weft_takes, eager_takes, winner):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=weft_takes, eager_takes=eager_takes, calls=calls)
    assert calls.count("weft") >= 4
    assert calls.count("eager") >= 4
    calls.clear()
    made(torch.randn(64))
    assert calls == [winner]
    calls.clear()
    # As another process: a new trial of the same graph, whose sides now take the opposite times.
    tried(monkeypatch, weft_takes=eager_takes, eager_takes=weft_takes, calls=calls)
    assert calls == [winner]


@pytest.mark.parametrize("raised", [False, True], ids=["PyTorch runs", "raised"])
def test_what_refuses_is_not_taken_and_not_remembered(cache, monkeypatch, raised):
    """PyTorch in the place of kernels is not what weft is measured by."""
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.02, calls=calls, dynamic=True)
    taken, refuse, instead = made.plan.run, True, Instead(made.eager)
    size_class = torch.randn(300)

    def refusing(*arguments):
        if not refuse:
            return taken(*arguments)
        error = UnsupportedError("too long")
        instead.note(error, arguments, raised=raised)
        if raised:  # after a first write, which the trial does to a copy
            raise error
        return [torch.exp(arguments[-1]) + 1]

    object.__setattr__(made.plan, "run", refusing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made(*given(made, size_class))
    assert list(made.chosen.values())[-1] is made.eager
    refuse = False
    made.chosen.clear()
    calls.clear()
    made(*given(made, size_class))
    assert "eager" in calls, "measured anew"
    assert list(made.chosen.values())[-1] is made.plan.run


def given(made, x):
    """The graph's arguments for `x`: its size goes before it where it is a symbol."""
    return (x.shape[0], x) if made.changing == (1,) else (x,)


def test_a_call_known_to_be_refused_is_no_measure_either(cache):
    instead = Instead(lambda x: [x])
    x = torch.randn(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        instead.note(UnsupportedError("too long"), (x,))

    def known(x):
        assert instead.knows((x,))
        return [x]

    refused, eager = timed((known, lambda x: [x]), spare((x,), ())).timings
    assert refused.seconds == math.inf
    assert eager.seconds < math.inf
    assert Measured(refused, eager).chosen == "PyTorch"
    assert Measured(refused, Timing(2.0), Timing(1.0)).chosen == "library"
    assert Measured(Timing(1.0), Timing(2.0), refused).chosen == "weft"


def test_no_memory_for_kernels_is_none_for_a_trial(cache):
    instead = Instead(lambda x: [x])

    def no_room(x):
        instead.note(torch.OutOfMemoryError("no room"), (x,), raised=True)
        return [x]

    with pytest.raises(torch.OutOfMemoryError, match="for a trial"):
        timed((no_room, lambda x: [x]), spare((torch.randn(4),), ()))


def test_the_key_has_the_gpu_of_the_arguments(cache, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"model {device.index}")
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.01, calls=[])
    parts = [made.parts((7,), place) for place in (None, torch.device("cuda", 0), torch.device("cuda", 1))]
    assert [each.get("gpu") for each in parts] == [None, "model 0", "model 1"]
    assert parts[0].items() < parts[1].items()


def test_each_size_class_is_tried_for_itself(cache, monkeypatch):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.01, calls=calls, dynamic=True)
    calls.clear()
    made(64, torch.randn(64))
    made(65, torch.randn(65))
    assert calls == ["weft", "weft"], "one class"
    made(640, torch.randn(640))
    assert calls.count("eager") >= 4


def test_where_no_size_changes_none_is_read(cache, monkeypatch):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.01, calls=calls)
    assert made.changing == ()
    assert list(made.chosen) == [()]


def test_slower_graphs_are_counted_and_still_right(cache):
    def tiny(x):
        return torch.exp(x) + 1

    torch._dynamo.reset()
    before = weft.stats().slower
    x = torch.randn(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "measure", lambda *_: taking(1.0, 0.5))
        assert torch.equal(weft.compile(tiny)(x), tiny(x))
    assert weft.stats().slower == before + 1


def test_never_means_never(cache, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "never")
    torch._dynamo.reset()
    before = weft.stats().slower
    monkeypatch.setattr(trial, "measure", lambda *_: taking(1.0, 0.5))
    weft.compile(lambda x: torch.exp(x) + 2)(torch.randn(2))
    assert weft.stats().slower == before


def test_a_graph_with_calls_into_pytorch_is_tried(cache, monkeypatch):
    calls: list[str] = []

    def sums(x):
        return (torch.exp(torch.sort(x, 0).values) + 1,)

    made = tried(monkeypatch, weft_takes=0.02, eager_takes=0.0, calls=calls, fn=sums)
    assert made.plan.fallbacks
    assert list(made.chosen.values()) == [made.eager]


def test_a_graph_that_draws_random_numbers_runs_once(cache):
    """Else each trial would draw others, and change what the next call draws."""
    found = []

    def noisy(x):
        return (torch.exp(x) + torch.rand_like(x),)

    def compiled(gm, example):
        plan = compile_graph(gm, example)
        found.append((plan, trial.faster(plan, gm.forward, trial.changing_sizes(gm))))
        return plan.run

    torch._dynamo.reset()
    torch.compile(noisy, backend=compiled, dynamic=False)(torch.randn(64))
    ((plan, runs),) = found
    assert plan.kernels
    assert runs == plan.run


def normalised_product(x, w):
    return (torch.layer_norm(x, x.shape[-1:]) @ w,)


def compiled_as_measured(fn, arguments, takes: tuple[float, float, float]):
    """The trial of `fn`, and how many candidates each timing was of; weft, PyTorch and the library "take" these seconds."""
    made: list[trial.Trial] = []
    timed: list[int] = []

    def compiled(gm, example):
        runs = trial.faster(compile_graph(gm, example), gm.forward, trial.changing_sizes(gm))
        assert isinstance(runs, trial.Trial)
        made.append(runs)
        return runs

    def measure(candidates, arguments):
        timed.append(len(candidates))
        return taking(*takes[: len(candidates)])

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "measure", measure)
        results = torch.compile(fn, backend=compiled, dynamic=False)(*arguments)
    return made[0], timed, results


def test_a_lone_product_is_tried_in_pytorchs_library(cache):
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    before = weft.stats()
    made, timed, results = compiled_as_measured(normalised_product, (x, w), (1.0, 1.0, 0.9))
    assert timed == [2, 3]
    (runs,) = made.chosen.values()
    assert made.library is not None
    assert runs is made.library.run
    assert [call.target for call in made.library.captured.calls.values()] == [torch.ops.aten.matmul.default]
    assert made.library.kernels, "weft still normalises"
    assert torch.allclose(results[0], normalised_product(x, w)[0], atol=1e-4)
    assert (weft.stats().library, weft.stats().fallbacks) == (before.library + 1, before.fallbacks)
    # As another process: it measures nothing and makes the same choice.
    again, timed, results = compiled_as_measured(normalised_product, (x, w), (0.0, 0.0, 0.0))
    assert timed == []
    assert again.library is not None
    assert list(again.chosen.values()) == [again.library.run]
    assert torch.allclose(results[0], normalised_product(x, w)[0], atol=1e-4)


@pytest.mark.parametrize(("first", "then"), [((0.9, 1.0, 1.0), [2]), ((1.0, 1.0, 0.99), [3])], ids=["not", "so"])
def test_a_process_that_measures_again_tries_the_library_only_where_the_first_did(cache, monkeypatch, first, then):
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    monkeypatch.setattr(trial.Measured, "is_to_be_repeated", property(lambda _: True))
    compiled_as_measured(normalised_product, (x, w), first)
    before = weft.stats().compiles
    _, timed, _ = compiled_as_measured(normalised_product, (x, w), (1.0, 1.0, 0.99))
    assert timed == then
    assert weft.stats().compiles == before


@pytest.mark.parametrize(
    ("weft_takes", "eager_takes", "counts"),
    [
        (0.0, 0.0, [26, 26]),  # the first call does not count, and 25 rounds
        (0.03, 0.03, [4, 4]),
        (0.06, 0.06, [2, 2]),  # once or twice a side, the first call among them
        (0.06, 0.6, [2, 2]),
        (0.6, 0.6, [2, 2]),
        (0.6, 1.2, [1, 1]),  # clear at once
        (1.2, 0.6, [2, 2]),  # a first call may have packed weights
    ],
)
def test_who_waits_for_a_slow_call_waits_few_times(cache, weft_takes, eager_takes, counts):
    calls: list[str] = []
    sides = (("weft", weft_takes), ("eager", eager_takes))
    runs = [slowed(lambda *_: (), seconds, calls, name) for name, seconds in sides]
    found = timed(runs, spare((torch.ones(3),), ()))
    assert [calls.count(name) for name, _ in sides] == counts
    assert [timing.seconds for timing in found.timings] == pytest.approx([0.001 + weft_takes, 0.001 + eager_takes])
    assert found.spent == pytest.approx(sum(n * (0.001 + each[1]) for n, each in zip(counts, sides, strict=True)))


def test_a_first_call_that_alone_is_slow_does_not_make_the_graph_a_slow_one(cache):
    """Packing, thread pools and the library's own compilers: eager is not judged by two calls for that."""
    calls: list[str] = []

    def run(name, first, later):
        def made(*arguments):
            NOW[0] += later if name in calls else first
            calls.append(name)
            return ()

        return made

    found = timed([run("weft", 0.3, 0.004), run("eager", 0.5, 0.003)], spare((torch.ones(3),), ()))
    assert [calls.count(name) for name in ("weft", "eager")] == [17, 17], "0.1 s of rounds, after one more"
    assert [timing.seconds for timing in found.timings] == pytest.approx([0.004, 0.003])
    assert Measured(*found.timings).chosen == "PyTorch"


@pytest.mark.parametrize("winner", ["weft", "eager"])
@pytest.mark.parametrize("busy", [0.0, 8.0], ids=["quiet", "busy"])
def test_all_trials_of_a_slow_graph_take_three_calls_beyond_the_users_own(cache, monkeypatch, winner, busy):
    """However busy the machine is and however close the times are; and the first call's own result is returned."""
    monkeypatch.setattr(clock, "_busy_seconds", lambda: (1 + busy) * NOW[0])
    made = []
    for _ in range(6):  # processes
        calls: list[str] = []
        weft_takes, eager_takes = (0.6, 0.61) if winner == "weft" else (0.7, 0.6)
        tried(monkeypatch, weft_takes=weft_takes, eager_takes=eager_takes, calls=calls)
        made.append(calls)
    assert sum(map(len, made)) - len(made) == 3, "each process made its own call"
    assert made[-1] == [winner]


def test_a_clear_trial_on_a_busy_machine_is_made_again_with_one_call_more_each(cache, monkeypatch):
    monkeypatch.setattr(clock, "_busy_seconds", lambda: 9 * NOW[0])
    made = []
    for _ in range(6):
        tried(monkeypatch, weft_takes=0.5, eager_takes=1.0, calls=(calls := []))
        made.append(calls)
    assert made == [["weft", "eager"]] * 3 + [["weft"]] * 3


def test_the_trials_of_a_quick_graph_take_half_a_second_at_most_and_one_more(cache, monkeypatch):
    monkeypatch.setattr(clock, "_busy_seconds", lambda: 9 * NOW[0])
    seconds = []
    for _ in range(6):
        begin = NOW[0]
        tried(monkeypatch, weft_takes=0.024, eager_takes=0.024, calls=[])
        seconds.append(NOW[0] - begin)
    assert seconds == pytest.approx([0.2, 0.15, 0.15, 0.15, 0.025, 0.025]), "3 rounds, then 2; and first calls"


def test_results_of_a_trial_are_the_users_where_nothing_is_written_into(cache, monkeypatch):
    """And where the graph writes, each call of the trial begins from what the user gave, and the user's own is made after it."""
    calls: list[str] = []
    x = torch.randn(64)

    def counter(x):
        x.add_(1.0)
        return (torch.exp(x),)

    for fn, more in ((lambda x: (torch.exp(x),), 0), (counter, 1)):
        torch._dynamo.reset()
        calls.clear()
        made = tried(monkeypatch, weft_takes=0.6, eager_takes=1.2, calls=calls, fn=fn)
        assert calls == ["weft", "eager"] + ["weft"] * more
        calls.clear()
        made.chosen.clear()
        given = x.clone()
        (found, *_) = made(given)
        assert calls == ["weft"], "measured before"
        assert torch.allclose(found, torch.exp(x + more))
        assert torch.equal(given, x + more)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("takes", "tried", "winner"),
    [
        ((0.9, 1.0, 0.1), [2], "weft"),  # clearly faster: nothing else is built
        ((1.0, 1.0, 0.99), [2, 3], "weft"),
        ((1.2, 1.0, 1.15), [2, 3], "PyTorch"),
        ((1.3, 1.0, 1.02), [2, 3], "library"),
    ],
)
def test_the_library_must_save_something_and_all_must_keep_up_with_pytorch(cache, takes, tried, winner):
    made, timed, _ = compiled_as_measured(normalised_product, (torch.randn(64, 256), torch.randn(256, 256)), takes)
    assert timed == tried
    library = None if made.library is None else made.library.run
    assert list(made.chosen.values()) == [{"weft": made.plan.run, "PyTorch": made.eager, "library": library}[winner]]


def test_what_fails_with_the_library_s_matmuls_leaves_the_plan_as_it_is(cache, monkeypatch):
    def failing(*arguments):
        raise ValueError("a defect")

    monkeypatch.setenv("WEFT_DEFECTS", "warn")
    monkeypatch.setattr("weft.plan.execute.plan.for_the_library", failing)
    given = torch.randn(64, 256), torch.randn(256, 256)
    made, timed, results = compiled_as_measured(normalised_product, given, (1.0, 1.1, 0.1))
    assert timed == [2]
    assert made.library is None
    assert list(made.chosen.values()) == [made.plan.run]
    torch.testing.assert_close(results, normalised_product(*given), atol=1e-3, rtol=1e-3)


def test_products_of_products_are_not_taken_apart(cache):
    def attention(q, k, v):
        return (torch.softmax(q @ k.T, -1) @ v,)

    arguments = (torch.randn(64, 32), torch.randn(48, 32), torch.randn(48, 16))
    made, timed, _ = compiled_as_measured(attention, arguments, (1.0, 1.0, 0.1))
    assert timed == [2]
    assert made.plan.with_library is None


class Layer(torch.nn.Module):
    """A transformer's layer, as small as it has every part."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.norm = heads, torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("takes", [(0.5, 1.0, 2.0), (1.0, 1.0, 0.9)], ids=["weft", "library"])
def test_the_first_sizes_and_all_others_have_the_same_binaries(cache, takes):
    """PyTorch traces twice: once for the first sizes, as numbers, and once for sizes that are symbols."""
    torch._dynamo.reset()
    model = Layer().eval()
    fast = weft.compile(model)
    emitted, library = [], weft.stats().library
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(trial, "measure", lambda candidates, _: taking(*takes[: len(candidates)]))
        for length in (96, 97, 65, 120):
            x = torch.randn(1, length, 32)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
            emitted.append(weft.stats().binaries_emitted)
    assert emitted[1:] == [emitted[0]] * 3
    assert (weft.stats().library > library) == (takes[2] < 1)


def test_what_a_trial_without_memory_timed_is_let_go_of(monkeypatch):
    """The user's call needs the memory, and an error that a frame of its own holds lives until garbage is collected."""
    held = []

    def measured(_, given, before):
        result = torch.empty(9)
        held.append(weakref.ref(result))
        failure = torch.OutOfMemoryError("no room")
        raise failure

    monkeypatch.setattr(trial.Trial, "measured", measured)
    plan: Any = SimpleNamespace(captured=SimpleNamespace(writes=()))
    tried = trial.Trial(plan, lambda *_: (), {}, ())
    assert tried.measured_in_memory((torch.ones(3),), None) is None
    assert held[0]() is None
