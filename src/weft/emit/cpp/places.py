"""Where items lie while a kernel runs: scratch, variables, and how their elements are spelled in loops."""

from __future__ import annotations

from collections.abc import Mapping

from weft.emit.cpp.frame import Frame
from weft.emit.cpp.order import arranged
from weft.emit.cpp.plan import Put
from weft.emit.cpp.scalar import CTYPE, HELD, Text, number, stored
from weft.emit.cpp.values import ItemMemory, Lazy
from weft.emit.kinds import kind_of
from weft.emit.ranges import Scope
from weft.emit.text import plus, times
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

_INDICES = ("i", "j")


def in_loops(scope: Scope, axes: tuple[Axis, ...], dense: Axis | None = None) -> tuple[Axis, ...]:
    """Sort the axes of an item in the order of the loops over them, outermost first; `dense`: as `arranged` is told."""
    return arranged(axes, lambda axis: scope[axis].most, dense)


def in_place(frame: Frame, scope: Scope, lazy: Lazy, dims: tuple[Axis, ...]) -> Put:
    """Make the store that puts `lazy` in memory of its element type: in scratch, its last axis innermost, or a variable.

    Where it is to be part of a list that lies the same way, it is put there at once.
    """
    home = lazy.home
    if home is not None and home.dtype is lazy.dtype and dims and home.strides[dims[-1]] == "1":
        return Put(home, lazy, (lazy,))
    return Put(fresh(frame, lazy.node.name, lazy.dtype, dims, scope), lazy, (lazy,))


def fill(frame: Frame, scope: Scope, memory: ItemMemory, value: float) -> None:
    """Print loops that set every valid element of `memory` to `value`."""
    depth = len(memory.dims)
    names = indices(depth)
    index = dict(zip(memory.dims, names, strict=True))
    for place, axis in enumerate(memory.dims):
        if place == depth - 1:
            frame.out.line("#pragma omp simd")
        name = index[axis]
        frame.out.line(f"for (i64 {name} = 0; {name} < {scope[axis].valid}; ++{name})")
        frame.out.depth += 1
    frame.out.line(
        stored(
            spelled_at(memory, index), memory.dtype, Text(number(value, kind_of(memory.dtype)), kind_of(memory.dtype))
        )
    )
    frame.out.depth -= depth


def fresh(frame: Frame, wish: str, dtype: DType, dims: tuple[Axis, ...], scope: Scope) -> ItemMemory:
    """Reserve scratch for an item; for one without axes, a variable, declared here."""
    if dims:
        return frame.array(wish, dtype, dims, scope)
    return variable(frame, wish, dtype, None)


def variable(frame: Frame, wish: str, dtype: DType, value: float | None) -> ItemMemory:
    """Declare a variable for an item without axes."""
    name, kind = frame.names.make(wish), kind_of(dtype)
    start = "" if value is None else f" = {number(value, kind)}"
    frame.out.line(f"{CTYPE[kind]} {name}{start};")
    return ItemMemory(name, HELD[kind], {}, (), variable=True, owned=True)


def keep(frame: Frame, scope: Scope, lazy: Lazy) -> Put:
    """Make the store that puts `lazy` where later nests read it, in the type it is computed in."""
    dims = in_loops(scope, lazy.dims)
    return Put(fresh(frame, lazy.node.name, lazy.dtype.accumulator, dims, scope), lazy, (lazy,))


def indices(depth: int) -> list[str]:
    """Name element numbers: i, j for a block."""
    outer = [f"i{level}" for level in range(depth - len(_INDICES))]
    return [*outer, *_INDICES[max(0, len(_INDICES) - depth) :]]


def spelled_at(memory: ItemMemory, index: Mapping[Axis, str], unit: Mapping[str, str] | None = None) -> str:
    """Spell the element of an item; `unit` gives other names to some strides."""
    if memory.variable:
        return memory.base
    strides = unit or {}
    offset = plus(*(times(index[a], strides.get(memory.strides[a], memory.strides[a])) for a in memory.dims))
    return f"{memory.base}[{offset}]"
