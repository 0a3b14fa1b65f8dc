"""The law of decays: exponentials of numbers that cannot be positive become a cheaper operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.tensor.passes import Conditioning, tensor_pass
from weft.tensor.program import Elementwise, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply


@tensor_pass(Conditioning.rounding)
def decays_below_maxima(program: TensorProgram) -> TensorProgram:
    """Replaces the exponential of what lies below its maximum by the cheaper one that only takes numbers up to 0.

        t[m] = max over n of x[m, n]                     t[m] = max over n of x[m, n]
        d[m, n] = x[m, n] - t[m]               ==>       d[m, n] = x[m, n] - t[m]
        e[m, n] = exp(d[m, n])                           e[m, n] = decay(d[m, n])

    Condition: the same value, at the places that the maximum is over. Conditioning: none but that on a GPU what would be below
    the normal numbers may be 0; where d is NaN, because x is +inf or -inf throughout or has a NaN, so is e.
    """
    values = program.values()
    decays = {
        n.name: replace(n, expr=apply("decay", Arg(0)))
        for n in program.nodes
        if isinstance(n, Elementwise) and n.expr == apply("exp", Arg(0)) and _below(values[n.args[0].value], values)
    }
    return replace(program, nodes=tuple(decays.get(n.name, n) for n in program.nodes)) if decays else program


def _below(node: Node, values: Mapping[str, Node]) -> bool:
    """Tells whether `node` is a value less its maximum."""
    if not isinstance(node, Elementwise) or node.expr != apply("sub", Arg(0), Arg(1)):
        return False
    value, top = node.args
    greatest = values[top.value]
    if not isinstance(greatest, Reduction) or greatest.monoid is not Monoid.max or greatest.arg.value != value.value:
        return False
    own = dict(zip(greatest.axes, top.axes, strict=True))
    compared = Use(value.value, tuple(own.get(a, b) for a, b in zip(greatest.arg.axes, value.axes, strict=True)))
    return compared == value
