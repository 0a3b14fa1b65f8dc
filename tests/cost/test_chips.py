"""Chips as published, and how they rank."""

from __future__ import annotations

import math

import pytest

from testkit.cost.closed import A, B, C, D, Q, X, attention, matmul, only
from weft.cost import CHIPS, chip, ranked
from weft.cost.chip import Chip
from weft.cost.ranking import transfer_levels
from weft.errors import TargetError
from weft.tensor.dtypes import DType

F16, BF16, F32, I8, E4M3 = DType.float16, DType.bfloat16, DType.float32, DType.int8, DType.float8_e4m3fn
PEAKS = {
    "A100 SXM": {F16: 312e12, BF16: 312e12, F32: 156e12, I8: 624e12, DType.float64: 19.5e12},
    "H100 SXM": {F16: 989.4e12, E4M3: 1978.9e12, F32: 494.7e12},
    "H100 PCIe": {F16: 756.5e12, E4M3: 1513e12, F32: 378e12},
    "H200 SXM": {F16: 989.4e12, E4M3: 1978.9e12, F32: 494.7e12},
    "B200": {F16: 2250e12, E4M3: 4500e12, F32: 1100e12},
    "RTX 4090": {F16: 165.2e12, E4M3: 330.3e12, I8: 660.6e12},
    "MI300X": {F16: 1307.4e12, I8: 2614.9e12, F32: 163.4e12, DType.float64: 163.4e12},
    "Xeon Platinum 8480+": {BF16: 114.7e12, I8: 229.4e12},
}
"""Dense peaks as makers print them (docs/internals/machines.md)."""
SIZES = {"A": 8192, "B": 8192, "C": 8192, "Q": 65536, "X": 8192, "D": 128}
THREE = [chip(name) for name in ("A100 SXM", "H100 SXM", "H100 PCIe")]


@pytest.mark.parametrize("name", CHIPS)
def test_rates_give_the_published_peaks(name: str) -> None:
    """Operations a cycle, multiprocessors and clock."""
    for dtype, peak in PEAKS[name].items():
        assert CHIPS[name].matrix_flops(dtype) == pytest.approx(peak, rel=0.025)


@pytest.mark.parametrize("known", CHIPS.values(), ids=CHIPS)
def test_levels_go_from_fast_to_large(known: Chip) -> None:
    """One instance of each holds more than of the one before, and all together give fewer bytes a second."""
    sizes = [level.bytes for level in known.levels]
    rates = [level.bytes_per_second or math.inf for level in known.levels]
    first = 1 if known.warp > 1 else 0  # a GPU has more registers than shared memory
    assert sizes[first:] == sorted(sizes[first:])
    assert rates == sorted(rates, reverse=True)


def times(name: str, dtype: DType, sizes: dict[str, int] = SIZES) -> dict[str, tuple[float, str]]:
    """Return what one algorithm takes on each of three chips, the fastest first, and what it waits for."""
    form = attention() if name == "attention" else only(matmul())
    best = form.optimum(*form.stated[:2]) if name == "attention" else form.optimum()
    least, flops = (2 * Q * D + 2 * X * D, 4 * Q * X * D) if name == "attention" else (form.least, 2 * A * B * C)
    return {t.chip.name: (t.seconds, t.bound) for t in ranked(best, least, flops, sizes, dtype, THREE)}


@pytest.mark.parametrize("name", ["attention", "matmul"])
@pytest.mark.parametrize("dtype", [F32, BF16, E4M3])
def test_three_chips_rank(name: str, dtype: DType) -> None:
    """Section 4.2: the H100 SXM before the PCIe card, and the A100, which multiplies 8-bit floats as half precision, last."""
    found = times(name, dtype)
    assert list(found) == ["H100 SXM", "H100 PCIe", "A100 SXM"]
    assert all(bound == "arithmetic" for _, bound in found.values())
    ratio = found["A100 SXM"][0] / found["H100 SXM"][0]
    assert ratio == pytest.approx(989.4 / 312 * (2 if dtype is E4M3 else 1), rel=0.01)


def test_few_rows_rank_by_memory() -> None:
    """With 16 rows a matmul waits for its matrix: the PCIe card, whose memory is no faster than the A100's, is no faster."""
    found = times("matmul", BF16, {**SIZES, "A": 16})
    assert all(bound == "L2" for _, bound in found.values())
    assert found["H100 SXM"][0] / found["A100 SXM"][0] == pytest.approx(2.039 / 3.35, rel=1e-3)
    assert found["H100 PCIe"][0] == pytest.approx(found["A100 SXM"][0], rel=0.01)
    matrix = SIZES["B"] * SIZES["C"] * 2 / 3.35e12
    assert found["H100 SXM"][0] == pytest.approx(matrix, rel=0.01)


def test_levels_of_transfers() -> None:
    """Theorem 2: the cache is sent what fits all multiprocessors together."""
    own, cache = transfer_levels(chip("H100 SXM"), 2)
    assert own.values == 228 * 1024 / 2
    assert cache.values == 132 * own.values
    assert cache.weight == pytest.approx(2 / 3.35e12)


def test_an_unknown_chip_is_said() -> None:
    """With the ones that are known."""
    with pytest.raises(TargetError, match=r"(?s)no chip 'H1000'.*H100 PCIe, H100 SXM"):
        chip("H1000")
