"""The judge of emitted code: what an accident decides, a right kernel may give, and no wrong one passes for it."""

import itertools

import numpy as np
import pytest

from testkit.block import programs
from testkit.block.paper import each, row_sum
from testkit.verify import emitted
from testkit.verify.emitted import F32, NORM, about_the_mean, one_case, sizes_of, verdict
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Cast, Elementwise, Extent, Iota, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify.cases import cases
from weft.verify.emitted import ErrorTally
from weft.verify.regimes import REGIMES

HUGE = 2.5e38
COLUMNS = 700
"""So many that roundings at random are never alike."""


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def _references(request, monkeypatch):
    """Has references worked out in numpy's arrays, and in PyTorch's, where those of a GPU are."""
    if request.param == "torch":
        monkeypatch.setattr(emitted, "ErrorTally", emitted.HeldTally)
        monkeypatch.setattr(f"{__name__}.ErrorTally", emitted.HeldTally)


def summed(dtype=F32):
    m, n = programs.axes("m", "n")
    node = Reduction("t", (m,), dtype, Monoid.sum, Use("x", (m, n)), (n,))
    return TensorProgram((programs.tensor("x", m, n, dtype=dtype),), (node,), ("t",))


def of_huge_terms(up: int, down: int):
    """Rows of so many terms near the end of the range of either sign, and zeros."""

    def change(v):
        row = [HUGE] * up + [-HUGE] * down + [0.0] * v.shape[-1]
        return np.broadcast_to(np.array(row[: v.shape[-1]]), v.shape).astype(np.float64)

    return change


@pytest.mark.parametrize(
    ("up", "down", "said"),
    [
        (6, 6, {np.inf: None, -np.inf: None, np.nan: None, 0.0: None}),
        (9, 1, {np.inf: None, np.nan: None, -np.inf: "where eager gives", 7.0: "where eager gives"}),
        (1, 1, {np.inf: "where eager gives", np.nan: "where eager gives", 0.0: None}),
    ],
)
def test_sums_that_leave_the_range_on_their_way_depend_on_their_order(up, down, said):
    """Allows an infinity where partial sums can be one, on that side, and nowhere else."""
    for value, wrong in said.items():
        found = one_case(summed(), of_huge_terms(up, down), lambda case, v=value: (np.full_like(case.exact[0], v),))
        assert (found is None) is (wrong is None), (up, down, value, found)
        assert wrong is None or found is None or wrong in found


@pytest.mark.parametrize(("dtype", "term"), [(F32, 3e38), (DType.float64, 1.7e308)])
def test_sums_of_products_beyond_the_range_on_both_sides_depend_on_their_order(dtype, term):
    """A fused multiplication and addition does not round the product: to infinity it adds a number."""
    m, n, d = programs.axes("m", "n", "d")
    inputs = programs.tensor("x", m, n, dtype=dtype), programs.tensor("y", n, d, dtype=dtype)
    program = TensorProgram(inputs, (programs.matmul("t", Use("x", (m, n)), Use("y", (n, d)), n, dtype),), ("t",))

    for first, second, said in ((term, -term, None), (term, 1.0, "where eager gives")):
        for found in (np.inf, -np.inf):
            case = next(iter(cases(program, [], [{s.name: 2 + i for i, s in enumerate(program.spaces())}], 0)))
            x, y = (v.shape for v in case.inputs.values())
            made = {"x": np.broadcast_to([first, second, 0.0], x), "y": np.full(y, 2.5)}
            case = type(case)(program, case.sizes, made, case.layout, 0)
            tally = ErrorTally(program)
            tally.add(case, (np.full_like(case.exact[0], found),))
            right = said is None or found > 0
            assert (tally.verdict() is None) is right, (first, second, found, tally.verdict())


def test_products_that_leave_the_range_on_their_way_depend_on_their_order():
    m, n = programs.axes("m", "n")
    node = Reduction("t", (m,), F32, Monoid.prod, Use("x", (m, n)), (n,))
    program = TensorProgram((programs.tensor("x", m, n),), (node,), ("t",))

    def row(*first):
        return lambda v: np.broadcast_to(np.array([*first, *[1.0] * v.shape[-1]])[: v.shape[-1]], v.shape).copy()

    for found in (np.inf, np.nan):
        assert one_case(program, row(1e30, 1e30, 1e-30, 1e-30), lambda case, v=found: (v + 0 * case.exact[0],)) is None
        assert one_case(program, row(1e15, 1e15, 1e-30), lambda case, v=found: (v + 0 * case.exact[0],)) is not None
    of_both = np.array([[1e300, 1e300, 1e-300, -1e-300], [1e300, 1e300, np.nan, 0.0], [0.0, -2.0, 1.0, 3.0]])
    np.testing.assert_allclose(Fp64Domain().reduce(Monoid.prod, of_both, [1]), [-1.0, np.nan, -0.0], rtol=1e-15)
    assert one_case(program, row(np.inf), lambda case: (np.full_like(case.exact[0], 5.0),)) is not None


@pytest.mark.parametrize("found", [np.inf, -np.inf])
def test_what_cancels_may_be_0_where_rounding_is_all_that_is_left(found):
    program = about_the_mean()
    assert one_case(program, lambda v: np.full_like(v, 0.1), lambda case: (np.full_like(case.exact[0], found),)) is None
    said = one_case(
        program, lambda v: np.arange(v.size).reshape(v.shape) * 0.1, lambda case: (np.full_like(case.exact[0], found),)
    )
    assert said is not None


def test_a_zero_has_either_sign():
    """Holds of an operand that is one number too: a maximum of zeros of both signs is either."""
    (m,) = programs.axes("m")
    nodes = (
        each("top", (), apply("maximum", Arg(0), Arg(1)), Use("b", ()), Use("c", ())),
        each("out", (m,), apply("div", Arg(0), Arg(1)), Use("a", (m,)), Use("top", ())),
    )
    program = TensorProgram((programs.tensor("a", m), programs.tensor("b"), programs.tensor("c")), nodes, ("out",))

    def with_zeros(sign):
        return lambda v: np.full_like(v, sign * 0.0) if v.ndim == 0 else v

    for sign in (1.0, -1.0):
        assert one_case(program, with_zeros(sign), lambda case: (-case.exact[0],)) is None
    assert (
        one_case(program, with_zeros(1.0), lambda case: (np.where(np.isinf(case.exact[0]), 3.0, case.exact[0]),))
        is not None
    )


@pytest.mark.parametrize(("size", "signs", "is_right"), [(1e-30, -1, True), (1e-30, 1, False), (1e-3, -1, False)])
def test_a_sum_whose_terms_all_vanish_is_a_zero_of_either_sign(size, signs, is_right):
    """The last product decides the sign of the zero, and so that of its reciprocal, if products have both and all vanish."""

    turns = itertools.cycle((signs, 1))  # the second operand is positive

    def drawn(v):
        return np.broadcast_to(size * np.where(np.arange(v.shape[-1]) % 3 == 1, next(turns), 1), v.shape)

    m, n = programs.axes("m", "n")
    squares = Elementwise("s", (m, n), F32, apply("mul", Arg(0), Arg(1)), (Use("x", (m, n)), Use("y", (m, n))))
    nodes = (
        squares,
        Reduction("t", (m,), F32, Monoid.sum, Use("s", (m, n)), (n,)),
        Elementwise("u", (m,), F32, apply("div", Lit(1.0), Arg(0)), (Use("t", (m,)),)),
    )
    program = TensorProgram((programs.tensor("x", m, n), programs.tensor("y", m, n)), nodes, ("u",))
    found = one_case(program, drawn, lambda case: (np.full_like(case.exact[0], -np.inf),))
    assert (found is None) is is_right


def test_rounding_decides_also_where_a_mask_excludes_operands():
    """The weights of what is left: (x + 1e8) - 1e8 is a multiple of 8 in fp32. The operands that are excluded are infinite."""
    m, n, d = programs.axes("m", "n", "d")
    weight = apply("sub", apply("add", Arg(0), Lit(1e8)), Lit(1e8))
    kept = apply("where", apply("le", Arg(1), Arg(2)), apply("add", Arg(0), Lit(8.0)), Lit(0.0))
    nodes = (
        Iota("i", (m,), DType.int64),
        Iota("j", (n,), DType.int64),
        each("w", (m, n), weight, Use("x", (m, n))),
        each("p", (m, n), kept, Use("w", (m, n)), Use("j", (n,)), Use("i", (m,))),
        programs.matmul("out", Use("p", (m, n)), Use("v", (n, d)), n),
    )
    program = TensorProgram((programs.tensor("x", m, n), programs.tensor("v", n, d)), nodes, ("out",))

    def change(v):
        found = np.random.default_rng(v.size).standard_normal(v.shape)
        found[len(found) // 2 :, : v.shape[1] // 2] = -np.inf
        return found if v.shape[0] == v.shape[1] else np.nan_to_num(found, neginf=-np.inf)

    def masked(off):
        return lambda case: (case.in_order(0, masked=True)[0].astype(np.float64) + off,)

    kinds = {"x": lambda v: np.random.default_rng(1).standard_normal(v.shape), "v": change}
    for off, right in ((0.0, True), (300.0, False)):
        case = next(iter(cases(program, [], [sizes_of(program)], 0)))
        inputs = {name: kinds[name](v) for name, v in case.inputs.items()}
        made = type(case)(program, case.sizes, inputs, case.layout, 0)
        assert np.isnan(made.exact[0]).any()
        tally = ErrorTally(program)
        tally.add(made, masked(off)(made))
        assert (tally.verdict() is None) is right, tally.verdict()


@pytest.mark.parametrize(("off", "is_right"), [(0.0, True), (1e-2, False)])
def test_what_a_mask_leaves_of_a_row_is_held_to_that_row(off, is_right):
    """Sums beside infinities times 0, which are NaN in eager. One row is 1e8 times the others, and hides none of their errors."""
    m, n = programs.axes("m", "n")
    nodes = (each("p", (m, n), apply("mul", Arg(0), Arg(1)), Use("x", (m, n)), Use("w", (n,))), row_sum("t", "p", m, n))
    program = TensorProgram((programs.tensor("x", m, n), programs.tensor("w", n)), nodes, ("t",))

    def rows(v):
        found = np.random.default_rng(0).standard_normal(v.shape).astype(np.float32).astype(np.float64)
        found[0] *= 1e8
        found[:, 0] = np.inf
        return found

    def weights(v):
        return np.where(np.arange(len(v)) == 0, 0.0, 1.0)

    def found(case):
        assert np.isnan(case.exact[0]).all()
        return (case.unmasked[0] + np.where(np.arange(len(case.exact[0])) == 0, 0.0, off),)

    said = one_case(program, lambda v: rows(v) if v.ndim == 2 else weights(v), found)
    assert (said is None) is is_right, said


def test_sums_in_fp64_are_held_to_the_roundings_of_fp64():
    assert verdict(summed(DType.float64)) is None
    assert verdict(summed(DType.float64), draws=4) is None

    def narrow(case):
        return (case.inputs["x"].astype(np.float32).sum(-1, dtype=np.float32).astype(np.float64),)

    assert "error" in (verdict(summed(DType.float64), narrow, 4) or "")


def test_equal_terms_are_rounded_alike():
    """One after another, 4 sums of 2048 equal terms in fp64 lie off by more than rounding at random would bring."""
    program = summed(DType.float64)
    sizes = {s.name: size for s, size in zip(program.spaces(), (len(REGIMES), 8192), strict=True)}

    def found(off):
        tally = ErrorTally(program)
        for case in cases(program, [], [sizes], 0):
            x = case.inputs["x"].reshape(len(REGIMES), 2048, 4)
            with np.errstate(all="ignore"):
                lanes = np.add.accumulate(x, axis=1)[:, -1]
                tally.add(case, (lanes.sum(-1) * (1 + off),))
        return tally.verdict()

    assert found(0.0) is None
    assert "error" in (found(1e-11) or "")


def test_a_result_beyond_its_type_is_infinite():
    for found, right in ((np.inf, True), (np.nan, True), (7.0, False), (-np.inf, False)):
        said = one_case(
            NORM_SQUARED, lambda v: np.full_like(v, 1e25), lambda case, v=found: (np.full_like(case.exact[0], v),)
        )
        assert (said is None) is right, said


NORM_SQUARED = TensorProgram(NORM.inputs, NORM.nodes[:2], ("t",))


def test_integers_that_are_rounded_to_are_held_to_their_neighbours():
    """Which of two integers a product is rounded to may be rounding's choice, but neither any other one, nor everywhere."""
    m, n = programs.axes("m", "n")
    scaled = Elementwise("q", (m, n), F32, apply("round", apply("mul", Arg(0), Lit(12.7))), (Use("x", (m, n)),))
    kept = apply("minimum", apply("maximum", Arg(0), Lit(-100.0)), Lit(100.0))
    limited = Elementwise("l", (m, n), F32, kept, (Use("q", (m, n)),))
    node = Cast("i", (m, n), DType.int32, Use("l", (m, n)), semantic=True)
    program = TensorProgram((programs.tensor("x", m, n),), (scaled, limited, node), ("i",))

    def said(change) -> str | None:
        def results(case):
            sure = np.isfinite(case.inputs["x"])
            return (np.where(sure, change(case.exact[0]), case.exact[0]),)

        return verdict(program, results, 2)

    assert said(lambda v: v) is None
    assert "is right" in (said(lambda v: 0 * v) or "")
    assert "is right" in (said(lambda v: v - 1) or "")
    assert "is right" in (said(lambda v: np.where(v > 90, v - 1, v)) or "")


def test_an_overflow_is_no_quotient_by_zero():
    m, n = programs.axes("m", "n")
    both = apply("sub", apply("exp", Arg(0)), apply("mul", apply("exp", apply("mul", Arg(0), Lit(1.5))), Lit(2.0)))
    program = TensorProgram(
        (programs.tensor("x", m, n),), (Elementwise("d", (m, n), F32, both, (Use("x", (m, n)),)),), ("d",)
    )
    huge = one_case(program, lambda v: np.full_like(v, 1000.0), lambda case: (np.full_like(case.exact[0], np.inf),))
    assert "where eager gives nan" in (huge or "")


def test_a_sum_of_quotients_by_zero_may_be_a_quotient():
    """Eager adds up infinities of both signs; a kernel that divides the sum has the infinity of its sign, and no other."""
    m, n = programs.axes("m", "n")
    quotient = Elementwise("q", (m, n), F32, apply("div", Arg(0), Arg(1)), (Use("x", (m, n)), Use("d", (m,))))
    total = Reduction("t", (m,), F32, Monoid.sum, Use("q", (m, n)), (n,))
    program = TensorProgram((programs.tensor("x", m, n), programs.tensor("d", m)), (quotient, total), ("t",))

    def said(sign: float, by: float) -> str | None:
        def change(v: np.ndarray) -> np.ndarray:
            if v.ndim == 1:
                return np.full_like(v, by)
            v = np.ones_like(v)
            v[:, 0] = -2
            return v

        def results(case):
            with np.errstate(all="ignore"):
                return (case.inputs["x"].sum(1) * sign / case.inputs["d"],)

        return one_case(program, change, results)

    assert said(1, 0.0) is None
    assert said(1, -0.0) is None
    assert "where eager gives nan" in (said(-1, 0.0) or "")
    assert said(-1, 3.0) is not None


def test_what_becomes_of_numbers_that_an_integer_type_has_not_is_not_promised():
    m, n = programs.axes("m", "n")
    x = programs.tensor("x", m, n)
    nodes = (
        Cast("i", (m, n), DType.int64, Use("x", (m, n)), semantic=True),
        Elementwise("out", (m, n), DType.int64, apply("minimum", Arg(0), Lit(3)), (Use("i", (m, n)),)),
    )
    program = TensorProgram((x,), nodes, ("out",))

    def found(beyond, within=0):
        def results(case):
            v = case.inputs["x"]
            odd = ~(np.abs(v) < 2.0**62)
            return (np.where(odd, beyond, case.exact[0] + within),)

        return verdict(program, results, 4)

    assert [found(beyond) for beyond in (0, 3, -(2**63))] == [None] * 3
    assert "is right" in (found(0, 1) or "")


def test_a_number_that_rounding_may_take_away_is_held_to_no_error():
    """Passes any number where units that make both operands 0 have none."""
    m, n = programs.axes("m", "n")
    x, t = programs.tensor("x", m, n), programs.tensor("t")
    program = TensorProgram(
        (x, t), (each("out", (m, n), apply("div", Arg(0), Arg(1)), Use("x", (m, n)), Use("t", ())),), ("out",)
    )

    def found(taken, other):
        def results(case):
            eager, sure = case.eager[0].astype(np.float64), np.isfinite(case.flushed[0])
            return (np.where(np.isfinite(eager), eager + np.where(sure, other, taken), eager),)

        return verdict(program, results, 4)

    assert found(0.0, 0.0) is None
    assert found(1.0, 0.0) is None
    assert "error" in (found(0.0, 1.0) or "")


@pytest.mark.parametrize("times", [0.0, 0.9])
def test_a_unit_may_take_each_small_term_for_0(times):
    """Passes a product of which terms, and sums on their way, were 0 below the normal numbers, and what is made of it, magnified;
    not one whose terms are small and normal, of which a part is lost.
    """
    m, n, k = programs.axes("m", "n", "k")
    inputs = programs.tensor("x", m, k, dtype=DType.bfloat16), programs.tensor("w", k, n, dtype=DType.bfloat16)
    nodes = (
        programs.matmul("s", Use("x", (m, k)), Use("w", (k, n)), k),
        Reduction("top", (m,), F32, Monoid.max, Use("s", (m, n)), (n,)),
        each("d", (m, n), apply("sub", Arg(0), Arg(1)), Use("s", (m, n)), Use("top", (m,))),
        each("out", (m, n), apply("mul", Arg(0), Lit(316.0)), Use("d", (m, n))),
    )
    program = TensorProgram(inputs, nodes, ("out",))
    least = F32.least_normal

    def small(v):
        return np.where(np.abs(v) < least, 0.0, v)

    def results(case):
        x, w = (np.asarray(case.inputs[name], np.float64) for name in ("x", "w"))
        with np.errstate(all="ignore"):
            found = np.zeros((x.shape[0], w.shape[1]))
            for term in range(x.shape[1]):
                found = small(found + small(x[:, term : term + 1] * w[term]))
            exact = np.asarray(case.exact[0], np.float64)
            tiny = (np.abs(exact) < 1e-30) & (np.abs(exact) > 1e6 * least)
            return (np.where(tiny, exact * (1.0 - times), 316.0 * (found - found.max(-1, keepdims=True))),)

    assert ("tiny" in (verdict(program, results, 4) or "")) is (times > 0)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("constant", [True, False])
def test_a_sums_last_places_decide_on_which_side_of_the_mean_a_constant_row_lies(constant, bounded):
    """Passes an infinity where eager has none, if all of a row may lie above its mean and all of it below, by roundings alone; and
    the number that a hyperbolic tangent makes of it.
    """
    m, n = programs.axes("m", "n")
    vectors = ("y", "b", "c", "w")
    inputs = programs.tensor("x", m, n), *(programs.tensor(name, n) for name in vectors)
    std = apply("sqrt", apply("add", apply("div", Arg(0), Arg(1)), Lit(1e-5)))
    nodes = (
        each("v", (m, n), apply("add", Arg(0), Arg(1)), Use("x", (m, n)), Use("y", (n,))),
        row_sum("t", "v", m, n),
        Extent("count", (), F32, n.space),
        each("mean", (m,), apply("div", Arg(0), Arg(1)), Use("t", (m,)), Use("count", ())),
        each("d", (m, n), apply("sub", Arg(0), Arg(1)), Use("v", (m, n)), Use("mean", (m,))),
        each("squares", (m, n), apply("mul", Arg(0), Arg(0)), Use("d", (m, n))),
        row_sum("all", "squares", m, n),
        each("std", (m,), std, Use("all", (m,)), Use("count", ())),
        each("q", (m, n), apply("div", Arg(0), Arg(1)), Use("d", (m, n)), Use("std", (m,))),
        each(
            "r",
            (m, n),
            apply("add", apply("mul", Arg(0), Arg(1)), Arg(2)),
            Use("q", (m, n)),
            Use("c", (n,)),
            Use("b", (n,)),
        ),
        each("p", (m, n), apply("mul", Arg(0), Arg(1)), Use("r", (m, n)), Use("w", (n,))),
        row_sum("out", "p", m, n),
    )
    nodes = (*nodes, each("bounded", (m,), apply("tanh", Arg(0)), Use("out", (m,))))
    program = TensorProgram(inputs, nodes, ("bounded",) if bounded else ("out",))
    case = next(iter(cases(program, [], [{**sizes_of(program), "N": COLUMNS}], 0)))
    rows, noise = case.inputs["x"].shape[0], np.random.default_rng(0).normal(size=(3, COLUMNS)).astype(np.float32)
    given = {
        "x": np.full((rows, COLUMNS), 97037024.0) + (0.0 if constant else 1024.0 * np.arange(COLUMNS)),
        "y": noise[0].astype(np.float64),
        "b": (np.float32(1e4) + noise[1]).astype(np.float64),
        "c": (np.float32(1e4) + noise[2]).astype(np.float64),
        "w": np.where(np.arange(COLUMNS) < COLUMNS // 2, -np.inf, 1.0),
    }

    def said(value):
        tally = ErrorTally(program)
        tally.add(type(case)(program, case.sizes, given, case.layout, 0), (np.full(rows, value),))
        return tally.verdict()

    assert said(np.nan) is None
    assert (said(-1.0 if bounded else -np.inf) is None) is constant
    assert said(np.inf) is not None


@pytest.mark.parametrize("way", [0, 1, -1])
def test_a_sum_that_eager_has_infinite_is_so_in_every_order(way):
    def found(case):
        np.testing.assert_array_equal(np.asarray(case.nudged(way)[0]), np.asarray(case.eager[0]))
        return case.exact

    assert one_case(summed(), lambda v: np.where(np.arange(v.shape[-1]) == 1, np.inf, v), found) is None
