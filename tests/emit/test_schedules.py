"""Kernels compute what the interpreter computes, under random schedules, sizes and layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.block import handmade, programs
from testkit.emit import special
from testkit.emit.comparing import PROGRAMS, compare, scheduled
from testkit.schedules import fused
from weft.block.check import check
from weft.block.program import BlockProgram
from weft.block.walk import maps, spaces
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_schedule_computes_the_same(name: str, target: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    tensors = PROGRAMS[name]()
    blocks = [scheduled(fused(tensors), rng) for _ in range(20)]
    names = [s.name for s in tensors.spaces()]
    compare(blocks, names, tmp_path, rng, DType.float32, quickly=name != "linear_relu", target=target)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float16], ids=str)
@pytest.mark.parametrize("name", [*programs.ALL, "softmax", "vectors"])
def test_short_floats(name: str, dtype: DType, target: str, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {dtype}")
    tensors = PROGRAMS[name](dtype)
    blocks = [scheduled(fused(tensors), rng) for _ in range(8)]
    names = [s.name for s in tensors.spaces()]
    compare(blocks, names, tmp_path, rng, dtype, quickly=True, target=target)


@pytest.mark.parametrize("make", [special.normalised, special.turning])
def test_by_hand(make: Callable[[], BlockProgram], target: str, tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    block = make()
    names = [s.name for s in spaces(block)]
    whole = Schedule(tuple((m.name, LoopSchedule((Level(LevelPlace.whole),))) for m in maps(block.graph)))
    places = apply(block, whole), *(scheduled(block, rng) for _ in range(8))
    # Where an operator's result depends on the blocks, the interpreter says what they give.
    compare(places, names, tmp_path, rng, DType.float32, quickly=True, target=target)


def test_states_of_several_components(target: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    online = handmade.rows(handmade.SOFTMAX, handmade.softmax_state(), "end")
    compare(
        [scheduled(online, rng) for _ in range(20)],
        ["M", "K"],
        tmp_path,
        rng,
        DType.float32,
        quickly=True,
        target=target,
    )


@pytest.mark.parametrize("late", [False, True])
def test_an_old_state_that_is_read_beside_the_product(late: bool, target: str, tmp_path: Path) -> None:
    applied = [special.looking_back(rows, block, late=late) for rows in (3, 16) for block in (2, 8)]
    for each in applied:
        check(each)
    compare(applied, ["M", "N", "K"], tmp_path, random.Random(0), DType.float32, quickly=True, target=target)


def test_an_old_state_that_a_later_nest_reads(target: str, tmp_path: Path) -> None:
    applied = [special.entangled(block) for block in (1, 4, 64)]
    for each in applied:
        check(each)
    compare(applied, ["M", "K"], tmp_path, random.Random(0), DType.float32, quickly=True, target=target)


def test_a_chain_of_products(target: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    block = handmade.swiglu()
    compare(
        [scheduled(block, rng) for _ in range(10)],
        ["M", "N", "K", "D"],
        tmp_path,
        rng,
        DType.float32,
        quickly=True,
        target=target,
    )


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16], ids=str)
def test_a_state_that_is_scaled_before_a_product_is_added(dtype: DType, target: str, tmp_path: Path) -> None:
    applied = [special.attention(rows, block, dtype) for rows in (1, 4, 16) for block in (1, 3, 8)]
    for each in applied:
        check(each)
    compare(applied, ["M", "N", "K", "D"], tmp_path, random.Random(0), dtype, quickly=True, target=target)
