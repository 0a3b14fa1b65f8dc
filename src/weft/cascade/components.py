"""The components of a chain's state: what a loop carries, and what each of it is relative to (RedFuser, 3.2, 3.3, A.4).

Every sum is carried relative to running values (`weft.cascade.basis`), which are components themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.cascade.algebra import (
    inverse,
)
from weft.cascade.basis import Carried, closure, expr_axes, factor_axes
from weft.cascade.chain import Chain, Result
from weft.cascade.rounding import Scaling
from weft.cascade.separate import Shift
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Scalar, arguments

SMALLEST = 2.0**-126
"""A scale before there is any: as small as any that numbers of 32 bits have a reciprocal of."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Data combined along the axis by a monoid that is no sum: the greatest, the least, the product."""

    data: Scalar
    monoid: Monoid


@dataclass(frozen=True, slots=True)
class Logarithms:
    """The sum of log(abs(data)) + `raised`: what the product of data * exp(raised) is relative to.

    Attributes:
        data: where it is 0 or infinite, it counts as 1 here; None for 1.
        raised: None for 0.
    """

    data: Scalar | None
    raised: Scalar | None


@dataclass(frozen=True, slots=True)
class Multiplied:
    """The product of `data`, by exp of the sum of its logarithms: 1 or -1 but for rounding, or 0, infinite or NaN."""

    data: Scalar


@dataclass(frozen=True, slots=True)
class Exponent:
    """The greatest `data` so far, which exponentials are relative to."""

    data: Scalar


@dataclass(frozen=True, slots=True)
class Centre:
    """A mean so far, which the difference `of` is relative to: one carried sum, `above`, by another, `below`.

    Attributes:
        mean: whether it ends as what `of` subtracts, but for rounding.
    """

    of: Shift
    above: Carried
    below: Carried
    mean: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """What numbers are divided by before they are rounded, as far as the extrema that it is made of have come.

    Attributes:
        of: 1 / H of a `Scaling`, over results of the chain.
    """

    of: Scalar


Single: TypeAlias = Combined | Logarithms | Multiplied
"""What is relative to nothing that moves, and no sum of products."""

Key: TypeAlias = Carried | Exponent | Centre | Scale | Single

Reference: TypeAlias = Centre | Exponent
"""What a difference is relative to."""

LETTERS: Mapping[type, str] = {
    Carried: "s",
    Combined: "m",
    Exponent: "z",
    Centre: "c",
    Scale: "d",
    Logarithms: "l",
    Multiplied: "p",
}
"""What components are called."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What a loop carries, in an order in which each can be updated after those before it.

    Attributes:
        keys: the components.
        axes: of each.
        names: of each.
    """

    keys: tuple[Key, ...]
    axes: Mapping[Key, frozenset[Axis]]
    names: Mapping[Key, str]


def layout(
    chain: Chain,
    sums: Iterable[Carried],
    single: Iterable[Single],
    centres: Mapping[Shift, Reference],
    names: dict[Key, str],
    make: Callable[[str], str],
) -> StateLayout:
    """Lays out the components that carry `sums` and `single`, with all that it takes to move them; `names` has those of
    some of them.
    """
    sums = tuple(sums)
    references = dict.fromkeys(centres[shift] for each in sums for shift, _ in each.shifts)
    used = tuple(r for r in references if isinstance(r, Centre))
    every = closure([*(part for c in used for part in (c.above, c.below)), *sums])
    raised = dict.fromkeys(Exponent(shift.data) for each in every for shift in each.raised)
    raised.update((r, None) for r in references if isinstance(r, Exponent))
    scales = dict.fromkeys(scale_of(scaling) for each in every for scaling in each.scaled)
    single = dict.fromkeys((*single, *(m for scale in scales for m in extrema(chain, scale).values())))
    still, moving = ([e for e in every if e.moving is moves] for moves in (False, True))
    keys: list[Key] = [*single, *still, *used, *scales, *moving, *raised]
    for key in keys:
        if key not in names:
            names[key] = make(LETTERS[type(key)])
    return StateLayout(tuple(keys), {key: axes_of(chain, key) for key in keys}, names)


def axes_of(chain: Chain, key: Key) -> frozenset[Axis]:
    """Returns the free axes of a component."""
    match key:
        case Carried():
            found = frozenset(a for f in key.factors for a in factor_axes(chain, f))
        case Centre():
            found = axes_of(chain, key.above) | axes_of(chain, key.below)
        case Combined() | Exponent() | Multiplied():
            found = expr_axes(chain, key.data)
        case Logarithms():
            found = frozenset(a for e in (key.data, key.raised) if e is not None for a in expr_axes(chain, e))
        case Scale():
            found = expr_axes(chain, key.of)
    return found - {chain.over}


def scale_of(scaling: Scaling) -> Scale:
    """Returns the running value that `scaling` is at."""
    return Scale(inverse(scaling.result))


def extrema(chain: Chain, scale: Scale) -> dict[int, Combined]:
    """Returns the running values that a scale is made of, by operand."""
    found: dict[int, Combined] = {}
    for i in arguments(scale.of):
        operand = chain.operands[i]
        assert isinstance(operand, Result), "a scale is made of earlier results and numbers"
        link = chain.links[operand.index]
        found[i] = Combined(link.element.expr, link.monoid)
    return found


def monoid_of(key: Single) -> Monoid:
    """Returns the operation that combines two parts."""
    match key:
        case Combined():
            return key.monoid
        case Logarithms():
            return Monoid.sum
        case Multiplied():
            return Monoid.prod
