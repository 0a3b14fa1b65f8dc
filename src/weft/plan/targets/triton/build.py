"""One kernel for a GPU: printed, compiled for the example's class of calls, and what it is called with there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.block.program import BlockProgram
from weft.emit import triton
from weft.options import current
from weft.plan.targets.base import LaunchSpec, Meta, launch_specs
from weft.plan.targets.bench import dense
from weft.plan.targets.candidates import Candidate, Example
from weft.plan.targets.interface import signature, size_of
from weft.run.gpu import ASSEMBLY_SECONDS, Assembled, GpuBinary, GpuSignature, GpuSource, build_gpu
from weft.tensor.axes import Axis
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed kernel of a candidate.

    Attributes:
        spec: which of the candidate's launches.
        binary: it.
        sizes, strides: of its class at the example.
    """

    spec: LaunchSpec
    binary: GpuBinary
    sizes: Mapping[str, int]
    strides: tuple[tuple[int, ...], ...]

    def assembled(self, seconds: float = ASSEMBLY_SECONDS) -> Assembled:
        """Get the binary for calls like the example, in so many seconds at most; raises as `GpuBinary.assemble_for`."""
        return self.binary.assemble_for(self.sizes, self.strides, seconds=seconds)


def built(program: TensorProgram, candidate: Candidate, example: Example) -> list[Printed]:
    """Print the kernels of `candidate`, in launch order, not yet compiled, to be timed.

    Args:
        program: the region.
        candidate: one of its programs with places.
        example: sizes and layouts.

    Raises:
        UnsupportedError: a kernel cannot be printed.
    """
    return [printed(spec) for spec in launch_specs(program, candidate.applied, candidate.schedule, example)]


def launched(
    kernels: Sequence[Printed], inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Launch the kernels of a candidate in order.

    Args:
        kernels: all of them, as `built` gives them.
        inputs: of the program, by name, on the GPU.
        sizes: of every space, by name.

    Returns:
        the inputs, and every tensor that a kernel wrote, by name.
    """
    values = dict(inputs)
    for each in kernels:
        part = each.spec.part
        begun = [values[n] for n in part.begun]
        passed = [sizes[s] for s in each.binary.signature.passed]
        made = each.binary.launch(*(values[n] for n in part.reads), *begun, *passed)
        values.update(zip(part.writes, made, strict=True))
    return values


def printed(spec: LaunchSpec, meta: Meta | None = None) -> Printed:
    """Print one launch.

    Args:
        spec: which.
        meta: what is kept beside a kernel that is printed now; None: it is to be timed only.

    Raises:
        UnsupportedError: it cannot be printed.
    """
    applied, schedule, part, dims, example = spec.applied, spec.schedule, spec.part, spec.dims, spec.example
    warps = schedule.warps_of(merges=part.merges)
    own = {
        "schedule": f"{schedule}; warps {warps}, stages {schedule.stages}",
        "checked": str(meta is not None),
        "tf32": str(tf32_allowed()),
    }

    def emit() -> GpuSource:
        kernel = triton.emit(
            applied, part, spec.name, dims, example.target, tf32=tf32_allowed(), stages=schedule.stages
        )
        called = GpuSignature(
            signature(applied, part, spec.name, dims),
            kernel.constants,
            kernel.grid,
            warps,
            schedule.stages,
            early=kernel.early,
            shapes=tuple(tuple(map(size_of, dims[n])) for n in part.reads),
        )
        return GpuSource(kernel.text, called, {} if meta is None else meta())

    binary = build_gpu(spec.key_parts | own, emit, example.target)
    sizes = {s.name: example.sizes[s.name] for s in binary.signature.kernel.sizes}
    return Printed(spec, binary, sizes, tuple(_strides(name, dims[name], applied, example) for name in part.reads))


def tf32_allowed() -> bool:
    """Tell whether matmuls of float32 may round their factors to tf32: what the option says, or PyTorch's own setting."""
    wanted = current().float32_products
    if wanted != "torch":
        return wanted == "tf32"
    settings: Any = torch.backends.cuda.matmul
    # Before 2.9 there is one attribute for it; since then asking for the old one may raise.
    return settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else bool(settings.allow_tf32)


def _strides(name: str, dims: Sequence[Axis], applied: BlockProgram, example: Example) -> tuple[int, ...]:
    """Return the strides of a dense tensor, its dimension of stride 1 the innermost."""
    last = example.innermost.get(name) if name in dict(applied.inputs) else None
    return dense([a.space.size(example.sizes) for a in dims], last)
