"""Printed Triton kernels, loaded and started.

Triton is imported when a kernel is loaded, so that weft runs where it is missing. With TRITON_INTERPRET=1 in the environment
before that, kernels run in Triton's interpreter, on tensors of the CPU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from weft.block.check import Scope, infer
from weft.block.program import BlockProgram, BlockType, spaces
from weft.emit.calls import Dims
from weft.emit.triton import BlockConstant, TritonKernel, emit
from weft.errors import UnsupportedError
from weft.schedule import kernels
from weft.target import Target
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

_LONGEST = 2**31


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel compiled for a target without running it: its shared memory in bytes, and the assembly's text."""

    shared: int
    assembly: str


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """An applied program as Triton kernels, in the order of their launches.

    Attributes:
        program: the applied program.
        dims: for each tensor, its dimensions in memory order.
        types: of the values at the top of the program.
        launches: each printed kernel with Triton's function.
    """

    program: BlockProgram
    dims: Dims
    types: Mapping[str, BlockType]
    launches: tuple[tuple[TritonKernel, Any], ...]

    def prepare(
        self,
        inputs: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        options: Mapping[str, int] | None = None,
        allocate: Callable[..., torch.Tensor] = torch.empty,
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A function without arguments that runs the program into the same outputs each time, and gives them.

        Args:
            inputs: by name, all on one device.
            sizes: of each space, by name.
            options: Triton's, for every launch (num_warps, num_stages).
            allocate: makes tensors as `torch.empty` does.

        Raises:
            UnsupportedError: a size of 2**31 or more, or of 0 where a block covers the space.
        """
        values = dict(inputs)
        device = next(iter(inputs.values())).device
        calls: list[Callable[[], Any]] = []
        for kernel, function in self.launches:
            for name in kernel.writes:
                shape = [_length(a, sizes) for a in self.dims[name]]
                values[name] = allocate(shape, dtype=_torch_type(self.types[name].dtype), device=device)
            if grid := _grid(kernel, sizes):
                arguments = _arguments(kernel, values, sizes)
                calls.append(_bound(function, grid, arguments, {**_constants(kernel, sizes), **(options or {})}))
        outputs = tuple(values[n] for n in self.program.graph.outputs)

        def run() -> tuple[torch.Tensor, ...]:
            for call in calls:
                call()
            return outputs

        return run

    def compile_for(
        self, backend: str, arch: int | str, sizes: Mapping[str, int], options: Mapping[str, int] | None = None
    ) -> list[Compiled]:
        """Each kernel compiled for a target that need not be here: ("cuda", 90), ("hip", "gfx942").

        `sizes` are taken to be divisible by 16 where they are, and innermost strides to be 1, as a launch would.
        """
        compiler, targets = import_module("triton.compiler"), import_module("triton.backends.compiler")
        target = targets.GPUTarget(backend, arch, 64 if backend == "hip" else 32)
        made: list[Compiled] = []
        for kernel, function in self.launches:
            signature, constants, aligned = self._signature(kernel, function, sizes)
            attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
            source = compiler.ASTSource(function, signature, constants, attributes)
            found = compiler.compile(source, target=target, options=dict(options or {}))
            made.append(Compiled(found.metadata.shared, found.asm["ptx" if backend == "cuda" else "amdgcn"]))
        return made

    def _signature(
        self, kernel: TritonKernel, function: Any, sizes: Mapping[str, int]
    ) -> tuple[dict[str, str], dict[str, int], list[int]]:
        """Types of the arguments by name, the values of constants, and which arguments are divisible by 16."""
        kinds = [f"*{_POINTEES[self.types[n].dtype]}" for n in (*kernel.reads, *kernel.writes)]
        numbers = [sizes[n] for n in kernel.sizes]
        for name in kernel.reads:
            shape = [_length(a, sizes) for a in self.dims[name]]
            numbers += [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        constants = _constants(kernel, sizes)
        names: Sequence[str] = function.arg_names
        signature = dict(zip(names, kinds, strict=False))
        aligned = list(range(len(kinds)))
        for place, (name, value) in enumerate(zip(names[len(kinds) :], numbers, strict=False), len(kinds)):
            signature[name] = "constexpr" if value == 1 else "i32"
            if value == 1:
                constants[name] = 1
            elif value % 16 == 0:
                aligned.append(place)
        return {n: signature.get(n, "constexpr") for n in names}, constants, aligned


_POINTEES = {
    DType.float32: "fp32",
    DType.bfloat16: "bf16",
    DType.float16: "fp16",
    DType.float8_e4m3fn: "fp8e4nv",
    DType.float8_e5m2: "fp8e5",
    DType.int64: "i64",
    DType.int32: "i32",
    DType.int16: "i16",
    DType.int8: "i8",
    DType.uint8: "u8",
    DType.bool: "i1",
}


def load(
    program: BlockProgram,
    dims: Dims,
    folder: Path,
    name: str = "kernel",
    target: Target | None = None,
    *,
    tf32: bool = False,
) -> TritonProgram:
    """`program`, applied, as Triton kernels; their modules are written to `folder`, where Triton reads their source.

    `target` and `tf32` are as for `emit`.

    Raises:
        UnsupportedError: `emit` says what Triton kernels do not do.
        ModuleNotFoundError: Triton is not installed.
    """
    launches: list[tuple[TritonKernel, Any]] = []
    for number, nodes in enumerate(kernels(program)):
        kernel = emit(program, nodes, f"{name}_{number}", dims, target, tf32=tf32)
        launches.append((kernel, _function(kernel, folder)))
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=True))
    return TritonProgram(program, dims, types, tuple(launches))


def sizes_of(program: BlockProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The size of each space of `program`, read from its inputs."""
    found = {s.name: s.fixed for s in spaces(program) if s.fixed is not None}
    for name, kind in program.inputs:
        found.update({a.space.name: n for a, n in zip(kind.lists, inputs[name].shape, strict=True)})
    return found


def _function(kernel: TritonKernel, folder: Path) -> Any:
    digest = hashlib.sha256(kernel.text.encode()).hexdigest()[:16]
    module_name = f"{kernel.name}_{digest}"
    path = folder / f"{module_name}.py"
    path.write_text(kernel.text)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kernel.name)


def _length(axis: Axis | None, sizes: Mapping[str, int]) -> int:
    return 1 if axis is None else axis.space.size(sizes)


def _torch_type(dtype: DType) -> torch.dtype:
    # The names of element types are torch's own.
    return getattr(torch, dtype.name)


def _grid(kernel: TritonKernel, sizes: Mapping[str, int]) -> int:
    """How many programs a launch has."""
    lengths = [g.size if isinstance(g.size, int) else sizes[g.size] for g in kernel.grid]
    return math.prod(-(-n // g.block) for n, g in zip(lengths, kernel.grid, strict=True))


def _arguments(kernel: TritonKernel, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> list[Any]:
    numbers = [sizes[n] for n in kernel.sizes]
    if any(n >= _LONGEST for n in numbers):
        raise UnsupportedError(f"sizes {numbers}: Triton kernels number elements with 31 bits")
    tensors = [values[n] for n in (*kernel.reads, *kernel.writes)]
    return [*tensors, *numbers, *(s for n in kernel.reads for s in values[n].stride())]


def _constants(kernel: TritonKernel, sizes: Mapping[str, int]) -> dict[str, int]:
    empty = [c.space for c in kernel.constants if isinstance(c, BlockConstant) and sizes[c.space] < 1]
    if empty:
        raise UnsupportedError(f"{', '.join(empty)} without elements, where a block covers all of them")
    return {c.name: c.of(sizes) for c in kernel.constants}


def _bound(function: Any, grid: int, arguments: Sequence[Any], constants: Mapping[str, int]) -> Callable[[], Any]:
    started = function[(grid,)]
    return lambda: started(*arguments, **constants)
