"""References worked out in arrays of PyTorch's are those of numpy."""

import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testkit.block.scans import between, scan
from testkit.verify.emitted import ATTENTION, F32, HERE, NORM, SOFTMAX, first_place, sizes_of
from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.program import Monoid
from weft.verify import cases as judged
from weft.verify.cases import cases
from weft.verify.eager import RandomlyRoundedDomain
from weft.verify.torch_array import TorchArray

EDGES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    1.5,
    2.5,
    -2.5,
    3.0,
    1e-310,
    -1e-40,
    1e-5,
    1e4,
    -1e4,
    700.0,
    -750.0,
    1e300,
    2.0**53,
)
NUMBERS = np.array((*EDGES, np.inf, -np.inf, np.nan))
SINGLES = np.array((*EDGES[:-2], 88.0, -104.0, 3e38, np.inf, -np.inf, np.nan), np.float32)
WHOLE = np.array((0, 1, -1, 2, 3, -7, 62, 63, 64, 1 << 40, -(1 << 63), (1 << 63) - 1))
BOOLS = np.array((True, False))


def held(values):
    return TorchArray.of(values, HERE)


def same(found, wanted, ulps=0):
    """Asserts that `found`, here, is numpy's `wanted`: in type, and in every element that is no number, zeros' signs among them."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) <= ulps * np.abs(np.spacing(wanted))
    assert np.all((found == wanted) | np.isnan(wanted) | near), (found, wanted)


@pytest.fixture
def nowhere_else(monkeypatch):
    """Has numpy's own functions refused."""

    def refused(self, func, args, kwargs):
        raise AssertionError(f"numpy computed {func}")

    monkeypatch.setattr(TorchArray, "_elsewhere", refused)


@pytest.mark.parametrize("values", [NUMBERS, SINGLES, WHOLE, BOOLS], ids=lambda v: str(v.dtype))
@pytest.mark.parametrize("name", [row.name for row in optable.PRIMITIVES])
def test_every_operation_is_numpys(name, values):
    row = optable.row(name)
    if name in ("erf", "exp2", "expm1", "log", "log1p", "tanh", "sin", "cos", "sqrt") and values.dtype.kind == "b":
        pytest.skip("numpy's result is of 16 bits, and no program asks for it")

    def operands(values):
        return [values[:, None], values[None, :], values[::-1][None, :]][: row.arity]

    args = operands(values)
    with np.errstate(all="ignore"):
        whole = row.meaning(*args).dtype.kind == "i"
    if (
        whole and values.dtype.kind == "f"
    ):  # what becomes of others as integers is the machine's: a GPU takes the nearest one
        args = operands(values[np.isfinite(values) & (np.abs(values) < 2.0**62)])
    function = 1 if name == "sqrt" else 0 if row.rounding in ("exact", "chooses", "steps", "rounds") else 8
    with np.errstate(all="ignore"):
        same(row.meaning(*map(held, args)), row.meaning(*args), function)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
def test_rounding_is_numpys_at_every_tie(dtype):
    rng = np.random.default_rng(0)
    exact = rounded(rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 17, 4000), dtype)
    # numpy itself rounds some numbers below a tie up just above the least normal number of float16.
    exact = exact[np.abs(exact) != DType.float16.least_normal]
    between = exact + np.exp2(np.frexp(exact)[1] - 2.0) * dtype.eps
    values = np.concatenate((exact, between, np.nextafter(between, 0.0), np.nextafter(between, np.inf), NUMBERS))
    same(rounded(held(values), dtype), rounded(values, dtype))


INDICES = [
    (slice(None, None, -1), 2),
    (..., slice(5, None, -2)),
    (None, 1, slice(1, 4)),
    (slice(2, 2, -1), ...),
    (np.array([2, 0]), np.array([1, 1])),
    np.int64(1),
    (np.array([2, 0]), slice(None, None, -1)),
    (slice(None, None, -2), np.array([[2, 0], [1, 1], [5, 3]]), slice(6, 1, -3)),
    (np.array([2, 0]), slice(4, None, -1), np.array([1, 7])),
    (None, slice(None, None, -1), np.array([3]), np.int64(2)),
    (1, slice(None, None, -1), np.array([3, 0])),
    (np.array([2, 0]), None, 4, slice(None, None, -1)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices_are_numpys(index):
    values = np.arange(4.0 * 6 * 8).reshape(4, 6, 8)
    same(held(values)[index], values[index])


def test_arrays_of_indices_are_read_where_they_are():
    values, index = np.arange(24.0).reshape(4, 6), np.array([2, 0])
    same(held(values)[held(index), ::-1], values[index, ::-1])


FUNCTIONS = {
    "sign": np.sign,
    "rint": np.rint,
    "fmax": lambda v: np.fmax(v, v[::-1]),
    "fmin": lambda v: np.fmin(v, v[::-1]),
    "copysign": lambda v: np.copysign(2.0, v),
    "greatest": lambda v: np.max(v, axis=0, keepdims=True, where=np.isfinite(v), initial=0.0),
    "least": lambda v: np.minimum.reduce(v, axis=0, initial=np.inf),
    "numbers for what is none": lambda v: np.nan_to_num(v, posinf=0.0, neginf=0.0),
    "between two": lambda v: np.clip(v, -3, 3.0),
    "in place": lambda v: operator.iadd(v + 0.0, 1.0),
    "a mask in place": lambda v: operator.iand(np.isfinite(v), v > 0),
    "of another type": lambda v: np.subtract(v, v[::-1], dtype=np.float64),
    "ones": lambda v: np.ones_like(v, dtype=np.float64),
    "joined": lambda v: np.concatenate((v, np.stack((v, v), axis=-1)[..., 0])),
    "chosen": lambda v: np.where(v > 0, 1, v),
    "a quotient": lambda v: v / 49,
    "half": lambda v: v.astype(np.float16),
}


@pytest.mark.parametrize("values", [NUMBERS, SINGLES, np.zeros(0)], ids=["float64", "float32", "none"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_numpys(name, values):
    with np.errstate(all="ignore"):
        found, wanted = FUNCTIONS[name](held(values)), FUNCTIONS[name](values)
    assert isinstance(found, TorchArray)
    same(found, wanted)
    if wanted.dtype.kind == "f":
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(np.asarray(found)[numbers]), np.signbit(wanted[numbers]))


def test_what_roundings_take_is_numpys_and_on_both_sides():
    values = np.random.default_rng(0).standard_normal((50, 20))
    found = RandomlyRoundedDomain(0)._parts(held(values))
    same(found, RandomlyRoundedDomain(0)._parts(values))
    for domain in (RandomlyRoundedDomain(0), RandomlyRoundedDomain(1)):
        parts = np.asarray(domain._parts(held(values)))
        assert np.abs(parts).max() <= 1
        assert abs(np.mean(parts)) < 0.1
        assert 0.4 < np.mean(np.abs(parts)) < 0.6


def test_what_numpy_alone_computes_comes_back_here():
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    found = np.add.accumulate(held(values), axis=-1)
    assert isinstance(found, TorchArray)
    same(found, np.add.accumulate(values, axis=-1))
    same(np.einsum(held(values), [0, 1], [1, 0]), values.T)


def test_greatest_of_groups_are_numpys(nowhere_else):
    rng = np.random.default_rng(0)
    groups, values = rng.integers(0, 9, (6, 7)), rng.standard_normal((6, 7))
    rows = [np.zeros(10), np.zeros(10)]
    np.maximum.at(rows[0], groups, values)
    np.maximum.at(rows[1], held(groups), held(values))
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("shape", [(6, 7), (6, 1), (1, 1), ()])
def test_greatest_of_groups_of_several_rows_are_numpys(shape, nowhere_else):
    rng = np.random.default_rng(0)
    groups, values = rng.integers(0, 9, shape), rng.standard_normal((3, *shape))
    rows = [np.zeros((3, 10)), np.zeros((3, 10))]
    greatest: Any = np.maximum
    greatest.at(rows[0], (slice(None), groups), values)
    greatest.at(rows[1], (slice(None), held(groups)), held(values))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_sums_of_products_are_rounded_to_single_precision_on_their_way():
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 500), (500, 30)))
    exact = one.astype(np.float64) @ two.astype(np.float64)
    found = np.asarray(np.matmul(held(one), held(two)))
    off, eager = (np.sqrt(np.mean((v - exact) ** 2)) for v in (found, one @ two))
    assert found.dtype == np.float32
    assert 0.2 * eager < off < 2 * eager
    rows = np.matmul(held(one).astype(np.float64), held(two).astype(np.float64))
    np.testing.assert_allclose(np.asarray(rows), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "shapes", [((3, 40), (40, 5)), ((2, 3, 17), (17, 5)), ((3, 33), (4, 2, 33, 5)), ((3, 0), (0, 5))]
)
@pytest.mark.parametrize("sums", [1, 1 << 20])
def test_a_few_terms_are_added_at_a_time_whatever_the_shapes(shapes, sums, monkeypatch):
    monkeypatch.setattr("weft.verify.torch_products._SUMS", sums)
    rng = np.random.default_rng(0)
    one, two = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    wanted = np.zeros(np.matmul(one, two).shape, np.float32)
    for begin in range(0, one.shape[-1], 16):
        left, right = one[..., begin : begin + 16], two[..., begin : begin + 16, :]
        wanted += (left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)
    same(np.matmul(held(one), held(two)), wanted, 1)


def test_numbers_are_of_their_own_type_and_sign():
    values = held(np.array([1.0, -1.0]))
    for number in (0.0, -0.0, 0, np.nan, np.inf, True, 0.0):
        same(np.copysign(values, number), np.copysign(np.asarray(values), number))
        same(np.where(held(BOOLS), values, number), np.where(BOOLS, np.asarray(values), number))


def results(case):
    """Yields all that the judge asks of a case, by name."""
    for name in ("exact", "eager", "unmasked", "of_poles", "flushed", "accidental", "rounded_alike"):
        yield name, getattr(case, name)
    for number in range(3):
        yield f"in order {number}", case.in_order(number)
        yield f"masked, in order {number}", case.in_order(number, masked=True)


RUNNING = [between(), *(scan(monoid, dtype) for monoid in (Monoid.sum, Monoid.max) for dtype in (F32, DType.int64))]


@pytest.mark.parametrize("program", [SOFTMAX, ATTENTION, NORM, first_place(), *RUNNING])
def test_every_reference_is_numpys(monkeypatch, program):
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    sizes = [sizes_of(program)]
    for own in cases(program, [], sizes, 0):
        there = replace(own, device=HERE, known={})
        for (name, wanted), (_, found) in zip(results(own), results(there), strict=True):
            for there_found, other in zip(found, wanted, strict=True):
                assert isinstance(there_found, TorchArray), name
                one = np.asarray(there_found)
                assert one.dtype == other.dtype
                if one.dtype.kind != "f":
                    np.testing.assert_array_equal(one, other)
                    continue
                eps = 1e-4 if "order" in name or name == "eager" else 1e-9
                with np.errstate(all="ignore"):
                    scale = np.max(np.abs(other), axis=-1, keepdims=True, where=np.isfinite(other), initial=1e-300)
                    near = np.abs(one - other) <= eps * scale
                assert np.mean(near | (one == other) | (np.isnan(one) & np.isnan(other))) > 0.98, name


def test_roundings_hardly_ever_need_numpy(monkeypatch, nowhere_else):
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    for case in cases(ATTENTION, [], [sizes_of(ATTENTION)], 0, device=HERE):
        for name in ("exact", "eager", "unmasked", "flushed", "accidental", "rounded_alike"):
            assert all(isinstance(v, TorchArray) for v in getattr(case, name))
        for number in range(4):
            assert all(isinstance(v, TorchArray) for v in case.rounded(number))
