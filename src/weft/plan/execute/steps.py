"""The steps of a plan: what it runs one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.capture import Effect, OpaqueCall
from weft.errors import Location
from weft.plan.execute.sizes import SizeSource
from weft.plan.targets.compiled import CompiledRegion
from weft.tensor.laws import View
from weft.tensor.program import Input, TensorProgram


def kept_dims(node: Input) -> tuple[bool, ...]:
    """Tells for each dimension of the tensor whether it has an axis: a dimension of size 1 has none."""
    return tuple(axis is not None for axis in node.dims or node.axes)


@dataclass(frozen=True, slots=True, eq=False)
class CallStep:
    """A call into PyTorch; `aliases` says which value stands, after the laws, for each one that the call names.

    A write `in_place` changes its first argument itself.
    """

    call: OpaqueCall
    aliases: Mapping[str, str]
    in_place: bool = False

    @property
    def target(self) -> Callable[..., Any]:
        """Return what is called with the call's arguments."""
        target = self.call.target
        return replace(target, in_place=self.in_place) if isinstance(target, Effect) else target


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """The views that a region reads: the memory of its other inputs, no copy unless an index runs backwards."""

    program: TensorProgram
    made: tuple[View, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RegionStep:
    """The kernels of a region; `reads` and `writes`: what its values are called in it, and in the whole program, where one
    that is written may be several.

    `sizes`: for each size that a kernel is passed, where it is found. `places`: the user's lines that it computes.
    """

    region: CompiledRegion
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    sizes: Mapping[str, SizeSource]
    places: tuple[Location, ...] = ()

    def first_name(self, inner: str) -> str | None:
        """Return what a value that is written is called first in the whole program; None where it is not in it."""
        return next((outer for name, outer in self.writes if name == inner), None)


PlanStep = CallStep | ViewStep | RegionStep
