"""Matmuls with matrices that integers name: read where they lie, in the matmul's own loop, on both targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft

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


def test_many_rows_are_the_librarys():
    program = weft.optimize(grouped, (torch.randn(40, K), W, torch.tensor([7, 20, 40])))
    assert [f.operation for f in program.fallbacks] == ["transformers.grouped_mm_fallback"]
    assert all(f.is_by_design for f in program.fallbacks)


def test_a_matrix_that_is_none_raises_eagers_error():
    program = weft.optimize(experts, (X, W, WHICH))
    with pytest.raises(IndexError, match="out of bounds"):
        program(X, W, WHICH + 2)


def test_a_gpu_reads_them_where_they_lie_too():
    program = weft.optimize(experts, (X, W, WHICH), target="cuda:90")
    assert not program.fallbacks
    assert all(kernel.assembly is not None for kernel in program.kernels)
