"""mode="reduce-overhead": what a compiled graph has the GPU do is captured in a CUDA graph for each class of calls, and replayed.

The first call of a class runs as always (and may compile, tune, try); the second one is captured. Tensors that lie where they lay
in the call before (weights, caches, inputs that are written into) are read where they are; all others are copied to where the
graph reads them. Results are copies of the graph's: the next call changes nothing that a caller holds.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.plan.execute.made import Plan
from weft.plan.execute.runner import Runner
from weft.plan.measure.trial import repeatable
from weft.plan.targets.graphs import captured
from weft.plan.targets.home import gpu_of

_MOST_CLASSES, _MOST_SEEN = 64, 1024
"""Classes of calls of one graph that are captured, each of which has memory of its own for what lies between its kernels; and of
others that are remembered, the last ones."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """What graphs ask of PyTorch.

    Attributes:
        capturing: whether the current stream is being captured.
        current: the current stream of a device.
        capture: runs a function while it is captured on a device; gives what replays it, and its results.
    """

    capturing: Callable[[], bool]
    current: Callable[[torch.device], Any]
    capture: Callable[[Runner, Sequence[Any], torch.device], tuple[Callable[[], None], Sequence[Any]]]


def _capture(run: Runner, arguments: Sequence[Any], device: torch.device) -> tuple[Callable[[], None], Sequence[Any]]:
    cuda: Any = torch.cuda  # not fully known to type checkers
    with cuda.device(device):
        return captured(functools.partial(run, *arguments))


def _cuda() -> Cuda:
    cuda: Any = torch.cuda
    return Cuda(cuda.is_current_stream_capturing, cuda.current_stream, _capture)


@dataclass(slots=True)
class _Class:
    """Calls with the same sizes and strides.

    Attributes:
        places: addresses of the tensors in the last call that was not replayed.
        copied: for the arguments that move, the tensors that the graph reads instead.
        replay: None until one call was captured.
        results: of the graph: a tensor of its own, or the number of the argument that is handed out.
        refused: it cannot be captured, and runs as always.
    """

    places: list[int]
    copied: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    replay: Callable[[], None] | None = None
    results: list[Any] = field(default_factory=list[Any])
    refused: bool = False

    def refuse(self) -> None:
        """Lets such calls run as always, and lets go of what they do not need."""
        self.refused, self.replay = True, None
        self.places, self.copied, self.results = [], {}, []


@dataclass(eq=False)
class Graphed:
    """The callable that stands for a graph: `run`, captured and replayed.

    Attributes:
        run: takes the graph's arguments, gives its outputs.
        changing: which arguments are tensors whose sizes change from call to call.
        device: of all tensors.
        cuda: PyTorch's.
        settle: waits for binaries that later calls would take: a graph has those that it was captured with for good.
    """

    run: Runner
    changing: tuple[int, ...]
    device: torch.device
    cuda: Cuda = field(default_factory=_cuda)
    settle: Callable[[], None] = lambda: None
    _seen: dict[Any, _Class] = field(default_factory=dict[Any, _Class])
    _classes: dict[Any, _Class] = field(default_factory=dict[Any, _Class])
    _tensors: tuple[int, ...] | None = None
    _told: tuple[int, ...] = ()
    _stream: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Runs the graph, and returns its results."""
        if self.cuda.capturing():
            return self.run(*arguments)
        if self._tensors is None:
            self._look(arguments)
            assert self._tensors is not None
        changing = [(arguments[i].shape, arguments[i].stride()) for i in self.changing]
        key = (*changing, *(arguments[i] for i in self._told))
        found = self._classes.get(key) or self._seen.get(key)
        if found is None:
            self._see(key, _Class([arguments[i].data_ptr() for i in self._tensors]))
        elif not found.refused:
            with self._lock:
                results = self._replayed(key, found, arguments, self._tensors)
            if results is not None:
                return results
        return self.run(*arguments)

    def _see(self, key: Any, one: _Class) -> None:
        """Remembers a class that is not captured, and forgets the oldest such ones."""
        if len(self._classes) < _MOST_CLASSES:
            self._seen[key] = one
            for old in list(self._seen)[: max(0, len(self._seen) - _MOST_SEEN)]:
                self._seen.pop(old, None)

    def _look(self, arguments: Sequence[Any]) -> None:
        """Notes which arguments are tensors, and which others tell calls apart."""
        self._told = tuple(i for i, a in enumerate(arguments) if not isinstance(a, torch.Tensor))
        self._tensors = tuple(i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor))

    def _replayed(
        self, key: Any, found: _Class, arguments: Sequence[Any], tensors: Sequence[int]
    ) -> Sequence[Any] | None:
        """Returns the results of a call; None where it is to run as always."""
        found = self._classes.get(key, found)
        room = key in self._classes or len(self._classes) < _MOST_CLASSES
        if found.refused or not room:  # by now: another thread was here
            return None
        stream = self.cuda.current(self.device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)  # whose last call may still read what this one writes
        self._stream = stream
        moved = [i for i, old in zip(tensors, found.places, strict=True) if arguments[i].data_ptr() != old]
        if found.replay is None or any(i not in found.copied for i in moved):
            self._captured(found, arguments, tensors, moved)
            if found.refused:
                self._classes.pop(key, None)
                self._see(key, found)
            else:
                self._seen.pop(key, None)
                self._classes[key] = found
        if found.replay is None:
            return None
        for i, copy in found.copied.items():
            copy.copy_(arguments[i])
        found.replay()
        return [r.clone() if isinstance(r, torch.Tensor) else arguments[r[0]] if r else None for r in found.results]

    def _captured(self, found: _Class, arguments: Sequence[Any], tensors: Sequence[int], moved: Sequence[int]) -> None:
        """Captures a call; `found` is refused where that cannot be."""
        found.replay, found.results = None, []
        found.places = [arguments[i].data_ptr() for i in tensors]
        kept: list[Any] | None = None
        try:
            for i in moved:
                if i not in found.copied:
                    found.copied[i] = torch.empty_strided(
                        arguments[i].shape, arguments[i].stride(), dtype=arguments[i].dtype, device=arguments[i].device
                    )
            if self._can_be(found, [arguments[i] for i in tensors]):
                read = [found.copied.get(i, a) for i, a in enumerate(arguments)]
                self.settle()
                found.replay, results = self.cuda.capture(self.run, read, self.device)
                kept = _kept(results, read)
        except RuntimeError:  # it waits for the GPU, or its memory does not suffice
            kept = None
        if kept is None:
            found.refuse()
        else:
            found.results = kept

    def _can_be(self, found: _Class, tensors: Sequence[torch.Tensor]) -> bool:
        """Tells whether all tensors are on the device, and those that are copied have a place for each element."""
        dense = all(n < 2 or s > 0 for t in found.copied.values() for n, s in zip(t.shape, t.stride(), strict=True))
        return dense and all(t.device == self.device for t in tensors)


def _kept(results: Sequence[Any], given: Sequence[Any]) -> list[Any] | None:
    """Returns each result as `_Class.results` has it; None where one shares memory with an argument or another: copies
    would not.
    """
    numbers = {id(a): i for i, a in enumerate(given)}
    storages = {a.untyped_storage().data_ptr() for a in given if isinstance(a, torch.Tensor)}
    found: list[Any] = []
    for result in results:
        if id(result) in numbers:
            found.append((numbers[id(result)],))
        elif isinstance(result, torch.Tensor):
            storage = result.untyped_storage().data_ptr()
            if storage in storages:
                return None
            storages.add(storage)
            found.append(result)
        elif result is None:
            found.append(())
        else:
            return None  # a number may be another one in the next call
    return found


def in_graphs(plan: Plan, run: Runner, arguments: Sequence[Any], changing: tuple[int, ...]) -> Runner:
    """Captures `run`, which stands for a graph, and replays it where that changes nothing but the time.

    A graph stays as it is that runs on no GPU, that has none of weft's kernels, that writes into arguments, draws random numbers,
    or calls operations of other libraries.
    """
    device = gpu_of(arguments)
    if device is None or not plan.kernels or plan.captured.writes or not repeatable(plan):
        return run
    return Graphed(run, changing, device, settle=functools.partial(_settle, plan))


def _settle(plan: Plan) -> None:
    for kernel in plan.kernels:
        kernel.made.settle()
