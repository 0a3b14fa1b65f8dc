"""Elementwise work and reductions on a GPU, over any dimensions of any length: there is always a schedule that fits."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from testkit.block import programs
from testkit.plan.gpu_reductions import cases
from testkit.plan.interpreted import interpreted
from testkit.walk import WALK_ALL, share
from weft.block import lower
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.room import power_of_two
from weft.block.walk import maps
from weft.cascade import chains
from weft.cost import gpu
from weft.pipeline import RULES_IN_PLANS, fuse
from weft.plan.choose.select import select
from weft.plan.partition.partition import Region, between_passes, partition, united
from weft.plan.targets.candidates import Example
from weft.plan.targets.triton.schedules import Blocks, LoopRole, parts, schedule
from weft.plan.targets.triton.tiles import nests
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.laws import numbered
from weft.tensor.program import Elementwise, Extent, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg
from weft.tensor.scalar import apply as apply_scalar
from weft.verify import verify

H200 = Target("cuda", "90")
RANDOM = 60 if WALK_ALL else 6
SIZES = {"A0": 16, "A1": 64, "A2": 256, "A3": 256}


def tensor_axes(rank: int) -> tuple[Axis, ...]:
    """One axis for each of `rank` spaces."""
    return tuple(Axis(f"a{d}", Space(f"A{d}")) for d in range(rank))


def layer_norm(rank: int, over: int, dtype: DType = DType.float32) -> TensorProgram:
    """x less its mean over the last `over` dimensions, by the root of the mean of squares of that."""
    axes = tensor_axes(rank)
    kept, reduced = axes[: rank - over], axes[rank - over :]
    f32, sizes = DType.float32, [Extent(f"size{a.name}", (), DType.float32, a.space) for a in reduced]
    count: list[Node] = [*sizes]
    for i, (one, other) in enumerate(pairwise([s.name for s in sizes])):
        left = one if i == 0 else f"count{i - 1}"
        args = (Use(left, ()), Use(other, ()))
        count.append(Elementwise(f"count{i}", (), f32, apply_scalar("mul", Arg(0), Arg(1)), args))
    number, row, whole = Use(count[-1].name, ()), Use("mean", kept), Use("c", axes)
    root = Apply("sqrt", (Apply("div", (Arg(1), Arg(2))),))
    return TensorProgram((programs.tensor("x", *axes, dtype=dtype),), (
        *count,
        Reduction("total", kept, f32, Monoid.sum, Use("x", axes), reduced),
        Elementwise("mean", kept, f32, apply_scalar("div", Arg(0), Arg(1)), (Use("total", kept), number)),
        Elementwise("c", axes, f32, apply_scalar("sub", Arg(0), Arg(1)), (Use("x", axes), row)),
        Elementwise("q", axes, f32, apply_scalar("mul", Arg(0), Arg(0)), (whole,)),
        Reduction("squares", kept, f32, Monoid.sum, Use("q", axes), reduced),
        Elementwise("y", axes, dtype, apply_scalar("div", Arg(0), root), (whole, Use("squares", kept), number)),
    ), ("y",))  # fmt: skip


def at_random(rng: random.Random) -> tuple[TensorProgram, dict[str, int]]:
    """Elementwise work and reductions over subsets of the dimensions of one tensor, each of what came before; and sizes."""
    axes = tensor_axes(rng.randint(1, 5))
    sizes = {a.space.name: rng.choice((2, 3, 7, 13, 64, 129, 1000)) for a in axes}
    longest = rng.choice(axes).space.name
    sizes[longest] = max(
        1, min(1 << 22, (1 << rng.randint(10, 28)) // math.prod(n for s, n in sizes.items() if s != longest))
    )
    made: list[Use] = [Use("x", axes)]
    nodes: list[Node] = []
    for number in range(rng.randint(2, 6)):
        name, one, other = f"v{number}", rng.choice(made), rng.choice(made)
        if rng.random() < 0.5 and one.axes:
            over = tuple(a for a in one.axes if rng.random() < 0.5) or one.axes[-1:]
            kept = tuple(a for a in one.axes if a not in over)
            nodes.append(Reduction(name, kept, DType.float32, rng.choice((Monoid.sum, Monoid.max)), one, over))
        else:
            kept = tuple(a for a in axes if a in {*one.axes, *other.axes})
            op = rng.choice(("add", "mul", "sub"))
            nodes.append(Elementwise(name, kept, DType.float32, apply_scalar(op, Arg(0), Arg(1)), (one, other)))
        made.append(Use(name, nodes[-1].axes))
    read = {u.value for n in nodes if isinstance(n, Elementwise) for u in n.args} | {
        n.arg.value for n in nodes if isinstance(n, Reduction)
    }
    outputs = tuple(n.name for n in nodes if n.name not in read)
    return TensorProgram((programs.tensor("x", *axes),), tuple(nodes), outputs), sizes


def example(program: TensorProgram, sizes: dict[str, int]) -> Example:
    """With the last dimension of each input along memory."""
    return Example(sizes, {n.name: len(n.axes) - 1 for n in program.inputs}, 2, H200)


def passes_of(program: TensorProgram, sizes: dict[str, int]) -> list[TensorProgram]:
    """The finest parts that regions of `program` are cut into."""
    found: list[TensorProgram] = []
    for stage in partition(program):
        assert isinstance(stage, Region)
        parts_, _ = between_passes(program, stage, sizes)
        found += [part.program for part in parts_]
    return found


@pytest.mark.parametrize("seed", range(RANDOM))
def test_every_pass_over_a_tensor_has_a_schedule_that_fits(seed: int) -> None:
    program, sizes = at_random(random.Random(f"nests {seed}"))
    for part in passes_of(program, sizes):
        own = numbered(part, {})
        names = dict(zip((s.name for s in own.spaces()), (sizes[s.name] for s in part.spaces()), strict=True))
        found = select(own, example(own, names))
        assert found.chosen.cost.predicted_seconds > 0


def last_two(program: TensorProgram, sizes: dict[str, int]) -> tuple[TensorProgram, TensorProgram]:
    """The passes before the last one as one region, and the last one."""
    (stage,) = partition(program)
    assert isinstance(stage, Region)
    passes, again = between_passes(program, stage, sizes)
    return united(program, passes[:-1], again).program, passes[-1].program


def test_a_norm_over_three_long_dimensions_is_two_passes_over_memory_by_all_multiprocessors() -> None:
    program, sizes = layer_norm(4, 3), {"A0": 16, "A1": 64, "A2": 256, "A3": 256}
    moved = math.prod(sizes.values()) * 4
    statistics, result = last_two(program, sizes)
    assert [n.name for n in statistics.inputs] == ["x"]
    assert statistics.outputs == ("total", "squares"), "the differences from the mean are made again, not stored"
    assert {n.name for n in result.inputs} == {"x", "total", "squares"}
    first = select(statistics, example(statistics, sizes)).chosen
    assert first.cost.bytes_read < 1.01 * moved, "mean and deviations are one loop"
    assert LevelPlace.split in {v.place for _, loop in first.schedule.loops for v in loop.levels}
    floor = moved / gpu(H200).dram
    assert first.cost.predicted_seconds < 1.6 * floor
    second = select(result, example(result, sizes)).chosen
    assert second.cost.predicted_seconds < 1.3 * 2 * floor


def test_rows_across_memory_are_reduced_and_scaled_in_one_pass_by_lanes_along_memory() -> None:
    axes = tensor_axes(4)
    kept = (axes[0], *axes[2:])
    program = TensorProgram((programs.tensor("x", *axes),), (
        Reduction("s", kept, DType.float32, Monoid.sum, Use("x", axes), axes[1:2]),
        Elementwise("y", axes, DType.float32, apply_scalar("mul", Arg(0), Arg(1)), (Use("x", axes), Use("s", kept))),
    ), ("y",))  # fmt: skip
    sizes = {"A0": 16, "A1": 64, "A2": 256, "A3": 256}
    found = select(program, example(program, sizes)).chosen
    along = {m.name for m in maps(found.fused.graph) if m.axis.space.name == "A3"}
    assert min(found.schedule.of(name).levels[-1].size for name in along) >= 8, "a sector of memory is used whole"
    assert found.cost.predicted_seconds < 1.3 * 2 * math.prod(sizes.values()) * 4 / gpu(H200).dram


@pytest.mark.parametrize("over", [1, 2, 3])
def test_moments_over_several_dimensions_are_one_loop(over: int) -> None:
    program = layer_norm(4, over)
    (fold,) = chains(program).found.folds
    assert [a.space.name for a in fold.over] == ["A1", "A2", "A3"][-over:]
    lowered = canonical(fuse(lower(chains(program).program, (fold,)), RULES_IN_PLANS).last)
    levels = {m.name: LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else 2),)) for m in maps(lowered.graph)}
    assert verify(program, apply(lowered, Schedule(tuple(levels.items())))).equal


def test_nested_loops_share_the_elements_of_a_block() -> None:
    program: BlockProgram = canonical(fuse(lower(layer_norm(4, 3), lengths=SIZES), RULES_IN_PLANS).last)
    for seed in range(20):
        rng = random.Random(seed)
        sizes = {name: rng.choice((1, 3, 7, 64, 1000, 1 << 20)) for name in SIZES}
        known = parts(program, sizes, {})
        for blocks in (Blocks(tile=e, along=a, across=c) for e in (64, 4096) for a in (0, 32) for c in (False, True)):
            wanted = schedule(program, replace(known, of=dict.fromkeys(known.of, LoopRole.lanes)), blocks, sizes)
            for nest in nests(program.graph):
                lengths = {m.name: power_of_two(m.axis.space.size(sizes)) for m in maps(program.graph)}
                tiles = [wanted.of(n).levels[-1].size or lengths[n] for n in nest]
                assert math.prod(tiles) <= blocks.tile, (sizes, blocks, nest)


NAMES = tuple(cases())


def test_nests_are_right_in_the_interpreter(tmp_path: Path) -> None:
    names = share(NAMES, 24, 2)
    found = interpreted("gpu_reductions", "1", *names, cache=tmp_path / "cache")
    assert list(found) == names
    for name, row in found.items():
        assert row["kernels"] >= 1, name
        assert row["right"], name
        assert row["left"] == [], name
