"""A plan as bytes, for the process that asked for it: programs, steps, kernels and their binaries.

The bytes are a pickle. They come through a pipe from a process that this one started, and nobody else can write there; what lies in
the cache is read by other means (`weft.plan.targets.packed`).
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload  # no public name

from weft.api.held import at, held_by
from weft.api.plan_forms import SavedKernel, restored_kernel, saved_kernel
from weft.capture import Captured, operation
from weft.errors import UnsupportedError
from weft.plan import Kernel, Plan, Runner
from weft.plan.execute.instead import Instead
from weft.plan.execute.made import must_not_repeat, running
from weft.plan.execute.steps import PlanStep, RegionStep
from weft.plan.targets import toolchain
from weft.target import Target
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class PlanForm:
    """A plan as data; attributes as those of `Plan`."""

    captured: Captured
    program: TensorProgram
    steps: tuple[PlanStep, ...]
    in_place: frozenset[str]
    arguments: int
    size_class: tuple[int, ...]
    device: torch.device | None
    scheme: str
    target: Target


def packed_plan(plan: Plan, gm: fx.GraphModule, *, whole: bool) -> bytes:
    """Write a plan of the graph `gm`; `whole`: the tensors that the graph holds have their elements here.

    Raises:
        UnsupportedError: it copies elements of a tensor that has none here.
        Exception: a call into PyTorch cannot be written.
    """
    assert plan.program is not None
    captured = replace(plan.captured, leaving=None, recording=None, made_by={})
    steps = tuple(map(_slim, plan.steps))
    rest = plan.in_place, plan.arguments, plan.size_class, plan.device, plan.scheme, plan.kernels[0].target
    # PyTorch can take over a call that lacks a binary, unless some of it is done that must not be done twice.
    compiles = must_not_repeat(captured, plan.program, plan.in_place)
    with io.BytesIO() as stream:
        _Writer(stream, gm, whole=whole, compiles=compiles).dump(PlanForm(captured, plan.program, steps, *rest))
        return stream.getvalue()


def _slim(step: PlanStep) -> PlanStep:
    """Leave out what only `explain` shows."""
    return replace(step, region=replace(step.region, trace=(), considered=())) if isinstance(step, RegionStep) else step


def unpacked_plan(
    data: bytes, gm: fx.GraphModule, eager: Runner, lacking: Callable[[Sequence[Any], str], None] | None = None
) -> Plan:
    """Make a plan of what `packed_plan` wrote, for the same graph here; loads its kernels. PyTorch runs calls that a kernel has no
    binary for, and `lacking` is told of them.

    Raises:
        Exception: of any kind, where a library cannot be loaded, or an operation is not known here.
    """
    with io.BytesIO(data) as stream:
        form: PlanForm = _Reader(stream, gm).load()
    instead = Instead(eager, lacking=lacking) if toolchain(form.target).may_refuse else None
    run = running(form.captured, form.program, form.steps, form.arguments, form.in_place, eager, instead)
    regions = tuple(step.region for step in form.steps if isinstance(step, RegionStep))
    rest = None, form.in_place, form.steps, form.arguments, form.size_class, form.device
    return Plan(form.captured, form.program, regions, form.captured.fallbacks, run, *rest, scheme=form.scheme)


class _Writer(pickle.Pickler):
    """Writes what the graph has here and there, tensors and functions, by its place in the graph."""

    def __init__(self, stream: io.BytesIO, gm: fx.GraphModule, *, whole: bool, compiles: bool) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._whole, self._compiles = whole, compiles
        self._held = {id(value): name for name, value in held_by(gm).items()}
        functions = [n for n in gm.graph.nodes if n.op == "call_function"]
        self._functions = {id(n.target): n.name for n in functions if not isinstance(n.target, OpOverload)}

    def persistent_id(self, obj: Any) -> tuple[str, Any] | None:
        if isinstance(obj, OpOverload):
            return "operation", obj.name()
        if isinstance(obj, torch.Tensor | fx.GraphModule | torch.nn.Module) and id(obj) in self._held:
            return "held", self._held[id(obj)]
        name = self._functions.get(id(obj))
        return None if name is None else ("function", name)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Kernel):
            files: dict[str, bytes] = {}
            return _kernel, (saved_kernel(obj, functools.partial(_put, files)), files, obj.target, self._compiles)
        if isinstance(obj, torch.Tensor):
            if not self._whole:
                raise UnsupportedError("the graph holds a large tensor, and copies it")
            return _tensor, (
                cast("Any", obj).tolist(),
                obj.dtype,
                str(obj.device),
                tuple(obj.shape),
                tuple(obj.stride()),
            )
        return NotImplemented


def _put(files: dict[str, bytes], content: bytes) -> str:
    name = str(len(files))
    files[name] = content
    return name


def _kernel(saved: SavedKernel, files: Mapping[str, bytes], target: Target, compiles: bool) -> Kernel:
    return restored_kernel(saved, files, target, compiles=compiles)


def _tensor(numbers: Any, dtype: torch.dtype, device: str, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    made = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)
    return made.copy_(torch.tensor(numbers, dtype=dtype).reshape(tuple(shape)))


@dataclass
class _Graph:
    """What a plan takes of the graph that it is of."""

    gm: fx.GraphModule
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])

    def __post_init__(self) -> None:
        self.functions = {n.name: n.target for n in self.gm.graph.nodes if n.op == "call_function"}


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote."""

    def __init__(self, stream: io.BytesIO, gm: fx.GraphModule) -> None:
        super().__init__(stream)
        self._graph = _Graph(gm)

    def persistent_load(self, pid: Any) -> Any:
        kind, name = pid
        match kind:
            case "operation":
                return operation(name)
            case "held":
                return at(self._graph.gm, name)
            case _:
                return self._graph.functions[name]
