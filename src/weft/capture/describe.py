"""Facts about a recording's tensors, found before anything is translated."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._prims_common import suggest_memory_format  # no public name
from torch.utils._python_dispatch import is_traceable_wrapper_subclass  # no public name

from weft.capture.recording import Call, Recording, Slot
from weft.capture.sizes import expression, hint, in_example, known
from weft.tensor.dtypes import DType


def home_of(recording: Recording) -> torch.device:
    """Chooses where kernels run: on the first GPU that an argument of the graph lives on, else on the CPU."""
    own = recording.inputs[: len(recording.inputs) - len(recording.constants)]
    devices = [recording.fakes[slot.index].device for slot in own if isinstance(slot, Slot)]
    return next((d for d in devices if d.type == "cuda"), torch.device("cpu"))


def unlike(recording: Recording, home: torch.device) -> dict[Slot, str]:
    """Finds the tensors that a program has no words for, and says why."""
    found: dict[Slot, str] = {}
    for number, fake in enumerate(recording.fakes):
        if is_traceable_wrapper_subclass(fake):
            found[Slot(number)] = f"a tensor of type {type(fake).__name__}, which consists of other tensors"
        elif fake.device != home:
            found[Slot(number)] = f"a tensor on {fake.device}, where kernels run on {home}"
        elif fake.layout != torch.strided or fake.is_quantized:
            found[Slot(number)] = f"a tensor of layout {fake.layout}{', quantised' if fake.is_quantized else ''}"
        elif str(fake.dtype).removeprefix("torch.") not in DType.__members__:
            found[Slot(number)] = f"weft does not support the element type {str(fake.dtype).removeprefix('torch.')}"
    return found


def splits(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Tells whether each dimension of `old` is one or several of `new`, which a view can always show."""
    rest = [hint(n) for n in new.shape if expression(n) != 1]
    for size in (hint(n) for n in old.shape if expression(n) != 1):
        product = 1
        while rest and product < size:
            product *= rest.pop(0)
        if product != size:
            return False
    return not rest and old.dtype == new.dtype


def memory_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Lists the dimensions of `fake` as they lie in memory, outermost first; None where that is not dense."""
    sizes, strides = [in_example(n) for n in fake.shape], [in_example(n) for n in fake.stride()]
    if packed(fake):
        return tuple(range(fake.ndim))
    order = sorted(range(fake.ndim), key=lambda d: -strides[d])
    step = 1
    for dim in reversed(order):
        if sizes[dim] > 1 and strides[dim] != step:
            return None
        step *= sizes[dim]
    return tuple(order)


def memory_format(fake: torch.Tensor) -> torch.memory_format | None:
    """Gives PyTorch's name for the order in which the elements of `fake` lie in memory; None where it has none."""
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return next((f for f in formats if fake.is_contiguous(memory_format=f)), None)


_BATCH_NORMS = (
    "aten.batch_norm",
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
)


def laid_out_as_eager(func: Any, args: Sequence[Any], fake: Any) -> Any:
    """Gives a call's fake results as eager's lie in memory, where PyTorch's fakes lie otherwise.

    A batch norm's result is contiguous, or has its channels last where the argument's strides say so; that of a fake lies as
    its argument.
    """
    if str(func.overloadpacket) not in _BATCH_NORMS:
        return fake
    kind = suggest_memory_format(args[0])
    if isinstance(fake, torch.Tensor):
        return fake.clone(memory_format=kind)
    return (fake[0].clone(memory_format=kind), *fake[1:])


def packed(fake: torch.Tensor) -> bool:
    """Tells whether the elements of `fake` lie one after the other, row-major; in the example, where only tensors tell sizes."""
    if all(map(known, fake.shape)):
        return fake.is_contiguous()
    sizes, strides = [in_example(n) for n in fake.shape], [in_example(n) for n in fake.stride()]
    steps = [math.prod(sizes[dim + 1 :]) for dim in range(fake.ndim)]
    return all(size == 1 or stride == step for size, stride, step in zip(sizes, strides, steps, strict=True))


def dense(fake: torch.Tensor) -> bool:
    """Tells whether `memory_order` says all of how `fake` lies in memory: it has no gaps, and no element is there twice."""
    sizes, strides = [in_example(n) for n in fake.shape], [in_example(n) for n in fake.stride()]
    step = 1
    for dim in reversed(memory_order(fake) or range(fake.ndim)):
        if strides[dim] != step:
            return False
        step *= max(sizes[dim], 1)
    return True


def alive(recording: Recording) -> Recording:
    """Leaves out calls, and results of calls, that nothing needs."""
    needed = {leaf for leaf in recording.outputs if isinstance(leaf, Slot)} | {last for _, last in recording.writes}
    needed |= {source.slot for source in recording.sources}
    calls: list[Call] = []
    for call in reversed(recording.calls):
        results = tuple(slot if slot in needed else None for slot in call.results)
        if call.random:  # with a result at least: a program has a call by its results
            calls.append(replace(call, results=results) if any(results) else call)
        elif any(slot is not None for slot in results):
            calls.append(replace(call, results=results))
        else:
            continue
        needed.update(call.reads())
    return replace(recording, calls=tuple(reversed(calls)))


def first(results: Sequence[Slot | None]) -> Slot:
    return next(slot for slot in results if slot is not None)


def readable(name: str) -> str:
    """Takes Dynamo's decoration off a placeholder's name: l_self_modules_a_parameters_weight_."""
    parts = re.sub(r"^[lL]_|_+$", "", name)
    parts = re.sub(r"(?:^|_)(?:modules|parameters|buffers)_", "_", parts)
    return re.sub(r"_+", "_", parts).removeprefix("self_").strip("_") or name
