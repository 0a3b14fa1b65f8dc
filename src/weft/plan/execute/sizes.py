"""Where a plan finds, at each call, a size that the kernels of a region are passed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weft.capture import RuntimeNumber
from weft.errors import UnsupportedError
from weft.tensor.axes import Space
from weft.tensor.program import Derived, TensorProgram


@dataclass(frozen=True, slots=True)
class SizeSource:
    """The length of dimension `dim` of `value`, or a `number` that the graph's arguments give, and what `rules` make of it."""

    value: str
    dim: int
    rules: tuple[Derived, ...] = ()
    number: RuntimeNumber | None = None


def found(
    space: Space, program: TensorProgram, values: Collection[str], numbers: Mapping[Space, RuntimeNumber] | None = None
) -> SizeSource:
    """Finds where the size of `space` can be read.

    Args:
        space: one of `program`'s, not fixed.
        program: the whole program of the plan.
        values: names of its values that are there.
        numbers: spaces whose sizes the graph's arguments give.

    Raises:
        UnsupportedError: none of them shows it, and it follows from none that is shown.
    """
    place = _found(space, program, values)
    if place is None and numbers and space in numbers:
        place = SizeSource("", 0, number=numbers[space])
    if place is None:
        raise UnsupportedError(f"the size of {space.name} cannot be read from any input")
    return place


def tells(
    space: Space, program: TensorProgram, values: Collection[str], numbers: Mapping[Space, RuntimeNumber] | None = None
) -> bool:
    """Tells whether `found` finds the size of `space`."""
    return _found(space, program, values) is not None or space in (numbers or {})


def _found(space: Space, program: TensorProgram, values: Collection[str]) -> SizeSource | None:
    place = _shown(space, program, values)
    if place is not None:
        return place
    for rule in program.derived:  # a size may follow from several, not all of which are there
        if rule.space == space and rule.source.fixed is None:
            source = _found(rule.source, program, values)
            if source is not None:
                return SizeSource(source.value, source.dim, (*source.rules, rule))
    for rule in program.derived:
        multiple = _shown(rule.space, program, values) if rule.source == space else None
        if multiple is not None and (rule.start, rule.stop, rule.step) == (None, None, 1):
            return SizeSource(multiple.value, multiple.dim, (Derived(space, rule.space, step=rule.times),))
    return None


def _shown(space: Space, program: TensorProgram, values: Collection[str]) -> SizeSource | None:
    """Finds a dimension of one of `values` that runs over `space`."""
    return next((SizeSource(name, dim) for name, dim in program.dimensions.get(space, ()) if name in values), None)
