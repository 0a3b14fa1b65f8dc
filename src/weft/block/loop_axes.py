"""The order of loops: which axes of a tensor program its nests go over, outermost first, in blocks or by single elements.

Decided once for all axes that some use binds to one another, so that maps that could be fused meet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.block.one_hot import one_hot_axes
from weft.block.unlisted import indices_of
from weft.tensor.axes import Axis
from weft.tensor.program import Contraction, Lookup, Node, Ranking, Reduction, Scan, TensorProgram, axes_of, reads


@dataclass(frozen=True, slots=True)
class LoopAxes:
    """What is decided once for all axes that some use binds to one another.

    Attributes:
        root: of each axis, the one that stands for its class.
        unit: classes that loops go over by single elements.
        summed: of these, what only a reduction goes over: its loop is inside of those over blocks, so that no list has the axis.
        rank: the order in which classes appear.
        ranked: classes of ranks.
        last: of classes that are to come after others, the later the greater.
    """

    root: dict[Axis, Axis]
    unit: frozenset[Axis]
    summed: frozenset[Axis]
    rank: dict[Axis, int]
    ranked: frozenset[Axis]
    last: Mapping[Axis, int]

    def is_unit(self, axis: Axis) -> bool:
        return self.root[axis] in self.unit

    def order(self, axes: Sequence[Axis]) -> list[Axis]:
        """Sorts axes outermost first: one order for the whole program, so that maps that could be fused meet. Ranks
        have one block: last.
        """
        return sorted(axes, key=self._key)

    def _key(self, axis: Axis) -> tuple[bool, bool, bool, int, int]:
        root = self.root[axis]
        summed = root in self.summed
        blocked = summed or not self.is_unit(axis)
        return blocked, summed, root in self.ranked, self.last.get(root, 0), self.rank[root]


def loop_axes(program: TensorProgram, lengths: Mapping[str, int] | None) -> LoopAxes:
    """Groups axes into classes by the bindings of uses; batch axes of contractions, and all but two free axes, become unit loops.

    Given `lengths` of spaces, all free axes go by blocks, and reduced ones come last, the longest first. Without, those come last
    that are reduced and never kept, in a program that multiplies nothing.
    """
    values = program.values()
    parent: dict[Axis, Axis] = {}

    def find(axis: Axis) -> Axis:
        parent.setdefault(axis, axis)
        while parent[axis] != axis:
            axis = parent[axis]
        return axis

    wanted: dict[Axis, None] = {}
    units: dict[Axis, None] = {}
    for node in (*program.inputs, *program.nodes):
        for axis in axes_of(node):
            find(axis)
        for own, axis in _bound(node, values):
            parent[find(own)] = find(axis)
        blocked, batch = _roles(node)
        wanted.update(dict.fromkeys(blocked))
        units.update(dict.fromkeys(batch))
    one_hot = list(one_hot_axes(program))
    needed = {find(a) for a in wanted} | {find(row) for _, row in one_hot}
    forced = {find(a) for a in units}
    loose = [find(a) for node in program.nodes for a in node.axes[:-2]] if lengths is None else []
    unit = frozenset(forced | {a for a in loose if a not in needed})
    rank: dict[Axis, int] = {}
    again = indices_of(program)  # made where they are read: where they are written says nothing of the order of loops
    for node in (*(n for n in program.nodes if n.name not in again), *program.inputs, *again.values()):
        for axis in axes_of(node):
            rank.setdefault(find(axis), len(rank))
    ranked = frozenset(find(n.rank) for n in program.nodes if isinstance(n, Ranking) and n.rank is not None)
    last: dict[Axis, int] = {}
    if lengths is not None:  # after all others: a number above 0, the less the longer
        reduced = (n for n in program.nodes if isinstance(n, Reduction | Scan | Ranking))
        over = [a for n in reduced for a in (n.over if isinstance(n, Reduction) else (n.over,))]
        most = max((a.space.size(lengths) for a in over), default=0)
        last = {find(a): 1 + most - a.space.size(lengths) for a in over}
    elif not any(isinstance(n, Contraction) for n in program.nodes):
        last = dict.fromkeys(_only_reduced(program, find), 1)
    for over, row in one_hot:  # inside of the loop over rows, so that no list has both
        if find(over) != find(row):
            last.setdefault(find(over), 1)
    return LoopAxes({a: find(a) for a in parent}, unit, _summed(program, find, unit), rank, ranked, last)


def _summed(program: TensorProgram, find: Callable[[Axis], Axis], unit: Container[Axis]) -> frozenset[Axis]:
    """Returns the classes of `unit` that reductions go over, no other axes with them, and that no reduction, scan or ranking keeps.

    So blocks of rows and columns are outside of the loop, to be computed side by side; and no other loop, as that of a softmax
    whose heads are added up, has to be inside of it.
    """
    reduced = [n for n in program.nodes if isinstance(n, Reduction | Scan | Ranking)]
    over = {
        find(a) for n in reduced if isinstance(n, Reduction) and all(find(a) in unit for a in n.over) for a in n.over
    }
    return frozenset(over.difference(find(a) for n in reduced for a in n.axes))


def _only_reduced(program: TensorProgram, find: Callable[[Axis], Axis]) -> frozenset[Axis]:
    """Returns the classes that reductions and scans go over and none keeps, nor a ranking.

    So what is added up down the columns is made column by column too.

    In a program of columns and rows, each reduced, the order stays that of the program: no order suits both.
    """
    reduced = [n for n in program.nodes if isinstance(n, Reduction | Scan)]
    over = {n.name: set(n.over if isinstance(n, Reduction) else (n.over,)) for n in reduced}
    kept = {find(a) for n in reduced for a in n.axes if a not in over[n.name]}
    kept.update(find(a) for n in program.nodes if isinstance(n, Ranking) for a in n.axes)
    return frozenset({find(a) for axes in over.values() for a in axes} - kept)


def _bound(node: Node, values: Mapping[str, Node]) -> Iterator[tuple[Axis, Axis]]:
    """Yields the axes of values that `node` reads, each with the axis of `node` that goes along it."""
    for use in reads(node):
        yield from zip(values[use.value].axes, use.axes, strict=True)
    if isinstance(node, Lookup):
        pairs = zip(values[node.source].axes, node.along, strict=True)
        yield from ((own, axis) for own, axis in pairs if axis is not None)


def _roles(node: Node) -> tuple[list[Axis], list[Axis]]:
    """Returns the axes that `node` needs blocks of, and those that it can only run over one element at a time."""
    match node:
        case Contraction():
            left, right = set(node.left.axes), set(node.right.axes)
            over = [a for a in node.over if a in left and a in right]
            free_left = [a for a in node.axes if a in left and a not in right]
            free_right = [a for a in node.axes if a in right and a not in left]
            batch = [a for a in node.axes if a in left and a in right]
            return (over[-1:] + free_left[-1:] + free_right[-1:], batch + over[:-1] + free_left[:-1] + free_right[:-1])
        case Reduction():
            return (list(node.over), [])
        case Scan():
            return ([node.over], [])
        case Ranking():
            rank = [] if node.rank is None else [node.rank]
            return ([node.over, *rank], [])
        case _:
            return ([], [])
