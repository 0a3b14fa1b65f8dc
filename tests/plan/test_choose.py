"""The chosen schedule: one that fits, the same in every process, and one for all sizes of a class."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from testkit.block import programs
from testkit.schedules import fused
from weft.block.check import body_types, infer
from weft.block.program import Map
from weft.block.scope import Scope
from weft.block.walk import maps, spaces
from weft.plan.targets.choose import choose
from weft.schedule import LevelPlace, Schedule, apply
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid


def chosen(name: str, threads: int = 2, innermost: int | None = 1, **sizes: int) -> Schedule:
    program = programs.ALL[name]()
    block = fused(program)
    every = {s.name: sizes.get(s.name, 1024) for s in program.spaces()}
    return choose(block, every, {n: innermost for n, _ in block.inputs}, threads)


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("size", [1, 7, 130, 5000])
def test_it_fits(name, size):
    block = fused(programs.ALL[name]())
    apply(block, chosen(name, M=size, N=size, K=size))


def test_lengths_of_a_class_share_a_schedule():
    assert len({chosen("linear_relu", M=m) for m in (513, 600, 1000, 40000)}) == 1
    assert len({chosen("linear_relu", K=k) for k in (1, 70, 1000, 40000)}) == 1


def test_few_rows_are_not_staged_and_rows_that_do_not_lie_dense_are():
    assert chosen("linear_relu", M=4).panels == frozenset()
    assert chosen("linear_relu", M=400).panels
    assert chosen("linear_relu", M=400, innermost=1).rows == frozenset()
    assert chosen("linear_relu", M=400, innermost=0).rows


def test_columns_that_lie_dense_are_not_staged_for_few_rows():
    """The product with them is turned: what the innermost dimension of the weights is decides."""
    by_columns, by_rows = ([chosen("linear_relu", M=m, innermost=i).panels for m in (20, 400)] for i in (0, 1))
    assert by_columns[0] == frozenset()
    assert by_columns[1]
    assert all(by_rows)


def test_every_thread_gets_a_block():
    one, many = (dict(chosen("linear_relu", threads=t, M=512, N=512).loops) for t in (1, 8))
    assert many["n"].levels[0].size < one["n"].levels[0].size
    assert many["n"].levels[0].place is LevelPlace.grid


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("size", [1, 256, 768, 2304, 2816, 50257])
def test_columns_of_few_rows_are_shared_out_evenly(size: int, threads: int) -> None:
    """No thread reads more of a matrix that is read once than another by a remainder, and blocks are as long as that allows."""
    (level,) = dict(chosen("linear_relu", threads=threads, M=1, N=size).loops)["n"].levels
    blocks = math.ceil(size / level.size)
    most = math.ceil(blocks / threads) * level.size
    assert most <= size / threads + 64 * math.ceil(blocks / threads)
    assert level.size == 2048 or level.size % 64 == 0
    assert blocks <= threads * math.ceil(size / (2048 * threads))


def test_blocks_are_smaller_where_the_cache_is():
    block = fused(programs.linear_relu())
    sizes = {s.name: 4096 for s in programs.linear_relu().spaces()}
    large, small = (
        dict(choose(block, sizes, dict.fromkeys("xwb", 1), 2, cache).loops) for cache in (2 << 20, 256 << 10)
    )
    assert large["m"].levels[0].size > small["m"].levels[0].size >= 32


@pytest.mark.parametrize("dims", [(0, 3), (1, 3), (0, 2), (1,)])
def test_blocks_of_many_dimensions_fit_in_memory(dims):
    """A product in the program gives all other loops long blocks; together they were 2048^3 elements."""
    builder = Builder()
    x = builder.input("x", (9, 8, 10, 11), DType.float32)
    summed = builder.reduce(Monoid.sum, x, dims)
    block = fused(builder.finish([builder.matmul(summed, builder.transpose(summed, -1, -2))]))
    sizes = {s.name: 300 for s in spaces(block)}
    schedule = choose(block, sizes, {"x": 3}, 1)
    applied = apply(block, schedule)
    tiles = {m.axis: m.tile or 300 for m in maps(applied.graph)}

    def blocks(graph, inputs, scope):
        types = infer(graph, inputs, scope)
        yield from (math.prod(tiles[a] for a in kind.dims) for kind in types.values() if not kind.buffered)
        for node in graph.nodes:
            if isinstance(node, Map):
                yield from blocks(node.body, body_types(node, types), scope.inside(node))

    assert max(blocks(applied.graph, dict(applied.inputs), Scope({}, applied=True))) <= 1 << 22


def test_it_is_the_same_in_every_process():
    """Sets have another order in every process, unless their hash is seeded; a schedule must not show it."""
    text = (
        "import sys; sys.path[:0] = ['tests/plan', 'tests'];"
        "from test_choose import chosen; print([str(chosen(n)) for n in ('gated', 'two_layers', 'linear_relu')])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", text], env={"PYTHONHASHSEED": str(seed)}, check=True, capture_output=True
        ).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1
