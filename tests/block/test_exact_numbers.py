"""Numbers in block programs: nodes and types that differ in one that programs tell apart are not equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block.handmade import K, M, begun_with, inputs, loop, program
from testkit.block.programs import F32
from testkit.tensor.numbers import FLOATS, NAN, demand_told_apart_by_numbers, made_anew
from weft.block.check import check, infer
from weft.block.listing import listing
from weft.block.program import (
    BlockProgram,
    BlockType,
    Collapse,
    Component,
    Fill,
    Final,
    Graph,
    Literal,
    Stacked,
    State,
)
from weft.block.residency import last_reads
from weft.block.scope import Scope
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import ExactNumbers

BF16 = DType.bfloat16
FORMS: dict[str, Callable[[float], ExactNumbers]] = {
    "BlockType": lambda value: BlockType((M,), (K,), F32, value),
    "Literal": lambda value: Literal("a", value, F32),
    "Fill": lambda value: Fill("a", "b", value),
    "Component": lambda value: Component("a", (M,), F32, value),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_has_a_number_is_equal_exactly_where_the_number_is_the_same(form: str) -> None:
    demand_told_apart_by_numbers(FORMS[form])


@pytest.mark.parametrize(
    ("one", "others"),
    [
        (BlockType((M,), (K,), F32), (BlockType((), (K,), F32), BlockType((M,), (), F32), BlockType((M,), (K,), BF16))),
        (Literal("a", 1.0, F32), (Literal("b", 1.0, F32), Literal("a", 1.0, BF16))),
        (Fill("a", "b", 0.0), (Fill("c", "b", 0.0), Fill("a", "c", 0.0))),
        (Component("a", (M,), F32, 0.0), (Component("b", (M,), F32, 0.0), Component("a", (K,), F32, 0.0))),
    ],
    ids=FORMS,
)
def test_the_other_fields_are_compared_too(one: ExactNumbers, others: tuple[ExactNumbers, ...]) -> None:
    assert not any(one == other for other in others)


def row_sums(init: float) -> BlockProgram:
    """The sum of each row of a matrix, begun with `init`."""
    given = inputs(x=(M, K))
    state = State.of_monoid(Monoid.sum, "p", (M,), F32, "s")
    inner = loop(K, {"x": given["x"][1:]}, (Collapse("p", Monoid.sum, "x", K),), (Final("r", "s"),), state)
    sums = program(loop(M, given, (inner,), (Stacked("out", "r"),)), over=(M,), given=given)
    return begun_with(sums, init)


def test_programs_that_begin_with_other_numbers_are_not_equal() -> None:
    """Of equal candidates the first is kept: one with another start must not be taken for it."""
    assert len({row_sums(init) for init in FLOATS}) == len(FLOATS)
    assert row_sums(NAN) == row_sums(float("nan"))


def test_a_graph_keeps_types_for_each_padding_of_its_inputs() -> None:
    """Types are worked out once for a graph and types of its inputs: those for another padding are no answer."""
    copy = Graph(("a",), (Fill("b", "a", 1.0),), ("a", "b"))
    for pad in FLOATS:
        kind = BlockType((), (K,), F32, pad)
        assert infer(copy, {"a": kind}, Scope({}, applied=False))["a"] == BlockType((), (K,), F32, made_anew(pad))
    assert len(copy.typed) == len(FLOATS)
    infer(copy, {"a": BlockType((), (K,), F32, float("nan"))}, Scope({}, applied=False))
    assert len(copy.typed) == len(FLOATS), "NaN is NaN"


@pytest.mark.parametrize(("init", "before"), [(0.0, []), (-0.0, ["t1 = -0.0"]), (NAN, ["t1 = nan"]), (1.0, ["t1 = 1"])])
def test_a_listing_says_what_a_state_begins_with_unless_it_is_zero(init: float, before: list[str]) -> None:
    made = row_sums(init)
    check(made)
    _, *lines = (line.strip() for line in listing(made).splitlines())
    assert lines[: lines.index("for k in range(K):")] == before


def test_last_reads_are_of_the_graph_that_was_asked_about() -> None:
    """They are kept with the graph: one made of it with other operators has its own."""
    nodes = (Fill("b", "a", 0.0), Fill("c", "a", 0.0), Fill("d", "b", 0.0))
    graph = Graph(("a",), nodes, ("d",))
    assert last_reads(graph) == {"a": 1, "b": 2, "d": 3}
    assert last_reads(graph) is last_reads(graph)
    shorter = replace(graph, nodes=nodes[:1], outputs=("b",))
    assert last_reads(shorter) == {"a": 0, "b": 1}
