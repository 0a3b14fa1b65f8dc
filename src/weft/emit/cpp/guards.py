"""Whether an iteration of a guarded loop has anything to do, and in which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.block.guard import Guard
from weft.block.program import BlockNode, Map
from weft.block.walk import operands
from weft.emit.cpp.body import Body
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.places import spelled_at
from weft.emit.cpp.scalar import number
from weft.emit.cpp.values import Gather, ItemMemory, Lazy, Panel, Value
from weft.emit.kinds import kind_of
from weft.emit.ranges import BlockText
from weft.emit.text import plus, times
from weft.tensor.axes import Axis


def done(body: Body, guard: Guard) -> str:
    """Print what finds out whether `guard` leaves an iteration out, and return the condition that it does not.

    What it asks is read where it lies, and put in memory first where it is computed.
    """
    item = body.in_memory({guard.value: None})[guard.value]
    found = list[str]()
    for each, alike in guard.left_out:
        name = _all_are(body, item, number(each, kind_of(item.dtype)), f"{guard.value}_is", found)
        found.append(f"!{name}" if alike else name)
    return " && ".join(found)


def _all_are(body: Body, item: ItemMemory, value: str, stem: str, before: Sequence[str]) -> str:
    """Print whether all elements of `item` are `value`, which is asked where the conditions `before` hold; named `stem`."""
    frame = body.frame
    found = frame.names.make(stem)
    unknown = "".join(f"{each} && " for each in before)
    if item.variable or not item.dims:
        asked = f"weft::all_are({value}, &{spelled_at(item, {})}, 0, 0, 1, 1)"
        frame.out.line(f"const bool {found} = {unknown}{asked};")
        return found
    *around, last = item.dims
    row = around.pop() if around else None
    index = {axis: frame.names.make("i") for axis in around}
    if index:
        frame.out.line(f"bool {found} = {unknown}true;")
    for axis, name in index.items():
        frame.out.line(f"for (i64 {name} = 0; {found} && {name} < {body.scope[axis].valid}; ++{name})")
        frame.out.depth += 1
    at = spelled_at(item, index | {axis: "0" for axis in (row, last) if axis is not None})
    strides = ("0" if row is None else item.strides[row], item.strides[last])
    counts = ("1" if row is None else body.scope[row].valid, body.scope[last].valid)
    asked = f"weft::all_are({value}, &{at}, {', '.join((*strides, *counts))})"
    frame.out.line(f"{found} = {asked};" if index else f"const bool {found} = {unknown}{asked};")
    frame.out.depth -= len(index)
    return found


def of_busy_rows(
    body: Body, node: Map, nodes: Sequence[BlockNode], carried: Mapping[str, tuple[ItemMemory, str]]
) -> tuple[Body, Mapping[str, tuple[ItemMemory, str]]]:
    """Print from which row of its block on, and up to which, an iteration of the guarded loop `node` has something to do.

    Args:
        body: one iteration, which is done.
        nodes: what is left of it.
        carried: as `weft.emit.cpp.loops.iteration` takes it.

    Returns:
        The body and the state of these rows alone; all as it was where a matrix unit's panel has the rows, since it has no parts.
    """
    guard, state, frame = node.guard, node.state, body.frame
    assert guard is not None
    assert guard.rows is not None
    assert state is not None
    axis = guard.rows
    read = {*state.feeds, *(name for each in nodes for name in operands(each))}
    values = {name: value for name, value in body.values.items() if name in read}
    if any(_has_panel(value, axis) for value in values.values()):
        return body, carried
    item, block = body.in_memory({guard.value: None})[guard.value], body.scope[axis]
    asked = f"{number(guard.idle, kind_of(item.dtype))}, &{spelled_at(item, {axis: '0'})}, {item.strides[axis]}"
    first = frame.hold(f"weft::first_other({asked}, {block.valid})", f"{axis.name}_first")
    count = frame.hold(f"weft::after_others({asked}, {block.valid}) - {first}", f"{axis.name}_count")
    base = frame.hold(plus(block.base, first), f"{axis.name}_from")
    rows = _Rows(frame, axis, first)
    moved = {name: (rows.memory(memory), add) for name, (memory, add) in carried.items()}
    scope = {**body.scope, axis: BlockText(base, count, block.most)}
    return replace(body, scope=scope, values={name: rows.value(value) for name, value in values.items()}), moved


def _has_panel(value: Value, axis: Axis) -> bool:
    match value:
        case Panel(k=k, n=n):
            return axis in (k, n)
        case Lazy(args=args):
            return any(_has_panel(each, axis) for each in args)
        case _:
            return False


@dataclass(eq=False)
class _Rows:
    """Values as they are from row `first` of their block of `axis` on; what each is there is kept by what it is."""

    frame: Frame
    axis: Axis
    first: str
    _memories: dict[ItemMemory, ItemMemory] = field(default_factory=dict[ItemMemory, ItemMemory])
    _lazies: dict[Lazy, Lazy] = field(default_factory=dict[Lazy, Lazy])

    def value(self, value: Value) -> Value:
        match value:
            case ItemMemory():
                return self.memory(value)
            case Lazy():
                return self._lazy(value)
            case Panel():
                return value

    def memory(self, memory: ItemMemory) -> ItemMemory:
        """Print the pointer to the first of the rows."""
        if self.axis not in memory.dims:
            return memory
        if memory not in self._memories:
            base = self.frame.names.make(memory.base)
            offset = times(self.first, memory.strides[self.axis])
            self.frame.out.line(f"auto* const {base} = {plus(memory.base, offset)};")
            self._memories[memory] = replace(memory, base=base)
        return self._memories[memory]

    def _lazy(self, lazy: Lazy) -> Lazy:
        if lazy not in self._lazies:
            node = lazy.node
            if isinstance(node, Gather):
                node = replace(node, memory=self.memory(node.memory))
            there = None if lazy.memory is None else self.memory(lazy.memory)
            args = tuple(self.value(each) for each in lazy.args)
            self._lazies[lazy] = Lazy(node, args, lazy.dims, lazy.dtype, there)
        return self._lazies[lazy]
