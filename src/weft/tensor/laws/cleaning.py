"""Laws that change no value: dead nodes are removed, equal expressions computed once, parts taken as programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from weft.tensor.axes import Axis
from weft.tensor.derived import about
from weft.tensor.dtypes import DType
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Input, Node, Opaque, TensorProgram, axes_of, uses
from weft.tensor.rename import with_axes, with_values


@tensor_pass()
def remove_dead(program: TensorProgram) -> TensorProgram:
    """Drops nodes that no output depends on, except calls into PyTorch that always run.

        a = f(x)                b = g(x)
        b = g(x)         ==>    return b
        return b

    Condition: none; inputs stay, since the program is called with them. Conditioning: none.
    """
    alive = set(program.outputs)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        if node.name in alive or (isinstance(node, Opaque) and node.always):
            alive.update(uses(node))
            kept.append(node)
    names = {n.name for n in kept}
    rounded = tuple(each for each in program.rounded if each[0] in names)
    return replace(program, nodes=tuple(reversed(kept)), rounded=rounded)


@tensor_pass()
def merge_equal(program: TensorProgram, apart: Collection[str] = ()) -> TensorProgram:
    """Computes equal expressions once.

        a[m] = exp(x[m])            a[m] = exp(x[m])
        b[n] = exp(x[n])     ==>    return a + a
        return a + b

    Nodes named in `apart` are merged with each other, but with no other ones.

    Condition: the nodes are the same up to names of axes, of values already merged, and
    locations; literals the same in type and sign (0, 0.0, -0.0 and False are four). Opaque
    operations are never merged: they may be random. Conditioning: none.
    """
    name_of: dict[str, str] = {}
    seen: dict[tuple[bool, str], Node] = {}
    kept: list[Node] = []
    dims = list(program.output_dims)
    for old in program.nodes:
        node = with_values(old, lambda value: name_of.get(value, value))
        first = node if isinstance(node, Opaque) else seen.setdefault((node.name in apart, form_of(node)), node)
        if first is node:
            kept.append(node)
            continue
        name_of[node.name] = first.name
        own = dict(zip(node.axes, first.axes, strict=True))
        for place, (name, each) in enumerate(zip(program.outputs, dims, strict=False)):
            if name == node.name:
                dims[place] = tuple(None if d is None else own[d] for d in each)
    outputs = tuple(name_of.get(name, name) for name in program.outputs)
    rounded = _rounded_alike(program, name_of)
    return replace(program, nodes=tuple(kept), outputs=outputs, output_dims=tuple(dims), rounded=rounded)


def _rounded_alike(program: TensorProgram, name_of: Mapping[str, str]) -> tuple[tuple[str, DType], ...]:
    """Return what `program` says of roundings for the nodes that stay: a value is rounded where all that became it are, alike."""
    known = dict(program.rounded)
    types: dict[str, set[DType | None]] = {}
    for node in program.nodes:
        types.setdefault(name_of.get(node.name, node.name), set()).add(known.get(node.name))
    return tuple((name, dtype) for name, dtype in program.rounded if types.get(name) == {dtype})


def form_of(node: Node) -> str:
    """Returns a text that is equal for nodes that compute the same: names and places left out, axes numbered."""
    order: dict[Axis, Axis] = {}
    for axis in axes_of(node):
        order.setdefault(axis, Axis(str(len(order)), axis.space))
    numbered = with_axes(node, lambda axis: order.get(axis, axis))
    if hasattr(numbered, "location"):
        return repr(replace(numbered, name="", location=None))
    return repr(replace(numbered, name=""))


@tensor_pass()
def part(program: TensorProgram, names: Sequence[str], outputs: Sequence[str]) -> TensorProgram:
    """Take the nodes `names` as a program of their own, which gives `outputs`; what else they read are its inputs.

    Condition: as of the partition that chose them. Conditioning: none.
    """
    values = program.values()
    nodes = tuple(node for node in map(values.__getitem__, names) if not isinstance(node, Input))
    own = frozenset(names)
    read = dict.fromkeys(v for n in nodes for v in uses(n) if v not in own)
    inputs = tuple(Input(v, values[v].axes, values[v].dtype) for v in read)
    shared = {*read, *outputs}
    rounded = tuple(each for each in program.rounded if each[0] in shared)
    found = TensorProgram(inputs, nodes, tuple(outputs), rounded=rounded)
    return replace(found, derived=about(found.spaces(), program.derived, program.rules_by_space))
