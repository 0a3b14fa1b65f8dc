"""One kernel for a GPU: printed, compiled for the example's class of calls, and what it is called with there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.emit import triton
from weft.options import current
from weft.phases import phase
from weft.plan.targets.base import Meta
from weft.plan.targets.candidates import Candidate, Example
from weft.plan.targets.interface import signature, size_of
from weft.plan.targets.launches import LaunchSpec, launch_specs
from weft.plan.targets.lying import Lying, dense
from weft.run.gpu import ASSEMBLY_SECONDS, Assembled, GpuBinary, GpuSignature, GpuSource, build_gpu
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class Printed:
    """A printed kernel of a candidate.

    Attributes:
        spec: which of the candidate's launches.
        binary: it.
        sizes, lying: of its class at the example; of each input, how it lies.
    """

    spec: LaunchSpec
    binary: GpuBinary
    sizes: Mapping[str, int]
    lying: tuple[Lying, ...]

    def assembled(self, seconds: float = ASSEMBLY_SECONDS) -> Assembled:
        """Get the binary for calls like the example, in so many seconds at most; raises as `GpuBinary.assemble_for`."""
        return assembled_for(self.binary, self.sizes, self.lying, seconds)


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

    @phase("emit")
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

    # To print the text again takes less than to keep it, and most candidates are never asked for again.
    binary = build_gpu(spec.key_parts | own, emit, example.target, kept=meta is not None)
    return Printed(spec, binary, *called(binary, spec))


def called(binary: GpuBinary, spec: LaunchSpec) -> tuple[dict[str, int], tuple[Lying, ...]]:
    """Tells with what a launch is called at its example: the sizes by name, and of each input, how it lies."""
    example, inputs = spec.example, dict(spec.applied.inputs)
    sizes = {s.name: example.sizes[s.name] for s in binary.signature.kernel.sizes}
    shapes = {name: [a.space.size(example.sizes) for a in spec.dims[name]] for name in spec.part.reads}
    lying = (example.lies(n, shape) if n in inputs else Lying(dense(shape)) for n, shape in shapes.items())
    return sizes, tuple(lying)


def assembled_for(
    binary: GpuBinary, sizes: Mapping[str, int], lying: Sequence[Lying], seconds: float = ASSEMBLY_SECONDS
) -> Assembled:
    """Gets the binary for calls with these sizes and inputs that lie so; raises as `GpuBinary.assemble_for`."""
    strides, starts = [each.strides for each in lying], [each.start for each in lying]
    return binary.assemble_for(sizes, strides, starts=starts, seconds=seconds)


def begin_any_length(
    binary: GpuBinary, sizes: Mapping[str, int], lying: Sequence[Lying], varying: Collection[str]
) -> None:
    """Begin to compile the binary for calls like these of any lengths `varying` (`GpuBinary.begin_any_length`)."""
    strides, starts = [each.strides for each in lying], [each.start for each in lying]
    binary.begin_any_length(sizes, strides, varying, starts=starts)


def tf32_allowed() -> bool:
    """Tell whether matmuls of float32 may round their factors to tf32: what the option says, or PyTorch's own setting."""
    wanted = current().float32_products
    if wanted != "torch":
        return wanted == "tf32"
    settings: Any = torch.backends.cuda.matmul
    # Before 2.9 there is one attribute for it; since then asking for the old one may raise.
    return settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else bool(settings.allow_tf32)
