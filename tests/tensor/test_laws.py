"""The laws: on random programs they keep the value, and each does what its docstring draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, reject, settings
from hypothesis import strategies as st

from weft.errors import InvalidProgramError, ShapeError
from weft.tensor.axes import Affine
from weft.tensor.builder import Builder, Ref
from weft.tensor.domain import Domain
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.field import FieldDomain
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import (
    drop_precision_casts,
    inline_reindexing,
    merge_equal,
    normalize,
    numbered,
    remove_dead,
    views,
)
from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Input,
    Iota,
    Monoid,
    Node,
    Opaque,
    Reduction,
    Reindex,
    TensorProgram,
)
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.tensor.wellformed import well_formed

BF16, F32, F64 = DType.bfloat16, DType.float32, DType.float64
ADD = apply("add", Arg(0), Arg(1))
EXP = apply("exp", Arg(0))

# Random programs, made beside eager's own results.

_UNARY: list[tuple[Scalar, Callable[[torch.Tensor], torch.Tensor]]] = [
    (apply("neg", Arg(0)), torch.neg),
    (apply("mul", Arg(0), Lit(0.5)), lambda x: x * 0.5),
    (apply("maximum", Arg(0), Lit(0.0)), torch.relu),
]
_BINARY: list[tuple[Scalar, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    (ADD, torch.add),
    (apply("sub", Arg(0), Arg(1)), torch.sub),
    (apply("mul", Arg(0), Arg(1)), torch.mul),
    (
        apply("where", apply("lt", Arg(0), Arg(1)), Arg(0), apply("neg", Arg(1))),
        lambda x, y: torch.where(x < y, x, -y),
    ),
]
_REDUCTIONS = [(Monoid.sum, torch.sum), (Monoid.max, torch.amax), (Monoid.min, torch.amin)]

Pair = tuple[Ref, torch.Tensor]


class _Writer:
    """Draws operations, and performs each twice: on the builder, and in PyTorch in fp64."""

    def __init__(self, data: st.DataObject, dtype: DType) -> None:
        self.data, self.dtype, self.builder = data, dtype, Builder()
        self.inputs: dict[str, torch.Tensor] = {}
        self.made: list[Pair] = []
        self.generator = torch.Generator().manual_seed(0)
        for i in range(data.draw(st.integers(1, 3))):
            shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 3)), min_size=1, max_size=3))
            value = torch.randn(shape, dtype=torch.float64, generator=self.generator)
            self.inputs[f"in{i}"] = value
            self.made.append((self.builder.input(f"in{i}", shape, dtype), value))

    def operand(self) -> Pair:
        return self.data.draw(st.sampled_from(self.made))

    def dim(self, value: torch.Tensor) -> int:
        return self.data.draw(st.integers(0, value.ndim - 1))

    def write(self) -> None:
        kinds = [self.unary, self.binary, self.product, self.reduction, self.view, self.slicing]
        made = self.data.draw(st.sampled_from([*kinds, self.slicing, self.counting]))()
        if made is not None:
            ref, value = made
            assert self.builder.shape(ref) == tuple(value.shape)
            assert ref.dtype is self.dtype
            self.made.append(made)

    def unary(self) -> Pair:
        (ref, value), (expr, eager) = self.operand(), self.data.draw(st.sampled_from(_UNARY))
        return self.builder.elementwise(expr, [ref]), eager(value)

    def both(self, ours: Callable[[], Ref], eager: Callable[[], torch.Tensor]) -> Pair | None:
        """None where both refuse."""
        try:
            value = eager()
        except RuntimeError:
            with pytest.raises(ShapeError):
                ours()
            return None
        return ours(), value

    def binary(self) -> Pair | None:
        (a, x), (b, y) = self.operand(), self.operand()
        expr, eager = self.data.draw(st.sampled_from(_BINARY))
        return self.both(lambda: self.builder.elementwise(expr, [a, b]), lambda: eager(x, y))

    def product(self) -> Pair | None:
        (a, x), (b, y) = self.operand(), self.operand()
        if y.ndim > 1 and self.data.draw(st.booleans()):
            b, y = self.builder.transpose(b, -1, -2), y.transpose(-1, -2)
        return self.both(lambda: self.builder.matmul(a, b), lambda: x @ y)

    def reduction(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim == 0 or 0 in value.shape:
            return None
        dims = sorted({self.dim(value), self.dim(value)})
        keep = self.data.draw(st.booleans())
        if self.data.draw(st.integers(0, 3)) == 0:
            return self.builder.mean(ref, dims, keep), value.mean(dims, keep)
        monoid, eager = self.data.draw(st.sampled_from(_REDUCTIONS))
        return self.builder.reduce(monoid, ref, dims, keep), eager(value, dims, keep)

    def view(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim in (0, 4):
            return None
        kind = self.data.draw(st.sampled_from(("permute", "unsqueeze", "squeeze", "expand")))
        if kind == "permute":
            order = self.data.draw(st.permutations(range(value.ndim)))
            return self.builder.permute(ref, order), value.permute(order)
        if kind == "expand":
            sizes = [2, *([-1] * value.ndim)]
            return self.builder.expand(ref, sizes), value.expand(sizes)
        dim = self.dim(value)
        if kind == "unsqueeze":
            return self.builder.unsqueeze(ref, dim), value.unsqueeze(dim)
        return self.builder.squeeze(ref, dim), value.squeeze(dim)

    def slicing(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim == 0:
            return None
        dim = self.dim(value)
        size = value.shape[dim]
        kind = self.data.draw(st.sampled_from(("slice", "slice", "flip", "select")))
        if kind == "flip":
            return self.builder.flip(ref, [dim]), value.flip(dim)
        if size < 2:
            return None
        if kind == "select":
            index = self.data.draw(st.integers(-size, size - 1))
            return self.builder.select(ref, dim, index), value.select(dim, index)
        bounds = st.none() | st.integers(-size, size)
        start, stop = self.data.draw(bounds), self.data.draw(bounds)
        step = self.data.draw(st.sampled_from((1, 1, 2)))
        index = (*([slice(None)] * dim), slice(start, stop, step))
        return self.builder.slice(ref, dim, start, stop, step), value[index]

    def counting(self) -> Pair | None:
        ref, value = self.operand()
        axis = ref.dims[-1] if ref.dims else None
        if axis is None:
            return None
        iota = self.builder.iota(axis, self.dtype)
        place = torch.arange(value.shape[-1], dtype=torch.float64)
        return self.builder.elementwise(ADD, [ref, iota]), value + place

    def finish(self) -> tuple[TensorProgram, list[torch.Tensor]]:
        fresh = self.made[len(self.inputs) :]
        assume(fresh)
        outputs = self.data.draw(st.lists(st.sampled_from(fresh), min_size=1, max_size=3))
        return self.builder.finish([r for r, _ in outputs]), [v for _, v in outputs]


def _write(data: st.DataObject, dtype: DType) -> tuple[_Writer, TensorProgram, list[torch.Tensor]]:
    writer = _Writer(data, dtype)
    for _ in range(data.draw(st.integers(1, 8))):
        writer.write()
    return writer, *writer.finish()


def _run(program: TensorProgram, inputs: dict[str, Any], domain: Domain[Any]) -> list[Any]:
    well_formed(program)
    return list(returned(program, evaluate(program, inputs, domain), domain))


def _unrounded(program: TensorProgram) -> TensorProgram:
    """`program` with all its casts between floats made precision casts, which round nothing."""
    floats = {n.name for n in program.values().values() if n.dtype.is_float}

    def mild(node: Node) -> Node:
        is_float = isinstance(node, Cast) and node.dtype.is_float and node.arg.value in floats
        return replace(node, semantic=False) if is_float else node

    return replace(program, nodes=tuple(mild(n) for n in program.nodes))


@settings(max_examples=300)
@given(st.data())
def test_a_built_program_and_its_normal_form_are_what_eager_computes(data: st.DataObject) -> None:
    writer, program, expected = _write(data, F64)
    inputs = {name: value.numpy() for name, value in writer.inputs.items()}
    for form in (program, normalize(program)):
        for ours, theirs in zip(_run(form, inputs, Fp64Domain()), expected, strict=True):
            assert ours.shape == tuple(theirs.shape)
            assert np.allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-9)


@settings(max_examples=300)
@given(st.data(), st.sampled_from((F32, BF16)))
def test_laws_keep_the_value_at_any_sizes(data: st.DataObject, dtype: DType) -> None:
    """At sizes other than the example's, in numbers and in a field."""
    _, program, _ = _write(data, dtype)
    shown = {a.space for n in program.inputs for a in n.axes if a.space.fixed is None}
    sizes = {s.name: data.draw(st.integers(3, 5)) for s in sorted(shown, key=lambda s: s.name)}
    assume(program.consistent(program.sizes(sizes)))
    event(f"moved: {sum(isinstance(n, Reindex) for n in program.nodes)}")
    rng = np.random.default_rng(0)
    laws = (remove_dead, merge_equal, inline_reindexing, drop_precision_casts, normalize)
    forms = [_unrounded(law(program)) for law in laws]

    def check(domain: Domain[Any]) -> None:
        shapes = {n.name: [a.space.size(sizes) for a in n.axes] for n in program.inputs}
        inputs = {name: domain.random(shape, dtype, rng) for name, shape in shapes.items()}
        try:
            expected = _run(program, inputs, domain)
        except InvalidProgramError:
            reject()  # an index that the example allowed, and these sizes do not
        for form in forms:
            for before, after in zip(expected, _run(form, inputs, domain), strict=True):
                assert domain.shape(before) == domain.shape(after)
                assert domain.equal(before, after), f"{program}\n\n{form}"

    check(Fp64Domain())
    check(FieldDomain(0))


@settings(max_examples=150)
@given(st.data())
def test_normal_forms_are_final_and_read_only_views_of_inputs(data: st.DataObject) -> None:
    program = normalize(_write(data, BF16)[1])
    assert sorted(_kinds(normalize(program))) == sorted(_kinds(program))
    kinds = program.values()
    stuck = [n for n in program.nodes if isinstance(n, Reindex)]
    deep = [n for n in stuck if not isinstance(kinds[n.source], Input)]
    assert all(isinstance(kinds[n.source], Reindex) for n in deep)
    event(f"views: {len(stuck)}, of views: {len(deep)}")


@settings(max_examples=150)
@given(st.data())
def test_views_are_offsets_and_strides(data: st.DataObject) -> None:
    """Each view's input is read through numpy's strides from the memory of its source."""
    writer, program, expected = _write(data, F64)
    normal = normalize(program)
    viewed, found = views(normal)
    inputs = {name: value.numpy() for name, value in writer.inputs.items()}
    sizes: dict[str, int] = {}
    for node in program.inputs:
        for axis, size in zip(node.dims, inputs[node.name].shape, strict=True):
            if axis is not None:
                sizes[axis.space.name] = size
    sizes = program.sizes(sizes)
    for view in found:
        source = inputs[view.source]
        flat, strides = source.reshape(-1), [s // 8 for s in source.strides]
        shape = [axis.space.size(sizes) for axis in view.axes]
        at = np.full(shape, view.offset(source.shape, strides))
        for place, (size, step) in enumerate(zip(shape, view.strides(strides), strict=True)):
            along = [-1 if i == place else 1 for i in range(len(shape))]
            at = at + step * np.arange(size).reshape(along)
        inputs[view.name] = flat[at]
    if not any(isinstance(n, Reindex) for n in viewed.nodes):
        event(f"views: {len(found)}")
        for ours, theirs in zip(_run(viewed, inputs, Fp64Domain()), expected, strict=True):
            assert np.allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-9)


# Each law by itself.


def _kinds(program: TensorProgram) -> list[str]:
    return [type(n).__name__ for n in program.nodes]


def test_dead_nodes_go_and_inputs_stay() -> None:
    b = Builder()
    x, y = b.input("x", (4,), F32), b.input("y", (4,), F32)
    b.elementwise(EXP, [y])
    program = remove_dead(b.finish([b.elementwise(EXP, [x])]))
    assert len(program.nodes) == 1
    assert [n.name for n in program.inputs] == ["x", "y"]


def test_equal_nodes_merge_up_to_axes_and_outputs_follow() -> None:
    b = Builder()
    x = b.input("x", (4, 5), F32)
    first, second = b.elementwise(EXP, [x]), b.elementwise(EXP, [x])
    program = merge_equal(b.finish([b.elementwise(ADD, [first, second]), second, first]))
    assert len(program.nodes) == 2
    assert program.outputs == ("t2", "t0", "t0")
    value = np.ones((2, 3))
    total, _, one = _run(program, {"x": value}, Fp64Domain())
    assert np.allclose(total, 2 * one)


def test_an_output_that_merges_is_returned_along_the_axes_of_the_first() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    assert x.dims[0] is not None
    made = [b.iota(x.dims[0]), b.unsqueeze(b.iota(x.dims[0]), 0)]
    program = merge_equal(b.finish(made))
    assert _kinds(program) == ["Iota"]
    plain, deep = _run(program, {"x": np.zeros(3)}, Fp64Domain())
    assert plain.tolist() == [0, 1, 2]
    assert deep.tolist() == [[0, 1, 2]]


def test_the_same_operation_along_another_axis_does_not_merge() -> None:
    b = Builder()
    x = b.input("x", (4, 4), F32)
    y = b.elementwise(ADD, [x, b.transpose(x, 0, 1)])
    assert y.dims[0] is not None
    rows, columns = b.reduce(Monoid.sum, y, [0]), b.reduce(Monoid.sum, y, [1])
    program = merge_equal(b.finish([rows, columns]))
    assert _kinds(program) == ["Elementwise", "Reduction", "Reduction"]


@pytest.mark.parametrize("other", [0, -0.0, False])
def test_literals_that_compare_equal_may_differ(other: float) -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    made = [b.elementwise(apply("maximum", Arg(0), Lit(v)), [x]) for v in (0.0, other, 0.0)]
    assert len(merge_equal(b.finish(made)).nodes) == 2


def test_opaque_operations_never_merge() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    (axis,) = x.dims
    assert axis is not None
    made = [b.opaque("aten.bernoulli", "call", [x], (axis,), F32, "random") for _ in range(2)]
    assert len(merge_equal(b.finish(made)).nodes) == 2


def _casts(program: TensorProgram) -> list[tuple[str, bool]]:
    return [(n.dtype.name, n.semantic) for n in program.nodes if isinstance(n, Cast)]


def test_casts_between_operations_go_and_those_of_outputs_are_semantic() -> None:
    b = Builder()
    x = b.input("x", (4, 4), BF16)
    y = b.elementwise(EXP, [b.elementwise(EXP, [x])])
    program = drop_precision_casts(b.finish([b.reduce(Monoid.sum, y, [1])]))
    assert _kinds(program) == ["Elementwise", "Elementwise", "Reduction", "Cast"]
    assert _casts(program) == [("bfloat16", True)]


def test_casts_that_feed_a_contraction_stay_precision() -> None:
    b = Builder()
    x, w = b.input("x", (4, 4), BF16), b.input("w", (4, 4), BF16)
    y = b.matmul(b.elementwise(EXP, [b.elementwise(EXP, [x])]), w)
    program = drop_precision_casts(b.finish([y]))
    assert _kinds(program) == ["Elementwise", "Elementwise", "Cast", "Contraction", "Cast"]
    assert _casts(program) == [("bfloat16", False), ("bfloat16", True)]
    (product,) = (n for n in program.nodes if isinstance(n, Contraction))
    assert program.values()[product.left.value].dtype is BF16


def test_a_contraction_reads_past_a_cast_there_and_back() -> None:
    b = Builder()
    x, w = b.input("x", (4, 4), F32), b.input("w", (4, 4), F32)
    back = b.cast(b.cast(x, BF16), F32)
    program = drop_precision_casts(b.finish([b.matmul(back, w)]))
    assert _kinds(program) == ["Contraction"]


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (apply("lt", Arg(0), Lit(1.0)), DType.bool),
        (apply("floor", Arg(0)), BF16),
        (apply("where", apply("lt", Arg(0), Lit(1.0)), Arg(0), Lit(0.0)), BF16),
    ],
)
def test_casts_that_feed_a_jump_stay_semantic(expr: Scalar, dtype: DType) -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    y = b.elementwise(expr, [b.elementwise(EXP, [b.elementwise(EXP, [x])])], dtype)
    program = drop_precision_casts(b.finish([y]))
    casts = _casts(program)
    assert all(semantic for _, semantic in casts)
    assert len(casts) == (1 if dtype is DType.bool else 2)


def test_a_cast_to_an_integer_reads_what_eager_rounded() -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    program = drop_precision_casts(b.finish([b.cast(b.elementwise(EXP, [x]), DType.int64)]))
    assert _casts(program) == [("bfloat16", True), ("int64", True)]


def test_what_is_cast_there_and_back_is_still_a_tensor_of_its_own() -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    program = normalize(b.finish([b.cast(b.cast(b.flip(x, [0]), F32), BF16), b.cast(b.cast(x, F32), BF16)]))
    assert _casts(program) == [("bfloat16", True), ("bfloat16", True)]
    assert all(isinstance(program.values()[name], Cast) for name in program.outputs)


def test_a_semantic_cast_is_never_dropped() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    y = b.elementwise(EXP, [b.cast(x, BF16, semantic=True)], F32)
    assert _casts(drop_precision_casts(b.finish([y]))) == [("bfloat16", True)]


def test_what_an_opaque_operation_reads_is_rounded() -> None:
    b = Builder()
    y = b.elementwise(EXP, [b.input("x", (4,), BF16)])
    program = drop_precision_casts(b.finish([b.opaque("sort", "s", [y], (4,), BF16, "sorts")]))
    assert _casts(program) == [("bfloat16", True)]


def test_halves_of_a_product_are_products_with_halves_of_the_weight() -> None:
    b = Builder()
    x, w = b.input("x", (4, 3), F32), b.input("w", (3, 8), F32)
    y = b.matmul(x, w)
    gated = b.elementwise(apply("mul", Arg(0), Arg(1)), [b.slice(y, 1, 0, 4), b.slice(y, 1, 4, 8)])
    program, found = views(normalize(b.finish([gated])))
    assert _kinds(program) == ["Contraction", "Contraction", "Elementwise"]
    assert [v.source for v in found] == ["w", "w"]
    assert [v.offset((3, 8), (8, 1)) for v in found] == [0, 4]
    assert [v.strides((8, 1)) for v in found] == [(8, 1), (8, 1)]


def test_two_flips_cancel() -> None:
    b = Builder()
    x = b.input("x", (4, 3), F32)
    twice = b.flip(b.flip(x, [0]), [0, 1])
    program = normalize(b.finish([b.elementwise(EXP, [twice])]))
    (moved,) = (n for n in program.nodes if isinstance(n, Reindex))
    assert moved.index[0].axis is not None
    assert moved.index[1].from_end


def test_the_last_of_a_slice_is_the_last() -> None:
    b = Builder()
    x = b.input("x", (8,), F32)
    program = normalize(b.finish([b.select(b.slice(x, 0, 3, None), 0, -1)]))
    (moved,) = (n for n in program.nodes if isinstance(n, Reindex))
    assert (moved.source, moved.index) == ("x", (Affine((), 0, from_end=True),))


@pytest.mark.parametrize("second", [(1, None, 1), (None, None, 2), (1, 3, 1), (-2, None, 1)])
@pytest.mark.parametrize("first", [(1, None, 2), (None, None, 3), (2, None, 1), (None, -1, 1)])
@pytest.mark.parametrize("last", ["flip", "first", "last", "none"])
def test_reindexings_of_reindexings_compose(first: tuple, second: tuple, last: str) -> None:
    b = Builder()
    x = b.input("x", (14, 2), F32)
    moved = b.slice(b.slice(x, 0, *first), 0, *second)
    value = np.arange(24.0).reshape(12, 2)
    expected = value[slice(*first)][slice(*second)]
    if last == "flip":
        moved, expected = b.flip(moved, [0]), expected[::-1]
    elif last != "none":
        index = -1 if last == "last" else 0
        moved, expected = b.select(moved, 0, index), expected[index]
    program = normalize(b.finish([b.elementwise(apply("neg", Arg(0)), [moved])]))
    if last in ("none", "first") and second[0] != -2:
        assert sum(isinstance(n, Reindex) for n in program.nodes) == 1
    assert np.array_equal(_run(program, {"x": value}, Fp64Domain())[0], -expected)


def test_a_product_that_moves_sums_over_an_axis_of_its_own() -> None:
    b = Builder()
    x, w = b.input("x", (4, 3), F32), b.input("w", (3, 3), F32)
    program = b.finish([b.matmul(x, w), b.elementwise(ADD, [x, b.matmul(x, w)])])
    product = program.nodes[0]
    assert isinstance(product, Contraction)
    m, n, k = *product.axes, *product.over
    assert n.space == k.space
    index = (Affine(((m, -1),), 0, True), Affine.of(k))
    moved = Reindex("moved", (m, k), F32, product.name, index)
    program = TensorProgram(program.inputs, (product, moved), ("moved",))
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    (result,) = _run(normalize(program), {"x": left, "w": right}, Fp64Domain())
    assert np.allclose(result, (left @ right)[::-1])


def test_a_long_chain_is_moved_without_recursion_and_once() -> None:
    b = Builder()
    x = b.input("x", (4, 3), F32)
    y = b.elementwise(EXP, [x])
    for _ in range(600):
        y = b.elementwise(apply("sub", Arg(0), Arg(1)), [y, x])
    for _ in range(12):
        y = b.elementwise(ADD, [y, b.flip(y, [0])])
    program = normalize(b.finish([b.slice(y, 0, 1, 3)]))
    assert len(program.nodes) < 3 * 615
    deep = b.select(x, 1, 0)
    for _ in range(600):
        deep = b.flip(deep, [0])
    program = normalize(b.finish([b.elementwise(EXP, [deep])]))
    assert _kinds(program) == ["Reindex", "Elementwise"]


def test_a_diagonal_is_a_view_of_an_input() -> None:
    b = Builder()
    x = b.input("x", (3, 3), F32)
    square = b.elementwise(ADD, [b.elementwise(EXP, [x]), b.transpose(x, 0, 1)])
    program = b.finish([square])
    m = program.inputs[0].axes[0]
    diagonal = Reindex("d", (m,), F32, program.outputs[0], (Affine.of(m), Affine.of(m)))
    program = replace(program, nodes=(*program.nodes, diagonal), outputs=("d",), output_dims=())
    viewed, found = views(normalize(program))
    assert [v.strides((3, 1)) for v in found] == [(4,)]
    assert not any(isinstance(n, Reindex) for n in viewed.nodes)
    value = np.arange(4.0).reshape(2, 2)
    (result,) = _run(normalize(program), {"x": value}, Fp64Domain())
    assert np.allclose(result, np.diag(np.exp(value) + value))


def test_a_permuted_output_is_copied() -> None:
    b = Builder()
    program = b.finish([b.elementwise(EXP, [b.input("x", (4, 3), F32)])])
    m, k = program.nodes[0].axes
    swap = Reindex("swap", (k, m), F32, program.outputs[0], (Affine.of(m), Affine.of(k)))
    program = replace(program, nodes=(*program.nodes, swap), outputs=("swap",), output_dims=())
    normal = normalize(program)
    assert normal.values()[normal.outputs[0]].axes == (k, m)
    value = np.arange(6.0).reshape(2, 3)
    assert np.allclose(_run(normal, {"x": value}, Fp64Domain())[0], np.exp(value).T)


def test_what_does_not_compose_stays() -> None:
    b = Builder()
    x = b.input("x", (8,), F32)
    program = normalize(b.finish([b.flip(b.slice(x, 0, None, None, 2), [0])]))
    assert [n.source == "x" for n in program.nodes if isinstance(n, Reindex)] == [True, False]
    value = np.arange(9.0)
    assert np.array_equal(_run(program, {"x": value}, Fp64Domain())[0], value[::2][::-1])


def test_a_moved_iota_is_arithmetic() -> None:
    b = Builder()
    x = b.input("x", (6,), F32)
    assert x.dims[0] is not None
    count = b.iota(x.dims[0], DType.int64)
    made = [b.flip(count, [0]), b.slice(count, 0, 1, None, 2), b.select(count, 0, -1)]
    program = normalize(b.finish(made))
    assert not any(isinstance(n, Reindex) for n in program.nodes)
    assert any(isinstance(n, Iota) for n in program.nodes)
    flipped, odd, last = _run(program, {"x": np.zeros(5)}, Fp64Domain())
    assert flipped.tolist() == [4, 3, 2, 1, 0]
    assert odd.tolist() == [1, 3]
    assert last == 4


def test_a_reindexing_that_only_permutes_or_expands_disappears() -> None:
    b = Builder()
    x, w = b.input("x", (4, 3), F32), b.input("w", (3,), F32)
    program = b.finish([b.elementwise(ADD, [b.matmul(x, w), b.reduce(Monoid.sum, x, [1])])])
    m, k = program.nodes[0].axes[0], program.inputs[0].axes[1]
    source = program.inputs[0]
    swap = Reindex("swap", (k, m), F32, "x", (Affine.of(m), Affine.of(k)))
    spread = Reindex("spread", (m, k), F32, "w", (Affine.of(k),))
    product = program.nodes[0]
    assert isinstance(product, Contraction)
    total = Reduction("total", (m,), F32, Monoid.sum, replace(product.left, value="spread"), (k,))
    exp = Elementwise("e", (k, m), F32, EXP, (replace(product.left, value="swap", axes=(k, m)),))
    both = TensorProgram((source, program.inputs[1]), (swap, spread, total, exp), ("total", "e"))
    normal = normalize(both)
    assert _kinds(normal).count("Reindex") == 0
    value, vector = np.arange(12.0).reshape(4, 3), np.arange(3.0)
    sums, exps = _run(normal, {"x": value, "w": vector}, Fp64Domain())
    assert np.array_equal(sums, np.full(4, 3.0))
    assert np.allclose(exps, np.exp(value.T))


def test_a_moved_opaque_result_stays_and_is_computed_once() -> None:
    b = Builder()
    y = b.opaque("sort", "s", [b.input("x", (4,), F32)], (4,), F32, "sorts")
    made = [b.flip(y, [0]), b.elementwise(EXP, [b.flip(y, [0])])]
    program = normalize(b.finish(made))
    assert sum(isinstance(n, Opaque) for n in program.nodes) == 1
    assert sum(isinstance(n, Reindex) for n in program.nodes) == 1


def test_numbered_programs_are_the_same_text_wherever_they_were_cut_out_of() -> None:
    def made(before: int) -> str:
        b = Builder()
        for i in range(before):  # what the rest of a graph has taken names for
            b.input(f"other{i}", (3, 4), F32)
        w, x = b.input("w", (5, 6), F32), b.input("x", (5, 6), F32)
        x = b.elementwise(EXP, (x,), F32)
        y = b.elementwise(ADD, (b.matmul(x, b.permute(w, (1, 0))), b.cast(b.extent(w.dims[1], F32), F32)), F32)
        whole = remove_dead(b.finish([y]))
        computed = next(n for n in whole.nodes if n.name == x.value)
        inputs = (*(n for n in whole.inputs if n.name == "w"), Input(computed.name, computed.axes, F32))
        part = replace(whole, inputs=inputs, nodes=tuple(n for n in whole.nodes if n is not computed))
        named = numbered(part, {"w"})
        assert well_formed(named) is None
        assert [n.name for n in named.inputs] == ["w", "t0"]
        assert [s.name for s in named.spaces()] == ["M", "K", "N"][: len(named.spaces())]
        assert [s.example for s in named.spaces()] == [s.example for s in part.spaces()]
        return str(named)

    assert len({made(before) for before in (0, 1, 7)}) == 1
