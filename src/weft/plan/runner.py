"""The callable that runs a plan: views, kernels and PyTorch's calls in order, from a graph's arguments to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from weft.capture import (
    Captured,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    OpaqueCall,
    in_order,
    with_dims,
    without_units,
)
from weft.plan.region import CompiledRegion
from weft.plan.sizes import Found
from weft.tensor.axes import Affine
from weft.tensor.laws import View
from weft.tensor.program import Input, TensorProgram

Runner: TypeAlias = Callable[..., Sequence[Any]]
"""Takes a graph's arguments, gives its outputs."""


def kept_dims(node: Input) -> tuple[bool, ...]:
    """For each dimension of the tensor whether it has an axis: a dimension of size 1 has none."""
    return tuple(axis is not None for axis in node.dims or node.axes)


@dataclass(frozen=True, slots=True, eq=False)
class CallStep:
    """A call into PyTorch; `aliases` says which value stands, after the laws, for each one that the call names."""

    call: OpaqueCall
    aliases: Mapping[str, str]

    def __call__(self, values: dict[str, torch.Tensor], arguments: Sequence[Any]) -> None:
        named = {**values, **{old: values[new] for old, new in self.aliases.items()}}
        values.update(self.call.run(named, arguments))


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
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
class RegionStep:
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


Step = CallStep | ViewStep | RegionStep


def runner(captured: Captured, program: TensorProgram, steps: Sequence[Step]) -> Runner:
    """The function that runs `steps` on the graph's arguments and hands its results out."""
    inputs = tuple((n.name, index, kept_dims(n)) for n, index in zip(program.inputs, captured.arguments, strict=True))
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
