"""One-hot reductions in kernels: every schedule, element types, layouts; no loop over pairs in C++."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from testkit.block.one_hots import ALL, chosen
from testkit.emit.comparing import compare, scheduled
from testkit.emit.harness import compiled, units
from testkit.schedules import fused
from weft.tensor.dtypes import DType
from weft.tensor.merge import Monoid
from weft.tensor.scalar import Arg, Lit, apply


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_any_schedule_gives_what_the_interpreter_gives(name: str, dtype: DType, target: str, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {dtype}")
    program = ALL[name](dtype)
    applied = [scheduled(fused(program), rng) for _ in range(12)]
    compare(applied, [s.name for s in program.spaces()], tmp_path, rng, dtype, quickly=True, target=target)


@pytest.mark.parametrize("name", ALL)
def test_no_loop_goes_over_pairs(name: str) -> None:
    """Looks for the condition that asks for the row of what is combined, in place of a loop over rows."""
    for seed in range(6):
        texts = [unit.text() for unit in units(scheduled(fused(ALL[name]()), random.Random(seed)), "f")]
        assert any("= weft::row_of(" in text for text in texts), texts
        for lines in map(str.splitlines, texts):
            for place, line in enumerate(lines):
                if re.search(r"const bool \w+ = .* == ", line):
                    before = [each for each in lines[:place] if "for (" in each or "if (" in each][-1]
                    assert "if ((uint64_t)" in before, texts


def test_numbers_of_no_row_count_nowhere(tmp_path: Path) -> None:
    """Also those whose distance from a row is no 64-bit integer."""
    program = chosen(Monoid.sum, 0.0, apply("eq", apply("mul", Arg(3), Lit(1)), Arg(1)))
    indices = torch.tensor([3, -1, 2**63 - 1, -(2**63), 7, 0, 8, -(2**62)])
    given = {"i": torch.zeros(8, dtype=torch.int64), "j": indices, "x": torch.arange(1.0, 9.0)}
    wanted = torch.tensor([6.0, 0, 0, 1, 0, 0, 0, 5])
    made = [scheduled(fused(program), random.Random(seed)) for seed in range(4)]
    for kernel in compiled(made, tmp_path, quickly=True):
        (found,) = kernel(given, {"V": 8, "M": 8})
        assert torch.equal(found, wanted)
