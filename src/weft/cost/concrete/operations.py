"""The operators of a launch in one list for each loop, as registers want them: what a body does, then what it does to the state.

In: the operators of a launch of an applied program. Out: `Operation`s that read and make numbered values, and loops of these.
Loops on the grid and loops that run once are gone; a value that is another one but for padding is that one; a reduction that
is added to what there was goes on from it. Of operations that may come in any order, the one that leaves the fewest values
alive comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    Buffer,
    Collapse,
    Dot,
    Final,
    Graph,
    Load,
    Map,
    Pointwise,
)
from weft.block.walk import copied, operands, results
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValue:
    """What operations hand on: `dims` of an item, and a name for readers."""

    name: str
    dims: tuple[Axis, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operator. `onto`: the value that a reduction, or a matmul, goes on from."""

    node: BlockNode
    reads: tuple[ColumnValue, ...]
    makes: tuple[ColumnValue, ...]
    onto: ColumnValue | None = None

    @property
    def load(self) -> Load | None:
        """The operator, if it is a load."""
        return self.node if isinstance(self.node, Load) else None

    @property
    def matmul(self) -> Dot | None:
        """The operator, if it is a matmul of blocks."""
        return self.node if isinstance(self.node, Dot) and len(self.node.dims) > 1 else None

    @property
    def elementwise(self) -> Pointwise | None:
        """The operator, if it works element by element."""
        return self.node if isinstance(self.node, Pointwise) else None

    @property
    def reduction(self) -> Collapse | None:
        """The operator, if it reduces within a block."""
        return self.node if isinstance(self.node, Collapse) else None

    @property
    def is_work(self) -> bool:
        """True where it computes: a matmul, or work on rows."""
        return isinstance(self.node, Pointwise | Collapse | Dot)

    @property
    def inputs(self) -> tuple[ColumnValue, ...]:
        """List what must be there before it."""
        return self.reads if self.onto is None else (*self.reads, self.onto)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnLoop:
    """A loop of one thread block.

    Attributes:
        node: its map.
        carried: of each component of its state, the value before an iteration and the one after.
        body: what one iteration does.
    """

    node: Map
    carried: tuple[tuple[ColumnValue, ColumnValue], ...]
    body: tuple[Operation | ColumnLoop, ...]

    @property
    def inputs(self) -> tuple[ColumnValue, ...]:
        """List what is read in it and made before it; nothing of its state."""
        own = {id(v) for each in self.body for v in made(each)} | {id(before) for before, _ in self.carried}
        found = (v for each in self.body for v in each.inputs if id(v) not in own)
        return tuple({id(v): v for v in found}.values())


def made(each: Operation | ColumnLoop) -> tuple[ColumnValue, ...]:
    """Return the values that come of `each`."""
    return each.makes if isinstance(each, Operation) else tuple(before for before, _ in each.carried)


@dataclass(slots=True)
class Operations:
    """Lists the operators of a launch; `groups`: its loops on the grid, outermost first."""

    groups: list[Map] = field(default_factory=list[Map])

    def of(self, nodes: Sequence[BlockNode], reads: Iterable[str]) -> tuple[Operation | ColumnLoop, ...]:
        """Return what `nodes` do.

        Raises:
            UnsupportedError: an operator among them is no work on rows, nor a matmul.
        """
        given: dict[str, ColumnValue] = {name: ColumnValue(name, (), DType.float32) for name in reads}
        found = self.graph(Graph((), tuple(nodes), ()), given)
        return _ordered(_onto(found))

    def graph(self, graph: Graph, values: dict[str, ColumnValue]) -> list[Operation | ColumnLoop]:
        """List the operators of `graph`, whose values are added to `values`."""
        found: list[Operation | ColumnLoop] = []
        for node in graph.nodes:
            match node:
                case Map():
                    found += self.map(node, values)
                case _:
                    self.operator(node, values, found)
        return found

    def operator(self, node: BlockNode, values: dict[str, ColumnValue], found: list[Operation | ColumnLoop]) -> None:
        """Add what an operator does; one that copies is what it copies."""
        same = copied(node) or _renamed(node)
        if same is not None:
            values |= dict.fromkeys(results(node), values[same])
            return
        dims, dtype = _shape(node, values)
        makes = tuple(ColumnValue(name, dims, dtype) for name in results(node))
        onto = node.acc if isinstance(node, Dot) else None
        read = tuple(values[name] for name in operands(node) if name != onto and name in values)
        found.append(Operation(node, read, makes, None if onto is None else values[onto]))
        values |= dict(zip(results(node), makes, strict=True))

    def map(self, node: Map, values: dict[str, ColumnValue]) -> list[Operation | ColumnLoop]:
        """List what a map does: as it stands where it runs once, and on the grid; else as a loop."""
        inside = {f.inner: values[f.outer] for f in node.inputs}
        if node.place is Place.grid:
            self.groups.append(node)
        once = node.place is Place.grid or node.runs_once
        state = node.state
        before = [] if state is None else [ColumnValue(c.name, c.dims, c.dtype) for c in state.components]
        start = {} if state is None else {c.name: v for c, v in zip(state.components, before, strict=True)}
        inside |= {} if state is None else {inner: start[name] for name, inner in state.shown}
        found = self.graph(node.body, inside)
        values |= {o.outer: inside[o.inner] for o in node.outputs if not isinstance(o, Final)}
        if state is None:
            return found if once else [ColumnLoop(node, (), _ordered(_onto(found)))]
        names = state.update.inputs[len(before) :]
        scope = {**start, **{n: inside[f] for n, f in zip(names, state.feeds, strict=True)}}
        found += self.graph(state.update, scope)
        after = [scope[name] for name in state.update.outputs]
        if once:
            found = [_begun(each, set(map(id, before))) for each in found]
            ended = dict(zip(state.finish.inputs, after, strict=True))
        else:
            loop = ColumnLoop(node, tuple(zip(before, after, strict=True)), _ordered(_onto(found)))
            found, ended = [loop], dict(zip(state.finish.inputs, before, strict=True))
        found += self.graph(state.finish, ended)
        values |= {o.outer: ended[o.inner] for o in node.outputs if isinstance(o, Final)}
        return found


def _begun(each: Operation | ColumnLoop, start: set[int]) -> Operation | ColumnLoop:
    """Return `each` where it goes on from a state that has seen nothing, as if it did not."""
    if isinstance(each, Operation) and each.onto is not None and id(each.onto) in start:
        return replace(each, onto=None)
    return each


def _renamed(node: BlockNode) -> str | None:
    """Return what `node` is in another type, or under another name: columns have one type for what is computed."""
    match node:
        case Pointwise(_, Arg(0) | Convert(_, Arg(0)), (arg,)):
            return arg
        case _:
            return None


def _shape(node: BlockNode, values: Mapping[str, ColumnValue]) -> tuple[tuple[Axis, ...], DType]:
    match node:
        case Pointwise(dims=dims, dtype=dtype) | Dot(dims=dims, dtype=dtype) | Load(dims=dims, dtype=dtype):
            return dims, dtype
        case Collapse(_, _, arg, over):
            return tuple(a for a in values[arg].dims if a != over), values[arg].dtype
        case Buffer(_, axes, _, dtype):
            return axes, dtype
        case _ if len(results(node)) < 2:  # numbers, and those of elements: made where they are read
            return getattr(node, "dims", ()), DType.int64
        case _:
            raise UnsupportedError(f"{type(node).__name__} has no columns yet")


def _onto(found: Sequence[Operation | ColumnLoop]) -> list[Operation | ColumnLoop]:
    """Let each reduction within a block that is combined with a value, by its own monoid and nowhere else, go on from this one."""
    readers: dict[int, int] = {}
    for each in found:
        for value in each.inputs:
            readers[id(value)] = readers.get(id(value), 0) + 1
    reductions = {id(op.makes[0]): op for op in found if isinstance(op, Operation) and isinstance(op.node, Collapse)}
    changed: list[Operation | ColumnLoop] = []
    gone: set[int] = set()
    for each in found:
        pair = _combined(each, reductions, readers)
        if pair is None:
            changed.append(each)
            continue
        reduction, other = pair
        gone.add(id(reduction))
        assert isinstance(each, Operation)
        changed.append(Operation(reduction.node, reduction.reads, each.makes, other))
    return [each for each in changed if id(each) not in gone]


def _combined(
    each: Operation | ColumnLoop, reductions: Mapping[int, Operation], readers: Mapping[int, int]
) -> tuple[Operation, ColumnValue] | None:
    """Return the reduction that `each` adds to another value, and this value."""
    if not isinstance(each, Operation) or not isinstance(each.node, Pointwise):
        return None
    match each.node.expr:
        case Apply(op, (Arg(), Arg())) if len(each.reads) == 2 and op in {m.value for m in Monoid}:
            for part, other in (each.reads, each.reads[::-1]):
                found = reductions.get(id(part))
                if found is None or readers[id(part)] > 1 or other.dims != part.dims:
                    continue
                if isinstance(found.node, Collapse) and found.node.monoid.value == op:
                    return found, other
        case _:
            pass
    return None


def _ordered(found: Sequence[Operation | ColumnLoop]) -> tuple[Operation | ColumnLoop, ...]:
    """Order operations so that few values are alive: of those that are ready, the one that ends more than it makes."""
    left = list(found)
    inside = {id(v) for each in found for v in made(each)}
    done: set[int] = set()
    reads: dict[int, int] = {}
    for each in found:
        for value in {id(v) for v in each.inputs}:
            reads[value] = reads.get(value, 0) + 1
    ordered: list[Operation | ColumnLoop] = []

    def grows(each: Operation | ColumnLoop) -> int:
        weight: Callable[[ColumnValue], int] = lambda v: prod(8 for _ in v.dims)  # noqa: E731 - one item beside another
        ends = sum(weight(v) for v in {id(v): v for v in each.inputs}.values() if reads[id(v)] == 1)
        return sum(map(weight, made(each))) - ends

    while left:
        ready = [e for e in left if all(id(v) not in inside or id(v) in done for v in e.inputs)]
        best = min(ready, key=grows)
        left.remove(best)
        ordered.append(best)
        done.update(id(v) for v in made(best))
        for value in {id(v) for v in best.inputs}:
            reads[value] -= 1
    return tuple(ordered)
