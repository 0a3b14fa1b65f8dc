"""C++ computes what the interpreter computes, under random schedules, sizes and layouts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from block import programs
from emit.harness import compiled, torch_type
from schedules import fused, random_schedule
from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.errors import ScheduleError
from weft.schedule import apply
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import TensorProgram

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
DTYPES = (DType.float32, DType.bfloat16)


def scheduled(block: BlockProgram, rng: random.Random) -> BlockProgram:
    """`block` under the first random schedule that fits."""
    for _ in range(50):
        try:
            return apply(block, random_schedule(block, rng))
        except ScheduleError:
            continue
    pytest.fail("no random schedule fits")


def laid_out(array: np.ndarray, dtype: DType, rng: random.Random) -> torch.Tensor:
    """`array` as a tensor: contiguous, with its dimensions in another order in memory, or every other element."""
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(torch_type(dtype))
    order = list(range(tensor.ndim))
    rng.shuffle(order)
    back = [order.index(d) for d in range(tensor.ndim)]
    tensor = rng.choice([tensor, tensor.permute(order).contiguous().permute(back)])
    if tensor.ndim and rng.random() < 0.2:
        wide = torch.full((*tensor.shape, 2), float("nan"), dtype=tensor.dtype)
        wide[..., 0] = tensor
        tensor = wide[..., 0]
    return tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", programs.ALL)
def test_any_schedule_computes_the_same(
    name: str, dtype: DType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    make: Callable[[DType], TensorProgram] = programs.ALL[name]
    rng = random.Random(f"{name} {dtype}")
    tensors, block = make(dtype), fused(make(dtype))
    blocks = [scheduled(block, rng) for _ in range(20)]
    domain = Fp64Domain()
    for seed, kernel in enumerate(compiled(blocks, tmp_path_factory.mktemp("emit"))):
        sizes = tensors.sizes({s.name: rng.choice(SIZES) for s in tensors.spaces()})
        numbers = np.random.default_rng(seed)
        inputs = {
            n.name: laid_out(domain.random([a.space.size(sizes) for a in n.axes], n.dtype, numbers), n.dtype, rng)
            for n in tensors.inputs
        }
        exact = {n: t.double().numpy() for n, t in inputs.items()}
        wanted, _ = interpret(kernel.program, exact, sizes, domain)
        found = kernel(inputs, sizes, threads=rng.choice((1, 2, 3)))
        for a, b in zip(wanted, found, strict=True):
            scale = float(np.max(np.abs(a)))
            np.testing.assert_allclose(b.double().numpy(), a, rtol=0, atol=scale * 8 * dtype.eps, err_msg=f"{seed} {sizes}")
