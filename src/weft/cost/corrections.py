"""Corrections: how often a loop with state brings a value from one reference to another (RedFuser, sections 3.2, 3.3 and 5.3).

A component that is relative to another one (a sum of exponentials, to the greatest so far) is multiplied or moved whenever that
other one changes: H(old)^-1 (x) H(new) of equations 11 and 15. Which operators do that is read off the state's own graphs; how
often they run is what `Traffic` counts, in the closed form and in the interpreter alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft.block.copies import merging
from weft.block.program import BlockNode, BlockProgram, Dot, Graph, Pointwise, State
from weft.block.rename import rename_values
from weft.block.walk import maps, operands, results
from weft.schedule import Level, LevelPlace
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, arguments


@dataclass(frozen=True, slots=True)
class Corrections:
    """How many there are, one for each item (each block of rows) and component.

    Attributes:
        outputs: of intermediate outputs, results of the level below, on the way into the level above (equation 11, and the
            second term of 15).
        running: of a running value as another input comes (the first term of 15 and 16).
        empty: of a running value that has seen nothing yet: a loop's first iteration evaluates it like the others, and it
            changes nothing.
    """

    outputs: int = 0
    running: int = 0
    empty: int = 0

    @property
    def evaluated(self) -> int:
        """All that a kernel evaluates."""
        return self.outputs + self.running + self.empty

    def __add__(self, other: Corrections) -> Corrections:
        return Corrections(self.outputs + other.outputs, self.running + other.running, self.empty + other.empty)

    def __mul__(self, times: int) -> Corrections:
        return Corrections(self.outputs * times, self.running * times, self.empty * times)


class Counted(Protocol):
    """What was counted: `weft.cost.Traffic`, or the interpreter's."""

    @property
    def operations(self) -> Mapping[tuple[str, tuple[int, ...]], int]:
        """Block operations by the node that does them, and by lengths."""
        ...

    @property
    def starts(self) -> Mapping[str, int]:
        """By loop: how often its first iteration has a state that has seen nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Correcting:
    """The operators of a state's update that correct.

    Attributes:
        running: (component, operator) for what corrects the value so far.
        outputs: the same for what corrects the value that is merged with it; none in a loop over elements.
    """

    running: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def correcting(state: State) -> Correcting:
    """Finds the operators of `state`'s update that correct.

    The new value of a component combines, by a monoid or in an accumulating matmul, what there was with what is new:

        s' = add(mul(s, f), part)

    An operand that is no input of the update but depends on the component's own value so far is a correction of it. In the
    update of a loop over whole states (segments, levels), which is their merge, so is one that depends on the component's value
    in the other state.
    """
    update, count = state.update, len(state.components)
    made = {name: node for node in update.nodes for name in results(node)}
    depends = _depends(update)
    whole = _is_merge(state)
    running: list[tuple[str, str]] = []
    outputs: list[tuple[str, str]] = []
    for place, (component, out) in enumerate(zip(state.components, update.outputs, strict=True)):
        for by, read in _sides(made[out]) if out in made else ():
            reach = frozenset[str]().union(*(depends[name] for name in read))
            if by in made and component.name in reach:
                running.append((component.name, by))
            elif by in made and whole and update.inputs[count + place] in reach:
                outputs.append((component.name, by))
    return Correcting(tuple(running), tuple(outputs))


def corrected(program: BlockProgram, counted: Counted) -> Corrections:
    """Counts the corrections of one run of an applied `program`, of which `counted` says what it did."""
    total, times = Corrections(), Counter[str]()
    for (name, _), often in counted.operations.items():
        times[name] += often
    for node in maps(program.graph):
        if node.state is None:
            continue
        found = correcting(node.state)
        evaluated = sum(times[name] for _, name in found.running)
        empty = counted.starts.get(node.name, 0) * len(found.running)
        outputs = sum(times[name] for _, name in found.outputs)
        total += Corrections(outputs, evaluated - empty, empty)
    return total


def dependents(state: State) -> int:
    """Counts the components of `state` that have something to correct: the dependent reductions of its chain."""
    return len(correcting(state).running)


def in_levels(size: int, levels: Sequence[Level], dependent: int) -> Corrections:
    """Counts the corrections of a loop, for each of the items that it runs for, in closed form.

    A loop of n iterations over elements corrects the running value n - 1 times; one over results of the level inside it
    corrects each of these too. Segments are such loops apart, and one more over their results.

    Args:
        size: elements of the loop's axis.
        levels: of its schedule, outermost first.
        dependent: how many components have something to correct (`dependents`).
    """
    if levels[0].place is not LevelPlace.split:
        return _in_loops(size, [_tile(level, size) for level in levels]) * dependent
    tiles = [_tile(level, size) for level in levels[1:]]
    count = levels[0].size
    each = math.ceil(math.ceil(size / tiles[0]) / count) * tiles[0]
    merge = Corrections(count, count - 1, 1)
    segments = (min(size, (i + 1) * each) - min(size, i * each) for i in range(count))
    return sum((_in_loops(segment, tiles) for segment in segments), merge) * dependent


def fused_at(lengths: Sequence[int], level: int, dependent: int) -> Corrections:
    """Counts the corrections that fusing a chain at a level of its reduction tree takes, a row (RedFuser, section 5.3).

    Up to `level` each output has a reference of its own; its L_k outputs are then combined. At the top there is one output, and
    no correction.

    Args:
        lengths: L_0 elements, and how many outputs each level has: threads, warps, blocks, 1.
        level: k, from 1 for the innermost (intra-thread) to the top (inter-block).
        dependent: how many reductions of the chain depend on earlier ones.
    """
    outputs = lengths[level]
    return Corrections(outputs, outputs - 1, 0) * dependent if outputs > 1 else Corrections()


def _tile(level: Level, size: int) -> int:
    return size if level.place is LevelPlace.whole else level.size


def _in_loops(size: int, tiles: Sequence[int]) -> Corrections:
    """Counts those of nested loops with these tiles over `size` elements, for one component."""
    if not size:
        return Corrections()
    tile, *inner = tiles
    blocks, rest = divmod(size, tile)
    iterations = blocks + bool(rest)
    own = Corrections(0, iterations - 1, 1)
    if not inner:
        return own
    return own + Corrections(iterations) + _in_loops(tile, inner) * blocks + _in_loops(rest, inner)


def _sides(node: BlockNode) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the operands that `node` combines: which value each is, or for a part of its own expression `node`, and
    what it reads.
    """
    match node:
        case Pointwise(name, Apply(op, pair), args) if op in {m.value for m in Monoid}:
            for side in pair:
                by = args[side.index] if isinstance(side, Arg) else name
                yield by, tuple(args[i] for i in sorted(arguments(side)))
        case Dot(acc=str(acc)):
            yield acc, (acc,)
        case _:
            pass


def _depends(graph: Graph) -> dict[str, frozenset[str]]:
    """Maps each value of `graph` to the inputs of the graph that it depends on."""
    found = {name: frozenset((name,)) for name in graph.inputs}
    for node in graph.nodes:
        reach = frozenset[str]().union(*(found[name] for name in operands(node)))
        found |= dict.fromkeys(results(node), reach)
    return found


def _is_merge(state: State) -> bool:
    """Tells whether an iteration is fed a whole state, and merges it."""
    return _numbered(state.update) == _numbered(merging(state))


def _numbered(graph: Graph) -> Graph:
    """Numbers the values of `graph` in order of appearance."""
    names = dict.fromkeys((*graph.inputs, *(name for node in graph.nodes for name in results(node))))
    return rename_values(graph, {name: str(i) for i, name in enumerate(names)})
