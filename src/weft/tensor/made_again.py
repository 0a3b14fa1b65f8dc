"""Values that each kernel which reads them makes for itself: to make them again takes less than to store them."""

from __future__ import annotations

from collections.abc import Iterable

from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Iota,
    Lookup,
    Node,
    Opaque,
    Reindex,
    TensorProgram,
    uses,
)


def numbers_of(program: TensorProgram) -> frozenset[str]:
    """Names what is made of numbers, sizes and indices alone: see `TensorProgram.numbers`."""
    found, tables = set[str](), program.tables
    for node in program.nodes:
        match node:
            case _ if node.name in tables:
                pass
            case Constant() | Extent() | Iota():
                found.add(node.name)
            case Elementwise() | Cast() if found.issuperset(uses(node)) and not (node.axes and node.dtype.is_float):
                found.add(node.name)
            case _:
                pass
    return frozenset(found)


def local_of(program: TensorProgram) -> frozenset[str]:
    """Names these, masks of rows of integers, and what only such masks read: see `TensorProgram.local`.

    What is returned, or read by PyTorch, is stored in any case. Of what is looked up in, views of inputs alone are made again:
    others have to lie in memory. Integers with more axes are left out: those are mostly looked up themselves, for each element, and
    a kernel would do that again for each block of the mask.
    """
    read_axes, masks, values = dict.fromkeys(program.numbers, 0), set[str](), program.values()
    inputs = {node.name for node in program.inputs}

    def most(names: Iterable[str]) -> int:
        return max((read_axes.get(name, len(values[name].axes)) for name in names), default=0)

    for node in program.nodes:
        view = isinstance(node, Reindex) and node.source in inputs
        if not (view or (isinstance(node, Elementwise | Cast | Lookup) and node.name not in program.tables)):
            continue
        if not any(values[name].dtype.is_float for name in (node.name, *uses(node))):
            read_axes.setdefault(node.name, most(uses(node)))
            if node.dtype is DType.bool and read_axes[node.name] == 1 < len(node.axes):
                masks.add(node.name)
    stored = {*program.outputs, *(v for n in program.nodes if isinstance(n, Opaque) for v in n.uses)}
    found = (masks - stored) | program.numbers
    for node in reversed(program.nodes):
        readers = program.readers.get(node.name, ())
        if node.name in read_axes and node.name not in stored and readers:
            found |= {node.name} if all(each.name in found for each in readers) else set()
    return frozenset(found)


def stored_uses(program: TensorProgram, node: Node) -> tuple[str, ...]:
    """Names the values that must be there before `node`: what it reads, or for what is local what that is made of."""
    values, waiting, found = program.values(), list(reversed(uses(node))), dict[str, None]()
    while waiting:
        name = waiting.pop()
        if name in program.local:
            waiting += reversed(uses(values[name]))
        else:
            found.setdefault(name)
    return tuple(found)
