"""A kernel that stores at the wrong row is refused before it serves; on a GPU pairs are compared."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest
import torch

import weft
from testkit.emit.planted import printed
from testkit.processes.running import ran


def put(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), y) + 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"= weft::row_of\(", "= 1 + weft::row_of("),
        (r"if \(\(uint64_t\)(\w+) < \(uint64_t\)(\w+)\)", r"if ((uint64_t)\1 + 1 < (uint64_t)\2)"),
    ],
    ids=["next row", "last row left out"],
)
def test_a_wrong_row_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    args = torch.randn(300, 4), torch.randperm(300), torch.randn(300, 4)

    planted = list[bool]()

    def plant(text: str) -> str:
        changed = re.sub(right, wrong, text)
        planted.append(changed != text)
        return changed

    with printed(plant), weft.options(cache_dir=tmp_path, judge="always", defects="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = weft.optimize(put, args)
    assert any(planted)
    assert any("is wrong on hard inputs" in fallback.reason for fallback in program.fallbacks)
    torch.testing.assert_close(program(*args), put(*args))


_PROGRAM = """
import torch, weft

def put(x, index, y):
    return x.index_put((index,), y) + 1

args = torch.randn(40, 6), torch.randperm(40), torch.randn(40, 6)
program = weft.optimize(put, args, target="cuda:90", judge="always")
assert not program.fallbacks, program.fallbacks
assert [k.judged for k in program.kernels] == ["right on hard inputs"], program.kernels
torch.testing.assert_close(program(*args), put(*args))
index = torch.randint(-40, 40, (40,))
wanted = args[0].clone()
for place, row in zip(index.tolist(), args[2]):
    wanted[place] = row
torch.testing.assert_close(program(args[0], index, args[2]), wanted + 1)
"""


def test_pairs_are_compared_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")
    ran(["-W", "ignore", "-c", _PROGRAM], os.environ | {"TRITON_INTERPRET": "1"})
