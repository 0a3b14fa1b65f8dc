"""GPUs, drivers, Triton or memory that fail: an error if weft was asked ahead of time, else PyTorch runs, with a reason."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.errors import CompilerError, TargetError, UnsupportedError
from weft.plan import Plan
from weft.plan.execute import instead
from weft.plan.execute.made import running
from weft.plan.execute.runner import Runner
from weft.plan.execute.steps import PlanStep, RegionStep
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing
from weft.run.gpu import Assembled
from weft.target import Target

H200 = Target("cuda", "90")


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def inputs(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape or (8, 8)), torch.randn(8, 8)


# Architectures.


@pytest.mark.parametrize("target", ["cuda:75", "cuda:999", "hip:gfx90a"])
def test_an_architecture_that_weft_has_no_kernels_for(target: str) -> None:
    with pytest.raises(TargetError, match=f"no kernels for {target}") as caught:
        weft.optimize(linear, inputs(), target=target)
    assert "cuda:80" in caught.value.todo
    assert "gfx942" in caught.value.todo


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("cuda:75", "compute capability 8.0"),
        ("cuda:130", "no kernels for cuda:130"),
        ("hip:gfx942", "does not run them"),
    ],
)
def test_on_such_a_gpu_pytorch_runs_what_is_compiled_lazily(
    monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    monkeypatch.setattr("weft.plan.execute.plan.home", lambda arguments: Target.parse(target))
    before = weft.stats().fallbacks
    given = inputs()
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=said):
        torch.testing.assert_close(weft.compile(linear)(*given), linear(*given))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        torch.testing.assert_close(weft.compile(lambda x, w: x + w)(*given), given[0] + given[1])
    assert weft.stats().fallbacks == before + 2


def test_gpus_of_known_architectures_with_less_shared_memory() -> None:
    program = weft.optimize(linear, inputs(), target="cuda:89")
    (kernel,) = program.kernels
    assert kernel.assembled is not None
    found = kernel.assembled()
    assert isinstance(found, Assembled)
    assert found.shared <= 99 << 10


# What a call finds out.


def planned(fn: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> Plan:
    """The plan of `fn` for a GPU, although `given` are on the CPU."""
    plans: list[Plan] = []

    def keep(gm: torch.fx.GraphModule, example: list[Any]) -> Callable[..., Any]:
        plans.append(compile_graph(gm, example, H200))
        return gm.forward

    with torch.no_grad():
        torch.compile(fn, backend=keep)(*given)
    return plans[0]


class Launch:
    """Stands for a kernel: refuses its calls."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        raise self.error


NO_CLASS = CompilerError("kernel linear for cuda:90: Triton refused it", kernel="linear")


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (UnsupportedError("Triton kernels number elements with 31 bits"), (1, 1, 2)),
        (NO_CLASS, (1, 1, 2)),
        (torch.OutOfMemoryError("CUDA out of memory"), (1, 2, 3)),
        (CompilerError("Triton cannot be used: no module named triton"), (1, 1, 1)),
        (TargetError("the CUDA driver rejects the binary"), (1, 1, 1)),
    ],
    ids=["a size", "a class", "memory", "Triton", "the driver"],
)
def test_a_call_that_a_kernel_refuses_runs_in_pytorch(
    monkeypatch: pytest.MonkeyPatch, error: Exception, asked: tuple[int, ...]
) -> None:
    """`asked`: how often kernels were, after a call, the same call, one of another size."""
    launch = Launch(error)
    monkeypatch.setattr("weft.run.gpu.build._launcher", lambda *_: launch)
    monkeypatch.setattr(instead, "SAID", set())
    given, other = inputs(), inputs(16, 8)
    plan = planned(linear, given)
    assert plan.kernels
    before = weft.stats().fallbacks
    with pytest.warns(RuntimeWarning, match=str(error).splitlines()[0][:30]) as caught:
        (found,) = plan.run(*given)
    torch.testing.assert_close(found, linear(*given))
    assert len(caught) == 1
    assert weft.stats().fallbacks == before + 1
    calls = [launch.calls]
    for again in (given, other):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            (found,) = plan.run(*again)
        torch.testing.assert_close(found, linear(*again))
        calls.append(launch.calls)
    assert tuple(calls) == asked


def test_refused_calls_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instead, "_MOST_REFUSED", 2)
    monkeypatch.setattr(instead, "warn", lambda *_: None)
    one = instead.Instead(lambda *_: [])
    calls = [inputs(n, 8) for n in (8, 16, 24)]
    for given in calls:
        one.note(NO_CLASS, given)
    assert [one.knows(given) for given in calls] == [False, True, True]


# What writes into arguments.


def rows_replaced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:3] = w[:2].exp()
    return torch.relu(x @ w)


def rows_replaced_and_shown(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x[1:3] = w[:2].exp()
    return torch.relu(x @ w), x.t(), x[:, :4]


def copied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.copy_(torch.relu(x @ w))
    return x


def rows_added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:3].add_(w[:2])
    return torch.relu(x @ w)


def rows_read_and_replaced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:3] = x[:2] + 1
    return torch.relu(x @ w)


def replaced_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x[1:3] = w[:2]
    first = torch.relu(x @ w)
    x[2:4] = w[2:4]
    return first + x.exp()


def refusing_after(plan: Plan, eager: Runner, kernels: int) -> Runner:
    """Run a CPU's `plan` as a GPU's is run: so many kernels of a call do, the next one is refused."""
    left = [kernels]

    def counted(launch: Callable[..., Any], *arguments: Any) -> Any:
        if not left[0]:
            raise UnsupportedError("too long")
        left[0] -= 1
        return launch(*arguments)

    def with_counted(step: PlanStep) -> PlanStep:
        if not isinstance(step, RegionStep):
            return step
        own = tuple(replace(k, launch=functools.partial(counted, k.launch)) for k in step.region.kernels)
        return replace(step, region=replace(step.region, kernels=own))

    assert plan.program is not None
    steps = [with_counted(step) for step in plan.steps]
    return running(plan.captured, plan.program, steps, plan.arguments, plan.in_place, eager, instead.Instead(eager))


@pytest.mark.parametrize(
    "fn", [rows_replaced, rows_replaced_and_shown, copied, rows_added, rows_read_and_replaced, replaced_twice]
)
def test_what_writes_into_arguments_runs_in_pytorch_while_that_can_be(fn: Callable[..., Any]) -> None:
    """Whichever of its kernels is refused, results and arguments are eager's, or the call raises, and the next one is eager's."""
    plans: list[Plan] = []

    def compiled(kernels: int) -> Callable[..., Any]:
        def backend(gm: torch.fx.GraphModule, example: list[Any]) -> Runner:
            plans.append(compile_graph(gm, example))
            return refusing_after(plans[-1], gm.forward, kernels)

        torch.compiler.reset()
        return torch.compile(fn, backend=backend)

    (x, w), raised, kernels = inputs(), 0, 0
    changed = x.clone()
    wanted = fn(changed, w)
    while not plans or kernels < len(plans[-1].kernels):
        fast, own = compiled(kernels), x.clone()
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = fast(own, w)
            except UnsupportedError:
                raised, own = raised + 1, x.clone()
                found = fast(own, w)
            else:
                assert "too long" in str(said[-1].message)
        torch.testing.assert_close((found, own), (wanted, changed))
        kernels += 1
    assert kernels
    assert (raised > 0) == (fn in (rows_added, rows_read_and_replaced, replaced_twice))


def test_other_errors_of_a_kernel_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.run.gpu.build._launcher", lambda *_: Launch(RuntimeError("CUDA error: illegal address")))
    given = inputs()
    plan = planned(linear, given)
    with pytest.raises(RuntimeError, match="illegal address"):
        plan.run(*given)


# The trial against PyTorch.


def test_without_memory_for_a_trial_and_while_a_graph_is_captured_wefts_kernels_run_untried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed: list[int] = []
    room, captured = [False], [False]

    def measured(candidates: tuple[Any, ...], arguments: Any) -> Timed:
        timed.append(len(candidates))
        if not room[0]:
            raise torch.OutOfMemoryError("no room")
        return Timed(tuple(map(Timing, (2.0, 1.0, 2.0)[: len(candidates)])))

    monkeypatch.setenv("WEFT_MEASURE", "auto")
    monkeypatch.setattr(trial, "measure", measured)
    monkeypatch.setattr(trial, "capturing", lambda: captured[0])

    def called_twice() -> int:
        torch.compiler.reset()
        fast, x, before = weft.compile(lambda x: torch.exp(x) * 7.125), torch.randn(64), weft.stats().slower
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(fast(x), torch.exp(x) * 7.125)
        return weft.stats().slower - before

    assert called_twice() == 0
    assert len(timed) == 1
    captured[0] = room[0] = True
    assert called_twice() == 0
    assert len(timed) == 1
    captured[0] = False
    assert called_twice() == 1  # PyTorch is said to be faster
    assert len(timed) > 1
