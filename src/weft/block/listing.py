"""Block programs as text, in the style of the listings of Blockbuster (section 5).

A list is stored to and loaded from an intermediate I1, I2 ..., indexed by all loops around it;
items are t1, t2 ... in the order of the text; a sum starts at zero; KK is the number of elements of
which K counts blocks. Expressions align items as numpy does: `t2[:,newaxis]` is a vector with a
number for each row, `t2.T` a block the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, assert_never

from weft.block.accumulation import Accumulation, steps, uses
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Bounded,
    Broadcast,
    Buffer,
    Collapse,
    Dot,
    Extent,
    Feed,
    Fill,
    Final,
    Graph,
    Grouped,
    Index,
    Iterate,
    Join,
    Literal,
    Load,
    Map,
    Once,
    Pointwise,
    Prefix,
    Rank,
    Stacked,
    Stage,
    State,
    Store,
)
from weft.block.ranges import All, Before, First, Part, Remainder, Segment, Spans, Within
from weft.block.shown import ShownBuffer, ShownGraph, ShownItem, ShownList, ShownValue
from weft.block.table1 import operator
from weft.block.text import (
    between,
    expression,
    extent_names,
    input_names,
    left_out,
    number,
    space_names,
    variable,
)
from weft.block.walk import asked, maps, needed, operands, results, spaces, sub_blocks
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, exactly_equal

_Printed: TypeAlias = Pointwise | Collapse | Dot | Index | Bounded | Fill | Stage


def listing(program: BlockProgram) -> str:
    """Prints `program` as a listing.

    Temporaries, intermediates and loop variables are named in the order of the text, which so
    depends on the structure of the program and on the names of its inputs and spaces alone. It does
    not check the program.
    """
    return "\n".join(_Printer(program).lines)


class _Printer:
    """The printing of one program; `lines` is the result."""

    def __init__(self, program: BlockProgram) -> None:
        self.lines: list[str] = []
        self._temporaries = self._intermediates = 0
        self._variables: dict[Axis, str] = {}
        self._spaces = space_names(spaces(program))
        self._extents = extent_names(self._spaces)
        self._whole: dict[Axis, Axis] = {}  # of a part of a list, to the axis of the whole
        self._inside = {m.axis: m.range.through for m in maps(program.graph) if m.range.through is not None}
        top = ShownGraph(())
        names = input_names(name for name, _ in program.inputs)
        for (name, kind), shown in zip(program.inputs, names, strict=True):
            view = ShownList(ShownBuffer(kind.lists, shown), {}, kind.lists, kind.dims)
            top.values[name] = view if kind.lists else ShownItem(kind.dims, source=view)
        outputs = list(zip(program.graph.outputs, program.output_axes, strict=True))
        for i, (name, axes) in enumerate(outputs, 1):
            buffer = ShownBuffer(axes, f"O{i}" if len(outputs) > 1 else "O")
            top.stores.setdefault(name, []).append(buffer)
        self._joins(program.graph, top)
        for node in program.graph.nodes:
            self._node(node, top)
        for name in (*program.graph.inputs, *(n.name for n in program.graph.nodes if isinstance(n, Buffer))):
            self._store(name, top)

    # Lines.

    def _line(self, frame: ShownGraph, text: str) -> None:
        self.lines.append("  " * len(frame.around) + text)

    def _use(self, item: ShownItem, frame: ShownGraph) -> str:
        """Returns the text of `item`, and prints its load before its first use."""
        if item.text is None:
            self._temporaries += 1
            item.text = f"t{self._temporaries}"
            if item.source is not None:
                place = self._place(item.source.buffer, item.source.bound)
                self._line(frame, f"{item.text} = load({place})")
        return item.text

    def _place(self, buffer: ShownBuffer, bound: Mapping[Axis, str]) -> str:
        """Names one item of `buffer`: at `bound`, else at the current iterations."""
        if buffer.name is None:
            self._intermediates += 1
            buffer.name = f"I{self._intermediates}"
        indices = [bound.get(a) or self._variables.get(a, ":") for a in buffer.slots]
        return f"{buffer.name}[{','.join(indices)}]" if indices else buffer.name

    def _store(self, name: str, frame: ShownGraph) -> None:
        for buffer in frame.stores.get(name, ()):
            match frame.values[name]:
                case ShownItem() as item:
                    text = self._use(item, frame)
                case ShownList(source, bound):
                    text = self._place(source, bound)
            self._line(frame, f"store({text},{self._place(buffer, {})})")

    def _store_inputs(self, graph: Graph, frame: ShownGraph) -> None:
        """Prints the stores of what `graph` hands on unchanged."""
        for name in graph.inputs:
            self._store(name, frame)

    def _joins(self, graph: Graph, frame: ShownGraph) -> None:
        """Stores lists of two parts where the whole is."""
        for node in graph.nodes:
            if isinstance(node, Join):
                self._whole.update(node.axes)
                rest = next(n for n in graph.nodes if node.rest in results(n))
                assert isinstance(rest, Map)
                around = {n: v.lists for n, v in frame.values.items() if isinstance(v, ShownList)}
                inner = next(o.inner for o in rest.outputs if o.outer == node.rest)
                buffers = frame.stores.get(node.name) or [self._buffer(frame, _stacked_lists(rest, inner, around))]
                frame.stores[node.first] = frame.stores[node.rest] = buffers

    def _buffer(self, frame: ShownGraph, lists: tuple[Axis, ...]) -> ShownBuffer:
        """Returns memory for a list over `lists`, for each iteration of the loops around."""
        slots = (*(m.axis for m in frame.around), *lists)
        # Where a loop runs within the block of another, its index says all.
        whole = {self._inside.get(a) for a in slots}
        return ShownBuffer(tuple(a for a in slots if a not in whole))

    # Functional operators.

    def _node(self, node: BlockNode, frame: ShownGraph) -> None:
        match node:
            case Map():
                self._map(node, frame)
                return
            case Join():
                frame.values[node.name] = frame.values[node.rest]
                return
            case Literal():
                frame.values[node.name] = ShownItem((), number(node.value))
            case Extent():
                size = self._extents[node.space]
                text = size if node.axis is None else f"size({self._variables.get(node.axis, '?')})"
                frame.values[node.name] = ShownItem((), text)
            case Rank() | Prefix():
                _ = self._ranking(node, frame) if isinstance(node, Rank) else self._prefix(node, frame)
                for name in results(node)[1:]:
                    self._store(name, frame)
            case Buffer(name, axes, dims):
                # An output's memory is called as the output is; other outputs that are the same list are copied at the end.
                kept = frame.stores.get(name) or [ShownBuffer(axes)]
                frame.values[name] = ShownList(kept[0], {}, axes, dims)
                frame.stores[name] = kept[1:]
                return
            case Load():
                frame.values[node.name] = ShownItem(node.dims, source=self._part(node, frame))
            case Store():
                part = self._part(node, frame)
                text = self._use(frame.item(node.value), frame)
                self._line(frame, f"store({text},{self._place(part.buffer, part.bound)})")
            case _:
                text = self._text(node, frame)
                item = ShownItem(_result_dims(node, frame))
                self._line(frame, f"{self._use(item, frame)} = {text}")
                frame.values[node.name] = item
        self._store(node.name, frame)

    def _part(self, node: Load | Store, frame: ShownGraph) -> ShownList:
        """Returns the item of a memory that `node` speaks of."""
        memory = frame.values[node.memory]
        assert isinstance(memory, ShownList)
        indices = [self._use(frame.item(name), frame) for name in node.indices] if isinstance(node, Load) else []
        bound = {
            axis: subscript.spelled(lambda a: self._variables.get(a, "?"))
            if subscript.index is None
            else indices[subscript.index]
            for axis, subscript in zip(memory.lists, node.at, strict=True)
        }
        return ShownList(memory.buffer, {**memory.bound, **bound}, (), memory.dims)

    def _ranking(self, node: Rank, frame: ShownGraph) -> None:
        """Prints `t1,t2 = largest8(t1,t2,t3,index(n))`: a ranking goes on under the names that it has."""
        texts = [self._use(frame.item(n), frame) for n in (*node.acc, node.arg, node.numbers)]
        name = f"{str(node.order).replace(', ', '_').replace(' ', '_').lower()}{node.count}"
        self._line(frame, f"{texts[0]},{texts[1]} = {name}({','.join(texts)})")
        for result, before in zip(results(node), node.acc, strict=True):
            frame.values[result] = ShownItem(node.dims, texts[node.acc.index(before)])

    def _prefix(self, node: Prefix, frame: ShownGraph) -> None:
        """Prints `t2,t3 = sums(s1,t1)`: the elements of t1, each added to s1 and to all before it, and the last of these."""
        texts = [self._use(frame.item(name), frame) for name in (*node.accs, *node.args)]
        made = [ShownItem(node.dims) for _ in node.names] + [ShownItem(node.rows) for _ in node.totals]
        names = ",".join(self._use(item, frame) for item in made)
        what = "merged" if node.merge.monoid is None else f"{node.merge.monoid.name}s"
        self._line(frame, f"{names} = {what}({','.join(texts)})")
        frame.values |= zip(results(node), made, strict=True)

    def _text(self, node: _Printed, frame: ShownGraph) -> str:
        """Returns the right-hand side of `node`, and prints the loads of what it reads."""
        match node:
            case Pointwise() | Collapse():
                return self._call(node, frame)
            case Dot():
                call = self._call(node, frame)
                return call if node.acc is None else f"{self._use(frame.item(node.acc), frame)}+{call}"
            case Index():
                return f"index({self._variables.get(node.axis, '?')})"
            case Bounded():
                return f"bounded({self._use(frame.item(node.arg), frame)},{self._extents[node.space]})"
            case Fill():
                return f"fill({self._use(frame.item(node.arg), frame)}, {node.value!r})"
            case Stage():
                text = self._turned(frame.item(node.arg), node.dims, frame)
                return f"stage({text}, {node.layout.value})"
            case _:
                assert_never(node)

    def _call(self, node: Pointwise | Collapse | Dot, frame: ShownGraph) -> str:
        found = operator(node, {n: frame.item(n).dims for n in operands(node)})
        if found is not None:
            dims = node.dims if isinstance(node, Pointwise) else ()
            texts = [self._turned(frame.item(n), dims, frame) for n in found.operands]
            return f"{found.name}({','.join(texts)})"
        assert isinstance(node, Pointwise), "every collapse and every dot has a name"
        texts = [self._aligned(frame.item(n), node.dims, frame) for n in node.args]
        return expression(node.expr, texts)

    def _turned(self, item: ShownItem, dims: tuple[Axis, ...], frame: ShownGraph) -> str:
        """Returns the text of a block in the order of `dims`; of any other item as it is."""
        text = self._use(item, frame)
        return f"{text}.T" if len(dims) == 2 and item.dims == dims[::-1] else text

    def _aligned(self, item: ShownItem, dims: tuple[Axis, ...], frame: ShownGraph) -> str:
        """Returns the text of an item in an expression over `dims`."""
        if len(dims) == 2 and item.dims == dims[:1]:
            return f"{self._use(item, frame)}[:,newaxis]"
        return self._turned(item, dims, frame)

    # Loops.

    def _map(self, node: Map, frame: ShownGraph) -> None:
        used = uses(node)
        for feed in node.inputs:
            value = frame.values[feed.outer]
            if isinstance(feed.access, Broadcast) and used[feed.inner] and isinstance(value, ShownItem):
                self._use(value, frame)
        taken = {self._variables[m.axis] for m in frame.around}
        index = variable(self._spaces[node.axis.space], taken)
        fed = {f.inner: _fed(f, frame.values[f.outer], node, index) for f in node.inputs}
        inner = ShownGraph((*frame.around, node), fed)
        stacked = self._stacked(node, frame, inner)
        state = [] if node.state is None else self._start(node.state, inner, frame)
        if node.state is not None:
            items = dict(zip((c.name for c in node.state.components), state, strict=True))
            inner.values |= {name: items[component] for component, name in node.state.shown}
        word = "forall" if node.state is None else "for"
        self._line(frame, f"{word} {index} in {self._range(node)}:{_comment(node)}")
        self._variables[node.axis] = self._variables[self._whole.get(node.axis, node.axis)] = index
        printed = len(self.lines)
        self._body(node, state, inner)
        if len(self.lines) == printed:
            self._line(inner, "pass")
        for axis in {node.axis, self._whole.get(node.axis, node.axis)}:
            del self._variables[axis]
        for out, (lists, buffer) in stacked.items():
            frame.values[out.outer] = ShownList(buffer, {}, lists, inner.values[out.inner].dims)
        for out in node.outputs:
            if isinstance(out, Once) and out not in stacked:
                frame.values[out.outer] = inner.values[out.inner]
        if node.state is not None:
            self._finish(node, node.state, state, frame)

    def _range(self, node: Map) -> str:
        word, text = "range", ""
        match node.range:
            case All():
                pass
            case First():
                word = "first"
            case Remainder():
                word = "rest"
            case Within(axis) | Before(axis):
                text = f" {type(node.range).__name__.lower()} {self._variables.get(axis, '?')}"
            case Spans(spans):
                text = " or".join(between(span, self._variables, self._spaces) for span in spans)
            case Segment(axis, count):
                text = f" segment {self._variables.get(axis, '?')} of {count}"
            case _:
                assert_never(node.range)
        text = text if node.range.part is Part.all else f"{text}, {node.range.part.value}"
        return f"{word}({self._spaces[node.axis.space]}{text})"

    def _stacked(
        self, node: Map, frame: ShownGraph, inner: ShownGraph
    ) -> dict[Stacked | Once, tuple[tuple[Axis, ...], ShownBuffer]]:
        """Returns the list axes and the buffer of each list that `node` hands out, and notes them in `inner.stores`."""
        found: dict[Stacked | Once, tuple[tuple[Axis, ...], ShownBuffer]] = {}
        around = {n: v.lists for n, v in frame.values.items() if isinstance(v, ShownList)}
        for out in node.outputs:
            if not isinstance(out, Final):
                lists = (_stacked_lists if isinstance(out, Stacked) else _lists_inside)(node, out.inner, around)
                buffers = frame.stores.get(out.outer) or ([self._buffer(frame, lists)] if lists else [])
                inner.stores.setdefault(out.inner, []).extend(buffers)
                if lists:
                    found[out] = (lists, buffers[0])
        return found

    # State.

    def _start(self, state: State, inner: ShownGraph, frame: ShownGraph) -> list[ShownItem]:
        """Returns the components as items, and prints what each starts from if that is not zero."""
        items = [ShownItem(c.dims) for c in state.components]
        for i, (item, component) in enumerate(zip(items, state.components, strict=True)):
            if state.resume is not None:
                text = self._use(inner.item(state.resume[i]), frame)
                self._line(frame, f"{self._use(item, frame)} = {text}")
            elif not exactly_equal(component.init, 0.0):
                self._line(frame, f"{self._use(item, frame)} = {number(component.init)}")
        return items

    def _body(self, node: Map, components: list[ShownItem], frame: ShownGraph) -> None:
        """Prints the body's statements, each accumulation right after what it accumulates."""
        self._joins(node.body, frame)
        simple = list(steps(node))
        inlined = {s.inline.name for s in simple if s.inline is not None}
        first, _ = asked(node)
        if not first:
            self._guard(node, frame)
        for i, child in enumerate(node.body.nodes):
            if isinstance(child, Map) or child.name not in inlined:
                self._node(child, frame)
            if first and child is first[-1]:
                self._guard(node, frame)
            for step in simple:
                if step.after == i and node.state is not None:
                    self._accumulate(node.state, step, components, frame)
        for step in simple:
            if step.after is None and node.state is not None:
                self._accumulate(node.state, step, components, frame)
        if node.state is not None:
            self._update(node.state, {s.component for s in simple}, components, frame)
        self._store_inputs(node.body, frame)

    def _guard(self, node: Map, frame: ShownGraph) -> None:
        if node.guard is not None:
            self._line(frame, f"skip where {left_out(node.guard, self._use(frame.item(node.guard.value), frame))}")

    def _accumulate(self, state: State, step: Accumulation, components: list[ShownItem], frame: ShownGraph) -> None:
        inner = _update_frame(state, components, frame)
        component = components[step.component]
        op = "add"
        if isinstance(step.node, Dot):
            text = self._call(step.node, inner)
        elif step.inline is not None:
            text = self._text(step.inline, frame)
        else:
            text = self._aligned(inner.item(step.fed[0]), component.dims, inner)
        if isinstance(step.node, Pointwise) and isinstance(step.node.expr, Apply):
            op = step.node.expr.op
        name = self._use(component, frame)
        sign = {"add": "+=", "mul": "*="}.get(op)
        self._line(frame, f"{name} {sign} {text}" if sign else f"{name} = {op}({name},{text})")

    def _update(self, state: State, done: set[int], components: list[ShownItem], frame: ShownGraph) -> None:
        """Prints the statements of the components that move together.

        A component is overwritten at once where nothing reads its old value later, else at the end.
        """
        inner = _update_frame(state, components, frame)
        left = {i: out for i, out in enumerate(state.update.outputs) if i not in done}
        nodes = needed(state.update.nodes, left.values())
        late = {i: out for i, out in left.items() if out in state.update.inputs}
        for j, child in enumerate(nodes):
            later = {n for rest in nodes[j + 1 :] for n in operands(rest)} | set(left.values())
            mine = [i for i, out in left.items() if out in results(child)]
            if (
                len(mine) != 1
                or state.components[mine[0]].name in later
                or not isinstance(child, Pointwise | Collapse | Dot | Index | Bounded | Fill | Stage)
            ):
                self._node(child, inner)
                late |= {i: left[i] for i in mine}
            else:
                text = self._text(child, inner)
                self._line(frame, f"{self._use(components[mine[0]], frame)} = {text}")
                inner.values[child.name] = components[mine[0]]
        late = {
            i: late[i] for i in sorted(late) if self._use(inner.item(late[i]), frame) != self._use(components[i], frame)
        }
        if late:
            texts = [self._use(inner.item(out), frame) for out in late.values()]
            names = [self._use(components[i], frame) for i in late]
            self._line(frame, f"{', '.join(names)} = {', '.join(texts)}")

    def _finish(self, node: Map, state: State, components: list[ShownItem], frame: ShownGraph) -> None:
        """Prints the statements after the loop, for the projections that the map hands out."""
        finals = [o for o in node.outputs if isinstance(o, Final)]
        inner = ShownGraph(frame.around)
        inner.values.update(zip(state.finish.inputs, components, strict=True))
        for child in needed(state.finish.nodes, [o.inner for o in finals]):
            self._node(child, inner)
        for out in finals:
            frame.values[out.outer] = inner.values[out.inner]
            self._store(out.outer, frame)


def _update_frame(state: State, components: list[ShownItem], frame: ShownGraph) -> ShownGraph:
    # What is printed in place of its name has no value.
    values = [*components, *(frame.values.get(f, ShownItem(())) for f in state.feeds)]
    return ShownGraph(frame.around, dict(zip(state.update.inputs, values, strict=True)))


def _result_dims(node: _Printed, frame: ShownGraph) -> tuple[Axis, ...]:
    match node:
        case Pointwise() | Dot() | Stage() | Bounded() | Index():
            return node.dims
        case Collapse():
            return tuple(a for a in frame.item(node.arg).dims if a != node.over)
        case Fill():
            return frame.item(node.arg).dims
        case _:
            assert_never(node)


def _fed(feed: Feed, value: ShownValue, node: Map, index: str) -> ShownValue:
    """Returns what an iteration of `node`, whose variable is `index`, sees of `value`."""
    match feed.access:
        case Broadcast():
            return value
        case Iterate(over):
            pass
        case Grouped(over, group):
            index = f"{index}//{group}"
        case _:
            assert_never(feed.access)
    if isinstance(value, ShownItem):
        return value  # malformed: there is nothing to iterate
    lists = tuple(a for a in value.lists if a != over)
    dims = tuple(node.axis if a == over else a for a in value.dims)
    view = ShownList(value.buffer, {**value.bound, over: index}, lists, dims)
    return view if lists else ShownItem(dims, source=view)


def _stacked_lists(node: Map, value: str, outer: Mapping[str, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Returns the list axes of what `node` stacks from its body's `value`; `outer` has those around it."""
    lists = _lists_inside(node, value, outer)
    return lists if sub_blocks(node) & set(lists) else (node.axis, *lists)


def _lists_inside(node: Map, value: str, outer: Mapping[str, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Returns the list axes of the body's `value`."""
    inner: dict[str, tuple[Axis, ...]] = {}
    for feed in node.inputs:
        gone = None if isinstance(feed.access, Broadcast) else feed.access.over
        inner[feed.inner] = tuple(a for a in outer.get(feed.outer, ()) if a != gone)
    for child in node.body.nodes:
        if isinstance(child, Join):
            inner[child.name] = inner.get(child.rest, ())
        for out in child.outputs if isinstance(child, Map) else ():
            if isinstance(child, Map) and not isinstance(out, Final):
                lists = _stacked_lists if isinstance(out, Stacked) else _lists_inside
                inner[out.outer] = lists(child, out.inner, inner)
    return inner.get(value, ())


def _comment(node: Map) -> str:
    """Writes what a schedule has said of `node` as a comment."""
    parts = [] if node.place is None else [node.place.value]
    parts += [] if node.tile is None else [f"{node.tile} a block"]
    parts += [str(node.demands)] if str(node.demands) else []
    parts += [f"sums of {node.chain}"] if node.chain else []
    return f"  # {', '.join(parts)}" if parts else ""
