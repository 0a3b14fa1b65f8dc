"""The builder: promotion, unification, errors and dimensions, with eager PyTorch as the judge."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from testkit.tensor.built import run
from weft.errors import Location, ShapeError
from weft.tensor.axes import Affine
from weft.tensor.builder import Builder, Ref, promote
from weft.tensor.derived import Derived
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Cast, Contraction, Elementwise, Monoid, Reindex, TensorProgram
from weft.tensor.scalar import Arg, Lit, apply

ADD = apply("add", Arg(0), Arg(1))
F32 = DType.float32


# Promotion.

_OPERANDS = [
    *(
        (Ref("t", dims, dtype), dtype)
        for dtype in DType
        if not (dtype.is_foreign or dtype.is_kept)
        for dims in ((None,), ())
    ),
    *((number, None) for number in (True, 3, 2.5)),
]


def _torch(operand: Ref | bool | int | float) -> torch.Tensor | bool | int | float:
    if not isinstance(operand, Ref):
        return operand
    return torch.ones([1] * len(operand.dims), dtype=getattr(torch, operand.dtype.name))


@pytest.mark.parametrize("first", _OPERANDS, ids=str)
def test_promotion_of_every_pair_is_eagers(first: tuple) -> None:
    for second in _OPERANDS:
        a, b = first[0], second[0]
        expected = str(torch.result_type(_torch(a), _torch(b))).removeprefix("torch.")
        assert promote(a, b).name == expected, (a, b)


def test_promotion_of_three_looks_at_categories_first() -> None:
    vector, scalar = Ref("x", (None,), DType.int8), Ref("s", (), DType.int64)
    assert promote(vector, scalar, True) is DType.int8
    assert promote(vector, scalar, 1.5) is F32
    assert promote(Ref("h", (None,), DType.bfloat16), scalar, 1.5) is DType.bfloat16


# Unification.


def test_equal_sizes_never_unify() -> None:
    b = Builder()
    x = b.input("x", (8, 8), F32)
    program = b.finish([b.elementwise(apply("exp", Arg(0)), [x])])
    m, k = program.inputs[0].axes
    assert m.space != k.space
    assert [s.name for s in program.spaces()] == ["M", "K"]


def test_operations_unify_what_they_demand_and_nothing_more() -> None:
    b = Builder()
    x, w, bias = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32), b.input("b", (8,), F32)
    program = b.finish([b.linear(x, w, bias)])
    (m, k), (n, k2), (n2,) = (node.axes for node in program.inputs)
    assert k.space == k2.space
    assert n.space == n2.space
    assert len({m.space, k.space, n.space}) == 3
    assert str(program.inputs[1].axes[1]) == "k"


def test_a_product_with_itself_has_one_space_and_two_axes() -> None:
    b = Builder()
    x = b.input("x", (8, 4), F32)
    program = b.finish([b.matmul(x, b.transpose(x, 0, 1))])
    (node,) = program.nodes
    assert isinstance(node, Contraction)
    rows, columns = node.axes
    assert rows.space == columns.space
    assert rows != columns
    assert (str(rows), str(columns)) == ("m", "m1")
    array = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(run(program, array)[0], array @ array.T)


def test_one_axis_at_two_dimensions_is_told_apart() -> None:
    b = Builder()
    v = b.input("v", (5,), F32)
    both = b.elementwise(ADD, [b.unsqueeze(v, 1), b.unsqueeze(v, 0)])
    array = np.arange(4.0)
    assert np.array_equal(run(b.finish([both]), array)[0], array[:, None] + array[None])


def test_spaces_have_letters_and_then_numbers() -> None:
    b = Builder()
    x = b.input("x", tuple(range(2, 14)), F32)
    names = [s.name for s in b.finish([x]).spaces()]
    assert names == [*"MKNDLPQRST", "X1", "X2"]


def test_a_size_that_no_tensor_shows_is_fixed() -> None:
    b = Builder()
    x = b.input("x", (3, 1), F32)
    program = b.finish([b.elementwise(ADD, [x, b.iota(5, F32)])])
    assert [s.fixed for s in program.spaces()] == [None, 5]
    assert run(program, np.zeros((7, 1)))[0].shape == (7, 5)


def test_a_size_that_a_tensor_shares_with_the_program_is_the_tensors() -> None:
    b = Builder()
    x = b.input("x", (5, 3), F32)
    added = b.elementwise(ADD, [b.transpose(x, 0, 1), b.iota(5, F32)])
    assert [s.fixed for s in b.finish([added]).spaces()] == [None, None]
    with pytest.raises(ShapeError):
        b.elementwise(ADD, [b.transpose(x, 0, 1), b.iota(6, F32)])


def test_a_size_that_a_later_tensor_shows_is_not_fixed() -> None:
    b = Builder()
    x = b.input("x", (5,), F32)
    moved = b.elementwise(ADD, [b.slice(x, 0, 0, 3), b.input("y", (3,), F32)])
    program = b.finish([moved])
    assert [s.fixed for s in program.spaces()] == [None, None]
    assert len(program.derived) == 1


def test_a_size_can_be_as_long_as_an_axis() -> None:
    b = Builder()
    x = b.input("x", (3,), F32)
    assert x.dims[0] is not None
    program = b.finish([b.elementwise(ADD, [x, b.iota(x.dims[0], F32)])])
    assert np.array_equal(run(program, np.zeros(6))[0], np.arange(6))


def test_the_size_of_a_slice_follows_from_its_source() -> None:
    b = Builder()
    x = b.input("x", (8, 4), F32)
    program = b.finish([b.slice(x, 0, 2, None), b.slice(x, 0, 0, -1, 3)])
    m = program.inputs[0].axes[0].space
    sizes = program.sizes({m.name: 20, "K": 4})
    assert [type(d) for d in program.derived] == [Derived, Derived]
    assert [sizes[d.space.name] for d in program.derived] == [18, 7]
    array = np.arange(80.0).reshape(20, 4)
    first, second = run(program, array)
    assert np.array_equal(first, array[2:])
    assert np.array_equal(second, array[0:-1:3])


def test_a_slice_that_meets_an_input_leaves_a_rule_to_agree_with() -> None:
    b = Builder()
    x, y = b.input("x", (8,), F32), b.input("y", (6,), F32)
    program = b.finish([b.elementwise(ADD, [b.slice(x, 0, 2, None), y])])
    assert program.consistent({"M": 10, "K": 8})
    assert not program.consistent({"M": 10, "K": 9})


def as_long_as_a_part(b: Builder, *starts: int) -> TensorProgram:
    """x, an index along all of it whose length is that of a slice of a slice .. of x and some more, and that slice."""
    x = part = b.input("x", (8,), F32)
    for start in starts:
        part = b.slice(part, 0, start, None)
    (axis,) = part.dims
    assert axis is not None
    longer = b.longer_axis([axis], sum(starts))
    assert longer is not None
    return b.finish([b.elementwise(ADD, [x, b.iota(longer, F32)]), b.elementwise(ADD, [part, part])])


def test_a_slice_of_what_is_as_long_as_the_slice_and_some_more_says_nothing_new() -> None:
    program = as_long_as_a_part(Builder(), 3)
    (rule,) = program.derived
    assert rule.plus == 3


def test_a_slice_counts_where_what_is_put_together_of_its_parts_does_not_tell_its_size() -> None:
    """x is as long as x[1:][2:] and 3 more, so that the size of x[1:] follows from that of x by the slice alone."""
    program = as_long_as_a_part(Builder(), 1, 2)
    whole = program.inputs[0].axes[0].space
    assert [rule.start for rule in program.derived if rule.source == whole] == [1]
    followed = {rule.space: rule.sources for rule in program.derived}
    (last,) = (rule.space for rule in program.derived if rule.start == 2)
    assert [len(followed[last]), len(followed[followed[last][0]])] == [1, 1]
    assert whole not in followed
    assert program.sizes({whole.name: 12})[last.name] == 9


# Rounding.


def test_narrow_results_are_computed_wide_and_rounded_where_eager_rounds() -> None:
    b = Builder()
    x, w = b.input("x", (8, 4), DType.bfloat16), b.input("w", (4, 3), DType.bfloat16)
    y = b.elementwise(apply("maximum", Arg(0), Lit(0.0)), [b.matmul(x, w)])
    nodes = b.finish([y]).nodes
    assert [type(n) for n in nodes] == [Contraction, Cast, Elementwise, Cast]
    assert [n.dtype.name for n in nodes] == ["float32", "bfloat16", "float32", "bfloat16"]
    assert not any(n.semantic for n in nodes if isinstance(n, Cast))
    assert y.dtype is DType.bfloat16


def test_a_linear_layer_rounds_once() -> None:
    b = Builder()
    half = DType.bfloat16
    x, w, bias = b.input("x", (8, 4), half), b.input("w", (3, 4), half), b.input("b", (3,), half)
    nodes = b.finish([b.linear(x, w, bias)]).nodes
    assert [type(n) for n in nodes] == [Contraction, Elementwise, Cast]


def test_casts_are_semantic_where_integers_are_involved() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    made = [b.cast(x, d) for d in (DType.float16, DType.int32, DType.bool, F32)]
    program = b.finish(made)
    assert [n.semantic for n in program.nodes if isinstance(n, Cast)] == [False, True, True]
    assert made[-1] == x


# Against eager.

SHAPES = [(), (1,), (3,), (4,), (1, 3), (3, 1), (3, 4), (4, 3), (2, 1, 4), (2, 3, 4), (1, 4, 3), (2, 4, 3)]


def _pair(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(s, dtype=torch.float64, generator=generator) for s in (a, b))
    return x, y


def _call(builder: Builder, method: str, refs: list[Ref], where: Location | None = None) -> Ref:
    if method == "add":
        return builder.elementwise(ADD, refs, location=where)
    return getattr(builder, method)(*refs, location=where)


@pytest.mark.parametrize("method", ["matmul", "add", "linear"])
def test_shapes_and_values_are_eagers(method: str) -> None:
    eager = torch.nn.functional.linear if method == "linear" else getattr(torch, method)
    agreed = 0
    for a, b in itertools.product(SHAPES, SHAPES):
        if method == "linear" and len(b) not in (1, 2):
            continue
        builder, (x, y) = Builder(), _pair(a, b)
        refs = [builder.input(n, s, DType.float64) for n, s in (("x", a), ("y", b))]

        try:
            expected = eager(x, y)
        except RuntimeError:
            continue
        (result,) = run(builder.finish([_call(builder, method, refs)]), x.numpy(), y.numpy())
        assert result.shape == tuple(expected.shape), (a, b)
        assert np.allclose(result, expected.numpy()), (a, b)
        agreed += 1
    assert agreed > 0


def test_sizes_that_do_not_fit_are_refused_in_eagers_words() -> None:
    builder, (x, y) = Builder(), _pair((3, 4), (3, 5))
    refs = [builder.input(n, v.shape, DType.float64) for n, v in (("x", x), ("y", y))]
    with pytest.raises(RuntimeError) as eager:
        torch.add(x, y)
    where = Location("model.py", 7, "y = x + w")
    with pytest.raises(ShapeError) as ours:
        _call(builder, "add", refs, where)
    assert ours.value.what == str(eager.value)
    assert ours.value.where == where


def test_matmuls_of_two_types_are_refused() -> None:
    b = Builder()
    x, y = b.input("x", (2, 2), F32), b.input("y", (2, 2), DType.bfloat16)
    with pytest.raises(ShapeError, match="same dtype"):
        b.matmul(x, y)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [None, (0,), (-1,), (1,), (0, 2), (0, 1, 2)])
def test_reductions_are_eagers(dims: tuple[int, ...] | None, keepdim: bool) -> None:
    b = Builder()
    x = b.input("x", (4, 1, 3), DType.float64)
    monoids = [Monoid.sum, Monoid.max, Monoid.min]
    made = [b.reduce(m, x, dims, keepdim) for m in monoids] + [b.mean(x, dims, keepdim)]
    value = torch.randn(5, 1, 7, dtype=torch.float64)
    over = (0, 1, 2) if dims is None else dims
    eager = [f(value, over, keepdim) for f in (torch.sum, torch.amax, torch.amin, torch.mean)]
    for ours, theirs in zip(run(b.finish(made), value.numpy()), eager, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert np.allclose(ours, theirs.numpy())


def test_sums_of_small_integers_are_int64() -> None:
    b = Builder()
    x = b.input("x", (4,), DType.int8)
    total = b.reduce(Monoid.sum, x)
    assert total.dtype is DType.int64
    assert b.reduce(Monoid.max, x).dtype is DType.int8
    assert run(b.finish([total]), np.full(4, 100))[0] == 400


def test_the_sum_over_an_expanded_dimension_counts_it() -> None:
    b = Builder()
    x = b.expand(b.input("x", (3, 1), DType.float64), (2, -1, 5))
    (result,) = run(b.finish([b.reduce(Monoid.sum, x, (0, 2))]), np.arange(4.0)[:, None])
    assert np.array_equal(result, 10 * np.arange(4.0))


def test_products_over_expanded_dimensions_are_eagers() -> None:
    b = Builder()
    x, y = b.input("x", (3, 1), DType.float64), b.input("y", (2, 4, 5), DType.float64)
    product = b.matmul(b.expand(x, (2, 3, 4)), y)
    left, right = torch.randn(6, 1, dtype=torch.float64), torch.randn(2, 4, 7, dtype=torch.float64)
    (result,) = run(b.finish([product]), left.numpy(), right.numpy())
    assert np.allclose(result, (left.expand(2, 6, 4) @ right).numpy())


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2), (0.5, -3.0)])
def test_scaled_products_are_eagers(beta: float, alpha: float) -> None:
    b = Builder()
    refs = [b.input(n, s, DType.float64) for n, s in zip("abc", ((3,), (2, 4), (4, 3)), strict=True)]
    batched = [b.unsqueeze(r, 0) for r in refs[1:]]
    made = [b.addmm(*refs, beta=beta, alpha=alpha), b.addmm(refs[0], *batched, beta=beta, alpha=alpha)]
    values = [torch.randn(s, dtype=torch.float64) for s in ((3,), (2, 4), (4, 3))]
    if beta == 0:
        values[0][:] = float("nan")
    expected = torch.addmm(*values, beta=beta, alpha=alpha).numpy()
    plain, deep = run(b.finish(made), *(v.numpy() for v in values))
    assert np.allclose(plain, expected)
    assert np.allclose(deep, expected[None])


def test_views_are_eagers() -> None:
    b = Builder()
    x = b.input("x", (4, 1, 6), DType.float64)
    made = [
        b.permute(x, (2, 0, 1)),
        b.squeeze(x),
        b.unsqueeze(x, -1),
        b.expand(x, (2, -1, 3, -1)),
        b.slice(x, 2, -4, -1, 2),
        b.slice(x, 0, 3, None),
        b.slice(x, 0, -1, None),
        b.flip(x, (0, 1, 2)),
        b.select(x, 2, -2),
        b.select(b.flip(b.slice(x, 2, 1, None), (2,)), 0, 1),
    ]
    program = b.finish(made)
    value = torch.randn(4, 1, 6, dtype=torch.float64)
    eager = [
        value.permute(2, 0, 1),
        value.squeeze(),
        value.unsqueeze(-1),
        value.expand(2, -1, 3, -1),
        value[:, :, -4:-1:2],
        value[3:],
        value[-1:],
        value.flip(0, 1, 2),
        value[:, :, -2],
        value[:, :, 1:].flip(2)[1],
    ]
    for ours, theirs in zip(run(program, value.numpy()), eager, strict=True):
        assert np.array_equal(ours, theirs.numpy())


def test_views_that_move_nothing_make_no_node() -> None:
    b = Builder()
    x = b.input("x", (4, 6), F32)
    y = b.unsqueeze(b.transpose(x, 0, 1), 0)
    program = b.finish([b.elementwise(apply("exp", Arg(0)), [y])])
    assert [type(n) for n in program.nodes] == [Elementwise]


def test_indices_from_the_end_hold_for_any_size() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    program = b.finish([b.select(x, 0, -1)])
    (node,) = program.nodes
    assert isinstance(node, Reindex)
    assert node.index == (Affine((), 0, from_end=True),)
    assert run(program, np.arange(9.0))[0] == 8
    program = b.finish([b.slice(x, 0, -1, None), b.slice(x, 0, -3, -1)])
    assert [r.tolist() for r in run(program, np.arange(9.0))] == [[8], [6, 7]]


def test_a_dimension_is_not_expanded_to_another_size() -> None:
    b = Builder()
    with pytest.raises(ShapeError, match="has another size"):
        b.expand(b.input("x", (4, 6), F32), (4, 7))


def test_opaque_results_show_their_sizes_and_uses_are_values_as_they_lie() -> None:
    b = Builder()
    x = b.input("x", (4, 6), DType.float64)
    y = b.opaque("aten.sort", "sort_1", [b.transpose(x, 0, 1)], (6, 1, 4), DType.float64, "sorts")
    program = b.finish([b.elementwise(apply("neg", Arg(0)), [y])])
    domain = Fp64Domain()
    value = np.arange(15.0).reshape(3, 5)
    outputs = evaluate(program, {"x": value}, domain, opaque=lambda node, uses: -uses[0].T)
    (result,) = returned(program, outputs, domain)
    assert np.array_equal(result, value.T[:, None, :])
