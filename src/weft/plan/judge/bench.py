"""Running the kernels of a region on the judge's cases, where their target runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from weft.plan.targets import toolchain
from weft.plan.targets.bench import Bench, Judged
from weft.plan.targets.compiled import CompiledRegion
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.verify.cases import Case
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import points
from weft.verify.torch_array import TorchArray

# Operations of the cases that are run before any is compared: one child process for those that are small.
_TOGETHER = 1 << 22


def run(judged: Judged, region: CompiledRegion, every: Iterable[Case], tally: ErrorTally) -> str | None:
    """Runs the kernels on all cases, or until a result is wrong, and takes in their results; in words what went wrong with that.

    Cases are drawn, run and compared a few at a time, large ones one by one: memory is held for no more of them.

    Raises:
        OutOfMemoryError: a GPU has no room for the cases.
        RuntimeError: the GPU's driver refused or lost the kernels.
    """
    number = 0
    for some in _batches(every, lambda case: points(judged.written, case.sizes)):
        failed = _run(judged, region, some, number, tally)
        if failed is not None or tally.wrong:
            return failed
        number += len(some)
    return None


def _batches(every: Iterable[Case], size: Callable[[Case], int]) -> Iterator[list[Case]]:
    """Yields lists of cases that have not many operations together, or are one."""
    some: list[Case] = []
    total = 0
    for case in every:
        if some and total + size(case) > _TOGETHER:
            yield some
            some, total = [], 0
        some.append(case)
        total += size(case)
    if some:
        yield some


def _run(judged: Judged, region: CompiledRegion, some: list[Case], number: int, tally: ErrorTally) -> str | None:
    """Runs the kernels on some cases, the first of which has the `number`."""
    bench = toolchain(region.kernels[0].target).bench(judged.device)
    results: list[tuple[Case, tuple[torch.Tensor, ...]]] = []
    with np.errstate(all="ignore"):  # kernels may be numpy's own functions
        for place, case in enumerate(some):
            with suppress(MemoryError):  # smaller ones may have room
                values = _inputs(judged, region, case, bench, number + place)
                results.append((case, _launched(judged, region, case, values, bench)))

    def references() -> None:
        for case, _ in results:
            _ = case.exact, case.eager

    failed = bench.ended(references)
    if failed is not None:
        return failed
    for case, tensors in results:
        tally.add(case, tuple(_numbers(t.cpu()) if case.device is None else _held(t) for t in tensors))
        if tally.wrong:  # what else is wrong nobody asks
            break
    return None


def _inputs(judged: Judged, region: CompiledRegion, case: Case, bench: Bench, number: int) -> dict[str, torch.Tensor]:
    """Lays out the tensors of a case by name of the kernels' program: as in the example, or in several ways."""
    arrays = {**case.placed, **_viewed(judged, case)}
    values: dict[str, torch.Tensor] = {}
    for own, node in zip(region.program.inputs, arrays, strict=True):
        values[own.name] = bench.holding(_elements(arrays[node], own.dtype), number, judged.lying[own.name])
    return values


def _launched(
    judged: Judged,
    region: CompiledRegion,
    case: Case,
    values: dict[str, torch.Tensor],
    bench: Bench,
) -> tuple[torch.Tensor, ...]:
    """Runs the kernels, and returns the region's results."""
    sizes = {name: case.sizes[its] for name, its in judged.names.items()}
    for kernel in region.kernels:
        found = bench.launcher(kernel.made)(*(values[n] for n in kernel.reads), *(sizes[n] for n in kernel.sizes))
        values.update(zip(kernel.writes, found, strict=True))
    return tuple(values[name] for name in region.program.outputs)


def _viewed(judged: Judged, case: Case) -> dict[str, Array]:
    """Computes what the views show, by name."""
    names = tuple(v.name for v in judged.views)
    if not names:
        return {}
    nodes = tuple(n for n in judged.centred.nodes if n.name in names)
    program = replace(judged.centred, nodes=nodes, outputs=names, output_dims=())
    return dict(zip(names, evaluate(program, dict(case.placed), Fp64Domain(), sizes=dict(case.sizes)), strict=True))


def _elements(values: Array, dtype: DType) -> torch.Tensor:
    """Returns the elements in the type that the kernels read, which holds each of them; where they are."""
    kind = getattr(torch, dtype.name)  # the names of element types are torch's own
    held = values if isinstance(values, TorchArray) else TorchArray.of(values, torch.device("cpu"))
    return cast("TorchArray", held).tensor.to(kind)


def _held(tensor: torch.Tensor) -> Array:
    """Returns the elements as the evaluator carries them, where they are."""
    match tensor.dtype:
        case torch.bool:  # as in `_numbers`
            bits = tensor.contiguous().view(torch.uint8)
            found = bits.long() if bool((bits > 1).any()) else tensor
        case _:
            found = tensor.double() if tensor.is_floating_point() else tensor.long()
    return TorchArray(found).array


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
