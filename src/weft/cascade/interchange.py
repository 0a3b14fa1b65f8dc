"""Sums within sums, the other way round: so that all sums along a chain's axis are reductions of the chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.block.rename import fresh
from weft.tensor.axes import Axis
from weft.tensor.laws import remove_dead
from weft.tensor.program import Elementwise, Monoid, Node, Reduction, TensorProgram, Use, axes_of, reads_through, uses
from weft.tensor.scalar import Apply, Arg


def sums_outside(program: TensorProgram) -> TensorProgram:
    """Rewrites a sum over k of a factor times a sum over d as the sum over d of sums over k.

        p[k] = sum over d of f[k, d]                     q[k, d] = w[k] * f[k, d]
        t = sum over k of w[k] * p[k]         ==>        r[d] = sum over k of q[k, d];  t = sum over d of r[d]

    Condition: p depends on a reduction along k's space, and nothing else reads it or what is made of it. Conditioning: the
    same terms are added in another order.
    """
    changed = True
    while changed:
        changed = False
        values, readers = program.values(), _readers(program)
        for outer in program.nodes:
            new = _interchanged(program, outer, values, readers)
            if new is not None:
                at = program.nodes.index(outer)
                nodes = (*program.nodes[:at], *new, *program.nodes[at + 1 :])
                program, changed = remove_dead(replace(program, nodes=nodes)), True
                break
    return program


def _readers(program: TensorProgram) -> dict[str, int]:
    count = dict.fromkeys(program.values(), 0)
    for name in (*program.outputs, *(v for n in program.nodes for v in uses(n))):
        count[name] += 1
    return count


def _interchanged(
    program: TensorProgram, outer: Node, values: Mapping[str, Node], readers: Mapping[str, int]
) -> tuple[Node, ...] | None:
    """Returns the nodes that take the place of `outer`, if it is such a sum."""
    if not isinstance(outer, Reduction) or outer.monoid is not Monoid.sum or len(outer.over) != 1:
        return None
    factor = values[outer.arg.value]
    if not isinstance(factor, Elementwise) or readers[factor.name] != 1 or not _product(factor):
        return None
    bound = dict(zip(factor.axes, outer.arg.axes, strict=True))
    for place, use in enumerate(factor.args):
        inner = values[use.value]
        if not isinstance(inner, Reduction) or inner.monoid is not Monoid.sum or readers[inner.name] != 1:
            continue
        if factor.expr == Apply("div", (Arg(0), Arg(1))) and place == 1:
            continue
        if not _depends_on_sum_along(inner, outer.over[0], values):
            continue
        make = fresh({a.name for n in (*program.inputs, *program.nodes) for a in axes_of(n)})
        own = {a: Axis(make(a.name), a.space) for a in inner.over}
        at = {**own, **{a: bound[b] for a, b in zip(inner.axes, use.axes, strict=True)}}
        read = list(reads_through(factor, outer.arg))
        read[place] = inner.arg.within(at)
        along = tuple(own.values())
        every = Elementwise(
            f"{outer.name}.terms",
            (*outer.axes, *outer.over, *along),
            factor.dtype,
            factor.expr,
            tuple(read),
            factor.location,
        )
        parts = Reduction(
            f"{outer.name}.parts",
            (*outer.axes, *along),
            outer.dtype,
            Monoid.sum,
            Use(every.name, every.axes),
            outer.over,
            outer.location,
        )
        return every, parts, replace(outer, arg=Use(parts.name, parts.axes), over=along)
    return None


def _product(node: Elementwise) -> bool:
    return node.expr in (Apply("mul", (Arg(0), Arg(1))), Apply("div", (Arg(0), Arg(1)))) and len(node.args) == 2


def _depends_on_sum_along(inner: Node, along: Axis, values: Mapping[str, Node]) -> bool:
    todo, seen = list(uses(inner)), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        node = values[name]
        if isinstance(node, Reduction) and any(a.space == along.space for a in node.over):
            return True
        todo += uses(node)
    return False
