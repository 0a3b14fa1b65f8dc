"""First blocks and rests: what is well formed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block import paper
from testkit.block.normal import normal_form
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Join, Map, Once, Pointwise, Stacked, sealed
from weft.block.ranges import All, First, Remainder
from weft.errors import InvalidProgramError
from weft.pipeline import fuse
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg

PEELED = canonical(fuse(lower(paper.attention())).alternatives[0].program)


def rows(program: BlockProgram) -> tuple[Map, Map, Map, Join]:
    """The map over rows, and what is in it: the first block of L, the rest, and the list of both."""
    (around,) = program.graph.nodes
    assert isinstance(around, Map)
    first, rest, join = around.body.nodes
    assert isinstance(first, Map)
    assert isinstance(rest, Map)
    assert isinstance(join, Join)
    return around, first, rest, join


def changed(change: Callable[[Map, Map, Join], tuple]) -> BlockProgram:
    """`PEELED` with what is in its map over rows changed."""
    around, first, rest, join = rows(PEELED)
    nodes = change(first, rest, join)
    around = sealed(replace(around, body=replace(around.body, nodes=tuple(nodes))))
    return replace(PEELED, graph=replace(PEELED.graph, nodes=(around,)))


def test_it_is_well_formed_under_any_name() -> None:
    for program in (PEELED, normal_form(PEELED), canonical(normal_form(PEELED))):
        check(program)
        _, first, rest, join = rows(program)
        assert first.range == First()
        assert rest.range == Remainder(first.axis)
        assert join.axes[0] == (first.axis, rest.axis)
    assert listing(canonical(PEELED)) == listing(PEELED)


def once_as_stack(first: Map, rest: Map, join: Join) -> tuple:
    outputs = tuple(Stacked(o.outer, o.inner) if isinstance(o, Once) else o for o in first.outputs)
    return replace(first, outputs=outputs), rest, join


def hands_out_its_block(first: Map, rest: Map, join: Join) -> tuple:
    """The result of the first block as it is: it has the axis of the map."""
    (stacked,) = (o for o in first.outputs if isinstance(o, Stacked))
    return sealed(replace(first, outputs=(*first.outputs, Once("own", stacked.inner)))), rest, join


def reads_a_part(first: Map, rest: Map, join: Join) -> tuple:
    return first, rest, join, Pointwise("more", Arg(0), (join.first,), (), paper.F32)


WRONG: dict[str, tuple[Callable[[Map, Map, Join], tuple], str]] = {
    "a rest after nothing": (
        lambda f, r, j: (f, replace(r, range=Remainder(r.axis)), j),
        "the rest begins where a map of its graph over the first block ends",
    ),
    "other blocks": (
        lambda f, r, j: (f, replace(r, unit=True), j),
        "the rest begins where a map of its graph over the first block ends",
    ),
    "all of it twice": (
        lambda f, r, j: (f, replace(r, range=All()), j),
        "a list of two parts is that of a first block and of its rest",
    ),
    "parts in the wrong order": (
        lambda f, r, j: (f, r, replace(j, first=j.rest, rest=j.first)),
        "a list of two parts is that of a first block and of its rest",
    ),
    "joined along nothing": (
        lambda f, r, j: (f, r, replace(j, axes=())),
        "parts are joined along the axis of their maps",
    ),
    "one part in two lists": (lambda f, r, j: (f, r, j, replace(j, name="again")), "a part is one list's"),
    "a part that is read": (reads_a_part, "a part of a list is read by nothing"),
    "stacked in place of handed out": (once_as_stack, "a part of a list is read by nothing"),
    "handed out with its axis": (hands_out_its_block, "what is handed out as it is lacks the map's axis"),
    "handed out of many iterations": (
        lambda f, r, j: (replace(f, range=All()),),
        "only a map over the first block hands a value out as it is",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_malformed(what: str) -> None:
    change, condition = WRONG[what]
    with pytest.raises(InvalidProgramError) as error:
        check(changed(change))
    assert error.value.condition == condition


def test_a_part_does_not_leave_its_graph() -> None:
    around, *_, join = rows(PEELED)
    around = sealed(replace(around, outputs=tuple(replace(o, inner=join.rest) for o in around.outputs)))
    with pytest.raises(InvalidProgramError) as error:
        check(replace(PEELED, graph=replace(PEELED.graph, nodes=(around,))))
    assert error.value.condition == "a part of a list does not leave its graph"


def test_parts_have_the_same_items() -> None:
    _, first, *_ = rows(PEELED)
    (stacked,) = (o for o in first.outputs if isinstance(o, Stacked))
    (maker,) = (n for n in first.body.nodes if n.name == stacked.inner)
    assert isinstance(maker, Pointwise)
    other = replace(maker, dtype=DType.float64)
    body = replace(first.body, nodes=tuple(other if n is maker else n for n in first.body.nodes))
    with pytest.raises(InvalidProgramError) as error:
        check(changed(lambda f, r, j: (replace(f, body=body), r, j)))
    assert error.value.condition == "the parts of a list differ in nothing but axes"
