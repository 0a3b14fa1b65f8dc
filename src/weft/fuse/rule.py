"""What a substitution rule is, and how one is applied somewhere inside a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.block.program import BlockProgram, Graph, Map
from weft.block.rename import rename_program_axes
from weft.tensor.axes import Axis

Path: TypeAlias = tuple[str, ...]
"""The names of the maps that lead from the top-level graph to an inner one; () is the top level."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a rule made of one graph: the new graph, and the axes that became another axis in the whole program."""

    graph: Graph
    axes: Mapping[Axis, Axis] = field(default_factory=dict[Axis, Axis])


@dataclass(frozen=True, slots=True)
class Rule:
    """A logic-preserving substitution (section 3).

    Attributes:
        name: the law's name.
        number: the paper's number.
        rewrite: the graph after one application, at the first place that matches; None where the pattern is not there.
    """

    name: str
    number: int
    rewrite: Callable[[Graph], Rewrite | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One rewrite of a trace: which rule, in which graph, and the whole program before and after."""

    rule: str
    place: Path
    before: BlockProgram
    after: BlockProgram

    def __str__(self) -> str:
        return f"{self.rule} in {'the top level' if not self.place else ' > '.join(self.place)}"


def graph_at(graph: Graph, path: Path) -> Graph:
    """The inner graph that `path` leads to."""
    for name in path:
        graph = next(n.body for n in graph.nodes if isinstance(n, Map) and n.name == name)
    return graph


def replace_graph(graph: Graph, path: Path, new: Graph) -> Graph:
    """`graph` with the inner graph at `path` replaced."""
    if not path:
        return new
    nodes = tuple(
        replace(n, body=replace_graph(n.body, path[1:], new)) if isinstance(n, Map) and n.name == path[0] else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def apply_at(program: BlockProgram, path: Path, rewrite: Rewrite) -> BlockProgram:
    """`program` with the graph at `path` rewritten, and the axes that the rewrite identified renamed everywhere."""
    graph = replace_graph(program.graph, path, rewrite.graph)
    return rename_program_axes(replace(program, graph=graph), rewrite.axes)
