"""Applied programs as Triton kernels without the rooms behind `run`: run in the interpreter or on the GPU, or compiled only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from weft.block.program import BlockProgram
from weft.block.walk import spaces
from weft.emit.calls import Dims
from weft.emit.triton import GRANULARITY, emit
from weft.errors import WeftError
from weft.plan.targets.home import of_device
from weft.plan.targets.interface import signature, size_of
from weft.run.cache import CacheFolder
from weft.run.gpu import (
    Assembled,
    GpuSignature,
    GpuSource,
    Job,
    assemble,
    build_gpu,
    class_of,
    interpreted,
    side_by_side,
)
from weft.run.launch import Launcher
from weft.schedule import KernelNodes, kernels, with_demands
from weft.target import Target
from weft.tensor.axes import Axis


@dataclass(frozen=True)
class TritonProgram:
    """An applied program as Triton kernels, in the order of their launches; binaries are kept in `folder`."""

    program: BlockProgram
    dims: Mapping[str, tuple[Axis, ...]]
    launches: tuple[tuple[KernelNodes, GpuSource], ...]
    folder: Path

    def prepare(
        self,
        inputs: Mapping[str, torch.Tensor],
        sizes: Mapping[str, int],
        options: Mapping[str, int] | None = None,
        allocate: Callable[..., torch.Tensor] = torch.empty,
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A function without arguments that runs the program.

        Args:
            inputs: by name, all on one device.
            sizes: of each space, by name.
            options: Triton's, for every launch (num_warps, num_stages).
            allocate: makes what the interpreter writes to, as `torch.empty` does.
        """
        device = next((t.device for t in inputs.values()), torch.device("cpu"))
        calls = [(part, self._launcher(_with(source, options), device, allocate)) for part, source in self.launches]

        def run() -> tuple[torch.Tensor, ...]:
            values = dict(inputs)
            for (part, source), (_, launch) in zip(self.launches, calls, strict=True):
                given = [values[n] for n in part.begun]
                passed = [sizes[name] for name in source.signature.passed]
                results = launch(*(values[n] for n in part.reads), *given, *passed)
                values |= dict(zip(part.writes, results, strict=True))
            return tuple(values[n] for n in self.program.graph.outputs)

        return run

    def _launcher(self, source: GpuSource, device: torch.device, allocate: Callable[..., torch.Tensor]) -> Launcher:
        if interpreted.is_asked_for():
            return interpreted.make_interpreted(source.text, source.signature, allocate)
        parts = {"text": source.text, "signature": str(source.signature)}
        return build_gpu(parts, lambda: source, of_device(device), CacheFolder(self.folder)).launch

    def compile_for(
        self, backend: str, arch: int | str, sizes: Mapping[str, int], options: Mapping[str, int] | None = None
    ) -> list[Assembled]:
        """Each kernel compiled for a target that need not be here, for dense tensors: ("cuda", 90), ("hip", "gfx942")."""
        jobs: list[Job] = []
        for part, plain in self.launches:
            source = _with(plain, options)
            shapes = [[a.space.size(sizes) for a in self.dims[name]] for name in part.reads]
            strides = [math.prod(shape[i + 1 :]) for shape in shapes for i in range(len(shape))]
            known = {size.name: sizes[size.name] for size in source.signature.kernel.sizes}
            kind = class_of(source.signature, [0] * (len(part.reads) + len(part.writes)), known, strides)
            own = source.signature
            jobs.append(Job(source.text, own.name, kind, Target.parse(f"{backend}:{arch}"), own.warps, own.stages))
        made: list[Assembled] = []
        for found in side_by_side([partial(assemble, job) for job in jobs]):
            if isinstance(found, WeftError):
                raise found
            made.append(found)
        return made


def load(
    program: BlockProgram,
    dims: Dims,
    folder: Path,
    name: str = "kernel",
    target: Target | None = None,
    *,
    tf32: bool = False,
    stages: int = 1,
) -> TritonProgram:
    """`program`, applied, as Triton kernels. UnsupportedError: `emit` says what Triton kernels do not do."""
    program = with_demands(program, GRANULARITY)
    known = {n: tuple(a for a in axes if a is not None) for n, axes in dims.items()}
    launches: list[tuple[KernelNodes, GpuSource]] = []
    for number, part in enumerate(kernels(program)):
        own = f"{name}_{number}"
        kernel = emit(program, part, own, known, target, tf32=tf32, stages=stages)
        shapes = tuple(tuple(map(size_of, known[n])) for n in part.reads)
        called = GpuSignature(signature(program, part, own, known), kernel.constants, kernel.grid, shapes=shapes)
        launches.append((part, GpuSource(kernel.text, called)))
    return TritonProgram(program, known, tuple(launches), folder)


def sizes_of(program: BlockProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The size of each space of `program`, read from its inputs."""
    found = {s.name: s.fixed for s in spaces(program) if s.fixed is not None}
    for name, kind in program.inputs:
        found.update({a.space.name: n for a, n in zip(kind.lists, inputs[name].shape, strict=True)})
    return found


def _with(source: GpuSource, options: Mapping[str, int] | None) -> GpuSource:
    given = options or {}
    own = source.signature
    changed = replace(own, warps=given.get("num_warps", own.warps), stages=given.get("num_stages", own.stages))
    return replace(source, signature=changed)
