"""C++ computes what the interpreter computes, under random schedules, sizes and layouts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from block import handmade, programs
from emit import special
from emit.harness import compiled, torch_type
from schedules import fused, random_schedule
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.program import BlockProgram, maps, spaces
from weft.errors import ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
PROGRAMS = {**programs.ALL, **special.ALL}


def scheduled(block: BlockProgram, rng: random.Random) -> BlockProgram:
    """`block` under the first random schedule that fits."""
    for _ in range(50):
        try:
            return apply(block, random_schedule(block, rng))
        except ScheduleError:
            continue
    pytest.fail("no random schedule fits")


def laid_out(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """`tensor` as it is, with its dimensions in another order in memory, or every other element of memory."""
    order = list(range(tensor.ndim))
    rng.shuffle(order)
    back = [order.index(d) for d in range(tensor.ndim)]
    tensor = rng.choice([tensor, tensor.permute(order).contiguous().permute(back)])
    if tensor.ndim and rng.random() < 0.2:
        wide = torch.full((*tensor.shape, 2), 99, dtype=tensor.dtype)
        wide[..., 0] = tensor
        tensor = wide[..., 0]
    return tensor


def inputs_for(program: BlockProgram, sizes: Mapping[str, int], rng: random.Random) -> dict[str, torch.Tensor]:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    found: dict[str, torch.Tensor] = {}
    for name, kind in program.inputs:
        shape = [a.space.size(sizes) for a in kind.lists]
        values = numbers.standard_normal(shape) if kind.dtype.is_float else numbers.integers(-9, 9, shape)
        found[name] = laid_out(torch.from_numpy(np.asarray(values)).to(torch_type(kind.dtype)), rng)
    return found


def compare(
    applied: Sequence[BlockProgram],
    names: Sequence[str],
    folder: Path,
    rng: random.Random,
    dtype: DType,
    *,
    quickly: bool,
) -> None:
    """Each program, at sizes of its own, gives what the interpreter gives, within rounding of `dtype`."""
    domain = Fp64Domain()
    for number, kernel in enumerate(compiled(applied, folder, quickly=quickly)):
        sizes = {n: rng.choice(SIZES) for n in names}
        inputs = inputs_for(kernel.program, sizes, rng)
        exact = {n: t.double().numpy() if t.is_floating_point() else t.long().numpy() for n, t in inputs.items()}
        wanted, _ = interpret(kernel.program, exact, sizes, domain)
        found = kernel(inputs, sizes, threads=rng.choice((1, 2, 3)))
        for place, (a, b) in enumerate(zip(wanted, found, strict=True)):
            message = f"program {number}, output {place}, {sizes}"
            if b.is_floating_point():
                # Inputs are of size 1: in float32 the sum of all of them has the rounding of numbers of size sqrt(count), whatever
                # is left of them.
                least = max(1.0, math.sqrt(math.prod(sizes.values())) / 4) if dtype is DType.float32 else 0.0
                scale = 8 * dtype.eps * max(least, float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0)))
                np.testing.assert_allclose(b.double().numpy(), a, rtol=0, atol=scale, err_msg=message)
            else:
                np.testing.assert_array_equal(b.numpy(), a, err_msg=message)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_schedule_computes_the_same(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    tensors = PROGRAMS[name]()
    blocks = [scheduled(fused(tensors), rng) for _ in range(20)]
    names = [s.name for s in tensors.spaces()]
    compare(blocks, names, tmp_path, rng, DType.float32, quickly=name != "linear_relu")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.bfloat16, DType.float16], ids=str)
@pytest.mark.parametrize("name", [*programs.ALL, "softmax", "vectors"])
def test_short_floats(name: str, dtype: DType, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {dtype}")
    tensors = PROGRAMS[name](dtype)
    blocks = [scheduled(fused(tensors), rng) for _ in range(8)]
    names = [s.name for s in tensors.spaces()]
    compare(blocks, names, tmp_path, rng, dtype, quickly=True)


@pytest.mark.parametrize("make", [special.normalised, special.turning])
def test_by_hand(make: Callable[[], BlockProgram], tmp_path: Path) -> None:
    rng = random.Random(make.__name__)
    block = make()
    names = [s.name for s in spaces(block)]
    whole = Schedule(tuple((m.name, LoopSchedule((Level(LevelPlace.whole),))) for m in maps(block.graph)))
    places = apply(block, whole), *(scheduled(block, rng) for _ in range(8))
    # Where an operator's result depends on the blocks, the interpreter says what they give.
    compare(places, names, tmp_path, rng, DType.float32, quickly=True)


def test_states_of_several_components(tmp_path: Path) -> None:
    rng = random.Random(0)
    online = handmade.rows(handmade.SOFTMAX, handmade.softmax_state(), "end")
    compare([scheduled(online, rng) for _ in range(20)], ["M", "K"], tmp_path, rng, DType.float32, quickly=True)


@pytest.mark.parametrize("late", [False, True])
def test_an_old_state_that_is_read_beside_the_product(late: bool, tmp_path: Path) -> None:
    applied = [special.looking_back(rows, block, late=late) for rows in (3, 16) for block in (2, 8)]
    for each in applied:
        check(each)
    compare(applied, ["M", "N", "K"], tmp_path, random.Random(0), DType.float32, quickly=True)


def test_an_old_state_that_a_later_nest_reads(tmp_path: Path) -> None:
    applied = [special.entangled(block) for block in (1, 4, 64)]
    for each in applied:
        check(each)
    compare(applied, ["M", "K"], tmp_path, random.Random(0), DType.float32, quickly=True)


def test_a_chain_of_products(tmp_path: Path) -> None:
    rng = random.Random(0)
    block = handmade.swiglu()
    compare(
        [scheduled(block, rng) for _ in range(10)], ["M", "N", "K", "D"], tmp_path, rng, DType.float32, quickly=True
    )


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16], ids=str)
def test_a_state_that_is_scaled_before_a_product_is_added(dtype: DType, tmp_path: Path) -> None:
    applied = [special.attention(rows, block, dtype) for rows in (1, 4, 16) for block in (1, 3, 8)]
    for each in applied:
        check(each)
    compare(applied, ["M", "N", "K", "D"], tmp_path, random.Random(0), dtype, quickly=True)
