"""The rows that are measured on a GPU: sizes that give the measured floors; functions that are right where they are small."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch.nn import functional

import weft
from testkit.plan.gpu_rows import small
from testkit.walk import share
from weft.lab.gpu import peers as gpu_peers
from weft.lab.gpu.row import tensors
from weft.lab.workloads.gpu import ROWS, mixture, repeated_attention, scaled_linear, scaled_linear_in_parts
from weft.verify.judge import reference

BY_NAME = {row.name: row for row in ROWS}

# Microseconds, from one run: bytes at 4.274 TB/s, or products at 672 (bf16) and 1240 (fp8) TFLOP/s, whichever is more.
FLOORS = {
    "H1": 25.6, "H3": 51.1, "H4": 11.8, "H6": 19.6, "H7": 251, "H9": 1005, "L1": 13.6, "L3": 54.3, "L6": 27.2, "L9": 1.7,
    "R1": 0.8, "R3": 4.2, "R5": 8.1, "R8": 4.2, "Q1": 25.9, "Q3": 194, "Q5": 96.9, "Q8": 10.4,
    "V1": 0.0, "V3": 1.0, "V6": 15.7, "V8": 31.4, "I1": 0.0, "I3": 3.9, "I6": 62.8, "I8": 126,
    "LN-mm-small": 8.1, "LN-mm-large": 409,
    "RMS-SwiGLU-decode": 82.5, "RMS-SwiGLU-narrow": 52.7, "RMS-SwiGLU-large": 1649,
    "FA-full-4096": 818, "FA-causal-4096": 409, "FA-full-16384": 3273, "FA-causal-16384": 1637,
    "MHA-inc-b1": 15.7, "GQA-inc-b1": 1.0, "MQA-inc-b1": 0.2, "MHA-inc-b8": 126, "GQA-inc-b8": 7.9, "MQA-inc-b8": 2.0,
    "MHA-spec-b1": 15.8, "GQA-spec-b1": 1.6, "MQA-spec-b1": 3.5, "MHA-spec-b8": 127, "GQA-spec-b8": 12.5, "MQA-spec-b8": 27.7,
    "MHA-prefill-b1": 49.9, "GQA-prefill-b1": 24.9, "MQA-prefill-b1": 55.3,
    "MHA-prefill-b8": 399, "GQA-prefill-b8": 200, "MQA-prefill-b8": 443,
    "LoRA-b1": 8.0, "MLP-b1": 0.1, "GatedMLP-b1": 15.7, "RMSLinear-b1": 7.9,
    "LoRA-b8": 8.4, "MLP-b8": 0.6, "GatedMLP-b8": 15.7, "RMSLinear-b8": 7.9,
}  # fmt: skip


def on_meta(row, sizes):
    """Operands and results without memory."""
    inputs = [torch.empty(o.shape, dtype=o.kept or row.dtype, device="meta") for o in row.example.operands(sizes)]
    return inputs, tensors(row.fn(*inputs))


def test_rows_with_a_goal_are_those_that_were_measured_with_peers():
    assert {row.name for row in ROWS if row.group} == set(FLOORS)
    assert len(BY_NAME) == len(ROWS)


@pytest.mark.parametrize("name", FLOORS)
def test_full_sizes_give_the_floor_that_was_measured(name):
    row = BY_NAME[name]
    inputs, out = on_meta(row, row.example.full)
    products = row.flops(row.example.full) / {"bfloat16": 672e12, "float8_e4m3fn": 1240e12}[row.matrix]
    floor = max(sum(t.nbytes for t in (*inputs, *out)) / 4.274e12, products) * 1e6
    assert floor == pytest.approx(FLOORS[name], rel=0.03, abs=0.05)  # another run's products were 2.4 % faster


@pytest.mark.parametrize("row", share(ROWS, 3), ids=lambda row: row.name)
def test_small_operands_give_results_as_the_full_ones_and_new_ones_for_each_number(row):
    fn, inputs = small(row)
    for one, other in zip(inputs, small(row, number=1)[1], strict=True):
        assert not torch.equal(one, other)
        assert one.double().isfinite().all()
    out = tensors(fn(*inputs))
    full = on_meta(row, row.example.full)[1]
    assert [(t.dtype, t.ndim) for t in out] == [(t.dtype, t.ndim) for t in full]
    assert [t.shape for t in out] == [t.shape for t in on_meta(row, row.example.quick)[1]]
    assert all(t.isfinite().all() for t in out)


@pytest.mark.parametrize("row", [r for r in share(ROWS, 2) if r.judged], ids=lambda row: row.name)
def test_the_part_that_is_judged_depends_on_the_part_of_the_operands(row):
    one = replace(row, judged=(1,) * len(row.judged))
    fn, inputs = small(one)
    wide = [t.double() for t in inputs] if row.exact is None else inputs
    part = one.part(tuple(wide))
    assert sum(t.numel() for t in part) < sum(t.numel() for t in wide) or 1 in inputs[0].shape[: len(row.judged)]
    torch.testing.assert_close(one.cut(fn(*wide)), fn(*part))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("row", share(ROWS, 25, start=15), ids=lambda row: row.name)
def test_weft_computes_rows_at_small_sizes_on_a_cpu(row):
    fn, inputs = small(row)
    gaps = None if row.example.gaps is None else row.example.gaps(*inputs)
    out = weft.compile(fn)(*inputs)
    assert weft.judge(out, fn(*inputs), reference(row.exact or fn, inputs), gaps=gaps).ok


def test_heads_that_are_repeated_are_grouped_heads():
    q, k, v = (torch.randn(2, heads, 5, 8, dtype=torch.float64) for heads in (6, 2, 2))
    grouped = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(repeated_attention(q, k, v), grouped)


def test_rows_take_the_two_experts_with_the_largest_shares():
    x, gate, *experts = (t.double() for t in BY_NAME["MoE-b8"].inputs((4, 32, 4, 48), 0))
    shares = torch.softmax(x @ gate, -1)
    for row, found in enumerate(mixture(x, gate, *experts)):
        best, places = shares[row].topk(2)
        each = [(functional.silu(x[row] @ w) * (x[row] @ v)) @ u for w, v, u in zip(*experts, strict=True)]
        wanted = sum(best[n] * each[place] for n, place in enumerate(places.tolist())) / best.sum()
        torch.testing.assert_close(found, wanted)


def test_the_product_of_8_bits_is_what_it_is_judged_by():
    x, w, columns = BY_NAME["Q1"].inputs((32, 64, 48), 0)
    exact = cast("torch.Tensor", reference(scaled_linear_in_parts, (x, w, columns)))
    error = (scaled_linear(x, w, columns).double() - exact).abs().max() / exact.abs().max()
    assert error < 2 * torch.finfo(torch.bfloat16).eps
    rounded = (x.double() @ w.double().T * columns.double() - exact).abs().max() / exact.abs().max()
    assert rounded > 2 * error  # rounding to 8 bits is in the function


@pytest.mark.parametrize("name", ["H1", "GQA-spec-b1", "FA-causal-4096"])
def test_peers_compute_what_the_row_computes(name):
    row = BY_NAME[name]
    fn, inputs = small(row)
    flash = gpu_peers.candidate(row, "sdpa_flash")(*inputs)
    torch.testing.assert_close(flash, fn(*inputs), atol=2e-2, rtol=2e-2)


def test_peers_are_eager_and_the_best_or_all_or_eager_alone():
    row = BY_NAME["GQA-inc-b1"]
    assert gpu_peers.names(row, "best") == ("weft", "eager", "sdpa_cudnn")
    assert gpu_peers.names(row, "all") == ("weft", "eager", "inductor", "sdpa_cudnn", "sdpa_flash", "flex")
    assert gpu_peers.names(row, "eager") == ("weft", "eager")
    assert gpu_peers.names(BY_NAME["LoRA-b1"], "best") == ("weft", "eager")
    assert gpu_peers.names(BY_NAME["Q3"], "best") == ("weft", "eager", "inductor")
    for each in ROWS:
        assert {*each.best} <= {"eager", "inductor", *each.peers}
