"""The block program: how blocks of data move through a computation (Blockbuster, section 2).

A `Graph` is a directed acyclic graph of block operators in topological order; a `Map` holds an inner graph. Every
form of the program on its way from lowering to code is this one form: rules rewrite it, `apply` gives its loops places, the
emitters print it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.block.edges import BlockType, Broadcast, Grouped, Iterate, Typed
from weft.block.guard import Guard
from weft.block.indices import Bounded, Index
from weft.block.places import NO_DEMANDS, Layout, LoopDemands, Place
from weft.block.ranges import EVERY_BLOCK, Part, Range
from weft.block.roles import AXES, COPIES, MAKES, OVERWRITES, READS, SHARES
from weft.block.size import Elements, Size
from weft.block.subscripts import Subscript
from weft.errors import Location
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.merge import StateMerge
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, ExactNumbers, Number, Scalar

Access: TypeAlias = Iterate | Broadcast | Grouped
"""What an iteration of a map sees of an input."""


# Nodes.


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`expr` at every element; arguments are aligned by axis, so that a vector is added to each row or column it names.

    Table 1's add, mul, row_shift, row_scale and outer are this node; `weft.block.table1` gives their names.
    """

    name: str = field(metadata=MAKES)
    expr: Scalar
    args: tuple[str, ...] = field(metadata=OVERWRITES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtype: DType
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Dot:
    """Table 1's dot: `left` times `right`, summed over axis `over` of both; fp32 or wider; added to `acc` where given."""

    name: str = field(metadata=MAKES)
    left: str = field(metadata=READS)
    right: str = field(metadata=READS)
    over: Axis = field(metadata=AXES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtype: DType
    acc: str | None = field(default=None, metadata=OVERWRITES)
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Collapse:
    """Combine the elements of an item along `over` by `monoid`; Table 1's row_sum is the case of a block and a sum."""

    name: str = field(metadata=MAKES)
    monoid: Monoid
    arg: str = field(metadata=READS)
    over: Axis = field(metadata=AXES)
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """The states of elements along `over`, each merged with what came before the block and with all before it; and the whole.

    Of each component:

    Attributes:
        names: an item of `dims`, `over` among them, of one of `dtypes`: computed in the type of `accs`, and rounded once.
        totals: what came before merged with the whole block: an item like `accs`.
        args: the states of single elements.
        accs: what came before the block: an item of `dims` without `over`.
        merge: of two states.
    """

    names: tuple[str, ...] = field(metadata=MAKES)
    totals: tuple[str, ...] = field(metadata=MAKES)
    args: tuple[str, ...] = field(metadata=READS)
    accs: tuple[str, ...] = field(metadata=READS)
    merge: StateMerge
    over: Axis = field(metadata=AXES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtypes: tuple[DType, ...]
    location: Location | None = None

    @property
    def name(self) -> str:
        """Return what messages call it: its first result."""
        return self.names[0]

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes of what came before."""
        return tuple(a for a in self.dims if a != self.over)

    @property
    def in_order(self) -> bool:
        """Tell whether the order in which parts are merged decides whether results are finite: floats are multiplied."""
        return self.merge.multiplies and any(dtype.is_float for dtype in self.dtypes)


@dataclass(frozen=True, slots=True)
class Rank:
    """The elements that come first in `order` of those of `acc` and of `arg` along `over`; two results, values and places.

    Places are the elements' numbers; one whose number is `NOTHING` is not there, as padding is not. So a ranking goes on from
    block to block, and two rankings become one by the same operator, whose `arg` and `numbers` are the other ranking.

    Attributes:
        name, places: the results, of `dims` both.
        arg, numbers: values, and their numbers: items of `dims` without `rank` and with `over`, which is all that numbers need.
        over: what `arg` is ranked along; `rank` itself where it is a ranking; None where an item has one element of it.
        rank: the axis of the ranking, whose one block is all of its space, of fixed size; None for the first element alone.
        acc: the ranking so far, values and places.
    """

    name: str = field(metadata=MAKES)
    places: str = field(metadata=MAKES)
    arg: str = field(metadata=READS)
    numbers: str = field(metadata=READS)
    acc: tuple[str, str] = field(metadata=OVERWRITES)
    over: Axis | None = field(metadata=AXES)
    rank: Axis | None = field(metadata=AXES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    order: Order
    dtype: DType
    location: Location | None = None

    @property
    def count(self) -> int:
        """The number of elements that are kept."""
        return 1 if self.rank is None else self.rank.space.size({})


@dataclass(frozen=True, slots=True, eq=False)
class Literal(ExactNumbers):
    """A number, a scalar item."""

    name: str = field(metadata=MAKES)
    value: Number
    dtype: DType


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of elements of `space`, a scalar item; with `axis`, a map's around it, of that one's current block."""

    name: str = field(metadata=MAKES)
    space: Space
    dtype: DType
    axis: Axis | None = field(default=None, metadata=AXES)


@dataclass(frozen=True, slots=True, eq=False)
class Fill(ExactNumbers):
    """The item with `value` in the elements beyond its valid extent."""

    name: str = field(metadata=MAKES)
    arg: str = field(metadata=SHARES)
    value: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A copy of an item in local memory, dense, with its last axis of `dims` innermost; values are unchanged."""

    name: str = field(metadata=MAKES)
    arg: str = field(metadata=COPIES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    layout: Layout


@dataclass(frozen=True, slots=True)
class Join:
    """One list of two parts in one memory: the block that a map over `First` stacks, and those of a map over `Remainder`.

    Attributes:
        first, rest: the parts, stacked in the same graph and read by nothing else.
        axes: (axis of `first`, the axis of `rest` that it is in the whole), for all that differ; first those along which they join.
    """

    name: str = field(metadata=MAKES)
    first: str = field(metadata=READS)
    rest: str = field(metadata=READS)
    axes: tuple[tuple[Axis, Axis], ...] = field(metadata=AXES)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for the list that the maps after it, in its graph, store: one element for each of `axes`, whole.

    At the top of a program it is global memory; elsewhere each iteration around has its own.

    Attributes:
        axes: of the list: those of the maps that store it.
        dims: those of them that items have. An item that lacks an axis lies at the first element of its block.
    """

    name: str = field(metadata=MAKES)
    axes: tuple[Axis, ...] = field(metadata=AXES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """The item of `memory` that lies at `at`, a subscript for each of its axes; an axis of `dims` is in one of them.

    With `indices`, items of integers whose axes are among `dims`, each element lies where these say: an index that is none of its
    axis stands for the nearest, or if the load is `masked`, nothing is read and the element is 0. Such a load is lowered to, with
    subscripts for axes that no map iterates; others are maps' feeds.
    """

    name: str = field(metadata=MAKES)
    memory: str = field(metadata=READS)
    at: tuple[Subscript, ...] = field(metadata=AXES)
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtype: DType
    indices: tuple[str, ...] = field(default=(), metadata=READS)
    location: Location | None = None
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Put the valid elements of the item `value` into `memory` at `at`, a subscript for each of its axes."""

    memory: str = field(metadata=READS)
    value: str = field(metadata=READS)
    at: tuple[Subscript, ...] = field(metadata=AXES)

    @property
    def name(self) -> str:
        """Return what messages call it: its memory."""
        return self.memory


@dataclass(frozen=True, slots=True)
class Feed:
    """One input of a map: `outer` in the graph around it is `inner` in its body, seen through `access`."""

    outer: str
    inner: str
    access: Access


@dataclass(frozen=True, slots=True)
class Stacked:
    """An output that is the list of the body's value `inner` over the map's axis."""

    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Final:
    """An output that is the state's projection `inner`, after the last iteration."""

    outer: str
    inner: str


@dataclass(frozen=True, slots=True)
class Once:
    """An output that is the body's value `inner` in the one iteration that a map over `First` has; it varies with no axis of it."""

    outer: str
    inner: str


@dataclass(frozen=True, slots=True, eq=False)
class Component(ExactNumbers):
    """One component of a loop's state: an item of these dims, starting from `init` everywhere."""

    name: str
    dims: tuple[Axis, ...] = field(metadata=AXES)
    dtype: DType
    init: float


@dataclass(frozen=True, slots=True)
class State:
    """The joint state that a loop carries (init, update, merge, finish).

    Attributes:
        components: what is carried; the components move together.
        feeds: values of the body that an iteration contributes.
        update: graph (components + feeds) -> new components.
        merge: graph (components of the left part + of the right part) -> components of the whole.
        finish: graph (components) -> projections; its outputs are what `Final` names.
        resume: values of the body's inputs to start from instead of each `init` (a peeled loop goes on where the first stopped).
        shown: (component, input of the body that has its value before the iteration): such a loop goes one way, in one piece.
    """

    components: tuple[Component, ...]
    feeds: tuple[str, ...]
    update: Graph
    merge: Graph
    finish: Graph
    resume: tuple[str, ...] | None = None
    shown: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of_monoid(monoid: Monoid, feed: str, dims: tuple[Axis, ...], dtype: DType, name: str) -> State:
        """Make the plain reduction of the body's value `feed`: one component, combined by `monoid`."""
        part, left, right, out = f"{name}_part", f"{name}_left", f"{name}_right", f"{name}_next"
        combine = Apply(monoid.value, (Arg(0), Arg(1)))

        def both(first: str, second: str) -> Graph:
            return Graph((first, second), (Pointwise(out, combine, (first, second), dims, dtype),), (out,))

        component = Component(name, dims, dtype, monoid.identity)
        return State((component,), (feed,), both(name, part), both(left, right), Graph((name,), (), (name,)))

    @staticmethod
    def of_ranking(first: Rank, index: Index) -> State:
        """Make the ranking `first` of the body's value that it reads: values and places, which move together.

        The update makes the numbers of the elements by itself, as `index`.
        """
        names = (f"{first.name}_values", f"{first.name}_places")
        left, right = (tuple(f"{n}_{side}" for n in names) for side in ("left", "right"))
        part = f"{first.name}_part"
        own = replace(first, arg=part, numbers=index.name, acc=names)
        whole = replace(first, arg=right[0], numbers=right[1], acc=(left[0], left[1]), over=first.rank)
        components = (
            Component(names[0], first.dims, first.dtype, first.order.worst),
            Component(names[1], first.dims, DType.int64, float("inf")),
        )
        update = Graph((*names, part), (index, own), (own.name, own.places))
        merge = Graph((*left, *right), (whole,), (whole.name, whole.places))
        return State(components, (first.arg,), update, merge, Graph(names, (), names))

    @property
    def monoids(self) -> tuple[Monoid, ...] | None:
        """Each component's monoid, where the state is a tuple of plain reductions; None where the components interact."""
        found: list[Monoid] = []
        made = {n.name: n for n in self.merge.nodes}
        half = len(self.components)
        for i, out in enumerate(self.merge.outputs):
            node = made.get(out)
            wanted = (self.merge.inputs[i], self.merge.inputs[half + i])
            if not isinstance(node, Pointwise) or node.args != wanted or not isinstance(node.expr, Apply):
                return None
            monoid = next((m for m in Monoid if node.expr == Apply(m.value, (Arg(0), Arg(1)))), None)
            if monoid is None:
                return None
            found.append(monoid)
        plain = (
            not self.shown and not self.finish.nodes and self.finish.outputs == tuple(c.name for c in self.components)
        )
        return tuple(found) if plain else None


@dataclass(frozen=True, slots=True)
class Map:
    """The one loop node: `body` once per block of `axis` in `range`.

    Attributes:
        name: unique in the program; schedules are keyed by it.
        axis: the iterator; unique to this map.
        unit: one iteration is one element, and items do not have the axis (batch, head and segment loops).
        inputs, body, outputs: the body sees nothing but `inputs`; its graph inputs are the feeds' inner names.
        state: None makes the map parallel.
        guard: which iterations leave the state as it is, so that they need not be done; None: all are done.
        place: None until a schedule is applied.
        tile: elements of the axis in one iteration; None until a schedule is applied, and where one iteration is all.
        level: the level of a schedule that `tile` is the size of: the name of its loop, and which of the loop's levels it is.
        demands: what the target asks of its blocks and iterations.
        typed, named: found so far, types of what leaves it, and all axes that it and what it runs name.
    """

    name: str
    axis: Axis
    inputs: tuple[Feed, ...]
    body: Graph
    outputs: tuple[Stacked | Final | Once, ...]
    state: State | None = None
    range: Range = EVERY_BLOCK
    unit: bool = False
    place: Place | None = None
    tile: int | None = None
    level: tuple[str, int] | None = field(default=None, compare=False)
    demands: LoopDemands = NO_DEMANDS
    guard: Guard | None = None
    typed: list[Typed] = field(default_factory=list[Typed], init=False, repr=False, compare=False)
    named: list[frozenset[Axis]] = field(default_factory=list[frozenset[Axis]], init=False, repr=False, compare=False)

    @property
    def most(self) -> Size:
        """Return the most elements of a block: a number, those of its space, or what the range says of all of it at once."""
        fixed = self.axis.space.fixed
        if self.tile is not None:
            return self.tile if fixed is None else min(self.tile, fixed)
        most = self.range.bounds(self.axis.space, None).most
        return most if fixed is None or most != Elements(self.axis.space) else fixed

    @property
    def full(self) -> bool:
        """True where all its blocks are whole: what is left of its range belongs to another loop."""
        return self.range.part is Part.full

    @property
    def runs_once(self) -> bool:
        """True where its one iteration is all there is, at any size: over the whole of its space, or over its first block."""
        covers = self.place is Place.whole or (self.tile is not None and self.most == self.axis.space.fixed)
        return self.range.one_block or (covers and self.range == EVERY_BLOCK)

    @property
    def chain(self) -> int:
        """Return how many iterations are summed up before the sum is merged into the state; 0: it cannot have more than so many."""
        chain, fixed = self.demands.chain, self.axis.space.fixed
        edge = self.range.part is Part.edge and not self.range.narrowed
        one = self.tile is None or self.range.one_block or edge
        few = fixed is not None and self.tile is not None and fixed <= chain * self.tile
        return 0 if one or few else chain


BlockNode: TypeAlias = (
    Pointwise
    | Dot
    | Collapse
    | Prefix
    | Rank
    | Index
    | Bounded
    | Literal
    | Extent
    | Fill
    | Stage
    | Join
    | Buffer
    | Load
    | Store
    | Map
)


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in order, the values they start from, and those that leave; `typed`, `last`: types, last readers found so far."""

    inputs: tuple[str, ...]
    nodes: tuple[BlockNode, ...]
    outputs: tuple[str, ...]
    typed: list[Typed] = field(default_factory=list[Typed], init=False, repr=False, compare=False)
    last: dict[str, int] = field(default_factory=dict[str, int], init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A whole block program.

    Attributes:
        inputs: (name, type) of each input: a list over all axes of its tensor, in the tensor's order; an axis that is not
            in `dims` too is seen one element at a time.
        graph: the top-level graph; its inputs are `inputs`' names.
        output_axes: for each output of the graph, its axes in the order of the tensor that the user gets.
    """

    inputs: tuple[tuple[str, BlockType], ...]
    graph: Graph
    output_axes: tuple[tuple[Axis, ...], ...]

    def __str__(self) -> str:
        """Return the listing."""
        from weft.block.listing import listing

        return listing(self)


def exports(node: Map) -> tuple[str, ...]:
    """Return the values of the body that leave it: handed out by an output, contributed to the state, or asked by the guard, each
    once.
    """
    stacked = (o.inner for o in node.outputs if not isinstance(o, Final))
    asked = () if node.guard is None else (node.guard.value,)
    return tuple(dict.fromkeys((*stacked, *(() if node.state is None else node.state.feeds), *asked)))


def sealed(node: Map) -> Map:
    """Return `node` with its body's outputs and inputs set to what its outputs, state and feeds say."""
    shown = () if node.state is None else node.state.shown
    inputs, outputs = (*[f.inner for f in node.inputs], *[inner for _, inner in shown]), exports(node)
    same = node.body.inputs == inputs and node.body.outputs == outputs
    return node if same else replace(node, body=Graph(inputs, node.body.nodes, outputs))
