"""Plans of whole graphs, kept in the cache: another process that meets the graph neither captures it nor cuts it again.

An entry is text (`weft.plan.targets.packed`), its kernels are entries of their own. One that is damaged, or that lacks a kernel, is
made anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeAlias

import torch
from torch import fx

from weft.api.graph_text import graph_text
from weft.api.held import bytes_of, held_by, tensor_of
from weft.api.plan_forms import FORMS, SavedKernel, kernel_of, unread
from weft.capture import Captured, refused_at_once
from weft.garbage import uncollected
from weft.options import current
from weft.plan import Kernel, Plan, Runner, gpu_of, home, measured_before, size_class
from weft.plan.execute.instead import Instead
from weft.plan.execute.made import running
from weft.plan.execute.steps import PlanStep, RegionStep
from weft.plan.targets import toolchain
from weft.plan.targets.kept import keep, recalled
from weft.plan.targets.packed import PackedAs
from weft.run.cache import CacheFolder
from weft.run.key import cache_key
from weft.target import Target
from weft.tensor import passes
from weft.tensor.program import TensorProgram

TensorText: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""A tensor that capture made of numbers in the graph: its elements in hexadecimal digits, its shape, strides, type and device."""

_MOST_BYTES = 4096
"""Bytes of such a tensor, up to which a plan is kept."""
_LIBRARY = "a graph's plan with the library's matmuls"


@dataclass(frozen=True, slots=True, eq=False)
class KeptPlan:
    """A plan as data; attributes as those of `Plan`.

    Attributes:
        constants: those of `captured`: what the graph calls them, or their elements.
        has_library: whether another plan may be tried, in which the library runs matmuls.
    """

    captured: Captured
    program: TensorProgram
    steps: tuple[PlanStep, ...]
    in_place: frozenset[str]
    arguments: int
    trace: tuple[passes.Step, ...]
    scheme: str
    constants: tuple[str | TensorText, ...]
    has_library: bool


@dataclass(eq=False)
class KeptGraph:
    """Where the plans of one graph are kept.

    Attributes:
        gm: the graph.
        target: where its arguments live.
        sizes: their size class.
        parts: of the key.
        device: the GPU that its arguments live on, if they do.
    """

    gm: fx.GraphModule
    target: Target
    sizes: tuple[int, ...]
    parts: dict[str, str] = field(repr=False)
    device: torch.device | None = None

    @staticmethod
    def of(gm: fx.GraphModule, arguments: Sequence[Any]) -> KeptGraph | None:
        """Find the place for a graph; None where its plan is made anew in each process.

        Raises:
            CompilerError: there is no compiler, whose identity is a part of every key.
            CacheFolderError: the cache folder is not safe.
        """
        options, target = current(), home(arguments)
        if options.verify == "always" or options.judge == "always" or options.log == "debug":
            return None  # each process is to prove or to show it
        if not toolchain(target).recalls or refused_at_once(gm, arguments) is not None:
            return None
        text = graph_text(gm, arguments)
        if text is None:
            return None
        chain = toolchain(target)
        machine = repr(chain.machine(options.threads or torch.get_num_threads()))
        own = {"kept": "a graph's plan", "graph": sha256(text.encode()).hexdigest(), "model": machine}
        device = gpu_of(arguments)
        own |= chain.tuning(device) | {"scheme": options.scheme or ""}
        return KeptGraph(gm, target, size_class(arguments), {**chain.environment(), **own}, device)

    def plan(self, eager: Runner) -> Plan | None:
        """Return the plan that was kept, its kernels loaded; None where there is none, or a trial may need what it lacks."""
        found = self._recalled(self.parts, eager)
        if found is None:
            return None
        made, has_library = found
        if has_library and current().measure != "never":
            measured = measured_before(made)
            others = measured is not None and measured.library is None
            if not others and CacheFolder().lookup(cache_key(self._of_library), counted=False) is None:
                return None
        return made

    def keep(self, made: Plan) -> None:
        """Keep a plan, if it can be written, and another process would choose the same."""
        self._keep(self.parts, made)

    def library(self, eager: Runner) -> Plan | None:
        """Return the plan with the library's matmuls that was kept; None where there is none."""
        found = self._recalled(self._of_library, eager)
        return None if found is None else found[0]

    def keep_library(self, made: Plan) -> None:
        """Keep the plan with the library's matmuls, if it can be written."""
        self._keep(self._of_library, made)

    @property
    def _of_library(self) -> dict[str, str]:
        return self.parts | {"kept": _LIBRARY}

    @uncollected()
    def _recalled(self, parts: dict[str, str], eager: Runner) -> tuple[Plan, bool] | None:
        forms = FORMS | {"plan": KeptPlan, "kernel": PackedAs(Kernel, unread, self._kernel)}
        found = recalled(parts, KeptPlan, forms=forms)
        if found is None:
            return None
        kept = found[0]
        try:
            captured = replace(kept.captured, constants=tuple(map(self._constant, kept.constants)))
        except (AttributeError, TypeError, ValueError, RuntimeError):
            return None
        instead = Instead(eager) if toolchain(self.target).may_refuse else None
        run = running(captured, kept.program, kept.steps, kept.arguments, kept.in_place, eager, instead)
        regions = tuple(step.region for step in kept.steps if isinstance(step, RegionStep))
        rest = None, kept.in_place, kept.steps, kept.arguments, self.sizes, self.device
        made = Plan(captured, kept.program, regions, captured.fallbacks, run, *rest, kept.trace, kept.scheme)
        return made, kept.has_library

    def _keep(self, parts: dict[str, str], made: Plan) -> None:
        captured = made.captured
        if made.program is None or not made.kernels or any(number.symbols for number in captured.sizes.values()):
            return
        if not all(region.settled for region in made.regions):
            return
        names = {id(value): name for name, value in held_by(self.gm).items()}
        constants: list[str | TensorText] = []
        for tensor in captured.constants:
            name = names.get(id(tensor))
            if name is None and tensor.numel() * tensor.element_size() > _MOST_BYTES:
                return
            constants.append(name if name is not None else _written(tensor))
        alone = replace(captured, made_by={}, leaving=None, constants=(), recording=None, sizes={})
        rest = made.in_place, made.arguments, made.trace, made.scheme, tuple(constants), made.with_library is not None
        forms = FORMS | {"plan": KeptPlan, "kernel": PackedAs(Kernel, _kernel_written, unread)}
        with suppress(TypeError):  # a call into PyTorch that has no text
            keep(parts, KeptPlan(alone, made.program, made.steps, *rest), forms=forms)

    def _constant(self, written: str | TensorText) -> torch.Tensor:
        if isinstance(written, str):
            return held_by(self.gm)[written]
        digits, shape, stride, dtype, device = written
        return tensor_of(bytes.fromhex(digits), shape, stride, dtype, device)

    def _kernel(self, saved: SavedKernel) -> Kernel:
        built = toolchain(self.target).recalled(saved.key)
        if built is None:
            raise LookupError(f"the kernel {saved.key} is not in the cache")
        return kernel_of(saved, built, self.target)


def _written(tensor: torch.Tensor) -> TensorText:
    return bytes_of(tensor).hex(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def _kernel_written(kernel: Kernel) -> SavedKernel:
    """Describe a kernel whose text and binary are an entry of the cache."""
    own = kernel.block_program, kernel.schedule, kernel.cost, kernel.verdict, kernel.reads, kernel.writes
    return SavedKernel(*own, "", json.dumps(None), kernel.key, kernel.judged, ())
