"""Scores are multiplied by their constant after the maximum is subtracted, not before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.block.program import BlockNode, BlockProgram, Collapse, Final, Graph, Map, Pointwise, State, sealed
from weft.block.rename import fresh
from weft.block.walk import operands, results
from weft.tensor.dtypes import DType
from weft.tensor.passes import Bears, Conditioning, block_pass
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, arguments

_DECAYS = ("decay", "coarse_decay")
ScaleFactor: TypeAlias = tuple[str, float]
"""What a value is multiplied with, or divided by: an operation and a positive number."""


@block_pass(Conditioning.rounding, Bears.checked, kinds=("gpu",))
def factors_after_maxima(program: BlockProgram) -> BlockProgram:
    """Multiply scores by their constant after the running maximum is subtracted, not before.

        t = s * q                                    m = row_max(s)
        m = row_max(t)                     ==>       z' = max(z, m)
        z' = max(z, m)                               p = decay((s - z') * q)
        p = decay(t - z')                            f = decay((z - z') * q)
        f = decay(z - z')

    On a GPU q costs nothing then: it is one constant with the logarithm that makes a decay a power of 2.

    Condition: q is a positive number, so that it changes places with the maximum; t, its maxima and the state's exponent are read
    by maxima and by decays of differences alone, in the update and the merge alike, and leave the loop nowhere. Conditioning: the
    product with q is rounded once, after the difference, instead of twice before it, where the terms may be large.
    """
    return replace(program, graph=_in(program.graph))


def _in(graph: Graph) -> Graph:
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        if isinstance(node, Map):
            state = node.state
            inner = replace(node, body=_in(node.body))
            nodes.append(inner if state is None else _loop(inner, state))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _loop(node: Map, state: State) -> Map:
    """Return `node` with its exponents in other units, if that can be."""
    names = {n for g in (node.body, state.update, state.merge) for n in _names(g)}
    body = _Graph(fresh(names))
    for each in node.body.nodes:
        body.add(each)
    factors = {body.factor[f] for f in state.feeds if f in body.factor}
    for factor in sorted(factors):
        made = _rewritten(node, state, body, factor)
        if made is not None:
            return made
    return node


def _rewritten(node: Map, state: State, body: _Graph, factor: ScaleFactor) -> Map | None:
    """Return `node` where its exponents that have `factor` are without it; None where something else reads them."""
    if state.resume is not None or state.finish.nodes:
        return None
    feeds = tuple(body.without[f] if body.factor.get(f) == factor else f for f in state.feeds)
    fed = tuple(a != b for a, b in zip(feeds, state.feeds, strict=True))
    exponents: set[int] = {i for i, c in enumerate(state.components) if c.init in (DType.float32.lowest, -math.inf)}
    count = len(state.components)
    while exponents:
        carried = tuple(i in exponents for i in range(count))
        update = _in_other_units(state.update, (*carried, *fed), factor)
        merge = _in_other_units(state.merge, (*carried, *carried), factor)
        if update is None or merge is None:
            return None
        kept = {i for i in exponents if update[1][i] and merge[1][i]}
        if kept == exponents:
            break
        exponents = kept
    else:
        return None
    if any(update[1][i] or merge[1][i] for i in range(count) if i not in exponents):
        return None
    leaving = {state.finish.outputs.index(o.inner) for o in node.outputs if isinstance(o, Final)}
    if any(state.finish.outputs[i] == state.finish.inputs[e] for i in leaving for e in exponents):
        return None
    changed = replace(state, feeds=feeds, update=update[0], merge=merge[0])
    made = sealed(replace(node, body=replace(node.body, nodes=tuple(body.nodes)), state=changed))
    return replace(made, body=_alive(made.body))


def _in_other_units(
    graph: Graph, inputs: tuple[bool, ...], factor: ScaleFactor
) -> tuple[Graph, tuple[bool, ...]] | None:
    """Return `graph` with those inputs that `inputs` marks coming without `factor`, and which outputs do; None if one
    is read otherwise.
    """
    bare = {n for n, is_bare in zip(graph.inputs, inputs, strict=True) if is_bare}
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        read = bare.intersection(operands(node))
        if not read:
            nodes.append(node)
            continue
        match node:
            case Pointwise(expr=Apply(op, (Apply("sub", (Arg(a), Arg(b))),))) if (
                op in _DECAYS and {node.args[a], node.args[b]} <= bare
            ):
                nodes.append(
                    replace(node, expr=apply(op, apply(factor[0], apply("sub", Arg(a), Arg(b)), Lit(factor[1]))))
                )
            case Pointwise(expr=expr) if read == set(node.args) and _is_maximum(expr):
                nodes.append(node)
                bare.add(node.name)
            case _:
                return None
    return replace(graph, nodes=tuple(nodes)), tuple(n in bare for n in graph.outputs)


def _is_maximum(expr: Scalar) -> bool:
    """Tell whether the value is one of its arguments, the largest or the only one."""
    match expr:
        case Arg():
            return True
        case Apply("maximum", parts):
            return all(_is_maximum(p) or _is_least(p) for p in parts)
        case _:
            return False


def _is_least(expr: Scalar) -> bool:
    """Tell whether the expression is a number below all others, which no factor changes: what maxima begin with."""
    return isinstance(expr, Lit) and float(expr.value) in (-math.inf, DType.float32.lowest)


@dataclass
class _Graph:
    """A graph with, beside each value that is a product with a number, what it is without it.

    Attributes:
        make: gives new names.
        nodes: its operators, and those that make the other values.
        factor: of a value, the number.
        without: its name without it.
    """

    make: Callable[[str], str]
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    factor: dict[str, ScaleFactor] = field(default_factory=dict[str, ScaleFactor])
    without: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, node: BlockNode) -> None:
        """Take an operator of the graph, the next in order."""
        self.nodes.append(node)
        match node:
            case Pointwise():
                found = _divided(node.expr, {i: self.factor[a] for i, a in enumerate(node.args) if a in self.factor})
                if found is None or node.dtype is not DType.float32:
                    return
                expr, factor = found
                inside = arguments(expr)
                args = tuple(self.without.get(a, a) if i in inside else a for i, a in enumerate(node.args))
                made: BlockNode = replace(node, expr=expr, args=args)
            case Collapse(monoid=Monoid.max, arg=arg) if arg in self.factor:
                factor, made = self.factor[arg], replace(node, arg=self.without[arg])
            case _:
                return
        name = self.make(f"{node.name}_bare")
        self.nodes.append(replace(made, name=name))
        self.factor[node.name], self.without[node.name] = factor, name


def _divided(expr: Scalar, known: Mapping[int, ScaleFactor]) -> tuple[Scalar, ScaleFactor] | None:
    """Return an expression and a factor that together are `expr`; `known` are factors that arguments are to come without."""
    match expr:
        case Arg(index) if index in known:
            return expr, known[index]
        case Apply("mul", (Arg(index) as rest, Lit(value))) | Apply("mul", (Lit(value), Arg(index) as rest)):
            return (rest, ("mul", float(value))) if index not in known and _moderate(value) else None
        case Apply("div" | "coarse_div", (Arg(index) as rest, Lit(value))):
            return (rest, ("div", float(value))) if index not in known and _moderate(value) else None
        case Apply("maximum", (first, second)) if _is_least(second):
            found = _divided(first, known)
            return None if found is None else (apply("maximum", found[0], second), found[1])
        case Apply("where", (mask, first, second)) if _is_least(second) and not arguments(mask) & set(known):
            found = _divided(first, known)
            return None if found is None else (apply("where", mask, found[0], second), found[1])
        case Apply("where", (mask, first, second)) if _is_least(first) and not arguments(mask) & set(known):
            found = _divided(second, known)
            return None if found is None else (apply("where", mask, first, found[0]), found[1])
        case _:
            return None


def _moderate(value: float) -> bool:
    """Tell whether a positive factor leaves a product with it far from what is too large or too small."""
    return 2.0**-40 < value < 2.0**40


def _alive(graph: Graph) -> Graph:
    """Return `graph` without the operators of elements that nothing reads."""
    read = set(graph.outputs)
    nodes: list[BlockNode] = []
    for node in reversed(graph.nodes):
        if isinstance(node, Pointwise | Collapse) and node.name not in read:
            continue
        read.update(operands(node))
        nodes.append(node)
    return replace(graph, nodes=tuple(reversed(nodes)))


def _names(graph: Graph) -> set[str]:
    return {*graph.inputs, *graph.outputs, *(n for node in graph.nodes for n in (*results(node), *operands(node)))}
