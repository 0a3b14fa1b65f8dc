"""Stores of a loop that only move elements: each run of it copies them as they lie, from one place on.

    for j < n: out[j] = round(c ? widen(x[j]) : widen(y[j]))     ==>     from = c ? x : y;  for j < n: out[j] = from[j]

Nothing is widened, rounded or chosen for each element. What is only moved is derived from what computes it, whatever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.emit.cpp.plan import Work, users
from weft.emit.cpp.values import Gather, ItemMemory, Lazy, Value, resolved
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Scalar


@dataclass(frozen=True, eq=False, slots=True)
class EitherOf:
    """Where elements come from: from the one or the other, as `condition`, a part of what `lazy` computes, comes out."""

    lazy: Lazy
    condition: Scalar
    first: Whence
    second: Whence


Whence: TypeAlias = ItemMemory | Lazy | EitherOf
"""Where a loop's elements come from: an item in memory, a look-up, or one of two such."""

Steady: TypeAlias = Callable[[Scalar, Lazy], bool]
"""Tells whether a condition comes out alike all along a loop."""


def source(value: Value, axis: Axis, dtype: DType, steady: Steady) -> Whence | None:
    """Finds where elements of `dtype` come from in a loop over `axis` that only moves them; None where it makes them."""
    value = resolved(value)
    match value:
        case ItemMemory():
            return value if value.dtype is dtype and axis in value.dims and not value.variable else None
        case Lazy(node=Gather(memory=memory)):
            return value if memory.dtype is dtype else None
        case Lazy() if value.expr is not None:
            return _source(value.expr, value, axis, dtype, steady)
        case _:
            return None


def _source(expr: Scalar, lazy: Lazy, axis: Axis, dtype: DType, steady: Steady) -> Whence | None:
    match expr:
        case Arg(index):
            return source(lazy.args[index], axis, dtype, steady)
        case Convert(to, inner) if to is dtype:
            return _source(inner, lazy, axis, dtype, steady)
        case Apply("where", (condition, left, right)) if steady(condition, lazy):
            first = _source(left, lazy, axis, dtype, steady)
            second = None if first is None else _source(right, lazy, axis, dtype, steady)
            return None if first is None or second is None else EitherOf(lazy, condition, first, second)
        case _:
            return None


def rest(works: Sequence[Work], moved: Sequence[Work]) -> tuple[list[Work], list[Work]]:
    """Parts the works of a loop: what is left to do beside the stores `moved`, and those of them whose value it does not need."""
    left = [w for w in works if w not in moved]
    while True:
        needed = users(left)
        kept = [w for w in left if w.lazy is None or w.lazy in needed or not _is_copied(w.lazy)]
        if len(kept) == len(left):
            break
        left = kept
    made = {w.lazy for w in left if w.lazy is not None}
    alone = [w for w in moved if made.isdisjoint(v for v in w.reads if isinstance(v, Lazy))]
    if len(alone) < len(moved):
        return rest(works, alone)
    return left, alone


def _is_copied(lazy: Lazy) -> bool:
    """Tell whether nothing is noted or added up where `lazy` is computed."""
    return lazy.expr is not None or isinstance(lazy.node, Gather)
