"""Values of a tensor program that no list holds: operators that read them make them again."""

from __future__ import annotations

from collections.abc import Container

from weft.tensor.program import Cast, Constant, Contraction, Elementwise, Extent, Iota, Node, TensorProgram, uses
from weft.tensor.scalar import Apply, Lit, Scalar


def at_matmuls(program: TensorProgram, indices: Container[str]) -> dict[str, Cast]:
    """Finds roundings that only matmuls read: made where these read their operands, so that rules see what comes before them.

    Not those of what `indices` decide, which no list holds: they are values like others.
    """
    values = program.values()
    read_elsewhere = set(program.outputs)
    for node in program.nodes:
        if not isinstance(node, Contraction):
            read_elsewhere.update(uses(node))
    return {
        n.name: n
        for n in program.nodes
        if isinstance(n, Cast) and not n.semantic and n.name not in read_elsewhere
        if values[n.arg.value].axes and n.arg.value not in indices
    }


def indices_of(program: TensorProgram) -> dict[str, Node]:
    """Finds what indices and sizes alone decide, such as masks: made again where it is read, since no memory holds it
    more cheaply.

    Floating-point values count only if a few comparisons choose between numbers, not if a function computes them.
    """
    found: dict[str, Node] = {}
    for node in program.nodes:
        match node:
            case Iota() | Constant() | Extent():
                found[node.name] = node
            case Elementwise() | Cast() if all(n in found for n in uses(node)):
                if not node.dtype.is_float or (isinstance(node, Elementwise) and _chooses(node.expr)):
                    found[node.name] = node
            case _:
                pass
    return found


def _chooses(expr: Scalar) -> bool:
    """Tells whether `expr` is one of a few numbers."""
    match expr:
        case Lit():
            return True
        case Apply("where", (_, first, second)):
            return _chooses(first) and _chooses(second)
        case _:
            return False
