"""How many bytes are alive at once: items, and lists that one iteration of the grid keeps to itself.

An item is loaded where it is first read and dropped where it is last read; a loop's state lives as long as the loop. An operator
that works element by element puts its result in the place of an operand of the same size that nothing reads any more, as an
accumulating matmul does with its accumulator; a `Fill`, which changes nothing but padding, shares its operand's place. Padding
does not count, nor do lists in global memory: inputs, outputs, what kernels leave for others.

The interpreter and the cost model both account with these: one with every iteration's values, one with sizes and classes alone.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft.block.program import BlockNode, Buffer, Final, Graph, Load, Map, Store
from weft.block.walk import operands, overwritten, results, shared


@dataclass
class LiveBytes:
    """Bytes held now, and the most that ever were.

    Attributes:
        times: how often what is counted now is run.
    """

    held: int = 0
    peak: int = 0
    times: int = 1

    def take(self, size: int) -> None:
        """Add `size` bytes."""
        self.held += size
        self.peak = max(self.peak, self.held)

    def give(self, size: int) -> None:
        """Subtract `size` bytes."""
        self.held -= size

    @contextmanager
    def repeated(self, count: int) -> Generator[None]:
        """Count what is done within `count` times: both what it leaves behind, and the most that is alive."""
        before, most, self.peak = self.held, self.peak, self.held
        self.times *= count
        yield
        self.times //= count
        again = (self.held - before) * (count - 1)
        self.held += again
        self.peak = max(most, self.peak + again)


def last_reads(graph: Graph) -> Mapping[str, int]:
    """Return the number of the operator that reads each value last; for values that leave, a number beyond them all.

    Worked out once for a graph, and kept there.
    """
    if not graph.last:
        found = {name: number for number, node in enumerate(graph.nodes) for name in operands(node)}
        graph.last.update(found | dict.fromkeys(graph.outputs, len(graph.nodes)))
    return graph.last


@dataclass
class SharedBytes:
    """Bytes that `names` values share; of memory that grows: `born` in code that is run so many times."""

    size: int
    names: int = 1
    born: int = 1


class Frame:
    """The values that live in one graph while its operators run, in order; `held`: the bytes of each that is there; `waiting`:
    of those that are loaded, and have not been read yet.
    """

    def __init__(
        self,
        memory: LiveBytes,
        graph: Graph,
        held: Mapping[str, SharedBytes],
        waiting: Mapping[str, int] | None = None,
    ) -> None:
        self.memory, self.held, self.waiting = memory, dict(held), dict(waiting or {})
        self.last = last_reads(graph)
        self._drop([name for name in self.held if name not in self.last])

    def made(self, at: int, node: BlockNode, sizes: Mapping[str, int]) -> None:
        """Note that operator number `at` gave results of these sizes."""
        if isinstance(node, Load) and not node.indices:
            self.waiting |= sizes
            return
        self._read(node)
        same = shared(node)
        for name, size in sizes.items():
            if same in self.held:
                self.held[name] = self.held[same]
                self.held[name].names += 1
            else:
                over = (n for n in overwritten(node) if self._ends(n, at) and self.held[n] == SharedBytes(size))
                self._drop(list(over)[:1])
                self._take(name, size)
        self._after(at, node)

    def buffer(self, node: Buffer) -> SharedBytes:
        """Hold memory of this graph's own, which grows as items are stored."""
        self.held[node.name] = found = SharedBytes(0, born=self.memory.times)
        return found

    def stored(self, at: int, node: Store, local: SharedBytes | None, sizes: Mapping[str, int]) -> None:
        """Note that operator number `at` has put its value, of this size, into memory: `local`, or None if it is global."""
        self._read(node)
        if local is not None:
            for size in sizes.values():
                if self._ends(node.value, at) and self.held[node.value].names == 1:
                    self.held.pop(node.value)  # its bytes are those of the memory now
                else:
                    self.memory.take(size)
                local.size += size * (self.memory.times // local.born)
        self._after(at, node)

    def enter(self, at: int, node: Map) -> None:
        """Note the start of the map that is operator number `at`: it goes on with the state that it resumes, in its place."""
        self._read(node)
        resumed = () if node.state is None else node.state.resume or ()
        outer = {f.inner: f.outer for f in node.inputs}
        self._drop([n for n in dict.fromkeys(outer[r] for r in resumed) if self._ends(n, at)])

    def leave(self, at: int, node: Map, sizes: Mapping[str, int]) -> None:
        """Note the end of the map: its results are held by now."""
        self.held |= {name: SharedBytes(size) for name, size in sizes.items()}
        self._after(at, node)

    def clear(self) -> None:
        """Drop all that is left."""
        self._drop(list(self.held))

    def demand(self, name: str) -> int:
        """Take the value `name` out, in a place of its own: its bytes, still held; 0 if it is not here."""
        if name in self.waiting:
            self._take(name, self.waiting.pop(name))
        place = self.held.pop(name, SharedBytes(0))
        if place.names > 1:
            place.names -= 1
            self.memory.take(place.size)
        return place.size

    def _read(self, node: BlockNode) -> None:
        for name in operands(node):
            if name in self.waiting:
                self._take(name, self.waiting.pop(name))

    def _take(self, name: str, size: int) -> None:
        self.memory.take(size)
        self.held[name] = SharedBytes(size)

    def _ends(self, name: str, at: int) -> bool:
        return name in self.held and self.last.get(name, -1) <= at

    def _after(self, at: int, node: BlockNode) -> None:
        self._drop([n for n in dict.fromkeys((*operands(node), *results(node))) if self._ends(n, at)])

    def _drop(self, names: list[str]) -> None:
        for name in names:
            place = self.held.pop(name)
            place.names -= 1
            if not place.names:
                self.memory.give(place.size)


@dataclass
class LoopFrame:
    """What a loop holds: its state, and what its one iteration hands out; `state`: bytes of each component."""

    memory: LiveBytes
    node: Map
    state: dict[str, int]
    handed: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.memory.take(sum(self.state.values()))

    def body(self) -> Frame:
        """Open an iteration."""
        return Frame(self.memory, self.node.body, {})

    def update(self, body: Frame) -> Frame:
        """Open the update of the state, which takes over what only it reads."""
        state = self.node.state
        assert state is not None
        leaving, held = {o.inner for o in self.node.outputs if not isinstance(o, Final)}, self._held()
        waiting = dict[str, int]()
        for name, feed in zip(state.update.inputs[len(self.state) :], state.feeds, strict=True):
            if feed in leaving:
                continue
            if feed in body.held:
                held[name] = body.held.pop(feed)
            elif feed in body.waiting:
                waiting[name] = body.waiting.pop(feed)
        return Frame(self.memory, state.update, held, waiting)

    def end(self, body: Frame, update: Frame | None) -> None:
        """Close an iteration: the state is the new one."""
        if update is not None and self.node.state is not None:
            new = self.node.state.update.outputs
            self.state = {c: update.demand(out) for c, out in zip(self.state, new, strict=True)}
            update.clear()
        for output in self.node.outputs:
            if not isinstance(output, Final):
                self.handed[output.outer] = body.demand(output.inner)
        body.clear()

    def finish(self) -> Frame:
        """Open what makes the results of the state."""
        state = self.node.state
        assert state is not None
        return Frame(self.memory, state.finish, self._held())

    def results(self, finish: Frame | None) -> dict[str, int]:
        """Return the bytes of each result, held from now on by who runs the loop."""
        sizes = dict(self.handed)
        if finish is not None:
            sizes |= {o.outer: finish.demand(o.inner) for o in self.node.outputs if isinstance(o, Final)}
            finish.clear()
        return sizes

    def _held(self) -> dict[str, SharedBytes]:
        return {name: SharedBytes(size) for name, size in self.state.items()}


class NoFrame(Frame):
    """Accounts for nothing."""

    def __init__(self) -> None:
        super().__init__(LiveBytes(), Graph((), (), ()), {})

    def made(self, at: int, node: BlockNode, sizes: Mapping[str, int]) -> None:
        """Do nothing."""

    def buffer(self, node: Buffer) -> SharedBytes:
        """Do nothing."""
        del node
        return SharedBytes(0)

    def stored(self, at: int, node: Store, local: SharedBytes | None, sizes: Mapping[str, int]) -> None:
        """Do nothing."""

    def enter(self, at: int, node: Map) -> None:
        """Do nothing."""

    def leave(self, at: int, node: Map, sizes: Mapping[str, int]) -> None:
        """Do nothing."""


NO_FRAME = NoFrame()


class NoLoopFrame(LoopFrame):
    """Accounts for nothing."""

    def body(self) -> Frame:
        """Do nothing."""
        return NO_FRAME

    def update(self, body: Frame) -> Frame:
        """Do nothing."""
        del body
        return NO_FRAME

    def end(self, body: Frame, update: Frame | None) -> None:
        """Do nothing."""

    def finish(self) -> Frame:
        """Do nothing."""
        return NO_FRAME

    def results(self, finish: Frame | None) -> dict[str, int]:
        """Do nothing."""
        del finish
        return {}
