"""Rankings in C++: every schedule, k on both sides of a vector's lanes, lengths around a chunk, and values that hurt."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from testkit.block.rankings import FIRST, ORDERS, ranking, rows
from testkit.emit.comparing import laid_out, scheduled
from testkit.emit.harness import compiled, torch_type
from testkit.emit.rankings import of_sums
from testkit.schedules import fused
from weft.block.interpret import interpret
from weft.block.walk import maps
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain

# Below, at and beyond a vector's lanes, four vectors, a chunk of keys.
LENGTHS = (1, 3, 15, 16, 17, 33, 64, 65, 256, 300, 600)


def data(shape: tuple[int, int], rng: random.Random) -> np.ndarray:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    hard = rows(numbers, shape[1])[: shape[0]]
    return np.concatenate((hard, numbers.standard_normal((max(0, shape[0] - len(hard)), shape[1]))))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.bfloat16, DType.int32, DType.int64], ids=str)
def test_any_schedule_gives_what_the_interpreter_gives(dtype: DType, target: str, tmp_path: Path) -> None:
    rng, domain = random.Random(str(dtype)), Fp64Domain()
    counts = (None, 1, 2, 7, 16, 17, 64)
    programs = [scheduled(fused(ranking(count, order, dtype)), rng) for count in counts for order in ORDERS]
    for kernel in compiled(programs, tmp_path, quickly=True, target=target):
        sizes = {"M": rng.choice((1, 5, 9)), "N": rng.choice(LENGTHS)}
        x = data((sizes["M"], sizes["N"]), rng)
        x = (
            x
            if dtype.is_float
            else np.nan_to_num(x, nan=9, posinf=np.iinfo(dtype.name).max // 2, neginf=-9).astype(np.int64)
        )
        given = laid_out(torch.from_numpy(x).to(torch_type(dtype)), rng)
        exact = given.double().numpy() if dtype.is_float else given.numpy().astype(np.int64)
        wanted, _ = interpret(kernel.program, {"x": exact}, sizes, domain)
        values, places = kernel({"x": given}, sizes, threads=rng.choice((1, 2)))
        np.testing.assert_array_equal(values.numpy(), wanted[0], err_msg=str(sizes))
        np.testing.assert_array_equal(places.numpy(), wanted[1], err_msg=str(sizes))


def test_down_the_columns_of_what_is_computed_first(target: str, tmp_path: Path) -> None:
    rng, domain = random.Random(0), Fp64Domain()
    tensors = [of_sums(count, order) for count in (2, 5) for order in ORDERS for _ in range(3)]
    programs = [scheduled(fused(t), rng) for t in tensors]
    for tensor, kernel in zip(tensors, compiled(programs, tmp_path, quickly=True, target=target), strict=True):
        names = [s.name for s in tensor.spaces() if s.fixed is None]
        sizes = tensor.sizes({n: rng.choice((5, 8, 19)) for n in names})
        shape = [a.space.size(sizes) for a in tensor.inputs[0].axes]
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        given = {n: torch.from_numpy(numbers.integers(-2, 3, shape)).float() for n in ("x", "y")}
        wanted, _ = interpret(kernel.program, {n: t.double().numpy() for n, t in given.items()}, sizes, domain)
        for a, b in zip(wanted, kernel(given, sizes), strict=True):
            np.testing.assert_array_equal(b.numpy(), a)


@pytest.mark.parametrize("count", [None, 8])
def test_segments_are_merged(count: int | None, target: str, tmp_path: Path) -> None:
    """1, 2, 7 and 64 segments, more of them than there are blocks too."""
    program, domain = fused(ranking(count)), Fp64Domain()
    names = {m.axis.space.name: m.name for m in maps(program.graph)}
    made = []
    for parts in (1, 2, 7, 64):
        levels = {
            "M": (Level(LevelPlace.grid, 2),),
            "R": (Level(LevelPlace.whole),),
            "N": (Level(LevelPlace.split, parts), Level(LevelPlace.loop, 5)),
        }
        made.append(apply(program, Schedule(tuple((names[s], LoopSchedule(levels[s])) for s in names))))
    x = data((9, 333), random.Random(1))
    sizes = {"M": 9, "N": 333}
    whole = domain.ranked(x, np.broadcast_to(np.arange(333), x.shape), count or 1, FIRST)
    for kernel in compiled(made, tmp_path, quickly=True, target=target):
        for found, wanted in zip(kernel({"x": torch.from_numpy(x).float()}, sizes), whole, strict=True):
            wide = found.numpy() if count else found.numpy()[:, None]
            np.testing.assert_array_equal(wide, wanted.astype(np.float32) if wide.dtype == np.float32 else wanted)
