"""What a loop carries for a prefix in its body, and what a prefix is where an iteration has one element."""

from __future__ import annotations

from collections.abc import Sequence

from weft.block.program import Component, Graph, Pointwise, Prefix, State
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg


def state_of(made: Prefix, carried: Sequence[DType], name: str) -> State:
    """Make the state of `made`, an operator of the body: all that came before, in the types `carried`, which the body sees as its
    `accs`; components are called after `name`.
    """
    names = (name,) if made.merge.size == 1 else tuple(f"{name}{i}" for i in range(made.merge.size))
    left, right, parts, wholes = ([f"{n}_{side}" for n in names] for side in ("left", "right", "part", "next"))
    merged = tuple(
        Pointwise(n, part, (*left, *right), made.rows, dtype)
        for n, part, dtype in zip(wholes, made.merge.parts, carried, strict=True)
    )
    components = tuple(
        Component(n, made.rows, dtype, begin) for n, dtype, begin in zip(names, carried, made.merge.begin, strict=True)
    )
    return State(
        components,
        made.totals,
        Graph((*names, *parts), (), tuple(parts)),
        Graph((*left, *right), merged, tuple(wholes)),
        Graph(names, (), names),
        shown=tuple(zip(names, made.accs, strict=True)),
    )


def of_one(node: Prefix, carried: Sequence[DType]) -> tuple[Pointwise, ...]:
    """Return what does the same as `node` where an iteration has one element, and what came before is of the types `carried`."""
    wholes = zip(node.totals, node.merge.parts, carried, strict=True)
    results = zip(node.names, node.totals, node.dtypes, strict=True)
    return (
        *(Pointwise(n, part, (*node.accs, *node.args), node.rows, d, node.location) for n, part, d in wholes),
        *(Pointwise(n, Arg(0), (whole,), node.rows, d, node.location) for n, whole, d in results),
    )
