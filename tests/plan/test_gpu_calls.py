"""The binaries that a GPU's tuner makes are those that a call like the example needs: none is compiled at the call."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft
from weft.plan.execute import plan, regions
from weft.plan.targets.candidates import magnitude
from weft.plan.targets.triton import rounds, tune
from weft.run.gpu import Assembled, GpuSignature, build
from weft.run.gpu.assemble import Job
from weft.run.gpu.classes import class_of
from weft.run.launch import Launcher, make_python_launcher
from weft.target import Target

Function = Callable[..., Any]


class Machine:
    """A machine with a GPU that is said to run kernels: what is compiled for it, and what is launched.

    Attributes:
        compiled: of every binary, what it was compiled from.
        launched: the class of every launch, the tuner's and the user's.
    """

    def __init__(self) -> None:
        self.compiled: list[tuple[str, ...]] = []
        self.launched: list[str] = []

    def assemble(self, job: Job, seconds: float = 0.0) -> Assembled:
        """Stand for Triton."""
        del seconds
        self.compiled.append((job.text, str(job.kind), str(job.warps), str(job.stages)))
        return Assembled(job.name, job.kind, job.target, b"", "", 0, 128, ())

    def launcher(self, source: build.GpuSource, target: Target, classes: build.Classes, *_: Any) -> Launcher:
        """Make a launcher that asks for the binary of each call, as the one for a GPU does, and leaves zeros."""
        del target
        signature: GpuSignature = source.signature

        def call(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
            strides = [s for t in inputs for s in t.stride()]
            kind = class_of(signature, [t.data_ptr() for t in (*inputs, *outputs)], sizes, strides)
            self.launched.append(str(classes.called(kind, lambda: None).kind))
            for each in outputs:
                each.zero_()

        return make_python_launcher(signature.kernel, call)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a GPU, whose candidates take as long as they are asked for late."""
    found, seconds = Machine(), iter(range(1, 10_000))

    def known(layouts: Any, target: Target, device: Any = None, **rest: Any) -> regions.Regions:
        del device
        return regions.Regions(layouts, target, torch.device("cpu"), **rest)

    def timer(*_: Any) -> Any:
        return SimpleNamespace(median=lambda run, best: next(seconds) * 1e-6)

    monkeypatch.setattr(plan, "Regions", known)
    monkeypatch.setattr(build, "assemble", found.assemble)
    monkeypatch.setattr(build, "_launcher", found.launcher)
    monkeypatch.setattr(rounds, "GraphTimer", timer)
    monkeypatch.setattr(rounds, "cache_filler", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    return found


def norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def relu_of(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def thirds(x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.split(x.shape[-1] // 3, -1)
    return torch.softmax(q @ k.mT, -1) @ v


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat((one * y, -two), -1)


def two_layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return norm(torch.relu(norm(x) @ w) @ v)


def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    places = x.cumsum(-1)
    return places.flip(-1) * 2, x.flip(0) + 1


def sums_of_columns(x: torch.Tensor) -> torch.Tensor:
    return (x - x[:, :1]).sum(0)


def unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x[:, 1:]) + x[:, :-1]


def after_pytorch(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.sort(x, -1).values) * 2


def two_alike(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One kernel of which two calls have inputs that lie otherwise."""
    return torch.softmax(x, -1), torch.softmax(y, -1)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


def behind(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A dense tensor whose first element is so many behind an aligned one."""
    return drawn(count + torch.Size(shape).numel(), dtype=dtype)[count:].view(shape)


CASES: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "a column of what is normalised": (norm, lambda: (drawn(4, 32, 48),)),
    "a column of another kernel's": (two_layers, lambda: (drawn(32, 48), drawn(48, 80), drawn(80, 48))),
    "odd sizes": (two_layers, lambda: (drawn(31, 45), drawn(45, 77), drawn(77, 33))),
    "half precision": (norm, lambda: (drawn(3, 17, 40, dtype=torch.bfloat16),)),
    "a transposed input": (norm, lambda: (drawn(48, 32).T,)),
    "an input in another order": (norm, lambda: (drawn(4, 48, 32).permute(2, 0, 1),)),
    "every second column": (relu_of, lambda: (drawn(32, 96)[:, ::2],)),
    "rows with gaps": (relu_of, lambda: (drawn(32, 50)[:, :48],)),
    "an expanded input": (norm, lambda: (drawn(32, 1).expand(32, 48),)),
    "expanded rows": (norm, lambda: (drawn(48).expand(32, 48),)),
    "an expanded mask": (
        lambda x, m: torch.softmax(torch.where(m, x, -torch.inf), -1),
        lambda: (drawn(3, 64, 64), drawn(64, 64, dtype=torch.bool).expand(3, 64, 64)),
    ),
    "slices": (thirds, lambda: (drawn(2, 32, 96),)),
    "halves that are joined": (halves, lambda: (drawn(16, 64), drawn(16, 32))),
    "halves of odd rows": (halves, lambda: (drawn(15, 34), drawn(15, 17))),
    "dimensions of size 1": (norm, lambda: (drawn(1, 32, 1, 48),)),
    "one row": (norm, lambda: (drawn(1, 48),)),
    "backwards": (counted, lambda: (drawn(16, 33),)),
    "a sum down columns": (sums_of_columns, lambda: (drawn(64, 48),)),
    "slices that are not aligned": (unaligned, lambda: (drawn(32, 49),)),
    "an address that is not aligned": (relu_of, lambda: (behind(1, 32, 48),)),
    "numbers of 8 bits behind others": (relu_of, lambda: (behind(3, 32, 48, dtype=torch.int8),)),
    "64-bit numbers": (relu_of, lambda: (drawn(32, 48, dtype=torch.int64)[:, 1:],)),
    "what PyTorch computed": (after_pytorch, lambda: (drawn(16, 48),)),
    "two calls of a kernel": (two_alike, lambda: (drawn(32, 48), drawn(48, 32).T)),
    "two calls at other addresses": (two_alike, lambda: (drawn(32, 48), behind(1, 32, 48))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("effort", ["quick", "none"])
def test_nothing_is_compiled_at_a_call_like_the_example(
    machine: Machine, tmp_path: Any, name: str, effort: Any
) -> None:
    function, made = CASES[name]
    inputs = made()
    with weft.options(cache_dir=str(tmp_path), judge="off", effort=effort, defects="raise"):
        program = weft.optimize(function, inputs, target="cuda:90")
        assert program.kernels
        tuned, timed = list(machine.compiled), len(machine.launched)
        program.plans[0].run(*inputs)
    assert len(machine.launched) > timed
    assert machine.compiled == tuned, "compiled at the call"
    assert len(set(tuned)) == len(tuned)


def test_what_a_tuning_chose_is_compiled_ahead_for_another_class_of_calls(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A word later a length is not divisible by 16: all kernels need other binaries, and none is timed again."""
    ahead: list[object] = []
    begun = tune.begun

    def noted(task: Callable[[], object]) -> object:
        ahead.append(begun(task))
        return ahead[-1]

    with weft.options(cache_dir=str(tmp_path), judge="off", effort="quick", defects="raise"):
        first = weft.optimize(two_layers, (drawn(4096, 48), drawn(48, 80), drawn(80, 48)), target="cuda:90")
        timed, before = len(machine.launched), len(machine.compiled)
        monkeypatch.setattr(tune, "begun", noted)
        inputs = drawn(4097, 48), drawn(48, 80), drawn(80, 48)
        again = weft.optimize(two_layers, inputs, target="cuda:90")
        assert [k.key for k in again.kernels] == [k.key for k in first.kernels]
        assert len(machine.launched) == timed, "timed again"
        assert len(ahead) == len(machine.compiled) - before == len(again.kernels)
        again.plans[0].run(*inputs)
    assert len(machine.compiled) == before + len(again.kernels)


def test_binaries_for_any_length_are_compiled_ahead_where_lengths_change(machine: Machine, tmp_path: Any) -> None:
    """A graph with a symbol for a length: all later lengths of its magnitude run with two binaries of a kernel at most."""
    x, w, v = drawn(4096, 48), drawn(48, 80), drawn(80, 48)
    torch._dynamo.mark_dynamic(x, 0)
    with weft.options(cache_dir=str(tmp_path), judge="off", effort="quick", defects="raise"):
        program = weft.optimize(two_layers, (x, w, v), target="cuda:90")
        [plan] = program.plans
        assert any(number.symbols for number in plan.captured.sizes.values())
        idle()
        before = len(machine.compiled)
        for length in (4097, 4112, 4100, 4098, 4096):
            plan.run(length, drawn(length, 48), w, v)
    assert len(machine.compiled) == before
    made: list[Any] = [kernel.made for kernel in program.kernels]
    assert {len(each.assembled) for each in made} == {2}


def idle() -> None:
    """Wait until nothing is compiled ahead any more."""
    ahead = sys.modules["weft.run.gpu.assemble"]
    while ahead._ahead.threads:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("size", "same"),
    [(0, 0), (1, 1), (2, 2), (16, 16), (127, 128), (4096, 4097), (4096, 4352), (4097, 4100), (1 << 20, (1 << 20) + 9)],
)
def test_sizes_of_one_magnitude(size: int, same: int) -> None:
    assert magnitude(size) == magnitude(same)


@pytest.mark.parametrize(
    ("size", "other"), [(0, 1), (1, 2), (16, 17), (64, 65), (4096, 4400), (4095, 2000), (128, 512)]
)
def test_sizes_of_other_magnitudes(size: int, other: int) -> None:
    assert magnitude(size) != magnitude(other)


def test_magnitudes_ascend() -> None:
    every = [magnitude(size) for size in range(5000)]
    assert every == sorted(every)


def test_a_block_with_room_for_all_of_a_length_is_not_taken_for_one_that_needs_more(
    machine: Machine, tmp_path: Any
) -> None:
    """The rows of a norm lie in a block as a whole: such of 257 elements need twice the room of such of 256."""
    with weft.options(cache_dir=str(tmp_path), judge="off", effort="quick", defects="raise"):
        known: list[int] = []
        for width in (256, 255, 257, 260):
            timed = len(machine.launched)
            weft.optimize(norm, (drawn(64, width),), target="cuda:90")
            known.append(len(machine.launched) - timed)
    assert [each > 0 for each in known] == [True, False, True, False]
