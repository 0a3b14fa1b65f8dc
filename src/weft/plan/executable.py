"""The plan of a whole captured graph: stages in order, and the callable that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.capture import (
    Captured,
    Fallback,
    without_units,
)
from weft.errors import CacheFolderError, CompilerError, Location, UnknownOptionError, WeftError
from weft.options import Options
from weft.plan.cuts import Cuts
from weft.plan.kernel import Kernel
from weft.plan.laws_check import laws_refuted
from weft.plan.partition import Call, Region
from weft.plan.region import CompiledRegion, build_region
from weft.plan.runner import CallStep, RegionStep, Runner, Step, ViewStep, kept_dims, runner
from weft.plan.select import Example, Selection, select
from weft.run import stats
from weft.tensor.laws import View, normalize, numbered, views
from weft.tensor.program import Opaque, TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What became of one captured graph.

    Attributes:
        captured: the program as written; None where capture refused.
        program: after the laws on tensor programs.
        regions: in launch order.
        fallbacks: what PyTorch runs, and why.
        run: takes the graph's arguments, gives its outputs.
    """

    captured: Captured
    program: TensorProgram | None
    regions: tuple[CompiledRegion, ...]
    fallbacks: tuple[Fallback, ...]
    run: Runner

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in launch order."""
        return tuple(k for region in self.regions for k in region.kernels)


def plan(captured: Captured, arguments: Sequence[Any], eager: Runner, options: Options) -> Plan:
    """Compile `captured`.

    Args:
        captured: what `capture` gave.
        arguments: example arguments of the graph, for sizes and strides.
        eager: runs the graph in PyTorch.
        options: in force.

    Raises:
        CompilerError: there is no working compiler. Everything else that weft cannot do runs in PyTorch, with its reason.
    """
    if captured.program is None or captured.empty:
        refused = (captured.refused,) if captured.refused is not None else ()
        return _in_pytorch(captured, (*captured.fallbacks, *refused), eager)
    program = normalize(captured.program)
    refuted = laws_refuted(captured.program, program)
    if refuted is not None:
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", refuted)), eager)
    tensors = _inputs(captured, program, arguments)
    layouts = {name: _layout(t) for name, t in tensors.items()}
    steps: list[Step] = []
    regions: list[CompiledRegion] = []

    def prepare(region: Region) -> Selection:
        plain, _, made, _ = _plain(region)
        return select(plain, _example(plain, _innermost(plain, made, layouts), options.threads), options)

    try:
        cuts = Cuts(program, prepare)
        for stage in cuts.stages():
            match stage:
                case Call(name):
                    steps.append(CallStep(captured.calls[name], _aliases(captured.program, program, name)))
                case Region():
                    _, viewed, made, old_names = _plain(stage)
                    region = build_region(cuts.selection(stage), options)
                    regions.append(region)
                    steps += [ViewStep(viewed, made)] if made else []
                    steps.append(RegionStep(region, old_names))
    except (CompilerError, CacheFolderError, UnknownOptionError):
        raise
    except WeftError as error:
        where = error.where if isinstance(error.where, Location) else None
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", error.what, where)), eager)
    except Exception as error:  # noqa: BLE001 - a defect of weft's must not stop what eager can run; it is reported
        reason = Fallback("graph", f"weft failed: {type(error).__name__}: {error}")
        return _in_pytorch(captured, (*captured.fallbacks, reason), eager)
    stats.count("fallbacks", len(captured.fallbacks))
    return Plan(captured, program, tuple(regions), captured.fallbacks, runner(captured, program, steps))


def _plain(region: Region) -> tuple[TensorProgram, TensorProgram, tuple[View, ...], Mapping[str, str]]:
    """A region as it is compiled, with names of its own; as it reads views; the views; and what its values were called."""
    viewed, made = views(region.program)
    plain, old_names = numbered(replace(viewed, derived=()))  # a view shows its own size
    return plain, viewed, made, old_names


def _in_pytorch(captured: Captured, fallbacks: tuple[Fallback, ...], eager: Runner) -> Plan:
    stats.count("fallbacks", max(1, len(fallbacks)))
    return Plan(captured, captured.program, (), fallbacks, eager)


def _inputs(captured: Captured, program: TensorProgram, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors of the program's inputs, as its values are held: without dimensions of size 1."""
    return {
        node.name: without_units(arguments[index], kept_dims(node))
        for node, index in zip(program.inputs, captured.arguments, strict=True)
    }


def _aliases(captured: TensorProgram, program: TensorProgram, call: str) -> dict[str, str]:
    """What became of the values that the call `call` reads: laws merge equal values and rename."""
    old, new = (next(n for n in p.nodes if isinstance(n, Opaque) and n.call == call) for p in (captured, program))
    return {a: b for a, b in zip(old.uses, new.uses, strict=True) if a != b}


def _example(program: TensorProgram, innermost: Mapping[str, int | None], threads: int | None) -> Example:
    """The example sizes and layouts of a region. A space without an example is taken for a large one."""
    sizes = {s.name: s.example or 1024 for s in program.spaces()}
    return Example(sizes, innermost, threads or torch.get_num_threads())


def _layout(tensor: torch.Tensor) -> int | None:
    """The dimension of `tensor` that has stride 1: the last such; None where there is none."""
    return next((d for d in reversed(range(tensor.ndim)) if tensor.stride(d) == 1), None)


def _innermost(
    program: TensorProgram, made: Sequence[View], layouts: Mapping[str, int | None]
) -> dict[str, int | None]:
    """For each input of a region its unit-stride dimension: as given, of a view unknown, of another kernel's result the last."""
    known = {v.name for v in made}
    return {
        node.name: None if node.name in known else layouts.get(node.name, len(node.axes) - 1) for node in program.inputs
    }
