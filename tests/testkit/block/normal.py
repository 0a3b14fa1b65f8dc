"""The normal form of block programs: programs that differ only in how they are written become one.

Made alike: the names of inputs, values, maps, axes and spaces; the order of the nodes of a graph
(operands first, in the order in which the results need them); the operands of commutative
operations and of dots; the order of arguments, feeds, outputs of maps and components of states;
arguments and feeds that nothing reads.

Kept, because it is the program: the order of the program's inputs and outputs, the order of an
item's axes (it says what is a row), the association of sums, which nodes exist, ranges, tiles and
places. Where a map hands out the same value computed twice, the two keep their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import NamedTuple, assert_never

from weft.block.listing import listing
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Bounded,
    Broadcast,
    Dot,
    Extent,
    Feed,
    Final,
    Graph,
    Grouped,
    Iterate,
    Literal,
    Map,
    Once,
    Pointwise,
    Stacked,
    State,
    sealed,
)
from weft.block.ranges import Range
from weft.block.rename import rename_program_axes, rename_values
from weft.block.text import number
from weft.block.walk import maps, operands, results, spaces, sub_blocks
from weft.tensor import optable
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, substitute


def normal_form(program: BlockProgram) -> BlockProgram:
    """Put `program` in normal form, as the module's docstring says; it computes the same as before."""
    walk = _Walk(_space_ids(program))
    known = {
        name: _Known(_Key(False, (i,), 0, _digest("input", str(i), str(kind.dtype))), kind.lists)
        for i, (name, kind) in enumerate(program.inputs)
    }
    nodes = walk.nodes(program.graph, known)
    graph = replace(program.graph, nodes=_ordered(nodes, program.graph.outputs, known))
    return _renamed(replace(program, graph=graph))


def signature(program: BlockProgram) -> str:
    """Lists `program` in normal form: equal where only the writing differs."""
    return listing(normal_form(program))


class _Key(NamedTuple):
    """What a value is, by how it is computed; sorts readably, by inputs and then by depth."""

    constant: bool
    inputs: tuple[int, ...]
    height: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A value met on the walk: its key, and the axes it is a list over."""

    key: _Key
    lists: tuple[Axis, ...] = ()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _key(of: Iterable[_Key], *parts: str) -> _Key:
    """Return the key of what `parts` make of the values `of`, in this order."""
    given = list(of)
    inputs = tuple(sorted({i for k in given for i in k.inputs}))
    height = 1 + max((k.height for k in given), default=-1)
    return _Key(not inputs, inputs, height, _digest(*parts, *(k.digest for k in given)))


def _space_ids(program: BlockProgram) -> Callable[[Space], str]:
    """Identify spaces by where the inputs first have them, or by their fixed size."""
    first: dict[Space, str] = {}
    for i, (_, kind) in enumerate(program.inputs):
        for p, axis in enumerate(kind.lists):
            first.setdefault(axis.space, f"{i}.{p}")
    return lambda space: first.get(space, f"size {space.fixed}")


@dataclass
class _Walk:
    """The walk from the inputs down: rewrites each node, and finds the keys of the values."""

    space_id: Callable[[Space], str]
    loops: dict[Axis, str] = field(default_factory=dict[Axis, str])

    def nodes(self, graph: Graph, known: dict[str, _Known]) -> list[BlockNode]:
        """Return the nodes of `graph` in normal form, in their order, and add their results to `known`."""
        return [self._node(node, known) for node in graph.nodes]

    def _node(self, node: BlockNode, known: dict[str, _Known]) -> BlockNode:
        match node:
            case Map():
                return self._map(node, known)
            case Pointwise(name, expr, args):
                leaves = tuple(known[a].key for a in args)
                expr, key = _expression(expr, leaves)
                found = list(dict.fromkeys(args[i] for i in _reads(expr)))
                new = substitute(expr, lambda i: Arg(found.index(args[i])))
                known[name] = _Known(_key([key], "pointwise", self._axes(node.dims), str(node.dtype)))
                return replace(node, expr=new, args=tuple(found))
            case Dot(name, left, right):
                left, right = sorted((left, right), key=lambda n: known[n].key)
                node = replace(node, left=left, right=right)
                parts = ("dot", self._axes((node.over, *node.dims)), str(node.dtype))
            case Literal():
                known[node.name] = _Known(_literal(node.value))
                return node
            case _:
                parts = (node.__class__.__name__.lower(), *self._parts(node))
        read = [known[n] for n in operands(node)]
        lists = read[-1].lists if read else ()  # a list of two parts is one as the second is
        key = _key((each.key for each in read), *parts)
        for number_, name in enumerate(results(node)):
            known[name] = _Known(key if not number_ else _key([key], f"result {number_}"), lists)
        return node

    def _parts(self, node: BlockNode | Range) -> Iterator[str]:
        """Yield what an operator, or a range, is but for its names and operands, and where it was written."""
        for each in fields(node):
            role, value = each.metadata.get("role"), getattr(node, each.name)
            if role in ("makes", "reads") or each.name == "location" or value is None:
                continue
            if role == "axes":
                yield self._axes((value,) if isinstance(value, Axis) else tuple(value))
            elif isinstance(value, Space):
                yield self.space_id(value)
            elif isinstance(value, float):
                yield number(value)
            elif not isinstance(value, bool):
                yield value.name if isinstance(value, Enum) and not isinstance(value, DType) else str(value)

    def _axes(self, axes: Sequence[Axis]) -> str:
        return ",".join(self.loops.get(a, "?") for a in axes)

    # Loops.

    def _map(self, node: Map, known: dict[str, _Known]) -> Map:
        header = (
            "map", self.space_id(node.axis.space), " ".join((type(node.range).__name__.lower(), *self._parts(node.range))),
            str(node.unit), str(node.tile), str(node.place),
        )  # fmt: skip
        depth = len(self.loops)
        self.loops[node.axis] = f"@{depth}"
        inner = {f.inner: self._fed(f, node, known[f.outer]) for f in node.inputs}
        nodes = self.nodes(node.body, inner)
        state, projections = node.state, dict[str, _Known]()
        if state is not None:
            state, projections = self._state(state, inner)
        del self.loops[node.axis]
        nested = sub_blocks(node)
        for out in node.outputs:
            if isinstance(out, Stacked):
                lists = inner[out.inner].lists
                lists = lists if nested & set(lists) else (node.axis, *lists)
                known[out.outer] = _Known(_key([inner[out.inner].key], "stacked", *header), lists)
            elif isinstance(out, Once):
                known[out.outer] = _Known(_key([inner[out.inner].key], "once", *header), inner[out.inner].lists)
            else:
                known[out.outer] = _Known(_key([projections[out.inner].key], "final", *header))
        outputs = tuple(sorted(node.outputs, key=lambda o: known[o.outer].key))
        roots = [o.inner for o in outputs if not isinstance(o, Final)]
        roots += [] if state is None else [*state.feeds, *(state.resume or ())]
        roots.sort(key=lambda n: inner[n].key)
        body = _ordered(nodes, roots, inner)
        first = dict.fromkeys([*(n for child in body for n in operands(child)), *roots])
        feeds = {f.inner: f for f in node.inputs}
        inputs = tuple(feeds[n] for n in first if n in feeds)
        graph = replace(node.body, nodes=body)
        return sealed(replace(node, inputs=inputs, body=graph, outputs=outputs, state=state))

    def _fed(self, feed: Feed, node: Map, value: _Known) -> _Known:
        match feed.access:
            case Broadcast():
                return value
            case Iterate(over):
                how = "iterate"
            case Grouped(over, group):
                how = f"grouped by {group}"
            case _:
                assert_never(feed.access)
        place = value.lists.index(over) if over in value.lists else -1
        rest = tuple(a for a in value.lists if a != over)
        return _Known(_key([value.key], how, str(place), self._axes((node.axis,))), rest)

    # State.

    def _state(self, state: State, inner: Mapping[str, _Known]) -> tuple[State, dict[str, _Known]]:
        """Return `state` in normal form, and its projections."""
        old = range(len(state.components))
        starts: list[_Key] = []
        for i, c in enumerate(state.components):
            before = [] if state.resume is None else [inner[state.resume[i]].key]
            starts.append(_key(before, "start", self._axes(c.dims), number(c.init), str(c.dtype)))
        fed = [inner[f] for f in state.feeds]
        after = dict(zip(state.update.inputs, [*(_Known(k) for k in starts), *fed], strict=True))
        update = self.nodes(state.update, after)
        keys = [_key([starts[i], after[state.update.outputs[i]].key], "component") for i in old]
        order = sorted(old, key=lambda i: keys[i])
        feeds = sorted(range(len(state.feeds)), key=lambda i: fed[i].key)

        def pick(names: Sequence[str], first: int = 0) -> tuple[str, ...]:
            return tuple(names[first + i] for i in order)

        half = len(old)
        outputs = pick(state.update.outputs)
        taken = (*pick(state.update.inputs), *(state.update.inputs[half + i] for i in feeds))
        both = dict(zip(state.merge.inputs, [_Known(k) for k in (*keys, *keys)], strict=True))
        merge = self.nodes(state.merge, both)
        last = dict(zip(state.finish.inputs, map(_Known, keys), strict=True))
        finish = self.nodes(state.finish, last)
        ends = tuple(sorted(state.finish.outputs, key=lambda n: last[n].key))
        merged = pick(state.merge.outputs)
        return State(
            tuple(state.components[i] for i in order),
            tuple(state.feeds[i] for i in feeds),
            Graph(taken, _ordered(update, outputs, after), outputs),
            Graph(
                (*pick(state.merge.inputs), *pick(state.merge.inputs, half)),
                _ordered(merge, merged, both),
                merged,
            ),
            Graph(pick(state.finish.inputs), _ordered(finish, ends, last), ends),
            None if state.resume is None else pick(state.resume),
        ), last


def _literal(value: float | int | bool) -> _Key:
    return _key([], "literal", number(value))


def _expression(expr: Scalar, leaves: Sequence[_Key]) -> tuple[Scalar, _Key]:
    """Return `expr` with the operands of commutative operations in the order of their keys."""
    match expr:
        case Arg(index):
            return expr, leaves[index]
        case Lit(value):
            return expr, _literal(value)
        case Convert(dtype, inner):
            new, key = _expression(inner, leaves)
            return Convert(dtype, new), _key([key], "convert", str(dtype))
        case Apply(op, args):
            pairs = [_expression(a, leaves) for a in args]
            if optable.row(op).commutative:
                pairs.sort(key=lambda pair: pair[1])
            return Apply(op, tuple(e for e, _ in pairs)), _key((k for _, k in pairs), "apply", op)
        case _:
            assert_never(expr)


def _reads(expr: Scalar) -> list[int]:
    """Return the arguments that `expr` reads, in the order in which it is written."""
    match expr:
        case Arg(index):
            return [index]
        case Lit():
            return []
        case Convert(_, inner):
            return _reads(inner)
        case Apply(_, args):
            return [i for a in args for i in _reads(a)]
        case _:
            assert_never(expr)


def _ordered(nodes: Sequence[BlockNode], roots: Sequence[str], known: Mapping[str, _Known]) -> tuple[BlockNode, ...]:
    """Return `nodes` in the order in which `roots` need them; what no root needs comes last."""
    made = {name: node for node in nodes for name in results(node)}
    unread = sorted(set(made) - {n for node in nodes for n in operands(node)}, key=lambda n: known[n].key)
    done: dict[int, BlockNode] = {}

    def visit(name: str) -> None:
        node = made.get(name)
        if node is not None and id(node) not in done:
            for operand in operands(node):
                visit(operand)
            done[id(node)] = node

    for name in (*roots, *unread):
        visit(name)
    # A map without any output is in no one's way; it still has to stay.
    return (*done.values(), *(n for n in nodes if id(n) not in done))


def _renamed(program: BlockProgram) -> BlockProgram:
    """Return `program` with inputs X1, X2 ... and spaces A, B ... in order, fixed sizes in the name."""
    names = {n: f"%{i}" for i, n in enumerate(n for node in program.graph.nodes for n in results(node))}
    names |= {n: f"X{i}" for i, (n, _) in enumerate(program.inputs, 1)}
    new: dict[Space, Space] = {}
    for i, space in enumerate(spaces(program)):
        letter = chr(ord("A") + i % 26) + (str(i // 26) if i >= 26 else "")
        new[space] = Space(letter if space.fixed is None else f"{letter}_{space.fixed}", space.fixed)
    found = [a for _, kind in program.inputs for a in (*kind.lists, *kind.dims)]
    found += [m.axis for m in maps(program.graph)]
    axes = {a: Axis(a.name, new[a.space]) for a in found}

    def renamed(kind: BlockType) -> BlockType:
        return replace(kind, lists=tuple(axes[a] for a in kind.lists), dims=tuple(axes[a] for a in kind.dims))

    program = rename_program_axes(program, axes)
    inputs = tuple((names[n], renamed(kind)) for n, kind in program.inputs)
    return replace(program, inputs=inputs, graph=_with_spaces(rename_values(program.graph, names), new))


def _with_spaces(graph: Graph, new: Mapping[Space, Space]) -> Graph:
    """Return `graph` with the sizes that it mentions replaced by those of the `new` spaces."""

    def node(of: BlockNode) -> BlockNode:
        match of:
            case Bounded() | Extent():
                return replace(of, space=new.get(of.space, of.space))
            case Map(state=None):
                return replace(of, body=_with_spaces(of.body, new))
            case Map(state=State() as state):
                update, merge, finish = (_with_spaces(g, new) for g in (state.update, state.merge, state.finish))
                state = replace(state, update=update, merge=merge, finish=finish)
                return replace(of, body=_with_spaces(of.body, new), state=state)
            case _:
                return of

    return replace(graph, nodes=tuple(map(node, graph.nodes)))
