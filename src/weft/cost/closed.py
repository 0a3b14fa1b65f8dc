"""What a kernel moves and holds, in closed form: sizes and blocks are symbols (FlashAttention on a Napkin, sections 2.3 and 2.4).

In: a program with places. Out: for each memory the values that are loaded from it and stored there, and what a thread block holds.
Loops on the grid are group partitions, whose blocks have the sizes `g_...`; loops inside are stream partitions, whose blocks
have the sizes `s_...`. Blocks are taken to divide their axes, as the paper does; `weft.cost.traffic` counts edges exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.block.linear import Linear
from weft.block.places import Place
from weft.block.program import Buffer, Graph, Load, Map, Store
from weft.block.ranges import All, Part, Spans, Within
from weft.block.spans import Span
from weft.block.subscripts import Subscript
from weft.block.walk import graphs, maps
from weft.cost.load_places import moving
from weft.cost.optimum import Expr, Optimum, optimum, sp
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes
from weft.tensor.axes import Axis, Space


def size_of(space: Space) -> Expr:
    """Return the symbol for the number of elements of `space`, or the number."""
    return sp.Integer(space.fixed) if space.fixed is not None else sp.Symbol(space.name, positive=True)


@dataclass(frozen=True, slots=True)
class HeldValues:
    """Values that a thread block has for longer than one iteration of a loop, or in one.

    Attributes:
        name: of the value.
        values: how many.
        lasting: they are there from one iteration of a loop to the next: its state, and what it reads again.
        what: what they are, for readers.
    """

    name: str
    values: Expr
    lasting: bool
    what: str


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """One kernel's transfers and memory.

    Attributes:
        loaded, stored: values by memory.
        held: what a thread block has on chip.
        groups, streams: the sizes of blocks of its loops on the grid, and of those inside.
        unstreamed: of spaces that loops inside go over, by name, why the kernel cannot go through them in blocks with what it holds
            and moves staying the same (theorem 1): what is held grows with the space, or something is loaded once more. Other
            spaces are streamed.
        axes: the elements of the axis that each of `groups` is a block of.
    """

    loaded: Mapping[str, Expr]
    stored: Mapping[str, Expr]
    held: tuple[HeldValues, ...]
    groups: tuple[Expr, ...]
    streams: tuple[Expr, ...]
    unstreamed: Mapping[str, str]
    axes: Mapping[Expr, Expr]

    @property
    def transfers(self) -> Expr:
        """`H`, all values that are moved."""
        return sp.expand(sp.Add(*self.loaded.values(), *self.stored.values()))

    @property
    def least(self) -> Expr:
        """Values that are moved where each block on the grid is all of its axis: no memory makes them fewer."""
        return self.transfers.subs(dict(self.axes), simultaneous=True)

    def memory(self, *names: str) -> Expr:
        """`M`, the values held on chip: those of the given names, or all that last."""
        return sp.Add(*(h.values for h in self.held if (h.name in names if names else h.lasting)))

    @property
    def stated(self) -> tuple[str, ...]:
        """The names of what lasts, the most values first in the limit of large sizes."""
        lasting = [h for h in self.held if h.lasting]
        return tuple(h.name for h in sorted(lasting, key=lambda h: -len(sp.Mul.make_args(h.values))))

    def __str__(self) -> str:
        """Return it as text, in values: transfers, what is held, and the fewest transfers, if a closed form of these is known."""
        lines = [f"{name} is loaded: {values}" for name, values in self.loaded.items()]
        lines += [f"{name} is stored: {values}" for name, values in self.stored.items()]
        lines += [f"held{' from block to block' if h.lasting else ''}: {h.what}: {h.values}" for h in self.held]
        lines.append(self._fewest())
        lines += [f"not streamed along {space}: {why}" for space, why in self.unstreamed.items()]
        return "\n".join(lines)

    def _fewest(self) -> str:
        if not any(h.lasting for h in self.held) or not self.groups:
            return "fewest transfers: these, whatever the memory: nothing is held from block to block"
        try:
            best = self.optimum()
        except UnsupportedError as error:
            return f"fewest transfers: {error.what}"
        if not best.groups:
            return f"fewest transfers: {best}, whatever the memory"
        given = [str(s) for s in self.streams if best.values.has(s)]
        while_ = (
            f"where what is held from block to block fills a memory of so many values{', for given ' * bool(given)}"
        )
        return f"fewest transfers: {best}, {while_}{', '.join(given)}, and blocks are no longer than their axes"

    def optimum(self, *names: str) -> Optimum:
        """Solve for the fewest transfers where the values of these names fill the memory; raises as `weft.cost.optimum`."""
        return optimum(self.transfers, self.memory(*names), self.groups)


def closed_form(part: KernelNodes) -> ClosedForm:
    """Return what the launch `part` of an applied program moves and holds.

    A load stands before all loops with whose blocks it does not move; what it loads is held as long as these run.

    Raises:
        UnsupportedError: a loop goes over a part of its space, whose elements depend on other loops.
    """
    walk = _Walk(frozenset((*part.reads, *part.writes)))
    walk.graph(Graph((), part.nodes, ()), ())
    own = [m for m in maps(Graph((), part.nodes, ())) if m.tile is not None and not m.unit and not m.runs_once]
    symbols = {p: tuple(dict.fromkeys(block_of(m) for m in own if (m.place is Place.grid) is p)) for p in (True, False)}
    held = tuple(walk.held.values())
    spaces = dict.fromkeys(
        m.axis.space for m in maps(Graph((), part.nodes, ())) if m.place is not Place.grid and not m.unit
    )
    reasons = {space.name: walk.why_not(space) for space in spaces}
    unstreamed = {name: why for name, why in reasons.items() if why}
    axes = {block_of(m): size_of(m.axis.space) for m in own if m.place is Place.grid}
    return ClosedForm(walk.loaded, walk.stored, held, symbols[True], symbols[False], unstreamed, axes)


def block_of(node: Map) -> Expr:
    """Return the symbol for the size of a block."""
    return sp.Symbol(f"{'g' if node.place is Place.grid else 's'}_{node.name}", positive=True)


@dataclass(frozen=True, slots=True)
class LoopAround:
    """A loop around an operator: its map, the elements of a block, and how many blocks a run of it has."""

    node: Map
    block: Expr
    runs: Expr

    @staticmethod
    def of(node: Map, around: Sequence[LoopAround]) -> LoopAround:
        """Return `node` with what its blocks are, over all of its space or through the block of a loop `around` it.

        Raises:
            UnsupportedError: it goes over a part of its space, whose elements depend on other loops.
        """
        match node.range:
            case All(Part.all | Part.full):
                whole = size_of(node.axis.space)
            case Within(outer, Part.all | Part.full):
                whole = next(loop.block for loop in around if loop.node.axis == outer)
            case Spans(
                (
                    Span(
                        ends=((), (Linear(((Axis() as outer, 1),), ()),)),
                    ),
                ),
                part,
            ) if outer.space == node.axis.space:
                # Up to the diagonal: of all blocks of the outer loop, half of the axis on average, and half of the block on it.
                beside = next(loop.block for loop in around if loop.node.axis == outer)
                size = size_of(outer.space)
                whole = {Part.full: (size - beside) / 2, Part.edge: beside}.get(part, (size + beside) / 2)
            case _:
                raise UnsupportedError(f"loop {node.name!r} goes over a part of its space: no closed form is known")
        block = sp.Integer(1) if node.unit else whole if node.tile is None or node.runs_once else block_of(node)
        return LoopAround(node, block, sp.sympify(whole / block))


def empty(node: Map) -> bool:
    """Tell whether `node` goes over what whole blocks leave: nothing, where blocks divide the axis."""
    return node.range.part is Part.edge and not node.range.narrowed


def standing(node: Load, around: Sequence[LoopAround]) -> int:
    """Return how many of the loops `around` a load stands in: it is before all those with whose blocks it does not move.

    Raises:
        UnsupportedError: it takes parts of blocks.
    """
    along = moving(node, [loop.node for loop in around])
    digits = [digit for subscript in node.at for _, digit in subscript.terms]
    blocks = {loop.node.axis: loop.block for loop in around}
    if any((digit.div != 1 or digit.mod is not None) and blocks[digit.axis] != 1 for digit in digits):
        raise UnsupportedError(f"{node.memory!r} is loaded by parts of blocks: no closed form is known")
    return max((i + 1 for i, loop in enumerate(around) if _moves(loop, along)), default=0)


def list_sizes(node: Buffer, store: Store, around: Sequence[LoopAround], depth: int) -> tuple[Expr, ...]:
    """Return how many elements a list of the kernel's own has along each of its axes, by what `store` puts there.

    Along an axis that its items lack it has one for each block. `depth`: how many of the loops `around` the list is made in; along
    the axes of these it has a single block.
    """
    loops = {loop.node.axis: (loop, i >= depth) for i, loop in enumerate(around)}

    def size(axis: Axis, subscript: Subscript) -> Expr:
        own = [loops[a] for a in subscript.axes]
        return sp.Mul(
            *(loop.block for loop, _ in own if axis in node.dims), *(loop.runs for loop, inside in own if inside)
        )

    return tuple(size(axis, subscript) for axis, subscript in zip(node.axes, store.at, strict=True))


def _moves(loop: LoopAround, along: set[Axis]) -> bool:
    """Tell whether what is loaded along these axes is another in each iteration, or in each thread block."""
    return loop.node.place is Place.grid or (loop.runs != 1 and loop.node.axis in along)


_LIST = "a list between loops"


@dataclass(slots=True)
class _Walk:
    shared: frozenset[str]
    loaded: dict[str, Expr] = field(default_factory=dict[str, Expr])
    stored: dict[str, Expr] = field(default_factory=dict[str, Expr])
    held: dict[str, HeldValues] = field(default_factory=dict[str, HeldValues])
    lists: dict[str, tuple[Buffer, int]] = field(default_factory=dict[str, tuple[Buffer, int]])
    passes: dict[tuple[str, Space], set[str]] = field(default_factory=dict[tuple[str, Space], set[str]])

    def graph(self, graph: Graph, around: Sequence[LoopAround]) -> None:
        """Count what the operators of `graph` move and hold, which run in the loops `around`."""
        for node in graph.nodes:
            match node:
                case Map():
                    self.loop(node, around)
                case Buffer():
                    self.lists[node.name] = node, len(around)
                    self.hold(node.name, sp.Integer(0), _LIST, lasting=False)
                case Load() | Store() if node.memory in self.lists:
                    self.listed(node, around)
                case Load() if node.memory in self.shared:
                    self.load(node, around)
                case Store() if node.memory in self.shared:
                    axes = tuple(dict.fromkeys(axis for subscript in node.at for axis in subscript.axes))
                    self.stored[node.memory] = self.stored.get(node.memory, 0) + self.moved(axes, around)
                case _:
                    pass

    def loop(self, node: Map, around: Sequence[LoopAround]) -> None:
        """Walk a loop; what whole blocks leave is nothing where blocks divide the axis."""
        if empty(node):
            return
        own = LoopAround.of(node, around)
        inside = [*around, own]
        for component in () if node.state is None else node.state.components:
            values = self.elements(component.dims, inside)
            self.hold(component.name, values, f"state of {node.name}", lasting=own.runs != 1)
        for graph in graphs(node):
            self.graph(graph, inside)

    def load(self, node: Load, around: Sequence[LoopAround]) -> None:
        """Count a load, which stands where the innermost loop that it moves with is."""
        along = moving(node, [loop.node for loop in around])
        depth = standing(node, around)
        axes = tuple(a for a in along if a in {loop.node.axis for loop in around})
        self.loaded[node.memory] = self.loaded.get(node.memory, 0) + self.moved(axes, around[:depth], around)
        for loop in around:
            if loop.node.place is not Place.grid and loop.node.axis in along:
                self.passes.setdefault((node.memory, loop.node.axis.space), set()).add(loop.node.name)
        lasting = any(loop.runs != 1 for loop in around[depth:])
        self.hold(node.memory, self.elements(node.dims, around), f"a block of {node.memory}", lasting=lasting)

    def listed(self, node: Load | Store, around: Sequence[LoopAround]) -> None:
        """Add what is stored in a list of the kernel's own; it lasts where a loop that stores or loads it has several blocks."""
        buffer, depth = self.lists[node.memory]
        known = self.held[node.memory]
        new = sp.Mul(*list_sizes(buffer, node, around, depth)) if isinstance(node, Store) else sp.Integer(0)
        lasting = known.lasting or any(loop.runs != 1 for loop in around[depth:])
        self.held[node.memory] = HeldValues(node.memory, known.values + new, lasting, _LIST)

    def why_not(self, space: Space) -> str:
        """Say why `space` is not streamed: "" where it is."""
        grown = [h.what for h in self.held.values() if space.fixed is None and h.values.has(size_of(space))]
        if grown:
            return f"{', '.join(grown)}: held, and grows with it"
        again = {memory: names for (memory, along), names in self.passes.items() if along == space and len(names) > 1}
        return "; ".join(f"{memory} is loaded by loops {', '.join(sorted(names))}" for memory, names in again.items())

    def moved(
        self, axes: Sequence[Axis], around: Sequence[LoopAround], scope: Sequence[LoopAround] | None = None
    ) -> Expr:
        """Count the values that go one way: an item with these axes in each iteration of the loops `around`."""
        return sp.Mul(self.elements(axes, around if scope is None else scope), *(loop.runs for loop in around))

    def elements(self, axes: Sequence[Axis], around: Sequence[LoopAround]) -> Expr:
        """Count the elements of an item with these axes."""
        blocks = {loop.node.axis: loop.block for loop in around}
        return sp.Mul(*(blocks[a] for a in axes))

    def hold(self, name: str, values: Expr, what: str, *, lasting: bool) -> None:
        """Note that so many values called `name` are on chip."""
        known = self.held.get(name)
        if known is None or (lasting and not known.lasting):
            self.held[name] = HeldValues(name, sp.sympify(values), lasting, what)
