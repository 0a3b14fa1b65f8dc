"""The plan of a whole captured graph: stages in order, and the callable that runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.capture import (
    Captured,
    Fallback,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    OpaqueCall,
    in_order,
    with_dims,
    without_units,
)
from weft.errors import CacheFolderError, CompilerError, UnknownOptionError, WeftError
from weft.options import Options
from weft.plan.cuts import Cuts
from weft.plan.kernel import Kernel
from weft.plan.laws_check import laws_refuted
from weft.plan.partition import Call, Region
from weft.plan.region import CompiledRegion
from weft.plan.regions import Prepared, Regions, calls_of
from weft.plan.sizes import Found, found
from weft.run import stats
from weft.run.compiler import compiler_works
from weft.tensor.axes import Affine
from weft.tensor.laws import View, normalize
from weft.tensor.program import Input, Opaque, TensorProgram

Runner = Callable[..., Sequence[Any]]


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
    known = Regions(options, {})
    while True:
        made = _attempt(captured, arguments, eager, known)
        if isinstance(made, Plan):
            return made
        assert captured.leaving is not None
        captured = captured.leaving(made)


def _attempt(captured: Captured, arguments: Sequence[Any], eager: Runner, known: Regions) -> Plan | dict[int, str]:
    """The plan; or which calls PyTorch must run in another attempt, by number, and why, where a region of the graph failed."""
    assert captured.program is not None
    program = normalize(captured.program)
    refuted = laws_refuted(captured.program, program)
    if refuted is not None:
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", refuted)), eager)
    known.layouts = {name: _layout(t) for name, t in _inputs(captured, program, arguments).items()}
    steps: list[_Step] = []
    regions: list[CompiledRegion] = []
    failed: dict[int, str] = {}
    try:
        cuts = Cuts(program, known.selection)
        there = {n.name for n in program.inputs}
        for stage in cuts.stages():
            if isinstance(stage, Call):
                steps.append(_CallStep(captured.calls[stage.name], _aliases(captured.program, program, stage.name)))
            else:
                try:
                    region = known.built(stage)
                    steps += _region_steps(known.prepared(stage), region, program, there)
                    regions.append(region)
                except Exception as error:  # noqa: BLE001 - whatever it is, this region alone goes to PyTorch
                    failed |= _left_to_pytorch(captured, stage, error)
            there.update(stage.results)
    except (CompilerError, CacheFolderError, UnknownOptionError):
        raise
    except Exception as error:  # noqa: BLE001 - a defect of weft's must not stop what eager can run; it is reported
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", reason_of(error))), eager)
    if failed:
        return failed
    stats.count("fallbacks", len(captured.fallbacks))
    captured = replace(captured, leaving=None)  # it holds the whole recording
    return Plan(captured, program, tuple(regions), captured.fallbacks, _runner(captured, program, steps))


def _left_to_pytorch(captured: Captured, region: Region, error: Exception) -> dict[int, str]:
    """The calls to leave to PyTorch since `region` failed, and why.

    Raises:
        CompilerError, CacheFolderError, UnknownOptionError: it is not the region's fault.
        Exception: `error` itself, where there is no call to leave.
    """
    theirs = isinstance(error, CompilerError) and error.command and compiler_works()
    if isinstance(error, CompilerError | CacheFolderError | UnknownOptionError) and not theirs:
        raise error
    calls = calls_of(captured, region, error)
    if not calls or captured.leaving is None:
        raise error
    return dict.fromkeys(calls, reason_of(error))


def reason_of(error: Exception) -> str:
    """Why weft does not run something, for a user: what weft says of it, or what failed in weft."""
    return error.what if isinstance(error, WeftError) else f"weft failed: {type(error).__name__}: {error}"


def _region_steps(
    prepared: Prepared, region: CompiledRegion, program: TensorProgram, values: Collection[str]
) -> list[_Step]:
    """The steps that run `region`, built for this region or another one of its form.

    Args:
        prepared, region: the region and what was built.
        program: the whole one.
        values: names of its values that are there before the region runs.

    Raises:
        UnsupportedError: a kernel needs a size that none of these shows.
    """
    reads = zip(region.program.inputs, prepared.viewed.inputs, strict=True)
    writes = zip(region.program.outputs, prepared.viewed.outputs, strict=True)
    spaces = zip(region.program.spaces(), prepared.viewed.spaces(), strict=True)
    passed = {name for kernel in region.kernels for name in kernel.sizes}
    sizes = {own.name: found(its, program, values) for own, its in spaces if own.name in passed}
    step = _RegionStep(region, tuple((own.name, its.name) for own, its in reads), tuple(writes), sizes)
    return [_ViewStep(prepared.viewed, prepared.made), step] if prepared.made else [step]


def _in_pytorch(captured: Captured, fallbacks: tuple[Fallback, ...], eager: Runner) -> Plan:
    stats.count("fallbacks", max(1, len(fallbacks)))
    return Plan(captured, captured.program, (), fallbacks, eager)


def _inputs(captured: Captured, program: TensorProgram, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The tensors of the program's inputs, as its values are held: without dimensions of size 1."""
    return {
        node.name: without_units(arguments[index], _kept(node))
        for node, index in zip(program.inputs, captured.arguments, strict=True)
    }


def _aliases(captured: TensorProgram, program: TensorProgram, call: str) -> dict[str, str]:
    """What became of the values that the call `call` reads: laws merge equal values and rename."""
    old, new = (next(n for n in p.nodes if isinstance(n, Opaque) and n.call == call) for p in (captured, program))
    return {a: b for a, b in zip(old.uses, new.uses, strict=True) if a != b}


def _kept(node: Input) -> tuple[bool, ...]:
    """For each dimension of the tensor whether it has an axis: a dimension of size 1 has none."""
    return tuple(axis is not None for axis in node.dims or node.axes)


def _layout(tensor: torch.Tensor) -> int | None:
    """The dimension of `tensor` that has stride 1: the last such; None where there is none."""
    return next((d for d in reversed(range(tensor.ndim)) if tensor.stride(d) == 1), None)


@dataclass(frozen=True, slots=True, eq=False)
class _CallStep:
    """A call into PyTorch; `aliases` says which value stands, after the laws, for each one that the call names."""

    call: OpaqueCall
    aliases: Mapping[str, str]

    def __call__(self, values: dict[str, torch.Tensor], arguments: Sequence[Any]) -> None:
        named = {**values, **{old: values[new] for old, new in self.aliases.items()}}
        values.update(self.call.run(named, arguments))


@dataclass(frozen=True, slots=True, eq=False)
class _ViewStep:
    """The views that a region reads: the memory of its other inputs, no copy unless an index runs backwards."""

    program: TensorProgram
    made: tuple[View, ...]

    def __call__(self, values: dict[str, torch.Tensor], arguments: Sequence[Any]) -> None:
        del arguments
        own = {v.name for v in self.made}
        given = {
            axis.space.name: size
            for node in self.program.inputs
            if node.name not in own
            for axis, size in zip(node.axes, values[node.name].shape, strict=True)
        }
        sizes = self.program.sizes(given)
        for view in self.made:
            values[view.name] = _view(view, values[view.source], [a.space.size(sizes) for a in view.axes])


def _view(view: View, source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor that `view` describes. PyTorch has no negative strides: a dimension that runs backwards is flipped, a copy."""
    strides = view.strides(source.stride())
    if min(strides, default=0) >= 0:
        return source.as_strided(shape, strides, source.storage_offset() + view.offset(source.shape, source.stride()))
    backwards = [d for d, i in zip(view.dims, view.index, strict=True) if any(c < 0 for _, c in i.terms)]
    source = source.flip(backwards)
    turned = tuple(_backwards(i) if d in backwards else i for d, i in zip(view.dims, view.index, strict=True))
    return _view(replace(view, index=turned), source, shape)


def _backwards(index: Affine) -> Affine:
    """The same element, counted from the other end."""
    terms = tuple((axis, -coefficient) for axis, coefficient in index.terms)
    return Affine(terms, -index.offset, not index.from_end)


@dataclass(frozen=True, slots=True, eq=False)
class _RegionStep:
    """The kernels of a region; `reads` and `writes`: what its values are called in it, and in the whole program.

    `sizes`: for each size that a kernel is passed, where it is found.
    """

    region: CompiledRegion
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    sizes: Mapping[str, Found]

    def __call__(self, values: dict[str, torch.Tensor], arguments: Sequence[Any]) -> None:
        del arguments
        own = {name: values[outer] for name, outer in self.reads}
        for kernel in self.region.kernels:
            sizes = [self.sizes[name].size(values) for name in kernel.sizes]
            own.update(zip(kernel.writes, kernel.launch(*[own[n] for n in kernel.reads], *sizes), strict=True))
        for name, outer in self.writes:
            values[outer] = own[name]


_Step = _CallStep | _ViewStep | _RegionStep


def _runner(captured: Captured, program: TensorProgram, steps: Sequence[_Step]) -> Runner:
    """The function that runs `steps` on the graph's arguments and hands its results out."""
    inputs = tuple((n.name, index, _kept(n)) for n, index in zip(program.inputs, captured.arguments, strict=True))
    values_of = program.values()
    outputs = tuple(
        (name, values_of[name].axes, program.output_dims[i] if program.output_dims else values_of[name].axes)
        for i, name in enumerate(program.outputs)
    )

    def run(*arguments: Any) -> list[Any]:
        values: dict[str, torch.Tensor] = {}
        for name, index, kept in inputs:
            tensor = arguments[index]
            values[name] = without_units(tensor, kept)
        for step in steps:
            step(values, arguments)
        results: list[Any] = []
        for result in captured.results:
            match result:
                case FromProgram(index, order):
                    name, axes, dims = outputs[index]
                    tensor = values[name] if dims == axes else with_dims(values[name], axes, dims)
                    results.append(tensor if order is None else in_order(tensor, order))
                case FromArgument(index):
                    results.append(arguments[index])
                case FromSizes(number):
                    results.append(number.value(arguments))
                case FromNothing(value):
                    results.append(value)
        return results

    return run
