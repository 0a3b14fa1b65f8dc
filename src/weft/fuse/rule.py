"""What a substitution rule is, and how one is applied somewhere inside a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from weft.block.check import body_types, infer
from weft.block.program import BlockProgram, Graph, Map
from weft.block.rename import rename_program_axes
from weft.block.scope import Scope, Types
from weft.tensor.axes import Axis
from weft.tensor.passes import Bears, Conditioning, Pass, Path, Step


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a rule made of one graph: the new graph, and the axes that became another axis in the whole program."""

    graph: Graph
    axes: Mapping[Axis, Axis] = field(default_factory=dict[Axis, Axis])


@dataclass(frozen=True, slots=True)
class Site:
    """One graph of a program, which is where rules look for their patterns.

    Attributes:
        program: the whole program, for names that must be new in it.
        path: leads to the graph.
    """

    program: BlockProgram
    path: Path = ()
    _types: list[Types] = field(default_factory=list[Types], compare=False, repr=False)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return graph_at(self.program.graph, self.path)

    def types(self) -> Types:
        """Return the types of the graph's values: worked out once for all rules that look here."""
        if not self._types:
            self._types.append(self._inferred())
        return self._types[0]

    def _inferred(self) -> Types:
        graph, given, scope = self.program.graph, dict(self.program.inputs), Scope({}, applied=False)
        types = infer(graph, given, scope)
        for name in self.path:
            node = next(n for n in graph.nodes if isinstance(n, Map) and n.name == name)
            graph, scope = node.body, scope.inside(node)
            types = infer(graph, body_types(node, types), scope)
        return types


@dataclass(frozen=True, slots=True)
class Rule(Pass[[Site], Rewrite | None]):
    """A logic-preserving substitution (section 3).

    Attributes:
        rewrite: gives the graph after one application, at the first place that matches; None where the pattern is not there.
        number: the paper's number; None for a rule that the paper does not have.
    """

    number: int | None = field(kw_only=True)

    @property
    def kind(self) -> str:
        """Return what the name of the rule follows: "rule 4", or "rule" without the paper's number."""
        return "rule" if self.number is None else f"rule {self.number}"

    def again(self, program: BlockProgram, step: Step) -> BlockProgram:
        """Apply the rule where `step` did."""
        place = step.place or ()
        rewrite = self.rewrite(Site(program, place))
        assert rewrite is not None, f"{step} matches nothing"
        return apply_at(program, place, rewrite)


def rule(
    number: int | None, conditioning: Conditioning, bears: Bears = Bears.as_before, kinds: tuple[str, ...] = ()
) -> Callable[[Callable[[Site], Rewrite | None]], Rule]:
    """Make a function a rule of the same name; `number` as of `Rule`, the other arguments as of `Pass`."""
    return lambda rewrite: Rule(rewrite.__name__, rewrite, "block", conditioning, bears, kinds, number=number)


def graph_at(graph: Graph, path: Path) -> Graph:
    """Return the inner graph that `path` leads to."""
    for name in path:
        graph = next(n.body for n in graph.nodes if isinstance(n, Map) and n.name == name)
    return graph


def replace_graph(graph: Graph, path: Path, new: Graph) -> Graph:
    """Return `graph` with the inner graph at `path` replaced."""
    if not path:
        return new
    nodes = tuple(
        replace(n, body=replace_graph(n.body, path[1:], new)) if isinstance(n, Map) and n.name == path[0] else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def apply_at(program: BlockProgram, path: Path, rewrite: Rewrite) -> BlockProgram:
    """Rewrite the graph at `path` in `program`, and rename the axes that the rewrite identified everywhere."""
    made = replace(program, graph=replace_graph(program.graph, path, rewrite.graph))
    return rename_program_axes(made, rewrite.axes) if rewrite.axes else made
