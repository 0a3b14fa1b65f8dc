"""The toolchain of a CPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from weft import schedule
from weft.emit import cpp as emitter
from weft.errors import MissingFileError, ProgramFileError, TargetError
from weft.options import current
from weft.plan.targets import cpp as own
from weft.plan.targets.base import Built, Meta, SavedText, Toolchain
from weft.run.build import Binary, build, recalled, restored, start
from weft.run.cache import Json
from weft.run.key import cpu_features, environment_parts
from weft.run.launch import KernelSignature

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.plan.targets.bench import Bench
    from weft.plan.targets.candidates import Selection
    from weft.plan.targets.launches import LaunchSpec


@dataclass(frozen=True)
class Cpp(Toolchain):
    """C++ kernels for the CPU that weft runs on."""

    kinds = ("cpu",)
    recalls = True

    def environment(self) -> dict[str, str]:
        return environment_parts()

    def build(self, spec: LaunchSpec, meta: Meta) -> Built:
        return Built(build(self._parts(spec), functools.partial(own.printed, spec, meta)))

    def started(self, selection: Selection, device: torch.device | None, meta: Meta) -> Iterator[object]:
        from weft.plan.targets.launches import launch_specs

        del device
        chosen = selection.chosen
        for spec in launch_specs(selection.program, chosen.applied, chosen.schedule, selection.example):
            yield start(self._parts(spec), functools.partial(own.printed, spec, meta))

    def recalled(self, key: str) -> Built | None:
        found = recalled(key)
        return None if found is None else Built(found)

    def _parts(self, spec: LaunchSpec) -> dict[str, str]:
        return spec.key_parts | {"target": str(self.target)}

    def load(self) -> None:
        super().load()
        _ = emitter.demand_legal

    def demand_legal(self, applied: BlockProgram) -> None:
        for part in schedule.kernels(applied):
            emitter.demand_legal(applied, part)

    def narrow_matmuls(self) -> bool:
        return current().brgemm != "off"

    def bench(self, device: torch.device | None) -> Bench:
        del device
        return own.ChildBench()

    def manifest(self) -> dict[str, Json]:
        return {"features": list[Json](sorted(cpu_features()))}

    def demand_fit(self, path: Path, manifest: Mapping[str, Any], torch_version: str) -> None:
        if manifest["torch"] != torch_version:
            raise ProgramFileError(
                f"{path} has kernels that are linked with libraries of PyTorch {manifest['torch']}; this is {torch_version}",
                todo="save the program again with this one, or load it with that one",
            )
        if lacking := set(manifest["features"]) - cpu_features():
            raise TargetError(
                f"{path} is for a CPU with {', '.join(sorted(lacking))}, which this machine lacks",
                todo="save the program again on a machine like this one",
            )

    def saved(self, made: Binary, put: Callable[[bytes], str]) -> tuple[tuple[str, ...], ...]:
        try:
            return ((put(made.library.read_bytes()),),)
        except FileNotFoundError as error:
            todo = "call weft.optimize again: the cache was cleared since"
            raise MissingFileError(f"there is no file {made.library}", todo=todo) from error

    def restored(self, saved: SavedText, files: Mapping[str, bytes], *, compiles: bool = True) -> Built:
        del compiles  # one library serves all calls
        ((name,),) = saved.binaries
        called = KernelSignature.from_json(json.loads(saved.signature))
        try:
            return Built(restored(called, saved.text, files[name], saved.key))
        except OSError as error:
            raise TargetError(
                f"kernel {called.name} cannot be loaded here: {error}",
                todo="save the program again on this machine; if the folder for temporary files forbids execution, set TMPDIR",
            ) from error
