"""Running references: the algebra behind pairs of a significand and an exponent, and behind the states of chains of reductions.

A loop may carry a value relative to a reference that moves as the loop goes on. Two things say how: how references are joined, and
how a value is rescaled from one reference to another.

    update   r' = join(r, the block's r)       v' = rescale(v, r -> r') + the block's part, relative to r'
    merge    r' = join(left r, right r)        v' = rescale(left v, left r -> r') + rescale(right v, right r -> r')
    finish   the value itself is v, restored from r

Numerical safety (`weft.fuse.safety`) carries significands relative to exponents. Cascades (`weft.cascade`) carry sums relative to
exponents, means and scales. Both take the steps from here, so that online softmax is one program whichever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from weft.tensor.scalar import Lit, Scalar, apply

K = TypeVar("K")
R = TypeVar("R")


def joined(one: Scalar, other: Scalar) -> Scalar:
    """Join two exponents, or two growing scales: the greater."""
    return apply("maximum", one, other)


def finite(exponent: Scalar, lowest: float) -> Scalar:
    """Return an exponent that may be -inf as one that can be subtracted: what is relative to it is 0 either way."""
    return joined(exponent, Lit(lowest))


def share(old: Scalar, new: Scalar, count: int = 1) -> Scalar:
    """Return the factor from a value relative to `count` times the exponent `old` to one relative to `new`, which is no less."""
    apart = apply("sub", old, new)
    return apply("decay", apart if count == 1 else apply("mul", Lit(float(count)), apart))


def restored(exponent: Scalar) -> Scalar:
    """Return what a value that is relative to `exponent` is multiplied with, to be the value itself."""
    return apply("exp", exponent)


@dataclass(frozen=True, slots=True)
class Carrying(Generic[K, R]):
    """The update and the merge of carried values, once the references are joined.

    Attributes:
        rescaled: writes a value of a state, relative to the state's references, as relative to new ones.
        added: writes the combination of two values that are relative to the same references.

    Values are known by keys `K`; a state names values and references by `R`.
    """

    rescaled: Callable[[K, Mapping[R, str], Mapping[R, str]], str]
    added: Callable[[K, str, str], str]

    def updated(
        self, keys: Iterable[K], old: Mapping[R, str], new: Mapping[R, str], part: Callable[[K], str]
    ) -> dict[K, str]:
        """Rescale each value of the state `old` to the references `new`, and add the block's `part`, which is relative to them."""
        return {key: self.added(key, self.rescaled(key, old, new), part(key)) for key in keys}

    def merged(
        self, keys: Iterable[K], left: Mapping[R, str], right: Mapping[R, str], new: Mapping[R, str]
    ) -> dict[K, str]:
        """Rescale each value of two states to the references `new`, and add the two."""
        return self.updated(keys, left, new, lambda key: self.rescaled(key, right, new))
