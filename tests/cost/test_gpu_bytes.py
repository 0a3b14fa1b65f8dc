"""Bytes of a GPU's memory, on launches whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from testkit.block.programs import MUL, axes, linear_relu, relu, tensor
from testkit.schedules import fused
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import device_bytes, estimate_gpu, launches_of
from weft.emit.triton import GRANULARITY
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.target import Target
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg

MIB = 1 << 20
GRID, LOOP = LevelPlace.grid, LevelPlace.loop


def placed(program: TensorProgram, places: Mapping[str, Level]) -> BlockProgram:
    """The fused program, each loop at the level that `places` has for the first letter of its name."""
    block = fused(program)
    levels = ((loop.name, LoopSchedule((places[loop.name[0]],))) for loop in maps(block.graph))
    return apply(block, Schedule(tuple(levels)), GRANULARITY)


def linear(m: int = 128, n: int = 128) -> BlockProgram:
    return placed(linear_relu(DType.bfloat16), {"m": Level(GRID, m), "n": Level(GRID, n), "k": Level(LOOP, 64)})


def read_of(applied: BlockProgram, sizes: Mapping[str, int], cache: float, running: int) -> Mapping[str, int]:
    (launch,) = launches_of(applied, sizes)
    return device_bytes(launch.work, launch.counted, cache, running).reads


def test_a_copy_reads_and_writes_each_element_once() -> None:
    m, n = axes("m", "n")
    program = TensorProgram(
        (tensor("x", m, n),), (Elementwise("out", (m, n), DType.float32, relu(Arg(0)), (Use("x", (m, n)),)),), ("out",)
    )
    applied = placed(program, {"m": Level(GRID, 1), "n": Level(LOOP, 1024)})
    sizes = {"M": 16384, "N": 16384}
    (cost,) = estimate_gpu(applied, sizes, Target("cuda", "90"), Schedule((), warps=4))
    assert (cost.device_read, cost.device_written) == (1024 * MIB, 1024 * MIB)


def test_operands_of_a_matmul_that_fit_in_the_cache_are_read_once() -> None:
    sizes = {"M": 2048, "K": 2048, "N": 2048}
    found = read_of(linear(), sizes, 50e6, 128)
    assert (found["x"], found["w"]) == (8 * MIB, 8 * MIB)


def test_a_matrix_that_does_not_fit_is_read_again_for_each_block_of_rows() -> None:
    sizes = {"M": 4096, "K": 16384, "N": 16384}  # 32 blocks of rows by 128 of columns, which are numbered in a row
    found = read_of(linear(), sizes, 50e6, 128)
    assert (found["x"], found["w"]) == (128 * MIB, 32 * 512 * MIB)


def test_thread_blocks_that_run_at_once_share_what_they_read() -> None:
    sizes = {"M": 4096, "K": 16384, "N": 16384}
    found = read_of(linear(), sizes, 50e6, 4 * 128)
    assert (found["x"], found["w"]) == (128 * MIB, 32 // 4 * 512 * MIB)
    assert read_of(linear(), sizes, 1e9, 128)["w"] == 512 * MIB


def test_a_row_is_read_again_where_those_of_all_that_run_do_not_fit() -> None:
    m, n = axes("m", "n")
    program = TensorProgram(
        (tensor("x", m, n),),
        (
            Reduction("sum", (m,), DType.float32, Monoid.sum, Use("x", (m, n)), (n,)),
            Elementwise("out", (m, n), DType.float32, MUL, (Use("x", (m, n)), Use("sum", (m,)))),
        ),
        ("out",),
    )
    applied = placed(program, {"m": Level(GRID, 1), "n": Level(LOOP, 1024)})
    sizes = {"M": 1024, "N": 65536}  # rows of 256 KiB, which are written, too
    assert read_of(applied, sizes, 50e6, 64)["x"] == 256 * MIB
    assert read_of(applied, sizes, 50e6, 132)["x"] == 2 * 256 * MIB


@pytest.mark.parametrize(("keys", "cache", "times"), [(1024, 50e6, 1), (1 << 20, 50e6, 16)])
def test_what_no_inner_loop_moves_is_read_again_in_each_iteration_around(keys: int, cache: float, times: int) -> None:
    """One thread block multiplies all its rows by all columns, block by block: each time it goes over the depth."""
    applied = placed(linear_relu(DType.bfloat16), {"m": Level(GRID, 128), "n": Level(LOOP, 128), "k": Level(LOOP, 64)})
    sizes = {"M": 128, "K": keys, "N": 2048}
    found = read_of(applied, sizes, cache, 1)
    assert (found["x"], found["w"]) == (times * 128 * keys * 2, keys * 2048 * 2)
