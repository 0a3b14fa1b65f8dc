"""Corrections: in closed form, read off the program, and counted by what the interpreter and its domain really evaluate."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.block import programs
from testkit.cost import chains
from testkit.cost.levels import ROWS, STRATEGIES, fused_at_level, lengths
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import BlockProgram, Pointwise
from weft.block.ranges import Part
from weft.block.walk import maps
from weft.cost import Corrections, corrected, correcting, dependents, fused_at, in_levels, traffic
from weft.pipeline import RULES_IN_PLANS, fuse
from weft.schedule import Granularity, Level, LevelPlace, apply
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.scalar import Apply, Scalar

CHAINS = {"statistics": 1, "attention": 2, "variance": 2, "attention in half": 2}
"""How many components of each have something to correct: l; l and O; the sums of x - c and of its square."""


ONE_CHAIN = Granularity()
"""Of a target that asks for nothing: the levels of a reduction are those of the schedule."""


def loop(*sizes: int) -> tuple[Level, ...]:
    return tuple(Level(LevelPlace.loop, size) for size in sizes)


def split(count: int, *sizes: int) -> tuple[Level, ...]:
    return (Level(LevelPlace.split, count), *loop(*sizes))


def applied(name: str, levels: tuple[Level, ...], *, peel: bool = False, rows: int = 4) -> BlockProgram:
    program = chains.made(name)
    return apply(program, chains.schedule(program, rows, levels, peel=peel), ONE_CHAIN)


class Counting(Fp64Domain):
    """Numbers, and how many factors exp(old - new) were computed for whole rows; of these, for a reference that nothing had set."""

    def __init__(self) -> None:
        self.factors = self.of_nothing = 0

    def elementwise(self, expr: Scalar, args, dtype):
        result = super().elementwise(expr, args, dtype)
        match expr:
            case Apply("decay" | "coarse_decay", (Apply("sub"),)) if result.ndim == 1:
                apart = args[0] - args[1]
                self.factors += 1
                self.of_nothing += bool(apart[0] < -1e37)  # the first row is no padding
            case _:
                pass
        return result


def counted(program: BlockProgram, sizes: dict[str, int]):
    """Returns what the interpreter counts, and the domain."""
    rng, domain = np.random.default_rng(0), Counting()
    inputs = {n: rng.standard_normal([a.space.size(sizes) for a in k.lists]) for n, k in program.inputs}
    return interpret(program, inputs, sizes, domain, at_once=1)[1], domain


@pytest.mark.parametrize("name", CHAINS)
def test_dependent_reductions_are_found(name):
    states = (m.state for m in maps(chains.made(name).graph) if m.state is not None)
    assert max(map(dependents, states)) == CHAINS[name]


def test_reductions_that_depend_on_none_have_nothing_to_correct():
    program = canonical(fuse(lower(programs.ALL["row_sum_of_squares"]()), RULES_IN_PLANS, ()).last)
    states = [m.state for m in maps(program.graph) if m.state is not None]
    assert states
    assert all(dependents(state) == 0 for state in states)


def test_what_corrects_is_read_off_the_state():
    """m, l and O of attention: one loop within another is fed their states, and corrects both sides."""
    program = applied("attention", loop(8, 2))
    outer, inner = (m.state for m in maps(program.graph) if m.state is not None and len(m.state.components) == 3)
    for state, sides in ((outer, 2), (inner, 1)):
        found = correcting(state)
        made = {n.name: n for n in state.update.nodes}
        assert [len(found.running), len(found.outputs)] == [2, 2 * (sides - 1)]
        for component, operator in (*found.running, *found.outputs):
            (own,) = (c for c in state.components if c.name == component)
            node = made[operator]
            assert isinstance(node, Pointwise)
            assert isinstance(node.expr, Apply)
            assert node.expr.op == "mul"
            assert node.dims == own.dims


LEVELS = st.one_of(
    st.lists(st.integers(1, 30), min_size=1, max_size=3, unique=True).map(lambda s: loop(*sorted(s, reverse=True))),
    st.tuples(st.integers(1, 5), st.lists(st.integers(1, 12), min_size=1, max_size=2, unique=True)).map(
        lambda t: split(t[0], *sorted(t[1], reverse=True))
    ),
    st.just((Level(LevelPlace.whole),)),
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CHAINS)
@settings(max_examples=20, deadline=None)
@given(levels=LEVELS, along=st.integers(1, 61), rows=st.integers(1, 9), peel=st.booleans())
def test_the_closed_form_is_what_is_counted(name, levels, along, rows, peel):
    peel = peel and levels[-1].place is LevelPlace.loop
    program = applied(name, levels, peel=peel)
    sizes = chains.sizes_of(program, rows, along)
    found, domain = counted(program, sizes)
    expected = in_levels(along, levels, CHAINS[name]) * -(-rows // 4)
    assert corrected(program, found) == expected
    assert corrected(program, traffic(program, sizes)) == expected
    if name != "variance":  # l and O share a factor
        assert domain.factors * CHAINS[name] == expected.evaluated


@pytest.mark.parametrize("levels", [loop(40), loop(8), loop(24, 8, 2), split(3, 8), split(2, 16, 3)])
@pytest.mark.parametrize("along", [40, 33])
def test_what_is_called_empty_is_of_nothing(levels, along):
    """By the numbers: a factor to the power of the lowest number."""
    for name, peel in itertools.product(("statistics", "attention"), (False, True)):
        program = applied(name, levels, peel=peel)
        found, domain = counted(program, chains.sizes_of(program, 5, along))
        assert corrected(program, found).empty == domain.of_nothing * CHAINS[name]


def test_a_peeled_edge_goes_on_and_one_alone_begins():
    """10 in blocks of 4 are two and an edge that goes on; 3 are an edge alone."""
    program = applied("statistics", loop(4), peel=True, rows=1)
    assert [m.range.part for m in maps(program.graph) if m.state is not None] == [Part.full, Part.edge]
    for along, expected in ((10, Corrections(0, 2, 1)), (3, Corrections(0, 0, 1)), (8, Corrections(0, 1, 1))):
        sizes = chains.sizes_of(program, 1, along)
        assert corrected(program, traffic(program, sizes)) == expected
        assert corrected(program, counted(program, sizes)[0]) == expected


def test_nested_levels_by_hand():
    """12 elements by 6, 2: two blocks of three; l alone has anything to correct."""
    assert in_levels(12, loop(6, 2), 1) == Corrections(outputs=2, running=1 + 2 * 2, empty=1 + 2)
    # Three segments of 4, 4 and 2; the merge corrects their three results, and what it has twice.
    assert in_levels(10, split(3, 2), 2) == Corrections(outputs=3, running=2 + 1 + 1 + 0, empty=1 + 3) * 2
    assert in_levels(10, (Level(LevelPlace.whole),), 2) == Corrections(0, 0, 2)


# Section 5.3.


@pytest.mark.parametrize("size", ROWS)
def test_the_order_of_section_5_3(size):
    found = [fused_at(lengths(size), level, 1).outputs for level in range(1, 5)]
    assert found == [256, 8, 2, 0]
    assert found == sorted(set(found), reverse=True)


@pytest.mark.parametrize(("name", "size"), [*itertools.product(["statistics"], ROWS), ("attention", 1024)])
def test_fusion_at_each_level_corrects_its_outputs(name, size):
    """A segment for each output of the level; the interpreter's count is the closed form's, and at the top there is none."""
    for level in range(1, 5):
        outputs = lengths(size)[level]
        program = fused_at_level(name, size, level)
        sizes = chains.sizes_of(program, 2, size)
        expected = fused_at(lengths(size), level, CHAINS[name])
        for found in (counted(program, sizes)[0], traffic(program, sizes)):
            made = corrected(program, found)
            assert (made.outputs, made.running) == (expected.outputs, expected.running), STRATEGIES[level - 1]
        assert expected.outputs == CHAINS[name] * (outputs if outputs > 1 else 0)


def test_a_random_program_of_many_levels_counts_alike():
    """Four levels in one loop: as deep as threads, warps, blocks and a grid of them."""
    rng = random.Random(5)
    for _ in range(3):
        along = rng.randint(300, 700)
        levels = loop(128, 32, 8, 2)
        program = applied("statistics", levels)
        sizes = chains.sizes_of(program, 3, along)
        assert corrected(program, counted(program, sizes)[0]) == in_levels(along, levels, 1)
