"""Merging many parts of a state at once: the binary merge of a state, made one of a block of parts.

A merge tells by its form what moves and what combines: a component is its two sides under one operation, each side relative to
other components of the whole, or it follows from these. A block of parts takes the place of the right side: what is relative
to the whole is made for each part, and the parts are combined along the block. That is right where moving twice is moving once,
as the laws of the states say; the form alone does not tell, and what is made is proven as every schedule is before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Flag, auto

from weft.block.copies import merging
from weft.block.program import BlockNode, Collapse, Component, Graph, Pointwise, State
from weft.block.rename import fresh, values_of
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Scalar, arguments, substitute

_MONOIDS = {m.value: m for m in Monoid}
# Of values that are no components: whatever else they are relative to, the greatest of all is that of any parts of them.
_EXTREMA = frozenset((Monoid.max, Monoid.min))


class _Side(Flag):
    """What a value of a merge depends on, but through what is of the whole."""

    none = 0
    left = auto()
    right = auto()


def merging_together(state: State, axis: Axis) -> Graph | None:
    """Return the update of a loop over `axis` that is fed blocks of whole states of `state`'s components, items with that axis.

    Args:
        state: the state whose parts are merged.
        axis: of the parts; no component has it.

    Returns:
        A graph (components + blocks of components) -> components; None where some component is no operation of two sides, as of
        a ranking, or some other value needs both, but for the greater or the less of two.
    """
    graph, names = merging(state), tuple(c.name for c in state.components)
    writer = _Writer(axis, set(graph.outputs), fresh(values_of(graph)))
    writer.sides.update(dict.fromkeys(names, _Side.left))
    writer.sides.update(dict.fromkeys(graph.inputs[len(names) :], _Side.right))
    if not all(isinstance(node, Pointwise) and writer.takes(node) for node in graph.nodes):
        return None
    if any(writer.sides[out] is _Side.right for out in graph.outputs):
        return None
    return replace(graph, nodes=tuple(writer.nodes))


def in_blocks(components: Sequence[Component], axis: Axis, taken: Set[str]) -> tuple[Pointwise, ...]:
    """Return operators that make items with `axis`, of one element along it, of `components`: parts of which a loop reads blocks.

    `taken`: names of values beside them.
    """
    make = fresh(set(taken))
    return tuple(Pointwise(make(f"{c.name}_alone"), Arg(0), (c.name,), (axis, *c.dims), c.dtype) for c in components)


@dataclass
class _Writer:
    """Writes the operators of the new graph.

    Attributes:
        axis: of the block.
        wanted: the components of the whole.
        make: a maker of new names.
        sides: of every value so far.
        nodes: the operators so far.
    """

    axis: Axis
    wanted: set[str]
    make: Callable[[str], str]
    sides: dict[str, _Side] = field(default_factory=dict[str, _Side])
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])

    def takes(self, node: Pointwise) -> bool:
        """Write what stands for `node`; False where nothing can."""
        sides = self._sides(node.expr, node)
        if _Side.right not in sides:
            self.nodes.append(node)
            self.sides[node.name] = _Side.none if node.name in self.wanted else sides
            return True
        if node.name in self.wanted or _Side.left in sides:
            return self._combined(node)
        self.nodes.append(replace(node, dims=(self.axis, *node.dims)))
        self.sides[node.name] = sides
        return True

    def _combined(self, node: Pointwise) -> bool:
        """Tell whether `node` is one operation on something of the left side and of all the block's parts, and add it if so."""
        match node.expr:
            case Apply(op, (one, other)) if op in _MONOIDS and (node.name in self.wanted or _MONOIDS[op] in _EXTREMA):
                pass
            case _:
                return False
        if _Side.right in self._sides(one, node):
            one, other = other, one
        if self._sides(one, node) is not _Side.left or self._sides(other, node) is not _Side.right:
            return False
        part = self.make(f"{node.name}_parts")
        self.nodes.append(Collapse(part, _MONOIDS[op], self._of_parts(other, node), self.axis, node.location))
        count = len(node.args)
        args, expr = (*node.args, part), Apply(op, (one, Arg(count)))
        kept = sorted(arguments(expr))
        expr = substitute(expr, lambda i: Arg(kept.index(i)))
        self.nodes.append(replace(node, expr=expr, args=tuple(args[i] for i in kept)))
        self.sides[node.name] = _Side.none
        return True

    def _of_parts(self, expr: Scalar, node: Pointwise) -> str:
        """Return the name of `expr`, of arguments of `node`, for each part."""
        if isinstance(expr, Arg):
            return node.args[expr.index]
        name, kept = self.make(f"{node.name}_part"), sorted(arguments(expr))
        own = substitute(expr, lambda i: Arg(kept.index(i)))
        dims = (self.axis, *node.dims)
        self.nodes.append(Pointwise(name, own, tuple(node.args[i] for i in kept), dims, node.dtype, node.location))
        return name

    def _sides(self, expr: Scalar, node: Pointwise) -> _Side:
        found = _Side.none
        for i in arguments(expr):
            found |= self.sides[node.args[i]]
        return found
