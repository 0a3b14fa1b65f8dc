"""Iterations side by side: the same results and counts as one after the other, and no mistake in a program is hidden by it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from testkit.block import programs
from testkit.masks.conditions import CONDITIONS, row_sums
from testkit.mutants.subjects import random_subjects
from testkit.schedules import fused
from weft.block.interpret import Interpreted, interpret
from weft.block.iterations import AT_ONCE, Around, LoopSteps
from weft.block.program import BlockNode, BlockProgram, Graph, Index, Load, Map, Pointwise, Store
from weft.block.subscripts import Digit, Subscript
from weft.block.walk import every, maps
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.masks import limit
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.field import FieldDomain
from weft.tensor.program import Elementwise, Extent, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit
from weft.verify import verify
from weft.verify.inputs import random_inputs, with_indices
from weft.verify.sizes import iterations, small_tiles

# So many iterations take about a second one after the other.
MOST = 400


def placed(name: str, seed: int = 0) -> tuple[TensorProgram, BlockProgram]:
    program = programs.ALL[name]()
    return program, fitting_schedule(fused(program), random.Random(f"{name} {seed}"))[1]


def run(program: TensorProgram, applied: BlockProgram, sizes: dict[str, int], at_once: int, *, on_chip: bool = False):
    domain, rng = FieldDomain(7), np.random.default_rng(7)
    inputs = with_indices(random_inputs(program, sizes, domain, rng), [program], domain, rng, sizes)
    found, counts = interpret(applied, inputs, sizes, domain, at_once=at_once, on_chip=on_chip)
    return domain, found, counts


def same(program: TensorProgram, applied: BlockProgram, sizes: dict[str, int]) -> None:
    domain, wanted, counts = run(program, applied, sizes, 1, on_chip=True)
    for at_once in (3, 7, AT_ONCE):
        _, found, others = run(program, applied, sizes, at_once, on_chip=True)
        assert all(domain.equal(a, b) for a, b in zip(wanted, found, strict=True)), at_once
        assert others == counts, at_once
    beside(program, applied, sizes)


def beside(program: TensorProgram, applied: BlockProgram, sizes: dict[str, int]) -> None:
    """Holds draws that are run side by side against each by itself."""
    domain, prepared = FieldDomain(7), Interpreted(applied)

    def drawn(seed: int):
        rng = np.random.default_rng(seed)
        return with_indices(random_inputs(program, sizes, domain, rng), [program], domain, rng, sizes)

    every_draw = [drawn(seed) for seed in range(3)]
    alone = [prepared(inputs, sizes, domain)[0] for inputs in every_draw]
    given = {
        name: domain.lift(lambda *arrays: np.stack(arrays), *(each[name] for each in every_draw))
        for name in every_draw[0]
    }
    for at_once in (1, AT_ONCE):
        together, _ = prepared(given, sizes, domain, at_once=at_once, draws=3)
        for number, wanted in enumerate(alone):
            found = [domain.lift(lambda array, number=number: array[number], each) for each in together]
            assert all(domain.equal(a, b) for a, b in zip(wanted, found, strict=True)), (at_once, number)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", programs.ALL)
def test_results_and_counts_are_those_of_one_after_the_other(name: str, seed: int) -> None:
    program, applied = placed(name, seed)
    rng = random.Random(f"sizes {name} {seed}")
    same(program, applied, program.sizes({s.name: rng.randint(1, 11) for s in program.spaces()}))


def test_so_are_those_of_random_programs() -> None:
    seen = 0
    for subject in random_subjects(range(12)):
        small = small_tiles(subject.applied)
        for sizes in verify(subject.program, subject.applied).sizes:
            if iterations(small.graph, sizes) < MOST:
                seen += 1
                same(subject.free, small, dict(sizes))
    assert seen > 6


def test_an_output_that_no_input_decides_is_each_draws() -> None:
    (m,) = programs.axes("m")
    size = Extent("size", (), programs.F32, m.space)
    twice = Elementwise("twice", (m,), programs.F32, Apply("add", (Arg(0), Arg(0))), (Use("x", (m,)),))
    program = TensorProgram((programs.tensor("x", m),), (size, twice), ("size", "twice"))
    beside(program, fitting_schedule(fused(program), random.Random(0))[1], {"M": 5})


def matmul(rows: int = 2, columns: int = 3) -> tuple[TensorProgram, BlockProgram]:
    grid = {"m": rows, "n": columns}
    loops = tuple((n, LoopSchedule((Level(LevelPlace.grid, size),))) for n, size in grid.items())
    program = programs.linear_relu()
    return program, apply(fused(program), Schedule((*loops, ("k", LoopSchedule((Level(LevelPlace.loop, 2),))))))


def test_whole_blocks_are_side_by_side_and_the_rest_follows() -> None:
    _, applied = matmul()
    loop = next(maps(applied.graph))
    loops = LoopSteps({"M": 7, "N": 9, "K": 5}, {}, frozenset(), AT_ONCE)
    whole, rest = loops.steps(loop, Around())
    assert (np.asarray(whole.base).tolist(), whole.valid, whole.count) == ([0, 2, 4], 2, 3)
    assert (rest.base, rest.valid, rest.count) == (6, 1, 1)
    inner = next(n for n in loop.body.nodes if isinstance(n, Map))
    around = Around().inside(loop.axis, whole)
    (columns,) = loops.steps(inner, around)
    assert around.inside(inner.axis, columns).times == 9
    few = LoopSteps({"M": 7, "N": 9, "K": 5}, {}, frozenset(), 2)
    assert [step.count for step in few.steps(loop, Around())] == [2, 1, 1]


def test_a_loop_with_a_state_goes_one_by_one() -> None:
    _, applied = matmul()
    sizes = {"M": 7, "N": 9, "K": 5}
    loop = next(m for m in maps(applied.graph) if m.state is not None)
    assert [s.count for s in LoopSteps(sizes, {}, frozenset(), AT_ONCE).steps(loop, Around())] == [1, 1, 1]


def test_so_does_a_loop_that_reads_memory_which_it_stores() -> None:
    """Show that an iteration may read there what another one stored."""
    program, applied = matmul()
    loop = next(maps(applied.graph))
    memory = next(n.memory for n in every(loop.body.nodes) if isinstance(n, Store))

    def reading(node: BlockNode) -> BlockNode:
        match node:
            case Map():
                return replace(
                    node, body=Graph(node.body.inputs, tuple(map(reading, node.body.nodes)), node.body.outputs)
                )
            case Load():
                return replace(node, memory=memory)
            case _:
                return node

    changed = reading(loop)
    assert isinstance(changed, Map)
    loops = LoopSteps(dict.fromkeys("MNK", 4), {}, frozenset(), AT_ONCE)
    assert loops.independent(loop)
    assert not loops.independent(changed)
    del program


def edited(applied: BlockProgram, edit) -> BlockProgram:
    """Puts what `edit` gives in place of each operator, in all graphs."""

    def graph(of: Graph) -> Graph:
        return replace(of, nodes=tuple(each for n in of.nodes for each in changed(n)))

    def changed(node: BlockNode) -> tuple[BlockNode, ...]:
        return (replace(node, body=graph(node.body)),) if isinstance(node, Map) else edit(node)

    return replace(applied, graph=graph(applied.graph))


def test_a_value_that_is_wrong_in_one_iteration_is_seen() -> None:
    """Number 5 along n alone, in the second block of three that are computed together."""
    program, applied = matmul()
    axis = [m.axis for m in maps(applied.graph)][1]

    def wrong_at(where: int):
        def edit(node: BlockNode) -> tuple[BlockNode, ...]:
            if not isinstance(node, Store):
                return (node,)
            chosen = Apply("where", (Apply("eq", (Arg(0), Lit(where))), Apply("neg", (Arg(1),)), Arg(1)))
            store_of = next(n for n in every(applied.graph.nodes) if isinstance(n, Pointwise) and n.name == node.value)
            index = Index("number", axis, False)
            other = Pointwise("other", chosen, ("number", node.value), store_of.dims, store_of.dtype)
            return (index, other, replace(node, value="other"))

        return edited(applied, edit)

    assert verify(program, applied).agrees
    agreed = verify(program, applied)
    assert agreed.agrees
    for where in range(max(sizes["N"] for sizes in agreed.sizes)):
        assert verify(program, wrong_at(where)).equal is False, where


def stored_at(applied: BlockProgram, first: Subscript) -> BlockProgram:
    """Makes each store lie elsewhere along the first dimension."""
    return edited(applied, lambda n: (replace(n, at=(first, *n.at[1:])),) if isinstance(n, Store) else (n,))


def test_a_store_to_the_wrong_place_is_seen() -> None:
    program, applied = matmul()
    axis = next(maps(applied.graph)).axis
    for wrong in (Subscript(((1, Digit(axis, mod=2)),)), Subscript(((1, Digit(axis)),), -1), Subscript.of(axis, 2)):
        assert not verify(program, stored_at(applied, wrong)).agrees, wrong


def test_of_iterations_that_store_at_one_place_the_last_remains() -> None:
    """Hold it to what it is where they follow each other."""
    program, applied = matmul(rows=1)
    wrong = stored_at(applied, Subscript(((1, Digit(next(maps(applied.graph)).axis, 1, 1)),)))
    sizes = {"M": 7, "N": 9, "K": 5}
    (domain, one, _), (_, many, _) = (run(program, wrong, sizes, at_once) for at_once in (1, AT_ONCE))
    first = [domain.lift(lambda a: a[0], v[0]) for v in (one, many)]
    assert domain.equal(first[0], first[1])
    assert not domain.equal(one[0], run(program, applied, sizes, 1)[1][0])


def test_so_it_does_where_the_place_lacks_the_loop() -> None:
    program, applied = placed("batched")
    assert next(maps(applied.graph)).unit
    wrong = stored_at(applied, Subscript((), 0))
    sizes = program.sizes({s.name: 5 for s in program.spaces()})
    (domain, one, _), (_, many, _) = (run(program, wrong, sizes, at_once) for at_once in (1, AT_ONCE))
    first = [domain.lift(lambda a: a[0], v[0]) for v in (one, many)]
    assert domain.equal(first[0], first[1])


@pytest.mark.parametrize("size", [8, 10, 12, 16])
def test_so_it_does_where_first_and_last_blocks_have_windows_of_one_shape(size: int) -> None:
    """Those between them have another shape, and stay between them."""
    program = row_sums(CONDITIONS["a distance"][0])
    limited = limit(fused(program))
    rows, columns = maps(limited.graph)
    levels = ((rows, LevelPlace.grid), (columns, LevelPlace.loop))
    applied = apply(limited, Schedule(tuple((m.name, LoopSchedule((Level(place, 2),))) for m, place in levels)))
    wrong = stored_at(applied, Subscript(((1, Digit(next(maps(applied.graph)).axis, mod=2)),)))
    sizes = program.sizes({s.name: size for s in program.spaces()})
    (domain, one, _), (_, many, _) = (run(program, wrong, sizes, at_once) for at_once in (1, AT_ONCE))
    first = [domain.lift(lambda a: a[:2], v[0]) for v in (one, many)]
    assert domain.equal(first[0], first[1])


def test_a_prepared_program_runs_at_other_sizes() -> None:
    program, applied = matmul()
    prepared = Interpreted(applied)
    for rows in (7, 1, 4, 7):
        sizes = program.sizes({"M": rows, "N": 9, "K": 5})
        domain, rng = FieldDomain(3), np.random.default_rng(3)
        inputs = random_inputs(program, sizes, domain, rng)
        assert domain.equal(
            prepared(inputs, sizes, domain)[0][0], interpret(applied, inputs, sizes, domain, at_once=1)[0][0]
        )
