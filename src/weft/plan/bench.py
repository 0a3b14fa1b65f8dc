"""The kernels of a region run on cases of the judge: on a CPU in a child process, on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from weft.plan.kernel import Kernel
from weft.plan.region import CompiledRegion
from weft.run.build import Binary
from weft.run.child import can_fork, ends_well
from weft.run.gpu import GpuBinary
from weft.run.guarded import Guarded, GuardedOnGpu
from weft.run.launch import Launcher, make_launcher
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import View
from weft.tensor.program import TensorProgram
from weft.verify.emitted import Case, Tally

# Bytes of memory to run in, of which what is not touched costs nothing; and seconds after which a kernel does not end.
_MEMORY, SECONDS = 1 << 28, 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the kernels of one region are judged by.

    Attributes:
        written: the region's program as it was cut.
        centred: what laws made of it, with the reindexings that became views.
        views: those.
        names: the space of `written` for each name of a space of the kernels' program.
        example: sizes by those names.
        innermost: of inputs of the kernels' program, the dimension of stride 1, if any, in calls like the example.
        constant: the spaces of `written` that are as long at each call as in the example, by name.
        device: the GPU that runs them; None: a CPU.
    """

    written: TensorProgram
    centred: TensorProgram
    views: tuple[View, ...]
    names: Mapping[str, str]
    example: Mapping[str, int]
    innermost: Mapping[str, int | None]
    constant: frozenset[str] = frozenset()
    device: torch.device | None = None


def run(judged: Judged, region: CompiledRegion, every: Sequence[Case], tally: Tally) -> str | None:
    """Runs the kernels on all cases and takes in their results; in words what went wrong with that.

    Raises:
        OutOfMemoryError: a GPU has no room for the cases.
        RuntimeError: the GPU's driver refused or lost the kernels.
    """
    if isinstance(region.kernels[0].made, Binary):
        return _run_on_a_cpu(judged, region, every, tally)
    memory = Guarded(_MEMORY) if judged.device is None else GuardedOnGpu(judged.device)
    results: list[tuple[torch.Tensor, ...]] = []
    with np.errstate(all="ignore"):  # Triton's interpreter is numpy
        for case in every:
            values = _inputs(judged, region, case, memory, len(results))
            results.append(_launched(judged, region, case, values, _on_a_gpu(memory)))
    failed = memory.touched()
    if failed is not None:
        return failed
    for case, tensors in zip(every, results, strict=True):
        tally.add(case, tuple(_numbers(t.cpu()) for t in tensors))
    return None


def _on_a_gpu(memory: Guarded | GuardedOnGpu) -> Callable[[Kernel], Launcher]:
    def allocate(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return memory.allocate(sizes, strides, dtype=dtype)

    def launcher(kernel: Kernel) -> Launcher:
        assert isinstance(kernel.made, GpuBinary)
        return kernel.made.launching(allocate)

    return launcher


def _run_on_a_cpu(judged: Judged, region: CompiledRegion, every: Sequence[Case], tally: Tally) -> str | None:
    memory = Guarded(_MEMORY)
    words: list[tuple[Kernel, bytes]] = []
    results: list[tuple[Case, tuple[torch.Tensor, ...]]] = []

    def noting(kernel: Kernel) -> Launcher:
        def noted(given: bytes) -> None:
            words.append((kernel, given))

        assert isinstance(kernel.made, Binary)
        return make_launcher(kernel.made.signature, noted, 1, memory.allocate)

    for number, case in enumerate(every):
        before = len(words)
        try:
            values = _inputs(judged, region, case, memory, number)
            results.append((case, _launched(judged, region, case, values, noting)))
        except MemoryError:  # smaller ones may have room
            del words[before:]

    def work() -> None:
        for kernel, given in words:
            assert isinstance(kernel.made, Binary)
            kernel.made.function(given)

    def references() -> None:
        for case, _ in results:
            _ = case.exact, case.eager

    failed = ends_well(work, SECONDS, references) if can_fork() else work()
    failed = failed or memory.touched()
    if failed is not None:
        return failed
    for case, tensors in results:
        tally.add(case, tuple(map(_numbers, tensors)))
    return None


def _inputs(
    judged: Judged, region: CompiledRegion, case: Case, memory: Guarded | GuardedOnGpu, number: int
) -> dict[str, torch.Tensor]:
    """Lays out the tensors of a case by name of the kernels' program: on a GPU as in the example, else in several ways."""
    arrays = {**case.inputs, **_viewed(judged, case)}
    values: dict[str, torch.Tensor] = {}
    for own, node in zip(region.program.inputs, arrays, strict=True):
        bits = _bits(arrays[node], own.dtype)
        # The names of element types are torch's own.
        kind = getattr(torch, own.dtype.name)
        if isinstance(memory, Guarded):
            values[own.name] = memory.holding(bits, kind, _strides(bits.shape, number), offset=number % 3)
        else:
            values[own.name] = memory.holding(bits, kind, dense(bits.shape, judged.innermost.get(own.name)))
    return values


def _launched(
    judged: Judged,
    region: CompiledRegion,
    case: Case,
    values: dict[str, torch.Tensor],
    launcher: Callable[[Kernel], Launcher],
) -> tuple[torch.Tensor, ...]:
    """Runs the kernels, and returns the region's results."""
    sizes = {name: case.sizes[its] for name, its in judged.names.items()}
    for kernel in region.kernels:
        found = launcher(kernel)(*(values[n] for n in kernel.reads), *(sizes[n] for n in kernel.sizes))
        values.update(zip(kernel.writes, found, strict=True))
    return tuple(values[name] for name in region.program.outputs)


def dense(shape: Sequence[int], innermost: int | None) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps, with dimension `innermost` its last."""
    order = list(range(len(shape)))
    if innermost is not None:
        order.append(order.pop(innermost))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _viewed(judged: Judged, case: Case) -> dict[str, Array]:
    """Computes what the views show, by name."""
    names = tuple(v.name for v in judged.views)
    if not names:
        return {}
    nodes = tuple(n for n in judged.centred.nodes if n.name in names)
    program = replace(judged.centred, nodes=nodes, outputs=names, output_dims=())
    return dict(zip(names, evaluate(program, dict(case.inputs), Fp64Domain(), sizes=dict(case.sizes)), strict=True))


def _strides(shape: Sequence[int], number: int) -> tuple[int, ...]:
    """Chooses strides: dense at first; then with gaps between rows, with steps, and turned round."""
    order = list(range(len(shape)))
    if number % 4 == 3:
        order.reverse()
    strides = [0] * len(shape)
    step = 2 if number % 4 == 2 else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
        step += 3 if number % 4 == 1 else 0
    return tuple(strides)


def _bits(values: Array, dtype: DType) -> Array:
    """Returns the elements as they lie in memory, in numpy's type of their width."""
    if dtype is DType.bfloat16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(values.shape)
    if dtype.is_float and dtype.bytes == 1:
        kind = getattr(torch, dtype.name)
        return torch.tensor(values, dtype=torch.float32).to(kind).view(torch.uint8).numpy().reshape(values.shape)
    return values.astype(dtype.name)


def _numbers(tensor: torch.Tensor) -> Array:
    """Returns the elements as the evaluator carries them."""
    match tensor.dtype:
        case torch.bool:  # a byte that is neither 0 nor 1 is no bool: nothing was written there
            found = tensor.view(torch.uint8).numpy()
            return found.astype(np.int64) if (found > 1).any() else found.astype(np.bool_)
        case torch.bfloat16:
            found = tensor.view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16
            return found.view(np.float32).astype(np.float64)
        case torch.float64 | torch.float32 | torch.float16:
            return tensor.numpy().astype(np.float64)
        case _:
            return (tensor.double() if tensor.is_floating_point() else tensor.to(torch.int64)).numpy()
