"""The stage of each value of a program: how many cuts between kernels, at the least, come before it."""

from __future__ import annotations

from collections.abc import Iterable

from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Lookup,
    Node,
    Opaque,
    Reindex,
    TensorProgram,
    uses,
)


def depths(program: TensorProgram) -> dict[str, int]:
    """Number the stage of each value: inputs 0, and one more at each cut.

    A contraction is of the stage of what reads it where that waits for a mask: so it need not lie in memory. Where that waits for
    another product, as in x @ w + (x @ a) @ b, either may be in a kernel with the sum, and the cuts choose. What is moved to a
    later stage moves what follows it, so the numbers are made again from there: a layer may follow another one.
    """
    stages, last_readers = _Stages(program), _last_readers(program)
    every = (*program.inputs, *program.nodes)
    place = len(program.inputs)
    while place < len(every):
        stages.number(every[place])
        late = [c for c in last_readers.get(every[place].name, ()) if stages.is_late(c)]
        place = min((program.places[c] for c in late), default=place + 1)
    return stages.depth


def _last_readers(program: TensorProgram) -> dict[str, list[str]]:
    """Name the contractions that only arithmetic reads, by the last node that does."""
    found: dict[str, list[str]] = {}
    for node in program.nodes:
        readers = program.readers.get(node.name, ()) if isinstance(node, Contraction) else ()
        if readers and node.name not in program.outputs and all(isinstance(n, Elementwise | Cast) for n in readers):
            last = max(readers, key=lambda n: program.places[n.name])
            found.setdefault(last.name, []).append(node.name)
    return found


class _Stages:
    """The first stage that each value can be of, node by node in the order of the program; a node may be numbered again."""

    def __init__(self, program: TensorProgram) -> None:
        self.program, self.values = program, program.values()
        self.depth = {n.name: 0 for n in program.inputs}
        self.contracted = dict.fromkeys(self.depth, False)
        self.opaque = {n.name for n in program.nodes if isinstance(n, Opaque)}
        self.made = {n.name for n in program.nodes if not isinstance(n, Reindex | Opaque)}
        self.tables = program.tables & self.made
        self.late: dict[str, int] = {}
        """Stages before which a contraction is not."""
        self.calls: dict[str, tuple[str, int]] = {}
        """By call, its first result and its stage."""

    def number(self, node: Node) -> None:
        """Number a node whose operands are numbered."""
        depth, operands = self.depth, uses(node)
        own = max((depth[v] + (v in self.opaque) for v in operands), default=0)
        own = max(own, self.late.get(node.name, 0))
        if isinstance(node, Opaque):
            own = self._of_call(node)
        elif (isinstance(node, Reindex) and node.source in self.made) or (
            isinstance(node, Lookup) and node.source in self.tables
        ):
            own += depth[node.source] == own  # a part of what a region makes is read in memory
        elif isinstance(node, Contraction) and self._contracted(operands, own):
            own += 1
        depth[node.name] = own
        made_here = self._contracted(operands, own) and not isinstance(node, Opaque)
        self.contracted[node.name] = isinstance(node, Contraction) or made_here

    def _contracted(self, operands: Iterable[str], stage: int) -> bool:
        return any(self.contracted[v] and self.depth[v] == stage for v in operands)

    def _of_call(self, node: Opaque) -> int:
        """Return the stage of a call, which is that of its first result."""
        first, stage = self.calls.get(node.call, (node.name, 0))
        if first == node.name:
            turns = [self.depth[v] for v in self.program.turns.get(node.name, ())]
            stage = max([1, *turns, *(self.depth[v] + 1 for v in uses(node))])
            self.calls[node.call] = first, stage
        return stage

    def is_late(self, contraction: str) -> bool:
        """Tell whether a contraction is to be of a later stage, that of its readers, which all are numbered."""
        readers, own = self.program.readers[contraction], self.depth[contraction]
        beside = {v for n in readers for v in uses(n) if self.depth[v] > own}
        stage = min(self.depth[n.name] for n in readers)
        if stage <= own or any(self.values[v].dtype.is_float for v in beside):
            return False
        self.late[contraction] = stage
        return True
