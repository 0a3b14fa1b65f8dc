"""A trace holds enough to make the program again: from what was captured to what was built."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import weft
from testkit.pipeline.replays import differing, planned, rebuilt
from testkit.walk import WALK_ALL
from weft.pipeline import PASSES
from weft.plan import Plan
from weft.plan.targets.packed import packed, unpacked
from weft.tensor.passes import Bears, Conditioning

CPU_ROWS = ("attention, causal by mask", "RMSNorm + SwiGLU", "quantised matmul (Q7)")
GPU_ROWS = ("H1", "Q7-fast", "V5")


@pytest.mark.parametrize(("target", "rows"), [("cpu", CPU_ROWS), ("cuda:90", GPU_ROWS)])
def test_traces_of_the_benchmark_list_give_what_was_built(target, rows):
    found = list(planned(target, () if WALK_ALL else rows))
    assert len(found) >= len(rows)
    assert [name for name, plan in found if differing(plan)] == []
    assert all(plan.trace and plan.regions for _, plan in found)


@pytest.fixture(scope="module")
def attention() -> Plan:
    return list(planned("cpu", ("attention",)))[-1][1]


def test_a_trace_without_one_of_its_steps_gives_another_program_or_none(attention):
    assert not differing(attention)
    for number, step in enumerate(attention.trace):
        others = (*attention.trace[:number], *attention.trace[number + 1 :])
        try:
            same = not differing(replace(attention, trace=others))
        except Exception:  # noqa: BLE001 - what a step meets where the one before it is missing
            continue
        assert not same, step


def test_steps_are_data_without_programs(attention):
    again = unpacked(packed(attention.trace), tuple)
    assert again == attention.trace
    assert not differing(replace(attention, trace=again))
    assert len(packed(attention.trace)) < len(packed(attention.regions[0].fused))


def test_each_step_names_a_pass_that_says_what_it_does(attention):
    assert {step.rule for step in attention.trace} <= PASSES.keys()
    for each in PASSES.values():
        assert each.says
        assert isinstance(each.conditioning, Conditioning)
        assert isinstance(each.bears, Bears)


def test_a_program_says_each_change_with_the_programs_before_and_after():
    def two_regions(x, y):
        return torch.sort(torch.softmax(x, -1), -1).values * y

    program = weft.optimize(two_regions, (torch.randn(8, 16), torch.randn(16)))
    (plan,) = program.plans
    assert len(plan.regions) == 2
    assert rebuilt(plan.captured.program, [c.step for c in program.trace]) == [r.fused for r in plan.regions]
    cuts = [change for change in program.trace if change.rule == "part"]
    assert [cut.before for cut in cuts] == [plan.program] * 2
    for before, after in itertools.pairwise(program.trace):
        assert after.before == before.after or after.rule == "part"
