"""Matmuls with matrices that integers name: read where they lie, in the matmul's own loop, on both targets."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from weft.tensor.dtypes import DType

S, K, N, G = 5, 24, 17, 3
X, W, WHICH = torch.randn(S, K), torch.randn(G, K, N), torch.tensor([2, 0, 2, -1, 1])


def transposed(x, w, i):
    return torch.bmm(w.transpose(1, 2)[i], x.unsqueeze(-1)).squeeze(-1)


def experts(x, w, i):
    up = torch.bmm(x.unsqueeze(1), w[i]).squeeze(1)
    return torch.relu(up) * up.sum(-1, keepdim=True)


def rows(x, w, i):
    return x.expand(4, S, K).transpose(0, 1) @ w.index_select(0, i.abs())


def attention(x, w, i):
    return torch.softmax(x[:, None] @ w[i], -1) @ w[i].transpose(1, 2)


def grouped(x, w, ends):
    return torch.ops.transformers.grouped_mm_fallback(x, w, ends) + 1


@pytest.fixture(autouse=True, scope="module")
def _experts_of_transformers():
    pytest.importorskip("transformers.integrations.moe")


def check(function: Any, *args: torch.Tensor, **options: Any) -> weft.Program:
    program = weft.optimize(function, args, judge="always", **options)
    assert not program.fallbacks
    assert {k.judged for k in program.kernels} == {"right on hard inputs"}
    exact = function(*(a.double() if a.is_floating_point() else a for a in args))
    assert weft.judge(program(*args), function(*args), exact).ok
    return program


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("function", [transposed, experts, rows], ids=lambda f: f.__name__)
def test_no_matrix_is_gathered(function, dtype):
    program = check(function, X.to(dtype), W.to(dtype), WHICH)
    assert len(program.kernels) == 1
    assert "list between loops: D*N" not in str(program.explain())


def test_keys_and_values_that_are_looked_up_are_read_by_attention():
    check(attention, X, W, WHICH)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ends", [(2, 2, 5), (0, 0, 0), (0, 3, 4), (5, 5, 5), (1, 2, 3)], ids=str)
def test_groups_of_rows_are_one_kernel(ends, dtype):
    """Rows after the last group are 0, a group may have none."""
    ends = torch.tensor(ends, dtype=torch.int32)
    assert len(check(grouped, X.to(dtype), W.to(dtype), ends).kernels) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        (1, (0, 1, 1)),
        (1, (0, 0, 0)),
        (131, (131, 131, 131)),
        (131, (7, 8, 130)),
        (131, (0, 0, 131)),
        (40, (16, 32, 40)),
    ],
    ids=str,
)
def test_groups_of_many_rows_and_of_one_are_one_kernel(rows, ends, dtype):
    x, ends = torch.randn(rows, K).to(dtype), torch.tensor(ends, dtype=torch.int32)
    assert len(check(grouped, x, W.to(dtype), ends).kernels) == 1


def test_pytorchs_call_is_the_same():
    """PyTorch leaves rows after the last group undefined; a kernel makes them 0."""

    def function(x, w, ends):
        return torch.nn.functional.grouped_mm(x, w.transpose(1, 2), offs=ends)

    x, ends = torch.randn(40, 32).bfloat16(), torch.tensor([7, 7, 33], dtype=torch.int32)
    w = torch.randn(G, 48, 32).bfloat16()
    program = weft.optimize(function, (x, w, ends))
    assert not program.fallbacks
    found = program(x, w, ends)
    torch.testing.assert_close(found[:33], function(x, w, ends)[:33])
    assert not found[33:].any()


def test_gates_products_and_weights_of_experts_are_two_kernels():
    """Puts what follows a product of groups into its kernel; the mask of groups is made in each: no list of it lies in memory."""

    def function(x, gate_up, down, ends, weights):
        product = torch.ops.transformers.grouped_mm_fallback
        gate, up = product(x, gate_up.transpose(1, 2), ends).chunk(2, -1)
        inner = torch.nn.functional.silu(gate) * up
        return product(inner, down.transpose(1, 2), ends) * weights[:, None]

    args = torch.randn(40, K), torch.randn(G, 2 * N, K), torch.randn(G, K, N), torch.tensor([7, 7, 33]), torch.rand(40)
    program = check(function, *args)
    assert len(program.kernels) == 2
    assert all(kind.dtype is not DType.bool for k in program.kernels for _, kind in k.block_program.inputs)


def test_what_is_no_number_in_a_matrix_reaches_the_rows_of_its_group_alone():
    w = W.clone()
    w[1] = math.nan
    ends = torch.tensor([9, 20, 40])
    x = torch.randn(40, K)
    found = weft.optimize(grouped, (x, W, ends))(x, w, ends)
    assert torch.equal(found.isnan(), grouped(x, w, ends).isnan())
    assert found.isnan().any(1).sum() == 11


def test_a_program_for_any_number_of_rows_serves_others():
    compiled = torch.compile(grouped, backend="weft", dynamic=True)
    for rows in (40, 5, 300):
        x, ends = torch.randn(rows, K), torch.tensor([rows // 3, rows // 2, rows])
        torch.testing.assert_close(compiled(x, W, ends), grouped(x, W, ends))


def test_a_gpu_multiplies_groups_of_rows_too():
    args = torch.randn(40, K, dtype=torch.bfloat16), W.bfloat16(), torch.tensor([7, 20, 40])
    program = weft.optimize(grouped, args, target="cuda:90")
    assert not program.fallbacks
    assert all(kernel.assembly is not None for kernel in program.kernels)


def test_a_matrix_that_is_none_raises_eagers_error():
    program = weft.optimize(experts, (X, W, WHICH))
    with pytest.raises(IndexError, match="out of bounds"):
        program(X, W, WHICH + 2)


def test_a_gpu_reads_them_where_they_lie_too():
    program = weft.optimize(experts, (X, W, WHICH), target="cuda:90")
    assert not program.fallbacks
    assert all(kernel.assembly is not None for kernel in program.kernels)
