"""What the operators of a placed program do on a CPU, wherever they stand: along which axis their elements lie side by side.

That decides more than how many elements there are: a loop over neighbours works on vectors, another one on one element at a time,
and rows far apart in memory are waited for one by one. How often each operator works, and on blocks of which lengths, is counted
apart (`Traffic.operations`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.block.check import body_types, infer, update_types
from weft.block.one_hot import one_hots
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    BlockType,
    Bounded,
    Collapse,
    Dot,
    Graph,
    Layout,
    Load,
    Map,
    Pointwise,
    Stage,
    Store,
)
from weft.block.scope import Scope, Types
from weft.block.subscripts import Subscript
from weft.block.walk import copied, operands, results, worked_axes
from weft.cost.load_places import decided_by
from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import applied

# Of an element and a rank: a key is compared, and moved with its place.
_SORTING = 4.0

# Of an element: bytes that select among numbers are made as wide as these (0.18 ns each, at 2.6 GHz and 16 lanes).
_LOADED_BOOL = 7.5


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """A matmul of blocks.

    Attributes:
        sides: which of the lengths are its rows, columns and depth; None for a side that it has not.
        dtype: of the operands.
        panel: the right operand was staged as one.
        across: elements of a right operand that was not staged lie side by side along the columns, not along the depth.
        plain: one element after the other: the operands have two types, or columns of the result lie apart.
        turned: elements of the left operand lie apart along the depth, so that its rows are copied first.
        row: of a right operand that lies in a list, the space of the list's innermost dimension: blocks that have all of it lie
            in one piece, others in rows that are far apart. None for one in local memory.
    """

    sides: tuple[int | None, int | None, int]
    dtype: DType
    panel: bool
    across: bool
    plain: bool
    turned: bool
    row: str | None


@dataclass(frozen=True, slots=True)
class ElementLoop:
    """Work on each element, in loops.

    Attributes:
        operations: on an element, in additions.
        apart: for each of the lengths, blocks that it reads or writes whose neighbours along it lie apart in memory.
        over: which of the lengths it reduces, if it does.
        along: it stands in the loops of another operator.
        dense: along which of the lengths the elements that its loops store lie side by side; None where they reduce, or store none.
        row: the one of the lengths along which one element alone counts (`weft.block.one_hot`), if there is one.
    """

    operations: float
    apart: tuple[int, ...]
    over: int | None
    along: bool
    dense: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A staged copy of a block; `turned`: its rows lie in memory as columns."""

    dtype: DType
    turned: bool


@dataclass(frozen=True, slots=True)
class BlockMove:
    """A block that is loaded or stored.

    Attributes:
        memory: the list.
        side: which of its lengths runs along neighbours there; None where none does.
        row: the space of the list's innermost dimension, as of `BlockProduct`.
        grid: loops of the grid by name, outermost first, and whether it depends on their block what is loaded.
    """

    memory: str
    side: int | None
    row: str | None
    grid: tuple[tuple[str, bool], ...]


OperatorWork: TypeAlias = BlockProduct | ElementLoop | BlockCopy | BlockMove


def works_of(program: BlockProgram, innermost: Mapping[str, int | None]) -> dict[str, OperatorWork]:
    """Find out what each operator does, by its name.

    Args:
        program: with places.
        innermost: for inputs, by name, the dimension of stride 1; of others it is the last one.
    """
    around = Scope({}, applied=True)
    types = infer(program.graph, dict(program.inputs), around)
    values: dict[str, _Value] = {}
    for name, kind in program.inputs:
        place = innermost.get(name)
        side = kind.lists[-1 if place is None else place] if kind.lists else None
        values[name] = _Value(kind.dims, kind.dtype, side, name, None if side is None else side.space.name)
    walk = _Walk()
    walk.graph(program.graph, types, values, around)
    return walk.found


@dataclass(frozen=True, slots=True)
class _Value:
    """An item, or a list.

    Attributes:
        side: the axis along which its elements lie side by side; None where nothing does.
        memory: the list's name; of an item that is read where it lies, that of its list.
        row: the space of the list's innermost dimension.
        panel: it was staged for a matmul.
    """

    dims: tuple[Axis, ...]
    dtype: DType
    side: Axis | None
    memory: str = ""
    row: str | None = None
    panel: bool = False


_Values: TypeAlias = Mapping[str, _Value]


@dataclass
class _Walk:
    found: dict[str, OperatorWork] = field(default_factory=dict[str, OperatorWork])
    inside: list[Map] = field(default_factory=list[Map])

    def graph(self, graph: Graph, types: Types, given: _Values, scope: Scope) -> dict[str, _Value]:
        """Add what the operators of `graph` do; returns its values."""
        values, along = dict(given), _along(graph)
        written = {node.value: node for node in graph.nodes if isinstance(node, Store)}
        summed = any(isinstance(node, Collapse) for node in graph.nodes) or any(
            m.state is not None for m in self.inside
        )
        sides = {} if summed else _sides(written, graph, types, given)
        rows = one_hots(graph, types)
        for node in graph.nodes:
            match node:
                case Map():
                    self.loop(node, types, values, scope)
                case Load():
                    side = _side(node.at, values[node.memory].side, types[node.memory].lists, node.dims)
                    values[node.name] = replace(values[node.memory], dims=node.dims, side=side)
                    self.move(node, values[node.name])
                case Store():
                    dims = values[node.value].dims
                    side = _side(node.at, values[node.memory].side, types[node.memory].lists, dims)
                    self.move(node, replace(values[node.memory], dims=dims, side=side))
                case Stage():
                    source = values[node.arg]
                    self.found[node.name] = BlockCopy(source.dtype, bool(node.dims) and source.side != node.dims[-1])
                    side = node.dims[-1] if node.dims else None
                    values[node.name] = _Value(node.dims, source.dtype, side, panel=node.layout is Layout.panel)
                case Pointwise() | Collapse():
                    stored = _stored(written, node, types, values) if isinstance(node, Pointwise) else []
                    found = _elementwise(node, values, stored, along=node.name in along)
                    self.found[node.name] = _placed(found, node, values, sides, rows.get(node.name))
                case Dot():
                    self.found[node.name] = _product(node, values)
                case Bounded(dims=dims):
                    self.found[node.name] = ElementLoop(1.0, (0,) * len(dims), None, along=False)
                case _ if copied(node) is None and operands(node):
                    axes = worked_axes(node, lambda name: types[name].dims)
                    self.found[node.name] = ElementLoop(_SORTING, (0,) * len(axes), None, along=False)
                case _:
                    pass
            same = None if isinstance(node, Map | Load | Store | Stage) else copied(node)
            for name in results(node):
                values.setdefault(name, _made(name, types[name]) if same is None else values[same])
        return values

    def move(self, node: Load | Store, item: _Value) -> None:
        """Add a load or a store of `item`, as it lies in its list."""
        decide = dict(decided_by(node, self.inside)) if isinstance(node, Load) else {}
        grid = tuple((m.name, m.axis in decide) for m in self.inside if m.place is Place.grid)
        self.found[node.name] = BlockMove(
            item.memory, None if item.side is None else item.dims.index(item.side), item.row, grid
        )

    def loop(self, node: Map, types: Types, values: _Values, scope: Scope) -> None:
        """Add what the operators of a map do."""
        inside, state = scope.inside(node), node.state
        known = infer(node.body, body_types(node, types), inside)
        self.inside.append(node)
        given = {f.inner: values[f.outer] for f in node.inputs}
        given |= {} if state is None else {inner: _made(name, known[inner]) for name, inner in state.shown}
        body = self.graph(node.body, known, given, inside)
        self.inside.pop()
        if state is None:
            return
        kinds = {c.name: BlockType((), c.dims, c.dtype) for c in state.components}
        start = {name: _made(name, kind) for name, kind in kinds.items()}
        names = state.update.inputs[len(state.components) :]
        feeds = {name: body[fed] for name, fed in zip(names, state.feeds, strict=True)}
        self.graph(state.update, infer(state.update, update_types(state, known), inside), {**start, **feeds}, inside)
        self.graph(state.finish, infer(state.finish, kinds, scope), start, scope)


def _made(name: str, kind: BlockType) -> _Value:
    """Describe what an operator makes, which lies densely: items of a list together, the last axis innermost."""
    if kind.buffered:
        return _Value(kind.dims, kind.dtype, _last(kind), name, _last(kind).space.name)
    return _Value(kind.dims, kind.dtype, kind.dims[-1] if kind.dims else None)


def _last(kind: BlockType) -> Axis:
    """Return the innermost axis of a list in memory: that of its items, or of the list itself where they have none."""
    return (*kind.lists, *kind.dims)[-1]


def _side(at: Iterable[Subscript], along: Axis | None, lists: Iterable[Axis], dims: tuple[Axis, ...]) -> Axis | None:
    """Find the axis of an item at `at` along which its elements lie side by side in a list that does so along one of `lists`."""
    last = next((s for s, axis in zip(at, lists, strict=True) if axis == along), None)
    return None if last is None else next((axis for axis in last.axes if axis in dims), None)


def _sides(written: Mapping[str, Store], graph: Graph, types: Types, given: _Values) -> dict[frozenset[Axis], Axis]:
    """Find, for the axes of loops that store, the one along which what the first of them stores lies side by side."""
    found: dict[frozenset[Axis], Axis] = {}
    for node in graph.nodes:
        store = written.get(node.name) if isinstance(node, Pointwise) else None
        if store is not None and store.memory in given:
            dims = types[store.value].dims
            side = _side(store.at, given[store.memory].side, types[store.memory].lists, dims)
            if side is not None:
                found.setdefault(frozenset(dims), side)
    return found


def _stored(written: Mapping[str, Store], node: Pointwise, types: Types, values: _Values) -> list[_Value]:
    """Describe what `node` makes as it lies where it is stored; nothing if it is not."""
    if node.name not in written:
        return []
    store = written[node.name]
    side = _side(store.at, values[store.memory].side, types[store.memory].lists, node.dims)
    return [replace(values[store.memory], dims=node.dims, side=side)]


def _along(graph: Graph) -> frozenset[str]:
    """Name the operators that are computed along with others, in their loops.

    Those are what is a number a row beside whole rows, what runs over the elements of the one before, and sums of what is made.
    """
    items = [frozenset(n.dims) for n in graph.nodes if isinstance(n, Pointwise)]
    found, made, met = set[str](), set[str](), set[frozenset[Axis]]()
    for node in graph.nodes:
        if isinstance(node, Pointwise):
            own = frozenset(node.dims)
            if own in met or any(own < other for other in items):
                found.add(node.name)
            met.add(own)
            made.add(node.name)
        elif isinstance(node, Collapse) and node.arg in made:
            found.add(node.name)
    return frozenset(found)


def _elementwise(node: Pointwise | Collapse, values: _Values, stored: Sequence[_Value], *, along: bool) -> ElementLoop:
    """Describe work on elements; `stored`: what is made, as it lies where it is stored."""
    match node:
        case Pointwise(expr=expr, args=args, dims=dims):
            bools = sum(bool(values[n].memory) and values[n].dtype is DType.bool and bool(values[n].dims) for n in args)
            operations = sum(optable.row(op).cpu for op in applied(expr)) + bools * _LOADED_BOOL
            return ElementLoop(operations, _apart([*(values[n] for n in args), *stored], dims), None, along)
        case Collapse(arg=arg, over=over):
            item = values[arg]
            return ElementLoop(1.0, _apart([item], item.dims), item.dims.index(over), along)


def _placed(
    found: ElementLoop,
    node: Pointwise | Collapse,
    values: _Values,
    sides: Mapping[frozenset[Axis], Axis],
    row: Axis | None,
) -> ElementLoop:
    """Note along which axis the loops of `node` store what lies side by side, and along which they do one `row` alone."""
    axes = node.dims if isinstance(node, Pointwise) else values[node.arg].dims
    if isinstance(node, Pointwise) and (side := sides.get(frozenset(axes))) is not None:
        found = replace(found, dense=axes.index(side))
    return found if row is None else replace(found, row=axes.index(row))


def _apart(blocks: Sequence[_Value], dims: tuple[Axis, ...]) -> tuple[int, ...]:
    """Count for each of `dims` the blocks in memory that have it, and whose neighbours along it lie apart."""
    return tuple(sum(bool(v.memory) and axis in v.dims and v.side != axis for v in blocks) for axis in dims)


def _product(node: Dot, values: _Values) -> BlockProduct:
    """Describe a matmul."""
    left, right = values[node.left], values[node.right]
    axes = (*node.dims, node.over)
    rows, columns = (next((a for a in side.dims if a != node.over), None) for side in (left, right))
    places = [None if axis is None else axes.index(axis) for axis in (rows, columns)]
    return BlockProduct(
        (places[0], places[1], len(node.dims)),
        left.dtype,
        right.panel,
        columns is not None and right.side == columns,
        left.dtype is not right.dtype or (columns is not None and node.dims[-1] != columns),
        rows is not None and left.side != node.over,
        right.row if right.memory else None,
    )
