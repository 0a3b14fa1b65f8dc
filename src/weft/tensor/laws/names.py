"""Names that depend on structure alone: equal computations get equal names, whichever program they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace

from weft.tensor.axes import Axis, Space
from weft.tensor.builder.name import axis_of, space_name
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Extent, Node, TensorProgram, axes_of
from weft.tensor.rename import with_axes, with_values

_NUMBER = re.compile(r"^t\d+([._]\d+)*$|(\.\d+)+$|_\d+$")
"""Of a name that weft made: of a computed value, or of a copy or a view of another one."""


@tensor_pass(takes=("inputs",))
def numbered(program: TensorProgram, keep: Collection[str]) -> TensorProgram:
    """Returns `program` with its nodes called t0, t1 .., and its spaces M, K, N .., in order.

    The inputs in `keep` keep their names, others get one of theirs with a number, t0 where they are computed. The text of a
    kernel and its key in the cache, which depend on names, then depend only on structure and on what the user calls the
    inputs.
    """
    spaces = {s: replace(s, name=space_name(i)) for i, s in enumerate(program.spaces())}
    program = _over(program, spaces)
    values: dict[str, str] = {n.name: n.name for n in program.inputs if n.name in keep}
    taken = set(values.values())
    stems = {n.name: _NUMBER.sub("", n.name) for n in program.inputs} | {n.name: "" for n in program.nodes}
    for name, stem in stems.items():
        if name not in values:
            values[name] = _free(f"{stem}." if stem else "t", taken)
            taken.add(values[name])
    every = [replace(with_values(n, values.__getitem__), name=values[n.name]) for n in program.nodes]
    inputs = tuple(replace(n, name=values[n.name]) for n in program.inputs)
    return replace(program, inputs=inputs, nodes=tuple(every), outputs=tuple(values[o] for o in program.outputs))


def called_by_place(program: TensorProgram, stem: Callable[[str], str]) -> TensorProgram:
    """Returns `program` with its values called by their places, its inputs after the `stem` of their names too: the same for
    programs that differ in the rest of these names.
    """
    values = {n.name: f"{stem(n.name)}:{place}" for place, n in enumerate(program.inputs)}
    values |= {n.name: f"t{place}" for place, n in enumerate(program.nodes)}
    return replace(
        program,
        inputs=tuple(replace(n, name=values[n.name]) for n in program.inputs),
        nodes=tuple(replace(with_values(n, values.__getitem__), name=values[n.name]) for n in program.nodes),
        outputs=tuple(values[name] for name in program.outputs),
        rounded=tuple((values[name], dtype) for name, dtype in program.rounded),
    )


def _free(stem: str, taken: Collection[str]) -> str:
    return next(name for number in range(len(taken) + 1) if (name := f"{stem}{number}") not in taken)


def _over(program: TensorProgram, spaces: dict[Space, Space]) -> TensorProgram:
    """Returns `program` over other spaces, with each one's axes called after it, those of operations first."""
    axes: dict[Axis, Axis] = {}
    counts = dict.fromkeys(spaces, 0)

    def axis(own: Axis) -> Axis:
        if own not in axes:
            axes[own] = axis_of(spaces[own.space], counts[own.space])
            counts[own.space] += 1
        return axes[own]

    for node in program.nodes:
        for own in axes_of(node):
            axis(own)

    def changed(node: Node) -> Node:
        node = with_axes(node, axis)
        return replace(node, space=spaces[node.space]) if isinstance(node, Extent) else node

    nodes = tuple(changed(n) for n in program.nodes)
    dims = tuple(tuple(None if d is None else axis(d) for d in each) for each in program.output_dims)
    inputs = tuple(
        replace(n, axes=tuple(map(axis, n.axes)), dims=tuple(None if d is None else axis(d) for d in n.dims))
        for n in program.inputs
    )
    derived = tuple(
        replace(d, space=spaces[d.space], source=spaces[d.source], others=tuple(spaces[o] for o in d.others))
        for d in program.derived
    )
    return replace(program, inputs=inputs, nodes=nodes, output_dims=dims, derived=derived)


def fresh(stem: str, taken: set[str], mark: str = "_") -> str:
    """Returns a name that begins with `stem` and `mark`, and is not in `taken`, to which it is added."""
    number = 0
    while f"{stem}{mark}{number}" in taken:
        number += 1
    taken.add(f"{stem}{mark}{number}")
    return f"{stem}{mark}{number}"
