"""One kernel for a GPU: printed, compiled for the example's class of calls, and what it is called with there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.block.listing import listing
from weft.block.program import BlockProgram
from weft.emit import triton
from weft.options import current
from weft.plan.interface import dims_of, signature, size_of
from weft.plan.select import Candidate, Example
from weft.run.cache import Json
from weft.run.gpu import ASSEMBLY_SECONDS, Assembled, GpuBinary, GpuSignature, GpuSource, build_gpu
from weft.schedule import KernelNodes, kernels, tensor_of
from weft.tensor.axes import Axis
from weft.tensor.program import TensorProgram

Meta = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel of a candidate.

    Attributes:
        part, index: which of the candidate's launches.
        binary: it.
        sizes, strides: of its class at the example.
    """

    part: KernelNodes
    index: int
    binary: GpuBinary
    sizes: Mapping[str, int]
    strides: tuple[tuple[int, ...], ...]

    def assembled(self, seconds: float = ASSEMBLY_SECONDS) -> Assembled:
        """Get the binary for calls like the example, in so many seconds at most; raises as `GpuBinary.assemble_for`."""
        return self.binary.assemble_for(self.sizes, self.strides, seconds=seconds)


def built(
    program: TensorProgram, candidate: Candidate, example: Example, meta: Callable[[], Meta] | None = None
) -> list[Built]:
    """Print the kernels of `candidate`, in launch order, not yet compiled.

    Args:
        program: the region.
        candidate: one of its programs with places.
        example: sizes and layouts.
        meta: what is kept beside a kernel that is printed now; None: it is to be timed only.

    Raises:
        UnsupportedError: a kernel cannot be printed.
    """
    found: list[Built] = []
    for index, part in enumerate(kernels(candidate.applied)):
        dims = dims_of(candidate.applied, part)
        binary = _printed(program, candidate, part, index, dims, example, meta)
        sizes = {s.name: example.sizes[s.name] for s in binary.signature.kernel.sizes}
        strides = tuple(_strides(name, dims[name], candidate.applied, example) for name in part.reads)
        found.append(Built(part, index, binary, sizes, strides))
    return found


def launched(
    kernels: Sequence[Built], inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
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
        writes = [tensor_of(each.part, n)[0] for n in each.part.writes]
        begun = [values[writes[i]] for i in each.binary.signature.kernel.given]
        passed = [sizes[s] for s in each.binary.signature.passed]
        made = each.binary.launch(*(values[n] for n in each.part.reads), *begun, *passed)
        values.update(zip(writes, made, strict=True))
    return values


def _printed(
    program: TensorProgram,
    candidate: Candidate,
    part: KernelNodes,
    index: int,
    dims: Mapping[str, tuple[Axis, ...]],
    example: Example,
    meta: Callable[[], Meta] | None,
) -> GpuBinary:
    applied, schedule = candidate.applied, candidate.schedule
    warps = schedule.warps_of(merges=part.merges)
    name = re.sub(r"\W", "_", f"weft_{'_'.join(n.name for n in part.nodes)}_{index}")
    parts = {
        "program": str(program),
        "fixed sizes": str([(s.name, s.fixed) for s in program.spaces() if s.fixed is not None]),
        "schedule": f"{schedule}; warps {warps}, stages {schedule.stages}",
        "applied": listing(applied),
        "kernel": str(index),
        "checked": str(meta is not None),
        "tf32": str(tf32_allowed()),
    }

    def emit() -> GpuSource:
        kernel = triton.emit(applied, part, name, dims, example.target, tf32=tf32_allowed(), stages=schedule.stages)
        interface = signature(applied, part, name, dims)
        called = GpuSignature(
            interface,
            kernel.constants,
            kernel.grid,
            warps,
            schedule.stages,
            early=kernel.early,
            shapes=tuple(tuple(map(size_of, dims[n])) for n in part.reads),
        )
        return GpuSource(kernel.text, called, {} if meta is None else meta())

    return build_gpu(parts, emit, example.target)


def tf32_allowed() -> bool:
    """Tell whether products of float32 may round their factors to tf32: what the option says, or PyTorch's own setting."""
    wanted = current().float32_products
    if wanted != "torch":
        return wanted == "tf32"
    settings: Any = torch.backends.cuda.matmul
    # Before 2.9 there is one attribute for it; since then asking for the old one may raise.
    return settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else bool(settings.allow_tf32)


def _strides(name: str, dims: Sequence[Axis], applied: BlockProgram, example: Example) -> tuple[int, ...]:
    """Return the strides of a dense tensor, its dimension of stride 1 the innermost."""
    inputs = {n for n, _ in applied.inputs}
    last = example.innermost.get(name) if name in inputs else None
    order = list(range(len(dims)))
    if last is not None:
        order = [*(d for d in order if d != last), last]
    lengths = [a.space.size(example.sizes) for a in dims]
    found = dict.fromkeys(order, 1)
    for place, d in enumerate(order):
        found[d] = math.prod(lengths[o] for o in order[place + 1 :])
    return tuple(found[d] for d in range(len(dims)))
