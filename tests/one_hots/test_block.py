"""Which reductions are one-hot, and in which order their loops are."""

from __future__ import annotations

import pytest

from testkit.block.one_hots import ALL, EQUAL, LEAST, chosen, in_rows, last, rows_added
from testkit.schedules import fused
from weft.block.check import body_types, infer
from weft.block.one_hot import one_hot_axes, one_hots
from weft.block.program import BlockProgram, BlockType, Graph, Map
from weft.block.scope import Scope
from weft.tensor.dtypes import DType
from weft.tensor.merge import Monoid
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply

INF = float("inf")
POSITIVE = apply("lt", Lit(0), Arg(3))


def rows_of(program: BlockProgram) -> set[str]:
    """Name the spaces of rows of one-hot reductions in all graphs of a block program."""

    def inside(graph: Graph, given: dict[str, BlockType], scope: Scope) -> set[str]:
        types = infer(graph, given, scope)
        found = {axis.space.name for axis in one_hots(graph, types).values()}
        for node in graph.nodes:
            if isinstance(node, Map):
                found |= inside(node.body, body_types(node, types), scope.inside(node))
        return found

    return inside(program.graph, dict(program.inputs), Scope({}, applied=False))


@pytest.mark.parametrize("name", ALL)
def test_what_is_reduced_is_inside_of_the_loop_over_rows(name: str) -> None:
    program = ALL[name]()
    assert [(over.space.name, row.space.name) for over, row in one_hot_axes(program)] == [("M", "V")]
    assert rows_of(fused(program)) == {"V"}


CONDITIONS: dict[str, tuple[Scalar, bool]] = {
    "other way round": (apply("eq", Arg(1), Arg(0)), True),
    "and another": (apply("logical_and", POSITIVE, EQUAL), True),
    "shifted": (apply("eq", apply("sub", Arg(0), Lit(2)), Arg(1)), True),
    "from the end": (
        apply("eq", apply("where", apply("lt", Arg(3), Lit(0)), apply("add", Arg(3), Arg(0)), Arg(3)), Arg(1)),
        True,
    ),
    "or another": (apply("logical_or", POSITIVE, EQUAL), False),
    "of a row's number": (apply("eq", apply("mul", Arg(1), Arg(0)), Arg(1)), False),
    "not at": (apply("ne", Arg(0), Arg(1)), False),
    "before": (apply("lt", Arg(0), Arg(1)), False),
    "of a float": (apply("eq", Arg(2), Arg(1)), False),
    "twice a row's number": (apply("eq", Arg(0), apply("mul", Arg(1), Lit(2))), False),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_one_row_at_most_counts(name: str) -> None:
    condition, is_one = CONDITIONS[name]
    assert bool(list(one_hot_axes(chosen(condition=condition)))) is is_one


IDENTITIES: tuple[tuple[Monoid, float, DType, bool], ...] = (
    (Monoid.max, -INF, DType.float32, True),
    (Monoid.max, 0.0, DType.float32, False),
    (Monoid.min, INF, DType.float64, True),
    (Monoid.min, -INF, DType.float64, False),
    (Monoid.sum, 0.0, DType.float32, True),
    (Monoid.sum, 1.0, DType.float32, False),
    (Monoid.prod, 1.0, DType.float32, True),
    (Monoid.max, LEAST, DType.int64, True),
    (Monoid.max, -1, DType.int64, False),
    (Monoid.max, -(2**31), DType.int32, False),
    (Monoid.min, 2**63 - 1, DType.int64, True),
    (Monoid.min, LEAST, DType.int64, False),
    (Monoid.sum, 0, DType.int64, True),
    (Monoid.sum, 0, DType.int8, True),
    (Monoid.max, -INF, DType.bfloat16, True),
)


@pytest.mark.parametrize(("monoid", "otherwise", "dtype", "is_one"), IDENTITIES, ids=str)
def test_what_does_not_count_changes_nothing(monoid: Monoid, otherwise: float, dtype: DType, is_one: bool) -> None:
    program = chosen(monoid, otherwise, dtype=dtype)
    assert bool(list(one_hot_axes(program))) is is_one


@pytest.mark.parametrize("make", [last, in_rows, rows_added])
def test_a_list_of_all_pairs_is_never_made(make) -> None:
    program: TensorProgram = make()

    def lists(graph: Graph, given: dict[str, BlockType], scope: Scope) -> list[set[str]]:
        types = infer(graph, given, scope)
        found = [{a.space.name for a in kind.lists} for kind in types.values()]
        for node in graph.nodes:
            if isinstance(node, Map):
                found += lists(node.body, body_types(node, types), scope.inside(node))
        return found

    made = fused(program)
    assert not any({"V", "M"} <= each for each in lists(made.graph, dict(made.inputs), Scope({}, applied=False)))
