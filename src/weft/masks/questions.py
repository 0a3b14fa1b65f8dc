"""What guarded loops of a scheduled program ask: of which inputs, and what idle elements of these are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from weft.block.guard import GuardedBlocks
from weft.block.program import BlockNode, BlockProgram, Buffer, Fill, Graph, Load, Map, Pointwise, Store
from weft.block.walk import asked, every, stored
from weft.masks.known import Facts, KnownNumber
from weft.masks.values import counted, values_of
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg


@dataclass(frozen=True, slots=True)
class Question:
    """What a guarded loop asks before each iteration.

    Attributes:
        loop: the loop.
        inputs: of the program, by name: what an element of it is where it is idle; None where others decide that with it.
        axes: of the loop, and of the maps around it on whose blocks the answer depends.
        of_groups: it compares numbers of rows with an input that has an element for each iteration: where a group of rows ends.
        beforehand: a launch before finds out the answers, which lie in memory.
    """

    loop: Map
    inputs: Mapping[str, float | bool | None]
    axes: frozenset[Axis]
    beforehand: bool
    of_groups: bool = False

    @property
    def blocks(self) -> GuardedBlocks:
        """Return which blocks the loop goes over."""
        return GuardedBlocks.busy if self.loop.guard is None else self.loop.guard.blocks

    @property
    def of_columns(self) -> bool:
        """Tell whether the answer is the same for all blocks of rows, as where sequences are padded."""
        return len(self.axes) == 1


def questions(applied: BlockProgram) -> tuple[Question, ...]:
    """List what the guarded loops of `applied`, a program with loads, ask; those that ask no input are left out."""
    given = {name: name for name, _ in applied.inputs}
    kept = {n.name: n.name for n in applied.graph.nodes if isinstance(n, Buffer)}
    writers = {name: node for node in applied.graph.nodes if isinstance(node, Map) for name in stored(node)}
    found = list[Question]()
    for loop, loads in _guarded(applied.graph, {**given, **kept}):
        assert loop.guard is not None
        idle = KnownNumber(loop.guard.idle)
        inputs = {home: _idle(loop.body, load, loop.guard.value, idle) for load, home in loads if home in given}
        told = [home for _, home in loads if home in kept and home in writers]
        for home in told:
            inputs |= _of_answers(writers[home], given, home)
        axes = {axis for load, _ in loads for at in load.at for axis in at.axes} | {loop.axis}
        axes |= counted(asked(loop)[0])
        if inputs:
            of_groups = any(_counts_rows(every(writers[home].body.nodes), loop) for home in told)
            of_groups |= not told and _counts_rows(asked(loop)[0], loop)
            found.append(Question(loop, inputs, frozenset(axes), bool(told), of_groups))
    return tuple(found)


def _counts_rows(nodes: Iterable[BlockNode], loop: Map) -> bool:
    """Tell whether `nodes` find out what `loop` asks from numbers of other axes, and elements along its own alone."""
    known = tuple(nodes)
    read = {axis.space for n in known if isinstance(n, Load) for at in n.at for axis in at.axes}
    numbered = {axis.space for axis in counted(known)} - {loop.axis.space}
    return bool(numbered) and read <= {loop.axis.space}


def _guarded(graph: Graph, homes: Mapping[str, str]) -> Iterator[tuple[Map, list[tuple[Load, str]]]]:
    """Yield each guarded loop, and what it loads to be asked, with the memory that lies in."""
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        inner = {f.inner: homes[f.outer] for f in node.inputs if f.outer in homes}
        if node.guard is not None:
            first, _ = asked(node)
            yield node, [(n, inner[n.memory]) for n in first if isinstance(n, Load) and n.memory in inner]
        yield from _guarded(node.body, inner)


def _of_answers(writer: Map, homes: Mapping[str, str], answers: str) -> dict[str, float | bool | None]:
    """Say what is idle in the inputs of which `writer` makes the list `answers`."""
    outer = {f.inner: f.outer for f in writer.inputs}
    inner = {f.inner: homes[f.outer] for f in writer.inputs if f.outer in homes}
    found: dict[str, float | bool | None] = {}
    for node in writer.body.nodes:
        match node:
            case Map():
                found |= _of_answers(node, inner, next((i for i, o in outer.items() if o == answers), answers))
            case Store(value=value) if outer.get(node.memory, node.memory) == answers:
                loads = [n for n in writer.body.nodes if isinstance(n, Load) and n.memory in inner]
                # What is stored says first whether a number, 1 for what is busy and 0 for what is not, is above 0 (`answers`).
                made = next((n for n in writer.body.nodes if n.name == value), None)
                counted = made.args[0] if isinstance(made, Pointwise) and made.args else value
                found |= {inner[n.memory]: _idle(writer.body, n, counted, KnownNumber(0.0)) for n in loads}
            case _:
                pass
    return found


def _idle(graph: Graph, load: Load, answer: str, idle: KnownNumber) -> float | bool | None:
    """Return what makes the value `answer` of `graph` be `idle` where all that `load` loads is that; None where nothing does."""
    asked = (-inf,) if isinstance(idle.value, bool) else (idle.value, -inf)
    numbers = (False, True) if load.dtype is DType.bool else asked if load.dtype.is_float else ()
    graph = replace(graph, nodes=tuple(map(_of_valid_elements, graph.nodes)))
    for number in numbers:
        if values_of(graph, {load.name: KnownNumber(number)}, Facts()).get(answer) == idle:
            return number
    return None


def _of_valid_elements(node: BlockNode) -> BlockNode:
    """Return `node`; a copy in place of one that only says what lies beyond the valid elements of its operand."""
    if not isinstance(node, Fill):
        return node
    return Pointwise(node.name, Arg(0), (node.arg,), (), DType.float32)
