"""The plan of a whole captured graph: stages in order, and the callable that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from weft.errors import CacheFolderError, CompilerError, Location, UnknownOptionError, WeftError
from weft.options import Options
from weft.plan.cuts import Cuts
from weft.plan.kernel import Kernel
from weft.plan.laws_check import laws_refuted
from weft.plan.layout import as_in_eager
from weft.plan.partition import Call, Region
from weft.plan.region import CompiledRegion, build_region
from weft.plan.select import Example, Selection, select
from weft.run import stats
from weft.tensor.axes import Affine
from weft.tensor.laws import View, normalize, numbered, views
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
    program = as_in_eager(normalize(captured.program), captured.results)
    refuted = laws_refuted(captured.program, program)
    if refuted is not None:
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", refuted)), eager)
    tensors = _inputs(captured, program, arguments)
    layouts = {name: _layout(t) for name, t in tensors.items()}
    steps: list[_Step] = []
    regions: list[CompiledRegion] = []

    def prepare(region: Region) -> Selection:
        plain, _, made, _ = _plain(region)
        return select(plain, _example(plain, _innermost(plain, made, layouts), options.threads), options)

    try:
        cuts = Cuts(program, prepare)
        for stage in cuts.stages():
            match stage:
                case Call(name):
                    steps.append(_CallStep(captured.calls[name], _aliases(captured.program, program, name)))
                case Region():
                    _, viewed, made, old_names = _plain(stage)
                    region = build_region(cuts.selection(stage), options)
                    regions.append(region)
                    steps += [_ViewStep(viewed, made)] if made else []
                    steps.append(_RegionStep(region, old_names))
    except (CompilerError, CacheFolderError, UnknownOptionError):
        raise
    except WeftError as error:
        where = error.where if isinstance(error.where, Location) else None
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", error.what, where)), eager)
    except Exception as error:  # noqa: BLE001 - a defect of weft's must not stop what eager can run; it is reported
        reason = Fallback("graph", f"weft failed: {type(error).__name__}: {error}")
        return _in_pytorch(captured, (*captured.fallbacks, reason), eager)
    stats.count("fallbacks", len(captured.fallbacks))
    return Plan(captured, program, tuple(regions), captured.fallbacks, _runner(captured, program, steps))


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
        node.name: without_units(arguments[index], _kept(node))
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


def _kept(node: Input) -> tuple[bool, ...]:
    """For each dimension of the tensor whether it has an axis: a dimension of size 1 has none."""
    return tuple(axis is not None for axis in node.dims or node.axes)


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
    """The kernels of a region; `old_names` says what its values are called in the whole program."""

    region: CompiledRegion
    old_names: Mapping[str, str]

    def __call__(self, values: dict[str, torch.Tensor], arguments: Sequence[Any]) -> None:
        del arguments
        own = {n.name: values[n.name] for n in self.region.program.inputs}
        for kernel in self.region.kernels:
            own.update(zip(kernel.writes, kernel.launch(*[own[n] for n in kernel.reads]), strict=True))
        for name in self.region.program.outputs:
            values[self.old_names.get(name, name)] = own[name]


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
