"""Why a mutant changes no result: the reasons that there are.

Most are told from the place and the change, not proven of the one mutant: a reason says what sort of change it is, and that the
results are the same was found by running it. Where the place tells nothing the subject is asked: is the function the same with two
tensors exchanged, are two results equal, is it the same whatever the operator makes?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from testkit.mutants.fates import Fate, Subject
from testkit.mutants.operators import Mutant, graphs_with_types
from testkit.mutants.places import Spot, Step, put
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    BlockType,
    Collapse,
    Component,
    Dot,
    Fill,
    Final,
    Index,
    Map,
    Pointwise,
    Stage,
    State,
)
from weft.block.ranges import First, Part, Spans
from weft.block.walk import every, graphs, maps, operands, results
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, apply

_LOWEST = DType.float32.accumulator.lowest
_LARGE = 1e30
_EXPONENTIALS = frozenset({"exp", "exp2", "decay", "coarse_decay"})


def why(subject: Subject, mutant: Mutant) -> str | None:
    """Says why `mutant` of `subject`, which changes no result, need not; None where no reason is known."""
    program = subject.applied
    if mutant.operator == "block exponent":
        return _of_blocks(program, mutant)
    if mutant.spot is None:
        return None
    around = [*mutant.spot.around, mutant.spot.value]
    expressions = [each for each in around if isinstance(each, Apply)]
    reasons = (
        _of_ranges(mutant),
        _of_nodes(program, mutant),
        _of_states(mutant, [m for m in around if isinstance(m, Map)], [s for s in around if isinstance(s, State)]),
        _of_tensors(program, mutant),
        _of_numbers(mutant.spot.value, expressions),
        _of_conditions(mutant.spot, expressions),
        _of_two_maxima(program),
    )
    told = next((each for each in reasons if each is not None), None)
    return told or _of_likeness(subject, mutant.spot) or _of_what_is_lost(subject, mutant.spot)


def _of_ranges(mutant: Mutant) -> str | None:
    spot = mutant.spot
    assert spot is not None
    owner = spot.around[-1] if spot.around else None
    loop = next((m for m in reversed(spot.around) if isinstance(m, Map)), None)
    if spot.field == "tile" and isinstance(owner, Map) and owner.range.part is Part.all:
        return "blocks of another size cover the same elements"
    if isinstance(spot.value, Part) and loop is not None and loop.tile == 1:
        return "blocks of one element are all whole"
    if isinstance(owner, Spans):
        return "a loop that visits more than its spans adds what the mask makes nothing of"
    return None


def _of_nodes(program: BlockProgram, mutant: Mutant) -> str | None:
    spot = mutant.spot
    assert spot is not None
    loops = [m for m in spot.around if isinstance(m, Map)]
    owner = spot.around[-1] if spot.around else None
    if isinstance(owner, Collapse) and any(m.axis == owner.over and m.tile == 1 for m in loops):
        return "a block of one element is what any reduction makes of it"
    if mutant.node is not None and _reads_a_cast(program, mutant):
        return "a cast of precision, or of a truth value to 0 and 1, may be left out"
    match mutant.node:
        case Pointwise(expr=Apply("where", (condition, *_))) if _guards(condition):
            return "what corrects moments about another number than a row's mean is 0 about the mean"
        case Stage():
            return "a staged copy has the values of what it copies"
        case Pointwise(expr=Arg() | Convert(_, Arg())):
            return "a cast of precision, or of a truth value to 0 and 1, may be left out"
        case Dot():
            return "the operands of a product are told apart by their axes"
        case _:
            return None


def _reads_a_cast(program: BlockProgram, mutant: Mutant) -> bool:
    """Tells whether the node reads what is a copy or a cast of what it read, or what that was one of."""
    source = dict[str, str]()
    for node in every(program.graph.nodes):
        cast = isinstance(node, Pointwise) and isinstance(node.expr, Arg | Convert)
        if cast or isinstance(node, Stage | Fill):
            source[results(node)[0]] = operands(node)[0]

    def root(name: str) -> str:
        return root(source[name]) if name in source else name

    old = mutant.node
    assert old is not None
    alike = [n for n in every(mutant.program.graph.nodes) if type(n) is type(old) and n.name == old.name]
    changed = [(a, b) for n in alike for a, b in zip(operands(old), operands(n), strict=True) if a != b]
    return bool(changed) and all(root(a) == root(b) for a, b in changed)


def _of_states(mutant: Mutant, loops: list[Map], states: list[State]) -> str | None:
    spot = mutant.spot
    assert spot is not None
    owner = spot.around[-1]
    if spot.field in ("feeds", "inputs") and _holds(loops[-1:], Dot):
        return "the operands of a product are told apart by their axes"
    if not states or not loops:
        return None
    state, loop = states[-1], loops[-1]
    if state.resume is not None and isinstance(owner, Component):
        return "a loop that goes on where another stopped does not begin from its own numbers"
    fixed = loop.axis.space.fixed
    single = loop.place is Place.whole or isinstance(loop.range, First)
    if single or (fixed is not None and loop.tile is not None and fixed <= loop.tile):
        return "the loop has one iteration, which goes on from nothing"
    if isinstance(owner, Component):
        if any(c.init <= _LOWEST for c in state.components):
            lowest = isinstance(spot.value, float) and spot.value <= _LOWEST
            below = "a number below all others, or the mask's own, is below them still"
            return (
                below if lowest else "what a loop begins with is multiplied by an exponential of the lowest number, 0"
            )
        if any(not _EXPONENTIALS.isdisjoint(applied(e)) for e in _expressions(loops[:-1])):
            return "a number that is added to all exponents of a row cancels"
    if any("div" in applied(e) or "where" in applied(e) for e in _expressions([loop])) and len(state.components) > 2:
        return "moments about any number of a row are the same"
    return None


def _of_tensors(program: BlockProgram, mutant: Mutant) -> str | None:
    spot = mutant.spot
    assert spot is not None
    if isinstance(spot.around[-1], BlockType) and spot.path[0] == "inputs":
        name = program.inputs[int(spot.path[1])][0]
        if not any(name in feeds for feeds in ([f.outer for f in m.inputs] for m in maps(program.graph))):
            return "nothing reads the tensor"
    if "output_axes" in spot.path and not program.inputs:
        return "all elements of the tensor are one number"
    if "output_axes" in spot.path and isinstance(spot.value, tuple):
        return "the tensor is symmetric" if len({a.space for a in spot.value if hasattr(a, "space")}) == 1 else None
    return None


def _of_numbers(value: Any, around: list[Apply]) -> str | None:
    if isinstance(value, float) and value <= _LOWEST:
        return "a number below all others is below them still"
    if any(a.op in ("div", "coarse_div") and a.args[0] == a.args[1] for a in around):
        return "what is divided by itself is 1"
    if any(a.op == "where" and _guards(a.args[0]) for a in around) or any(map(_guards, around[-1:])):
        return "a guard chooses between two ways that agree on all but infinities and what leaves the range"
    if isinstance(value, int) and value == 127:
        return "nothing divided by its row's maximum is beyond the ends of the type"
    return None


def _of_conditions(spot: Spot, around: list[Apply]) -> str | None:
    node = next((n for n in reversed(spot.around) if isinstance(n, Pointwise)), None)
    if any(len(a.args) > 1 and len(set(map(repr, a.args))) == 1 for a in around[-1:]):
        return "of one operand twice the larger and the smaller are the same"
    if node is None:
        return None
    indices = {n.name for m in spot.around if isinstance(m, Map) for n in every(m.body.nodes) if isinstance(n, Index)}
    for each in around:
        match each:
            case Apply("where", (Apply("ge", (Arg(place), Lit(value))), *_)) if node.args[place] in indices:
                return "no number of an element is below 0" if value <= 0 else None
            case _:
                pass
    return None


def _of_likeness(subject: Subject, spot: Spot) -> str | None:
    """A reason where two tensors, or two results, may be exchanged; which two the changed feeds or outputs say."""
    if spot.field == "outputs" and spot.path == ("graph", "outputs"):
        alike = any(
            a.shape == b.shape and np.array_equal(a, b, equal_nan=True)
            for _, _, results, _ in subject.exact
            for number, a in enumerate(results)
            for b in results[:number]
        )
        return "two results are equal" if alike else None
    if spot.field == "inputs" and isinstance(spot.around[-1], Map) and subject.symmetric:
        return "two tensors may be exchanged"
    return None


def _of_what_is_lost(subject: Subject, spot: Spot) -> str | None:
    """A reason where no result changes whatever the changed operator or loop makes."""
    program = subject.applied
    for path, graph, types in graphs_with_types(program):
        for number, node in enumerate(graph.nodes):
            here: tuple[Step, ...] = (*path, "nodes", number)
            if spot.path[: len(here)] != here:
                continue
            if isinstance(node, Pointwise) and node.dtype.is_float:
                other = replace(node, expr=_another(node.expr))
                if subject.fate(put(program, here, other))[0] is Fate.equivalent:
                    return "what reads it makes nothing of it: whatever it is, no result changes"
            if isinstance(node, Map) and node.state is not None:
                finals = [o for o in node.outputs if isinstance(o, Final)]
                renamed = replace(node, outputs=tuple(replace(o, outer=f"{o.outer}!") for o in finals))
                if len(finals) != len(node.outputs):
                    continue
                after = [
                    Pointwise(o.outer, _another(Arg(0)), (f"{o.outer}!",), types[o.outer].dims, types[o.outer].dtype)
                    for o in finals
                ]
                nodes = (*graph.nodes[:number], renamed, *after, *graph.nodes[number + 1 :])
                if subject.fate(put(program, (*path, "nodes"), nodes))[0] is Fate.equivalent:
                    return "what reads it makes nothing of it: whatever it is, no result changes"
    return None


def _another(expr: Scalar) -> Scalar:
    return apply("add", apply("mul", expr, Lit(3.75)), Lit(1.25))


def _guards(condition: Scalar) -> bool:
    """Tells whether a condition asks for infinities or for magnitudes that no ordinary number has."""
    match condition:
        case Lit(value):
            return not isinstance(value, bool) and abs(value) >= _LARGE
        case Apply(op, args):
            return op in ("isinf", "isnan", "isfinite") or any(map(_guards, args))
        case _:
            return False


def _of_two_maxima(program: BlockProgram) -> str | None:
    for loop in maps(program.graph):
        starts = {c.init for c in loop.state.components} if loop.state is not None else set[float]()
        if {float("-inf"), _LOWEST} <= starts:
            return "a row's maximum and the reference of its exponentials are one number"
    return None


def _of_blocks(program: BlockProgram, mutant: Mutant) -> str | None:
    """A block's maximum is a row's own where a block has one row; a guard's maximum is only asked whether it is a number."""
    name = mutant.where.rsplit(" ", 1)[-1]
    inside = [
        m
        for m in maps(program.graph)
        if any(isinstance(n, Collapse) and n.name == name for g in graphs(m) for n in every(g.nodes))
    ]
    if any(m.tile == 1 for m in inside):
        return "a block has one row"
    return "any number cancels that is taken off all exponents of a row" if inside else None


def _holds(loops: list[Map], form: type) -> bool:
    return any(isinstance(n, form) for m in loops for g in graphs(m) for n in every(g.nodes))


def _expressions(loops: list[Map]) -> Iterator[Scalar]:
    for loop in loops:
        for graph in graphs(loop):
            yield from (n.expr for n in every(graph.nodes) if isinstance(n, Pointwise))
