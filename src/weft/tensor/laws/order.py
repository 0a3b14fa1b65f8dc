"""The law of memory order: results are laid out in memory as in eager, if a kernel can write them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.tensor.passes import tensor_pass
from weft.tensor.program import Cast, Elementwise, Node, TensorProgram, uses


@tensor_pass(takes=("orders",))
def as_in_eager(program: TensorProgram, orders: Sequence[tuple[int, Sequence[int]]]) -> TensorProgram:
    """Put the axes of `program`'s elementwise results in eager's memory order; `output_dims` say how the user sees them.

    Eager computes `relu(x.T)` in the order in which x lies, and `relu(x.T).T` is row-major. Written in another order it would
    have to be copied into that one.
    Results that the program itself reads, or that a matmul or a reduction makes, stay as they are.

    Args:
        program: whose results are ordered.
        orders: numbers of outputs, each with its dimensions in eager's order.
    """
    values = program.values()
    read = {v for n in program.nodes for v in uses(n)}
    dims = list(program.output_dims or (values[name].axes for name in program.outputs))
    changed: dict[str, Node] = {}
    for index, order in orders:
        name = program.outputs[index]
        node = values[name]
        axes = tuple(a for a in (dims[index][d] for d in order) if a is not None)
        alone = program.outputs.count(name) == 1 and name not in read
        if isinstance(node, Elementwise | Cast) and alone and axes != node.axes and set(axes) == set(node.axes):
            changed[name] = replace(node, axes=axes)
    if not changed:
        return program
    return replace(program, nodes=tuple(changed.get(n.name, n) for n in program.nodes), output_dims=tuple(dims))
