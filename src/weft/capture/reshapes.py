"""Reshapes: the elements in the same order, in dimensions that are split and merged.

A shape is a mixed radix: an element's indices are the digits of its number. Where the digits of both shapes can be cut into
the same ones, a reshape moves nothing: a dimension that is split is a view, one that is merged is a name for several axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

from weft.capture.arguments import Arguments
from weft.capture.sizes import expression, number_or_expression
from weft.errors import UnsupportedError
from weft.tensor.axes import present
from weft.tensor.builder import Builder, Ref


def reshape(b: Builder, a: Arguments) -> Ref:
    """Reshapes to the result's shape.

    Raises:
        UnsupportedError: the dimensions have no common digits, or one is split into parts whose sizes are read at each call.
    """
    old, new = list(a.fake_of("self").shape), list(a.fake.shape)
    ref = b.spread(a.ref("self"))
    digits = common_digits([b.length(axis) for axis in present(ref.dims)], _wanted(a))
    if digits is None:
        raise UnsupportedError(f"a reshape from {old} to {new} splits or merges dimensions")
    for place, sizes in reversed(list(enumerate(digits.split))):
        if len(sizes) > 1:
            ref = _split(b, ref, place, sizes, a)
    return b.merge(ref, digits.runs)


def _wanted(a: Arguments) -> list[Any]:
    """Lists the sizes of the result: numbers that the call names, where PyTorch works out others beside a -1."""
    sizes = [number_or_expression(n) for n in a.fake.shape]
    named: Any = next((a.plain(name) for name in ("size", "shape") if name in a.names), None)
    if not isinstance(named, Sequence) or len(cast("Sequence[Any]", named)) != len(sizes):
        return sizes
    given = cast("Sequence[Any]", named)
    return [own if isinstance(own, int) and own > 0 else size for own, size in zip(given, sizes, strict=True)]


def _split(b: Builder, ref: Ref, place: int, sizes: Sequence[Any], a: Arguments) -> Ref:
    """Splits dimension `place` of `ref`."""
    whole = b.shape(ref)[place]
    outer = whole // prod(sizes[1:]) if all(isinstance(size, int) for size in sizes[1:]) else 0
    if outer < 2:
        raise UnsupportedError(f"a reshape splits a dimension of size {whole} by sizes that are read at each call")
    made = b.split(ref, place, outer, sizes[1:], a.location)
    for axis, size in zip(made.dims[place:], sizes, strict=False):
        if axis is not None:
            b.tell(axis, size)
    return made


@dataclass(slots=True)
class Digits:
    """What two shapes have in common.

    Attributes:
        split: for each dimension of the first, the sizes that it is split into, none 1.
        runs: for each dimension of the second, how many of all of these, in order, it is merged of; 0: it has size 1.
    """

    split: list[list[Any]] = field(default_factory=list[list[Any]])
    runs: list[int] = field(default_factory=list[int])


def common_digits(old: Sequence[Any], new: Sequence[Any]) -> Digits | None:
    """Cuts the sizes `old` into digits that those of `new` are products of; None where there are none, whatever the sizes are.

        [4, 6], [2, 12]      =>    split [[2, 2], [6]], runs [1, 2]

    Args:
        old: none is 1.
        new: with the same product.
    """
    if any(size is None for size in old):
        return None
    found, rest, wanted = Digits(), list(old), list(new)
    left: Any = 1  # what is left of the last size of `rest`, from which digits were taken
    while wanted:
        run, size = 0, wanted.pop()
        while size != 1:
            if left == 1:
                if not rest:
                    return None
                left = rest.pop()
                found.split.insert(0, [])
            cut = _cut([*rest, left], [*wanted, size])
            if cut is None:
                return None
            digit, left, size = cut
            found.split[0].insert(0, digit)
            run += 1
        found.runs.insert(0, run)
    return found if left == 1 and not rest else None


def _cut(old: Sequence[Any], new: Sequence[Any]) -> tuple[Any, Any, Any] | None:
    """Takes a digit from the last sizes of `old` and `new`, which have the same product; returned with what is left of each.

    None where neither divides the other, whatever the sizes are.
    """
    left, size = old[-1], new[-1]
    if left == size:
        return size, 1, 1
    for divisor, whole, ours in ((size, left, True), (left, size, False)):
        quotient = _quotient(whole, divisor)
        shorter, longer = (old, new) if ours else (new, old)
        if quotient is None and len(shorter) <= len(longer) and list(longer[: len(shorter) - 1]) == list(shorter[:-1]):
            # The sizes before are the same: what is left over on the other side is the quotient.
            quotient = prod(longer[len(shorter) - 1 : -1])
        if quotient is not None:
            return (divisor, quotient, 1) if ours else (divisor, 1, quotient)
    return None


def _quotient(size: Any, divisor: Any) -> Any:
    """Divides; None where the quotient is not a whole number whatever the sizes are."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    found = size / divisor
    if getattr(found, "is_integer", None) is not True:
        return None
    return int(found) if found.is_number else found


def kept_dims(old: Sequence[Any], new: Sequence[Any]) -> dict[int, int]:
    """Maps dimensions of a reshape's result to that of its operand with the same index, whatever the sizes are.

    That is as long, and has as many elements in a step, or as many steps before it. Dimensions of size 1 are none.
    """
    places = {key: d for d, *keys in _steps(old) for key in keys}
    found = {d: [places[key] for key in keys if key in places] for d, *keys in _steps(new)}
    return {d: same[0] for d, same in found.items() if same}


def _steps(shape: Sequence[Any]) -> Iterator[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """Yields each dimension longer than 1; its size with the product of the sizes before it, and of those after it."""
    sizes = [expression(n) for n in shape]
    for dim, size in enumerate(sizes):
        if size != 1:
            yield dim, ("after", prod(sizes[:dim]), size), ("before", prod(sizes[dim + 1 :]), size)
