"""Masked loads in kernels: every schedule and element type, and loops in runs where comparisons of indices come out alike."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from testkit.block.windows import ALL
from testkit.emit.comparing import compare, scheduled
from testkit.schedules import fused
from weft.tensor.dtypes import DType


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_any_schedule_gives_what_the_interpreter_gives(name: str, dtype: DType, target: str, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {dtype}")
    program = ALL[name](dtype)
    applied = [scheduled(fused(program), rng) for _ in range(8)]
    compare(applied, [s.name for s in program.spaces()], tmp_path, rng, dtype, quickly=True, target=target)
