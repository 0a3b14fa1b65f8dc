"""Rankings, printed as calls of `rank.h`: one for each row of an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.block.program import Index, Rank, State
from weft.block.walk import operands, results
from weft.emit.cpp import places
from weft.emit.cpp.body import Accumulator, Body
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.plan import Put
from weft.emit.cpp.text import Writer
from weft.emit.cpp.values import ItemMemory, Lazy
from weft.emit.ranges import Scope
from weft.emit.text import factor, plus, times
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def rank(body: Body, node: Rank, accumulators: Mapping[str, Accumulator]) -> None:
    """Print a ranking, which goes on in place where nothing else reads what it was before."""
    frame, arg = body.frame, body.item(node.arg)
    kept: list[ItemMemory] = []
    stores: list[Put] = []
    for name, before in zip(results(node), node.acc, strict=True):
        if name in accumulators:
            kept.append(accumulators[name].memory)
            continue
        dtype = DType.int64 if name == node.places else node.dtype
        kept.append(frame.array(name, dtype, node.dims, body.scope) if node.dims
                    else places.variable(frame, name, dtype, None))  # fmt: skip
        stores.append(Put(kept[-1], body.values[before]))
    last = arg.dims if node.over is None else (*(a for a in arg.dims if a != node.over), node.over)
    wanted: dict[str, tuple[Axis, ...] | None] = {node.arg: last}
    numbers = body.item(node.numbers)
    if numbers.dims and not (isinstance(numbers, Lazy) and isinstance(numbers.node, Index)):
        wanted[node.numbers] = None
    there = body.in_memory(wanted, stores)
    _call(frame, body.scope, node, there[node.arg], there.get(node.numbers, numbers), kept)
    body.values |= zip(results(node), kept, strict=True)


def in_place(state: State, carried: Mapping[str, tuple[ItemMemory, str]]) -> dict[str, Accumulator]:
    """Find the rankings that go on in the memory of the components: nothing else reads what these were."""
    update, found = state.update, dict[str, Accumulator]()
    for node in update.nodes:
        if isinstance(node, Rank) and set(node.acc) <= carried.keys():
            readers = [n for n in update.nodes if set(node.acc) & {*operands(n)}]
            own = all(update.outputs.index(out) == update.inputs.index(name) if out in update.outputs else False
                      for out, name in zip(results(node), node.acc, strict=True))  # fmt: skip
            if own and readers == [node] and not set(node.acc) & {*update.outputs}:
                found |= {
                    out: Accumulator(carried[name][0], "true")
                    for out, name in zip(results(node), node.acc, strict=True)
                }
    return found


PRINTERS: Mapping[type, Callable[[Body, Any, Mapping[str, Accumulator]], None]] = {Rank: rank}
"""What prints the operators of this module."""


def _call(
    frame: Frame, scope: Scope, node: Rank, arg: ItemMemory, numbers: ItemMemory | Lazy, kept: Sequence[ItemMemory]
) -> None:
    """Print how the ranking in `kept`, values and places, goes on with `arg`, whose elements have these `numbers`.

    Raises:
        UnsupportedError: numbers that are neither indices nor those of another ranking.
    """
    index = numbers.node if isinstance(numbers, Lazy) and isinstance(numbers.node, Index) else None
    if index is None and (isinstance(numbers, Lazy) or node.over != node.rank):
        raise UnsupportedError("a ranking of elements that are not numbered as they lie", where=node.location)
    frame.headers.add("rank.h")
    frame.location([node.location])
    rows = [a for a in node.dims if a != node.rank]
    names = {a: frame.names.make("row") for a in rows}
    order = ", ".join("true" if flag else "false" for flag in (node.order.largest, node.order.nan_first))
    targets = [part for memory in kept for part in (at_row(memory, names), stride(memory, node.rank))]
    source = [at_row(arg, names), stride(arg, node.over)]
    size = "1" if node.over is None else scope[node.over].valid
    if index is not None:
        call, more = "rank", [scope[index.axis].base, size]
    else:
        assert isinstance(numbers, ItemMemory)
        call, more = "rank_both", [at_row(numbers, names), stride(numbers, node.over), size]
    line = f"weft::{call}<{order}, {node.count}>({', '.join((*targets, *source, *more))});"
    in_rows(frame.out, [(names[a], scope[a].valid) for a in rows], line)


def in_rows(out: Writer, rows: Sequence[tuple[str, str]], line: str) -> None:
    """Print `line` in loops over `rows`: the name of each index, and how many there are."""
    if not rows:
        out.line(line)
        return
    (name, count), *rest = rows
    with out.block(f"for (i64 {name} = 0; {name} < {count}; ++{name})"):
        in_rows(out, rest, line)


def at_row(memory: ItemMemory, names: dict[Axis, str]) -> str:
    """Spell a pointer to the first element of a row."""
    if memory.variable:
        return f"&{memory.base}"
    offset = plus(*(times(name, memory.strides[a]) for a, name in names.items() if a in memory.strides))
    return memory.base if offset == "0" else f"{memory.base} + {offset}"


def stride(memory: ItemMemory, axis: Axis | None) -> str:
    """Spell the elements from one index of `axis` to the next; none for an axis that an item lacks."""
    return "0" if axis is None or memory.variable else factor(memory.strides.get(axis, "0"))
