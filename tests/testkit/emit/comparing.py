"""Compiles a block program under a schedule and holds its results against the evaluator's in fp64."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from testkit.block import programs
from testkit.emit import special
from testkit.emit.harness import compiled, torch_type
from testkit.schedules import random_schedule
from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.errors import ScheduleError
from weft.schedule import apply
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
    target: str = "cpu",
) -> None:
    """Each program, at sizes of its own, gives what the interpreter gives, within rounding of `dtype`."""
    domain = Fp64Domain()
    for number, kernel in enumerate(compiled(applied, folder, quickly=quickly, target=target)):
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
