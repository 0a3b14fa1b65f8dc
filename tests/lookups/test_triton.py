"""Lookups on a GPU: in Triton's interpreter what is no index is eager's error; what is compiled asserts that there is none."""

from __future__ import annotations

import os

import pytest
import torch

import weft
from testkit.processes.running import ran

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

_PROGRAM = """
import torch, weft

def layer(ids, table, positions):
    x = torch.nn.functional.embedding(ids, table) + positions
    return x - x.sum(-1, keepdim=True)

ids, table, positions = torch.randint(0, 50, (3, 12)), torch.randn(50, 20), torch.randn(12, 20)
program = weft.optimize(layer, (ids, table, positions), target="cuda:90", judge="always")
assert not program.fallbacks, program.fallbacks
assert [k.judged for k in program.kernels] == ["right on hard inputs"], program.kernels
torch.testing.assert_close(program(ids, table, positions), layer(ids, table, positions))
for wrong in (50, -1, 2**40):
    bad = ids.clone()
    bad[1, 5] = wrong
    try:
        program(bad, table, positions)
    except IndexError as error:
        assert "index out of range in self" in str(error), error
    else:
        raise AssertionError(wrong)
torch.testing.assert_close(program(ids, table, positions), layer(ids, table, positions))

def spread(x, index, y):
    return (x * 2).scatter_add(1, index, y).relu()

x, index, y = torch.randn(5, 9), torch.randint(0, 9, (5, 3)), torch.randn(5, 3)
program = weft.optimize(spread, (x, index, y), target="cuda:90", judge="always")
assert not program.fallbacks, program.fallbacks
assert [k.judged for k in program.kernels] == ["right on hard inputs"], program.kernels
torch.testing.assert_close(program(x, index, y), spread(x, index, y))
index[2, 1] = 9
try:
    program(x, index, y)
except RuntimeError as error:
    assert "index 9 is out of bounds" in str(error), error
else:
    raise AssertionError("no error")
"""


def test_what_is_no_index_is_eagers_error_in_the_interpreter() -> None:
    ran(["-W", "ignore", "-c", _PROGRAM], os.environ | {"TRITON_INTERPRET": "1"})


def test_a_compiled_kernel_asserts_that_indices_are_there_and_nothing_else() -> None:
    def rows(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return table[ids] * 2

    table, ids = torch.randn(50, 64), torch.randint(0, 50, (40,))
    (kernel,) = weft.optimize(rows, (table, ids), target="cuda:90").kernels
    assert "an index is out of range" in kernel.source
    assert kernel.assembly is not None
    assert "__assertfail" in kernel.assembly
    assert "overflow" not in kernel.assembly  # with assertions Triton would check its own arithmetic too
    (kernel,) = weft.optimize(
        lambda x, i: x.scatter(1, i, 1.0), (table, ids[:1].expand(50, 1)), target="cuda:90"
    ).kernels
    assert kernel.assembly is not None
    assert "__assertfail" in kernel.assembly
    (plain,) = weft.optimize(lambda table: table * 2, (table,), target="cuda:90").kernels
    assert plain.assembly is not None
    assert "__assertfail" not in plain.assembly
