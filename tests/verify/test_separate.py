"""The search for an input that tells two functions apart, and what it takes for rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Elementwise, Input, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit, Scalar
from weft.verify.seeds import Numbers, Tensors, draws
from weft.verify.separate import Search, Side
from weft.verify.smaller import smaller
from weft.verify.written import as_written, computed, finest, rounded_constants

M = Axis("m", Space("M"))
X = torch.arange(12.0)


def program(*steps: Scalar, cast: DType | None = None) -> TensorProgram:
    """Each step is of the one before it, `Arg(0)`, the first of the input; then a cast to fewer bits and back."""
    nodes: list[Elementwise | Cast] = []
    name = "x"
    for step in steps:
        nodes.append(Elementwise(f"t{len(nodes)}", (M,), DType.float32, step, (Use(name, (M,)),)))
        name = nodes[-1].name
    for dtype in (cast, DType.float32) if cast else ():
        nodes.append(Cast(f"t{len(nodes)}", (M,), dtype, Use(name, (M,)), semantic=False))
        name = nodes[-1].name
    return TensorProgram((Input("x", (M,), DType.float32),), tuple(nodes), (name,))


def searched(
    first: Callable[[torch.Tensor], torch.Tensor],
    second: Callable[[torch.Tensor], torch.Tensor],
    programs: tuple[TensorProgram | None, TensorProgram | None] = (None, None),
    numbers: tuple[float, ...] = (),
) -> Search:
    sides = [Side(lambda given, fn=fn: [fn(*given)], p) for fn, p in zip((first, second), programs, strict=True)]
    return Search((sides[0], sides[1]), ["x"], Numbers.of(numbers))


def test_rounding_separates_nothing_and_cancellation_is_rounding():
    far = Apply("sub", (Apply("add", (Arg(0), Lit(1e8))), Lit(1e8)))
    search = searched(
        lambda x: (x + 1e8) - 1e8, lambda x: x * 1, (program(far), program(Apply("mul", (Arg(0), Lit(1)))))
    )
    assert search.search((X,)) is None
    assert search.tried > 50


@pytest.mark.parametrize(
    ("first", "second", "numbers", "at"),
    [
        (lambda x: torch.where(x == 41.5, 0.0, x), lambda x: x * 1, (41.5,), [41.5]),
        (lambda x: torch.where(x * 4 == 166, 0.0, x), lambda x: x * 1, (4, 166), [41.5]),
        (lambda x: torch.where(x > 1e3, 0.0, x), lambda x: x * 1, (1e3,), None),
        (lambda x: x * 0, torch.zeros_like, (), [float("nan")]),
        (lambda x: x / x, torch.ones_like, (), [0.0]),
        (torch.isinf, lambda x: x != x, (), None),
    ],
)
def test_without_programs_eager_alone_is_asked(first, second, numbers, at):
    found = searched(first, second, numbers=numbers).search((X,))
    assert found is not None
    (made,) = found.inputs
    assert made.shape == (1,)
    assert at is None or np.array_equal(made.numpy(), at, equal_nan=True)


def test_sizes_beyond_every_constant_are_tried():
    found = searched(lambda x: x[:300].sum(), lambda x: x.sum(), numbers=(300,)).search((X,))
    assert found is not None
    assert found.inputs[0].shape == (301,)


def test_sizes_are_tried_beyond_a_bound_larger_than_both_dimensions_of_one_size_can_be():
    square = torch.randn(2048, 2048)
    found = searched(lambda x: x[:3000].sum(0), lambda x: x.sum(0), numbers=(3000,)).search((square,))
    assert found is not None
    assert found.inputs[0].shape[0] == 3001


def test_a_bound_that_no_size_reaches_is_said():
    search = searched(lambda x: x[: 1 << 20] + 1, lambda x: x + 1, numbers=(1 << 20,))
    search.bounds = frozenset({1 << 20})
    assert search.search((X,)) is None
    assert search.beyond == {1 << 20}


def test_of_a_large_example_a_part_is_taken():
    sizes: set[int] = set()

    def watched(x: torch.Tensor) -> torch.Tensor:
        sizes.add(len(x))
        return x + 1

    search = searched(watched, lambda x: 1 + x)
    assert search.search((torch.zeros(1 << 20),)) is None
    assert sorted(sizes)[-2] < 100


def test_what_a_function_refuses_separates_nothing():
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if len(x) != 12 or not bool(torch.isfinite(x).all()):
            raise RuntimeError("no")
        return x + 1

    search = searched(refuses, lambda x: 1 + x)
    assert search.search((X,)) is None
    assert not search.passed


def test_infinities_that_meet_in_another_order_separate_nothing():
    assert searched(lambda x: x * (x + 1), lambda x: x * x + x).search((X,)) is None
    assert searched(lambda x: x * 2, lambda x: torch.where(torch.isinf(x), x, x * 2)).search((X,)) is None


def test_a_cast_to_fewer_bits_than_results_have_rounds():
    cast = program(cast=DType.float16)
    kept = as_written(cast, finest([cast]))
    assert [n.semantic for n in kept.nodes if isinstance(n, Cast)] == [True]
    assert computed(kept, {"x": np.array([1 + 2.0**-12, 1e6])}).outputs[0].tolist() == [1.0, np.inf]
    assert computed(cast, {"x": np.array([1 + 2.0**-12])}).outputs[0].tolist() == [1 + 2.0**-12]


def test_overflow_of_fp64_is_told_from_infinity():
    squares = program(Apply("exp", (Arg(0),)))
    assert computed(squares, {"x": np.array([1e3])}).disturbed
    assert computed(squares, {"x": np.array([-1e3])}).disturbed
    assert not computed(squares, {"x": np.array([np.inf, -np.inf, 1.0])}).disturbed


def test_noise_changes_what_was_rounded_and_nothing_else():
    third, double = program(Apply("div", (Arg(0), Lit(3.0)))), program(Apply("add", (Arg(0), Arg(0))))
    x = {"x": np.array([1.0, 3.0, 0.5, 2.0**300])}
    noise = np.random.default_rng(0)
    assert (computed(double, x, noise).outputs[0] == 2 * x["x"]).all()
    assert (computed(third, x, noise).outputs[0] == x["x"] / 3).tolist() == [False, True, False, False]


def test_constants_of_few_bits_are_exact():
    assert (
        rounded_constants(program(Apply("mul", (Arg(0), Lit(0.5))), Apply("add", (Arg(0), Lit(1000.0))))) == frozenset()
    )
    assert rounded_constants(program(Apply("mul", (Arg(0), Lit(0.1))))) == {0.1}
    assert rounded_constants(program(Apply("eq", (Arg(0), Lit(0.1))))) == frozenset()


def test_inputs_are_made_small():
    def holds(inputs: Tensors) -> bool:
        return bool((inputs[0] == 7).any()) and len(inputs[1]) == inputs[0].shape[0]

    given = torch.arange(20.0).reshape(5, 4), torch.arange(5)
    made = smaller(given, holds)
    assert [x.tolist() for x in made] == [[[7.0]], [0]]


def test_the_same_seed_draws_the_same_inputs():
    given = (X.reshape(3, 4), torch.arange(3), torch.tensor([True, False]))
    first, second = (list(draws(given, Numbers.of((3.0, 0.25)), seed)) for seed in (1, 1))
    assert len(first) > 60
    for one, other in zip(first, second, strict=True):
        assert all(np.array_equal(x, y, equal_nan=x.dtype.is_floating_point) for x, y in zip(one, other, strict=True))
        assert [x.dtype for x in one] == [x.dtype for x in given]
