"""Types of every edge, and the checker: what a well-formed block program is.

`check` runs after every rewrite in tests. `infer` gives the types that the printer, the interpreter and the emitters
read; both are one walk, so that a type that can be computed has also been checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from weft.block.guard import GuardedBlocks
from weft.block.operator_types import check_place, item_type, prefix_types, rank_types
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Broadcast,
    Buffer,
    Extent,
    Feed,
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
    Prefix,
    Rank,
    Stacked,
    State,
    Store,
    exports,
)
from weft.block.ranges import All, Before, First, Part, Remainder, Segment, Spans, Within
from weft.block.rows import rows_of
from weft.block.scope import Scope, Types, demand, fail
from weft.block.spans import OWN
from weft.block.walk import maps, operands, results, stored, sub_blocks
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def check(program: BlockProgram) -> None:
    """Raise `InvalidProgramError`, naming node and condition, unless `program` is well formed."""
    names = [m.name for m in maps(program.graph)]
    axes = [m.axis for m in maps(program.graph)]
    demand(len(set(names)) == len(names), "program", "every map has a name of its own", names)
    demand(len(set(axes)) == len(axes), "program", "every map has an axis of its own", axes)
    demand(program.graph.inputs == tuple(n for n, _ in program.inputs), "program", "graph inputs are the program's", "")
    applied = any(m.place is not None for m in maps(program.graph))
    for node in maps(program.graph):
        demand((node.place is not None) == applied, node.name, "all loops have a place, or none has", node.place)
        tiled = node.place in (Place.grid, Place.loop)
        demand(
            (node.tile is not None) == tiled, node.name, "a loop in a place has a tile, one over the whole has none", ""
        )
        demand(node.tile is None or node.tile >= 1, node.name, "a block has an element at the least", node.tile)
        demand(not applied or tiled or not node.full, node.name, "a loop over whole blocks goes block by block", "")
        demand(
            not applied or not node.unit or node.tile == 1,
            node.name,
            "a unit loop goes by single elements",
            node.tile,
        )
    types = infer(program.graph, dict(program.inputs), Scope({}, applied))
    demand(len(program.output_axes) == len(program.graph.outputs), "program", "output_axes match the outputs", "")
    for name, axes_ in zip(program.graph.outputs, program.output_axes, strict=True):
        kind = types[name]
        demand(set(axes_) == set(kind.lists), name, "an output is a list over exactly its axes", f"{kind} over {axes_}")


def infer(graph: Graph, inputs: Types, scope: Scope) -> Types:
    """Infer the type of every value of `graph` (not of inner graphs), given those of its inputs.

    Worked out once for a graph, and kept there: rewrites and other sizes of blocks leave most graphs as they are.

    Raises:
        InvalidProgramError: where `graph`, or an inner graph, is malformed.
    """
    given = tuple([inputs[name] for name in graph.inputs])
    found = _before(graph, given, scope)
    if found is None:
        found = _types_of(graph, given, scope)
        graph.typed.append((given, scope.seen, scope.applied, found))
    return found


def _before(node: Graph | Map, given: tuple[BlockType, ...], scope: Scope) -> Types | None:
    """Return what is known of `node` with inputs of types `given`, in `scope`."""
    for before, seen, applied, found in node.typed:
        # Types are the same whether or not a schedule was applied; if one was, more was demanded.
        if applied >= scope.applied and seen == scope.seen and before == given:
            return found
    return None


def _types_of(graph: Graph, given: tuple[BlockType, ...], scope: Scope) -> Types:
    types: dict[str, BlockType] = dict(zip(graph.inputs, given, strict=True))
    _check_peeled(graph)
    _check_edges(graph)
    for node in graph.nodes:
        for name in operands(node):
            if name not in types:
                fail(node.name, "every operand is defined before its use", name)
        for name in results(node):
            if name in types:
                fail(node.name, "every value is defined once", name)
        types.update(_result_types(node, types, scope))
    for name in graph.outputs:
        demand(name in types, name, "every output of a graph is defined in it", name)
    return types


def body_types(node: Map, types: Types) -> dict[str, BlockType]:
    """Return the types of the inputs of `node`'s body, given those of the graph around it: what it is fed, and what is shown of
    its state.
    """
    found = {feed.inner: _fed(node, feed, types[feed.outer]) for feed in node.inputs}
    if node.state is not None and node.state.shown:
        components = {c.name: c for c in node.state.components}
        for name, inner in node.state.shown:
            found[inner] = BlockType((), components[name].dims, components[name].dtype)
    return found


def update_types(state: State, inner: Types) -> dict[str, BlockType]:
    """Return the types of the inputs of `state`'s update, given those of the values of the loop's body."""
    count = len(state.components)
    # An accumulating Dot reads the padding of the state, which starts from `init` and is never disturbed.
    start = {c.name: BlockType((), c.dims, c.dtype, c.init) for c in state.components}
    fed = zip(state.update.inputs[count:], (inner[f] for f in state.feeds), strict=True)
    return {**start, **dict(fed)}


def _result_types(node: BlockNode, types: Types, scope: Scope) -> Types:
    match node:
        case Map():
            return _map_types(node, types, scope)
        case Index(name, axis, unit):
            around = scope.maps.get(axis)
            demand(around is not None, name, "an index is over the axis of a map around it", axis)
            demand(around is None or around.unit == unit, name, "the index of a unit map is one number", axis)
            return {name: BlockType((), node.dims, DType.int64)}
        case Literal(name, value, dtype):
            return {name: BlockType((), (), dtype, float(value))}
        case Extent(name, _, dtype, axis):
            demand(axis is None or axis in scope.maps, name, "an extent is of a block of a map around it", axis)
            return {name: BlockType((), (), dtype)}
        case Rank():
            return rank_types(node, types, scope)
        case Prefix():
            return prefix_types(node, types, scope)
        case Join():
            return {node.name: _joined(node, types[node.first], types[node.rest])}
        case Buffer(name, axes, dims, dtype):
            demand(set(dims) <= set(axes), name, "items have axes of the memory that they lie in", dims)
            return {name: BlockType(axes, dims, dtype)}
        case Load():
            check_place(node, types[node.memory], node.dims, scope, tuple(types[name] for name in node.indices))
            return {node.name: BlockType((), node.dims, node.dtype)}
        case Store():
            demand(not types[node.value].buffered, node.name, "an item is stored, not a list", node.value)
            check_place(node, types[node.memory], types[node.value].dims, scope)
            return {}
        case _:
            return {node.name: item_type(node, types, scope)}


def _fed(node: Map, feed: Feed, kind: BlockType) -> BlockType:
    match feed.access:
        case Broadcast():
            return kind
        case Iterate(over) | Grouped(over, _):
            if over not in kind.lists:
                fail(node.name, "an iterated input is a list over the axis", f"{feed.outer}: {kind}")
            if over.space != node.axis.space and not isinstance(feed.access, Grouped):
                spaces = f"{over.space} and {node.axis.space}"
                fail(node.name, "a map runs over the space of the list it iterates", spaces)
            demand(
                not node.unit or over not in kind.dims,
                node.name,
                "unit maps iterate lists of items without the axis",
                kind,
            )
            lists = tuple([a for a in kind.lists if a != over])
            dims = tuple([node.axis if a == over else a for a in kind.dims])
            return BlockType(lists, dims, kind.dtype, kind.pad if lists else None)
        case _:
            assert_never(feed.access)


def _map_types(node: Map, types: Types, scope: Scope) -> Types:
    given = tuple([types[feed.outer] for feed in node.inputs])
    found = _before(node, given, scope)
    if found is None:
        found = _inferred(node, types, scope)
        node.typed.append((given, scope.seen, scope.applied, found))
    return found


def _inferred(node: Map, types: Types, scope: Scope) -> dict[str, BlockType]:
    _check_range(node, scope)
    inner_inputs = body_types(node, types)
    shown = 0 if node.state is None else len(node.state.shown)
    demand(
        len(inner_inputs) == len(node.inputs) + shown, node.name, "the inner names of a map's inputs are distinct", ""
    )
    demand(
        node.body.inputs == tuple(inner_inputs),
        node.name,
        "the body's inputs are what the map feeds",
        node.body.inputs,
    )
    demand(node.body.outputs == exports(node), node.name, "the body's outputs are what leaves it", node.body.outputs)
    inside = scope.inside(node)
    inner = infer(node.body, inner_inputs, inside)
    _check_guard(node, inner)
    projections: Types = {} if node.state is None else _state_types(node, node.state, inner, scope, inside)
    outer: dict[str, BlockType] = {}
    for output in node.outputs:
        match output:
            case Stacked(name, value):
                demand(value in inner, node.name, "a stacked output is a value of the body", value)
                outer[name] = _stacked(node, inner[value])
            case Final(name, value):
                demand(value in projections, node.name, "a final output is a projection of the state", value)
                outer[name] = projections[value]
            case Once(name, value):
                demand(value in inner, node.name, "what leaves an iteration is a value of the body", value)
                outer[name] = _once(node, inner[value])
            case _:
                assert_never(output)
    return outer


def _check_guard(node: Map, inner: Types) -> None:
    """Demand that an iteration which is left out leaves nothing but the state as it is."""
    if node.guard is None:
        return
    asked = inner.get(node.guard.value)
    demand(asked is not None and not asked.buffered, node.name, "what says that it is idle is an item of the body", "")
    plain = node.state is not None and not node.state.shown and all(isinstance(o, Final) for o in node.outputs)
    stores = any(stored(n) for n in node.body.nodes)
    demand(plain and not stores, node.name, "a loop that leaves iterations out has nothing but a state", "")
    known = node.guard.blocks is GuardedBlocks.busy or node.guard.full is not None
    demand(known, node.name, "a loop that goes over full blocks, or leaves them out, says what they are", "")
    apart = node.guard.rows is None or node.guard.rows == rows_of(node, inner)
    demand(apart, node.name, "rows that need not be done are made of those rows alone", node.guard.rows)


def _once(node: Map, kind: BlockType) -> BlockType:
    """Type the value of the only iteration; it must be the same whichever iteration that is."""
    demand(node.range.one_block, node.name, "only a map over the first block hands a value out as it is", "")
    demand(
        _own_axes(node).isdisjoint((*kind.lists, *kind.dims)),
        node.name,
        "what is handed out as it is lacks the map's axis",
        kind,
    )
    return kind


def _joined(node: Join, first: BlockType, rest: BlockType) -> BlockType:
    """Type the list of two parts, which has the axes of `rest`."""
    new = dict(node.axes)
    alike = all(a.space == b.space for a, b in node.axes) and len(set(new.values())) == len(node.axes) == len(new)
    for one, other in ((first.lists, rest.lists), (first.dims, rest.dims)):
        alike = alike and {new.get(a, a) for a in one} == set(other) and len(one) == len(other)
    demand(
        alike and first.dtype == rest.dtype,
        node.name,
        "the parts of a list differ in nothing but axes",
        f"{first}, {rest}",
    )
    return replace(rest, pad=None)


def _stacked(node: Map, kind: BlockType) -> BlockType:
    """Type the list over the map's axis; but stacking the sub-blocks of a block's list gives the whole list, not a list
    of lists.
    """
    demand(not node.range.beside, node.name, "a list is stacked over all blocks of its axis", "")
    if sub_blocks(node) & set(kind.lists):
        return replace(kind, pad=None)
    return BlockType((node.axis, *kind.lists), kind.dims, kind.dtype, None)


def _state_types(node: Map, state: State, inner: Types, scope: Scope, inside: Scope) -> Types:
    kinds = {c.name: BlockType((), c.dims, c.dtype) for c in state.components}
    names = tuple(kinds)
    demand(len(kinds) == len(state.components), node.name, "a state's components have different names", names)
    demand(node.place is not Place.grid, node.name, "a loop that carries state does not run on the grid", "")
    demand(
        state.update.inputs == (*names, *state.update.inputs[len(names) :]),
        node.name,
        "update starts from the state",
        "",
    )
    demand(len(state.update.inputs) == len(names) + len(state.feeds), node.name, "update takes state and feeds", "")
    _same(node, state.update, infer(state.update, update_types(state, inner), inside), kinds)
    half = len(names)
    demand(len(state.merge.inputs) == 2 * half, node.name, "merge takes two states", state.merge.inputs)
    both = dict(zip(state.merge.inputs, [*kinds.values(), *kinds.values()], strict=True))
    _same(node, state.merge, infer(state.merge, both, inside), kinds)
    demand(state.finish.inputs == names, node.name, "finish starts from the state", state.finish.inputs)
    for component in state.components:
        demand(
            node.axis not in component.dims, node.name, "state does not have the axis of its own loop", component.name
        )
    for name, value in _resumed(node, state):
        found = inner[value].dims if value in inner else None
        same = found is not None and set(found) == set(kinds[name].dims)
        demand(same, node.name, "a resumed state is a value of the body with the state's axes", value)
    return infer(state.finish, kinds, scope)


def _resumed(node: Map, state: State) -> list[tuple[str, str]]:
    if state.resume is None:
        return []
    demand(len(state.resume) == len(state.components), node.name, "a loop resumes every component", state.resume)
    return list(zip((c.name for c in state.components), state.resume, strict=True))


def _same(node: Map, graph: Graph, types: Types, kinds: Types) -> None:
    demand(len(graph.outputs) == len(kinds), node.name, "a state's graph gives every component", graph.outputs)
    for name, kind in zip(graph.outputs, kinds.values(), strict=True):
        if set(types[name].dims) != set(kind.dims):
            fail(node.name, "a component keeps its axes", f"{types[name]} for {kind}")


def _check_range(node: Map, scope: Scope) -> None:
    match node.range:
        case All() | First() | Remainder():
            pass
        case Spans(spans):
            around = all(axis in scope.maps for axis in node.range.beside)
            demand(around, node.name, "a range refers to a map around it", sorted(map(str, node.range.beside)))
            ends = all(each.end(OWN) is not None for span in spans for each in span.holds)
            demand(
                bool(spans) and ends, node.name, "a span has ends on both sides of which it is known what lies", spans
            )
        case Within(axis) | Before(axis):
            demand(axis in scope.maps, node.name, "a range refers to a map around it", axis)
            demand(axis.space == node.axis.space, node.name, "a range refers to a map over the same space", axis)
        case Segment(axis, count):
            demand(axis in scope.maps, node.name, "a segment is numbered by a map around it", axis)
            demand(axis.space.fixed == count, node.name, "the segments' map has one iteration a segment", count)
        case _:
            assert_never(node.range)
    peeled = node.range.part is not Part.all
    demand(not peeled or node.state is not None, node.name, "only a loop with state is peeled", "")


def _check_peeled(graph: Graph) -> None:
    """Check that maps over `First` and `Remainder`, and the list that joins them, fit: they share a graph and its blocks."""
    if not any(isinstance(getattr(n, "range", None), First | Remainder) or isinstance(n, Join) for n in graph.nodes):
        return
    firsts = {n.axis: n for n in graph.nodes if isinstance(n, Map) and isinstance(n.range, First)}
    parts = {o.outer: n for n in graph.nodes if isinstance(n, Map) and isinstance(n.range, First | Remainder)
             for o in n.outputs if isinstance(o, Stacked)}  # fmt: skip
    joined: set[str] = set()
    for node in graph.nodes:
        match node:
            case Map(range=Remainder(after)):
                first = firsts.get(after)
                demand(first is not None and _same_blocks(first, node), node.name,
                        "the rest begins where a map of its graph over the first block ends", after)  # fmt: skip
            case Join(name, first, rest, axes):
                one, other = parts.get(first), parts.get(rest)
                if one is None or other is None or other.range != Remainder(one.axis):
                    fail(name, "a list of two parts is that of a first block and of its rest", f"{first}, {rest}")
                along = axes[:1] and axes[0][0] == one.axis and axes[0][1] in _own_axes(other)
                demand(bool(along), name, "parts are joined along the axis of their maps", axes)
                demand(joined.isdisjoint((first, rest)), name, "a part is one list's", f"{first}, {rest}")
                joined |= {first, rest}
            case _:
                pass
        if not isinstance(node, Join):
            demand(parts.keys().isdisjoint(operands(node)), node.name, "a part of a list is read by nothing", "")
    demand(parts.keys().isdisjoint(graph.outputs), "graph", "a part of a list does not leave its graph", "")


def _check_edges(graph: Graph) -> None:
    """Check that a loop over what whole blocks leave, or full ones, goes on from the one over these."""
    makers = {o.outer: n for n in graph.nodes if isinstance(n, Map) for o in n.outputs}
    for node in graph.nodes:
        if not isinstance(node, Map) or node.state is None:
            continue
        outer = {f.inner: f.outer for f in node.inputs}
        before = [makers.get(outer.get(name, "")) for name in node.state.resume or ("",)]
        if node.range.part is Part.edge:
            whole = (b is not None and b.range == replace(node.range, part=Part.full) for b in before)
            same = all(b is not None and _same_blocks(b, node) for b in before)
            demand(all(whole) and same, node.name, "what whole blocks leave goes on from a loop over these", "")
        if node.guard is not None and node.guard.blocks is GuardedBlocks.partial:
            full = (b is not None and b.guard is not None and b.guard.blocks is GuardedBlocks.full for b in before)
            same = all(b is not None and b.range == node.range and _same_blocks(b, node) for b in before)
            demand(all(full) and same, node.name, "what full blocks leave goes on from a loop over these", "")


def _same_blocks(first: Map, rest: Map) -> bool:
    return first.axis.space == rest.axis.space and first.unit == rest.unit and first.tile == rest.tile


def _own_axes(node: Map) -> set[Axis]:
    """Return the axis of `node`, and those of the maps inside that run over its sub-blocks."""
    return {node.axis} | sub_blocks(node)
