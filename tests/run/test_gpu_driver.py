"""The CUDA driver's part, beside a library that notes what it is asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from testkit.run.gpu_kernels import TWICE
from weft.errors import TargetError, UnsupportedError
from weft.run.gpu import Assembled, class_of, driver
from weft.target import Target

KIND = class_of(TWICE, [0, 0, 0], {"M": 64, "N": 48}, [48, 1, 1])
BINARY = Assembled("twice", KIND, Target("cuda", "90"), b"\x7fELF", "", 2048, 128, ())
SOMETHING = ctypes.create_string_buffer(b"CUDA_ERROR_SOMETHING")
# By number: threads that registers allow, static shared memory, local memory, registers.
ATTRIBUTES = {0: 1024, 1: 1024, 3: 24, 4: 40}


def _put(address: Any, value: int, kind: Any = ctypes.c_int) -> int:
    ctypes.cast(address, ctypes.POINTER(kind))[0] = kind(value)
    return 0


@dataclass
class Library:
    """Stands for libcuda: a GPU with 228 KiB of shared memory for a program."""

    codes: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    attributes: dict[int, int] = field(default_factory=lambda: dict(ATTRIBUTES))
    version: int = 12080

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.asked.append((name, *arguments))
            code = self.codes.get(name, 0)
            return code or self.answer(name, *arguments)

        return function

    def answer(self, name: str, *arguments: Any) -> int:
        match name:
            case "cuDriverGetVersion":
                return _put(arguments[0], self.version)
            case "cuDeviceGet":
                return _put(arguments[0], arguments[1])
            case "cuDeviceGetAttribute":
                return _put(arguments[0], 132 if arguments[1] == 16 else 228 << 10)
            case "cuOccupancyMaxActiveBlocksPerMultiprocessor":
                return _put(arguments[0], 6)
            case "cuDevicePrimaryCtxRetain":
                return _put(arguments[0], 0xC0 + arguments[1].value, ctypes.c_void_p)
            case "cuModuleLoadData":
                return _put(arguments[0], 0xA0, ctypes.c_void_p)
            case "cuModuleGetFunction":
                return _put(arguments[0], 0xF0, ctypes.c_void_p)
            case "cuFuncGetAttribute":
                return _put(arguments[0], self.attributes[arguments[1]])
            case "cuGetErrorName":
                return _put(arguments[1], ctypes.addressof(SOMETHING), ctypes.c_void_p)
            case "cuThreadExchangeStreamCaptureMode":
                self.asked[-1] = (name, arguments[0]._obj.value)
                return _put(arguments[0], 0)
            case _:
                return 0

    def of(self, name: str) -> list[list[Any]]:
        return [rest for asked, *rest in self.asked if asked == name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    found = Library()
    caches = (driver._primary_context, driver._of_device, driver._version)
    monkeypatch.setattr(driver, "_library", lambda: found)
    for cache in caches:
        cache.cache_clear()
    yield found
    for cache in caches:
        cache.cache_clear()


def test_a_binary_is_loaded_into_the_context_of_its_gpu(library: Library) -> None:
    assert driver.load(BINARY, 1) == driver.LoadedBinary(0xF0, 40, 24, fills=6 * 132)
    names = [name for name, *_ in library.asked]
    assert names.index("cuCtxPushCurrent_v2") < names.index("cuModuleLoadData") < names.index("cuCtxPopCurrent_v2")
    assert library.of("cuCtxPushCurrent_v2") == [[0xC1]]
    assert library.of("cuModuleLoadData")[0][1] == b"\x7fELF"
    assert library.of("cuModuleGetFunction")[0][2] == b"twice"
    assert library.of("cuFuncSetAttribute") == []


def test_loading_spoils_no_capture(library: Library) -> None:
    driver.load(BINARY, 0)
    assert library.of("cuThreadExchangeStreamCaptureMode") == [[2], [0]]  # relaxed, then what it was


def test_much_shared_memory_is_asked_for(library: Library) -> None:
    driver.load(replace(BINARY, shared=100_000), 0)
    assert library.of("cuFuncSetAttribute") == [[0xF0, 8, 100_000], [0xF0, 9, 100]]
    with pytest.raises(UnsupportedError, match="needs 233000 bytes of shared memory, but GPU 0 has 232448"):
        driver.load(replace(BINARY, shared=233_000), 0)


def test_more_threads_than_registers_allow(library: Library) -> None:
    library.attributes[0] = 64
    with pytest.raises(UnsupportedError, match="has 128 threads, but GPU 0 has registers for 64"):
        driver.load(BINARY, 0)
    assert library.of("cuCtxPopCurrent_v2")


def test_a_gpu_of_another_architecture(library: Library) -> None:
    library.codes["cuModuleLoadData"] = 209
    with pytest.raises(TargetError, match="GPU 0 does not run kernels for cuda:90"):
        driver.load(BINARY, 0)
    library.codes["cuModuleLoadData"] = 700
    with pytest.raises(RuntimeError, match=r"CUDA error: code 700 \(CUDA_ERROR_SOMETHING\)"):
        driver.load(BINARY, 0)


@pytest.mark.parametrize("code", [200, 218, 222, 300])
def test_a_driver_that_is_too_old_for_a_binary(library: Library, code: int) -> None:
    library.codes["cuModuleLoadData"] = code
    with pytest.raises(TargetError, match="rejects the binary that Triton made for cuda:90") as caught:
        driver.load(BINARY, 0)
    assert "update the driver" in caught.value.todo
    assert library.of("cuCtxPopCurrent_v2")


def test_no_memory_for_a_binary_is_what_pytorch_raises_too(library: Library) -> None:
    library.codes["cuModuleLoadData"] = 2
    with pytest.raises(torch.OutOfMemoryError, match="CUDA_ERROR_SOMETHING"):
        driver.load(BINARY, 0)


def test_a_thread_without_a_context_gets_one(library: Library) -> None:
    driver.retry(201, 1, 16, 0xF0, 32)
    assert library.of("cuCtxSetCurrent") == [[0xC1]]
    assert library.of("cuLaunchKernelEx") == [[16, 0xF0, 32, None]]
    library.codes["cuLaunchKernelEx"] = 701
    with pytest.raises(UnsupportedError, match="too few registers"):
        driver.retry(201, 1, 16, 0xF0, 32)
    with pytest.raises(RuntimeError, match="CUDA error"):
        driver.retry(700, 1, 16, 0xF0, 32)
    assert len(library.of("cuLaunchKernelEx")) == 2


@pytest.mark.parametrize(("version", "count"), [(12080, 1), (12030, 1), (12020, 0)])
def test_launches_are_early_where_a_captured_stream_takes_them(library: Library, version: int, count: int) -> None:
    library.version = version
    assert driver.attributes(early=True)[1] == count
    assert driver.attributes(early=False) == (0, 0)


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none)
    driver._library.cache_clear()
    with pytest.raises(TargetError, match=r"libcuda.so.1: cannot open"):
        driver.start()
