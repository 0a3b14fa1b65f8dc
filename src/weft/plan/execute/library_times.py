"""How long PyTorch's library takes for the matmuls of a graph, measured where they run."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name

from weft.capture.describe import alive
from weft.capture.recording import Call, Recording, Slot
from weft.capture.sizes import in_example, known
from weft.phases import phase
from weft.plan.targets.graphs import GraphTimer, cache_filler
from weft.run.gpu.alone import alone_on

_TREE: Any = pytree
_MOST_MEASURED = 4096
_seconds: dict[Hashable, float] = {}
"""Seconds by GPU, settings of PyTorch and call, of this process: its next graph leaves the same calls to the library."""


def _remember(call: Hashable, seconds: float) -> None:
    if len(_seconds) >= _MOST_MEASURED:
        _seconds.clear()
    _seconds[call] = seconds


def _settings() -> tuple[Hashable, ...]:
    """Return those of PyTorch's settings that say which kernels its libraries run."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(),
        str(products.allow_fp16_reduced_precision_reduction),
        str(products.allow_bf16_reduced_precision_reduction),
        convolutions.allow_tf32,
        convolutions.benchmark,
        convolutions.deterministic,
    )


@dataclass
class LibraryTimes:
    """Seconds of recorded ATen calls in PyTorch on a GPU, taken as those of kernels are when they are tuned.

    The model says what a library would take at its best; some products it cannot do well at all, as one whose rows do not begin at
    multiples of 16 bytes. Calls with operands alike are timed once.

    Attributes:
        recording: the calls, by number; None: nothing is timed.
        device: the GPU; None: nothing is timed.
        measures: False in a process that must not use the GPU: what was not timed before is not known.
    """

    recording: Recording | None = None
    device: torch.device | None = None
    measures: bool = True
    _calls: tuple[Call, ...] | None = None
    _failed: set[Hashable] = field(default_factory=set[Hashable])
    _timer: GraphTimer | None = None

    @phase("library")
    def of(self, number: int) -> float | None:
        """Returns the median seconds of a call, at the example where sizes change from call to call, as kernels are timed.

        None where they are not known: without a GPU, for sizes that the content of tensors decides, where operands say which rows
        are multiplied by what, or where memory does not suffice for others beside the user's.
        """
        if self.recording is None or self.device is None:
            return None
        self._calls = self._calls or alive(self.recording).calls  # as they were numbered
        call = self._calls[number]
        call = call.whole or call
        key = self._key(call, self.recording)
        if key is None:
            return None
        here = self.device, _settings(), key
        seconds = _seconds.get(here)
        if seconds is None and self.measures and key not in self._failed:
            with suppress(RuntimeError), torch.no_grad(), torch.cuda.device(self.device):
                seconds = self._measured(call, self.recording, self.device)
                _remember(here, seconds)
            if seconds is None:  # perhaps memory did not suffice
                self._failed.add(key)
                torch.cuda.empty_cache()
        return seconds

    def _key(self, call: Call, recording: Recording) -> Hashable | None:
        """Returns all that the seconds of `call` depend on, at the example; None where sizes are not known there."""
        leaves, _ = _TREE.tree_flatten((call.args, call.kwargs))
        found: list[Hashable] = [str(call.target)]
        for leaf in leaves:
            if isinstance(leaf, Slot):
                fake = recording.fakes[leaf.index]
                numbers: tuple[Any, ...] = (*fake.shape, *fake.stride())
                # Integers say which rows: of zeros, as the ends of groups, none would be multiplied.
                if fake.dtype in (torch.int32, torch.int64) or not all(map(known, numbers)):
                    return None
                found.append((tuple(map(in_example, numbers)), fake.dtype))
            elif isinstance(leaf, torch.SymInt) and known(leaf):
                found.append(str(in_example(leaf)))
            elif isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                return None
            else:
                found.append(str(leaf))
        return tuple(found)

    def _measured(self, call: Call, recording: Recording, device: torch.device) -> float:
        """Times `call` on random operands; raises RuntimeError where it cannot."""
        generator = torch.Generator(device)

        def made(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return _lying_as(recording.fakes[leaf.index], device, generator)
            if isinstance(leaf, torch.SymInt):
                return in_example(leaf)
            return device if isinstance(leaf, torch.device) else leaf

        args, kwargs = _TREE.tree_map(made, (call.args, call.kwargs))
        target: Any = call.target
        with alone_on(device):
            self._timer = self._timer or GraphTimer(cache_filler(device))
            target(*args, **kwargs)
            torch.cuda.synchronize(device)
            return self._timer.median(lambda: target(*args, **kwargs))


def _lying_as(fake: torch.Tensor, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Makes a tensor that lies in memory as `fake` would in the example, random where its elements are floating-point numbers."""
    shape, strides = [in_example(n) for n in fake.shape], [in_example(n) for n in fake.stride()]
    room = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n > 1)
    memory = torch.zeros(room, dtype=fake.dtype, device=device)
    if memory.dtype.is_floating_point:
        memory.normal_(generator=generator)
    return memory.as_strided(shape, strides)
