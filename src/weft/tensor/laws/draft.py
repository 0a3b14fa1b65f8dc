"""A program that is being rewritten, as laws that make new nodes need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.names import fresh
from weft.tensor.program import Cast, Node, TensorProgram, Use, reads_through


@dataclass
class Draft:
    """The new program so far.

    Attributes:
        program: as it was.
        nodes: those of the new program.
        values: by name the nodes of the old program, but of the new one where it has the name; inputs among them.
        taken: the names of both, and those that were made up.
    """

    program: TensorProgram
    nodes: list[Node] = field(default_factory=list[Node], init=False)
    values: dict[str, Node] = field(init=False)
    taken: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.values = self.program.values()
        self.taken = set(self.values)

    def append(self, node: Node) -> Use:
        """Appends the next node of the new program, and returns a use of it over its own axes."""
        self.nodes.append(node)
        self.values[node.name] = node
        return Use(node.name, node.axes)

    def fresh(self, stem: str) -> str:
        """Makes up a name that begins with `stem`."""
        return fresh(stem, self.taken)

    def made_by(self, add: Callable[[Node], object]) -> TensorProgram:
        """Gives every old node to `add`, and returns the new program without unread nodes."""
        for node in self.program.nodes:
            add(node)
        return remove_dead(replace(self.program, nodes=tuple(self.nodes)))


def past_casts(use: Use, values: Mapping[str, Node], may: Callable[[Cast], bool]) -> Iterator[Use]:
    """Yields `use`, then what the cast that it reads was made of, and so on, as far as casts `may` be passed."""
    yield use
    node = values[use.value]
    while isinstance(node, Cast) and may(node):
        (use,) = reads_through(node, use)
        yield use
        node = values[use.value]
