"""The judge of emitted code, on results that are made here: what is right passes, what is wrong in one regime alone does not."""

import numpy as np
import pytest
import torch

from testkit.block import programs
from testkit.verify import emitted
from testkit.verify.emitted import ATTENTION, F32, NORM, SOFTMAX, first_place, one_case, right, sizes_of, verdict
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.order import Order
from weft.tensor.program import Elementwise, Ranking, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify.cases import Case, cases
from weft.verify.eager import EagerDomain, MaskedDomain
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import FAR, MANY, fitted, points
from weft.verify.regimes import REGIMES, labels, layout_of

NAMES = [r.name for r in REGIMES]


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def _references(request, monkeypatch):
    """Has references worked out in numpy's arrays, and in PyTorch's, where those of a GPU are."""
    if request.param == "torch":
        monkeypatch.setattr(emitted, "ErrorTally", emitted.HeldTally)
        monkeypatch.setattr(f"{__name__}.ErrorTally", emitted.HeldTally)


@pytest.mark.parametrize("program", [SOFTMAX, ATTENTION, NORM], ids=["softmax", "attention", "norm"])
def test_what_is_right_passes(program):
    assert verdict(program) is None
    assert verdict(program, draws=4) is None


@pytest.mark.parametrize("times", [3, 5])
@pytest.mark.parametrize("program", [SOFTMAX, ATTENTION, NORM], ids=["softmax", "attention", "norm"])
def test_what_roundings_explain_is_not_added_up_in_another_order(program, times, monkeypatch):
    """A sum in another order takes a call for each of its terms where PyTorch works it out."""
    made, asked = Case.in_order, list[int]()

    def in_order(self, order, **keywords):
        asked.append(order)
        return made(self, order, **keywords)

    def off(case):
        """Returns results whose errors are several times eager's."""
        with np.errstate(all="ignore"):
            every = [(v, v + times * (e - v)) for v, e in zip(map(np.asarray, case.exact), case.eager, strict=True)]
        return tuple(np.where(np.isfinite(wrong), wrong, v) for v, wrong in every)

    monkeypatch.setattr(Case, "in_order", in_order)
    assert verdict(program, off) is None
    assert set(asked) == {0}


@pytest.mark.parametrize(
    "regime", [n for n in NAMES if n not in ("rows of minus infinity", "a NaN", "an infinity", "subnormal")]
)
def test_what_is_wrong_in_one_regime_alone_is_not_hidden_by_the_others(regime):
    """Off by a thousandth of the row's largest result, however small that is."""

    def wrong(case):
        (found,) = right(case)
        rows = labels(len(found), case.regime) == NAMES.index(regime)
        with np.errstate(all="ignore"):
            off = 1e-3 * np.abs(found).max(-1, keepdims=True, where=np.isfinite(found), initial=0.0)
        found[rows] = (found + off)[rows]
        return (found,)

    said = verdict(SOFTMAX, wrong)
    assert said is not None
    assert regime in said


def test_tiny_rows_are_judged_by_themselves():
    """Rows of 1e-25 that are 0 instead: beside rows of 1e4 nobody would see it."""
    program = programs.square_product()

    def wrong(case):
        return tuple(np.where(np.abs(v) < 1e-15, 0.0, v) for v in right(case))

    assert "tiny" in (verdict(program, wrong) or "")


def test_a_lost_nan_and_a_number_too_few_are_wrong():
    def lost(case):
        return tuple(np.nan_to_num(v) for v in right(case))

    def too_few(case):
        return (np.where(right(case)[0] > 0.9, np.nan, right(case)[0]),)

    assert "where eager gives nan" in (verdict(SOFTMAX, lost) or "")
    assert "nan where eager gives" in (verdict(SOFTMAX, too_few) or "")


def test_more_range_than_eager_is_right():
    """Eager's sum of squares overflows, and a kernel's need not."""
    program = NORM
    case = next(iter(cases(program, [], [sizes_of(program)], 0)))
    huge = {n: v * 1e30 for n, v in case.inputs.items()}
    big = type(case)(program, case.sizes, huge, case.layout, 0)
    assert not np.isfinite(big.eager[0]).all()
    tally = ErrorTally(program)
    tally.add(big, big.exact)
    assert tally.verdict() is None


def test_a_masked_operand_does_not_propagate_its_nan():
    domain = MaskedDomain()
    zero, bad = np.array([[0.0, 1.0]]), np.array([[np.nan], [2.0]])
    assert domain.contract(zero, [0, 1], bad, [1, 2], [0, 2]).tolist() == [[2.0]]
    bad = np.array([[np.inf], [2.0]])
    assert domain.contract(zero, [0, 1], bad, [1, 2], [0, 2]).tolist() == [[2.0]]
    assert domain.contract(np.array([[1.0, 1.0]]), [0, 1], np.array([[np.inf], [-np.inf]]), [1, 2], [0, 2]).shape == (
        1,
        1,
    )
    assert np.isnan(domain.contract(np.array([[1.0, 1.0]]), [0, 1], np.array([[np.inf], [-np.inf]]), [1, 2], [0, 2]))
    assert np.isnan(domain.contract(np.array([[1.0]]), [0, 1], np.array([[np.nan]]), [1, 2], [0, 2]))


def test_eager_rounds_each_operation():
    x = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    (found,) = evaluate(SOFTMAX, {"x": x.numpy()}, EagerDomain())
    assert found.dtype == np.float32
    torch.testing.assert_close(torch.tensor(found), torch.softmax(x, -1), rtol=1e-6, atol=0)


def test_eager_rounds_numbers_to_the_type_of_what_they_meet():
    """A power of a small number shows that: 1.3 is off by 4e-8, and its logarithm is 60."""
    x = np.full(64, 1e-26, np.float32)
    found = EagerDomain().elementwise(apply("pow", Arg(0), Lit(1.3)), (x,), F32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (torch.tensor(x) ** 1.3).numpy(), rtol=3e-7)
    assert abs(float(found[0]) / float(x[0]) ** 1.3 - 1) > 2e-6


def test_rows_of_all_regimes_lie_side_by_side():
    found = labels(4 * len(REGIMES), 3)
    assert sorted(np.bincount(found)) == [4] * len(REGIMES)
    assert (np.diff(found) != 0).all()


def test_rows_are_those_that_nothing_is_summed_along():
    layout = layout_of(ATTENTION)
    values = {n.name: [a.space.name for a in n.axes] for n in ATTENTION.inputs}
    assert all(space in values[name] for name, space in layout.rows.items())
    assert (
        len(set(layout.rows.values())) == len(layout.slots) == 2
    )  # queries by themselves, and the columns of the values
    keys = ATTENTION.inputs[1].name
    assert keys not in layout.rows


def test_sizes_fit_what_is_allowed():
    for size in (40, 400, 4000):
        assert points(ATTENTION, sizes_of(ATTENTION, size)) <= MANY
    wide = fitted(SOFTMAX, {s.name: 5000 for s in SOFTMAX.spaces()}, layout_of(SOFTMAX), FAR)
    assert wide is not None
    rows, columns = (a.space.name for a in SOFTMAX.inputs[0].axes)
    assert wide[rows] < 60
    assert wide[columns] == 5000  # rows become fewer first


def test_integers_must_be_equal():
    program = first_place()
    assert verdict(program) is None
    assert "is right" in (
        verdict(program, lambda case: tuple(np.where(v == v.max(), v - 1, v) for v in right(case))) or ""
    )


def test_of_shares_as_good_as_equal_either_may_be_the_greater():
    """A GPU's exponentials and quotients are off by two units; what is off by more is wrong."""
    m, n = programs.axes("m", "n")
    raised = Elementwise("e", (m, n), F32, apply("exp", Arg(0)), (Use("x", (m, n)),))
    node = Ranking("at", (m,), DType.int64, Use("e", (m, n)), n, None, Order(True, True), places=True)
    program = TensorProgram((programs.tensor("x", m, n),), (raised, node), ("at",))

    def said(apart: float) -> str | None:
        def change(x: np.ndarray) -> np.ndarray:
            x = np.zeros_like(x)
            x[:, 2] = 1 + apart
            x[:, 1] = 1
            return x

        return one_case(program, change, lambda case: (np.full_like(case.exact[0], 1),))

    assert said(2 * DType.float32.eps) is None
    assert "1 where 2 is right" in (said(64 * DType.float32.eps) or "")


# What an accident decides: a right kernel may give it, and no wrong one passes for it.
