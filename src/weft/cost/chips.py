"""The chips that weft knows, as published: a number in brackets is a source of docs/internals/machines.md, which has them all.

Matrix units have the least block that one instruction multiplies; rates are dense ones. Of the second-level caches' bandwidth
makers publish little: it is measured (the sources say by whom), and the H100 SXM's is the H200's, which is the same
processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from weft.cost.chip import Chip, ChipLevel, MatrixUnit, OnChip
from weft.errors import TargetError
from weft.tensor.dtypes import DType

_KIB = 1024
_HALVES = (DType.float16, DType.bfloat16)
_BYTES = (DType.int8, DType.uint8)
_FP8 = (DType.float8_e4m3fn, DType.float8_e5m2)


def _units(
    threads: int, *rows: tuple[tuple[DType, ...], int, tuple[int, int, int]], **places: OnChip
) -> dict[DType, MatrixUnit]:
    """Make the units of one multiprocessor: types, multiplications with additions a cycle, and the block's rows, depth, columns."""
    return {dtype: MatrixUnit(2 * fmas, *shape, threads, **places) for dtypes, fmas, shape in rows for dtype in dtypes}


def _levels(
    multiprocessors: int,
    hertz: float,
    *,
    shared: float,
    cache: tuple[float, float],
    memory: tuple[float, float],
    link: float,
) -> tuple[ChipLevel, ...]:
    """Make a GPU's levels: KiB of shared memory, (bytes, bytes a second) of the cache and of memory, bytes a second to other
    GPUs.
    """
    return (
        ChipLevel("registers", 256 * _KIB, multiprocessors, 0),  # [9]
        ChipLevel(
            "shared memory", shared * _KIB, multiprocessors, 128 * multiprocessors * hertz
        ),  # 32 banks of 4 bytes [9]
        ChipLevel("L2", cache[0], 1, cache[1]),
        ChipLevel("device memory", memory[0], 1, memory[1]),
        ChipLevel("other devices", float("inf"), 1, link),
    )


# A warp's own units [31], a warpgroup's [31], and rates [35].
_AMPERE = _units(
    32,
    (_HALVES, 1024, (16, 16, 8)),
    (_BYTES, 2048, (16, 32, 8)),
    ((DType.float32,), 512, (16, 8, 8)),  # tf32
    ((DType.float64,), 64, (8, 4, 8)),
)
_ADA = _units(
    32,
    (_HALVES, 256, (16, 16, 8)),
    (_FP8, 512, (16, 32, 8)),
    (_BYTES, 1024, (16, 32, 8)),
    ((DType.float32,), 128, (16, 8, 8)),
)
_WARPGROUP = {"left": OnChip.shared, "right": OnChip.shared}
_HOPPER = _units(
    128,
    (_HALVES, 2048, (64, 16, 8)),
    (_FP8, 4096, (64, 32, 8)),
    (_BYTES, 4096, (64, 32, 8)),
    ((DType.float32,), 1024, (64, 8, 8)),
    **_WARPGROUP,
)
_BLACKWELL = _units(
    128,
    (_HALVES, 4096, (128, 16, 16)),
    (_FP8, 8192, (128, 32, 16)),
    (_BYTES, 8192, (128, 32, 16)),
    ((DType.float32,), 2048, (128, 8, 16)),
    left=OnChip.shared,
    right=OnChip.shared,
    result=OnChip.tensor,
)
_CDNA3 = _units(
    64,
    (_HALVES, 1024, (32, 8, 32)),
    (_BYTES, 2048, (32, 16, 32)),
    ((DType.float32,), 128, (32, 2, 32)),  # fp32 itself
    ((DType.float64,), 128, (16, 4, 16)),
)
_AMX = _units(
    1,
    ((DType.bfloat16,), 512, (16, 32, 16)),  # [26, 28]
    (_BYTES, 1024, (16, 64, 16)),
    left=OnChip.tensor,
    right=OnChip.tensor,
    result=OnChip.tensor,
)


def _vector(fp32: int, fp16: int, fp64: int) -> dict[DType, int]:
    """Make the rates outside of matrix units of multiplications with additions a cycle [9, 35], two operations each."""
    return {DType.float32: 2 * fp32, DType.float16: 2 * fp16, DType.bfloat16: 2 * fp16, DType.float64: 2 * fp64}


def _hopper(
    name: str, multiprocessors: int, hertz: float, cache: tuple[float, float], memory: tuple[float, float], link: float
) -> Chip:
    return Chip(
        name, multiprocessors, hertz,
        _levels(multiprocessors, hertz, shared=228, cache=cache, memory=memory, link=link),
        _HOPPER, _vector(128, 256, 64), special=16, threads=2048, thread_block=1024, warp=32,
        thread_block_bytes=227 * _KIB, thread_registers=255, transfer_bytes=128, producers=True,
    )  # fmt: skip


_A100 = Chip(
    "A100 SXM", 108, 1.41e9,  # [1]
    _levels(108, 1.41e9, shared=164, cache=(40 * _KIB**2, 3.2e12), memory=(80e9, 2.039e12), link=300e9),  # [1, 9, 13, 2]
    _AMPERE, _vector(64, 256, 32), special=16, threads=2048, thread_block=1024, warp=32,  # [35, 10]
    thread_block_bytes=163 * _KIB, thread_registers=255, transfer_bytes=128,  # [9, 38]
)  # fmt: skip
_H100 = _hopper("H100 SXM", 132, 1.83e9, (50 * _KIB**2, 9.2e12), (80e9, 3.35e12), 450e9)  # [3, 35, 13, 4]
_H100_PCIE = _hopper("H100 PCIe", 114, 1.62e9, (50 * _KIB**2, 6.92e12), (80e9, 2.04e12), 300e9)  # [3, 12, 4]
_H200 = _hopper("H200 SXM", 132, 1.83e9, (60 * _KIB**2, 9.2e12), (141e9, 4.8e12), 450e9)  # [36, 13, 37]
_B200 = Chip(
    "B200", 148, 1.856e9,  # [17]
    _levels(148, 1.856e9, shared=228, cache=(126 * _KIB**2, 20.5e12), memory=(180e9, 8e12), link=900e9),  # [9, 7, 13, 37]
    _BLACKWELL, _vector(128, 128, 64), special=16, threads=2048, thread_block=1024, warp=32,
    thread_block_bytes=227 * _KIB, thread_registers=255, transfer_bytes=128, producers=True,
)  # fmt: skip
_RTX_4090 = Chip(
    "RTX 4090", 128, 2.52e9,  # [8]
    _levels(128, 2.52e9, shared=100, cache=(72 * _KIB**2, 4.3e12), memory=(24e9, 1.008e12), link=32e9),  # [9, 8, 11]
    _ADA, _vector(128, 128, 2), special=16, threads=1536, thread_block=1024, warp=32,
    thread_block_bytes=99 * _KIB, thread_registers=255, transfer_bytes=128,
)  # fmt: skip
_MI300X = Chip(
    "MI300X", 304, 2.1e9,  # [19]
    (
        ChipLevel("registers", 512 * _KIB, 304, 0),  # [19, 20]
        ChipLevel("shared memory", 64 * _KIB, 304, 128 * 304 * 2.1e9),  # [22]
        ChipLevel("L2", 4 * _KIB**2, 8, 34.4e12),  # [19, 21]
        ChipLevel("L3", 256 * _KIB**2, 1, 11.9e12),  # [19]; measured: [15]
        ChipLevel("device memory", 192e9, 1, 5.3e12),  # [19, 18]
        ChipLevel("other devices", float("inf"), 1, 448e9),  # [23]
    ),
    _CDNA3, _vector(128, 128, 64), special=16, threads=2048, thread_block=1024, warp=64,
    thread_block_bytes=64 * _KIB, thread_registers=512, transfer_bytes=128,
)  # fmt: skip
_XEON = Chip(
    "Xeon Platinum 8480+", 56, 2.0e9,  # [24]
    (
        ChipLevel("registers", 2 * _KIB, 56, 0),  # [28]
        ChipLevel("L1", 48 * _KIB, 56, 128 * 56 * 2.0e9),  # [25, 16]
        ChipLevel("L2", 2 * _KIB**2, 56, 48 * 56 * 2.0e9),  # [16]; sustained: [25]
        ChipLevel("L3", 105 * _KIB**2, 1, 10 * 56 * 2.0e9),  # [24]; bytes a cycle: none found, as weft.cost.machine takes it
        ChipLevel("memory", float("inf"), 1, 307.2e9),  # [24]
    ),
    _AMX, {DType.float32: 64, DType.bfloat16: 64, DType.float64: 32}, special=0,  # [24]
)  # fmt: skip

CHIPS: Mapping[str, Chip] = MappingProxyType(
    {c.name: c for c in (_A100, _H100, _H100_PCIE, _H200, _B200, _RTX_4090, _MI300X, _XEON)}
)
"""All of them, by name."""


def chip(name: str) -> Chip:
    """Return the chip of that name.

    Raises:
        TargetError: weft does not know it.
    """
    if name not in CHIPS:
        raise TargetError(f"weft knows no chip {name!r}", todo=f"take one of {', '.join(sorted(CHIPS))}")
    return CHIPS[name]
