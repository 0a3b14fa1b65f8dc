"""The sizes that kernels are judged at: enough blocks for each loop, and on a GPU those that the example's binary serves."""

from __future__ import annotations

import pytest
import torch

import weft
from testkit.block import paper
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.walk import maps
from weft.lab.workloads.cpu import attention
from weft.plan.execute import regions
from weft.plan.judge.sizes import sizes_for
from weft.plan.targets.lying import dense
from weft.run.gpu import signature
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.verify.cases import cases
from weft.verify.fitted import AT_MOST, MANY, fitted, points
from weft.verify.regimes import REGIMES, layout_of
from weft.verify.sizes import of_blocks


def every_judged_on_a_gpu(monkeypatch, tmp_path, fn, *inputs):
    """Returns what the judge of each region of `fn` is given, compiled for a GPU that is not here."""
    found = []

    def demand(judged, region):
        if region.kernels:
            found.append((judged, region))
        return "right"

    monkeypatch.setattr(regions, "demand", demand)
    program = weft.optimize(fn, inputs, target="cuda:90", effort="none", cache_dir=tmp_path)
    assert not program.fallbacks
    assert found
    return found


def judged_on_a_gpu(monkeypatch, tmp_path, fn, *inputs):
    """Returns what the judge of the last region of `fn` is given."""
    return every_judged_on_a_gpu(monkeypatch, tmp_path, fn, *inputs)[-1]


@pytest.mark.parametrize("rows", [512, 500])
def test_large_examples_are_judged_at_small_sizes_of_their_class(rows, monkeypatch, tmp_path):
    """Takes examples that blocks divide, too: such a kernel has no masks, and serves no other sizes."""
    x, w = torch.randn(rows, 1024).bfloat16(), torch.randn(1024, 1024).bfloat16()
    judged, region = judged_on_a_gpu(monkeypatch, tmp_path, lambda x, w: torch.relu(x @ w), x, w)
    chosen = sizes_for(judged, region)
    assert chosen.far
    assert chosen.near
    (kernel,) = region.kernels
    assert kernel.made.signature.constants
    assert kernel.schedule.stages > 1
    loops = [m for m in maps(kernel.block_program.graph) if m.place is Place.loop]
    assert loops
    enough = {judged.names[m.axis.space.name]: (m.tile or 1) * (kernel.schedule.stages + 1) for m in loops}
    assert any(all(sizes[name] >= n for name, n in enough.items()) for sizes in chosen.far)
    kinds = {each.kind for each in kernel.made.assembled}
    for sizes in (*chosen.far, *chosen.near):
        assert points(judged.written, sizes) <= AT_MOST
        own = {name: sizes[its] for name, its in judged.names.items()}
        m, k, n = own["M"], own["K"], own["N"]
        assert kernel.made.class_for(own, [(k, 1), (n, 1)]) in kinds, (m, k, n)


def of_a_part(x, w):
    return torch.relu(x @ w.mT) @ w[..., :-64]


def shapes_of(*shapes):
    return tuple(torch.randn(shape).bfloat16() for shape in shapes)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (attention, ((32, 8, 512, 64),) * 3),  # many batches and heads, and blocks that are whole
        (of_a_part, ((2, 128, 576), (2, 1024, 576))),  # a size follows from another one, which some regions have not
        (of_a_part, ((128, 576), (1024, 576))),
    ],
)
def test_regions_whose_blocks_leave_few_sizes_are_judged(function, shapes, monkeypatch, tmp_path):
    for judged, region in every_judged_on_a_gpu(monkeypatch, tmp_path, function, *shapes_of(*shapes)):
        chosen = sizes_for(judged, region)
        assert chosen.near
        for case in cases(judged.written, [], chosen.near, 0, 1, chosen.layout):
            assert all(case.sizes[space] >= len(REGIMES) for space in chosen.layout.slots)


def test_a_binary_for_long_strides_serves_short_ones(monkeypatch, tmp_path):
    """An example that reaches far has strides of 64 bits: its binary is judged, and not one that is compiled for that."""
    monkeypatch.setattr(signature, "FAR", 2**20)
    judged, region = judged_on_a_gpu(monkeypatch, tmp_path, attention, *shapes_of(*((8, 4, 512, 64),) * 3))
    (made,) = (kernel.made for kernel in region.kernels)
    (compiled,) = made.assembled
    assert "i64" in str(compiled.kind)
    chosen = sizes_for(judged, region)
    assert chosen.near
    sizes = {name: chosen.near[0][its] for name, its in judged.names.items()}
    shapes = [[n if isinstance(n, int) else sizes[n] for n in shape] for shape in made.signature.shapes]
    kind = made.class_for(sizes, [dense(shape) for shape in shapes])
    assert kind != compiled.kind
    assert compiled.kind.serves(kind)
    assert not kind.serves(compiled.kind)


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


def positions(x, table):
    return x + table[torch.arange(x.shape[1])]


def shifted(x, table):
    return x + table[torch.arange(2, x.shape[1] + 2)]


def part(x, index):
    """Read one column of what is looked up in, which small sizes do not have."""
    return x[index][:, 5] * 2


def example(shape):
    """Numbers of a shape; of a number, so many indices."""
    return torch.randint(0, 9, (shape,)) if isinstance(shape, int) else torch.randn(shape)


TIED = {
    "positions": (positions, (3, 16, 24), (40, 24)),
    "shifted": (shifted, (3, 16, 24), (40, 24)),
    "part": (part, (20, 9, 24), 4),
}


@pytest.mark.parametrize("name", TIED)
def test_what_indices_reach_and_slices_tie_together_is_judged(name, tmp_path):
    function, *given = TIED[name]
    program = weft.optimize(function, tuple(map(example, given)), judge="always", cache_dir=tmp_path)
    assert not program.fallbacks
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}


@pytest.mark.parametrize("name", TIED)
def test_so_it_is_for_a_gpu(name, monkeypatch, tmp_path):
    """At sizes that the example's binary serves, there are inputs whose indices are there."""
    function, *given = TIED[name]
    judged, region = judged_on_a_gpu(monkeypatch, tmp_path, function, *map(example, given))
    chosen = sizes_for(judged, region)
    assert chosen.near
    assert list(cases(judged.written, (), chosen.near, 0, 1, chosen.layout))
