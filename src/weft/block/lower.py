"""Table 2: each operation of a tensor program becomes its predefined, fully unfused subgraph of block operators.

Every operation is a nest of maps, one per axis, around one functional operator; a contraction or a reduction stacks its
partial results over the contracted axis and then reduces that list. All fusion is left to the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.block.copies import merging
from weft.block.edges import Iterate
from weft.block.fold import Fold, in_order
from weft.block.leaf import LoweredLeaf, access, carried, expression, indices, looked_up, prefixed, source
from weft.block.loop_axes import LoopAxes, loop_axes
from weft.block.prefixes import of_one, state_of
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Bounded,
    Collapse,
    Dot,
    Feed,
    Final,
    Graph,
    Map,
    Pointwise,
    Rank,
    Stacked,
    State,
    sealed,
)
from weft.block.rename import rename_axes, rename_node
from weft.block.unlisted import at_matmuls, chosen, indices_of, windows
from weft.block.walk import operands
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    reads,
    reads_through,
    uses,
)
from weft.tensor.scalar import Arg, substitute


def lower(
    program: TensorProgram,
    folds: Sequence[Fold] = (),
    lengths: Mapping[str, int] | None = None,
    *,
    doubles: bool = True,
) -> BlockProgram:
    """Lowers `program` to a block program, by a look-up per operation (Blockbuster, section 2.2 and Table 2).

    Args:
        program: to lower.
        folds: loops that make some of its values; what only those values need is not made.
        lengths: of spaces, by name, where loops may be nested in any order and all go by blocks, as on a GPU. Then axes that
            nothing reduces are outermost, so that all nests have them in common; of the others the longest is, since it can be cut
            in the most parts.
        doubles: what scans carry from block to block may be float64.

    Raises:
        UnsupportedError: for an opaque operation, a reindexing that is not a view of an input, or a lookup in what is no input: the
            plan keeps those out; and where folds depend on each other in a circle, or along an axis that blocks cannot run over.
    """
    indices = indices_of(program)
    at = at_matmuls(program, indices)
    lowering = _Lowering(program, loop_axes(program, lengths), at, indices, doubles, folds)
    for each in in_order(program, folds, lowering.at_matmuls):
        if isinstance(each, Fold):
            lowering.fold(each)
        else:
            lowering.add(each)
    inputs = tuple((n.name, BlockType(n.axes, lowering.blocked(n.axes), n.dtype)) for n in program.inputs)
    graph = Graph(tuple(n for n, _ in inputs), tuple(lowering.nodes), program.outputs)
    return BlockProgram(inputs, graph, tuple(lowering.lists[name] for name in program.outputs))


@dataclass
class _Lowering:
    """The state of one lowering: which list axes stand for the axes of each value of the tensor program."""

    program: TensorProgram
    axes: LoopAxes
    at_matmuls: dict[str, Cast]
    indices: dict[str, Node]
    doubles: bool
    folds: Sequence[Fold]
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    lists: dict[str, tuple[Axis, ...]] = field(default_factory=dict[str, tuple[Axis, ...]])
    count: int = 0

    def __post_init__(self) -> None:
        self.lists = {n.name: n.axes for n in self.program.inputs}
        readers = [n for n in self.program.nodes if not isinstance(n, Elementwise | Cast | Lookup)]
        self.listed = {name for n in readers for name in uses(n)}.union(self.program.outputs)
        self.listed.update(cast.arg.value for cast in self.at_matmuls.values())
        folded = {u.value for fold in self.folds for _, u in fold.args}
        self.windows = windows(self.program, self.indices, self.listed | folded)
        elsewhere = folded.union(cast.arg.value for cast in self.at_matmuls.values())
        self.chosen = chosen(self.program, elsewhere, self.axes.is_unit)

    def blocked(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Returns the axes of `axes` that items have."""
        return tuple(a for a in axes if not self.axes.is_unit(a))

    def add(self, node: Node) -> None:
        """Appends the subgraph of `node`, unless it is made again wherever it is read."""
        match node:
            case Input():
                pass
            case Elementwise() if node.dtype.kind == "int" and node.dtype is not DType.int64:
                # A kernel's arithmetic is 64 bits wide inside an expression: it would not wrap where eager's does.
                raise UnsupportedError(f"arithmetic that wraps at {node.dtype}", where=node.location)
            case _ if self._in_place_only(node):
                pass
            case Elementwise() | Cast():
                self._pointwise(node)
            case Constant() | Extent() | Iota():
                self._nest(LoweredLeaf(node.name, node.axes, (), lambda made, _, out: [self._source(node, made, out)]))
            case Contraction():
                self._contraction(node)
            case Reduction():
                self._reduction(node)
            case Scan():
                self._scan(node)
            case Ranking():
                self._ranking(node)
            case Lookup():
                self._lookup(node)
            case Reindex() | Opaque():
                raise UnsupportedError(f"{type(node).__name__.lower()} {node.name} does not lower to a block program")

    def _in_place_only(self, node: Node) -> bool:
        """Tells whether `node` is made again wherever it is read, and nothing wants a list of it."""
        if node.name in self.windows or node.name in self.chosen:
            return True
        return node.name in self.indices and node.name not in self.listed

    def _pointwise(self, node: Elementwise | Cast) -> None:
        args = reads(node)
        fed = tuple(u for u in args if u.value not in self.indices and u.value not in self.windows)
        local = tuple(dict.fromkeys(u for u in args if u.value in self.indices))
        opened = tuple(dict.fromkeys(u for u in args if u.value in self.windows))
        place = {u: i for i, u in enumerate((*fed, *local, *opened))}
        expr = substitute(expression(node), lambda i: Arg(place[args[i]]))
        sources = tuple(self._source_of(self.windows[u.value], u) for u in opened)

        def leaf(made: dict[Axis, Axis], names: tuple[str, ...], out: str) -> list[BlockNode]:
            here: dict[Use, BlockNode] = {}
            given = (*names[: len(fed)], *(self._in_place(u, made, out, here) for u in local))
            loaded = (self._opened(u, n, made, out, here) for u, n in zip(opened, names[len(fed) :], strict=True))
            every, dims = (*given, *loaded), self._dims(made, node.axes)
            return [*here.values(), Pointwise(out, expr, every, dims, node.dtype, node.location)]

        self._nest(LoweredLeaf(node.name, node.axes, (*fed, *sources), leaf))

    def _source_of(self, node: Lookup, use: Use) -> Use:
        """Returns what `use`, of a lookup, reads in: along its axes, and along axes of their own where indices say where."""
        outer = dict(zip(node.axes, use.axes, strict=True))
        own = zip(node.index, self.program.values()[node.source].axes, strict=True)
        axes = (
            outer[index] if isinstance(index, Axis) else Axis(f"{node.name}.{dim}", axis.space)
            for dim, (index, axis) in enumerate(own)
        )
        return Use(node.source, tuple(axes))

    def _opened(
        self,
        use: Use,
        memory: str,
        made: dict[Axis, Axis],
        out: str,
        here: dict[Use, BlockNode],
        given: Mapping[Use, str] | None = None,
    ) -> str:
        """Loads what `use`, of a window or of what is chosen, reads in `memory`, in the leaf of `out`; the name of the value.

        given: indices that there are already; others are made.
        """
        node = self.windows[use.value] if use.value in self.windows else self.chosen[use.value]
        known = given or {}
        items = tuple(known.get(u) or self._in_place(u, made, out, here) for u in reads_through(node, use))
        dims = self._dims(made, tuple(dict.fromkeys(use.axes)))
        here[use] = looked_up(node, f"{out}.{len(here)}", memory, items, dims)
        return here[use].name

    def _lookup(self, node: Lookup) -> None:
        """Lowers a lookup to a nest over its axes, which iterates its source where it goes along that, around one load."""
        memory = self.program.values()[node.source]
        if isinstance(memory, Iota):
            self._bounded(node, memory.axes[0])
            return
        if not isinstance(memory, Input):
            raise UnsupportedError(
                f"{node.name} looks up in {node.source}, which is made beside it", where=node.location
            )
        fed = tuple(u for u in dict.fromkeys(reads(node)) if u.value not in self.indices)
        own = Use(node.name, node.axes)

        def leaf(made: dict[Axis, Axis], names: tuple[str, ...], out: str) -> list[BlockNode]:
            here: dict[Use, BlockNode] = {}
            given = dict(zip(fed, names[1:], strict=True))
            items = tuple(given.get(u) or self._in_place(u, made, out, here) for u in reads(node))
            return [*here.values(), looked_up(node, out, names[0], items, self._dims(made, node.axes))]

        self._nest(LoweredLeaf(node.name, node.axes, (self._source_of(node, own), *fed), leaf))

    def _bounded(self, node: Lookup, axis: Axis) -> None:
        """Lowers a lookup among the numbers of `axis`, which are what is looked up: that these are some is all that it says."""
        (use,) = reads(node)
        fed = () if use.value in self.indices else (use,)

        def leaf(made: dict[Axis, Axis], names: tuple[str, ...], out: str) -> list[BlockNode]:
            here: dict[Use, BlockNode] = {}
            arg = names[0] if names else self._in_place(use, made, out, here)
            return [*here.values(), Bounded(out, arg, axis.space, self._dims(made, node.axes), node.location)]

        self._nest(LoweredLeaf(node.name, node.axes, fed, leaf))

    def _in_place(self, use: Use, made: dict[Axis, Axis], out: str, here: dict[Use, BlockNode]) -> str:
        """Makes what `use` reads again in the leaf of `out`, whose operators so far are `here`; the name of the value."""
        if use in here:
            return here[use].name
        node = self.indices[use.value]
        match node:
            case Elementwise() | Cast():
                names = tuple(self._in_place(u, made, out, here) for u in reads_through(node, use))
                expr = expression(node)
                dims = self._dims(made, use.axes)
                here[use] = Pointwise(f"{out}.{len(here)}", expr, names, dims, node.dtype, node.location)
            case _:
                here[use] = self._source(
                    node, {own: made[a] for own, a in zip(node.axes, use.axes, strict=True)}, f"{out}.{len(here)}"
                )
        return here[use].name

    def _source(self, node: Node, made: dict[Axis, Axis], name: str) -> BlockNode:
        return source(node, made, name, self.axes.is_unit)

    def _contraction(self, node: Contraction) -> None:
        over = self.axes.order(node.over)
        shared = set(node.left.axes) & set(node.right.axes)
        if not over or self.axes.is_unit(over[-1]) or not set(over) <= shared:
            raise UnsupportedError(
                f"the contraction {node.name} has no axis that blocks could run over", where=node.location
            )
        dtype, operands = node.dtype.accumulator, (node.left, node.right)
        if (
            self.blocked(node.axes)[:1]
            and self.blocked(node.axes)[0] not in node.left.axes
            and len(self.blocked(node.axes)) > 1
        ):
            operands = (node.right, node.left)  # the left operand has the rows of the result
        casts = tuple(self.at_matmuls.get(u.value) for u in operands)
        read = tuple(u if c is None else reads_through(c, u)[0] for u, c in zip(operands, casts, strict=True))
        opened = {u: self.chosen[u.value] for u in read if u.value in self.chosen}
        fed = tuple(self._source_of(opened[u], u) if u in opened else u for u in read)
        said = [i for u, lookup in opened.items() for i in reads_through(lookup, u) if i.value not in self.indices]

        def leaf(made: dict[Axis, Axis], names: tuple[str, ...], out: str) -> list[BlockNode]:
            here: dict[Use, BlockNode] = {}
            given = dict(zip(said, names[2:], strict=True))
            names = tuple(
                self._opened(u, n, made, out, here, given) if u in opened else n
                for u, n in zip(read, names, strict=False)
            )
            rounded = [
                Pointwise(f"{out}.{side}", Arg(0), (name,), self._dims(made, use.axes), cast.dtype, cast.location)
                for side, name, use, cast in zip(("left", "right"), names, read, casts, strict=True)
                if cast is not None
            ]
            left, right = (
                n if c is None else f"{out}.{s}" for s, n, c in zip(("left", "right"), names, casts, strict=True)
            )
            dims = self._dims(made, node.axes)
            return [*here.values(), *rounded, Dot(out, left, right, made[over[-1]], dims, dtype, None, node.location)]

        self._nest(LoweredLeaf(node.name, node.axes, (*fed, *said), leaf, tuple(over), Monoid.sum, dtype))

    def _reduction(self, node: Reduction) -> None:
        over = self.axes.order(node.over)

        def leaf(made: dict[Axis, Axis], names: tuple[str, ...], out: str) -> list[BlockNode]:
            blocked = [made[a] for a in over if not self.axes.is_unit(a)]
            if not blocked:  # one element of the axis in each iteration: it is its own partial result
                dims, dtype = self._dims(made, node.axes), node.dtype.accumulator
                return [Pointwise(out, Arg(0), names, dims, dtype, node.location)]
            steps = [*(f"{out}.{i}" for i in range(len(blocked) - 1)), out]
            args = [names[0], *steps]
            return [
                Collapse(s, node.monoid, a, b, node.location) for s, a, b in zip(steps, args, blocked, strict=False)
            ]

        self._nest(
            LoweredLeaf(node.name, node.axes, (node.arg,), leaf, tuple(over), node.monoid, node.dtype.accumulator)
        )

    def _scan(self, node: Scan) -> None:
        """Lowers all results of a scan to maps over its other axes, in them one loop whose iterations see what came before."""
        if node.name in self.lists:
            return
        results = {n.result: n.name for n in self.program.nodes if isinstance(n, Scan) and n.whole == node.whole}
        free = [a for a in self.axes.order(node.axes) if a != node.over]
        made = {a: self._fresh(a) for a in (*free, node.over)}
        axis, unit = made[node.over], self.axes.is_unit(node.over)
        dims = self._dims(made, [a for a in node.axes if a != node.over])
        wide = carried(node) if self.doubles else node.kinds
        read = tuple(f"%{i}" for i in range(len(node.args)))
        elements, scan = prefixed(node, read, axis, dims, unit)
        state = state_of(scan, wide, "%s")
        nodes = (*elements, *(of_one(scan, wide) if unit else (scan,)))
        sources = [dict(zip(use.axes, self.lists[use.value], strict=True)) for use in node.args]

        def build(rest: Sequence[Axis], outer: Mapping[int, str]) -> Map:
            over = rest[0] if rest else node.over
            feeds = tuple(Feed(n, n, access(source, over)) for n, source in zip(read, sources, strict=True))
            inner = {result: scan.names[result] for result in outer}
            body = Graph((), (build(rest[1:], inner),) if rest else nodes, ())
            name, own = made[over].name, None if rest else state
            stacked = tuple(Stacked(outer[result], inner[result]) for result in outer)
            return sealed(Map(name, made[over], feeds, body, stacked, own, unit=self.axes.is_unit(over)))

        self.nodes.append(rename_node(build(free, results), dict(zip(read, uses(node), strict=True))))
        # The loop is innermost, wherever its axis stands among those of the list.
        self.lists |= {name: tuple(made[a] for a in node.axes) for name in results.values()}

    def fold(self, fold: Fold) -> None:
        """Appends the nest of `fold`: maps over its free axes, in them its loop and what follows that."""
        unit = next((a for a in fold.over if self.axes.is_unit(a)), None)
        if unit is not None:
            raise UnsupportedError(f"a loop over {unit} by single elements has no blocks to reduce")
        free = self.axes.order(fold.axes)
        made = {a: self._fresh(a) for a in (*free, *fold.over)}
        fed = {name: u for name, u in fold.args if u.value not in self.indices}
        lists = {name: dict(zip(u.axes, self.lists[u.value], strict=True)) for name, u in fed.items()}
        results = tuple(f"{value}.result" for value, _ in fold.makes)

        def build(rest: list[Axis]) -> tuple[BlockNode, ...]:
            if not rest:
                return self._named(fold, self._folded(fold, made, lists), results)
            axis = rest[0]
            feeds = tuple(Feed(n, n, access(ls, axis)) for n, ls in lists.items())
            outputs = tuple(Stacked(r, r) for r in results)
            body = Graph((), build(rest[1:]), ())
            return (sealed(Map(made[axis].name, made[axis], feeds, body, outputs, unit=self.axes.is_unit(axis))),)

        names = {name: u.value for name, u in fed.items()} | dict(zip(results, (v for v, _ in fold.makes), strict=True))
        self.nodes += [rename_node(node, names) for node in build(free)]
        bound = {a.space: a for a in fold.axes}
        for value, _ in fold.makes:
            axes = self.program.values()[value].axes
            self.lists[value] = tuple(made[a if a in fold.axes else bound[a.space]] for a in axes)

    def _folded(
        self, fold: Fold, made: dict[Axis, Axis], lists: Mapping[str, dict[Axis, Axis]]
    ) -> tuple[BlockNode, ...]:
        """Returns the loop of `fold`, in its nest, and what follows it."""
        read = {n for node in fold.body for n in operands(node)} | set(fold.state.feeds)
        inside = self._made_again(fold, made, read)
        finished = {n for node in fold.after for n in operands(node)}
        outside = self._made_again(fold, made, finished)
        finished.update(result for _, result in fold.makes)
        state = replace(
            fold.state,
            components=tuple(replace(c, dims=self._dims(made, c.dims)) for c in fold.state.components),
            update=replace(fold.state.update, nodes=self._realised(fold.state.update.nodes, made)),
            merge=replace(fold.state.merge, nodes=self._realised(fold.state.merge.nodes, made)),
        )
        names = tuple(c.name for c in state.components)
        body = Graph((), (*inside, *self._realised(fold.body, made)), ())
        order = self.axes.order(fold.over)
        for place, axis in reversed(list(enumerate(order))):
            loop = made[axis]
            feeds = tuple(Feed(n, n, access(ls, axis)) for n, ls in lists.items() if n in read)
            if place:  # its state is merged into that of the loop around it
                outs = tuple(Final(f"{n}.inner", n) for n in names)
                raw = replace(state, finish=Graph(names, (), names))
                body = Graph((), (sealed(Map(loop.name, loop, feeds, body, outs, raw)),), ())
                if place == len(order) - 1:
                    state = replace(state, feeds=tuple(f"{n}.inner" for n in names), update=merging(state))
            else:
                finals = tuple(Final(n, n) for n in names if n in finished)
                body = Graph((), (sealed(Map(loop.name, loop, feeds, body, finals, state)),), ())
        return (*body.nodes, *outside, *self._realised(fold.after, made))

    def _named(self, fold: Fold, nodes: tuple[BlockNode, ...], names: tuple[str, ...]) -> tuple[BlockNode, ...]:
        """Returns `nodes` with the values that the fold makes called `names`."""
        new = dict(zip((made for _, made in fold.makes), names, strict=True))
        assert len(new) == len(names), "a fold makes each value once"
        return tuple(rename_node(n, new) for n in nodes)

    def _made_again(self, fold: Fold, made: dict[Axis, Axis], read: Collection[str]) -> list[BlockNode]:
        """Makes those values of `read` that indices and sizes alone decide where they are read."""
        nodes: list[BlockNode] = []
        for name, use in fold.args:
            if use.value in self.indices and name in read:
                here: dict[Use, BlockNode] = {}
                last = self._in_place(use, made, f"{name}.made", here)
                nodes += [rename_node(n, {last: name}) for n in here.values()]
        return nodes

    def _realised(self, nodes: Sequence[BlockNode], made: dict[Axis, Axis]) -> tuple[BlockNode, ...]:
        """Returns the operators of a fold over the axes that were made for its own; items lack those that go by single elements."""
        return tuple(
            rename_axes(
                Graph((), (replace(n, dims=self.blocked(n.dims)) if isinstance(n, Pointwise | Dot) else n,), ()), made
            ).nodes[0]
            for n in nodes
        )

    def _ranking(self, node: Ranking) -> None:
        """Lowers both results of a ranking to one loop: maps over what is free and over the ranks, the loop inside."""
        if node.name in self.lists:
            return
        names = {n.places: n.name for n in self.program.nodes if isinstance(n, Ranking) and n.both == node.both}
        free = self.axes.order(node.axes)
        made = {a: self._fresh(a) for a in (*free, node.over)}
        unit, blocked = self.axes.is_unit(node.over), self._dims(made, node.axes)
        axis, rank = made[node.over], None if node.rank is None else made[node.rank]
        dtype = self.program.values()[node.arg.value].dtype.accumulator
        along = None if unit else axis
        first = Rank("%s", "%p", "%0", "%i", ("", ""), along, rank, blocked, node.order, dtype, node.location)
        state = State.of_ranking(first, indices("%i", axis, unit))
        source = dict(zip(node.arg.axes, self.lists[node.arg.value], strict=True))
        outputs = {places: state.components[int(places)].name for places in names}

        def build(rest: list[Axis], results: Mapping[bool, str]) -> Map:
            over = rest[0] if rest else node.over
            feed = (Feed("%0", "%0", access(source, over)),)
            inner = {places: f"%t{int(places)}" for places in results}
            if rest:
                body = build(rest[1:], inner)
                stacked = tuple(Stacked(results[p], inner[p]) for p in results)
                shell = Map(made[over].name, made[over], feed, Graph((), (body,), ()), stacked)
                return sealed(replace(shell, unit=self.axes.is_unit(over)))
            finals = tuple(Final(results[p], outputs[p]) for p in results)
            return sealed(Map(axis.name, axis, feed, Graph((), (), ()), finals, state, unit=unit))

        self.nodes.append(rename_node(build(free, names), {"%0": node.arg.value}))
        self.lists |= {name: tuple(made[a] for a in node.axes) for name in names.values()}

    def _dims(self, made: dict[Axis, Axis], axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(made[a] for a in self.blocked(axes))

    def _fresh(self, axis: Axis) -> Axis:
        self.count += 1
        return Axis(f"{axis.space.name.lower()}.{self.count}", axis.space)

    def _nest(self, leaf: LoweredLeaf) -> None:
        """Makes maps over the leaf's axes, operands iterated where they have the axis; then over `over`, each with its
        reduction.
        """
        free = self.axes.order(leaf.axes)
        made = {a: self._fresh(a) for a in (*free, *leaf.over)}
        names = tuple(f"%{i}" for i in range(len(leaf.args)))
        lists = [dict(zip(u.axes, self.lists[u.value], strict=True)) for u in leaf.args]

        def build(rest: list[Axis], result: str) -> list[BlockNode]:
            if not rest:
                return leaf.make(made, names, result)
            axis, body = rest[0], Graph(names, tuple(build(rest[1:], "%t")), ("%t",))
            feeds = tuple(Feed(n, n, access(ls, axis)) for n, ls in zip(names, lists, strict=True))
            stacked = f"{result}.parts" if axis in leaf.over else result
            part = Map(
                made[axis].name, made[axis], feeds, body, (Stacked(stacked, "%t"),), unit=self.axes.is_unit(axis)
            )
            return [part] if axis not in leaf.over else [part, self._reduce(part, stacked, result, leaf, made)]

        outer = {n: u.value for n, u in zip(names, leaf.args, strict=True)}
        self.nodes += [rename_node(node, outer) for node in build([*free, *leaf.over], leaf.name)]
        self.lists[leaf.name] = tuple(made[a] for a in leaf.axes)

    def _reduce(self, part: Map, parts: str, result: str, leaf: LoweredLeaf, made: dict[Axis, Axis]) -> Map:
        """Makes the reduction operator: it combines the list `parts` that `part` stacks into one item."""
        loop = self._fresh(part.axis)
        state = State.of_monoid(leaf.monoid, "%p", self._dims(made, leaf.axes), leaf.carried, "%s")
        feed = Feed(parts, "%p", Iterate(part.axis))
        return Map(loop.name, loop, (feed,), Graph(("%p",), (), ("%p",)), (Final(result, "%s"),), state, unit=part.unit)
