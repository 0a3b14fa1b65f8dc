"""What a loop's state is at least: its beginning, where that only grows from there; then that number more changes nothing."""

from __future__ import annotations

from dataclasses import replace

from testkit.masks.conditions import CONDITIONS, row_maxima, row_sums
from testkit.masks.limited import between, ends, fused, narrowed
from weft.block.program import BlockProgram, Graph, Map, Pointwise, State
from weft.block.walk import maps
from weft.masks import limit
from weft.masks.known import Facts
from weft.masks.values import unchanged, values_inside, values_of
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

CONDITION = CONDITIONS["column <= row"][0]
LOWEST = DType.float32.lowest
FALLING = apply("add", apply("maximum", Arg(0), Lit(LOWEST)), Arg(1))
"""At least the lowest number and then added to: -inf, once -inf has been added."""


def beginning(program: BlockProgram, init: float, update: Scalar | None = None) -> BlockProgram:
    """`program`, its one state with another beginning, and another update of it and the part."""

    def of_state(state: State) -> State:
        (component,), (node,) = state.components, state.update.nodes
        assert isinstance(node, Pointwise)
        args = state.update.inputs
        node = node if update is None else replace(node, expr=update, args=args)
        return replace(state, components=(replace(component, init=init),), update=replace(state.update, nodes=(node,)))

    def changed(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=changed(n.body), state=None if n.state is None else of_state(n.state))
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=changed(program.graph))


def idle(program: BlockProgram, *, resumed: bool = False) -> bool:
    """Tells whether an iteration beyond the diagonal leaves the state as it is."""
    (rows,) = (n for n in program.graph.nodes if isinstance(n, Map))
    known = values_inside(rows, values_of(program.graph, {}, Facts()))
    (loop,) = (n for n in rows.body.nodes if isinstance(n, Map) and n.state is not None)
    assert loop.state is not None
    known = values_of(rows.body, known, Facts())
    if resumed:
        loop = replace(loop, state=replace(loop.state, resume=loop.body.inputs[:1]))
    facts = Facts()
    unchanged(loop, known, facts)
    (asked,) = facts.asked
    return any(unchanged(loop, known, Facts((side,))) for side in (asked, asked.negated()))


def test_a_maximum_that_begins_at_the_lowest_number_is_limited() -> None:
    """The lowest number is what is excluded: no state is below it."""
    maxima = beginning(fused(row_maxima(CONDITION, LOWEST)), LOWEST)
    assert idle(maxima)
    (spans,) = narrowed(limit(maxima))
    assert ends(spans) == [between(None, 0)]


def test_a_maximum_that_begins_below_what_is_excluded_is_not() -> None:
    """The lowest number is greater than -inf: a row of -inf shows it."""
    maxima = fused(row_maxima(CONDITION, LOWEST))
    assert not idle(maxima)
    assert limit(maxima) is maxima


def test_what_need_not_stay_above_its_beginning_is_not() -> None:
    sums = beginning(fused(row_sums(CONDITION)), LOWEST, FALLING)
    assert not idle(sums)
    assert narrowed(limit(sums)) == []
    assert any(m.state is not None for m in maps(sums.graph))


def test_what_goes_on_where_another_loop_stopped_is_not() -> None:
    """It begins with what that left, which may be less than its own beginning."""
    maxima = beginning(fused(row_maxima(CONDITION, LOWEST)), LOWEST)
    assert not idle(maxima, resumed=True)
