"""Loads by indices in block programs: the checker, the interpreter's blocks, what fuses with them, bytes, the listing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.lookups import ALL, M, stored, table
from testkit.block.rankings import every
from testkit.schedules import fused
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Bounded, Load, Map
from weft.block.subscripts import Subscript
from weft.block.walk import maps
from weft.cost.traffic import traffic
from weft.errors import InvalidProgramError, UnsupportedError
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Elementwise, Input, Lookup, TensorProgram, Use
from weft.tensor.scalar import Arg
from weft.tensor.wellformed import well_formed


def drawn(program: TensorProgram, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """Inputs of `program`; integers from below every index to beyond each."""
    shapes = {n.name: [a.space.size(sizes) for a in n.axes] for n in program.inputs}
    return {
        n.name: rng.standard_normal(shapes[n.name]) if n.dtype.is_float else rng.integers(-9, 9, shapes[n.name])
        for n in program.inputs
    }


@pytest.mark.parametrize("name", ALL)
def test_blocks_of_any_length_give_what_the_evaluator_gives(name: str) -> None:
    """And bytes are counted as they are moved, in closed form."""
    program, domain, rng = ALL[name](), Fp64Domain(), random.Random(name)
    for number in range(12):
        numbers = np.random.default_rng(number)
        sizes = {s.name: int(numbers.integers(1, 8)) for s in program.spaces()}
        given = drawn(program, sizes, numbers)
        wanted = evaluate(program, given, domain)
        schedule, applied = fitting_schedule(fused(program), rng)
        found, seen = interpret(applied, given, sizes, domain)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12, atol=1e-12, err_msg=f"{sizes} {schedule}")
        counted = traffic(applied, sizes)
        assert (counted.loaded, counted.stored) == (seen.loaded, seen.stored)


def test_what_is_no_index_stands_for_the_nearest() -> None:
    given = {"w": np.arange(12.0).reshape(4, 3), "i": np.array([-(2**62), -1, 0, 3, 4, 2**62]), "x": np.zeros((6, 3))}
    program = replace(table(), outputs=("r",))
    (rows,) = evaluate(program, given, Fp64Domain())
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 0, 9, 9, 9])


def test_a_table_and_all_that_is_made_of_its_rows_are_one_nest() -> None:
    program = fused(table())
    assert [m.axis.space.name for m in maps(program.graph)] == ["M", "D", "D"]
    assert listing(program).splitlines()[:4] == [
        "forall m in range(M):",
        "  t1 = load(I[m])",
        "  for d in range(D):",
        "    t2 = load(W[t1,d])",
    ]


def test_an_index_has_the_axes_of_its_integer() -> None:
    program = every(fused(stored()), lambda n: replace(n, dims=()) if isinstance(n, Bounded) else n)
    with pytest.raises(InvalidProgramError, match="each integer is an index by itself"):
        check(program)


def test_each_integer_is_made_an_index_once() -> None:
    """Before the loops over places that it is compared with; nothing is loaded for that."""
    assert listing(fused(stored())).splitlines()[:4] == [
        "forall m in range(M):",
        "  t1 = load(I[m])",
        "  t2 = bounded(t1,VV)",
        "  store(t2,I1[m])",
    ]


@pytest.mark.parametrize("dtype", [DType.float32, DType.bool])
def test_an_index_is_an_integer_in_the_checker_too(dtype: DType) -> None:
    program = fused(stored())
    inputs = tuple((n, replace(k, dtype=dtype) if n == "i" else k) for n, k in program.inputs)
    with pytest.raises(InvalidProgramError, match="an index is an integer"):
        check(replace(program, inputs=inputs))


def test_only_the_rows_that_are_read_count() -> None:
    program = fused(table())
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 4),))) for m in maps(program.graph))
    applied = apply(program, Schedule(loops))
    small = traffic(applied, {"M": 6, "D": 16, "V": 10**6})
    assert small.loaded["w"] == 6 * 16 * 4


def test_what_is_looked_up_in_is_in_memory_before() -> None:
    made = Elementwise("z", (*table().inputs[0].axes,), DType.float32, Arg(0), (Use("w", table().inputs[0].axes),))
    nodes = (made, *(replace(n, source="z") if isinstance(n, Lookup) else n for n in table().nodes))
    with pytest.raises(UnsupportedError, match="made beside it"):
        lower(replace(table(), nodes=nodes))


def edited(change: Callable[[Load], Load]) -> BlockProgram:
    return every(lower(table()), lambda n: change(n) if isinstance(n, Load) else n)


def in_memory(change: Callable[[Load], Load]) -> BlockProgram:
    """The applied program, with its loads by indices changed."""
    program = fused(table())
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 4),))) for m in maps(program.graph))
    return every(apply(program, Schedule(loops)), lambda n: change(n) if isinstance(n, Load) and n.indices else n)


def around(program: BlockProgram) -> Map:
    (first, *_) = program.graph.nodes
    assert isinstance(first, Map)
    return first


MALFORMED = (
    ("an index is an item of integers, of axes that the result has", lambda: edited(lambda n: replace(n, indices=(n.memory,)))),
    ("an index is an item of integers, of axes that the result has", lambda: edited(lambda n: replace(n, dims=n.dims[1:]))),
    ("each index says where along one axis", lambda: edited(lambda n: replace(n, at=(Subscript((), 0, 1),)))),
    ("each index says where along one axis", lambda: edited(lambda n: replace(n, indices=n.indices * 2))),
    ("an index says all of where", lambda: edited(lambda n: replace(n, at=(Subscript((), 1, 0),)))),
    ("memory has a subscript for each axis", lambda: in_memory(lambda n: replace(n, at=n.at[:1]))),
)  # fmt: skip


@pytest.mark.parametrize(("condition", "made"), MALFORMED, ids=[c.replace(" ", "-") for c, _ in MALFORMED])
def test_a_violated_condition_is_named(condition: str, made: Callable[[], BlockProgram]) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        check(made())
    assert caught.value.condition == condition


def lookup(change: Callable[[Lookup], Lookup], dtype: DType = DType.int64) -> TensorProgram:
    inputs = tuple(replace(n, dtype=dtype) if n.name == "i" else n for n in table().inputs)
    return replace(
        table(), inputs=inputs, nodes=tuple(change(n) if isinstance(n, Lookup) else n for n in table().nodes)
    )


WRONG = (
    ("a lookup has one index per axis of its source", lookup(lambda n: replace(n, index=n.index[:1]))),
    ("a lookup reads where values say", lookup(lambda n: replace(n, source="x", index=n.axes))),
    ("an axis goes along a dimension of its own space", lookup(lambda n: replace(n, index=(n.index[0], M)))),
    ("an index is an integer", lookup(lambda n: n, DType.float32)),
    ("a lookup's axes are those of its indices", lookup(lambda n: replace(n, axes=(*n.axes, M.__class__("q", M.space))))),
    ("what is read is in the result or summed", lookup(lambda n: replace(n, axes=n.axes[:1]))),
)  # fmt: skip


@pytest.mark.parametrize(("condition", "program"), WRONG, ids=[c.replace(" ", "-") for c, _ in WRONG])
def test_a_lookup_that_means_nothing_is_refused(condition: str, program: TensorProgram) -> None:
    with pytest.raises(InvalidProgramError) as caught:
        well_formed(program)
    assert caught.value.condition == condition


def test_lookups_are_well_formed() -> None:
    for made in ALL.values():
        well_formed(made())
        assert any(isinstance(n, Input) for n in made().inputs)
