"""Random functions: what eager owes to overflow, rounding or a mask excuses that alone, and nothing that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from testkit.verify.functions import drawn
from weft.lab.fuzz import compared
from weft.lab.fuzz import trial as function_trial
from weft.lab.fuzz.function_rows import Exactness
from weft.lab.fuzz.random_functions import RandomArgument, Statement
from weft.lab.fuzz.trial import tried


def test_what_eager_overflows_in_is_not_compared():
    inf, nan = float("inf"), float("nan")
    eager = torch.tensor([1.0, inf, nan, 3.0, 0.0, inf, nan, -inf, 0.0])
    exact = torch.tensor([1.0, inf, nan, 3.1, 0.0, 1e60, inf, inf, -0.16], dtype=torch.float64)
    found = torch.tensor([2.0, 2.0, 2.0, nan, nan, nan, 2.0, inf, nan])
    mine, theirs, wide = compared.comparable(found, eager, exact)
    assert mine[:3].tolist() == [2, 2, 2]
    assert bool(mine[3:6].isnan().all())
    assert theirs.tolist()[:5:4] == [1, 0]
    assert theirs[5] == wide[5] == inf  # 1e60 is out of range, and infinite in any right program
    assert mine.tolist()[6:] == theirs.tolist()[6:] == wide.tolist()[6:] == [0, 0, 0]


def test_what_is_infinite_in_fp64_may_be_infinite():
    """Eager may divide by what rounding left of a 0; with the other sign, as NaN, or where fp64 is finite it is wrong."""
    inf, nan = float("inf"), float("nan")
    eager = torch.tensor([-207872.0, 5.0, 1e30, 1e30, 3.0, inf])
    exact = torch.tensor([-inf, nan, inf, inf, 3.0, inf], dtype=torch.float64)
    found = torch.tensor([-inf, nan, -inf, nan, inf, 3.0])
    mine, theirs, wide = compared.comparable(found, eager, exact)
    assert mine[:2].tolist() == theirs[:2].tolist() == wide[:2].tolist() == [0, 0]
    assert torch.equal(mine[2:].isnan(), found[2:].isnan())
    assert (mine[2].item(), mine[4].item(), mine[5].item()) == (-inf, inf, 3.0)
    assert theirs[2:].tolist() == eager[2:].tolist()


def test_the_largest_number_may_be_rounded_up():
    """To the infinity of its sign."""
    exact = torch.tensor([65519.9, 65519.9, -65510.0, 60000.0], dtype=torch.float64)
    found = torch.tensor([torch.inf, -torch.inf, -torch.inf, torch.inf], dtype=torch.float16)
    mine, _, _ = compared.comparable(
        found, torch.tensor([65504.0, 65504.0, -65504.0, 60000.0], dtype=torch.float16), exact
    )
    assert mine.isfinite().tolist() == [True, False, True, False]


def _of_what_is_visible(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in which nothing is multiplied with what the mask excludes."""
    seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    shares = torch.softmax((q @ q.mT / q.shape[1] ** 0.5).masked_fill(~seen, -torch.inf), -1)
    return torch.where(seen[..., None], shares[..., None] * v, 0).sum(1)


@pytest.mark.parametrize(
    ("weft", "stage"),
    [
        (_of_what_is_visible, None),
        (lambda q, v: _of_what_is_visible(q, v) + 1e-3, "number"),
        (lambda q, v: _of_what_is_visible(q, v.nan_to_num(neginf=1.0)), "nan"),
    ],
    ids=["right", "wrong where nothing is hidden", "blind to what is visible"],
)
def test_what_a_mask_excludes_owes_no_nan(monkeypatch, weft, stage):
    square = tuple(
        RandomArgument(name, ("n", "n"), "float32", values, "dense")
        for name, values in (("a0", "normal"), ("a1", "infinite"))
    )
    function = drawn(
        "F.scaled_dot_product_attention(a0, a0, a1, is_causal=True)", entry="compile", arguments=square, seed=2
    )
    assert bool(function.made()(*function.tensors(0))[0][0].isnan().any())
    monkeypatch.setattr(function_trial, "weft_compile", lambda _: lambda q, v: (weft(q, v),))
    found = tried(function).finding
    assert (found and found.stage) == stage


@pytest.mark.parametrize(
    ("weft", "stage"),
    [
        (_of_what_is_visible, None),
        (lambda q, v: _of_what_is_visible(q, v) + 1e-3, "number"),
        (
            lambda q, v: (
                _of_what_is_visible(q, v) + 1e-3 * F.scaled_dot_product_attention(q, q, v, is_causal=True).isnan()
            ),
            "number",
        ),
        (lambda q, v: _of_what_is_visible(q * 1e-4, v), "nan"),
        (lambda q, v: _of_what_is_visible(q, v.nan_to_num(neginf=1.0)), "nan"),
    ],
    ids=[
        "right",
        "wrong where nothing is hidden",
        "wrong where eager has no number",
        "does not saturate",
        "blind to what is visible",
    ],
)
def test_beside_what_a_mask_excludes_infinities_may_saturate_a_softmax(monkeypatch, weft, stage):
    """Holds that what is visible then depends on the signs of infinities alone, and not on numbers that are put in their place."""
    square = (RandomArgument("a0", ("n", "n"), "float32", "infinite", "dense"),)
    scores = "a0.clamp(-1e4, 1e4)"
    function = drawn(
        f"F.scaled_dot_product_attention({scores}, {scores}, a0, is_causal=True)",
        entry="compile",
        arguments=square,
        calls=({"n": 9},),
        seed=3,
    )
    monkeypatch.setattr(function_trial, "weft_compile", lambda _: lambda a: (weft(a.clamp(-1e4, 1e4), a),))
    found = tried(function).finding
    assert (found and found.stage) == stage


def _wrongly(monkeypatch, function, change):
    """Find what is said where weft gives `change` of eager's results."""
    monkeypatch.setattr(function_trial, "weft_compile", lambda f: lambda *given: change(*f(*given)))
    return tried(function).finding


LARGE = tuple(RandomArgument(name, ("n", "m"), "float32", "large", "dense") for name in ("a0", "a1"))


def test_an_overflow_excuses_what_depends_on_it_alone(monkeypatch):
    function = drawn("a0 @ a0.mT", "torch.softmax(a1 * 1e-30, -1)", outputs="v0 v1", entry="compile", arguments=LARGE)
    assert _wrongly(monkeypatch, function, lambda a, b: (a * torch.nan, b)) is None
    found = _wrongly(monkeypatch, function, lambda a, b: (a, b * torch.nan))
    assert found is not None
    assert (found.stage, "output 1" in found.what) == ("nan", True)


def test_terms_that_cancel_may_overflow_before_they_do(monkeypatch):
    ends = tuple(replace(a, values="ends", dims=("n",)) for a in LARGE)
    function = drawn("torch.stack((a0, -a0, a1)).sum(0)", entry="compile", arguments=ends, calls=({"n": 64},))
    plain = function.made()(*function.tensors(0))[0]
    assert bool(plain.isfinite().any())
    assert _wrongly(monkeypatch, function, lambda a: (a.where(function.tensors(0)[0].abs() < 1e38, torch.nan),)) is None
    found = _wrongly(monkeypatch, function, lambda a: (a * torch.nan,))
    assert found is not None


def test_sums_in_fp64_that_leave_the_range_on_both_sides_depend_on_their_order(monkeypatch):
    """And on whether products are rounded. What is NaN in any order must be NaN."""
    ends, infinite = (
        tuple(RandomArgument(name, ("n", "m"), "float64", values, "dense") for name in ("a0", "a1"))
        for values in ("ends", "infinite")
    )
    for text in ("a0 @ a0.mT", "(a0 * 1.5).sum(1)"):
        function = drawn(text, entry="compile", arguments=ends, calls=({"n": 9, "m": 33},), seed=3)
        (plain,) = function.made()(*function.tensors(0))
        assert bool(plain.isnan().any() or plain.isinf().any())
        assert _wrongly(monkeypatch, function, lambda a: (a.nan_to_num(-torch.inf, torch.inf, -torch.inf),)) is None
        assert _wrongly(monkeypatch, function, lambda a: (a.where(~a.isfinite(), a + 1e300),)) is not None
    function = drawn("a0 @ a0.mT", entry="compile", arguments=infinite, calls=({"n": 9, "m": 33},), seed=3)
    found = _wrongly(monkeypatch, function, lambda a: (a.nan_to_num(-torch.inf, torch.inf, -torch.inf),))
    assert found is not None
    assert found.stage == "nan"


def test_an_infinite_term_and_a_product_beyond_fp64_are_nan_or_that_infinity(monkeypatch):
    """A fused multiplication adds the product to the infinity; means leave the range as sums do."""
    ends = RandomArgument("a0", ("n", "n", "n"), "float64", "ends", "dense")
    function = drawn("a0.mean(0) @ a0.mean(0)", entry="compile", arguments=(ends,), calls=({"n": 17},), seed=3)
    (plain,) = function.made()(*function.tensors(0))
    means = function.tensors(0)[0].mean(0)
    terms = means[:, :, None] * means
    infinite = terms.where((means.isinf()[:, :, None]) | means.isinf(), 0.0).sum(1)  # NaN where they are of both signs
    fused = plain.where(~infinite.isinf(), infinite)
    assert bool((plain.isnan() & fused.isinf()).any())
    assert _wrongly(monkeypatch, function, lambda a: (fused,)) is None


def test_squares_inside_a_call_may_leave_the_range_of_fp64(monkeypatch):
    """There is nothing wider to compare with; what was no number before the call must be none after it."""
    for values, hidden in (("ends", True), ("infinite", False)):
        argument = RandomArgument("a0", ("n", "m"), "float64", values, "dense")
        function = drawn("F.group_norm(a0, 1)", entry="compile", arguments=(argument,), calls=({"n": 64, "m": 4},))
        (plain,) = function.made()(*function.tensors(0))
        assert bool(plain.isnan().any())
        assert (_wrongly(monkeypatch, function, lambda a: (a.nan_to_num(),)) is None) is hidden


@pytest.mark.parametrize(("off", "right"), [(5e-6, True), (5e-5, False)])
def test_of_float32_a_result_is_held_to_how_its_function_is_conditioned(monkeypatch, off, right):
    """Eager's error is no measure where it is lucky in the one element that counts: here it has none."""
    function = drawn("a0.double().sum().mul(20).sinh().float()", entry="compile", calls=({"n": 1, "m": 2},))
    assert (_wrongly(monkeypatch, function, lambda a: (a * (1 + off),)) is None) is right


LUCKY = {
    "a sum in float64 that the last place decides of": (
        ("torch.sin((a0.double() * 1300000.1).sum())",),
        ("int64", "normal"),
        lambda a: torch.sin((a.double() * 1300000.1).sum() * (1 + 2.0**-52)),
    ),
    "rows of one number that rounding tells apart": (
        ("torch.log1p(a0[:, :1].expand(-1, 5).abs())", "F.group_norm(v0, 1)"),
        ("float32", "normal"),
        lambda a: F.group_norm(torch.log1p(a[:, :1].expand(-1, 5).abs()) * torch.tensor([1, 1, 1, 1, 1 + 2.0**-23]), 1),
    ),
    "a mean of equal numbers that eager rounds to 16 bits": (
        ("torch.linalg.vector_norm(a0[:, :2].sign() * 8188, dim=1)", "(v0 - v0.mean()) / (v0.std() + 1e-5)"),
        ("float16", "normal"),
        lambda a: torch.full((len(a),), -97.6, dtype=torch.float16),
    ),
}


@pytest.mark.parametrize("lucky", LUCKY)
def test_of_what_roundings_inside_a_function_decide_eagers_luck_is_no_measure(monkeypatch, lucky):
    """Arguments that are rounded otherwise do not show it: all of a row, or none of a sum, move with them."""
    texts, (dtype, values), weft = LUCKY[lucky]
    argument = RandomArgument("a0", ("n", "m"), dtype, values, "dense")
    function = drawn(
        *texts, outputs=f"v{len(texts) - 1}", entry="compile", arguments=(argument,), calls=({"n": 9, "m": 64},)
    )
    a = function.tensors(0)[0]
    assert not torch.equal(weft(a), function.made()(a)[0])
    monkeypatch.setattr(function_trial, "weft_compile", lambda _: lambda a: (weft(a),))
    assert tried(function).finding is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("text", ["a0.sum(-1)", "F.layer_norm(a0, (64,))", "torch.softmax(a0, -1)", "(a0 * 2).exp()"])
def test_what_is_lost_of_a_well_conditioned_function_is_found_in_each_type(monkeypatch, dtype, text):
    argument = RandomArgument("a0", ("n", "m"), dtype, "normal", "dense")
    function = drawn(text, entry="compile", arguments=(argument,), calls=({"n": 9, "m": 64},))
    off = {"float64": 1e-12, "float32": 1e-4}.get(dtype, 3e-2)
    assert _wrongly(monkeypatch, function, lambda a: (a,)) is None
    found = _wrongly(monkeypatch, function, lambda a: (a * (1 + off),))
    assert found is not None
    assert found.stage == "number"


def test_a_row_that_is_conditioned_badly_excuses_no_other_row(monkeypatch):
    """A row of equal numbers is divided by almost 0: what it is off by says nothing of the rows beside it."""
    argument = RandomArgument("a0", ("n", "m"), "bfloat16", "normal", "dense")
    texts = (
        "torch.cat([a0[:1] * 0 + 3.3, a0[1:]])",
        "(v0 - v0.mean(1, keepdim=True)) / (v0.std(1, keepdim=True) + 1e-6)",
    )
    function = drawn(*texts, outputs="v1", entry="compile", arguments=(argument,), calls=({"n": 9, "m": 64},))
    assert _wrongly(monkeypatch, function, lambda a: (a,)) is None
    found = _wrongly(monkeypatch, function, lambda a: (torch.cat([a[:1], a[1:] * 1.05]),))
    assert found is not None
    assert found.stage == "number"


def test_a_result_beyond_its_type_is_infinite_of_its_sign(monkeypatch):
    function = drawn("a0 * a0.abs()", entry="compile", arguments=LARGE)
    assert _wrongly(monkeypatch, function, lambda a: (a,)) is None
    for wrong in (torch.neg, torch.zeros_like, torch.nan_to_num):
        found = _wrongly(monkeypatch, function, lambda a, wrong=wrong: (wrong(a),))
        assert found is not None
        assert found.stage == "nan"


def test_a_reference_that_is_nudged_holds_its_constants_in_fp64(monkeypatch):
    wide = tuple(replace(a, dtype="float64") for a in drawn("a0").arguments)
    function = drawn(
        "a0 * torch.tensor([0.1], dtype=torch.get_default_dtype()).to(a0.dtype)", arguments=wide, entry="compile"
    )
    assert _wrongly(monkeypatch, function, lambda a: (a,)) is None
    found = _wrongly(monkeypatch, function, lambda a: (a * (1 + 1e-6),))
    assert found is not None
    assert found.stage == "number"


def test_a_write_into_memory_of_its_own_is_judged(monkeypatch):
    """Though it is what PyTorch's own tracing gives."""
    writes = (
        Statement(None, "a0[0] += a1[0]", Exactness.exact, keeps=True),
        Statement("v0", "a0 * 2", Exactness.rounds, keeps=False),
    )
    function = drawn(statements=writes, entry="compile")
    wrong = lambda f: lambda a, b: (f(a, b)[0] * 1.01,)  # noqa: E731
    monkeypatch.setattr(function_trial, "weft_compile", wrong)
    plain = function.made()

    monkeypatch.setattr(function_trial, "traced", lambda _, given: (plain(*given)[0] * 1.01, *given))
    found = tried(function).finding
    assert found is not None
    assert found.stage == "number"
