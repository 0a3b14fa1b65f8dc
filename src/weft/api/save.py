"""Programs in files: a zip archive of JSON, tensors and machine code, with all that runs a plan and can be asked of it.

manifest.json    what made the file, what it is for
program.json     how it is called; its plan: programs, steps, kernels, calls into PyTorch (`weft.plan.targets.packed`)
constants/N      the elements of a tensor that the function holds
kernels/N        a shared library, a cubin, its PTX
"""

from __future__ import annotations

import functools
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from weft.api import held
from weft.api.calling import Calling
from weft.api.files import reading, replacing
from weft.api.plan_forms import FORMS, SavedKernel, restored_kernel, saved_kernel, unread
from weft.capture import Captured
from weft.errors import ProgramFileError, WeftError
from weft.plan import Kernel, Plan
from weft.plan.execute.made import running
from weft.plan.execute.steps import PlanStep, RegionStep
from weft.plan.targets import toolchain
from weft.plan.targets.packed import PackedAs, packed, unpacked
from weft.run.key import source_hash
from weft.target import Target
from weft.tensor import passes
from weft.tensor.program import TensorProgram

_FORMAT = 4
# What reading an archive whose bytes were changed may raise, and making a program of what it then holds.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ArithmeticError),
    *(LookupError, TypeError, ValueError, AttributeError, RuntimeError),
)
_MANIFEST, _PROGRAM = "manifest.json", "program.json"
_ANEW = "save the program again with this one, or load it with that one"


@dataclass(frozen=True, slots=True, eq=False)
class SavedProgram:
    """A plan and how it is called, as data; attributes as those of `Plan`.

    `constants`: of each tensor its shape, strides, element type; the last `own` of them are held by the graph itself.
    """

    captured: Captured
    program: TensorProgram
    steps: tuple[PlanStep, ...]
    in_place: frozenset[str]
    arguments: int
    trace: tuple[passes.Step, ...]
    scheme: str
    calling: Calling
    constants: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    own: int


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """What a file holds, ready to run."""

    plan: Plan
    calling: Calling
    constants: tuple[torch.Tensor, ...]


_FORMS = replace(
    FORMS,
    classes=FORMS.classes.union(
        (
            f"{__name__}.SavedProgram",
            *(f"weft.api.calling.{name}" for name in ("Calling", "TensorLeaf", "Plain", "Leaf", "HeldConstant")),
            "weft.api.calling.GraphOutput",
        )
    ),
)
"""What a program in a file is made of, but for its kernels."""


@dataclass(eq=False)
class _Writer:
    """What goes into the archive, by name."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def put(self, folder: str, content: bytes) -> str:
        """Add content to the archive, and return its name there."""
        name = f"{folder}/{len(self.files)}"
        self.files[name] = content
        return name

    def kernel(self, kernel: Kernel) -> SavedKernel:
        """Return `kernel` as data, with its binaries as files."""
        return saved_kernel(kernel, functools.partial(self.put, "kernels"))

    def constant(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        """Return shape, strides and type of a tensor, whose elements become a file."""
        self.put("constants", held.bytes_of(tensor))
        return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def save(path: Path, plan: Plan, called: Calling, constants: Sequence[torch.Tensor]) -> Path:
    """Write a plan; as `Program.save`."""
    captured, program = plan.captured, plan.program
    if captured.program is None or program is None or not plan.kernels:
        reasons = "; ".join(map(str, plan.fallbacks)) or "it has no kernel"
        raise ProgramFileError(f"PyTorch runs all of this program: {reasons}", todo="run the function itself")
    _demand_text(captured)
    writer = _Writer()
    constants_of = tuple(map(writer.constant, (*constants, *captured.constants)))
    alone = replace(captured, made_by={}, leaving=None, constants=(), recording=None, sizes={})
    saved = SavedProgram(
        alone,
        program,
        plan.steps,
        plan.in_place,
        plan.arguments,
        plan.trace,
        plan.scheme,
        called,
        constants_of,
        len(captured.constants),
    )
    target = plan.kernels[0].target
    manifest = {
        "format": _FORMAT,
        **_versions(),
        "target": str(target),
        **toolchain(target).manifest(),
    }
    with replacing(path) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
        archive.writestr(_PROGRAM, packed(saved, _FORMS | {"kernel": PackedAs(Kernel, writer.kernel, unread)}))
        for name, content in writer.files.items():
            archive.writestr(name, content)
    return path


def _versions() -> dict[str, str]:
    import weft

    return {"weft": weft.__version__, "source": source_hash(), "torch": torch.__version__}


def _demand_text(captured: Captured) -> None:
    """Raise ProgramFileError, naming the operation, for a call into PyTorch that cannot be written."""
    for call in captured.calls.values():
        try:
            packed(call, _FORMS)
        except TypeError as error:
            raise ProgramFileError(
                f"{call.target} runs in PyTorch and cannot be saved: {error}",
                todo="compute that part outside of the function",
            ) from error
    for result in captured.results:
        try:
            packed(result, _FORMS)
        except TypeError as error:
            raise ProgramFileError(f"a result cannot be saved: {error}") from error


def read(path: Path, device: str | torch.device | None) -> Loaded:
    """Read what `save` wrote; arguments and errors as of `load`."""
    try:
        with reading(path, todo="name a file that program.save wrote"), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if _MANIFEST not in names:
                raise ProgramFileError(
                    f"{path} is not a program that weft saved", todo="name a file that program.save wrote"
                )
            manifest = cast("dict[str, Any]", json.loads(archive.read(_MANIFEST)))
            target = _demand_fit(path, manifest)
            files = {name: archive.read(name) for name in names}
        place = toolchain(target).place(device)
        # A graph's tensors are all on one device, which need not be the one that it was traced on.
        reader = _Reader(files, target, place)
        forms = _FORMS | {
            "device": PackedAs(torch.device, str, lambda _: place),
            "kernel": PackedAs(Kernel, unread, reader.kernel),
        }
        return reader.loaded(unpacked(files[_PROGRAM], SavedProgram, forms))
    except WeftError:
        raise
    except _DAMAGED as error:
        raise ProgramFileError(f"{path} is damaged, or not a program that weft saved: {error}") from error


def _demand_fit(path: Path, manifest: Mapping[str, Any]) -> Target:
    """Return the target of a file that fits this weft, this PyTorch and this machine."""
    own, target = _versions(), Target.parse(manifest["target"])
    if (manifest["format"], manifest["source"]) != (_FORMAT, own["source"]):
        raise ProgramFileError(
            f"{path} was written by weft {manifest['weft']}, format {manifest['format']}, source {manifest['source'][:12]}; "
            f"this is weft {own['weft']}, format {_FORMAT}, source {own['source'][:12]}",
            todo=_ANEW,
        )
    toolchain(target).demand_fit(path, manifest, own["torch"])
    return target


@dataclass(eq=False)
class _Reader:
    """Makes a plan of what an archive holds."""

    files: Mapping[str, bytes]
    target: Target
    device: torch.device

    def loaded(self, saved: SavedProgram) -> Loaded:
        """Restore the plan, and what it is called with."""
        constants = self.constants(saved)
        split = len(constants) - saved.own
        captured, steps = replace(saved.captured, constants=constants[split:]), saved.steps
        run = running(captured, saved.program, steps, saved.arguments, saved.in_place, _shared_memory)
        regions = tuple(step.region for step in steps if isinstance(step, RegionStep))
        rest = None, saved.in_place, steps, saved.arguments
        plan = Plan(
            captured, saved.program, regions, captured.fallbacks, run, *rest, trace=saved.trace, scheme=saved.scheme
        )
        return Loaded(plan, saved.calling.on(self.device), constants[:split])

    def constants(self, saved: SavedProgram) -> tuple[torch.Tensor, ...]:
        """Restore the tensors that the function holds."""
        return tuple(
            held.tensor_of(self.files[f"constants/{number}"], *described, self.device)
            for number, described in enumerate(saved.constants)
        )

    def kernel(self, saved: SavedKernel) -> Kernel:
        """Restore the kernel that `saved` is the data of."""
        return restored_kernel(saved, self.files, self.target)


def _shared_memory(*_: Any) -> Sequence[Any]:
    raise ProgramFileError(
        "an argument that the program writes into shares memory with another one",
        todo="pass a copy of one of them",
    )
