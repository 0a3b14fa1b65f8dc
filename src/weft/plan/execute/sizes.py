"""Where a plan finds, at each call, a size that the kernels of a region are passed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from weft.capture import RuntimeNumber
from weft.errors import UnsupportedError
from weft.tensor.axes import Space
from weft.tensor.derived import Derived
from weft.tensor.program import TensorProgram


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


def _found(
    space: Space, program: TensorProgram, values: Collection[str], asked: frozenset[Space] = frozenset()
) -> SizeSource | None:
    """Finds where the size of `space` can be read, or one that it follows from; not from those `asked` for already."""
    place = _shown(space, program, values)
    if place is not None:
        return place
    asked |= {space}
    for rule in _rules(program, space):  # a size may follow from several, not all of which are there
        if rule.others:  # the numbers that the graph is called with say it
            continue
        if rule.source.fixed is not None:
            return SizeSource("", 0, number=RuntimeNumber(str(rule.size(rule.source.fixed)), ()))
        if rule.source not in asked:
            source = _found(rule.source, program, values, asked)
            if source is not None:
                return replace(source, rules=(*source.rules, rule))
    return None


def _rules(program: TensorProgram, space: Space) -> Iterator[Derived]:
    """Yields the rules by which the size of `space` follows from others, then those that say so read backwards."""
    yield from (rule for rule in program.derived if rule.space == space)
    turned = (rule.backwards for rule in program.derived if rule.source == space)
    yield from (rule for rule in turned if rule is not None)


def _shown(space: Space, program: TensorProgram, values: Collection[str]) -> SizeSource | None:
    """Finds a dimension of one of `values` that runs over `space`."""
    return next((SizeSource(name, dim) for name, dim in program.dimensions.get(space, ()) if name in values), None)
