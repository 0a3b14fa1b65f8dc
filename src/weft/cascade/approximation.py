"""A loop without its roundings at a running scale, which a field can check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.block.program import BlockProgram, Graph, Map, Pointwise
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Apply, Arg, Convert, Scalar, rewritten


@dataclass(frozen=True, slots=True)
class Approximation:
    """What a field can check of a loop that rounds at the running scale: that it is exact where these roundings are left out.

    Attributes:
        program: the one asked about, without them.
        roundings: R of each.
    """

    program: TensorProgram
    roundings: tuple[Scalar, ...]

    def without(self, applied: BlockProgram) -> BlockProgram:
        """Returns `applied` without the roundings in the updates of its loops."""
        return replace(applied, graph=self._graph(applied.graph))

    def _graph(self, graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(self._map(n) if isinstance(n, Map) else n for n in graph.nodes))

    def _map(self, node: Map) -> Map:
        state = node.state
        if state is not None:
            update = tuple(
                replace(n, expr=without(self.roundings, n.expr)) if isinstance(n, Pointwise) else n
                for n in state.update.nodes
            )
            state = replace(state, update=replace(state.update, nodes=update))
        return replace(node, body=self._graph(node.body), state=state)


def without(roundings: Sequence[Scalar], expr: Scalar) -> Scalar:
    """Replaces each application of `roundings` in `expr` by what it is applied to."""
    for around in roundings:
        inner = _inside(around, expr)
        if inner is not None:
            return without(roundings, inner)
    return rewritten(expr, lambda inner: without(roundings, inner))


def _inside(around: Scalar, expr: Scalar) -> Scalar | None:
    """Returns what `around` is applied to in `expr`, if it is."""
    match around, expr:
        case Arg(), _:
            return expr
        case Convert(dtype, own), Convert(other, inner) if dtype is other:
            return _inside(own, inner)
        case Apply(op, (own, *rest)), Apply(other, (inner, *others)) if op == other and rest == others:
            return _inside(own, inner)
        case _:
            return None
