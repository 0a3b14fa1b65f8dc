"""Scans as block programs: what they lower to, what is fused with them, what the checker demands, what schedules they take."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from testkit.block.rankings import every
from testkit.block.scans import (
    F32,
    LINEAR,
    M,
    N,
    between,
    fused,
    log_sums_of_a_row,
    of_states,
    recurrence,
    row,
    scan,
    summed,
    twice,
)
from testkit.emit.comparing import scheduled
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockNode, Fill, Final, Pointwise, Prefix
from weft.block.walk import every as every_node
from weft.block.walk import maps
from weft.cascade import folds
from weft.errors import InvalidProgramError, ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels, merged_in_each
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.merge import of_exponentials
from weft.tensor.program import Elementwise, Input, Monoid, Reduction, Scan, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, rewritten, substitute
from weft.tensor.scalar import apply as apply_


def test_elementwise_work_on_both_sides_is_fused_into_the_loop() -> None:
    assert listing(fused(between())).splitlines() == [
        "forall m in range(M):",
        "  for n in range(N):",
        "    t1 = load(X[m,n])",
        "    t2 = t1*2",
        "    t4,t5 = sums(t3,t2)",
        "    t6 = t4-t2",
        "    store(t6,O2[m,n])",
        "    t7 = load(B[n])",
        "    t8 = col_shift(t4,t7)",
        "    store(t8,O1[m,n])",
        "    t3 = t5",
    ]


def test_scans_of_one_row_are_one_loop() -> None:
    program = fused(twice())
    assert [m.state is not None for m in maps(program.graph)] == [False, True]
    assert sum(isinstance(n, Prefix) for n in every_node(program.graph.nodes)) == 3


@pytest.mark.parametrize("over", [M, N], ids=str)
@pytest.mark.parametrize("monoid", Monoid)
def test_blocks_of_any_size_give_what_the_whole_gives(monoid: Monoid, over: object) -> None:
    rng, domain = random.Random(str(monoid)), Fp64Domain()
    program = lower(scan(monoid, over=M if over == M else N))
    way = {Monoid.sum: np.add, Monoid.prod: np.multiply, Monoid.max: np.maximum, Monoid.min: np.minimum}[monoid]
    for m, n in ((1, 1), (3, 7), (5, 16), (0, 4), (4, 0)):
        x = np.random.default_rng(rng.randrange(1 << 30)).integers(1, 4, (m, n)).astype(np.float64)
        wanted = way.accumulate(x, axis=0 if over == M else 1)
        for _ in range(4):
            applied = scheduled(program, rng)
            (found,), _ = interpret(applied, {"x": x}, {"M": m, "N": n}, domain)
            np.testing.assert_array_equal(found, wanted, err_msg=listing(applied))


@pytest.mark.parametrize("over", [M, N], ids=str)
def test_states_are_merged_in_their_order_in_blocks_of_any_size(over: Axis) -> None:
    """Matrices of two steps do not commute: h = a h + b."""
    rng, domain = random.Random(7), Fp64Domain()
    program = lower(recurrence(over=over))
    for m, n in ((1, 1), (3, 7), (5, 16), (0, 4), (4, 0)):
        a, b = (np.random.default_rng(seed).integers(-2, 3, (m, n)).astype(np.float64) for seed in (1, 2))
        h, wanted = 0.0, np.zeros((m, n))
        steps = zip(a.T, b.T, strict=True) if over == N else zip(a, b, strict=True)
        for place, (factor, term) in enumerate(steps):
            h = factor * h + term
            wanted[(slice(None), place) if over == N else place] = h
        for _ in range(4):
            applied = scheduled(program, rng)
            (products, found), _ = interpret(applied, {"a": a, "b": b}, {"M": m, "N": n}, domain)
            np.testing.assert_array_equal(found, wanted, err_msg=listing(applied))
            np.testing.assert_array_equal(products, np.multiply.accumulate(a, axis=1 if over == N else 0))


def test_all_results_of_a_scan_are_one_loop() -> None:
    assert listing(fused(recurrence())).splitlines()[2:] == [
        "  for n in range(N):",
        "    t3 = load(A[m,n])",
        "    t4 = load(B[m,n])",
        "    t5,t6,t7,t8 = merged(t1,t2,t3,t4)",
        "    store(t6,O2[m,n])",
        "    store(t5,O1[m,n])",
        "    t1, t2 = t7, t8",
    ]


def test_states_whose_factors_are_shares_go_in_segments_and_others_do_not() -> None:
    applied = apply(fused(log_sums_of_a_row()), _alone(*SEGMENTS))
    for length in (0, 1, 5, 12, 13, 30, 47):
        x = np.random.default_rng(length).standard_normal(length) * 1e4
        (found,), _ = interpret(applied, {"x": x}, {"N": length}, Fp64Domain())
        np.testing.assert_allclose(found, np.logaddexp.accumulate(x) if length else x, rtol=1e-14)
    nodes = of_states(LINEAR, (Use("a", (N,)), Use("b", (N,))), (Arg(0), Arg(1)), F32, N)
    steps = TensorProgram((Input("a", (N,), F32), Input("b", (N,), F32)), nodes, ("y1",))
    with pytest.raises(ScheduleError, match="may overflow"):
        apply(fused(steps), _alone(*SEGMENTS))


def test_the_merge_of_exponentials_is_the_one_that_a_cascade_derives() -> None:
    """Inline the derived merge of a maximum and a sum of exponentials beside it, and compare it as it stands."""
    both = (M, N)
    less = apply_("sub", Arg(0), Arg(1))
    nodes = (
        Reduction("m", (M,), F32, Monoid.max, Use("x", both), (N,)),
        Elementwise("e", both, F32, apply_("exp", less), (Use("x", both), Use("m", (M,)))),
        Reduction("s", (M,), F32, Monoid.sum, Use("e", both), (N,)),
    )
    (fold,) = folds(TensorProgram((Input("x", both, F32),), nodes, ("m", "s"))).folds
    derived, place = fold.state.merge, {c.name: i for i, c in enumerate(fold.state.components)}
    # Its exponent is z, the maximum without -inf, of which m is the other name.
    sides = [derived.inputs[place[name] + side * len(place)] for side in (0, 1) for name in ("z", "s")]
    known: dict[str, Scalar] = {name: Arg(i) for i, name in enumerate(sides)}
    for node in derived.nodes:
        assert isinstance(node, Pointwise)
        if set(node.args) <= set(known):
            known[node.name] = substitute(node.expr, lambda i, args=node.args: known[args[i]])

    def plain(expr: Scalar) -> Scalar:
        """Writes as an exponential, too, the 1 by which a part with the greatest exponent is multiplied."""
        match expr:
            case Apply("where", (Apply("eq"), Lit(1.0), Apply("exp", (exponent,)))):
                return Apply("decay", (exponent,))
            case _:
                return rewritten(expr, plain)

    found = [known[derived.outputs[place[name]]] for name in ("z", "s")]
    assert found == [plain(part) for part in of_exponentials(1).parts]


def test_what_comes_before_a_row_is_carried_in_fp64_where_the_target_computes_in_it() -> None:
    def carried(dtype: DType, monoid: Monoid, *, doubles: bool = True) -> DType:
        loop = next(m for m in maps(lower(scan(monoid, dtype), doubles=doubles).graph) if m.state is not None)
        assert loop.state is not None
        return loop.state.components[0].dtype

    assert carried(DType.float32, Monoid.sum) is carried(DType.bfloat16, Monoid.prod) is DType.float64
    assert carried(DType.float32, Monoid.sum, doubles=False) is carried(DType.float16, Monoid.max) is DType.float32
    assert carried(DType.bool, Monoid.sum) is carried(DType.int32, Monoid.max) is DType.int64


def test_the_padding_of_what_is_scanned_holds_the_identity() -> None:
    applied = apply(fused(scan()), _levels((LevelPlace.loop, 4)))
    check(applied)

    def unfilled(node: BlockNode) -> BlockNode:
        return replace(node, value=1.0) if isinstance(node, Fill) else node

    with pytest.raises(InvalidProgramError, match="padding along"):
        check(every(applied, unfilled))


@pytest.mark.parametrize(
    ("condition", "change"),
    [
        ("what came before has the axes of a whole", lambda p: replace(p, accs=p.args)),
        ("combined elements have the axes of what they are made of", lambda p: replace(p, args=p.accs)),
        ("states that are merged have the same components", lambda p: replace(p, merge=LINEAR)),
        ("elements are combined along an axis that they have", lambda p: replace(p, over=Axis("other", N.space))),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused(condition: str, change: Callable[[Prefix], Prefix]) -> None:
    with pytest.raises(InvalidProgramError, match=condition):
        check(every(fused(scan()), lambda node: change(node) if isinstance(node, Prefix) else node))


@pytest.mark.parametrize(
    "levels",
    [
        ((LevelPlace.loop, 16), (LevelPlace.loop, 4)),
        ((LevelPlace.grid, 4),),
    ],
)
def test_a_scan_goes_one_way_in_one_piece(levels: tuple[tuple[LevelPlace, int], ...]) -> None:
    for program in (fused(scan()), fused(summed())):
        with pytest.raises((ScheduleError, InvalidProgramError)):
            apply(program, _levels(*levels))


SEGMENTS = ((LevelPlace.split, 3), (LevelPlace.loop, 4))


def test_a_row_in_segments_begins_each_where_the_one_before_ends() -> None:
    applied = apply(fused(row()), _alone(*SEGMENTS))
    assert listing(applied).splitlines()[6:13] == [
        "    t5 += sum(t4)",
        "  store(t5,I1[ns])",
        "for ns in range(NS):  # loop, 1 a block",
        "  t7 = t6",
        "  t8 = load(I1[ns])",
        "  t6 += t8",
        "  store(t7,I2[ns])",
    ]
    for length in (0, 1, 5, 12, 13, 30, 47):
        x = np.arange(float(length))
        (found,), _ = interpret(applied, {"x": x}, {"N": length}, Fp64Domain())
        np.testing.assert_array_equal(found, np.cumsum(-x) + 1)


def test_each_segment_merges_those_before_it_many_at_once() -> None:
    applied = apply(fused(row()), replace(_alone(*SEGMENTS), together=2))
    assert listing(applied).splitlines()[7:18] == [
        "  t6 = t5",
        "  store(t6,I1[ns])",
        "forall ns in range(NS):  # grid, 1 a block",
        "  for ns1 in range(NS before ns):  # loop, 2 a block",
        "    t7 = load(I1[ns1])",
        "    t8 = t7",
        "    t9 = fill(t8, 0.0)",
        "    t10 += sum(t9)",
        "  t11 = t10",
        "  for n in range(N segment ns of 3):  # loop, 4 a block",
        "    t12 = load(X[n])",
    ]


def test_segments_that_merge_those_before_them_give_what_the_whole_gives() -> None:
    """Merges by each monoid, and pairs: fewer segments than a block has, as many, and several blocks with a rest."""
    ways = {Monoid.sum: np.add, Monoid.max: np.maximum, Monoid.min: np.minimum}
    rng = np.random.default_rng(5)
    for parts, together in ((1, 2), (2, 8), (4, 4), (7, 2), (7, 3)):
        split = ((LevelPlace.split, parts), (LevelPlace.loop, 4))
        for (monoid, way), over in product(ways.items(), (M, N)):
            levels = {"m": ((LevelPlace.grid, 2),), "n": ((LevelPlace.grid, 2),)} | {over.name: split}
            loops = tuple((n, LoopSchedule(tuple(Level(*each) for each in own))) for n, own in levels.items())
            applied = apply(fused(scan(monoid, over=over)), Schedule(loops, together=together))
            assert len(kernels(applied)) == 2
            for m, n in ((1, 1), (5, 37), (29, 3), (0, 4), (4, 0)):
                x = rng.integers(-9, 9, (m, n)).astype(np.float64)
                (found,), _ = interpret(applied, {"x": x}, {"M": m, "N": n}, Fp64Domain())
                np.testing.assert_array_equal(found, way.accumulate(x, axis=0 if over == M else 1))
        applied = apply(fused(log_sums_of_a_row()), replace(_alone(*split), together=together))
        assert len(kernels(applied)) == 2
        for length in (0, 1, 13, 30, 47):
            x = rng.standard_normal(length) * 1e4
            (found,), _ = interpret(applied, {"x": x}, {"N": length}, Fp64Domain())
            np.testing.assert_allclose(found, np.logaddexp.accumulate(x) if length else x, rtol=1e-14)


def test_what_is_wanted_of_the_whole_row_too_is_merged_in_a_loop_over_segments() -> None:
    scanned = Scan.of(Monoid.sum, "y", (N,), F32, Use("x", (N,)), N)
    total = Reduction("t", (), F32, Monoid.max, Use("x", (N,)), (N,))
    program = fused(TensorProgram((Input("x", (N,), F32),), (scanned, total), ("y", "t")))
    applied = apply(program, replace(_alone(*SEGMENTS), together=2))
    assert len(kernels(applied)) == 3
    x = np.arange(30.0) - 7
    (found, most), _ = interpret(applied, {"x": x}, {"N": 30}, Fp64Domain())
    np.testing.assert_array_equal(found, np.cumsum(x))
    assert most == x.max()


def test_which_loops_have_a_state_that_nothing_but_a_scan_in_them_wants() -> None:
    scanned = Scan.of(Monoid.sum, "y", (N,), F32, Use("x", (N,)), N)
    total = Reduction("t", (), F32, Monoid.max, Use("x", (N,)), (N,))
    alone, both = (TensorProgram((Input("x", (N,), F32),), (scanned, *rest), ("y",)) for rest in ((), (total,)))
    (own,), (other,) = (
        tuple(maps(fused(replace(p, outputs=tuple(n.name for n in p.nodes))).graph)) for p in (alone, both)
    )
    assert own.state is not None
    assert merged_in_each(own)
    assert not merged_in_each(other)
    lists = tuple(o for o in other.outputs if not isinstance(o, Final))
    assert not merged_in_each(replace(other, outputs=lists)), "its greatest element is no prefix"
    (component,) = own.state.components
    assert not merged_in_each(replace(own, outputs=(*own.outputs, Final("last", component.name)))), (
        "its whole is wanted"
    )
    assert not merged_in_each(replace(own, state=None))


@pytest.mark.parametrize("together", [1, 4])
def test_a_scan_in_a_loop_with_a_state_of_its_own_is_in_one_piece(together: int) -> None:
    """Scan each row with a number added, and sum these numbers: the rows are a loop that carries their sum."""
    both, shift = (M, N), apply_("add", Arg(0), Arg(1))
    nodes = (
        Elementwise("d", both, F32, shift, (Use("x", both), Use("w", (M,)))),
        Scan.of(Monoid.sum, "y", both, F32, Use("d", both), N),
        Reduction("z", (), F32, Monoid.sum, Use("w", (M,)), (M,)),
    )
    program = fused(TensorProgram((Input("x", both, F32), Input("w", (M,), F32)), nodes, ("y", "z")))
    rows = LoopSchedule((Level(LevelPlace.loop, 4),))
    with pytest.raises(ScheduleError, match="has a state of its own"):
        apply(program, Schedule((("m", rows), *_alone(*SEGMENTS).loops), together=together))


def test_what_depends_on_what_came_before_is_in_one_piece() -> None:
    once = Scan.of(Monoid.sum, "y", (N,), F32, Use("x", (N,)), N)
    again = Scan.of(Monoid.sum, "z", (N,), F32, Use("y", (N,)), N)
    total = Reduction("t", (), F32, Monoid.sum, Use("y", (N,)), (N,))
    for last in (again, total):
        program = fused(TensorProgram((Input("x", (N,), F32),), (once, last), ("y", last.name)))
        with pytest.raises(ScheduleError, match="contribute what depends on those before"):
            apply(program, _alone(*SEGMENTS))


def _alone(*levels: tuple[LevelPlace, int]) -> Schedule:
    return Schedule((("n", LoopSchedule(tuple(Level(*each) for each in levels))),))


def _levels(*levels: tuple[LevelPlace, int]) -> Schedule:
    rows = LoopSchedule((Level(LevelPlace.grid, 2),))
    return Schedule((("m", rows), ("n", LoopSchedule(tuple(Level(*each) for each in levels)))))
