"""What a launch before a guarded loop says of each block of its mask."""

from __future__ import annotations

from collections.abc import Callable

from weft.block.guard import Guard, is_number
from weft.block.program import Collapse, Pointwise
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit

_IDLE, _PARTIAL, _FULL = 0, 1, 2


def answers(guard: Guard, dims: tuple[Axis, ...], make: Callable[[str], str]) -> tuple[Pointwise | Collapse, ...]:
    """Return operators of which the last answers what `guard` asks of an item of `dims`: whether any element is busy.

    Where full blocks are asked for too, it is a number: 0 of an idle block, 2 of a full one, 1 of any other.
    """
    busy = _any_is_not(guard.idle, guard.value, dims, make)
    some = Apply("gt", (Arg(0), Lit(0.0)))
    if guard.full is None:
        return (*busy, Pointwise(make("busy"), some, (busy[-1].name,), (), DType.bool))
    idle = _any_is_not(guard.full, guard.value, dims, make)
    whole = Apply("where", (Apply("gt", (Arg(1), Lit(0.0))), Lit(_PARTIAL), Lit(_FULL)))
    args = (busy[-1].name, idle[-1].name)
    said = Pointwise(make("busy"), Apply("where", (some, whole, Lit(_IDLE))), args, (), DType.int8)
    return (*busy, *idle, said)


def _any_is_not(
    number: float | bool, value: str, dims: tuple[Axis, ...], make: Callable[[str], str]
) -> list[Pointwise | Collapse]:
    """Return operators of which the last is above 0 if an element of `value`, an item of `dims`, is not `number`."""
    chosen = Apply("where", (is_number(number), Lit(0.0), Lit(1.0)))
    found: list[Pointwise | Collapse] = [Pointwise(make("busy"), chosen, (value,), dims, DType.float32)]
    for axis in reversed(dims):
        found.append(Collapse(make("busy"), Monoid.max, found[-1].name, axis))
    return found


def told(guard: Guard, name: str) -> Guard:
    """Return the guard that leaves out what `guard` does, of a loop whose iteration is told the answer `name`."""
    if guard.full is None:
        return Guard(name, idle=False)
    return Guard(name, _IDLE, _FULL, guard.blocks)
