"""The launches of an applied program: what each runs, reads and leaves."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, Buffer, Graph, Map
from weft.block.walk import maps, operands, results, stored


@dataclass(frozen=True, slots=True)
class KernelNodes:
    """The part of an applied program that one launch runs: top-level operators, what they read and what they leave.

    Memory that no other launch reads is among the operators.

    Attributes:
        begun: those of its writes that an earlier launch has stored a part of.
        merges: whether it merges what another launch has made of segments, and goes over none itself.
    """

    nodes: tuple[BlockNode, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    begun: tuple[str, ...] = ()
    merges: bool = False


def kernels(program: BlockProgram) -> tuple[KernelNodes, ...]:
    """Return the launches of an applied `program`, in order: each grid nest is one, and so is each run of operators
    between them.
    """
    groups: list[list[BlockNode]] = []
    serial = False
    for node in program.graph.nodes:
        if isinstance(node, Buffer):
            continue  # no work: part of the launch that alone uses it
        on_grid = isinstance(node, Map) and node.place is Place.grid
        if on_grid or not serial:
            groups.append([])
        groups[-1].append(node)
        serial = not on_grid
    found: list[KernelNodes] = []
    for group in groups:
        found.append(_kernel(program, tuple(group), {name for part in found for name in part.writes}))
    return tuple(found)


def apart(program: BlockProgram) -> tuple[KernelNodes, ...]:
    """Return each top-level operator of an applied `program` as a launch: what it makes goes to global memory, as before fusion."""
    nodes = (node for node in program.graph.nodes if not isinstance(node, Buffer))
    return tuple(KernelNodes((node,), operands(node), stored(node)) for node in nodes)


def _kernel(program: BlockProgram, nodes: tuple[BlockNode, ...], before: Container[str]) -> KernelNodes:
    left = {name for n in nodes for name in stored(n)}
    made = dict.fromkeys(
        name for n in program.graph.nodes for name in results(n) if name in left or any(n is own for own in nodes)
    )
    read = dict.fromkeys(name for n in nodes for name in operands(n) if name not in made)
    elsewhere = {name for n in program.graph.nodes if n not in nodes for name in operands(n)} | set(
        program.graph.outputs
    )
    writes = tuple(n for n in made if n in elsewhere)
    own = tuple(n for n in program.graph.nodes if isinstance(n, Buffer) and n.name in made and n.name not in elsewhere)
    cut = {m.range.segment[0].space for m in maps(program.graph) if m.range.segment is not None}
    inside = tuple(maps(Graph((), nodes, ())))
    merges = any(m.state is not None and m.axis.space in cut for m in inside)
    merges = merges and all(m.range.segment is None for m in inside)
    return KernelNodes((*own, *nodes), tuple(read), writes, tuple(n for n in writes if n in before), merges)
