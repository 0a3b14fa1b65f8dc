"""Small results of a run that only its kernels read lie in one allocation; what goes out, or what PyTorch reads, does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import weft
from weft.capture import FixedLayout
from weft.plan.execute.lifetimes import lifetimes
from weft.plan.execute.scratch import Scratch
from weft.plan.execute.steps import RegionStep
from weft.run import stats

RESULTS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2), st.integers(0, 4)), max_size=30)


@given(RESULTS)
def test_results_that_are_read_at_one_time_lie_apart(results: list[tuple[int, int, int]]) -> None:
    scratch, step, placed = Scratch(), 0, list[tuple[int, int, int, int]]()
    for size, later, kept in results:
        step += later
        start = scratch.place(size, step, step + kept)
        assert start is not None
        assert start % 64 == 0
        assert start + size <= scratch.size
        for first, end, made, last in placed:
            assert end <= start or start + size <= first or not made <= step <= last
        placed.append((start, start + size, step, step + kept))


def test_what_is_read_no_longer_makes_room_and_large_results_have_none() -> None:
    scratch = Scratch()
    for step in range(100):
        assert scratch.place(1000, step, step + 1) is not None
    assert scratch.size <= 2 * 1024
    assert scratch.place(1 << 16, 100, 200) is not None
    assert scratch.place((1 << 16) + 1, 100, 200) is None
    assert scratch.place(0, 100, 200) is None
    many = [scratch.place(1 << 16, 101, 200) for _ in range(40)]
    assert None in many
    assert scratch.size <= 1 << 20


def allocations(call: Callable[[], Any]) -> int:
    """Counts the tensors that a call allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        call()
    return sum(event.count for event in seen.key_averages() if event.key == "aten::empty_strided")


class Block(nn.Module):
    """Kernels that hand rows on to each other, one of which goes out as well, one of which PyTorch sorts, and views of one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))
        order = h.sort(-1).values
        q, k = self.up(h + order).reshape(-1, 2, 32).unbind(1)
        return self.norm(self.down(torch.cat([q, k], -1).relu()) + h), h, q.T


def compiled(fn: Callable[..., Any]) -> Any:
    return torch.compile(fn, backend="weft", options={"measure": "never"})


def test_what_goes_out_or_is_read_by_pytorch_is_a_tensor_of_its_own() -> None:
    torch.manual_seed(0)
    block = Block().eval()
    run = compiled(block)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 32)
            found, again = run(x), run(x + 1)
            for one, wanted in zip(found, block(x), strict=True):
                torch.testing.assert_close(one, wanted)
            memory = [tensor.untyped_storage().data_ptr() for tensor in (*found, *again)]
            assert len(set(memory)) == len(memory), "a later call writes into nothing that a caller holds"
            assert all(t.untyped_storage().nbytes() == t.numel() * 4 for t in found[:2])


def test_a_run_of_many_small_kernels_allocates_for_its_results_alone() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(6))).eval()
    run, before = compiled(layers), stats.snapshot().kernels
    with torch.no_grad():
        x = torch.randn(1, 32)
        torch.testing.assert_close(run(x), layers(x))
        assert stats.snapshot().kernels - before > 2
        run(x)
        assert allocations(lambda: run(x)) == 2, "the memory of what stays inside, and the result"


@pytest.mark.parametrize("change", ["data", "parameter", "load"])
def test_weights_that_lie_otherwise_are_read_as_they_lie(change: str) -> None:
    """Moves weights, whose layout is written into a run: PyTorch's guards see that it has changed."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 5).eval()
    run = compiled(lambda x: torch.softmax(layer(x), -1))
    x = torch.randn(4, 6)
    with torch.no_grad():
        run(x)
        other = torch.randn(6, 5).T
        if change == "data":
            layer.weight.data = other
        elif change == "parameter":
            layer.weight = nn.Parameter(other)
        else:
            layer.load_state_dict({"weight": other, "bias": torch.randn(5)}, assign=True)
        torch.testing.assert_close(run(x), torch.softmax(layer(x), -1))


def test_layouts_of_other_ranks_and_of_what_changes_are_compared() -> None:
    matrix, any_rows = FixedLayout((6, 5), (5, 1)), FixedLayout((None, 5), (5, 1))
    assert matrix.holds(matrix)
    assert any_rows.holds(matrix)
    assert not matrix.holds(any_rows)
    assert not matrix.holds(FixedLayout((6, 5), (1, 6)))
    assert not matrix.holds(FixedLayout((6,), (1,)))
    assert not FixedLayout((), ()).holds(matrix)


def test_a_graph_for_all_sizes_serves_another_one_only_where_its_weights_lie_alike() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) * 2

    run, w = compiled(fn), torch.randn(6, 5)
    with torch.no_grad():
        for rows in (4, 7, 9):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(run(x, w), fn(x, w))
        before = stats.snapshot().binaries_emitted
        x = torch.randn(1, 6)
        torch.testing.assert_close(run(x, w), fn(x, w))
        assert stats.snapshot().binaries_emitted == before, "the kernels for all sizes"
        torch.compiler.reset()  # the next function of this kind is traced for one row first
        turned = torch.randn(5, 6).T
        torch.testing.assert_close(compiled(fn)(x, turned), fn(x, turned))


@pytest.mark.parametrize("rows", [3, 3000])
def test_what_pytorch_and_kernels_read_is_written_once_in_its_narrow_type(rows: int) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.relu(x + y)
        return total.sort(-1).values * 2 + total

    x, y = torch.randn(2, rows, 32, dtype=torch.bfloat16)
    (plan,) = weft.optimize(fn, (x, y)).plans
    first, second = plan.kernels
    assert [each.dtype.name for each in first.made.signature.outputs] == ["bfloat16"]
    assert {each.dtype.name for each in second.made.signature.inputs} == {"bfloat16"}
    (found,) = plan.run(x, y)
    torch.testing.assert_close(found, fn(x, y), atol=0.02, rtol=0.01)


def region_step(reads: dict[str, str], writes: tuple[tuple[str, str], ...]) -> RegionStep:
    return RegionStep(cast("Any", None), tuple(reads.items()), writes, {})


def test_a_result_of_two_names_stays_until_the_last_reader_of_either() -> None:
    makes = region_step({"x": "x"}, (("t", "rounded"), ("t", "total")))
    early, late = region_step({"a": "rounded"}, (("b", "y"),)), region_step({"a": "total", "b": "y"}, (("c", "z"),))
    found = lifetimes(["z"], [makes, early, late])
    assert {value: found.last[value] for value in found.inside} == {"rounded": 2, "y": 2}
    assert makes.first_name("t") == found.memory("total") == "rounded"
    assert lifetimes(["z", "total"], [makes, early, late]).inside == {"y"}, "what goes out by either name goes out"
