"""Which shifts under exponentials a region can do without."""

from __future__ import annotations

from collections.abc import Iterator

from weft.block.lower import lower
from weft.block.program import BlockNode, Graph, Map, Pointwise
from weft.block.walk import results
from weft.errors import UnsupportedError
from weft.fuse.safety import make_safe
from weft.tensor.laws import lost_shifts, shift, sizes_in_place
from weft.tensor.passes import Bears, Conditioning, tensor_pass
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import applied


@tensor_pass(Conditioning.rounding, Bears.checked)
def cancel_shifts(program: TensorProgram) -> TensorProgram:
    """Leaves out shifts under exponentials that cancel in the results; `program` itself where there are none.

    The law is `weft.tensor.laws.cancel_shifts`; numerical safety comes after fusion.
    A shift may cancel and be needed: exp(x - max(x)) * exp(y - max(y)), divided by its sum, is no pair, since exponents that are
    added lose digits. Such exponentials keep their shifts.
    """
    kept = frozenset[str]()
    while True:
        found = shift.cancel_shifts(program, kept)
        lost = lost_shifts(program, found) if found is not program else frozenset[str]()
        needed = lost & _left_plain(found) if lost else lost
        if needed <= kept:
            return found
        kept |= needed


def _left_plain(program: TensorProgram) -> frozenset[str]:
    """Finds the exponentials of `program` that would not become pairs; all of a program without block program."""
    try:
        lowered = lower(sizes_in_place(program))
    except UnsupportedError:
        return frozenset(program.values())
    names = list(_exponentials(lowered.graph))
    return frozenset(names[i] for i in make_safe(lowered).left)


def _exponentials(graph: Graph) -> Iterator[str]:
    """Yields the list that each exponential of an unfused program is for, which has its tensor's name, in the program's order."""
    for node in graph.nodes:
        for _ in range(_count(node)):
            yield results(node)[0]


def _count(node: BlockNode) -> int:
    match node:
        case Pointwise():
            return applied(node.expr).count("exp")
        case Map():
            return sum(map(_count, node.body.nodes))
        case _:
            return 0
