"""Calling a kernel on a GPU: a launcher made for one signature, straight-line Python as for kernels on a CPU (`weft.run.launch`).

A call reads shapes, strides and addresses, finds the binary of its class in a dictionary, writes everything that the driver is to
know into a block of memory that no other call uses meanwhile, and starts the kernel on PyTorch's current stream:

    word 0 ..   a CUlaunchConfig: grid, block, shared memory, stream (`driver.CONFIG_WORDS`)
    then        each argument of the kernel but the constants, one word each
    then        the address of Triton's own memory, and a word that is 0
    then        the address of each of these words that the binary takes: it takes no stride that is 1

An argument of 32 bits is the lower half of its word. Nothing synchronises and nothing is allocated but by PyTorch, so that calls
may be captured in CUDA graphs.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import torch

from weft.emit.triton import GridLoop
from weft.errors import TargetError, UnsupportedError, WeftError
from weft.run.gpu import driver
from weft.run.gpu.assemble import Assembled
from weft.run.gpu.classes import KernelClass, class_of
from weft.run.gpu.signature import FAR, LONGEST, GpuSignature
from weft.run.launch import Launcher, allocated, allocation, check, over_parameter, sizes_and_strides, tuple_of
from weft.target import Target

BinaryOf: TypeAlias = Callable[[KernelClass, Callable[[], None]], Assembled]
LaunchArguments: TypeAlias = tuple[ctypes.Array[ctypes.c_uint64], int, int, int, int, int, int, int, "list[Any]"]
"""Ready to be started: the block of memory; addresses of its configuration, of the function and of the arguments' addresses; the
words of the configuration that give block and shared memory; bytes of Triton's memory for each thread block; the thread blocks that
take all places of the GPU; the other calls of the same binary that no thread uses, where it goes back to."""

_MOST_KNOWN = 4096
_MOST_PROGRAMS = 1 << 31
_LITTLE_ONE = 1 << 32
"""A word whose upper half is 1."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a launcher asks of PyTorch and of the driver.

    Attributes:
        current: the number of the current GPU.
        stream: the handle of the current stream of a GPU.
        within: a context in which another GPU is the current one.
        allocate: makes a tensor on the current GPU of sizes, strides and an element type.
        start, load, retry: the driver's (`driver`).
    """

    current: Callable[[], int]
    stream: Callable[[int], int]
    within: Callable[[int], Any]
    allocate: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Any]
    start: driver.StartFunction
    load: Callable[[Assembled, int], driver.LoadedBinary]
    retry: Callable[[int, int, int, int, int], None]


def cuda() -> Runtime:
    """Returns PyTorch's GPUs. TargetError where there is no driver."""
    # What the code that PyTorch's own compiler prints calls; the public names take 0.5 to 1 us more.
    own: Any = getattr(torch, "_C")  # noqa: B009 - not a public name
    compiled: Any = getattr(getattr(own, "_dynamo", None), "guards", None)
    return Runtime(
        current=getattr(own, "_cuda_getDevice", torch.cuda.current_device),
        stream=getattr(own, "_cuda_getCurrentRawStream", _stream),
        within=torch.cuda.device,
        allocate=getattr(compiled, "_empty_strided_cuda", _allocated),
        start=driver.start(),
        load=driver.load,
        retry=driver.retry,
    )


def _stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _allocated(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(sizes, strides, dtype=dtype, device="cuda")


def make_gpu_launcher(
    signature: GpuSignature,
    binary_of: BinaryOf,
    runtime: Callable[[], Runtime] = cuda,
) -> Launcher:
    """Makes a launcher for the kernel of `signature`. No GPU needs to be here before its first call.

    Args:
        signature: the kernel's interface.
        binary_of: gives the binary for a class of calls, and calls its second argument when it would give a better one.
        runtime: what to ask of PyTorch and of the driver; called with the first call.

    Raises:
        ValueError: the signature reads a dimension that is not there, or names a size that it does not read.
    """
    check(signature.kernel)
    return _Kernel(signature, binary_of, runtime).launcher()


def refusing(target: Target) -> Launcher:
    """Makes a launcher that says that weft runs nothing on `target`."""

    def launch(*_: Any) -> NoReturn:
        raise TargetError(
            f"weft compiles kernels for {target}, but does not run them", todo="run on a CPU, or on an NVIDIA GPU"
        )

    return launch


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A binary on a GPU: what makes calls of it, and those that are ready; `heard`: how often a better one was heard of before."""

    binary: Assembled
    make: Callable[[], LaunchArguments]
    free: list[Any]
    heard: int


@dataclass
class _Kernel:
    """A kernel's launcher and what it has loaded.

    Attributes:
        known: for the key of a call (`_Text.key`), the calls of its binary that are ready.
        constants: for each space that constants depend on, their values by its size.
    """

    signature: GpuSignature
    binary_of: BinaryOf
    runtime: Callable[[], Runtime]
    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    known: dict[Any, list[Any]] = field(default_factory=dict[Any, "list[Any]"])
    constants: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict[str, dict[int, "tuple[int, ...]"]])
    _loaded: dict[tuple[int, KernelClass], _Loaded] = field(default_factory=dict[tuple[int, KernelClass], "_Loaded"])
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _heard: int = 0

    def launcher(self) -> Launcher:
        text = _Text(self.signature)
        self.constants |= {space: {} for space in text.spaces}
        kernel = self.signature.kernel
        words = driver.CONFIG_WORDS + _arguments(self.signature) + 1
        self.scope |= {
            "__name__": f"{__name__}.text",
            "known": self.known,
            "ready": self._ready,
            "elsewhere": self._elsewhere,
            "pack_into": struct.Struct(f"{words}q").pack_into,
            "byte": torch.uint8,
            "too_many": self._too_many,
            **{f"constants{i}": self.constants[space] for i, space in enumerate(text.spaces)},
            # The names of element types are torch's own.
            **{f"dtype{i}": getattr(torch, each.dtype.name) for i, each in enumerate(kernel.outputs)},
        }
        # Until the first call there may be neither a driver nor a GPU.
        self.scope["current"] = self._begin
        exec(compile(text.module(), f"<launcher of {self.signature.name}>", "exec"), self.scope)  # noqa: S102 - our own text
        return self.scope["launch"]

    def _begin(self) -> int:
        """Looks at PyTorch and the driver, with the first call, and returns the current GPU."""
        found = self.runtime()
        self.scope |= {
            "stream": found.stream,
            "allocate": found.allocate,
            "start": found.start,
            "retry": found.retry,
            "current": found.current,
        }
        return found.current()

    def _too_many(self, thread_blocks: int) -> NoReturn:
        raise UnsupportedError(
            f"kernel {self.signature.name} would have {thread_blocks} thread blocks: a grid has fewer than 2**31"
        )

    def _elsewhere(self, device: int, arguments: tuple[Any, ...]) -> Any:
        """Makes a call whose inputs are not on the current GPU."""
        if device < 0:
            raise TargetError(
                f"kernel {self.signature.name} runs on a GPU, but its inputs are on the CPU",
                todo="move them to the GPU",
            )
        with self.runtime().within(device):
            return self.scope["launch"](*arguments)

    def _ready(
        self, device: int, addresses: Sequence[int], values: Sequence[int], strides: Sequence[int]
    ) -> LaunchArguments:
        """Returns a call that can be started, of a class not met before, or while other threads use all that there are."""
        sizes = self.signature.sizes_of(values)
        kind = class_of(self.signature, addresses, sizes, strides)
        found, heard = self._loaded.get((device, kind)), self._heard
        if found is None:
            with self._lock:
                found = self._load(device, kind)
        elif found.heard != heard and self._lock.acquire(blocking=False):  # whoever holds it may be compiling
            try:
                found = self._load(device, kind)
            finally:
                self._lock.release()
        self._remember(found.free, sizes, (device, *addresses, *values, *strides))
        if self._heard != heard:
            self.known.clear()  # the better binary was there before this one was remembered
        return found.make()

    def _better(self) -> None:
        """Hears, from any thread, that there is a better binary for a class of calls: the next ones ask."""
        self._heard += 1
        self.known.clear()

    def _load(self, device: int, kind: KernelClass) -> _Loaded:
        """Loads the binary for `kind`, unless that was done, be it by a thread that this one waited for.

        Where there is a better one that cannot be loaded, the one before goes on.
        """
        known, heard = self._loaded.get((device, kind)), self._heard
        if known is not None and known.heard == heard:
            return known
        try:
            binary = self.binary_of(kind, self._better)
            found = self._loaded.get((device, binary.kind))
            if found is None or found.binary.kind != binary.kind:
                loaded = self.runtime().load(binary, device)
                free: list[Any] = []
                found = _Loaded(binary, _maker(binary, loaded, _arguments(self.signature), free), free, heard)
        except (WeftError, RuntimeError):  # of PyTorch's, that memory does not suffice, too
            if known is None:
                raise
            found = known
        found = replace(found, heard=heard)
        self._loaded[device, found.binary.kind] = self._loaded[device, kind] = found
        return found

    def _remember(self, free: list[Any], sizes: Mapping[str, int], numbers: Sequence[int]) -> None:
        """Remembers a call's binary, so that the next call like this one finds it by itself."""
        if len(self.known) >= _MOST_KNOWN:
            self.known.clear()
        for space, values in self.constants.items():
            if len(values) >= _MOST_KNOWN:
                values.clear()
            values[sizes[space]] = tuple(c.of(sizes) for c in self.signature.constants if c.space == space)
        key = self.scope["key_of"](*numbers)
        if key is not None:
            self.known[key] = free


def _arguments(signature: GpuSignature) -> int:
    """Counts the arguments that the kernel has beside its constants."""
    kernel = signature.kernel
    return len(kernel.inputs) + len(kernel.outputs) + len(kernel.sizes) + signature.stride_count


def _maker(
    assembled: Assembled, loaded: driver.LoadedBinary, arguments: int, free: list[Any]
) -> Callable[[], LaunchArguments]:
    """Returns a function that makes calls of a binary, whose kernel has so many `arguments` beside its constants."""
    first = driver.CONFIG_WORDS
    places = list(assembled.kind.parameters)
    # Triton's own memory follows: first that of the launch, then that of its profiler, which is none.
    places += [arguments, arguments + 1][: len(assembled.parameters) - len(places)]
    block = 1 | assembled.threads << 32

    def make() -> LaunchArguments:
        memory = (ctypes.c_uint64 * (first + arguments + 2 + len(places)))()
        base = ctypes.addressof(memory)
        memory[first + arguments + 2 :] = [base + 8 * (first + place) for place in places]
        parameters = base + 8 * (first + arguments + 2)
        return (
            memory,
            base,
            loaded.function,
            parameters,
            block,
            assembled.shared,
            assembled.scratch,
            loaded.fills,
            free,
        )

    return make


class _Text:
    """The source of a launcher. Its variables are numbered, so that any name of a size will do."""

    def __init__(self, signature: GpuSignature) -> None:
        kernel = signature.kernel
        self.signature = signature
        self.inputs = [f"x{index}" for index in range(len(kernel.inputs))]
        self.outputs = [f"y{index}" for index in range(len(kernel.outputs))]
        self.given = [f"y{index}" for index in kernel.given]
        self.tensors = [*self.inputs, *self.given]
        self.size_of = {size.name: f"n{index}" for index, size in enumerate(kernel.sizes)}
        self.read, self.strides = sizes_and_strides(kernel, self.size_of)
        self.addresses = [f"a_{tensor}" for tensor in (*self.inputs, *self.outputs)]
        self.spaces = tuple(dict.fromkeys(c.space for c in signature.constants))

    def module(self) -> str:
        """Writes the functions `launch` and `key_of`."""
        return "\n".join([*self._launch(), "", *self._key_of(), ""])

    def key(self) -> str:
        """Writes the key that finds the binary of a call: the GPU and, of its class, what is cheap to see.

        Addresses of outputs that are no arguments, or lie where an input may, are divisible by 16. There is no key if a number
        has more than 31 bits, or a size may be too long.
        """
        seen = [a for a, t in zip(self.addresses, (*self.inputs, *self.outputs), strict=True) if t in self.tensors]
        parts = [f"{a} & 15" for a in seen]
        parts += [f"{n} & 15" for n in self.size_of.values()]
        parts += [f"{s} & 15 if {s} != 1 else 16" for s in self.strides]
        parts += [f"constants{i}[{self.size_of[space]}]" for i, space in enumerate(self.spaces)]
        if reach := self._reach():
            parts.append(f"({reach}) >= {FAR}")
        return tuple_of(["device", *([f"({self._wide()}) >> 31"] if self._wide() else []), *parts])

    def _wide(self) -> str:
        """Writes an expression that has more than 31 bits where a stride has, or where a size is `LONGEST` or more."""
        sizes = " | ".join(self.size_of.values())
        return " | ".join([*([f"({sizes}) + {2**31 - LONGEST}"] if sizes else []), *self.strides])

    def _reach(self) -> str:
        """Writes how far the dimensions of the inputs reach, in elements: at least `FAR` where the class says so
        (`reaches_far`).
        """
        lengths = [str(n) if isinstance(n, int) else self.size_of[n] for s in self.signature.shapes for n in s]
        return " | ".join(f"{n} * {s}" for n, s in zip(lengths, self.strides, strict=True))

    def _key_of(self) -> list[str]:
        """Writes the function that gives the key under which a call is remembered; None for a call that is not."""
        numbers = ", ".join(["device", *self.addresses, *self.size_of.values(), *self.strides])
        lines = [f"def key_of({numbers}):"]
        if self._wide():
            lines += [f"    if ({self._wide()}) >> 31:", "        return None"]
        return [*lines, f"    return {self.key()}"]

    def _launch(self) -> list[str]:
        kernel = self.signature.kernel
        parameters = [*self.inputs, *self.given, *(self.size_of[name] for name in kernel.passed)]
        over = over_parameter(kernel)
        taken = [*parameters, *(each.split("=")[0] for each in over)]
        lines = [f"def launch({', '.join([*parameters, *over])}):", *self._device(taken), *self.read]
        lines += allocated(
            kernel, [allocation(each.dims, self.size_of, f"dtype{index}") for index, each in enumerate(kernel.outputs)]
        )
        results = tuple_of(self.outputs)
        lines.append(f"    grid = {self._grid()}")
        lines += [
            f"    if not 0 < grid < {_MOST_PROGRAMS}:",
            "        if grid:",
            "            too_many(grid)",
            f"        return {results}",
        ]
        tensors = [*self.inputs, *self.outputs]
        lines += [f"    {a} = {t}.data_ptr()" for a, t in zip(self.addresses, tensors, strict=True)]
        groups = [tuple_of(g) for g in (self.addresses, [*self.size_of.values()], self.strides)]
        attributes, count = driver.attributes(early=self.signature.early)
        # The places that become free first are on a few multiprocessors: few thread blocks would crowd there.
        early = f"2 * grid >= fills and {count}" if count else "0"
        words = [
            *(
                f"{_LITTLE_ONE} + grid",
                "block",
                f"{_LITTLE_ONE + 1}",
                "shared",
                "stream(device)",
                str(attributes),
                early,
            ),
            *(*self.addresses, *self.size_of.values(), *self.strides, "own"),
        ]
        return [
            *lines,
            "    try:",
            f"        call = known[{self.key()}].pop()",
            "    except LookupError:",
            f"        call = ready(device, {', '.join(groups)})",
            "    memory, config, function, arguments, block, shared, own, fills, free = call",
            "    if own:",
            "        held = allocate((own * grid,), (1,), byte)",
            "        own = held.data_ptr()",
            f"    pack_into(memory, 0, {', '.join(words)})",
            "    status = start(config, function, arguments, None)",
            "    if status:",
            "        retry(status, device, config, function, arguments)",
            "    free.append(call)",
            f"    return {results}",
        ]

    def _device(self, parameters: Sequence[str]) -> list[str]:
        """Writes lines that find the GPU of the call and leave a call for another than the current one to `elsewhere`."""
        if not self.tensors:
            return ["    device = current()"]
        return [
            f"    device = {self.tensors[0]}.get_device()",
            "    if device < 0 or device != current():",
            f"        return elsewhere(device, {tuple_of(parameters)})",
        ]

    def _grid(self) -> str:
        return " * ".join(map(self._blocks, self.signature.grid)) or "1"

    def _blocks(self, loop: GridLoop) -> str:
        if isinstance(loop.size, int):
            return str(-(-loop.size // loop.block))
        size = self.size_of[loop.size]
        return size if loop.block == 1 else f"(({size} + {loop.block - 1}) // {loop.block})"
