"""Values of a tensor program that no list holds: operators that read them make them again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from weft.tensor.axes import Axis
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Iota,
    Lookup,
    Node,
    TensorProgram,
    reads,
    uses,
)
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


def windows(program: TensorProgram, indices: Container[str], listed: Container[str]) -> dict[str, Lookup]:
    """Finds masked lookups in inputs, at what `indices` decide, of which nothing wants a list: read where they are used."""
    return {
        n.name: n
        for n in _of_inputs(program)
        if n.masked and n.name not in listed and all(u.value in indices for u in reads(n))
    }


def chosen(program: TensorProgram, elsewhere: Collection[str], is_unit: Callable[[Axis], bool]) -> dict[str, Lookup]:
    """Finds lookups in inputs that matmuls alone read, one place for each iteration of the loops around these, not for each row of
    a block: the matrix that an expert has, a page of a cache. A matmul's own loop reads them as it would any matrix in memory.

    elsewhere: what is read by others than the nodes of `program`.
    """
    listed = {name for n in program.nodes if not isinstance(n, Contraction) for name in uses(n)}
    listed.update(elsewhere, program.outputs)
    return {
        n.name: n
        for n in _of_inputs(program)
        if n.name not in listed and all(is_unit(axis) for u in reads(n) for axis in u.axes)
    }


def _of_inputs(program: TensorProgram) -> list[Lookup]:
    inputs = {n.name for n in program.inputs}
    return [n for n in program.nodes if isinstance(n, Lookup) and n.source in inputs]


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
