"""Forms: what programs have in common that differ in names alone, of values, axes and spaces, and in the user's lines."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.tensor.axes import Axis, Space
from weft.tensor.program import Extent, Input, Node, TensorProgram, uses
from weft.tensor.rename import with_axes, with_values

Form: TypeAlias = Hashable
"""Equal for programs that differ in names alone."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A node without names: `text` has numbers in their place, those of the axes, spaces and values that are listed."""

    text: str
    axes: tuple[Axis, ...]
    spaces: tuple[Space, ...]
    values: tuple[str, ...]


@dataclass
class Forms:
    """The forms of parts of a graph; what a node says is written out once, however many parts it is in."""

    _lines: dict[Node, _Line] = field(default_factory=dict[Node, _Line])
    _same: dict[int, tuple[Node, _Line]] = field(
        default_factory=dict[int, tuple[Node, _Line]]
    )  # parts share their nodes

    def of(self, *programs: TensorProgram) -> tuple[Form, tuple[Space, ...]]:
        """Return the form of `programs` together, and their spaces in the order in which the form numbers them.

        Inputs of one name are one tensor, and axes and spaces are shared; nodes of one name in two programs are two values. The
        sizes of the example are no part of the form, nor are rules for sizes.
        """
        axes, spaces = dict[Axis, int](), dict[Space, int]()
        values = dict[tuple[int, str], int]()
        found: list[Form] = []

        def numbered(axis: Axis) -> int:
            if axis not in axes:
                found.append((axes.setdefault(axis, len(axes)), spaces.setdefault(axis.space, len(spaces))))
            return axes[axis]

        for number, program in enumerate(programs):
            names = {n.name: (-1, n.name) for n in program.inputs} | {n.name: (number, n.name) for n in program.nodes}
            for node in (*program.inputs, *program.nodes):
                line = self._line(node)
                found.append(
                    (
                        line.text,
                        values.setdefault(names[node.name], len(values)),
                        tuple([values.setdefault(names[v], len(values)) for v in line.values]),
                        tuple(map(numbered, line.axes)),
                        tuple([spaces.setdefault(s, len(spaces)) for s in line.spaces]),
                    )
                )
            found.append(tuple([values.setdefault(names[o], len(values)) for o in program.outputs]))
            found.append(tuple([tuple([d and numbered(d) for d in dims]) for dims in program.output_dims]))
            found.append(tuple([(values[names[name]], dtype.name) for name, dtype in program.rounded]))
        return tuple(found), tuple(spaces)

    def _line(self, node: Node) -> _Line:
        same = self._same.get(id(node))
        if same is not None:
            return same[1]
        line = self._lines.get(node)
        if line is None:
            line = self._lines[node] = _line(node)
        self._same[id(node)] = node, line  # held, so that its number stays its own
        return line


def _line(node: Node) -> _Line:
    axes, spaces = dict[Axis, Axis](), dict[Space, Space]()
    values: list[str] = []

    def space(own: Space) -> Space:
        return spaces.setdefault(own, Space(str(len(spaces)), own.fixed))

    def axis(own: Axis) -> Axis:
        if own not in axes:
            axes[own] = Axis(str(len(axes)), space(own.space))
        return axes[own]

    def value(name: str) -> str:
        values.append(name)
        return str(len(values))

    plain = with_values(with_axes(node, axis), value)
    if isinstance(plain, Input) or not hasattr(plain, "location"):
        plain = replace(plain, name="")
    else:
        plain = replace(plain, name="", location=None)
    if isinstance(plain, Extent):
        plain = replace(plain, space=space(plain.space))
    assert tuple(values) == uses(node)
    return _Line(repr(plain), tuple(axes), tuple(spaces), tuple(values))
