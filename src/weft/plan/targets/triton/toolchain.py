"""The toolchain of a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from weft import cost, schedule
from weft.emit import triton as emitter
from weft.errors import CompilerError, TargetError, WeftError
from weft.phases import phase
from weft.plan.targets import triton as own
from weft.plan.targets.base import Built, Meta, Refused, SavedText, Toolchain
from weft.plan.targets.home import of_device
from weft.run import gpu
from weft.run.launch import Made
from weft.target import CPU, Target

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.cost import Cost, Machine
    from weft.cost.chip import Chip
    from weft.plan.targets.bench import Bench, Judged, Serving
    from weft.plan.targets.candidates import Example, Leading, Selection
    from weft.plan.targets.launches import LaunchSpec
    from weft.plan.targets.triton.select import GpuWays
    from weft.run.gpu import Assembled, GpuBinary
    from weft.schedule import Schedule

# Triton's interpreter takes milliseconds for each thread block of a grid.
_MANY_INTERPRETED = 1 << 13
_ARCHITECTURE = {"cuda": r"\d{2,3}", "hip": r"gfx[0-9a-f]{3,4}"}


@dataclass(frozen=True)
class TritonGpu(Toolchain):
    """Triton kernels for an NVIDIA or AMD GPU, or for Triton's interpreter."""

    kinds = ("cuda", "hip")
    passes = "gpu"
    architectures = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")
    doubles = False
    fine = True
    inputs_in_caches = False
    any_order = True
    may_refuse = True
    times = True
    recalls = True
    crosses = True
    # Most of what remains is between the matmuls.
    library_share = 0.25

    @classmethod
    def knows(cls, target: Target) -> bool:
        return re.fullmatch(_ARCHITECTURE[target.kind], target.arch) is not None

    def environment(self) -> dict[str, str]:
        return gpu.gpu_parts(self.target)

    def tuning(self, device: torch.device | None) -> dict[str, str]:
        # Of a patch release of PyTorch's the library is the same.
        library = f"{torch.version.cuda or torch.version.hip} {'.'.join(torch.__version__.split('.')[:2])}"
        gpu = "" if device is None else torch.cuda.get_device_name(device)
        return {"gpu": gpu, "tf32": str(own.tf32_allowed()), "library": library}

    def warm(self) -> None:
        if not gpu.interpreter_is_asked_for():
            gpu.warm(self.target)

    def load(self) -> None:
        _ = own.GpuWays, emitter.demand_legal  # in place of what a CPU's `ways` runs

    def build(self, spec: LaunchSpec, meta: Meta) -> Built:
        """Prints one launch and compiles it for calls like the example; raises as `printed` and `Printed.assembled`."""
        found = own.printed(spec, meta)
        with phase("compiler"):
            found.assembled()
        return Built(found.binary, found.assembled)

    def started(self, selection: Selection, device: torch.device | None, meta: Meta) -> Iterator[object]:
        del meta  # of what is only timed nothing is kept
        yield from own.started(selection, device)

    def go_on(self, ahead: Sequence[object]) -> Leading | None:
        return own.go_on(ahead)

    def begun_for(self, specs: Sequence[LaunchSpec], made: Sequence[Made[Any]]) -> Iterator[Callable[[], object]]:
        kernels: Sequence[Any] = made
        for spec, binary in zip(specs, kernels, strict=True):
            task = partial(own.assembled_for, binary, *own.called(binary, spec))
            yield partial(_held, gpu.begun(task), task)

    def begin_any_length(
        self, specs: Sequence[LaunchSpec], made: Sequence[Made[Any]], varying: Collection[str]
    ) -> None:
        kernels: Sequence[Any] = made
        for spec, binary in zip(specs, kernels, strict=True):
            sizes, lying = own.called(binary, spec)
            if not sizes.keys().isdisjoint(varying):
                with suppress(WeftError):  # the call says it
                    own.begin_any_length(binary, sizes, lying, varying)

    def recalled(self, key: str) -> Built | None:
        """Reads a kernel from the cache; of its binaries the first that a call needed is that of the example."""
        found = gpu.recalled_gpu(key, self.target)
        return None if found is None else Built(found, partial(_met, found))

    def demand_legal(self, applied: BlockProgram) -> None:
        for part in schedule.kernels(applied):
            emitter.demand_legal(applied, part, self.target)

    def runs_on(self, where: Target) -> bool:
        """Tells whether weft can call its kernels at `where`: those for AMD's GPUs it only makes."""
        if gpu.interpreter_is_asked_for():
            return where in (CPU, self.target)
        return where == self.target and self.target.kind == "cuda"

    def demand_running(self) -> None:
        cost.gpu(self.target)
        super().demand_running()

    def machine(self, threads: int) -> Machine:
        del threads
        return cost.gpu(self.target).machine()

    def chip(self) -> Chip:
        return cost.published_chip(self.target)

    def costs(self, example: Example, applied: BlockProgram, schedule: Schedule) -> tuple[Cost, ...]:
        return cost.estimate_gpu(applied, example.sizes, self.target, schedule, example.innermost, example.masks)

    def ways(self, fused: BlockProgram, example: Example) -> GpuWays:
        return own.GpuWays(fused, example.sizes, example.innermost, self, example.masks)

    def tuned(
        self,
        selection: Selection,
        device: torch.device | None,
        refused: Refused,
        anew: Callable[[], Selection],
        ahead: Sequence[object] = (),
    ) -> Selection:
        """Returns `selection` with the candidate that measured fastest of those that are right."""
        return own.tuned(selection, device, refused, anew, ahead)

    def unjudged(self, device: torch.device | None) -> str:
        return "" if device is not None or gpu.interpreter_is_asked_for() else "there is no GPU here to run it"

    def bench(self, device: torch.device | None) -> Bench:
        return super().bench(device) if device is None else own.GpuBench(device)

    def points(self) -> tuple[int, int]:
        many, far = super().points()
        return (_MANY_INTERPRETED, many) if gpu.interpreter_is_asked_for() else (many, far)

    def serving(self, judged: Judged, kernels: Sequence[GpuBinary], *, congruent: bool) -> Serving | None:
        return None if gpu.interpreter_is_asked_for() else own.BinaryServing(judged, kernels, congruent=congruent)

    def place(self, device: str | torch.device | None) -> torch.device:
        try:
            place = torch.device(device or "cuda")
        except (RuntimeError, TypeError) as error:
            raise TargetError(
                f"there is no device {device!r}", todo='name one as PyTorch does, such as "cuda:1"'
            ) from error
        target = self.target
        if gpu.interpreter_is_asked_for():
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise TargetError(
                f"the program is for {target}, but this machine has no GPU", todo="load it on a machine with such a GPU"
            )
        if place.type != "cuda":
            raise TargetError(f"the program is for {target}, not for {place}", todo='load it with device="cuda"')
        if place == torch.device("cuda"):
            place = torch.device("cuda", torch.cuda.current_device())
        if of_device(place) != target:
            raise TargetError(
                f"the program is for {target}, but {place} is {of_device(place)}",
                todo="load it on such a GPU, or save the program again on this one",
            )
        return place

    def saved(self, made: GpuBinary, put: Callable[[bytes], str]) -> tuple[tuple[str, ...], ...]:
        """Puts what is known into an archive: for each class of calls what it is, its binary and its assembly."""
        made.settle()  # what is there must not depend on when it is asked for
        return tuple((json.dumps(one.to_json()), put(one.binary), put(one.assembly.encode())) for one in made.assembled)

    def restored(self, saved: SavedText, files: Mapping[str, bytes], *, compiles: bool = True) -> Built:
        source = gpu.GpuSource(saved.text, gpu.GpuSignature.from_json(json.loads(saved.signature)))
        binaries = [
            gpu.Assembled.from_json(json.loads(known), files[binary], files[assembly].decode())
            for known, binary, assembly in saved.binaries
        ]
        return Built(gpu.restored_gpu(source, self.target, binaries, saved.key, compiles=compiles), lambda: binaries[0])


def _met(binary: GpuBinary) -> Assembled:
    for each in binary.assembled:
        return each
    raise CompilerError(
        "no call has needed a binary of this kernel yet, which was read from the cache",
        todo="call the compiled function once, or use weft.optimize",
    )


def _held(token: object, task: Callable[[], object]) -> object:
    """Do what was begun, or wait for it."""
    del token  # held until now
    return task()
