"""Merged dimensions in the builder: several axes under one name, and views of what they meet; NumPy is the judge."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.tensor.built import run
from weft.errors import ShapeError, UnsupportedError
from weft.tensor.axes import Affine
from weft.tensor.builder import Builder, Ref
from weft.tensor.derived import Derived
from weft.tensor.dtypes import DType
from weft.tensor.program import Contraction, Elementwise, Monoid, Reindex
from weft.tensor.scalar import Arg, apply

ADD = apply("add", Arg(0), Arg(1))
F32 = DType.float32
K, Q = np.random.default_rng(0).standard_normal((3, 5, 6)), np.random.default_rng(1).standard_normal((12, 4, 6))
REPEATED = K.repeat(4, 0)


def repeated(b: Builder, ref: Ref, times: int = 4) -> Ref:
    """Dimension 0, each element `times` over."""
    wide = b.expand(b.unsqueeze(ref, 1), (-1, times, *[-1] * (len(ref.dims) - 1)))
    return b.merge(wide, (2, *[1] * (len(ref.dims) - 1)))


def flat(values: np.ndarray) -> np.ndarray:
    """Merges the first two dimensions, as the program does."""
    return values.reshape(-1, *values.shape[2:])


def test_what_meets_a_merged_dimension_becomes_a_view_and_its_size_follows() -> None:
    b = Builder()
    k, q = b.input("k", (3, 5, 6), F32), b.input("q", (12, 4, 6), F32)
    product = b.matmul(q, b.transpose(repeated(b, k), 1, 2))
    assert b.shape(product) == (12, 4, 5)
    assert b.merges(product)
    run_ = b.last_run(product)
    assert run_[:2] == (0, 1)
    spread = Ref(product.value, tuple(b._own[product.value]), F32)
    program = b.finish([spread])
    view, contraction = program.nodes
    assert isinstance(view, Reindex)
    assert isinstance(contraction, Contraction)
    heads, shared, rows, size = view.axes
    assert view.index == (Affine(((heads, 4), (shared, 1))), Affine.of(rows), Affine.of(size))
    assert (heads.space.fixed, shared.space.fixed) == (None, 4)
    assert contraction.right.value == "k"
    (every,) = (a.space for a in program.values()["q"].axes[:1])
    assert program.derived == (Derived(every, heads.space, times=4),)
    assert program.sizes({heads.space.name: 5})[every.name] == 20
    np.testing.assert_allclose(flat(run(program, K, Q)[0]), Q @ REPEATED.transpose(0, 2, 1))


def test_sums_over_merged_dimensions_are_sums_over_each_axis() -> None:
    b = Builder()
    k = repeated(b, b.input("k", (3, 5, 6), F32))
    doubled = b.elementwise(ADD, (k, k))
    every = b.reduce(Monoid.sum, doubled, (0,), keepdim=True)
    beside = b.reduce(Monoid.max, doubled, (1,), keepdim=True)
    assert b.shape(every) == (1, 5, 6)
    assert b.shape(beside) == (12, 1, 6)
    assert b.shape(b.mean(doubled, (0, 2))) == (5,)
    program = b.finish([every, b.mean(doubled, (0, 2))])
    total, mean = run(program, K)
    np.testing.assert_allclose(total, 2 * REPEATED.sum(0, keepdims=True))
    np.testing.assert_allclose(mean, 2 * REPEATED.mean((0, 2)))


def test_parts_beside_a_merged_dimension_leave_it_alone() -> None:
    b = Builder()
    k, q = repeated(b, b.input("k", (3, 5, 6), F32)), b.input("q", (12, 4, 6), F32)
    part = b.flip(b.slice(k, 1, 1, 5), (2,))
    total = b.reduce(Monoid.sum, b.elementwise(ADD, (part, q)), (0,))
    np.testing.assert_allclose(run(b.finish([total]), K, Q)[0], (REPEATED[:, 1:5, ::-1] + Q).sum(0))
    with pytest.raises(UnsupportedError, match="part of merged"):
        b.slice(k, 0, 2, 5)


def test_what_cannot_be_split_is_refused() -> None:
    b = Builder()
    k = b.input("k", (3, 5), F32)
    tiled = b.merge(b.expand(b.unsqueeze(k, 0), (4, -1, -1)), (2, 1))  # the inner size is only read at each call
    with pytest.raises(UnsupportedError, match="read at each call"):
        b.elementwise(ADD, (tiled, b.input("q", (12, 5), F32)))
    other = repeated(b, b.input("r", (6, 5), F32), 2)
    with pytest.raises(UnsupportedError, match="merged of others"):
        b.elementwise(ADD, (repeated(b, k), other))
    with pytest.raises(ShapeError, match="must match"):
        b.elementwise(ADD, (repeated(b, k), b.input("s", (13, 5), F32)))
    with pytest.raises(UnsupportedError, match="over merged"):
        b.matmul(repeated(b, k), b.input("t", (5, 2), F32))


def test_two_that_are_merged_alike_share_their_axes() -> None:
    b = Builder()
    k, v = (repeated(b, b.input(n, (3, 5), F32)) for n in "kv")
    program = b.finish([b.reduce(Monoid.sum, b.elementwise(ADD, (k, v)), (0,))])
    assert not any(isinstance(n, Reindex) for n in program.nodes)
    (node,) = (n for n in program.nodes if isinstance(n, Elementwise))
    assert [len(use.axes) for use in node.args] == [2, 2]
    assert len(node.axes) == 3


def test_a_number_that_a_view_is_made_with_stays_one() -> None:
    b = Builder()
    k, q, r = b.input("k", (3, 5), F32), b.input("q", (12, 5), F32), b.input("r", (3, 4, 5), F32)
    wide = b.expand(b.unsqueeze(k, 1), (-1, 4, -1))
    merged = b.elementwise(ADD, (b.merge(wide, (2, 1)), q))
    again = b.elementwise(ADD, (wide, r))  # r shows the 4 too
    program = b.finish([b.reduce(Monoid.sum, merged, (0,)), again])
    assert [a.space.fixed for a in program.values()["r"].axes] == [None, 4, None]


def test_what_is_taken_back_leaves_no_number_fixed() -> None:
    b = Builder()
    k, r = b.input("k", (3, 5), F32), b.input("r", (3, 4, 5), F32)
    wide = b.expand(b.unsqueeze(k, 1), (-1, 4, -1))
    mark = b.mark()
    b.merge(wide, (2, 1))
    b.undo(mark)
    program = b.finish([b.elementwise(ADD, (wide, r))])
    assert [a.space.fixed for a in program.values()["r"].axes] == [None, None, None]


def test_a_rule_is_not_followed_in_a_circle() -> None:
    b = Builder()
    k, q = b.input("k", (3, 5), F32), b.input("q", (12, 5), F32)
    part = b.elementwise(ADD, (b.slice(q, 0, 0, 3), k))  # as many as k has: the slice of what is 4 times as many
    both = b.elementwise(ADD, (repeated(b, part), q))
    program = b.finish([b.reduce(Monoid.sum, both, (0,))])
    q_, k_ = np.arange(60.0).reshape(12, 5), np.arange(15.0).reshape(3, 5)
    np.testing.assert_allclose(run(program, k_, q_)[0], ((q_[:3] + k_).repeat(4, 0) + q_).sum(0))
