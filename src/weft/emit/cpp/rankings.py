"""Rankings, printed as calls of `rank.h`: one for each row of an item."""

from __future__ import annotations

from collections.abc import Sequence

from weft.block.program import Index, Rank
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.text import Writer
from weft.emit.cpp.values import Lazy, Memory
from weft.emit.ranges import Scope
from weft.emit.text import factor, plus, times
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis


def rank(frame: Frame, scope: Scope, node: Rank, arg: Memory, numbers: Memory | Lazy, kept: Sequence[Memory]) -> None:
    """Print how the ranking in `kept`, values and places, goes on with `arg`, whose elements have these `numbers`.

    Raises:
        UnsupportedError: numbers that are neither indices nor those of another ranking.
    """
    index = numbers.node if isinstance(numbers, Lazy) and isinstance(numbers.node, Index) else None
    if index is None and (isinstance(numbers, Lazy) or node.over != node.rank):
        raise UnsupportedError("a ranking of elements that are not numbered as they lie", where=node.location)
    frame.has_rankings = True
    frame.location([node.location])
    rows = [a for a in node.dims if a != node.rank]
    names = {a: frame.names.make("row") for a in rows}
    order = ", ".join("true" if flag else "false" for flag in (node.order.largest, node.order.nan_first))
    targets = [part for memory in kept for part in (_at(memory, names), _stride(memory, node.rank))]
    source = [_at(arg, names), _stride(arg, node.over)]
    size = "1" if node.over is None else scope[node.over].valid
    if index is not None:
        call, more = "rank", [scope[index.axis].base, size]
    else:
        assert isinstance(numbers, Memory)
        call, more = "rank_both", [_at(numbers, names), _stride(numbers, node.over), size]
    line = f"weft::{call}<{order}, {node.count}>({', '.join((*targets, *source, *more))});"
    _in_rows(frame.out, [(names[a], scope[a].valid) for a in rows], line)


def _in_rows(out: Writer, rows: Sequence[tuple[str, str]], line: str) -> None:
    if not rows:
        out.line(line)
        return
    (name, count), *rest = rows
    with out.block(f"for (i64 {name} = 0; {name} < {count}; ++{name})"):
        _in_rows(out, rest, line)


def _at(memory: Memory, names: dict[Axis, str]) -> str:
    """Spell a pointer to the first element of a row."""
    if memory.variable:
        return f"&{memory.base}"
    offset = plus(*(times(name, memory.strides[a]) for a, name in names.items() if a in memory.strides))
    return memory.base if offset == "0" else f"{memory.base} + {offset}"


def _stride(memory: Memory, axis: Axis | None) -> str:
    return "0" if axis is None or memory.variable else factor(memory.strides[axis])
