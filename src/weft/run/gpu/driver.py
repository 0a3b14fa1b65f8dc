"""The CUDA driver through ctypes: loads binaries and launches them, without a compiler or headers.

Contexts are PyTorch's own: those of the devices, which the CUDA runtime uses too.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

import torch

from weft.errors import TargetError, UnsupportedError
from weft.run.gpu.assemble import Assembled

StartFunction: TypeAlias = Callable[[int, int, int, None], int]
"""`cuLaunchKernelEx`: addresses of a launch's configuration and of the list of its arguments' addresses; the result's code."""

CONFIG_WORDS = 7
"""Words of 64 bits of a `CUlaunchConfig`: its grid (x, y), grid (z) and block (x), block (y, z), shared memory, stream, the address
of its attributes and how many there are."""

# The driver API's numbers, which never change (cuda.h).
_MAX_THREADS, _STATIC_SHARED, _LOCAL_BYTES, _REGISTERS, _DYNAMIC_SHARED, _CARVEOUT = 0, 1, 3, 4, 8, 9
_MULTIPROCESSORS, _MOST_SHARED_OF_DEVICE = 16, 97
_ALL_SHARED = 100
_SHARED_WITHOUT_ASKING = 48 << 10
_RELAXED = 2
_OUT_OF_MEMORY, _NO_CONTEXT, _WRONG_BINARY, _OUT_OF_RESOURCES = 2, 201, 209, 701
# An image, PTX or source that is no such thing to this driver, or made for a newer one.
_UNREADABLE = frozenset({200, 218, 222, 300})

_FUNCTIONS = {
    "cuInit": [ctypes.c_uint],
    "cuDriverGetVersion": [ctypes.c_void_p],
    "cuGetErrorName": [ctypes.c_int, ctypes.c_void_p],
    "cuGetErrorString": [ctypes.c_int, ctypes.c_void_p],
    "cuDeviceGet": [ctypes.c_void_p, ctypes.c_int],
    "cuDeviceGetAttribute": [ctypes.c_void_p, ctypes.c_int, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.c_void_p, ctypes.c_int],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [ctypes.c_void_p],
    "cuThreadExchangeStreamCaptureMode": [ctypes.c_void_p],
    "cuModuleLoadData": [ctypes.c_void_p, ctypes.c_char_p],
    "cuModuleGetFunction": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_size_t,
    ],
    "cuFuncGetAttribute": [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p],
    "cuFuncSetAttribute": [ctypes.c_void_p, ctypes.c_int, ctypes.c_int],
    "cuLaunchKernelEx": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
}
_lock = threading.RLock()

# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed: a number, room, and a value of 64 bytes.
_early = (ctypes.c_uint32 * 18)(6, 0, 1)

_FIRST_TO_CAPTURE_EARLY = 12030  # CUDA 12.3: before it, a stream that is captured takes no such launch


def attributes(*, early: bool) -> tuple[int, int]:
    """Returns the last two words of a launch.

    Args:
        early: its thread blocks may take their places while the kernel before it still runs, for whose end they wait themselves;
            where the driver is too old for that, they are started when that kernel has ended.
    """
    return (ctypes.addressof(_early), 1) if early and _version() >= _FIRST_TO_CAPTURE_EARLY else (0, 0)


@functools.cache
def _version() -> int:
    """Returns the driver's version, 12030 for CUDA 12.3; 0 where there is none (launchers are made there too) or it
    does not say.
    """
    found = ctypes.c_int(0)
    with suppress(TargetError):
        if _library().cuDriverGetVersion(ctypes.byref(found)) == 0:
            return found.value
    return 0


@dataclass(frozen=True, slots=True)
class LoadedBinary:
    """A binary in a GPU's memory, for the life of the process.

    Attributes:
        function: the driver's handle.
        registers: of a thread.
        spilled: bytes of local memory of a thread: what found no register.
        fills: thread blocks that take all places of the GPU.
    """

    function: int
    registers: int
    spilled: int
    fills: int


def start() -> StartFunction:
    """Returns the driver's function that starts a kernel. TargetError where there is no driver."""
    return _library().cuLaunchKernelEx


def load(assembled: Assembled, device: int) -> LoadedBinary:
    """Loads a binary into the memory of the GPU number `device` (PyTorch's number). May be called while a CUDA graph is captured.

    Raises:
        TargetError: there is no driver, it is too old for the binary, or the GPU is of another architecture.
        UnsupportedError: the GPU has less shared memory, or fewer registers, than the binary needs.
        OutOfMemoryError: the GPU's memory has no room for it.
        RuntimeError: the driver has failed.
    """
    with _lock, _context(device):
        try:
            return _loaded(assembled, device)
        except _DriverError as error:
            if error.code == _WRONG_BINARY:
                raise TargetError(
                    f"GPU {device} does not run kernels for {assembled.target}",
                    todo="compile for the architecture that torch.cuda.get_device_capability() names",
                ) from error
            if error.code in _UNREADABLE:
                raise TargetError(
                    f"the CUDA driver rejects the binary that Triton made for {assembled.target}: {error}",
                    todo="update the driver, or use a version of Triton for this driver's version of CUDA",
                ) from error
            if error.code == _OUT_OF_MEMORY:
                raise torch.OutOfMemoryError(str(error)) from error
            raise


def retry(code: int, device: int, config: int, function: int, parameters: int) -> None:
    """Starts a kernel again that the driver refused with `code`, in the context of the GPU number `device`.

    A thread in which PyTorch has not yet used the GPU has no context.

    Raises:
        UnsupportedError: the GPU has not what the kernel needs.
        RuntimeError: the driver has failed, perhaps in an earlier kernel.
    """
    library = _library()
    if code == _NO_CONTEXT:
        _demand(library.cuCtxSetCurrent(_primary_context(device)))
        code = library.cuLaunchKernelEx(config, function, parameters, None)
    if code == _OUT_OF_RESOURCES:
        raise UnsupportedError(
            "the GPU has too few registers, or too little shared memory, for a thread block of the kernel"
        )
    _demand(code)


class _DriverError(RuntimeError):
    """The driver's code for what failed, as PyTorch's own errors say it."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error: {_text(code, 'cuGetErrorString')} ({_text(code, 'cuGetErrorName')})")
        self.code = code


def _loaded(assembled: Assembled, device: int) -> LoadedBinary:
    library = _library()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _demand(library.cuModuleLoadData(ctypes.byref(module), assembled.binary))
    _demand(library.cuModuleGetFunction(ctypes.byref(function), module, assembled.name.encode()))
    handle = function.value
    assert handle is not None
    if assembled.threads > (most := _attribute(handle, _MAX_THREADS)):
        raise UnsupportedError(
            f"a thread block of kernel {assembled.name} has {assembled.threads} threads, "
            f"but GPU {device} has registers for {most}"
        )
    if assembled.shared > _SHARED_WITHOUT_ASKING:
        most = _of_device(_MOST_SHARED_OF_DEVICE, device) - _attribute(handle, _STATIC_SHARED)
        if assembled.shared > most:
            raise UnsupportedError(
                f"a thread block of kernel {assembled.name} needs {assembled.shared} bytes of shared memory, "
                f"but GPU {device} has {most}"
            )
        _demand(library.cuFuncSetAttribute(handle, _DYNAMIC_SHARED, assembled.shared))
        _demand(library.cuFuncSetAttribute(handle, _CARVEOUT, _ALL_SHARED))
    registers, spilled = _attribute(handle, _REGISTERS), _attribute(handle, _LOCAL_BYTES)
    return LoadedBinary(handle, registers, spilled, _places(assembled, handle) * _of_device(_MULTIPROCESSORS, device))


def _attribute(function: int, which: int) -> int:
    found = ctypes.c_int()
    _demand(_library().cuFuncGetAttribute(ctypes.byref(found), which, function))
    return found.value


def _places(assembled: Assembled, function: int) -> int:
    """Returns how many of its thread blocks a multiprocessor runs at once."""
    found = ctypes.c_int()
    _demand(
        _library().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(found), function, assembled.threads, assembled.shared
        )
    )
    return found.value


@functools.cache
def _of_device(which: int, device: int) -> int:
    library, handle, found = _library(), ctypes.c_int(), ctypes.c_int()
    _demand(library.cuDeviceGet(ctypes.byref(handle), device))
    _demand(library.cuDeviceGetAttribute(ctypes.byref(found), which, handle))
    return found.value


@contextmanager
def _context(device: int) -> Generator[None]:
    """Enters the context of a GPU in this thread; what is done in it spoils no graph that is being captured."""
    library = _library()
    mode, before = ctypes.c_int(_RELAXED), ctypes.c_void_p()
    _demand(library.cuCtxPushCurrent_v2(_primary_context(device)))
    try:
        _demand(library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        try:
            yield
        finally:
            _demand(library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
    finally:
        _demand(library.cuCtxPopCurrent_v2(ctypes.byref(before)))


@functools.cache
def _primary_context(device: int) -> int:
    """Returns the context that PyTorch uses; kept for the life of the process."""
    library, handle, context = _library(), ctypes.c_int(), ctypes.c_void_p()
    _demand(library.cuDeviceGet(ctypes.byref(handle), device))
    _demand(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
    assert context.value is not None
    return context.value


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise TargetError(
            f"the CUDA driver cannot be used: {error}",
            todo="run on a machine with an NVIDIA GPU and a driver for CUDA 12 or newer",
        ) from error
    code = library.cuInit(0)
    if code != 0:
        raise TargetError(f"the CUDA driver cannot be used (code {code})", todo="run on a machine with an NVIDIA GPU")
    return library


def _demand(code: int) -> None:
    if code != 0:
        raise _DriverError(code)


def _text(code: int, function: str) -> str:
    found = ctypes.c_char_p()
    getattr(_library(), function)(code, ctypes.byref(found))
    return found.value.decode() if found.value else f"code {code}"
