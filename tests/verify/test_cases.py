"""Cases that the judge runs kernels on: drawn where they are used, given up when they are compared, and drawn again alike."""

import gc
import weakref
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from testkit.block import programs
from testkit.block.paper import each
from testkit.verify.emitted import ATTENTION, HERE, NORM, SOFTMAX, first_place, right, sizes_of
from weft.tensor.axes import Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.program import Contraction, Input, TensorProgram, Use
from weft.tensor.scalar import Arg, apply
from weft.verify import cases as judged
from weft.verify import emitted
from weft.verify.cases import OF_INTEGERS, Case, cases
from weft.verify.drawer import Drawer, TorchDrawer
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import FAR, MANY, fitted, points, with_own_rules
from weft.verify.regimes import REGIMES, RowLayout, Rows, layout_of


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.bfloat16, DType.float16])
@pytest.mark.parametrize("regime", REGIMES, ids=[r.name for r in REGIMES])
def test_each_regime_is_drawn_alike_on_a_device(regime, dtype):
    """Compare both drawings: the same kinds of numbers, at the same places, and other digits."""
    drawn = []
    for where in (Drawer, lambda rng: TorchDrawer(rng, HERE)):
        draws = where(np.random.default_rng(3))
        with np.errstate(all="ignore"):
            drawn.append(np.asarray(rounded(regime.fill(Rows((64, 7, 33), dtype, draws)), dtype)))
    one, other = drawn
    assert one.shape == other.shape == (64, 7, 33)
    assert one.dtype == other.dtype == np.float64
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert kind(one).sum() == kind(other).sum()
        np.testing.assert_array_equal(kind(one).sum((1, 2)), kind(other).sum((1, 2)))
    finite = [np.abs(v[np.isfinite(v)]) for v in drawn]
    if finite[0].size:
        np.testing.assert_allclose(*[v.mean() for v in finite], rtol=0.2)
        np.testing.assert_allclose(*[v.max() for v in finite], rtol=0.7)
    assert (np.signbit(one).mean() > 0.1) == (np.signbit(other).mean() > 0.1)


@pytest.mark.parametrize("device", [None, HERE], ids=["numpy", "torch"])
@pytest.mark.parametrize("count", [31, 65_537])
def test_the_exact_product_of_doubles_is_more_exact_than_a_librarys(count, device):
    """Compare with fractions: what a library adds one after another is off by hundreds of units at 65,537 equal products."""
    m, n, d = (Axis(name, Space(name.upper())) for name in "mnd")
    x, y = Input("x", (m, d), DType.float64), Input("y", (d, n), DType.float64)
    made = Contraction("t", (m, n), DType.float64, Use("x", (m, d)), Use("y", (d, n)), (d,))
    inputs = {"x": np.full((2, count), 1711.3), "y": np.full((count, 3), 1.7)}
    case = Case(
        TensorProgram((x, y), (made,), ("t",)), {"M": 2, "N": 3, "D": count}, inputs, RowLayout({}, ()), 0, device
    )
    exact = float(Fraction(1711.3) * Fraction(1.7) * count)
    assert np.abs(np.asarray(case.exact[0]) - exact).max() <= 16 * np.spacing(exact)


@pytest.mark.parametrize("device", [None, HERE], ids=["numpy", "torch"])
@pytest.mark.parametrize("program", [ATTENTION, first_place()], ids=["attention", "first place"])
def test_what_was_given_up_is_drawn_again_alike(program, device, monkeypatch):
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    monkeypatch.setattr(judged, "DRAWN_THERE", 0)
    every = list(cases(program, [sizes_of(program, 40)], [sizes_of(program)], 0, 2, device=device))
    before = [({n: np.array(v) for n, v in case.inputs.items()}, [np.array(v) for v in case.eager]) for case in every]
    for case in every:
        case.forget()
        assert not case.known
    for case, (inputs, eager) in zip(reversed(every), reversed(before), strict=True):  # in another order
        for name, values in inputs.items():
            np.testing.assert_array_equal(np.asarray(case.inputs[name]), values)
        for one, other in zip(case.eager, eager, strict=True):
            np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("near", [1, 2, 15])
@pytest.mark.parametrize(
    "program", [SOFTMAX, ATTENTION, NORM, first_place()], ids=["softmax", "attention", "norm", "first"]
)
def test_further_draws_are_those_that_were_not_taken(program, near):
    """Few draws and the rest are together the same cases as all of them at once, each one once."""
    far, sizes = [sizes_of(program, 40)], [sizes_of(program, 5 + n) for n in range(near)]

    def drawn(draws, after=0):
        every = cases(program, far, sizes, 0, draws, after=after)
        return [
            (str(sorted(case.sizes.items())), *[np.array(v).tobytes() for v in case.inputs.values()]) for case in every
        ]

    few, rest, whole = drawn(1), drawn(4, after=1), drawn(4)
    assert rest
    assert sorted([*few, *rest]) == sorted(whole)


def off(case):
    """Returns results that are wrong by a little in rows that lie far from 0, and by rounding alone elsewhere."""
    return tuple(np.where(np.abs(v) > 0.4, v * 1.0001, v) for v in right(case))


@pytest.mark.parametrize("results", [right, off], ids=["right", "wrong"])
@pytest.mark.parametrize("program", [SOFTMAX, ATTENTION, NORM], ids=["softmax", "attention", "norm"])
def test_a_verdict_is_the_same_whatever_is_kept(program, results, monkeypatch):
    said = []
    for most in (1 << 40, 0):
        monkeypatch.setattr(emitted, "_HELD", most)
        tally = ErrorTally(program)
        for case in cases(program, [], [sizes_of(program)], 0, 4):
            tally.add(case, results(case))
        said.append(tally.verdict())
    assert said[0] == said[1]
    assert (said[0] is None) == (results is right)


@pytest.fixture
def only_new_garbage():
    """Let collecting look at what is made from here on: all that other tests have left takes a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("device", [None, HERE], ids=["numpy", "torch"])
def test_arrays_of_a_large_case_are_given_up_when_it_is_compared(device, monkeypatch, only_new_garbage):
    """Keep what rows of other cases share, and nothing else."""
    monkeypatch.setattr(emitted, "_HELD", 0)
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    monkeypatch.setattr(judged, "DRAWN_THERE", 0)
    tally, arrays = ErrorTally(ATTENTION), []
    for case in cases(ATTENTION, [], [sizes_of(ATTENTION)], 0, 4, device=device):
        tally.add(case, tuple(v + 0.0 for v in case.exact))
        kept = (*case.__dict__.get("placed", {}).values(), *case.__dict__.get("exact", ()))
        assert not kept
        arrays += [weakref.ref(getattr(v, "tensor", v)) for v in (*case.inputs.values(), *case.exact)]
        case.forget()
        gc.collect()
        assert len({id(ref()) for ref in arrays if ref() is not None}) == 2
    assert len(arrays) == 4 * len(REGIMES) * (len(ATTENTION.inputs) + 1)
    assert tally.verdict() is None


def test_rows_of_large_inputs_are_drawn_once(monkeypatch):
    """Draw one case more for the inputs without rows; groups tell which row of the one meets which of the other."""
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    m, k = programs.axes("m", "k")
    node = programs.matmul("out", Use("x", (k,)), Use("w", (m, k)), k)
    program = TensorProgram((programs.tensor("x", k), programs.tensor("w", m, k)), (node,), ("out",))
    several = list(cases(ATTENTION, [], [sizes_of(ATTENTION)], 0, 4))
    assert len({id(case.inputs["q"]) for case in several}) == 4
    every = list(cases(program, [], [{"M": 40, "K": 9}], 0, 2))
    assert len(every) == 2 * len(REGIMES)
    assert len({id(case.inputs["w"]) for case in every}) == 2
    assert len({case.inputs["x"].tobytes() for case in every}) >= len(every) - 1  # minus infinity twice
    few = list(cases(program, [], [{"M": 5, "K": 9}], 0))  # rows of a few regimes: others come in other cases
    assert len({id(case.inputs["w"]) for case in few}) == len(few)
    tally = ErrorTally(program)
    for case in every:
        tally.add(case, right(case))
    assert tally.verdict() is None


def test_large_inputs_of_integers_alone_are_of_the_kinds_that_integers_have(monkeypatch):
    m, k = programs.axes("m", "k")
    node = each("out", (m, k), apply("mul", Arg(0), Arg(0)), Use("x", (m, k)))
    x = replace(programs.tensor("x", m, k), dtype=DType.int32)
    program = TensorProgram((x,), (replace(node, dtype=DType.int32),), ("out",))
    sizes = [{"M": 40, "K": 9}]
    assert len(list(cases(program, [], sizes, 0))) == len(REGIMES)
    monkeypatch.setattr(judged, "ON_DEVICE", 0)
    assert len(list(cases(program, [], sizes, 0))) == OF_INTEGERS


# Sizes.


def heads():
    """Queries of 4 times as many heads as keys: q[A] and k[B] of x[R], with A = 128 T, T = 4 M, B = 128 M; no space T or M here."""
    a, b, r = programs.axes("a", "b", "r")
    inputs = programs.tensor("x", r), programs.tensor("p", a, r), programs.tensor("q", b, r)
    nodes = (
        programs.matmul("one", Use("x", (r,)), Use("p", (a, r)), r),
        programs.matmul("two", Use("x", (r,)), Use("q", (b, r)), r),
    )
    t, m = Space("T"), Space("M")
    rules = Derived(t, m, times=4), Derived(a.space, t, times=128), Derived(b.space, m, times=128)
    return TensorProgram(inputs, nodes, ("one", "two"), derived=rules)


def test_sizes_that_must_agree_become_smaller_together():
    program = heads()
    wanted = {"A": 4096, "B": 1024, "R": 512}
    found = fitted(program, wanted, layout_of(program), FAR, ("R",), lambda _, size: -(-size // 16) * 16)
    assert found is not None
    assert points(program, found) <= FAR
    assert found["A"] == 4 * found["B"]
    assert found["R"] == 512


def test_sizes_that_do_not_agree_are_raised_until_they_do():
    program = heads()
    found = fitted(program, {"A": 700, "B": 10, "R": 3}, layout_of(program), 1 << 30)
    assert found is not None
    assert found["A"] == 4 * found["B"] >= 700


def test_a_size_follows_from_a_number():
    """Give the other 100 elements where one has 101, one more: sizes that are wanted of it do not matter."""
    m, n = programs.axes("m", "n")
    x, y = programs.tensor("x", m), programs.tensor("y", replace(n, space=Space("N", 101)))
    node = each("out", (m,), apply("neg", Arg(0)), Use("x", (m,)))
    program = TensorProgram((x, y), (node,), ("out",), derived=(Derived(y.axes[0].space, m.space, plus=1),))
    found = fitted(program, {"M": 7}, layout_of(program), MANY)
    assert found is not None
    assert (found["M"], found["N"]) == (100, 101)


def test_what_a_size_is_made_of_is_as_large_as_it_takes():
    m, n = programs.axes("m", "n")
    x, y = programs.tensor("x", m), programs.tensor("y", n)
    node = each("out", (m,), apply("neg", Arg(0)), Use("x", (m,)))
    program = TensorProgram((x, y), (node,), ("out",), derived=(Derived(n.space, m.space, plus=3),))
    found = fitted(program, {"M": 5, "N": 90}, layout_of(program), MANY)
    assert found is not None
    assert found["N"] == found["M"] + 3 >= 90


def test_rules_of_the_rest_of_a_program_bind_no_single_size():
    """Drop A = 2 B, of which B is elsewhere: it says nothing of A; A = 2 B and C = 3 B say of A what they say of C."""
    a, b, c = (Space(name) for name in "ABC")
    (m,) = programs.axes("m")
    first, third = replace(m, space=a), replace(m, space=c)
    node = each("out", (first,), apply("neg", Arg(0)), Use("x", (first,)))
    rules = Derived(a, b, times=2), Derived(c, b, times=3), Derived(Space("D", 4), b, times=2)
    one = TensorProgram((programs.tensor("x", first),), (node,), ("out",), derived=rules)
    both = TensorProgram((*one.inputs, programs.tensor("y", third)), (node,), ("out",), derived=rules)
    assert with_own_rules(one).derived == ()
    assert with_own_rules(both).derived == rules
