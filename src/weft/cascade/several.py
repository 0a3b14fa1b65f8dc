"""Reductions along several axes at once, as reductions along one: so chains of them are found as others are.

    m = sum over k, n of x[k, n] / (K * N)                     m = sum over z of x[z] / Z
    v = sum over k, n of (x[k, n] - m) ** 2         ==>        v = sum over z of (x[z] - m) ** 2

where z runs over all pairs of k and n. What is found over z is a loop over k with a loop over n inside: the inner one starts anew
for each k, and its state is merged into the outer one's, as those of segments are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.block.fold import Fold
from weft.block.program import BlockNode, Collapse, Dot, Extent, Graph, Pointwise
from weft.block.rename import fresh
from weft.block.walk import operands, results
from weft.tensor import program as tensor
from weft.tensor.axes import Axis, Space
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    axes_of,
    reads,
)
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Apply, Arg, Scalar


@dataclass(frozen=True, slots=True)
class Joined:
    """A program in which axes that every value has together, or none of them, are one.

    Attributes:
        written, program: without these axes, and with them.
        axes: what each of them stands for.
        sizes: the values, by name, that are the number of elements of such an axis, and those that they multiply.
    """

    written: TensorProgram
    program: TensorProgram
    axes: Mapping[Axis, tuple[Axis, ...]]
    sizes: Mapping[str, tuple[str, ...]]

    def apart(self, use: Use) -> Use:
        """Returns `use`, of a value of `program`, as a use of that value as written."""
        own = self.program.values()[use.value].axes
        bound = dict(zip(own, use.axes, strict=True))
        places = {a: (whole, i) for whole in own for i, a in enumerate(self.axes.get(whole, ()))}
        found: list[Axis] = []
        for axis in self.written.values()[use.value].axes:
            if axis in places:
                whole, i = places[axis]
                found.append(self.axes[bound[whole]][i])
            else:
                found.append(bound[axis])
        return Use(use.value, tuple(found))


def joined(program: TensorProgram) -> Joined:
    """Joins the axes of `program` that its reductions run along at once into one axis each, where they can be."""
    classes = _Classes(program)
    joining = _Joining(program, classes, tuple(classes.groups()))
    if not joining.groups:
        return Joined(program, program, {}, {})
    inputs = tuple(replace(n, axes=joining.over(n.axes), dims=()) for n in program.inputs)
    nodes = tuple(joining.node(n) for n in program.nodes)
    changed = replace(program, inputs=inputs, nodes=nodes, output_dims=())
    return Joined(program, changed, {z: axes for axes, z in joining.made.items()}, joining.sizes)


class _Classes:
    """The axes of a program in classes: those that uses bind to one another."""

    def __init__(self, program: TensorProgram) -> None:
        self.program, self.parent = program, dict[Axis, Axis]()
        self.values = program.values()
        for node in (*program.inputs, *program.nodes):
            for axis in axes_of(node):
                self.root(axis)
            for use in reads(node):
                for own, axis in zip(self.values[use.value].axes, use.axes, strict=True):
                    self.parent[self.root(own)] = self.root(axis)

    def root(self, axis: Axis) -> Axis:
        """Returns one axis that stands for the class of `axis`."""
        self.parent.setdefault(axis, axis)
        while self.parent[axis] != axis:
            axis = self.parent[axis]
        return axis

    def groups(self) -> Iterator[tuple[Axis, ...]]:
        """Yields classes that a reduction runs along together, and that every value has together."""
        seen: dict[Axis, list[tuple[str, bool]]] = {}
        barred: set[Axis] = set()
        for node in (*self.program.inputs, *self.program.nodes):
            own = [self.root(a) for a in axes_of(node)]
            if isinstance(node, Contraction | Ranking | Scan | Reindex | Lookup | Opaque):
                barred.update(own)
            barred.update(root for root, count in Counter(own).items() if count > 1)
            for root in own:
                seen.setdefault(root, []).append((node.name, root in map(self.root, node.axes)))
        done: set[Axis] = set()
        for node in self.program.nodes:
            if isinstance(node, Reduction) and len(node.over) > 1:
                group = tuple(map(self.root, node.over))
                alike = all(seen[root] == seen[group[0]] for root in group)
                if alike and barred.isdisjoint(group) and done.isdisjoint(group):
                    done.update(group)
                    yield group


@dataclass
class _Joining:
    """The axes that are made; by what they stand for."""

    program: TensorProgram
    classes: _Classes
    groups: Sequence[tuple[Axis, ...]]
    made: dict[tuple[Axis, ...], Axis] = field(default_factory=dict[tuple[Axis, ...], Axis])
    sizes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        self.known: dict[str, tuple[str, ...]] = {
            n.name: (n.name,) for n in self.program.nodes if isinstance(n, tensor.Extent)
        }
        taken = {s.name for s in self.program.spaces()}
        self.spaces: dict[tuple[Axis, ...], Space] = {}
        for number, group in enumerate(self.groups):
            name = next(n for n in (f"ALL{number}{'_' * i}" for i in range(len(taken) + 1)) if n not in taken)
            self.spaces[group] = Space(name)

    def over(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Replaces the axes of each group among `axes` by one, where its first stands."""
        found: list[Axis] = []
        for axis in axes:
            group = next((g for g in self.groups if self.classes.root(axis) in g), None)
            if group is None:
                found.append(axis)
                continue
            members = {self.classes.root(a): a for a in axes if self.classes.root(a) in group}
            key = tuple(members[root] for root in group)
            if key not in self.made:
                self.made[key] = Axis(f"{key[0].name}.all", self.spaces[group])
            if self.made[key] not in found:
                found.append(self.made[key])
        return tuple(found)

    def node(self, node: Node) -> Node:
        """Returns `node` over the joined axes; a number of elements along one is replaced by the product that it is."""
        count = self._count(node)
        if count is not None:
            return count
        node = with_uses(node, lambda use: replace(use, axes=self.over(use.axes)))
        node = replace(node, axes=self.over(node.axes))
        return replace(node, over=self.over(node.over)) if isinstance(node, Reduction) else node

    def _count(self, node: Node) -> tensor.Extent | None:
        if not isinstance(node, Elementwise) or node.axes:
            return None
        parts = _multiplied(node.expr, lambda i: self.known.get(node.args[i].value))
        if parts is None:
            return None
        self.known[node.name] = parts
        values = self.classes.values
        spaces = Counter(e.space for e in (values[p] for p in parts) if isinstance(e, tensor.Extent))
        for group, space in self.spaces.items():
            if spaces == Counter(a.space for a in group):
                self.sizes[node.name] = parts
                return tensor.Extent(node.name, (), node.dtype, space)
        return None


def _multiplied(expr: Scalar, known: Callable[[int], tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Returns the values that `expr` is the product of; None where it is more than that."""
    match expr:
        case Arg(index):
            return known(index)
        case Apply("mul", (one, other)):
            parts = _multiplied(one, known), _multiplied(other, known)
            return None if parts[0] is None or parts[1] is None else (*parts[0], *parts[1])
        case _:
            return None


def over_each(fold: Fold, whole: Joined) -> Fold | None:
    """Puts `fold`, of the program of `whole`, over the axes that its own stand for: those of its loop, and those around it.

    None where it has a product along an axis that stands for several.
    """
    (axis,) = fold.over
    apart = {a: whole.axes[a] for a in (axis, *fold.axes) if a in whole.axes}
    if not apart:
        return fold
    state = fold.state
    if axis in apart and any(isinstance(n, Dot) for n in (*fold.body, *state.update.nodes, *state.merge.nodes)):
        return None
    make = fresh(
        {n for node in (*fold.body, *state.update.nodes, *fold.after) for n in (*operands(node), *results(node))}
    )
    args: list[tuple[str, Use]] = []
    counts: list[BlockNode] = []
    for name, use in fold.args:
        if axis in apart and use.value in whole.sizes:
            parts = tuple((make(name), Use(p, ())) for p in whole.sizes[use.value])
            args += parts
            names = tuple(n for n, _ in parts)
            counts.append(Pointwise(name, _product(len(parts)), names, (), state.components[0].dtype))
        else:
            args.append((name, whole.apart(use)))
    read = {n for node in (*fold.body, *state.update.nodes) for n in operands(node)}
    if any(c.name in read for c in counts if isinstance(c, Pointwise)):
        return None
    expand = _Expanding(apart, make)
    return replace(
        fold,
        axes=expand.dims(fold.axes),
        over=expand.dims(fold.over),
        args=tuple(args),
        body=expand.nodes(fold.body),
        state=replace(
            state,
            components=tuple(replace(c, dims=expand.dims(c.dims)) for c in state.components),
            update=expand.graph(state.update),
            merge=expand.graph(state.merge),
            finish=expand.graph(state.finish),
        ),
        after=(*counts, *expand.nodes(fold.after)),
    )


def _product(count: int) -> Scalar:
    expr: Scalar = Arg(0)
    for i in range(1, count):
        expr = Apply("mul", (expr, Arg(i)))
    return expr


@dataclass(frozen=True, slots=True)
class _Expanding:
    """Operators over the axes that some of theirs stand for."""

    apart: Mapping[Axis, tuple[Axis, ...]]
    make: Callable[[str], str]

    def dims(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Returns `axes`, with several in place of each that stands for several."""
        return tuple(each for a in axes for each in self.apart.get(a, (a,)))

    def nodes(self, nodes: Sequence[BlockNode]) -> tuple[BlockNode, ...]:
        """Returns `nodes` over these axes."""
        return tuple(made for node in nodes for made in self._made(node))

    def graph(self, graph: Graph) -> Graph:
        """Returns `graph` with its nodes over these axes."""
        return replace(graph, nodes=self.nodes(graph.nodes))

    def _made(self, node: BlockNode) -> Iterator[BlockNode]:
        match node:
            case Collapse(name, monoid, arg, over) if over in self.apart:
                first, *others = self.apart[over]
                for each in reversed(others):
                    made = self.make(name)
                    yield Collapse(made, monoid, arg, each, node.location)
                    arg = made
                yield Collapse(name, monoid, arg, first, node.location)
            case Extent(name, _, dtype, along) if along is not None and along in self.apart:
                own = self.apart[along]
                parts = tuple(self.make(name) for _ in own)
                for part, each in zip(parts, own, strict=True):
                    yield Extent(part, each.space, dtype, each)
                yield Pointwise(name, _product(len(parts)), parts, (), dtype)
            case Pointwise() | Dot():
                yield replace(node, dims=self.dims(node.dims))
            case _:
                yield node
