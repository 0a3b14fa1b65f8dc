"""Why a mutant changes no result: the reasons that there are.

They are told from the place and the change, not proven of the one mutant: a reason says what sort of change it is, and that the
results are the same was found by running it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testkit.mutants.operators import Mutant
from weft.block.program import BlockProgram, BlockType, Collapse, Component, Dot, Map, Place, Pointwise, Stage, State
from weft.block.ranges import Band, First, Part
from weft.block.walk import every, graphs, maps
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied

_LOWEST = DType.float32.accumulator.lowest
_LARGE = 1e30
_EXPONENTIALS = frozenset({"exp", "exp2", "decay", "coarse_decay"})


def why(program: BlockProgram, mutant: Mutant) -> str | None:
    """Says why `mutant` of `program`, which changes no result, need not; None where no reason is known."""
    if mutant.operator == "block exponent":
        return _of_blocks(program, mutant)
    if mutant.spot is None:
        return None
    around = [*mutant.spot.around, mutant.spot.value]
    expressions = [each for each in around if isinstance(each, Apply)]
    reasons = (
        _of_ranges(mutant),
        _of_nodes(mutant),
        _of_states(mutant, [m for m in around if isinstance(m, Map)], [s for s in around if isinstance(s, State)]),
        _of_tensors(program, mutant),
        _of_numbers(mutant.spot.value, expressions),
        _of_two_maxima(program),
    )
    return next((each for each in reasons if each is not None), None)


def _of_ranges(mutant: Mutant) -> str | None:
    spot = mutant.spot
    assert spot is not None
    owner = spot.around[-1] if spot.around else None
    loop = next((m for m in reversed(spot.around) if isinstance(m, Map)), None)
    if spot.field == "tile" and isinstance(owner, Map) and owner.range.part is Part.all:
        return "blocks of another size cover the same elements"
    if isinstance(spot.value, Part) and loop is not None and loop.tile == 1:
        return "blocks of one element are all whole"
    if isinstance(owner, Band):
        return "a loop that visits more of a band adds what the mask makes nothing of"
    return None


def _of_nodes(mutant: Mutant) -> str | None:
    match mutant.node:
        case Stage():
            return "a staged copy has the values of what it copies"
        case Pointwise(expr=Arg() | Convert(_, Arg())):
            return "a cast of precision, or of a truth value to 0 and 1, may be left out"
        case Dot():
            return "the operands of a product are told apart by their axes"
        case _:
            return None


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
