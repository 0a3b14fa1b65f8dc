"""Which candidate becomes the kernel: the cheapest by the cost model, whatever made it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from testkit.block import paper
from weft.api.program import Program
from weft.block.program import BlockProgram
from weft.cascade import Chains, FoundChains
from weft.defects import noticed
from weft.fuse.safety import Safe, make_safe
from weft.options import options
from weft.plan import CompiledRegion
from weft.plan.choose.select import select
from weft.plan.targets.candidates import Example
from weft.tensor.program import TensorProgram


def regions(program: Program) -> list[CompiledRegion]:
    return [region for plan in program.plans for region in plan.regions]


def weighted(x, w, u):
    """Rows of hidden values, weighted: their product with a wide matrix, over their sum."""
    hidden = torch.relu(x @ w)
    return (hidden @ u) / (hidden.sum(-1, keepdim=True) + 1.0)


def attention(q, k, v):
    return torch.softmax(q @ k.T * 0.125, -1) @ v


def right(program, function, inputs) -> bool:
    exact = function(*(t.double() for t in inputs))
    return weft.judge(program(*inputs), function(*inputs), exact).ok


def test_the_peeled_snapshot_is_taken_where_it_is_the_cheapest():
    """The result is too wide to be one block: extending repeats the hidden product, not fusing reads the list once more."""
    inputs = (torch.randn(512, 64), torch.randn(64, 512) / 8, torch.randn(512, 4096) / 20)
    program = weft.optimize(weighted, inputs, threads=2)
    (region,) = regions(program)
    seconds = {c.origin: c.seconds for c in region.considered if c.seconds is not None}
    assert region.origin.startswith("peeled"), seconds
    extended = max(int(o.split()[2]) for o in seconds if o.startswith("snapshot"))
    assert seconds[region.origin] < seconds[f"snapshot after {extended} steps"]
    assert "peel_first_iteration" in [step.rule for step in region.trace]
    assert right(program, weighted, inputs)


def test_attention_takes_the_last_snapshot():
    inputs = tuple(torch.randn(512, 64) for _ in range(3))
    (region,) = regions(weft.optimize(attention, inputs, threads=2))
    steps = [int(c.origin.split()[2]) for c in region.considered if c.origin.startswith("snapshot")]
    assert region.origin == f"snapshot after {max(steps)} steps"
    assert len(region.kernels) == 1


def test_candidates_that_cannot_be_kernels_say_why():
    inputs = (torch.randn(512, 64), torch.randn(64, 512) / 8, torch.randn(512, 4096) / 20)
    (region,) = regions(weft.optimize(weighted, inputs, threads=2))
    assert all(c.seconds is not None or c.reason for c in region.considered)
    assert len({c.origin for c in region.considered}) == len(region.considered)


def no_chains(program: TensorProgram, *, running: bool = False) -> Chains:
    return Chains(program, FoundChains((), (), ()))


def test_candidates_whose_exponentials_lost_their_shift_are_listed(monkeypatch):
    def losing(program: BlockProgram) -> Safe:
        safe = make_safe(program)
        return replace(safe, plain=safe.plain + 1)

    monkeypatch.setattr("weft.fuse.safety.make_safe", losing)
    monkeypatch.setattr("weft.plan.choose.select.chains", no_chains)  # they need no pairs
    program = paper.attention()
    innermost = {n.name: len(n.axes) - 1 for n in program.inputs}
    found = select(program, Example({s.name: 64 for s in program.spaces()}, innermost, 2))
    first, *others = found.considered
    assert first.seconds is not None
    assert found.chosen.origin == first.origin
    assert others
    assert all("lost its shift" in c.reason for c in others)


def failing(*_, **__):
    raise ValueError("of weft's own")


@pytest.mark.parametrize(
    ("place", "lost"),
    [
        ("weft.fuse.safety.make_safe", 2),  # each snapshot fails in a pass
        ("weft.plan.choose.select.chains", 1),
        ("weft.plan.choose.select._elements", None),
    ],
)
def test_a_defect_loses_its_candidate_alone_and_is_noted(monkeypatch, place, lost):
    program = paper.attention()
    example = Example({s.name: 64 for s in program.spaces()}, {n.name: len(n.axes) - 1 for n in program.inputs}, 2)
    monkeypatch.setattr(place, failing)
    with options(defects="raise"), pytest.raises(ValueError, match="of weft's own"):
        select(program, example)
    with options(defects="warn"), noticed() as defects:
        if lost is None:
            with pytest.raises(ValueError, match="of weft's own"):  # no refusal: nothing is left
                select(program, example)
            return
        found = select(program, example)
    failed = [c for c in found.considered if c.reason == "weft failed: ValueError: of weft's own"]
    assert len(failed) == len(defects) >= lost
    assert found.chosen.origin not in {c.origin for c in failed}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: torch.softmax(x * s, -1),
        lambda x, s: torch.softmax(x * s, -1).sum(-1),
        lambda x, s: torch.softmax(x * s, -1) @ x.T,
        lambda x, s: torch.softmax(x.bfloat16() * s, -1),
    ],
)
def test_results_keep_their_types_where_one_number_is_float64(fn):
    """A number alone promotes nothing, and yet running values are float64 beside it."""
    x, s = torch.randn(16, 64), torch.tensor(-0.7, dtype=torch.float64)
    program = weft.optimize(fn, (x, s))
    assert not program.fallbacks
    assert program(x, s).dtype is fn(x, s).dtype
    torch.testing.assert_close(program(x, s), fn(x, s))
