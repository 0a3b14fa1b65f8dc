"""Kernels as data, and the forms of plans as text: what is kept in the cache, written to files, and sent to another process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload  # no public name

from weft.capture import operation
from weft.errors import ProgramFileError
from weft.plan import Kernel
from weft.plan.targets import toolchain
from weft.plan.targets.base import Built
from weft.plan.targets.packed import FORMS as CHOICES
from weft.plan.targets.packed import PackedAs
from weft.target import Target

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.cost import Cost
    from weft.schedule import Schedule
    from weft.verify import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class SavedKernel:
    """A `Kernel` as data; `binaries`: for a CPU a member of the archive, for a GPU class by class what is known, cubin and PTX."""

    block_program: BlockProgram
    schedule: Schedule
    cost: Cost
    verdict: Verdict
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    text: str
    signature: str
    key: str
    judged: str
    binaries: tuple[tuple[str, ...], ...]


def _operation(name: str) -> OpOverload[..., Any]:
    try:
        return operation(name)
    except (AttributeError, RuntimeError) as error:
        raise ProgramFileError(
            f"the program calls {name}, which is not registered in this process",
            todo="import the library that defines the operation before weft.load",
        ) from error


def _torch_name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _of_torch(kind: type, name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, kind):
        raise TypeError(f"torch.{name} is no {kind.__name__}")
    return found


_ATOMS = {
    "operation": PackedAs(OpOverload, OpOverload.name, _operation),
    "device": PackedAs(torch.device, str, torch.device),
    **{
        kind.__name__: PackedAs(kind, _torch_name, functools.partial(_of_torch, kind))
        for kind in (torch.dtype, torch.layout, torch.memory_format)
    },
}
FORMS = (
    replace(
        CHOICES,
        classes=CHOICES.classes.union(
            (
                *(f"weft.capture.captured.{name}" for name in ("Captured", "Fallback", "FixedLayout", "FromArgument")),
                *(f"weft.capture.captured.{name}" for name in ("FromNothing", "FromProgram", "FromSizes", "Told")),
                *(
                    f"weft.capture.captured.{name}"
                    for name in ("MemoryLayout", "OpaqueCall", "Operand", "RuntimeNumber")
                ),
                *("weft.capture.memory.Effect", "weft.capture.memory.Written", "weft.tensor.laws.views.View"),
                *(f"weft.verify.verdict.{name}" for name in ("Verdict", "Shown", "Aspect")),
                *(f"weft.plan.execute.steps.{name}" for name in ("RegionStep", "CallStep", "ViewStep")),
                *("weft.plan.execute.sizes.SizeSource", "weft.plan.targets.compiled.CompiledRegion"),
                f"{__name__}.SavedKernel",
            )
        ),
    )
    | _ATOMS
)
"""What a plan is made of, but for its kernels."""


def saved_kernel(kernel: Kernel, put: Callable[[bytes], str]) -> SavedKernel:
    """Return `kernel` as data; `put` takes a binary, and returns its name."""
    return SavedKernel(
        kernel.block_program,
        kernel.schedule,
        kernel.cost,
        kernel.verdict,
        kernel.reads,
        kernel.writes,
        kernel.source,
        json.dumps(kernel.made.signature.to_json()),
        kernel.key,
        kernel.judged,
        toolchain(kernel.target).saved(kernel.made, put),
    )


def restored_kernel(saved: SavedKernel, files: Mapping[str, bytes], target: Target, *, compiles: bool = True) -> Kernel:
    """Restore the kernel that `saved` is the data of, its binaries among `files` by name; `compiles` as of `Toolchain.restored`."""
    return kernel_of(saved, toolchain(target).restored(saved, files, compiles=compiles), target)


def kernel_of(saved: SavedKernel, built: Built, target: Target) -> Kernel:
    """Make the kernel that `saved` describes, of what was built of it."""
    return Kernel(
        saved.block_program,
        saved.schedule,
        lambda: saved.cost,
        saved.verdict,
        saved.reads,
        saved.writes,
        built.made,
        built.made.launch,
        target,
        built.assembled,
        saved.judged,
    )


def unread(value: Any) -> Any:
    """Refuse `value`, of which only the other direction is asked."""
    raise TypeError(f"a {type(value).__name__} cannot be saved and loaded")
