"""Kernels of loops whose first iteration is peeled off: against the interpreter, and where loops are empty."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testkit.block import paper
from testkit.block.programs import axes, matmul
from testkit.emit.comparing import compare, inputs_for, scheduled
from testkit.emit.harness import compiled, units
from testkit.fuse import peelable
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, Graph, Map
from weft.block.ranges import First
from weft.block.walk import maps, spaces
from weft.emit import triton
from weft.errors import UnsupportedError
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, grid_maps, kernels
from weft.tensor.dtypes import DType
from weft.tensor.program import Use

EXAMPLES = {
    **paper.EXAMPLES,
    **{f.__name__: f for f in (peelable.one_query, peelable.batch, peelable.peeled_softmax)},
}
ALTERNATIVES = {
    f"{name}_{a.beside}": canonical(a.program)
    for name, make in EXAMPLES.items()
    for a in fuse(lower(make()), checked=True).alternatives
}


def names(program: BlockProgram) -> list[str]:
    return [s.name for s in spaces(program)]


# Raw moments (layernorm) cancel in a few columns: that one has a test of its own.
STABLE = [name for name in ALTERNATIVES if not name.startswith("layernorm")]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", STABLE)
def test_any_schedule_computes_the_same(name: str, target: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    program = ALTERNATIVES[name]
    compare(
        [scheduled(program, rng) for _ in range(12)],
        names(program),
        tmp_path,
        rng,
        DType.float32,
        quickly=True,
        target=target,
    )


def test_layernorm(target: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    program = ALTERNATIVES["layernorm_1"]
    for kernel in compiled([scheduled(program, rng) for _ in range(8)], tmp_path, quickly=True, target=target):
        sizes = {"M": rng.choice((1, 5, 16)), "K": rng.choice((31, 32, 50)), "N": rng.choice((1, 5, 16, 17))}
        inputs = inputs_for(program, sizes, rng)
        (out,) = kernel(inputs, sizes)
        normal = torch.nn.functional.layer_norm(inputs["x"].double(), (sizes["K"],), eps=0.0)
        torch.testing.assert_close(out.double(), normal @ inputs["yt"].double().T, rtol=0, atol=1e-4)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["attention_1", "one_query_1", "peeled_softmax_1"])
def test_pairs_of_significand_and_exponent(name: str, target: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    program = canonical(make_safe(ALTERNATIVES[name]).program)
    compare(
        [scheduled(program, rng) for _ in range(8)],
        names(program),
        tmp_path,
        rng,
        DType.float32,
        quickly=True,
        target=target,
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", range(3))
def test_random_programs(part: int, target: str, tmp_path: Path) -> None:
    rng = random.Random(part)
    found: list[BlockProgram] = []
    while len(found) < 20:
        fusion = fuse(lower(peelable.random_program(rng)), checked=True)
        programs = [canonical(a.program) for a in fusion.alternatives]
        if rng.random() < 0.3:  # as lowered, or half fused
            programs += [canonical(p) for p in peelable.peeled(rng.choice(fusion.steps).before)]
        found += [scheduled(p, rng) for p in programs]
    compare(found, ["R", "X", "Y", "Z"], tmp_path, rng, DType.float32, quickly=True, target=target)


def blocks(
    program: BlockProgram, first: LevelPlace = LevelPlace.grid, others: LevelPlace = LevelPlace.grid
) -> BlockProgram:
    """`program` in blocks of 4; where loops can be on the grid, first blocks and all others are where these say."""
    top = set(grid_maps(program.graph))
    chosen: list[tuple[str, LoopSchedule]] = []
    for node in maps(program.graph):
        place = first if isinstance(node.range, First) else others
        level = Level(place if node.name in top else LevelPlace.loop, 1 if node.unit else 4)
        chosen.append((node.name, LoopSchedule((level,))))
    return apply(program, Schedule(tuple(chosen)))


@pytest.mark.parametrize("first", [LevelPlace.grid, LevelPlace.loop])
def test_both_parts_go_into_one_tensor(first: LevelPlace, target: str, tmp_path: Path) -> None:
    """At the top the first block and the rest are a launch each, and there is no third that copies."""
    applied = blocks(ALTERNATIVES["one_query_1"], first)
    one, two = kernels(applied)
    (whole,) = applied.graph.outputs
    assert whole in one.writes
    assert two.writes == two.begun == (whole,)
    assert set(two.reads) > set(one.writes) - {whole}
    (kernel,) = compiled([applied], tmp_path, quickly=True, target=target)
    for size in (1, 3, 4, 5, 9):
        sizes = {"D": 3, "N": 6, "L": size}
        q, kt, vt = torch.randn(3), torch.randn(6, 3), torch.randn(size, 6)
        (out,) = kernel({"q": q, "kt": kt, "vt": vt}, sizes)
        torch.testing.assert_close(out, vt @ torch.softmax(kt @ q, 0))


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_an_empty_loop_writes_nothing(name: str, target: str, tmp_path: Path) -> None:
    """Without a first block there is no rest: a list is empty, and a sum what it starts from."""
    program = ALTERNATIVES[name]
    applied = blocks(program)
    first = next(m for m in maps(program.graph) if isinstance(m.range, First))
    sizes = {**dict.fromkeys(names(program), 5), first.axis.space.name: 0}
    (kernel,) = compiled([applied], tmp_path, quickly=True, target=target)
    inputs = {
        n: t if t.numel() else t.new_empty(t.shape) for n, t in inputs_for(program, sizes, random.Random(0)).items()
    }
    (out,) = kernel(inputs, sizes)
    assert list(out.shape) == [a.space.size(sizes) for a in program.output_axes[0]]
    if first.state is not None and name.startswith("rmsnorm"):
        assert torch.equal(out, torch.zeros(5, 5))


def test_a_list_is_handed_out_through_levels_of_the_grid(target: str, tmp_path: Path) -> None:
    """exp(a[y]) + c[x,y]: the first block is a grid of two levels, and its list goes to the launch of the rest."""
    (alternative,) = fuse(lower(peelable.sums()), checked=True).alternatives
    applied = blocks(canonical(alternative.program))
    one, two = kernels(applied)
    (first,) = one.nodes
    assert isinstance(first, Map)
    assert [n.place for n in maps(Graph((), (first,), ()))] == [Place.grid, Place.grid]
    assert set(one.writes) & set(two.reads)
    (kernel,) = compiled([applied], tmp_path, quickly=True, target=target)
    a, c = torch.randn(7), torch.randn(10, 7)
    (out,) = kernel({"a": a, "c": c}, {"X": 10, "Y": 7})
    torch.testing.assert_close(out, a.exp() + c)


def test_a_list_of_two_parts_that_stays_in_the_kernel(target: str, tmp_path: Path) -> None:
    """attention times itself: the result of attention is scratch of the one launch, and both parts lie in it."""
    program = paper.attention()
    m, one, other = axes("m", "l", "l1")
    gram = matmul("gram", Use("out", (m, one)), Use("out", (m, other)), m)
    program = replace(program, nodes=(*program.nodes, gram), outputs=("gram",))
    found = fuse(lower(program), checked=True).alternatives
    peeled = next(a.program for a in found if any(isinstance(n, Map) and n.range == First() for n in bodies(a.program)))
    applied = blocks(canonical(peeled), LevelPlace.loop, LevelPlace.loop)
    assert len(kernels(applied)) == 1
    sizes = {"M": 5, "N": 6, "D": 3, "L": 11}
    (kernel,) = compiled([applied], tmp_path, quickly=True, target=target)
    q, kt, vt = torch.randn(5, 3), torch.randn(6, 3), torch.randn(11, 6)
    (out,) = kernel({"q": q, "kt": kt, "vt": vt}, sizes)
    mixed = torch.softmax(q @ kt.T / 3**0.5, 1) @ vt.T
    torch.testing.assert_close(out, mixed.T @ mixed)


def bodies(program: BlockProgram) -> list[BlockNode]:
    """The operators right inside the top-level maps of `program`."""
    return [n for m in program.graph.nodes if isinstance(m, Map) for n in m.body.nodes]


def test_triton_refuses_what_it_would_drop() -> None:
    """The values that a first iteration hands on block by block would have to lie in memory: no kernel rather than a wrong one."""
    applied = blocks(ALTERNATIVES["attention_1"])
    unit = units(applied, "kernel")[0]
    with pytest.raises(UnsupportedError, match="list"):
        triton.emit(applied, unit.kernel, "kernel", unit.dims)
