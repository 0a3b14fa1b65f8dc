"""Kernels of each target compiled and called without the rooms behind `emit`: many programs in one library."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from testkit import numpy_target
from weft.block.check import infer
from weft.block.program import BlockProgram, BlockType
from weft.block.scope import Scope
from weft.emit.calls import Dims
from weft.emit.cpp import INCLUDE_DIR, emit, list_dims, size_names
from weft.run import compiler
from weft.run.compiler import compile_shared_library
from weft.schedule import KernelNodes, kernels
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def torch_type(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.name)


def types_of(program: BlockProgram) -> Mapping[str, BlockType]:
    return infer(program.graph, dict(program.inputs), Scope({}, applied=True))


def dims_of(program: BlockProgram) -> dict[str, tuple[Axis | None, ...]]:
    """The order of dimensions of every tensor: inputs and outputs as the program has them."""
    found: dict[str, tuple[Axis | None, ...]] = {n: list_dims(kind) for n, kind in types_of(program).items()}
    found.update({n: kind.lists for n, kind in program.inputs})
    found.update(zip(program.graph.outputs, program.output_axes, strict=True))
    return found


@dataclass(frozen=True)
class Unit:
    """One launch of a program, and what its function is to be called."""

    program: BlockProgram
    kernel: KernelNodes
    name: str
    dims: Dims

    def text(self) -> str:
        """Its translation unit."""
        return emit(self.program, self.kernel, self.name, self.dims)


def units(program: BlockProgram, name: str) -> list[Unit]:
    """One for each launch of `program`."""
    dims = dims_of(program)
    return [Unit(program, kernel, f"{name}_{i}", dims) for i, kernel in enumerate(kernels(program))]


Tensors = Sequence[torch.Tensor]
Function = Callable[[Tensors, Tensors, Mapping[str, int], int], None]


@dataclass
class Compiled:
    """A program whose launches can be called: with tensors read, tensors written, sizes, and a number of threads."""

    program: BlockProgram
    units: Sequence[Unit]
    functions: Sequence[Function]

    def __call__(
        self, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int], threads: int = 2
    ) -> tuple[torch.Tensor, ...]:
        """The outputs; memory that a kernel gets holds NaN or the like at first."""
        values = dict(inputs)
        types = types_of(self.program)
        for unit, function in zip(self.units, self.functions, strict=True):
            for name in unit.kernel.writes:
                if name in unit.kernel.begun:
                    continue
                shape = [1 if a is None else a.space.size(sizes) for a in unit.dims[name]]
                dtype = torch_type(types[name].dtype)
                made = torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype)
                values[name] = made
            read, written = ([values[n] for n in names] for names in (unit.kernel.reads, unit.kernel.writes))
            function(read, written, {s: sizes[s] for s in size_names(unit.program, unit.kernel)}, threads)
        return tuple(values[n] for n in self.program.graph.outputs)


def compiled(
    programs: Sequence[BlockProgram], folder: Path, *, quickly: bool = False, target: str = "cpu"
) -> list[Compiled]:
    """All of `programs`, applied, in one library; `quickly`: with little optimisation, a fifth of the time."""
    made = [units(p, f"f{i}") for i, p in enumerate(programs)]
    if target == "numpy":
        return [Compiled(p, us, [_printed(u) for u in us]) for p, us in zip(programs, made, strict=True)]
    text = "\n".join(u.text() for us in made for u in us)
    path = folder / "kernels.so"
    (folder / "kernels.cpp").write_text(text)
    with mock.patch.object(compiler, "LEVEL", "-Og" if quickly else compiler.LEVEL):
        path.write_bytes(compile_shared_library(text, (INCLUDE_DIR,)))
    library = ctypes.CDLL(str(path))
    return [Compiled(p, us, [_native(library, u) for u in us]) for p, us in zip(programs, made, strict=True)]


def _native(library: ctypes.CDLL, unit: Unit) -> Function:
    def call(read: Tensors, written: Tensors, sizes: Mapping[str, int], threads: int) -> None:
        strides = [s for t in read for s in t.stride()]
        wrong = ctypes.c_int64()  # what is no index stands for the nearest, here as in the interpreter
        words = [
            *(t.data_ptr() for t in (*read, *written)),
            *sizes.values(),
            *strides,
            threads,
            ctypes.addressof(wrong),
        ]
        function = library[unit.name]
        function.restype = None
        function.argtypes = [ctypes.c_char_p]
        function(struct.pack(f"{len(words)}q", *words))

    return call


def _printed(unit: Unit) -> Function:
    function = numpy_target.loaded(numpy_target.emit(unit.program, unit.kernel, unit.name, unit.dims), unit.name)
    return lambda read, written, sizes, _: function(read, written, sizes)
