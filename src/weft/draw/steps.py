"""From a program with places to the steps of its diagram.

A load stands before all loops with whose blocks it does not move, as in `weft.cost.closed_form`, and each item's labels are the
sizes of blocks there, so that what is written under the columns is what the closed form counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Buffer,
    Collapse,
    Dot,
    Extent,
    Final,
    Graph,
    Literal,
    Load,
    Map,
    Once,
    Pointwise,
    Stacked,
    State,
    Store,
)
from weft.block.text import expression
from weft.block.walk import copied, maps, operands, results, stored
from weft.cost.closed import LoopAround, block_of, empty, list_sizes, size_of, standing
from weft.cost.optimum import Expr, sp
from weft.draw.form import Colour, DataItem, DrawnElement, DrawnStep, Flow, Loop, StepKind, Wire, spelled
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes, kernels
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, Scalar

_LONG = re.compile(r"\d+\.\d{4,}(e[+-]?\d+)?")
_MONOIDS = {"add": "Σ", "mul": "Π", "maximum": "max", "minimum": "min"}


@dataclass(slots=True)
class _Memory:
    """A list in memory: its wires, and the item that stands for what it holds so far.

    Attributes:
        places: of each wire, which of the list's axes it is.
        buffer, depth: of a list on chip, and the number of loops that it is made in; its wires are known when it is stored.
    """

    name: str
    wires: tuple[Wire, ...]
    level: Colour
    item: DataItem | None = None
    places: Sequence[int] = ()
    buffer: Buffer | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Number:
    """A value that is written into the labels of what reads it, and has no wire."""

    text: str


_Value = DataItem | _Memory | _Number
_Env = dict[str, _Value]


@dataclass(frozen=True, slots=True)
class _Scope:
    """Loops around, and for each number of them the steps of a run: those of the innermost one last."""

    around: tuple[LoopAround, ...]
    steps: tuple[list[DrawnElement], ...]

    def size(self, axis: Axis) -> Expr:
        """Return the elements of the current block of `axis`; of a space that no loop around goes over, all."""
        return next((loop.block for loop in self.around if loop.node.axis == axis), size_of(axis.space))

    def wires(self, axes: Iterable[Axis]) -> tuple[Wire, ...]:
        """Return the wires of an item of these dims."""
        return tuple(Wire(axis, self.size(axis)) for axis in axes)


def flow(program: BlockProgram, part: KernelNodes | None = None) -> Flow:
    """Return the steps of `part`, a launch of the applied `program`, or of all of it."""
    nodes = program.graph.nodes if part is None else part.nodes
    buffers = {n.name: n for n in program.graph.nodes if isinstance(n, Buffer)}
    shared = buffers.keys() if part is None else {*part.reads, *part.writes}
    walk, env = _Walk(), _Env()
    read = {name for n in nodes for name in operands(n)}
    written = {name for n in nodes for name in stored(n)}
    types = dict(program.inputs)
    for name in (*types, *buffers):
        if name in read and name not in written and (name in types or (part is not None and name in shared)):
            axes = types[name].lists if name in types else buffers[name].axes
            env[name] = walk.given(name, axes)
    for name in buffers.keys() & shared - env.keys():
        axes = buffers[name].axes
        env[name] = _Memory(name, _whole(axes), Colour.device, places=range(len(axes)))
    begun = [v.item if isinstance(v, _Memory) else v for v in env.values()]
    inputs = tuple(i for i in begun if isinstance(i, DataItem))
    top: list[DrawnElement] = []
    memory = sp.Integer(0)
    for launch in (nodes,) if part is not None else ((node,) for node in nodes):
        walk.held, walk.lists = {}, {}
        walk.graph(Graph((), tuple(launch), ()), env, _Scope((), (top,)))
        memory = sp.Max(memory, walk.kept)
    left = program.graph.outputs if part is None else part.writes
    outputs = tuple(
        v.item for n, v in env.items() if n in written and isinstance(v, _Memory) and v.item is not None and n in left
    )
    # A value that leaves without having been in a list.
    single = [env.get(name) for name in program.graph.outputs] if part is None else []
    outputs += tuple(v for v in single if isinstance(v, DataItem) and v not in inputs)
    groups = sp.Integer(1) if part is None and len(kernels(program)) > 1 else walk.groups(nodes)
    return Flow(inputs, tuple(top), outputs, groups, None if walk.why_not else memory, walk.why_not)


def _whole(axes: Iterable[Axis]) -> tuple[Wire, ...]:
    return tuple(Wire(axis, size_of(axis.space)) for axis in axes)


@dataclass(slots=True)
class _Walk:
    held: dict[str, Expr] = field(default_factory=dict[str, Expr])
    lists: dict[str, Expr] = field(default_factory=dict[str, Expr])
    lasting: set[str] = field(default_factory=set[str])
    why_not: str = ""
    keys: count[int] = field(default_factory=count)

    @property
    def kept(self) -> Expr:
        """Count what lasts from block to block, states and loads, and lists on chip."""
        return sp.Add(*self.held.values(), *(values for name, values in self.lists.items() if name in self.lasting))

    def item(self, wires: tuple[Wire, ...], level: Colour = Colour.chip, name: str = "") -> DataItem:
        """Make an item."""
        return DataItem(next(self.keys), name, wires, level)

    def given(self, name: str, axes: tuple[Axis, ...]) -> _Value:
        """Make an input: memory, or a number that needs no load."""
        item = self.item(_whole(axes), Colour.device, name)
        return _Memory(name, item.wires, Colour.device, item, range(len(axes))) if axes else item

    def groups(self, nodes: Iterable[BlockNode]) -> Expr:
        """Count the thread blocks."""
        around: list[LoopAround] = []
        for node in maps(Graph((), tuple(nodes), ())):
            if node.place is Place.grid and all(node.axis != loop.node.axis for loop in around):
                around.append(self.entered(node, around))
        return sp.Mul(*(loop.runs for loop in around))

    def entered(self, node: Map, around: Iterable[LoopAround]) -> LoopAround:
        """Return a loop; where its blocks depend on other loops, with what is said of it as the reason why nothing is counted."""
        try:
            return LoopAround.of(node, tuple(around))
        except UnsupportedError as error:
            self.why_not = self.why_not or error.what
            block = sp.Integer(1) if node.unit else block_of(node)
            return LoopAround(node, block, sp.Symbol(f"n_{node.name}", positive=True))

    def graph(self, graph: Graph, env: _Env, scope: _Scope) -> None:
        """Take the operators of `graph` in order; `env` has what they read, and gets what they make."""
        for node in graph.nodes:
            match node:
                case Map():
                    self.loop(node, env, scope)
                case Buffer():
                    env.setdefault(node.name, self.memory(node, scope))
                case Load():
                    env[node.name] = self.load(node, env, scope)
                case Store():
                    self.store(node, env, scope)
                case Literal(name, value):
                    env[name] = _Number(_number(value))
                case Extent(name, space, _, axis):
                    env[name] = _Number(spelled(size_of(space) if axis is None else scope.size(axis)))
                case Pointwise():
                    env[node.name] = self.pointwise(node, env, scope)
                case Dot() | Collapse():
                    self.operation(node, env, scope)
                case _:
                    # Padding and copies are the same values, and parts of one list are that list.
                    same = copied(node) or getattr(node, "rest", None)
                    if same is None:
                        self.other(node, env, scope)
                    else:
                        env[node.name] = env[same]

    # Loops.

    def loop(self, node: Map, env: _Env, scope: _Scope) -> None:
        """Take a loop. One that runs once, or on the grid, is no bracket: its axis is a wire."""
        if empty(node):
            for output in node.outputs:
                self.passed(node, output, env)
            return
        own = self.entered(node, scope.around)
        drawn = own.runs != 1 and node.place is not Place.grid
        inner: list[DrawnElement] = [] if drawn else scope.steps[-1]
        inside = _Scope((*scope.around, own), (*scope.steps, inner))
        body: _Env = {feed.inner: env[feed.outer] for feed in node.inputs}
        state = None if node.state is None else self.begun(node.state, body, inside, lasting=drawn)
        if node.state is not None and state is not None:
            now = dict(zip((c.name for c in node.state.components), state, strict=True))
            body |= {inner: now[name] for name, inner in node.state.shown}
        self.graph(node.body, body, inside)
        if node.state is not None and state is not None:
            state = self.updated(node.state, state, body, inside)
        if drawn:
            carried = () if node.state is None else tuple(c.name for c in node.state.components)
            label = f"for each of {spelled(own.runs)} blocks of {node.axis.name}"
            scope.steps[-1].append(Loop(label, carried, tuple(inner)))
        finished: _Env = {}
        if node.state is not None and state is not None:
            finished = dict(zip(node.state.finish.inputs, state, strict=True))
            self.graph(node.state.finish, finished, scope)
        for output in node.outputs:
            match output:
                case Final(outer, projection):
                    env[outer] = finished[projection]
                case Once(outer, value) | Stacked(outer, value):
                    env[outer] = body[value]

    def passed(self, node: Map, output: Stacked | Final | Once, env: _Env) -> None:
        """Give the result of a loop that has nothing to do: the state that it goes on from."""
        if isinstance(output, Final) and node.state is not None and node.state.resume is not None:
            outer = {f.inner: f.outer for f in node.inputs}
            position = node.state.finish.outputs.index(output.inner)
            env[output.outer] = env[outer[node.state.resume[position]]]
        elif isinstance(output, Final) and node.state is not None:
            position = node.state.finish.outputs.index(output.inner)
            env[output.outer] = _Number(_number(node.state.components[position].init))

    def begun(self, state: State, body: _Env, inside: _Scope, *, lasting: bool) -> tuple[_Value, ...]:
        """Return what the state is at the beginning: a number where the loop runs once, else a wire that lasts."""
        found: list[_Value] = []
        for i, component in enumerate(state.components):
            before = _Number(_number(component.init)) if state.resume is None else body[state.resume[i]]
            wires = inside.wires(component.dims)
            if lasting:
                self.held[component.name] = sp.Mul(*(w.size for w in wires))
            if lasting and isinstance(before, _Number):
                item = self.item(wires, name=component.name)
                step = DrawnStep(
                    StepKind.start, before.text, f"{component.name} begins as {before.text}", (), (item,), ()
                )
                inside.steps[-2].append(step)
                before = item
            found.append(before)
        return tuple(found)

    def updated(self, state: State, now: tuple[_Value, ...], body: _Env, inside: _Scope) -> tuple[_Value, ...]:
        """Return the state after a run. Of one run, a plain reduction gives what the body does: its first value is the identity."""
        once = all(isinstance(v, _Number) for v in now) and state.resume is None
        if once and state.monoids is not None and len(state.feeds) == len(state.components):
            plain = all(isinstance(n, Pointwise) for n in state.update.nodes)
            if plain:
                return tuple(body[feed] for feed in state.feeds)
        given = (*now, *(body[feed] for feed in state.feeds))
        env: _Env = dict(zip(state.update.inputs, given, strict=True))
        self.graph(state.update, env, inside)
        return tuple(env[name] for name in state.update.outputs)

    # Memory.

    def memory(self, node: Buffer, scope: _Scope) -> _Memory:
        """Make memory of the kernel's own: a list between loops."""
        return _Memory("", (), Colour.chip, buffer=node, depth=len(scope.around))

    def listed(self, memory: _Memory, node: Load | Store, scope: _Scope) -> None:
        """Count what is stored in a list on chip, which lasts where a loop that stores or loads it has several blocks.

        Its wires are those of what is stored first: an axis that its items lack has one element for each block.
        """
        if memory.buffer is None:
            return
        if any(loop.runs != 1 for loop in scope.around[memory.depth :]):
            self.lasting.add(memory.buffer.name)
        if isinstance(node, Store):
            sizes = list_sizes(memory.buffer, node, scope.around, memory.depth)
            self.lists[memory.buffer.name] = self.lists.get(memory.buffer.name, 0) + sp.Mul(*sizes)
            if memory.item is None:
                memory.places = [
                    i for i, size in enumerate(sizes) if size != 1 or memory.buffer.axes[i] in memory.buffer.dims
                ]
                memory.wires = tuple(Wire(memory.buffer.axes[i], sizes[i]) for i in memory.places)

    def load(self, node: Load, env: _Env, scope: _Scope) -> _Value:
        """Take a load, which stands where the innermost loop that it moves with is."""
        memory = env[node.memory]
        assert isinstance(memory, _Memory)
        self.listed(memory, node, scope)
        if memory.item is None:
            return _Number("0")  # of memory that nothing was put into: an edge that blocks leave
        wires = scope.wires(node.dims)
        if memory.level is Colour.chip and _sizes(memory.item.wires) == _sizes(wires):
            return memory.item  # all of the list
        kind, depth = StepKind.block, len(scope.around)
        if memory.level is Colour.device:
            kind, depth = StepKind.load, self.depth(node, scope)
            if any(loop.runs != 1 for loop in scope.around[depth:]):
                self.held[memory.name] = sp.Mul(*(w.size for w in wires))
        item = self.item(wires)
        self.move(kind, memory, memory.item, item, node, scope, depth)
        return item

    def depth(self, node: Load, scope: _Scope) -> int:
        try:
            return standing(node, scope.around)
        except UnsupportedError as error:
            self.why_not = self.why_not or error.what
            return len(scope.around)

    def store(self, node: Store, env: _Env, scope: _Scope) -> None:
        """Take a store: what was stored there before goes on in the same item."""
        memory, value = env[node.memory], env[node.value]
        assert isinstance(memory, _Memory)
        self.listed(memory, node, scope)
        if not isinstance(value, DataItem):
            text = value.text if isinstance(value, _Number) else ""
            value = self.made(StepKind.start, text, f"{text} everywhere", (), scope.wires(_axes(node)), scope)
        if memory.level is Colour.chip and self.is_all(value, memory, node, scope):
            memory.item = value
            return
        before = memory.item
        memory.item = self.item(memory.wires, memory.level, memory.name)
        kind = StepKind.store if memory.level is Colour.device else StepKind.block
        self.move(kind, memory, value, memory.item, node, scope, len(scope.around), before)

    def is_all(self, value: DataItem, memory: _Memory, node: Store, scope: _Scope) -> bool:
        """Tell whether `value` is all that a list on chip will have: the loops that store it run once."""
        own = {w.axis.space for w in value.wires}
        runs = {loop.node.axis: loop.runs for loop in scope.around}
        once = all(runs.get(axis, 1) == 1 for axis in _axes(node) if axis.space not in own)
        whole = {w.axis.space: w.size for w in memory.wires if w.axis.space in own}
        return once and whole == _sizes(value.wires) and memory.item is None

    def move(
        self,
        kind: StepKind,
        memory: _Memory,
        source: DataItem,
        target: DataItem,
        node: Load | Store,
        scope: _Scope,
        depth: int,
        before: DataItem | None = None,
    ) -> None:
        """Add the step of a load or a store; what moves is counted over all runs of the loops that it stands in."""
        listed, other = (source, target) if isinstance(node, Load) else (target, source)
        along = [node.at[place].axes for place in memory.places]
        pairs = [(i, j) for i, axes in enumerate(along) for j, w in enumerate(other.wires) if w.axis in axes]
        links = tuple(pairs if listed is source else [(j, i) for i, j in pairs])
        if before is not None:
            rows = max(1, len(source.wires))
            links += tuple((rows + i, i) for i in range(len(before.wires)))
        moved: Expr | None = None
        if kind in (StepKind.load, StepKind.store):
            known = {loop.node.axis for loop in scope.around}
            each = sp.Mul(*(scope.size(axis) for axis in _axes(node) if axis in known))
            moved = sp.Mul(each, *(loop.runs for loop in scope.around[:depth]))
        title = (
            f"{'load' if kind is StepKind.load else 'store'} {memory.name}"
            if memory.name
            else "a block of a list on chip"
        )
        inputs = (source,) if before is None else (source, before)
        scope.steps[depth].append(DrawnStep(kind, "", title, inputs, (target,), links, moved))

    # Operations.

    def pointwise(self, node: Pointwise, env: _Env, scope: _Scope) -> _Value:
        """Take an elementwise operation; numbers among its arguments stand in its label."""
        values = [env[name] for name in node.args]
        expr = _without_identities(node.expr, values)
        if isinstance(expr, Arg):
            return values[expr.index]
        items = tuple(dict.fromkeys(v for v in values if isinstance(v, DataItem)))
        letters = {item: chr(ord("a") + i) for i, item in enumerate(items)}
        names = [letters[v] if isinstance(v, DataItem) else v.text if isinstance(v, _Number) else "?" for v in values]
        text = _LONG.sub(lambda found: _number(float(found[0])), expression(expr, names))
        if not items and not node.dims:
            return _Number(text)
        return self.made(StepKind.operation, text, f"{text} at every element", items, scope.wires(node.dims), scope)

    def operation(self, node: Dot | Collapse, env: _Env, scope: _Scope) -> None:
        """Take an operation that has a name."""
        match node:
            case Dot():
                acc = None if node.acc is None else env[node.acc]
                read = (env[node.left], env[node.right], *(() if acc is None else (acc,)))
                items = tuple(dict.fromkeys(v for v in read if isinstance(v, DataItem)))
                label = "Σ a·b" if not isinstance(acc, DataItem) else "c + Σ a·b"
                title = f"the product, summed over {node.over.name}"
                env[node.name] = self.made(StepKind.operation, label, title, items, scope.wires(node.dims), scope)
            case Collapse():
                arg = env[node.arg]
                sign = _MONOIDS.get(node.monoid.value, node.monoid.value)
                if not isinstance(arg, DataItem):
                    env[node.name] = arg
                    return
                wires = tuple(w for w in arg.wires if w.axis != node.over)
                title = f"{node.monoid.value} over {node.over.name}"
                env[node.name] = self.made(StepKind.operation, sign, title, (arg,), wires, scope)

    def other(self, node: BlockNode, env: _Env, scope: _Scope) -> None:
        """Take any other operator, under its own name; one that reads nothing starts a wire."""
        label = type(node).__name__.lower()
        dims: tuple[Axis, ...] = getattr(node, "dims", ())
        read = tuple(dict.fromkeys(v for v in (env[name] for name in operands(node)) if isinstance(v, DataItem)))
        outputs = tuple(self.item(scope.wires(dims)) for _ in results(node))
        kind = StepKind.operation if read else StepKind.start
        self.add(kind, label, f"{label}: {', '.join(axis.name for axis in dims)}", read, outputs, scope)
        env |= dict(zip(results(node), outputs, strict=True))

    def made(
        self,
        kind: StepKind,
        label: str,
        title: str,
        inputs: tuple[DataItem, ...],
        wires: tuple[Wire, ...],
        scope: _Scope,
    ) -> DataItem:
        """Add a step with one result, and return it."""
        output = self.item(wires)
        self.add(kind, label, title, inputs, (output,), scope)
        return output

    def add(
        self,
        kind: StepKind,
        label: str,
        title: str,
        inputs: tuple[DataItem, ...],
        outputs: tuple[DataItem, ...],
        scope: _Scope,
    ) -> None:
        """Add a step that is mapped over the axes that its inputs and outputs share."""
        made = [(row, axis) for row, axis in _rows(outputs)]
        links = tuple((row, other) for row, axis in _rows(inputs) for other, found in made if axis == found is not None)
        scope.steps[-1].append(DrawnStep(kind, label, title, inputs, outputs, links))


def _rows(items: Iterable[DataItem]) -> list[tuple[int, Axis | None]]:
    """Number the wires of `items` from the top; an item without any takes one row."""
    axes = [axis for item in items for axis in ([w.axis for w in item.wires] or [None])]
    return list(enumerate(axes))


def _sizes(wires: Iterable[Wire]) -> Mapping[object, Expr]:
    """Map axes' spaces to the sizes of blocks, to tell whether an item is a whole list."""
    return {w.axis.space: w.size for w in wires}


def _axes(node: Load | Store) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(axis for subscript in node.at for axis in subscript.axes))


def _number(value: float | bool) -> str:
    """Write a number in few characters."""
    return str(value) if isinstance(value, bool) else f"{value:.3g}"


def _without_identities(expr: Scalar, values: list[_Value]) -> Scalar:
    """Leave out a sum with the number 0: the state of a loop that runs once."""
    match expr:
        case Apply("add", (Arg(i), Arg(j))):
            for own, other in ((i, j), (j, i)):
                if values[own] == _Number("0") and isinstance(values[other], DataItem):
                    return Arg(other)
            return expr
        case _:
            return expr
