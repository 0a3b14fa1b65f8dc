"""Every row of the operation table on every element type that it is for, and every cast, compiled: held against the evaluator."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from weft.emit.cpp import INCLUDE_DIR
from weft.emit.cpp.scalar import element, expression, loaded, stored
from weft.emit.cpp.scalar import number as cpp_number
from weft.emit.triton.scalar import number as triton_number
from weft.run.compiler import compile_shared_library
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.optable import PRIMITIVES, Row
from weft.tensor.scalar import Apply, Arg, Convert, Scalar

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -0.5, 3.0, float("inf"), float("-inf"), float("nan")]
HUGE = [
    300.7,
    -300.7,
    255.9,
    4e4,
    -4e4,
    7e4,
    2.0**31,
    -(2.0**31),
    3e9,
    -3e9,
    2.0**32 + 7,
    2.0**62,
    2.0**63,
    -(2.0**63),
    1e19,
    -1e19,
]
LONG = 67
"""Elements beside the special ones: vectors and a rest."""


class Case(NamedTuple):
    """One function: `expr` over arguments of `given`, stored as `result`."""

    name: str
    expr: Scalar
    given: tuple[DType, ...]
    result: DType
    samples: tuple[str, ...]


COMPUTED = [dtype for dtype in DType if not dtype.is_foreign]


def types_of(row: Row) -> list[DType]:
    """The element types that the operation is computed for."""
    if "int" in row.samples:
        return [d for d in DType if d.kind == "int"]
    masks = "real" not in row.samples and "bool" in row.samples
    found = [DType.bool] if masks or row.name in ("eq", "ne", "where") else []
    if masks:
        return found
    return found + [d for d in DType if d.is_float or (row.closed and d.kind == "int")]


def cases() -> Iterator[Case]:
    for row in PRIMITIVES:
        for dtype in types_of(row):
            given = tuple(DType.bool if s == "bool" else dtype for s in row.samples)
            expr: Scalar = Apply(row.name, tuple(Arg(i) for i in range(row.arity)))
            result = DType.bool if row.result == "bool" else dtype
            if result.kind == "int":
                expr = Convert(result, expr)  # what the cast behind every integer operation becomes
            yield Case(f"{row.name}_{dtype}", expr, given, result, row.samples)
    for one, other in itertools.permutations(COMPUTED, 2):
        yield Case(f"{one}_to_{other}", Convert(other, Arg(0)), (one,), other, ("real",))


def function(case: Case) -> str:
    """A loop over `n` elements."""
    texts = [loaded(f"a{i}[j]", d) for i, d in enumerate(case.given)]
    put = stored("out[j]", case.result, expression(case.expr, texts))
    head = "".join(f"const {element(d)}* a{i}, " for i, d in enumerate(case.given))
    loop = f"#pragma omp simd\nfor (i64 j = 0; j < n; ++j) {put}"
    return f'extern "C" void {case.name}({head}{element(case.result)}* out, i64 n) {{\n{loop}\n}}'


def column(samples: str, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """Numbers that `dtype` has, carried as the evaluator carries them."""
    if dtype is DType.bool:
        return rng.integers(0, 2, LONG).astype(np.bool_)
    if dtype.kind == "int":
        low, high = dtype.bounds
        ends = {"divisor": [], "positive": [0, 1]}.get(samples, [low, high, low + 1, 0])
        small = rng.integers(max(low, -9), 10, LONG)
        drawn = np.concatenate([ends, small, rng.integers(low, high, LONG, dtype=np.int64, endpoint=True)])
        return np.where(drawn == 0, 1, drawn) if samples in ("divisor", "nonzero") else drawn.astype(np.int64)
    values = 3.0 * rng.standard_normal(LONG)
    special = SPECIAL if samples == "real" else []
    return rounded(np.concatenate([special, np.abs(values) + 0.1 if samples == "positive" else values]), dtype)


def arguments(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    if "_to_" in case.name:
        (dtype,) = case.given
        values = column("real", dtype, rng)
        return [rounded(np.concatenate([values, HUGE, HUGE]), dtype) if dtype.is_float else values]
    columns = [column(s, d, rng) for s, d in zip(case.samples, case.given, strict=True)]
    if "decay" in case.name:
        columns = [-np.abs(c) for c in columns]  # of a significand's exponent, which is never positive
    longest = max(map(len, columns))
    return [rng.permutation(np.resize(c, longest)) for c in columns]


def torch_of(array: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, dtype.name))


def agree(found: torch.Tensor, wanted: np.ndarray, case: Case) -> bool:
    """Exactly, or for floats but for a few roundings of the type that is computed in."""
    dtype = case.result
    if not dtype.is_float:
        return bool(np.array_equal(found.numpy(), wanted))
    eps = 8 * max(dtype.eps, dtype.accumulator.eps)
    if case.name.startswith("coarse_decay"):
        eps = max(dtype.eps, 2.0**-18)
    close = torch.from_numpy(wanted.copy())
    return torch.allclose(found.double(), rounded_as(close, dtype), rtol=eps, atol=eps * 1e-2, equal_nan=True)


def rounded_as(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(rounded(values.numpy(), dtype))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = '#include "prelude.h"\nusing weft::i64;\n' + "\n".join(map(function, cases()))
    path = tmp_path_factory.mktemp("rows") / "rows.so"
    path.write_bytes(compile_shared_library(text, (INCLUDE_DIR,)))
    return ctypes.CDLL(str(path))


def called(library: ctypes.CDLL, case: Case, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    out = torch.empty(len(tensors[0]), dtype=getattr(torch, case.result.name))
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (*tensors, out)]
    library[case.name](*addresses, ctypes.c_int64(len(out)))
    return out


def test_every_row_on_every_type_and_every_cast(library: ctypes.CDLL) -> None:
    rng, domain, wrong = np.random.default_rng(0), Fp64Domain(), list[str]()
    for case in cases():
        args = arguments(case, rng)
        wanted = domain.elementwise(case.expr, args, case.result)
        found = called(library, case, [torch_of(a, d) for a, d in zip(args, case.given, strict=True)])
        if not agree(found, wanted, case):
            bad = [i for i in range(len(found)) if not agree(found[i : i + 1], wanted[i : i + 1], case)][:3]
            wrong += [f"{case.name}: {[[a[i] for a in args] for i in bad]} gives {found[bad]}, not {wanted[bad]}"]
    assert not wrong, "\n".join([f"{len(wrong)} functions", *wrong])


def numbers(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Floats as doubles, NaN as a number that there is."""
    return [t.double().nan_to_num(7.0) for t in tensors]


@pytest.mark.parametrize("one", COMPUTED, ids=str)
def test_casts_are_eagers(library: ctypes.CDLL, one: DType) -> None:
    """Out of range and NaN too: what the conversion gives on this machine, it gives in eager."""
    rng = np.random.default_rng(1)
    for other in COMPUTED:
        if other is not one:
            case = Case(f"{one}_to_{other}", Convert(other, Arg(0)), (one,), other, ("real",))
            tensor = torch_of(arguments(case, rng)[0], one)
            wanted = tensor.to(getattr(torch, other.name))
            found = called(library, case, [tensor])
            if other.is_float:  # the sign of zeros too
                found, wanted = (torch.stack((t, t.signbit() & (t == 0))) for t in numbers(found, wanted))
            assert torch.equal(found, wanted), other


@pytest.mark.parametrize("dtype", [d for d in COMPUTED if d.is_kept], ids=str)
def test_floats_of_8_bits_are_eagers_from_every_exponent(library: ctypes.CDLL, dtype: DType) -> None:
    """All of a float's upper 17 bits, with what decides ties below them; and each of the 256 numbers back."""
    upper = torch.arange(2**17, dtype=torch.int64) << 15
    lower = torch.tensor([0, 1, 0x3FFF, 0x4000, 0x7FFF])
    values = (upper[:, None] + lower).flatten().to(torch.uint32).view(torch.float32)
    kept = getattr(torch, dtype.name)
    there = Case(f"float32_to_{dtype}", Arg(0), (DType.float32,), dtype, ("real",))
    found, wanted = (t.view(torch.uint8) for t in (called(library, there, [values]), values.to(kept)))
    assert torch.equal(found, wanted)
    carried = torch.from_numpy(rounded(values.double().numpy(), dtype))
    assert torch.equal(*numbers(carried, wanted.view(kept)))
    every = torch.arange(256).to(torch.uint8).view(kept)
    back = Case(f"{dtype}_to_float32", Arg(0), (dtype,), DType.float32, ("real",))
    assert torch.equal(*numbers(called(library, back, [every]), every))


@pytest.mark.parametrize(
    ("value", "truth"), [(1.0, True), (-1.0, True), (0.0, False), (-math.inf, False), (math.inf, True)]
)
def test_numbers_are_the_same_bools_in_both_languages(value: float, truth: bool) -> None:
    """The greatest of no bools is False, whose identity is -inf among numbers."""
    assert cpp_number(value, "bool") == str(truth).lower()
    assert triton_number(value, "bool") == str(truth)
