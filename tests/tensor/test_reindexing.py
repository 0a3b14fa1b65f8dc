"""Reindexings move to the inputs and into each other, where they are views: offsets and strides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testkit.tensor.forms import ADD, EXP, kinds, run
from weft.pipeline import normalize
from weft.tensor.axes import Affine
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import views
from weft.tensor.laws.reindexing import MOST_PLACES
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Iota,
    Monoid,
    Opaque,
    Reduction,
    Reindex,
    TensorProgram,
)
from weft.tensor.scalar import Arg, apply

F32 = DType.float32


def test_halves_of_a_product_are_products_with_halves_of_the_weight() -> None:
    b = Builder()
    x, w = b.input("x", (4, 3), F32), b.input("w", (3, 8), F32)
    y = b.matmul(x, w)
    gated = b.elementwise(apply("mul", Arg(0), Arg(1)), [b.slice(y, 1, 0, 4), b.slice(y, 1, 4, 8)])
    program, found = views(normalize(b.finish([gated])))
    assert kinds(program) == ["Contraction", "Contraction", "Elementwise"]
    assert [v.source for v in found] == ["w", "w"]
    assert [v.offset((3, 8), (8, 1)) for v in found] == [0, 4]
    assert [v.strides((8, 1)) for v in found] == [(8, 1), (8, 1)]


@pytest.mark.parametrize("returned", [True, False])
def test_a_row_of_a_product_is_picked_in_memory_where_the_product_is_returned(returned: bool) -> None:
    b = Builder()
    x, w = b.input("x", (4, 3), F32), b.input("w", (3, 8), F32)
    y = b.elementwise(EXP, [b.matmul(x, w)])
    row = b.elementwise(apply("neg", Arg(0)), [b.select(y, 0, 1)])
    program = normalize(b.finish([y, row] if returned else [row]))
    assert sum(isinstance(n, Contraction) for n in program.nodes) == 1
    (pick,) = (n for n in program.nodes if isinstance(n, Reindex))
    assert pick.source == (program.outputs[0] if returned else "x")
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((4, 3)), rng.standard_normal((3, 8))
    results = run(program, {"x": left, "w": right}, Fp64Domain())
    assert np.allclose(results[-1], -np.exp(left @ right)[1])


def halved(steps: int) -> TensorProgram:
    """A row whose elements are added in pairs so many times, after an exponential."""
    b = Builder()
    row = b.elementwise(EXP, [b.input("x", (2**steps,), F32)])
    for _ in range(steps - 1):
        row = b.elementwise(ADD, [b.slice(row, 0, 0, None, 2), b.slice(row, 0, 1, None, 2)])
    return normalize(b.finish([row]))


def test_a_tree_of_slices_is_not_written_out_leaf_by_leaf() -> None:
    assert len(halved(10).nodes) <= len(halved(8).nodes) + 2 * 4, "each step adds its own operations"
    x = np.random.default_rng(0).standard_normal(256)
    (result,) = run(halved(8), {"x": x}, Fp64Domain())
    assert np.allclose(result, np.exp(x).reshape(2, 128).sum(1))


@pytest.mark.parametrize("count", [MOST_PLACES, MOST_PLACES + 1])
def test_what_is_read_at_many_places_is_read_from_memory(count: int) -> None:
    b = Builder()
    made = b.elementwise(EXP, [b.input("x", (count, 4), F32)])
    rows = [b.elementwise(apply("neg", Arg(0)), [b.select(made, 0, i)]) for i in range(count)]
    program = normalize(b.finish(rows))
    sources = {n.source for n in program.nodes if isinstance(n, Reindex)}
    assert (sources == {"x"}) is (count == MOST_PLACES)


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
    assert np.array_equal(run(program, {"x": value}, Fp64Domain())[0], -expected)


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
    (result,) = run(normalize(program), {"x": left, "w": right}, Fp64Domain())
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
    assert kinds(program) == ["Reindex", "Elementwise"]


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
    (result,) = run(normalize(program), {"x": value}, Fp64Domain())
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
    assert np.allclose(run(normal, {"x": value}, Fp64Domain())[0], np.exp(value).T)


def test_what_does_not_compose_stays() -> None:
    b = Builder()
    x = b.input("x", (8,), F32)
    program = normalize(b.finish([b.flip(b.slice(x, 0, None, None, 2), [0])]))
    assert [n.source == "x" for n in program.nodes if isinstance(n, Reindex)] == [True, False]
    value = np.arange(9.0)
    assert np.array_equal(run(program, {"x": value}, Fp64Domain())[0], value[::2][::-1])


def test_a_moved_iota_is_arithmetic() -> None:
    b = Builder()
    x = b.input("x", (6,), F32)
    assert x.dims[0] is not None
    count = b.iota(x.dims[0], DType.int64)
    made = [b.flip(count, [0]), b.slice(count, 0, 1, None, 2), b.select(count, 0, -1)]
    program = normalize(b.finish(made))
    assert not any(isinstance(n, Reindex) for n in program.nodes)
    assert any(isinstance(n, Iota) for n in program.nodes)
    flipped, odd, last = run(program, {"x": np.zeros(5)}, Fp64Domain())
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
    assert kinds(normal).count("Reindex") == 0
    value, vector = np.arange(12.0).reshape(4, 3), np.arange(3.0)
    sums, exps = run(normal, {"x": value, "w": vector}, Fp64Domain())
    assert np.array_equal(sums, np.full(4, 3.0))
    assert np.allclose(exps, np.exp(value.T))


def test_a_moved_opaque_result_stays_and_is_computed_once() -> None:
    b = Builder()
    y = b.opaque("sort", "s", [b.input("x", (4,), F32)], (4,), F32, "sorts")
    made = [b.flip(y, [0]), b.elementwise(EXP, [b.flip(y, [0])])]
    program = normalize(b.finish(made))
    assert sum(isinstance(n, Opaque) for n in program.nodes) == 1
    assert sum(isinstance(n, Reindex) for n in program.nodes) == 1
