"""The sizes that kernels are judged at: enough blocks for each loop, and on a GPU those that the example's binary serves."""

from __future__ import annotations

import pytest
import torch

import weft
from block import paper
from weft.block.lower import lower
from weft.block.program import Place, maps
from weft.plan import regions
from weft.plan.judging_sizes import sizes_for
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.verify.emitted import AT_MOST, MANY, fitted, points
from weft.verify.regimes import layout_of
from weft.verify.sizes import of_blocks


def judged_on_a_gpu(monkeypatch, tmp_path, fn, *inputs):
    """What the judge of the one region of `fn` is given, compiled for a GPU that is not here."""
    found = []

    def demand(judged, region, options):
        found.append((judged, region))

    monkeypatch.setattr(regions, "demand", demand)
    weft.optimize(fn, inputs, target="cuda:90", effort="none", cache_dir=tmp_path)
    return found[-1]


@pytest.mark.parametrize("rows", [512, 500])
def test_large_examples_are_judged_at_small_sizes_of_their_class(rows, monkeypatch, tmp_path):
    """Of blocks that divide the example's sizes too: such a kernel has no masks, and no other sizes."""
    x, w = torch.randn(rows, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    judged, region = judged_on_a_gpu(monkeypatch, tmp_path, lambda x, w: torch.relu(x @ w), x, w)
    far, near = sizes_for(judged, region)
    assert far
    assert near
    (kernel,) = region.kernels
    assert kernel.made.signature.constants
    assert kernel.schedule.stages > 1
    loops = [m for m in maps(kernel.block_program.graph) if m.place is Place.loop]
    assert loops
    enough = {judged.names[m.axis.space.name]: (m.tile or 1) * (kernel.schedule.stages + 1) for m in loops}
    assert any(all(sizes[name] >= n for name, n in enough.items()) for sizes in far)
    kinds = {each.kind for each in kernel.made.assembled}
    for sizes in (*far, *near):
        assert points(judged.written, sizes) <= AT_MOST
        own = {name: sizes[its] for name, its in judged.names.items()}
        m, k, n = own["M"], own["K"], own["N"]
        assert kernel.made.class_for(own, [(k, 1), (n, 1)]) in kinds, (m, k, n)


@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_each_loop_has_as_many_blocks_as_are_asked_for(blocks):
    program = lower(paper.attention())
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 64),))) for m in maps(program.graph))
    applied = apply(program, Schedule(loops))
    sizes = of_blocks(applied, blocks)
    for loop in maps(applied.graph):
        assert sizes[loop.axis.space.name] == blocks * (loop.tile or 1)


def test_sizes_are_shrunk_to_those_that_are_allowed():
    program = paper.attention()
    wanted = {s.name: 700 for s in program.spaces()}
    found = fitted(program, wanted, layout_of(program), MANY, allowed=lambda _, size: -(-size // 64) * 64)
    assert found is not None
    assert set(found.values()) <= {64 * n for n in range(1, 13)}
    assert points(program, found) <= MANY
    (one, *_) = wanted
    kept = fitted(program, wanted, layout_of(program), MANY, (one,), lambda _, size: -(-size // 64) * 64)
    assert kept is not None
    assert kept[one] == 704
