"""The body of a loop over blocks that lie wholly in a span, without the comparisons that the span decides; and conditions by which
a body selects, as values of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.block.program import BlockNode, Graph, Map, Pointwise, exports, sealed
from weft.block.rename import fresh
from weft.block.rename import values_of as names_of
from weft.block.scope import Types
from weft.block.spans import OWN, Span
from weft.block.walk import needed, pruned, sub_blocks
from weft.masks.known import Facts, KnownNumber, KnownValue, KnownValues, of_expression
from weft.masks.values import values_inside, values_of
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments, rewritten, substitute

Known = KnownValues
"""What is known of each value of a graph, by name."""


def known_values(graph: Graph, given: Known) -> Known:
    """Says what is known of every value of `graph`, of whose inputs `given` is known."""
    return values_of(graph, given, Facts())


def unmasked(node: Map, span: Span, known: Known) -> Map:
    """Rewrites `node`, a loop over spans, for the blocks that lie wholly in one of them.

        where(j <= i, x, -inf)        becomes        x

    Args:
        node: in a graph of whose values `known` is known.
        span: the one in which they lie.
        known: as `known_values` gives it.
    """
    # The blocks of loops that go through a block lie where it does.
    own = (node.axis, *sub_blocks(node))
    facts = Facts(tuple(each.along(OWN, axis) for axis in own for each in span.holds))
    given = values_inside(node, known)
    if node.guard is not None and isinstance(values_of(node.body, given, facts).get(node.guard.value), KnownNumber):
        node = replace(node, guard=None)  # the span says that there is something to do
    graph = simplified(replace(node.body, outputs=exports(node)), given, facts)
    return pruned(replace(node, body=graph))


def simplified(graph: Graph, given: Known, facts: Facts) -> Graph:
    """Removes from `graph` what `facts` and what is known of its values decide, and what nothing reads then."""
    known = values_of(graph, given, facts)
    nodes = [_decided(n, known, facts) for n in graph.nodes]
    return replace(graph, nodes=needed(nodes, graph.outputs))


def _decided(node: BlockNode, known: Known, facts: Facts) -> BlockNode:
    match node:
        case Pointwise():
            return _pointwise(node, known, facts)
        case Map():
            body = simplified(replace(node.body, outputs=exports(node)), values_inside(node, known), facts)
            return sealed(replace(node, body=body))
        case _:
            return node


def _pointwise(node: Pointwise, known: Known, facts: Facts) -> Pointwise:
    """Returns `node` with its masks decided; other numbers stay where they are, since arithmetic with them may round."""
    values = [known[a] for a in node.args]
    expr = _folded(node.expr, values, facts)
    if expr == node.expr:
        return node
    read = sorted(arguments(expr))
    place: Mapping[int, int] = {old: new for new, old in enumerate(read)}
    return replace(node, expr=substitute(expr, lambda i: Arg(place[i])), args=tuple(node.args[i] for i in read))


def _folded(expr: Scalar, values: Sequence[KnownValue], facts: Facts) -> Scalar:
    """Replaces each mask of `expr` that is the same everywhere by a literal, and its selections by what they select."""
    known = of_expression(expr, values, facts)
    if isinstance(known, KnownNumber) and isinstance(known.value, bool):
        return Lit(known.value)
    match expr:
        case Apply("where", (condition, first, second)):
            chosen = _folded(condition, values, facts)
            if isinstance(chosen, Lit):
                return _folded(first if chosen.value else second, values, facts)
            return Apply("where", (chosen, _folded(first, values, facts), _folded(second, values, facts)))
        case Apply("logical_and" | "logical_or" as op, args):
            rest = [a for a in (_folded(a, values, facts) for a in args) if not isinstance(a, Lit)]
            return rest[0] if len(rest) == 1 else Apply(op, tuple(rest))
        case Apply("add" | "sub" as op, (left, right)):
            first, second = (_folded(a, values, facts) for a in (left, right))
            nothing = [_is_zero(of_expression(a, values, facts)) for a in (left, right)]
            # A sum with 0 is not rounded.
            return first if nothing[1] else second if nothing[0] and op == "add" else Apply(op, (first, second))
        case _:
            return rewritten(expr, lambda inner: _folded(inner, values, facts))


def _is_zero(value: KnownValue) -> bool:
    return isinstance(value, KnownNumber) and not isinstance(value.value, bool) and value.value == 0


# Conditions as values of their own.


@dataclass(frozen=True, slots=True)
class Condition:
    """What an operator selects by: an expression of values of its graph, which has these axes."""

    of: Pointwise
    expr: Scalar
    dims: tuple[Axis, ...]

    def apart(self, node: Map) -> tuple[Map, str]:
        """Return `node`, in whose body the condition is a value of its own, and that one's name."""
        read = sorted(arguments(self.expr))
        if isinstance(self.expr, Arg):
            return node, self.of.args[self.expr.index]
        name = fresh(names_of(node.body))("kept")
        places = {old: Arg(new) for new, old in enumerate(read)}
        args = tuple(self.of.args[i] for i in read)
        made = Pointwise(name, substitute(self.expr, places.__getitem__), args, self.dims, DType.bool, self.of.location)
        count = len(self.of.args)
        selected = replace(self.of, expr=_exchanged(self.of.expr, self.expr, Arg(count)), args=(*self.of.args, name))
        nodes: list[BlockNode] = []
        for each in node.body.nodes:
            nodes += [made, _without_unread(selected)] if each is self.of else [each]
        return sealed(replace(node, body=replace(node.body, nodes=tuple(nodes)))), name


def _exchanged(expr: Scalar, old: Scalar, new: Scalar) -> Scalar:
    match expr:
        case _ if expr == old:
            return new
        case Apply(op, args):
            return Apply(op, tuple(_exchanged(a, old, new) for a in args))
        case Convert(dtype, inner):
            return Convert(dtype, _exchanged(inner, old, new))
        case _:
            return expr


def _without_unread(node: Pointwise) -> Pointwise:
    read = sorted(arguments(node.expr))
    places = {old: Arg(new) for new, old in enumerate(read)}
    return replace(node, expr=substitute(node.expr, places.__getitem__), args=tuple(node.args[i] for i in read))


def conditions(node: BlockNode, of: Types) -> Iterator[Condition]:
    """Yield the conditions on masks and integers, tensors among them, by which `node` selects: the outer ones first."""
    if not isinstance(node, Pointwise):
        return
    for expr in _selections(node.expr):
        args = [node.args[i] for i in sorted(arguments(expr))]
        kinds = [of[name] for name in args]
        if args and all(not k.dtype.is_float and not k.buffered for k in kinds):
            yield Condition(node, expr, tuple(a for a in node.dims if any(a in k.dims for k in kinds)))


def _selections(expr: Scalar) -> Iterator[Scalar]:
    match expr:
        case Apply("where", (condition, *branches)):
            yield condition
            for each in branches:
                yield from _selections(each)
        case Apply(_, args):
            for each in args:
                yield from _selections(each)
        case Convert(_, inner):
            yield from _selections(inner)
        case _:
            pass
