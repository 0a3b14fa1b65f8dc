"""Kernels on trial before they serve: the binary that is to run, on hard inputs at small sizes, beside eager and fp64.

On a CPU it runs in a child process, on memory with guards, so that a crash, an endless loop or a write beside a tensor is a verdict
like any other. The verdict is kept in the cache for the kernels' keys, as their binaries are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from weft.block.program import BlockProgram
from weft.errors import WeftError, WrongKernelError
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.region import CompiledRegion
from weft.run.build import Binary
from weft.run.cache import CacheFolder
from weft.run.child import can_fork, ends_well
from weft.run.guarded import Guarded
from weft.run.key import cache_key, source_hash
from weft.run.launch import make_launcher
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import View
from weft.tensor.program import TensorProgram
from weft.verify.emitted import FAR, MANY, Case, Tally, cases, fitted, has_meaning
from weft.verify.regimes import layout_of
from weft.verify.sizes import edge_sizes

# Bytes of memory to run in, of which what is not touched costs nothing; and seconds after which a kernel does not end.
_MEMORY, _SECONDS = 1 << 28, 20.0
# Draws of each regime before results are called wrong: the error rule takes its maxima over several.
_DRAWS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What the kernels of one region are judged by.

    Attributes:
        written: the region's program as it was cut.
        centred: what laws made of it, with the reindexings that became views.
        views: those.
        names: the space of `written` for each name of a space of the kernels' program.
    """

    written: TensorProgram
    centred: TensorProgram
    views: tuple[View, ...]
    names: Mapping[str, str]


def demand(judged: Judged, region: CompiledRegion, options: Options) -> None:
    """Have the kernels of `region` judged, now or from what the cache knows.

    Raises:
        WrongKernelError: they give wrong results, crash, or do not end.
    """
    if options.judge == "off" or not region.kernels:
        return
    folder = CacheFolder(options.cache_dir)
    keys = " ".join(k.key for k in region.kernels)
    parts = {"weft": source_hash(), "judged": keys, "program": str(judged.written)}
    key = cache_key(parts)
    entry = None if options.judge == "always" else folder.lookup(key, counted=False)
    if entry is not None and isinstance(entry.meta.get("wrong"), str):
        wrong = str(entry.meta["wrong"])
    else:
        try:
            wrong = wrong_of(judged, region, options.seed) or ""
        except WeftError as error:  # no refusal of the region's, but a defect of the judge's
            raise AssertionError(f"the judge failed: {error.what}") from error
        with suppress(OSError):  # no room: the next process judges them again
            folder.store(key, {}, {"wrong": wrong}, parts=parts)
    if wrong:
        names = ", ".join(k.name for k in region.kernels)
        raise WrongKernelError(f"the code of {names} is wrong on hard inputs: {wrong}")


def wrong_of(judged: Judged, region: CompiledRegion, seed: int) -> str | None:
    """What is wrong with the kernels, in words; None where nothing is, or they cannot be judged here."""
    if region.approximation is not None or not has_meaning(judged.written):
        return None
    made = [k.made for k in region.kernels]
    if not all(isinstance(each, Binary) for each in made):
        return None
    far, near = _sizes(judged, region.kernels[0].block_program)
    if not near:
        return None
    wrong = None
    for draws in (1, _DRAWS):
        tally = Tally(judged.written)
        wrong = _run(judged, region, list(cases(judged.written, far, near, seed, draws)), tally) or tally.verdict()
        if wrong is None:
            break
    return wrong


def _sizes(judged: Judged, applied: BlockProgram) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Sizes to run at, by name of the spaces of the written program: those that reach beyond every block, and small ones."""
    layout = layout_of(judged.written)
    found: tuple[list[dict[str, int]], list[dict[str, int]]] = ([], [])
    for chosen in edge_sizes(applied):
        own = {judged.names[name]: size for name, size in chosen.items() if name in judged.names}
        for place, most in ((1, MANY), *([] if found[0] else [(0, FAR)])):
            sizes = fitted(judged.written, own, layout, most)
            if sizes is not None and sizes not in (*found[0], *found[1]):
                found[place].append(sizes)
    return found


def _run(judged: Judged, region: CompiledRegion, every: Sequence[Case], tally: Tally) -> str | None:
    """Runs the kernels on all cases and takes in their results; in words what went wrong with that."""
    memory = Guarded(_MEMORY)
    words: list[tuple[Kernel, bytes]] = []
    results: list[tuple[torch.Tensor, ...]] = []
    number = 0
    try:
        for number, case in enumerate(every):
            results.append(_prepared(judged, region, case, memory, number, words))
    except MemoryError:
        every = every[:number]

    def work() -> None:
        for kernel, given in words:
            assert isinstance(kernel.made, Binary)
            kernel.made.function(given)

    failed = ends_well(work, _SECONDS) if can_fork() else work()
    failed = failed or memory.touched()
    if failed is not None:
        return failed
    for case, tensors in zip(every, results, strict=False):
        tally.add(case, tuple(map(_numbers, tensors)))
    return None


def _prepared(
    judged: Judged,
    region: CompiledRegion,
    case: Case,
    memory: Guarded,
    number: int,
    words: list[tuple[Kernel, bytes]],
) -> tuple[torch.Tensor, ...]:
    """Notes the calls of the kernels for a case; the tensors that will hold the region's results."""
    arrays = {**case.inputs, **_viewed(judged, case)}
    values: dict[str, torch.Tensor] = {}
    for own, node in zip(region.program.inputs, arrays, strict=True):
        bits = _bits(arrays[node], own.dtype)
        # The names of element types are torch's own.
        kind = getattr(torch, own.dtype.name)
        values[own.name] = memory.holding(bits, kind, _strides(bits.shape, number), offset=number % 3)
    sizes = {name: case.sizes[its] for name, its in judged.names.items()}
    for kernel in region.kernels:
        assert isinstance(kernel.made, Binary)

        def noted(given: bytes, kernel: Kernel = kernel) -> None:
            words.append((kernel, given))

        launch = make_launcher(kernel.made.signature, noted, 1, memory.allocate)
        found = launch(*(values[n] for n in kernel.reads), *(sizes[n] for n in kernel.sizes))
        values.update(zip(kernel.writes, found, strict=True))
    return tuple(values[name] for name in region.program.outputs)


def _viewed(judged: Judged, case: Case) -> dict[str, Array]:
    """What the views show, by name."""
    names = tuple(v.name for v in judged.views)
    if not names:
        return {}
    nodes = tuple(n for n in judged.centred.nodes if n.name in names)
    program = replace(judged.centred, nodes=nodes, outputs=names, output_dims=())
    return dict(zip(names, evaluate(program, dict(case.inputs), Fp64Domain(), sizes=dict(case.sizes)), strict=True))


def _strides(shape: Sequence[int], number: int) -> tuple[int, ...]:
    """Dense at first; then with gaps between rows, with steps, and turned round."""
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
    """The elements as they lie in memory, in numpy's type of their width."""
    if dtype is DType.bfloat16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(values.shape)
    if dtype.is_float and dtype.bytes == 1:
        kind = getattr(torch, dtype.name)
        return torch.tensor(values, dtype=torch.float32).to(kind).view(torch.uint8).numpy().reshape(values.shape)
    return values.astype(dtype.name)


def _numbers(tensor: torch.Tensor) -> Array:
    """As the evaluator carries them."""
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
