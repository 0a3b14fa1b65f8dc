"""Launchers beside a driver that only notes what it is told: what is packed, which binary is taken, who waits for whom."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from testkit.run.gpu_kernels import TWICE
from weft.emit.triton import GridLoop
from weft.errors import TargetError, UnsupportedError
from weft.run.gpu import Assembled, GpuSignature, KernelClass, class_of, driver
from weft.run.gpu.driver import LoadedBinary
from weft.run.gpu.launch import Runtime, make_gpu_launcher, refusing
from weft.run.launch import OutputSpec, SizeSpec
from weft.target import Target
from weft.tensor.dtypes import DType

STREAM = 0x7F0000001230
STRIDES = (1, 17, 33, 16, 32, 0, 2, 2**31 + 1, 2**31 + 16)


class OnGpu:
    """A tensor of the CPU that says that it is on a GPU."""

    def __init__(self, tensor: torch.Tensor, device: int = 0, steps: tuple[int, ...] = ()) -> None:
        self.tensor, self.gpu, self.steps = tensor, device, steps or tensor.stride()

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def stride(self) -> tuple[int, ...]:
        return self.steps

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()

    def get_device(self) -> int:
        return self.gpu


@dataclass
class Started:
    """What the driver was told at one start."""

    config: list[int]
    function: int
    parameters: list[int]


@dataclass
class Gpu:
    """A machine whose driver notes what it is told, and reads arguments as wide as the binary says."""

    scratch: int = 0
    codes: list[int] = field(default_factory=list)
    now: int = 0
    started: list[Started] = field(default_factory=list)
    made: list[KernelClass] = field(default_factory=list)
    loads: list[tuple[str, int]] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    allocated: list[torch.Tensor] = field(default_factory=list)
    meanwhile: Callable[[], object] = field(default=lambda: None)

    def binary_of(self, kind: KernelClass, better: Callable[[], None]) -> Assembled:
        del better
        self.made.append(kind)
        sizes = tuple(kind.arguments[i].bytes for i in kind.parameters)
        return Assembled("twice", kind, Target("cuda", "90"), b"", "", 2048, 128, (*sizes, 8, 8), self.scratch)

    def runtime(self) -> Runtime:
        return Runtime(
            lambda: self.now,
            lambda device: STREAM + device,
            self.within,
            self.allocate,
            self.start,
            self.load,
            self.retry,
        )

    @contextlib.contextmanager
    def within(self, device: int) -> Any:
        before, self.now = self.now, device
        yield
        self.now = before

    def allocate(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self.allocated.append(torch.empty_strided(sizes, strides, dtype=dtype))
        return self.allocated[-1]

    def load(self, assembled: Assembled, device: int) -> LoadedBinary:
        self.loads.append((str(assembled.kind), device))
        return LoadedBinary(100 + len(self.loads), 32, 0, 264)

    def start(self, config: int, function: int, parameters: int, extra: None) -> int:
        assert extra is None
        sizes = [self.made[function - 101].arguments[i].bytes for i in self.made[function - 101].parameters]
        words = (ctypes.c_void_p * (len(sizes) + 2)).from_address(parameters)
        found = [
            int.from_bytes(ctypes.string_at(word, n), "little") for word, n in zip(words, [*sizes, 8, 8], strict=True)
        ]
        grid = list((ctypes.c_uint32 * 7).from_address(config))
        rest = list((ctypes.c_uint64 * 3).from_address(config + 32))
        self.meanwhile()
        self.started.append(Started([*grid, *rest], function, found))
        return self.codes.pop(0) if self.codes else 0

    def retry(self, code: int, device: int, config: int, function: int, parameters: int) -> None:
        self.retried.append(code)
        if code == 1:
            raise RuntimeError("CUDA error")
        assert self.start(config, function, parameters, None) == 0

    def launcher(self, signature: GpuSignature = TWICE) -> Callable[..., Any]:
        return make_gpu_launcher(signature, self.binary_of, self.runtime)


def tensors(m: int, n: int) -> tuple[OnGpu, OnGpu]:
    return OnGpu(torch.zeros(m, n)), OnGpu(torch.zeros(n))


def test_the_driver_reads_what_the_binary_takes() -> None:
    gpu = Gpu()
    x, b = tensors(33, 48)
    (out,) = gpu.launcher()(x, b)
    [started] = gpu.started
    assert started.config == [3, 1, 1, 128, 1, 1, 2048, STREAM, 0, 0]
    assert started.parameters == [x.data_ptr(), b.data_ptr(), out.data_ptr(), 33, 48, 48, 0, 0]
    assert (tuple(out.shape), out.stride(), out.dtype) == ((33, 48), (48, 1), torch.float32)
    assert str(gpu.made[0]) == "*fp32:16 *fp32:16 *fp32:16 i32 i32:16 i32:16 =1 =1 =64"


@pytest.mark.parametrize(("blocks", "early"), [(131, False), (132, True), (300, True)])
def test_few_thread_blocks_wait_for_the_kernel_before_them(
    blocks: int, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start early with half of 264 places: the first ones to become free are on a few multiprocessors, where few would crowd."""
    monkeypatch.setattr(driver, "_version", lambda: 12080)
    for starts_early in (True, False):
        gpu = Gpu()
        gpu.launcher(replace(TWICE, early=starts_early))(*tensors(16 * blocks, 48))
        assert gpu.started[0].config[0] == blocks
        assert gpu.started[0].config[-1] == (early and starts_early)
        assert bool(gpu.started[0].config[-2]) is starts_early


def test_strides_of_other_classes_are_arguments() -> None:
    gpu = Gpu()
    x, b = OnGpu(torch.zeros(48, 33).T), OnGpu(torch.zeros(96)[::2])
    (out,) = gpu.launcher()(x, b)
    assert str(gpu.made[0]) == "*fp32:16 *fp32:16 *fp32:16 i32 i32:16 =1 i32 i32 =64"
    assert gpu.started[0].parameters == [x.data_ptr(), b.data_ptr(), out.data_ptr(), 33, 48, 33, 2, 0, 0]


def test_calls_of_one_class_share_a_binary() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    for m, n in ((16, 48), (16, 48), (32, 64), (160, 48), (17, 48), (33, 64), (24, 48), (16, 48)):
        launch(*tensors(m, n))
    assert len(gpu.made) == len(gpu.loads) == 2
    assert [s.function for s in gpu.started] == [101, 101, 101, 101, 102, 102, 102, 101]
    assert [s.parameters[3:5] for s in gpu.started[:4]] == [[16, 48], [16, 48], [32, 64], [160, 48]]


@pytest.mark.parametrize("stride", STRIDES)
def test_what_is_remembered_of_a_call_says_its_class(stride: int) -> None:
    """A call is answered from memory with the binary of its own class, whatever calls went before."""

    fresh, used = Gpu(), Gpu()
    launch = used.launcher()
    row = OnGpu(torch.zeros(16))
    for other in STRIDES:
        launch(OnGpu(torch.zeros(1, 16), steps=(16, other)), row)
    x = OnGpu(torch.zeros(1, 16), steps=(16, stride))
    launch(x, row)
    fresh.launcher()(x, row)
    assert used.made[used.started[-1].function - 101] == fresh.made[0]
    assert fresh.started[0].parameters[5:] == used.started[-1].parameters[5:]


def test_wide_strides_are_told_apart() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    wide, row = 2**31 + 16, OnGpu(torch.zeros(16))
    for steps in ((wide, 16), (16, wide), (wide, 16), (16, 16)):
        launch(OnGpu(torch.zeros(1, 16), steps=steps), row)
    assert [s.function for s in gpu.started] == [101, 101, 101, 102]
    assert [[a.bytes for a in k.arguments[5:7]] for k in gpu.made] == [[8, 8], [4, 4]]


def test_sizes_that_are_too_long_are_refused_whatever_calls_went_before() -> None:
    class Roomy(Gpu):
        def allocate(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(16, dtype=dtype)

    gpu = Roomy()
    launch, row = gpu.launcher(), OnGpu(torch.zeros(16))
    launch(OnGpu(torch.zeros(1, 16).expand(16, 16)), row)
    for rows in (2**31 - 2**24, 2**31 - 64):  # of the same class but for that
        with pytest.raises(UnsupportedError, match="31 bits"):
            launch(OnGpu(torch.zeros(1, 16).expand(rows, 16)), row)
    assert len(gpu.started) == 1


def test_calls_after_one_another_write_to_the_same_memory() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    for _ in range(5):
        launch(*tensors(16, 48))
    [free] = launch.__globals__["known"].values()
    assert len(free) == 1


def test_misaligned_tensors_have_a_binary_of_their_own() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    x, _ = tensors(16, 16)
    for b in (torch.zeros(17)[1:], torch.zeros(16), torch.zeros(17)[1:]):
        launch(x, OnGpu(b))
    assert [s.function for s in gpu.started] == [101, 102, 101]
    assert [a.divisible for a in gpu.made[0].arguments[:3]] == [True, False, True]


@dataclass
class Served:
    """Gives the binary of one class for all calls, until another one is `now`."""

    gpu: Gpu
    now: KernelClass
    told: list[Callable[[], None]] = field(default_factory=list)

    def __call__(self, kind: KernelClass, better: Callable[[], None]) -> Assembled:
        self.told.append(better)
        return self.gpu.binary_of(self.now, better)


def of_sizes(m: int, n: int) -> KernelClass:
    return class_of(TWICE, [0, 0, 0], {"M": m, "N": n}, [n, 1, 1])


def test_a_call_goes_over_to_a_better_binary() -> None:
    gpu = Gpu()
    served = Served(gpu, of_sizes(33, 50))
    launch = make_gpu_launcher(TWICE, served, gpu.runtime)
    for m, n in ((33, 50), (64, 48), (64, 48)):
        launch(*tensors(m, n))
    assert len(served.told) == 2
    served.now = of_sizes(64, 48)
    served.told[-1]()
    for _ in range(2):
        launch(*tensors(64, 48))
    assert [s.function for s in gpu.started[-2:]] == [gpu.started[-1].function] * 2
    assert gpu.started[-1].function != gpu.started[0].function
    served.now = of_sizes(33, 50)
    launch(*tensors(33, 50))
    assert gpu.started[-1].function == 101


def test_a_better_binary_that_cannot_be_loaded_fails_no_call() -> None:
    gpu = Gpu()
    served = Served(gpu, of_sizes(33, 50))

    def load(assembled: Assembled, device: int) -> LoadedBinary:
        if assembled.kind == of_sizes(64, 48):
            raise torch.OutOfMemoryError("no room")
        return gpu.load(assembled, device)

    launch = make_gpu_launcher(TWICE, served, lambda: replace(gpu.runtime(), load=load))
    launch(*tensors(64, 48))
    served.now = of_sizes(64, 48)
    served.told[-1]()
    for _ in range(2):
        launch(*tensors(64, 48))
    assert {s.function for s in gpu.started} == {101}
    with pytest.raises(torch.OutOfMemoryError):
        make_gpu_launcher(TWICE, served, lambda: replace(gpu.runtime(), load=load))(*tensors(64, 48))


def test_a_call_that_a_binary_serves_waits_for_no_thread_that_compiles() -> None:
    gpu, release, compiling = Gpu(), threading.Event(), threading.Event()

    def binary_of(kind: KernelClass, better: Callable[[], None]) -> Assembled:
        if kind == of_sizes(33, 100):
            compiling.set()
            assert release.wait(10)
        return gpu.binary_of(of_sizes(33, 50), better)

    launch = make_gpu_launcher(TWICE, binary_of, gpu.runtime)
    launch(*tensors(64, 48))
    other = threading.Thread(target=launch, args=tensors(33, 100))
    other.start()
    assert compiling.wait(10)
    launch.__globals__["known"].clear()
    launch(*tensors(64, 48))
    assert other.is_alive()
    release.set()
    other.join()


def test_a_better_binary_that_is_there_at_once_is_taken_at_the_next_call() -> None:
    gpu = Gpu()
    kinds = [of_sizes(33, 50), of_sizes(64, 48)]

    def binary_of(kind: KernelClass, told: Callable[[], None]) -> Assembled:
        told()
        return gpu.binary_of(kinds.pop(0) if kinds else kind, told)

    launch = make_gpu_launcher(TWICE, binary_of, gpu.runtime)
    for _ in range(3):
        launch(*tensors(64, 48))
    assert [s.function for s in gpu.started] == [101, 102, 102]


def test_a_constant_of_another_value_is_another_binary() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    for n in (48, 64, 80, 48):
        launch(*tensors(16, n))
    assert [s.function for s in gpu.started] == [101, 101, 102, 101]
    assert [k.arguments[-1].value for k in gpu.made] == [64, 128]


def test_nothing_is_started_for_results_without_elements() -> None:
    gpu = Gpu()
    (out,) = gpu.launcher()(*tensors(0, 48))
    assert (tuple(out.shape), gpu.started, gpu.made) == ((0, 48), [], [])


def test_what_no_kernel_can_take_is_refused() -> None:
    gpu = Gpu()
    with pytest.raises(UnsupportedError, match="N without elements"):
        gpu.launcher()(*tensors(16, 0))
    every = replace(TWICE, grid=(GridLoop("M", 1), GridLoop("N", 1)))
    wide = OnGpu(torch.zeros(1).expand(2**16, 2**15))
    with pytest.raises(UnsupportedError, match="2147483648 thread blocks"):
        gpu.launcher(every)(wide, OnGpu(torch.zeros(1).expand(2**15)))
    assert gpu.started == []


def test_given_outputs_and_passed_sizes() -> None:
    gpu = Gpu()
    kernel = TWICE.kernel._replace(sizes=(*TWICE.kernel.sizes, SizeSpec("P")), given=(0,))
    launch = gpu.launcher(replace(TWICE, kernel=kernel, grid=(GridLoop("P", 4),)))
    x, b = tensors(16, 48)
    out = OnGpu(torch.zeros(16 * 48 + 1)[1:].view(16, 48))
    assert launch(x, b, out, 9) == (out,)
    assert gpu.started[0].config[0] == 3
    assert gpu.started[0].parameters[:6] == [x.data_ptr(), b.data_ptr(), out.data_ptr(), 16, 48, 9]
    assert [a.divisible for a in gpu.made[0].arguments[:3]] == [True, True, False]
    assert gpu.allocated == []
    launch(x, b, OnGpu(torch.zeros(16, 48)), 9)
    assert [s.function for s in gpu.started] == [101, 102]


def test_an_output_may_be_the_memory_of_an_input() -> None:
    gpu = Gpu()
    launch = gpu.launcher(replace(TWICE, kernel=TWICE.kernel._replace(over=((0, 0),))))
    x, b = tensors(16, 48)
    assert launch(x, b, over=x) == (x,)
    assert gpu.started[0].parameters[:3] == [x.data_ptr(), b.data_ptr(), x.data_ptr()]
    assert gpu.allocated == []
    other, row = OnGpu(torch.zeros(16, 48), device=1), OnGpu(torch.zeros(48), device=1)
    assert launch(other, row, over=other) == (other,), "on another GPU too"
    assert launch(x, b) != (x,)


def test_a_kernel_without_inputs_runs_on_the_current_gpu() -> None:
    gpu = Gpu(now=1)
    kernel = TWICE.kernel._replace(inputs=(), sizes=(SizeSpec("M"),), outputs=(OutputSpec(("M", 2), DType.int64),))
    launch = gpu.launcher(GpuSignature(kernel, grid=(GridLoop("M", 16),)))
    (out,) = launch(40)
    assert (tuple(out.shape), out.dtype) == ((40, 2), torch.int64)
    assert gpu.started[0].parameters == [out.data_ptr(), 40, 0, 0]
    assert gpu.started[0].config[7] == STREAM + 1


def test_memory_of_tritons_own_is_allocated_for_each_program() -> None:
    gpu = Gpu(scratch=128)
    gpu.launcher()(*tensors(33, 48))
    assert [tuple(t.shape) for t in gpu.allocated] == [(33, 48), (3 * 128,)]
    assert gpu.started[0].parameters[-2:] == [gpu.allocated[1].data_ptr(), 0]


def test_tensors_of_the_cpu_are_refused_and_those_of_another_gpu_run_there() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    with pytest.raises(TargetError, match="kernel twice runs on a GPU, but its inputs are on the CPU"):
        launch(torch.zeros(16, 48), torch.zeros(48))
    launch(OnGpu(torch.zeros(16, 48), 3), OnGpu(torch.zeros(48), 3))
    launch(*tensors(16, 48))
    assert [device for _, device in gpu.loads] == [3, 0]
    assert [s.config[7] for s in gpu.started] == [STREAM + 3, STREAM]
    with pytest.raises(TargetError, match="for hip:gfx942, but does not run them"):
        refusing(Target("hip", "gfx942"))(torch.zeros(1))


def test_no_machine_is_asked_for_a_gpu_before_the_first_call() -> None:
    def none() -> Runtime:
        raise TargetError("the CUDA driver cannot be used")

    launch = make_gpu_launcher(TWICE, Gpu().binary_of, none)
    with pytest.raises(TargetError, match="cannot be used"):
        launch(*tensors(16, 48))


def test_what_the_driver_refuses_is_tried_again_or_said() -> None:
    gpu = Gpu(codes=[201])
    launch = gpu.launcher()
    launch(*tensors(16, 48))
    assert (gpu.retried, len(gpu.started)) == ([201], 2)
    gpu.codes = [1]
    with pytest.raises(RuntimeError, match="CUDA error"):
        launch(*tensors(16, 48))


def test_calls_at_once_do_not_share_memory() -> None:
    gpu = Gpu()
    launch = gpu.launcher()
    launch(*tensors(16, 48))
    both = threading.Barrier(2, timeout=10)
    gpu.meanwhile = both.wait
    threads = [threading.Thread(target=launch, args=tensors(m, 48)) for m in (32, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(s.parameters[3] for s in gpu.started) == [16, 32, 64]
    assert len(gpu.made) == len(gpu.loads) == 1


def test_much_that_is_remembered_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.run.gpu.launch._MOST_KNOWN", 3)
    gpu = Gpu()
    launch = gpu.launcher()
    for m in (1, 2, 3, 4, 5, 6, 1, 16):
        launch(*tensors(m, 48))
    kernel = launch.__globals__["ready"].__self__
    assert (len(gpu.made), len(kernel.known) <= 3) == (2, True)


def test_a_signature_that_reads_what_is_not_there() -> None:
    kernel = TWICE.kernel._replace(sizes=(SizeSpec("M", 0, 0), SizeSpec("N", 1, 1)))
    with pytest.raises(ValueError, match="not there"):
        make_gpu_launcher(replace(TWICE, kernel=kernel), Gpu().binary_of)
