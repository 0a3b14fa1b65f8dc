"""Products with an operand that is not staged, as kernels for few rows call them: held against fp64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from weft.emit.cpp import INCLUDE_DIR, shared
from weft.run.compiler import compile_object, compile_shared_library

_TYPES = {torch.float32: "float", torch.bfloat16: "weft::bf16", torch.float16: "weft::f16"}
_TEXT = """#include "prelude.h"
using weft::i64;
#define PRODUCT(NAME, T)                                                                                          \\
  extern "C" void NAME(float* c, const T* a, const T* b, i64 ldc, i64 add, i64 a_m, i64 a_k, i64 k_stride, i64 n_stride, i64 mb, \\
                       i64 nb, i64 kb) {                                                                          \\
    weft::Products products;                                                                                      \\
    weft::dot_direct_strided(c, ldc, add != 0, a, a_m, a_k, b, k_stride, n_stride, mb, nb, kb);                   \\
  }
extern "C" void staged(float* c, const weft::bf16* a, const weft::bf16* b, i64 ldc, i64 add, i64 a_m, i64 a_k, i64 k_stride,
                       i64 n_stride, i64 mb, i64 nb, i64 kb) {
  weft::Products products;
  weft::Scratch scratch(weft::scratch_bytes<weft::bf16>(weft::panel_elements<weft::bf16>(kb, nb)));
  weft::bf16* const to = scratch.take<weft::bf16>(weft::panel_elements<weft::bf16>(kb, nb));
  const auto panel = weft::stage_panel(to, b, k_stride, n_stride, kb, nb);
  weft::plain_dot<true>(c, ldc, add != 0, a, a_m, panel, mb, nb, kb);
}
"""
_COUNTS = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 200, 300]


def _name(dtype: torch.dtype) -> str:
    return f"product_{str(dtype).removeprefix('torch.')}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = _TEXT + "".join(f"PRODUCT({_name(dtype)}, {name})\n" for dtype, name in _TYPES.items())
    path = tmp_path_factory.mktemp("direct") / "direct.so"
    path.write_bytes(compile_shared_library(text, (INCLUDE_DIR,)))
    return ctypes.CDLL(str(path))


def product(
    library: ctypes.CDLL, c: torch.Tensor, add: bool, a: torch.Tensor, b: torch.Tensor, name: str | None = None
) -> None:
    """c = a @ b, or += with `add`, by the function `name`; c has dense rows."""
    function = library[name or _name(a.dtype)]
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (c, a, b)]
    (rows, depth), columns = a.shape, b.shape[1]
    numbers = (c.stride(0), add, *a.stride(), *b.stride(), rows, columns, depth)
    function(*addresses, *map(ctypes.c_int64, numbers))


def strided(rows: int, columns: int, by_rows: bool, gap: int, random: torch.Generator) -> torch.Tensor:
    """A matrix whose rows (or columns) lie dense, `gap` elements between them."""
    outer, inner = (rows, columns) if by_rows else (columns, rows)
    made = torch.randn(outer, inner + gap, generator=random)[:, :inner]
    return made if by_rows else made.T


@pytest.mark.one_in(2)
@pytest.mark.parametrize("by_rows", [True, False], ids=["dense rows", "dense columns"])
@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_any_sizes_and_strides(library: ctypes.CDLL, dtype: torch.dtype, by_rows: bool) -> None:
    random = torch.Generator().manual_seed(1)

    def pick(counts: list[int]) -> int:
        return counts[int(torch.randint(len(counts), (), generator=random))]

    for number in range(150):
        rows, columns, depth = pick([1, 1, 2, 5, 8, 33, 70]), pick([1, *_COUNTS[1:]]), pick(_COUNTS)
        a = strided(rows, depth, number % 4 > 0, number % 3, random).to(dtype)
        b = strided(depth, columns, by_rows, number % 5, random).to(dtype)
        c = torch.full((rows, columns + number % 2), torch.nan if number % 7 else 1.0)
        product(library, c, number % 7 == 0, a, b)
        exact = a.double() @ b.double() + (number % 7 == 0)
        size = a.double().abs() @ b.double().abs() + 1
        wrong = ((c[:, :columns] - exact).abs() / size).max()
        assert wrong < 2e-6, (rows, columns, depth, number)
        assert (c[:, columns:] != c[:, columns:]).all() or number % 7 == 0, "what lies beside the result is not touched"


@pytest.mark.parametrize("pitch", [2048, 2049, 4096], ids=lambda pitch: f"rows {pitch} apart")
@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_one_row_by_long_rows(library: ctypes.CDLL, dtype: torch.dtype, pitch: int) -> None:
    """More columns than a part has; as many rows at once as there are registers for, half as many, and what is left of them."""
    random = torch.Generator().manual_seed(4)
    for depth, columns in ((64, 2048), (91, 2047), (7, 1000), (129, pitch)):
        a = torch.randn(1, depth, generator=random).to(dtype)
        b = strided(depth, columns, True, pitch - columns, random).to(dtype)
        c = torch.ones(1, columns)
        product(library, c, True, a, b)
        exact = a.double() @ b.double() + 1
        assert ((c - exact).abs() / (a.double().abs() @ b.double().abs() + 1)).max() < 2e-6, (depth, columns)


@pytest.mark.parametrize("by_rows", [True, False], ids=["dense rows", "dense columns"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_below_the_normal_ones_count(library: ctypes.CDLL, dtype: torch.dtype, by_rows: bool) -> None:
    random, least = torch.Generator().manual_seed(2), torch.finfo(dtype).tiny
    b = (strided(96, 160, by_rows, 0, random) * least / 8).to(dtype)
    assert (b.abs() < least).all()
    assert (b != 0).any()
    a = (torch.randn(1, 96, generator=random) / least**0.5).to(dtype)
    c = torch.empty(1, 160)
    product(library, c, False, a, b)
    exact = a.double() @ b.double()
    assert ((c - exact).abs() <= 1e-5 * (a.double().abs() @ b.double().abs())).all()


@pytest.mark.parametrize("by_rows", [True, False], ids=["dense rows", "dense columns"])
@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_what_is_no_number_stays_in_its_column(library: ctypes.CDLL, dtype: torch.dtype, by_rows: bool) -> None:
    random = torch.Generator().manual_seed(3)
    a, b = torch.randn(1, 70, generator=random).to(dtype), strided(70, 130, by_rows, 0, random).to(dtype)
    b[3, 5], b[69, 128], b[64, 100] = torch.nan, torch.inf, -torch.inf
    c = torch.empty(1, 130)
    product(library, c, False, a, b)
    exact = (a.double() @ b.double()).float()
    assert torch.allclose(c, exact, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert c.isfinite().sum() == 127


BYTES = """
#include "prelude.h"
using weft::i64;
template <class T>
static void staged(uint64_t* c, bool add, const T* a, const T* b, i64 k_stride, i64 n_stride, i64 m, i64 n, i64 k) {
  weft::Scratch scratch(weft::scratch_bytes<T>(weft::panel_elements<T>(k, n)));
  T* to = scratch.take<T>(weft::panel_elements<T>(k, n));
  weft::Products products;
  const auto panel = weft::stage_panel(to, b, k_stride, n_stride, k, n);
  weft::dot(c, n, add, a, k, panel, m, n, k);
  weft::dot_anyhow(c + m * n, n, (i64)1, add, a, k, (i64)1, weft::panel_reader(panel), m, n, k);
}
extern "C" void staged_int8(uint64_t* c, bool add, const int8_t* a, const int8_t* b, i64 x, i64 y, i64 m, i64 n, i64 k) {
  staged(c, add, a, b, x, y, m, n, k);
}
extern "C" void staged_uint8(uint64_t* c, bool add, const uint8_t* a, const uint8_t* b, i64 x, i64 y, i64 m, i64 n, i64 k) {
  staged(c, add, a, b, x, y, m, n, k);
}
"""


@pytest.fixture(scope="module", params=[(), ("-DWEFT_PLAIN_DOT",)], ids=["library", "plain"])
def of_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("bytes") / "bytes.so"
    define = "#define WEFT_PLAIN_DOT\n" if request.param else ""
    path.write_bytes(compile_shared_library(define + BYTES, (INCLUDE_DIR,)))
    return ctypes.CDLL(str(path))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bytes_of_any_size_and_strides(of_bytes: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Four rows at a time, and what is left of them; parts of 64 rows, 128 columns and 32768 steps of k."""
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype, generator=generator)

    function = getattr(of_bytes, f"staged_{str(dtype).removeprefix('torch.')}")
    for m, n, k in ((1, 1, 1), (3, 5, 2), (65, 300, 131), (130, 128, 8), (2, 129, 32775), (4, 3, 0)):
        a, along = drawn(m, k), drawn(k, n)
        for b in (along, along.t().contiguous().t(), drawn(k, 2 * n)[:, ::2]):
            start = torch.arange(2 * m * n).view(2, m, n)
            for add in (False, True):
                c = start.clone()
                arguments = [ctypes.c_int64(v) for v in (*b.stride(), m, n, k)]
                function(
                    *(ctypes.c_void_p(c.data_ptr()), ctypes.c_bool(add)),
                    *(ctypes.c_void_p(t.data_ptr()) for t in (a, b)),
                    *arguments,
                )
                wanted = a.long() @ b.long()
                assert torch.equal(c, wanted + start if add else wanted.expand(2, m, n)), (m, n, k, add)


@pytest.mark.parametrize("columns", [15, 16, 17, 31, 32, 48, 63, 64, 100])
def test_pairs_of_bfloat16_without_a_library(library: ctypes.CDLL, columns: int) -> None:
    random = torch.Generator().manual_seed(columns)
    for rows in (1, 3, 4, 7, 8, 9, 13, 20):
        for depth in (1, 2, 33, 64, 301):  # on both sides of the size from which the machine's product of pairs is used
            a = strided(rows, depth, True, 3, random).bfloat16()[:, :depth]
            b = strided(depth, columns, bool(rows % 2), 5, random).bfloat16()
            wanted = a.double() @ b.double()
            before = torch.randn(rows, columns, generator=random)
            for add in (False, True):
                c = before.clone() if add else torch.full((rows, columns), float("nan"))
                product(library, c, add, a, b, "staged")
                exact = wanted + before if add else wanted
                torch.testing.assert_close(c.double(), exact, rtol=0, atol=4e-7 * (depth + 8))


def test_infinities_and_nan_reach_their_own_results_only(library: ctypes.CDLL) -> None:
    a, b = torch.ones(9, 65).bfloat16(), torch.ones(65, 40).bfloat16()
    a[2, 64], a[5, 3], b[10, 33] = float("nan"), float("inf"), float("-inf")
    c = torch.empty(9, 40)
    product(library, c, False, a, b, "staged")
    torch.testing.assert_close(c, a.float() @ b.float(), equal_nan=True)


def test_small_products_keep_numbers_below_the_normal_ones(library: ctypes.CDLL) -> None:
    # PyTorch's own small products keep them too; its large ones, as the machine's product of pairs, take them for 0.
    a, b = torch.full((16, 16), 1e-39).bfloat16(), torch.full((16, 16), 1e20).bfloat16()
    c = torch.empty(16, 16)
    product(library, c, False, a, b, "staged")
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["float", "bf16"])
def test_products_that_kernels_share_are_those_that_a_kernel_has_by_itself(name: str, tmp_path: Path):
    text = f"""
        #include "prelude.h"
        using namespace weft;
        extern "C" void run(const {name}* const a, const {name}* const b, float* c, i64 mb, i64 nb, i64 kb) {{
          weft::Products products;
          weft::dot_direct_strided(c, nb, false, a, kb, (i64)1, b, (i64)1, kb, mb, nb, kb);
        }}
    """
    units = shared(text)
    assert list(units) == [f"WEFT_DOTS_OF_{name}"]
    assert shared(text.replace("dot_direct_strided", "dot")) == {}
    random = torch.Generator().manual_seed(0)
    results = []
    for number, parts in enumerate(({}, units)):
        objects = {macro: compile_object(unit, (INCLUDE_DIR,)) for macro, unit in parts.items()}
        path = tmp_path / f"{number}.so"
        path.write_bytes(compile_shared_library(text, (INCLUDE_DIR,), objects))
        library = ctypes.CDLL(str(path))
        random.manual_seed(1)
        found = []
        for mb, nb, kb in ((1, 5, 7), (33, 70, 129), (8, 64, 300)):
            dtype = {"float": torch.float32, "bf16": torch.bfloat16}[name]
            a, b = (torch.randn(n, kb, generator=random).to(dtype) for n in (mb, nb))
            c = torch.full((mb, nb), torch.nan)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
            library.run(*pointers, *map(ctypes.c_int64, (mb, nb, kb)))
            torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-3, atol=1e-3)
            found.append(c)
        results.append(found)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
