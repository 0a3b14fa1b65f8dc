"""Table 1: every row means what the node of that name computes, and names follow from the axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from testkit.block.table1 import TABLE1
from weft.block.program import Collapse, Dot, Pointwise
from weft.block.table1 import RowUse, operator
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, apply

F32 = DType.float32
M, N, K = (Axis(n, Space(n.upper())) for n in "mnk")
SIZES = {M: 3, N: 4, K: 5}
ADD, MUL = apply("add", Arg(0), Arg(1)), apply("mul", Arg(0), Arg(1))
Functional = Pointwise | Collapse | Dot


def _pointwise(expr, dims) -> Pointwise:
    return Pointwise("r", expr, ("a", "b"), dims, F32)


def _collapses(prefix: str, dims: tuple[Axis, ...], over: Axis):
    return {f"{prefix}{monoid.name}": (Collapse("r", monoid, "a", over), (dims,)) for monoid in Monoid}


# Each row's node, and the axes of its operands in the order of the row's definition.
NODES: Mapping[str, tuple[Functional, tuple[tuple[Axis, ...], ...]]] = {
    "add": (_pointwise(ADD, (M, N)), ((M, N), (M, N))),
    "mul": (_pointwise(MUL, (M, N)), ((M, N), (M, N))),
    "row_shift": (_pointwise(ADD, (M, N)), ((M, N), (M,))),
    "row_scale": (_pointwise(MUL, (M, N)), ((M, N), (M,))),
    "col_shift": (_pointwise(ADD, (M, N)), ((M, N), (N,))),
    "col_scale": (_pointwise(MUL, (M, N)), ((M, N), (N,))),
    "outer": (_pointwise(MUL, (M, N)), ((M,), (N,))),
    "dot": (Dot("r", "a", "b", K, (M, N), F32), ((M, K), (N, K))),
    **_collapses("row_", (M, N), N),
    **_collapses("col_", (M, N), M),
    **_collapses("", (M,), M),
}


def _operands(*dims: tuple[Axis, ...]) -> dict[str, tuple[Axis, ...]]:
    return dict(zip("ab", dims, strict=False))


def name_of(node: Functional, dims: Mapping[str, tuple[Axis, ...]]) -> str | None:
    found = operator(node, dims)
    return None if found is None else found.name


def _meaning(node: Functional, values: dict[str, np.ndarray], dims: dict[str, tuple[Axis, ...]]):
    """Computes `node` element by element, from the axes alone."""
    every = (*node.dims, *((node.over,) if isinstance(node, Dot) else ())) if not isinstance(
        node, Collapse
    ) else dims[node.arg]  # fmt: skip
    out = {}
    for index in np.ndindex(*(SIZES[a] for a in every)):
        at = dict(zip(every, index, strict=True))
        element = {n: v[tuple(at[a] for a in dims[n])] for n, v in values.items()}
        match node:
            case Pointwise():
                assert isinstance(node.expr, Apply)
                first, second = (element[n] for n in node.args)
                key, value = index, first + second if node.expr.op == "add" else first * second
                out[key] = value
            case Dot():
                key = tuple(at[a] for a in node.dims)
                out[key] = out.get(key, 0.0) + element[node.left] * element[node.right]
            case Collapse():
                key = tuple(at[a] for a in every if a != node.over)
                value = element[node.arg]
                combine = {"sum": np.add, "prod": np.multiply, "max": max, "min": min}
                out[key] = combine[node.monoid.name](out[key], value) if key in out else value
    return out


def test_the_rows_of_the_paper_are_there():
    paper = {"add", "mul", "row_shift", "row_scale", "row_sum", "dot", "outer"}
    assert paper <= set(TABLE1)
    assert set(NODES) == set(TABLE1), "a row without a node to compare it with"


@pytest.mark.parametrize("name", TABLE1)
def test_definition_equals_the_meaning_of_the_node(name):
    node, dims = NODES[name]
    random = np.random.default_rng(0)
    arrays = [random.normal(size=[SIZES[a] for a in of]) for of in dims]
    result = np.asarray(TABLE1[name].numpy(*arrays))
    values = dict(zip("ab", arrays, strict=False))
    wanted = _meaning(node, values, dict(zip("ab", dims, strict=False)))
    assert result.size == len(wanted)
    for index, value in wanted.items():
        assert result[index] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name", TABLE1)
def test_constraint_holds_for_the_shapes_of_the_node_and_for_no_other(name):
    row, (_, dims) = TABLE1[name], NODES[name]
    arrays = [np.ones([SIZES[a] for a in of]) for of in dims]
    operands = "ac" if "c.ndim" in row.constraint else "ab"
    scope = dict(zip(operands, arrays, strict=False))
    result = np.asarray(row.numpy(*arrays))
    assert eval(row.constraint, {**scope, "r": result})
    wrong = np.ones([9] * max(1, result.ndim))
    assert not eval(row.constraint, {**scope, "r": wrong})


@pytest.mark.parametrize("name", NODES)
def test_name_follows_from_expression_and_axes(name):
    node, dims = NODES[name]
    assert name_of(node, _operands(*dims)) == name


@pytest.mark.parametrize("name", [n for n, (node, _) in NODES.items() if isinstance(node, Pointwise)])
def test_commuted_operands_have_the_same_name(name):
    node, dims = NODES[name]
    assert isinstance(node, Pointwise)
    assert isinstance(node.expr, Apply)
    swapped = Pointwise("r", node.expr, ("b", "a"), node.dims, F32)
    other = Pointwise("r", apply(node.expr.op, Arg(1), Arg(0)), node.args, node.dims, F32)
    assert name_of(swapped, _operands(*dims)) == name
    assert name_of(other, _operands(*dims)) == name


@pytest.mark.parametrize("name", ["row_shift", "row_scale", "col_shift", "col_scale", "outer"])
def test_operands_come_in_the_order_of_the_definition(name):
    node, (first, second) = NODES[name]
    assert operator(node, {"a": first, "b": second}) == RowUse(name, ("a", "b"))
    assert operator(node, {"a": second, "b": first}) == RowUse(name, ("b", "a"))


def test_rows_and_columns_are_those_of_the_result():
    by_m = _operands((M, N), (M,))
    assert name_of(_pointwise(MUL, (M, N)), by_m) == "row_scale"
    assert name_of(_pointwise(MUL, (N, M)), by_m) == "col_scale"


@pytest.mark.parametrize(
    ("expr", "dims", "given"),
    [
        (apply("sub", Arg(0), Arg(1)), (M, N), _operands((M, N), (M,))),
        (apply("add", Arg(0), Lit(1.0)), (M, N), _operands((M, N), ())),
        (apply("add", ADD, Arg(0)), (M, N), _operands((M, N), (M, N))),
        (MUL, (M, N), _operands((M, N), ())),
        (ADD, (M, N), _operands((M,), (N,))),
        (MUL, (), _operands((), ())),
    ],
)
def test_a_general_expression_has_no_name(expr, dims, given):
    assert name_of(_pointwise(expr, dims), given) is None
