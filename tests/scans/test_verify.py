"""Planted mistakes in scans are refuted; right ones under every schedule are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block.rankings import every
from testkit.block.scans import M, N, fused, log_sums, log_sums_of_a_row, recurrence, row, scan
from testkit.emit.comparing import scheduled
from weft.block.program import BlockNode, BlockProgram, Fill, Graph, Map, Pointwise, Prefix
from weft.block.ranges import All
from weft.block.walk import maps, with_maps
from weft.errors import ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.merge import Monoid, StateMerge
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit, substitute
from weft.tensor.scalar import apply as apply_
from weft.verify import verify


def placed(monoid: Monoid = Monoid.sum, tile: int = 4) -> BlockProgram:
    levels = {"m": Level(LevelPlace.grid, 2), "n": Level(LevelPlace.loop, tile)}
    return apply(fused(scan(monoid)), Schedule(tuple((n, LoopSchedule((each,))) for n, each in levels.items())))


def of_another_monoid(node: BlockNode) -> BlockNode:
    return replace(node, merge=StateMerge.of(Monoid.prod)) if isinstance(node, Prefix) else node


def loops(program: BlockProgram, change: Callable[[Map], Map]) -> BlockProgram:
    """`program` with its loops that carry a state changed."""

    def graph(old: Graph) -> Graph:
        return replace(old, nodes=tuple(node(n) for n in old.nodes))

    def node(old: BlockNode) -> BlockNode:
        if not isinstance(old, Map):
            return old
        return change(old) if old.state is not None else replace(old, body=graph(old.body))

    return replace(program, graph=graph(program.graph))


def begun_with_one(node: Map) -> Map:
    assert node.state is not None
    components = tuple(replace(c, init=1.0) for c in node.state.components)
    return replace(node, state=replace(node.state, components=components))


def each_block_by_itself(node: Map) -> Map:
    """The state is left as it was."""
    assert node.state is not None
    update = node.state.update
    return replace(node, state=replace(node.state, update=replace(update, outputs=(update.inputs[0],))))


def counted_twice(node: Map) -> Map:
    """Add what came before to what already has it."""
    assert node.state is not None
    update = node.state.update
    (own,) = node.state.components
    both = Pointwise("both", apply_("add", Arg(0), Arg(1)), update.inputs, own.dims, own.dtype)
    return replace(node, state=replace(node.state, update=Graph(update.inputs, (both,), ("both",))))


def one_more(node: Map) -> Map:
    """One is added to each element of a block but in what is carried."""
    (prefix,) = (n for n in node.body.nodes if isinstance(n, Prefix))
    off = Pointwise("off", apply_("add", Arg(0), Lit(1.0)), (prefix.name,), prefix.dims, prefix.dtypes[0])
    nodes = [m for n in node.body.nodes for m in ((n, off) if n is prefix else (n,))]
    read = [replace(n, value="off") if getattr(n, "value", None) == prefix.name else n for n in nodes]
    return replace(node, body=replace(node.body, nodes=tuple(read)))


MISTAKES: dict[str, Callable[[BlockProgram], BlockProgram]] = {
    "another monoid": lambda p: every(p, of_another_monoid),
    "another beginning": lambda p: loops(p, begun_with_one),
    "each block by itself": lambda p: loops(p, each_block_by_itself),
    "counted twice": lambda p: loops(p, counted_twice),
    "one more": lambda p: loops(p, one_more),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_refuted(mistake: Callable[[BlockProgram], BlockProgram]) -> None:
    applied = placed()
    assert verify(scan(), applied).agrees
    assert not verify(scan(), mistake(applied)).agrees


def in_segments(tensors: TensorProgram, over: str = "n", together: int = 1, parts: int = 3) -> BlockProgram:
    """Scans along `over`, each in so many segments; with several merged `together`, each merges those before it by itself."""
    alone = LoopSchedule((Level(LevelPlace.grid, 2),))
    split = LoopSchedule((Level(LevelPlace.split, parts), Level(LevelPlace.loop, 4)))
    loops_ = ((m.name, split if m.name == over else alone) for m in maps(fused(tensors).graph))
    return apply(fused(tensors), Schedule(tuple(loops_), together=together))


@pytest.mark.parametrize("together", [1, 2, 512])
@pytest.mark.parametrize("monoid", [m for m in Monoid if m is not Monoid.prod])
def test_a_row_in_segments_agrees(monoid: Monoid, together: int) -> None:
    assert verify(row(monoid), in_segments(row(monoid), together=together)).agrees


def test_products_of_floats_are_not_cut_in_segments() -> None:
    """Those of a segment may overflow where a 0 before them makes all of them 0: no field shows that."""
    with pytest.raises(ScheduleError, match="may overflow"):
        in_segments(row(Monoid.prod))


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("over", [M, N], ids=str)
@pytest.mark.parametrize("monoid", [m for m in Monoid if m is not Monoid.prod])
def test_rows_and_columns_in_segments_agree(monoid: Monoid, over: Axis, together: int) -> None:
    applied = in_segments(scan(monoid, over=over), over.name, together)
    assert len(kernels(applied)) == (3 if together == 1 else 2)
    assert verify(scan(monoid, over=over), applied).agrees


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("over", [None, M, N], ids=str)
def test_a_mistake_in_any_pass_over_segments_is_refuted(index: int, over: Axis | None) -> None:
    """Each pass begins with one in place of 0, or of what came before: the last takes what it resumes for nothing."""
    tensors = row() if over is None else scan(over=over)
    applied = in_segments(tensors, "n" if over is None else over.name)
    nodes = list(applied.graph.nodes)
    place = [i for i, n in enumerate(nodes) if isinstance(n, Map)][index]
    nodes[place] = _wrong(nodes[place])
    assert not verify(tensors, replace(applied, graph=replace(applied.graph, nodes=tuple(nodes)))).agrees


def _wrong(node: BlockNode) -> BlockNode:
    if not isinstance(node, Map):
        return node
    if node.state is None:
        return replace(node, body=replace(node.body, nodes=tuple(map(_wrong, node.body.nodes))))
    return _wrong_state(node)


def _wrong_state(node: Map) -> Map:
    assert node.state is not None
    components = tuple(replace(c, init=1.0) for c in node.state.components)
    return replace(node, state=replace(node.state, components=components, resume=None))


def changed(program: BlockProgram, number: int, change: Callable[[Map], Map]) -> BlockProgram:
    """`program` with the loop with a state that is the so-manieth changed."""
    found = [m.name for m in maps(program.graph) if m.state is not None][number]
    return replace(program, graph=with_maps(program.graph, lambda m: change(m) if m.name == found else m))


def filled_with_one(node: Map) -> Map:
    """Count what is beyond the last segment before this one."""
    nodes = tuple(replace(n, value=1.0) if isinstance(n, Fill) else n for n in node.body.nodes)
    return replace(node, body=replace(node.body, nodes=nodes))


MERGED: dict[str, tuple[int, Callable[[Map], Map]]] = {
    "a segment begins with one": (0, begun_with_one),
    "the merge begins with one": (1, begun_with_one),
    "the merge takes all segments": (1, lambda m: replace(m, range=All())),
    "the merge takes what comes after": (1, filled_with_one),
    "nothing came before": (2, _wrong_state),
}


@pytest.mark.parametrize("over", [None, M, N], ids=str)
@pytest.mark.parametrize("mistake", MERGED.values(), ids=MERGED)
def test_a_mistake_where_segments_merge_those_before_them_is_refuted(
    mistake: tuple[int, Callable[[Map], Map]], over: Axis | None
) -> None:
    tensors = row() if over is None else scan(over=over)
    applied = in_segments(tensors, "n" if over is None else over.name, 2, 5)
    assert verify(tensors, applied).agrees
    assert not verify(tensors, changed(applied, *mistake)).agrees


@pytest.mark.parametrize("mistake", [None, *(m for m in MERGED.values())], ids=["none", *MERGED])
def test_states_that_segments_merge_by_themselves(mistake: tuple[int, Callable[[Map], Map]] | None) -> None:
    applied = in_segments(log_sums_of_a_row(), together=2, parts=5)
    assert len(kernels(applied)) == 2
    found = applied if mistake is None else changed(applied, *mistake)
    assert verify(log_sums_of_a_row(), found).agrees == (mistake is None)


def test_a_scan_along_the_other_axis_is_refuted() -> None:
    assert not verify(scan(over=M), placed()).agrees


def test_extrema_are_told_apart() -> None:
    for monoid, other in ((Monoid.max, Monoid.min), (Monoid.min, Monoid.max)):
        assert verify(scan(monoid), placed(monoid)).agrees
        assert not verify(scan(other), placed(monoid)).agrees


@pytest.mark.parametrize("dtype", [DType.float32, DType.int64, DType.bool], ids=str)
@pytest.mark.parametrize("monoid", [Monoid.sum, Monoid.prod])
def test_right_ones_agree_under_any_schedule(monoid: Monoid, dtype: DType) -> None:
    rng = random.Random(f"{monoid} {dtype}")
    for over in (M, N):
        tensors = scan(monoid, dtype, over)
        assert verify(tensors, scheduled(fused(tensors), rng)).agrees


# States of several components.


def placed_states(tensors: TensorProgram) -> BlockProgram:
    levels = {"m": Level(LevelPlace.grid, 2), "n": Level(LevelPlace.loop, 4)}
    return apply(fused(tensors), Schedule(tuple((n, LoopSchedule((each,))) for n, each in levels.items())))


def merged_by(change: Callable[[StateMerge], StateMerge]) -> Callable[[BlockProgram], BlockProgram]:
    """Change how the states of a block are merged."""

    def changed(node: BlockNode) -> BlockNode:
        return replace(node, merge=change(node.merge)) if isinstance(node, Prefix) else node

    return lambda program: every(program, changed)


def turned(merge: StateMerge) -> StateMerge:
    """The right part is taken for the left one."""
    size = merge.size
    parts = tuple(substitute(part, lambda i: Arg((i + size) % (2 * size))) for part in merge.parts)
    return replace(merge, parts=parts)


def without_shares(merge: StateMerge) -> StateMerge:
    """Sums are added whatever their exponents are."""
    size = merge.size
    sums = tuple(apply_("add", Arg(i), Arg(size + i)) for i in range(1, size))
    return replace(merge, parts=(merge.parts[0], *sums))


def of_the_left_alone(merge: StateMerge) -> StateMerge:
    return replace(merge, parts=(*merge.parts[:-1], Arg(merge.size - 1)))


def with_the_least_exponent(merge: StateMerge) -> StateMerge:
    return replace(merge, parts=(apply_("minimum", Arg(0), Arg(merge.size)), *merge.parts[1:]))


STATE_MISTAKES: dict[str, tuple[TensorProgram, Callable[[BlockProgram], BlockProgram]]] = {
    "sides exchanged": (recurrence(), merged_by(turned)),
    "the left part alone": (recurrence(), merged_by(of_the_left_alone)),
    "another beginning of a recurrence": (recurrence(), lambda p: loops(p, begun_with_one)),
    "another beginning": (log_sums(), lambda p: loops(p, begun_with_one)),
    "without shares": (log_sums(), merged_by(without_shares)),
    "the least exponent": (log_sums(), merged_by(with_the_least_exponent)),
    "the left sum alone": (log_sums(), merged_by(of_the_left_alone)),
}


@pytest.mark.parametrize(("tensors", "mistake"), STATE_MISTAKES.values(), ids=STATE_MISTAKES)
def test_a_planted_mistake_in_a_merge_is_refuted(
    tensors: TensorProgram, mistake: Callable[[BlockProgram], BlockProgram]
) -> None:
    applied = placed_states(tensors)
    assert verify(tensors, applied).agrees
    assert not verify(tensors, mistake(applied)).agrees


@pytest.mark.parametrize("over", [M, N], ids=str)
@pytest.mark.parametrize("made", [log_sums, recurrence])
def test_states_agree_under_any_schedule(made: Callable[..., TensorProgram], over: Axis) -> None:
    rng, tensors = random.Random(3), made(over=over)
    for _ in range(3):
        assert verify(tensors, scheduled(fused(tensors), rng)).agrees


@pytest.mark.parametrize("index", [None, 0, 1, 2])
def test_states_in_segments_agree_and_a_mistake_in_any_pass_is_refuted(index: int | None) -> None:
    applied = in_segments(log_sums_of_a_row())
    nodes = list(applied.graph.nodes)
    if index is not None:
        place = [i for i, n in enumerate(nodes) if isinstance(n, Map)][index]
        nodes[place] = _wrong(nodes[place])
    found = replace(applied, graph=replace(applied.graph, nodes=tuple(nodes)))
    assert verify(log_sums_of_a_row(), found).agrees == (index is None)
