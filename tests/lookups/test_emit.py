"""Loads by indices in kernels: every schedule, element types, layouts; what is no index; what has no elements."""

from __future__ import annotations

import ctypes
import random
import struct
from pathlib import Path

import pytest
import torch

from testkit.block.lookups import ALL, elements, table
from testkit.emit.comparing import compare, scheduled
from testkit.emit.harness import compiled, units
from testkit.schedules import fused
from weft.emit.calls import size_names
from weft.emit.cpp import INCLUDE_DIR
from weft.run.compiler import compile_shared_library
from weft.tensor.dtypes import DType


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_any_schedule_gives_what_the_interpreter_gives(name: str, dtype: DType, target: str, tmp_path: Path) -> None:
    """Integers among the inputs are no indices, too: they stand for the nearest."""
    rng = random.Random(f"{name} {dtype}")
    program = ALL[name](dtype)
    applied = [scheduled(fused(program), rng) for _ in range(12)]
    names = [s.name for s in program.spaces()]
    compare(applied, names, tmp_path, rng, dtype, quickly=True, target=target)


def noted(folder: Path, indices: list[int], rows: int) -> int:
    """Runs the kernel of `table` on a table of so many rows; what it notes of the indices."""
    (unit,) = units(scheduled(fused(table()), random.Random(3)), "f")
    path = folder / "kernel.so"
    path.write_bytes(compile_shared_library(unit.text(), (INCLUDE_DIR,)))
    tensors = {"w": torch.randn(rows, 5), "i": torch.tensor(indices), "x": torch.randn(len(indices), 5)}
    read, out = [tensors[n] for n in unit.kernel.reads], torch.empty(len(indices), 5)
    wrong, sizes = ctypes.c_int64(), {"V": rows, "D": 5, "M": len(indices)}
    words = [t.data_ptr() for t in (*read, out)] + [sizes[s] for s in size_names(unit.program, unit.kernel)]
    words += [*(s for t in read for s in t.stride()), 1, ctypes.addressof(wrong)]
    function = ctypes.CDLL(str(path))[unit.name]
    function.restype, function.argtypes = None, [ctypes.c_char_p]
    function(struct.pack(f"{len(words)}q", *words))
    return wrong.value


def test_a_kernel_notes_what_is_no_index(tmp_path: Path) -> None:
    assert noted(tmp_path, [0, 6, 3], 7) == 0
    for wrong in (7, -1, 2**40, -(2**62)):
        (tmp_path / str(wrong)).mkdir()
        assert noted(tmp_path / str(wrong), [0, wrong, 3], 7) == 1, wrong


def test_nothing_is_read_of_what_has_no_elements(tmp_path: Path) -> None:
    assert noted(tmp_path, [0, 0], 0) == 1


def test_an_index_is_checked_once_for_all_that_lies_there(tmp_path: Path) -> None:
    """Not for each element of a row."""
    (unit,) = units(scheduled(fused(table()), random.Random(3)), "f")
    lines = unit.text().splitlines()
    (place,) = [i for i, line in enumerate(lines) if "weft::place(" in line]
    (loop,) = [i for i, line in enumerate(lines) if line.strip().startswith("weft::in_") or "w_1[" in line][:1]
    assert place < loop


def test_several_kernels_in_one_library(tmp_path: Path) -> None:
    rng = random.Random(5)
    made = compiled([scheduled(fused(elements()), rng) for _ in range(3)], tmp_path, quickly=True)
    given = {"w": torch.randn(4, 6), "i": torch.randint(-6, 6, (4, 3))}
    for kernel in made:
        (found,) = kernel(given, {"M": 4, "V": 6, "N": 3})
        torch.testing.assert_close(found, given["w"].gather(1, given["i"] % 6), rtol=0, atol=0)
