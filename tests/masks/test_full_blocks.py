"""Blocks in which a mask leaves nothing out have a loop of their own that reads no mask, and all is computed as written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from testkit.emit.comparing import compare, scheduled
from testkit.emit.triton_guards import guarded as case
from testkit.masks.guarded import MASKED, sums
from testkit.masks.limited import fused
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.guard import Guard, GuardedBlocks
from weft.block.program import BlockProgram, Graph, Load, Map
from weft.block.ranges import Part
from weft.block.walk import asked, maps
from weft.cost.guarded import guarded_shares
from weft.errors import InvalidProgramError, ScheduleError
from weft.masks import Sparsity, guard, limit, questions, with_full_blocks
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as expression
from weft.verify import verify

EVERY = pytest.mark.parametrize("name", MASKED)
FULL = {"weighted without": False, "biased": 0.0}


def applied(program: BlockProgram, tile: int = 3, *, beforehand: bool = False, peel: bool = False) -> BlockProgram:
    """`program` with every loop in steps of `tile`, the first on the grid, and loops of their own for full blocks."""
    first, *_ = maps(program.graph)
    apart = with_full_blocks(program)
    assert apart
    loops = tuple(
        (
            m.name,
            LoopSchedule((Level(LevelPlace.grid if m is first else LevelPlace.loop, tile),), peel and m.name in apart),
        )
        for m in maps(program.graph)
    )
    return apply(program, Schedule(loops, apart=apart, beforehand=apart if beforehand else frozenset()))


def changed(program: BlockProgram, blocks: GuardedBlocks, change: Callable[[Guard], Guard]) -> BlockProgram:
    """`program` with every guard of loops over `blocks` changed."""

    def of(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=of(n.body), guard=change(n.guard) if n.guard and n.guard.blocks is blocks else n.guard)
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=of(program.graph))


@EVERY
@pytest.mark.parametrize("beforehand", [False, True])
def test_full_blocks_read_no_mask(name: str, *, beforehand: bool) -> None:
    program = MASKED[name][0]()
    found = applied(canonical(guard(fused(program))), beforehand=beforehand)
    check(found)
    full, partial = (m for m in maps(found.graph) if m.guard is not None)
    assert full.guard is not None
    assert partial.guard is not None
    assert (full.guard.blocks, partial.guard.blocks) == (GuardedBlocks.full, GuardedBlocks.partial)
    assert full.guard.full == (2 if beforehand else FULL.get(name, True))
    # Of what the program is given, all but the mask: it is asked in the loop, or has been before.
    asked_first, rest = asked(full)
    assert not {n.memory for n in rest if isinstance(n, Load)} & {n.memory for n in asked_first if isinstance(n, Load)}
    assert sum(isinstance(n, Load) for n in rest) < sum(isinstance(n, Load) for n in partial.body.nodes)
    assert not any("where" in str(n) for n in rest) or name == "documents"
    assert len(kernels(found)) == 1 + beforehand
    verdict = verify(program, found)
    assert verdict.agrees, verdict


@pytest.mark.one_in(2)
@EVERY
def test_any_schedule_computes_what_was_written(name: str) -> None:
    program, rng, apart = MASKED[name][0](), random.Random(name), 0
    guarded = guard(fused(program))
    while apart < 3:
        made = scheduled(guarded, rng)
        if any(m.guard is not None and m.guard.blocks is GuardedBlocks.full for m in maps(made.graph)):
            apart += 1
            verdict = verify(program, made, seed=rng.randrange(1000))
            assert verdict.agrees, verdict


@pytest.mark.one_in(2)
@EVERY
def test_kernels_compute_what_the_interpreter_computes(name: str, tmp_path: Path) -> None:
    rng, program = random.Random(name), MASKED[name][0]()
    guarded = canonical(guard(fused(program)))
    blocks = [applied(guarded, 1), applied(guarded, 2), applied(guarded, 2, beforehand=True)]
    compare(blocks, [s.name for s in program.spaces()], tmp_path, rng, DType.float32, quickly=True)


@pytest.mark.parametrize("beforehand", [False, True])
@pytest.mark.parametrize("name", [name for name in MASKED if name != "documents"])
def test_a_guard_that_takes_others_for_full_or_full_ones_twice_is_refuted(name: str, *, beforehand: bool) -> None:
    program = MASKED[name][0]()
    right = applied(canonical(guard(fused(program))), 2, beforehand=beforehand)
    wrong = [
        changed(right, GuardedBlocks.full, lambda g: replace(g, blocks=GuardedBlocks.busy)),
        changed(right, GuardedBlocks.full, lambda g: replace(g, full=g.idle)),
    ]
    if name != "maxima":  # which may be taken twice
        wrong.append(changed(right, GuardedBlocks.partial, lambda g: replace(g, full=3 if beforehand else 0.5)))
    for each in wrong:
        assert all(verify(program, each, seed=seed).equal is False for seed in range(3))


def test_what_no_number_takes_out_is_read_in_every_block() -> None:
    weighted = expression("mul", expression("exp", Arg(0)), Arg(1))
    guarded = canonical(guard(fused(sums(weighted, DType.float32))))
    asking = frozenset(m.name for m in maps(guarded.graph) if m.guard is not None)
    assert asking
    assert not with_full_blocks(guarded)
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 3),))) for m in maps(guarded.graph))
    with pytest.raises(ScheduleError, match="has no full blocks"):
        apply(guarded, Schedule(loops, apart=asking))
    with pytest.raises(ScheduleError, match="has no guard"):
        apply(guarded, Schedule(loops, apart=frozenset(m.name for m in maps(guarded.graph)) - asking))


def causal_and_masked() -> TensorProgram:
    """exp(q k^T), where a column comes no later than its row and a mask keeps it, times v."""
    b = Builder()
    q, k, v = (b.input(name, (7, width), DType.float32) for name, width in (("q", 3), ("k", 3), ("v", 4)))
    scores = b.matmul(q, b.transpose(k, 0, 1))
    mask, rows, columns = b.input("mask", (7, 7), DType.bool), b.iota(7), b.iota(7)
    kept = expression(
        "where", expression("logical_and", Arg(0), expression("ge", Arg(1), Arg(2))), Arg(3), Lit(float("-inf"))
    )
    masked = b.elementwise(kept, (mask, b.unsqueeze(rows, 1), columns, scores), DType.float32)
    return b.finish([b.matmul(b.elementwise(expression("exp", Arg(0)), (masked,), DType.float32), v)])


def test_spans_have_full_blocks_among_their_whole_ones() -> None:
    program = causal_and_masked()
    found = applied(canonical(guard(limit(fused(program)))), 2, peel=True)
    parts = [(m.range.part, m.guard.blocks) for m in maps(found.graph) if m.guard is not None]
    assert parts == [
        (Part.full, GuardedBlocks.full),
        (Part.full, GuardedBlocks.partial),
        (Part.edge, GuardedBlocks.busy),
    ]
    assert verify(program, found).agrees
    wrong = changed(found, GuardedBlocks.full, lambda g: replace(g, blocks=GuardedBlocks.busy))
    assert verify(program, wrong).equal is False
    # With two draws these seeds, of 120, had no block that tells.
    primes = (710297543, 1420595087, 586275779, 1172551559)
    assert all(verify(program, wrong, seed=seed, primes=primes).equal is False for seed in (8, 53, 61, 117))


def test_what_full_blocks_leave_goes_on_from_them() -> None:
    found = applied(canonical(guard(fused(MASKED["weighted"][0]()))))
    alone = changed(found, GuardedBlocks.full, lambda g: replace(g, blocks=GuardedBlocks.busy))
    with pytest.raises(InvalidProgramError) as refused:
        check(alone)
    assert refused.value.condition == "what full blocks leave goes on from a loop over these"
    unknown = changed(found, GuardedBlocks.full, lambda g: replace(g, full=None))
    with pytest.raises(InvalidProgramError) as refused:
        check(unknown)
    assert refused.value.condition == "a loop that goes over full blocks, or leaves them out, says what they are"


@pytest.mark.parametrize("beforehand", [False, True])
def test_shares_of_full_and_of_other_blocks(*, beforehand: bool) -> None:
    program = case("weighted", beforehand=beforehand, apart=True).program
    full, partial = questions(program)
    assert (full.blocks, partial.blocks) == (GuardedBlocks.full, GuardedBlocks.partial)
    assert full.inputs == partial.inputs == {"mask": False}
    half, all_ = Sparsity(*((2,) * 6,) * 4), Sparsity(*((n,) * 6 for n in (0, 16, 0, 16)))
    sizes = dict.fromkeys((m.axis.space.name for m in maps(program.graph)), 64)
    found = [[each.share for each in guarded_shares(program, sizes, {"mask": of}).values()] for of in (half, all_)]
    assert found[0] == [pytest.approx(0.5), 2.0**-8]
    assert found[1] == [pytest.approx(1.0, abs=0.01), 2.0**-8]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT * 0.125).masked_fill(~mask, float("-inf")), -1) @ v


@pytest.mark.parametrize(("kind", "apart"), [("all", True), ("one column", False)])
def test_it_is_chosen_where_the_example_has_full_blocks(kind: str, *, apart: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 64) for n in (513, 1030, 1030))
    mask = torch.full((513, 1030), kind == "all")
    mask[:, 0] = True
    program = weft.optimize(attention, (q, k, v, mask), threads=2)
    assert any("not True everywhere" in str(each.block_program) for each in program.kernels) == apart
    for other in (mask, ~mask, torch.rand(513, 1030) < 0.99, torch.arange(1030) < torch.arange(513)[:, None] + 300):
        exact = attention(q.double(), k.double(), v.double(), other)
        assert weft.judge(program(q, k, v, other), attention(q, k, v, other), exact).ok
