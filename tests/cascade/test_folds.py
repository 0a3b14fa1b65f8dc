"""The joint state: whatever the pieces and whatever the order in which they meet, its results are those of the program."""

from __future__ import annotations

import functools
import random
import time

import numpy as np
import pytest

from testkit.cascade.chains import CHAINS, one_loop
from testkit.cascade.folding import Folding, Numbers, cutting
from testkit.tensor.numbers import APART, made_anew
from weft.cascade import chains, folds
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Number, apply
from weft.verify.inputs import random_inputs
from weft.verify.subject import field_for

MANY = 1_000_003


def numbers(
    program: TensorProgram, length: int, seed: int, offset: float = 0.0, *, positive: bool
) -> dict[str, np.ndarray]:
    """Normal inputs with `length` elements along the chain's axis, about `offset`; the first are weights where `positive`."""
    rng = np.random.default_rng(seed)
    sizes = {"M": 2, "K": length, "N": 3}
    found = {n.name: rng.standard_normal([sizes[a.space.name] for a in n.axes]) + offset for n in program.inputs}
    if positive:
        first = program.inputs[0].name
        found[first] = np.abs(found[first] - offset) + 0.1
    return found


# Any pieces.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CHAINS)
def test_any_pieces_in_any_order_over_the_field(name):
    """Exactly: some segments are empty, each is up to four blocks, and any two that are left are merged next."""
    program, fold = one_loop(name)
    sizes = {s.name: s.example or 1 for s in program.spaces()}
    for seed in range(6):
        rng, domain = random.Random(seed), field_for((program,), seed)
        folding = Folding(program, fold, domain, random_inputs(program, sizes, domain, np.random.default_rng(seed)))
        found = folding.over(cutting(folding.length, rng.randint(1, 6), rng), rng)
        assert found.keys() == folding.wanted.keys()
        assert all(domain.equal(found[value], folding.wanted[value]) for value in found)


@pytest.mark.parametrize("name", CHAINS)
def test_any_pieces_in_any_order_in_numbers(name):
    program, fold = one_loop(name)
    sizes, domain = {s.name: s.example or 1 for s in program.spaces()}, Fp64Domain()
    folding = Folding(program, fold, domain, random_inputs(program, sizes, domain, np.random.default_rng(0)))
    for seed in range(20):
        rng = random.Random(seed)
        found = folding.over(cutting(folding.length, rng.randint(1, 6), rng), rng)
        for value in found:
            np.testing.assert_allclose(found[value], folding.wanted[value], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_the_state_does_not_grow_with_the_axis(name):
    _, fold = one_loop(name)
    assert all(set(fold.over).isdisjoint(c.dims) for c in fold.state.components)
    assert len(fold.state.components) <= 16


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_decided_on_in_less_than_two_seconds(name):
    program, fold = one_loop(name)
    start = time.process_time()
    found = folds(program)
    assert time.process_time() - start < 2.0
    assert found.folds == (fold,)


NAMED = (
    "variance", "weighted variance", "skewness", "log-sum-exp", "mean under a softmax", "covariance", "inertia",
)  # fmt: skip


@functools.cache
def a_million(name: str) -> Folding[np.ndarray]:
    program, fold = one_loop(name)
    return Folding(program, fold, Fp64Domain(), numbers(program, MANY, 0, 1.0, positive=CHAINS[name].positive))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("segments", [1, 2, 7, 64])
@pytest.mark.parametrize("name", NAMED)
def test_a_million_elements_in_segments(name, segments):
    folding, rng = a_million(name), random.Random(segments)
    found = folding.over(cutting(MANY, segments, rng, blocks=3), rng)
    for value in found:
        np.testing.assert_allclose(found[value], folding.wanted[value], rtol=1e-9)


# In fp32, far from zero.

FAR = ("variance", "weighted variance", "skewness", "kurtosis", "covariance", "inertia")


@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("name", FAR)
def test_a_mean_of_10000_stays_accurate_in_float32(name, segments):
    """Raw moments would be off by more than the results themselves; of deviations of about 1, the third powers nearly cancel."""
    program, fold = one_loop(name)
    inputs = {
        n: v.astype(np.float32) for n, v in numbers(program, 4096, 0, 1e4, positive=CHAINS[name].positive).items()
    }
    exact = Folding(program, fold, Fp64Domain(), {n: v.astype(np.float64) for n, v in inputs.items()}).wanted
    folding = Folding(program, fold, Numbers(np.float32), inputs)
    found = folding.over([[64] * (64 // segments)] * segments, random.Random(0))
    for value in found:
        assert found[value].dtype == np.float32
        scale = 4096 if name == "skewness" else np.abs(exact[value]).max()
        assert np.abs(found[value] - exact[value]).max() <= 3e-2 * scale


def test_raw_moments_do_not():
    """So the test above can fail."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 4096)) + 1e4).astype(np.float32)
    raw = (x * x).sum(-1) - x.sum(-1) ** 2 / np.float32(4096)
    exact = 4096 * x.astype(np.float64).var(-1)
    assert np.all(np.abs(raw - exact) > 0.5 * exact)


# What was found before.


def clipped(least: Number, *, constant: bool) -> TensorProgram:
    """The log of the sum of the exponentials of each row, of what is not below `least`: a literal, or a constant of the program."""
    b = Builder()
    x = b.input("x", (4, 8), DType.float32)
    if constant:
        clip = b.elementwise(apply("maximum", Arg(0), Arg(1)), [x, b.constant(least, DType.float32)])
    else:
        clip = b.elementwise(apply("maximum", Arg(0), Lit(least)), [x])
    most = b.reduce(Monoid.max, clip, [1], keepdim=True)
    terms = b.elementwise(apply("exp", apply("sub", Arg(0), Arg(1))), [clip, most])
    return b.finish([b.reduce(Monoid.sum, terms, [1])])


@pytest.mark.parametrize("constant", [False, True], ids=["literal", "constant"])
def test_chains_are_found_anew_for_programs_that_differ_in_a_number_alone(constant):
    """They are kept for each program: one with 1.0 or -0.0 must not be given what was found for 1 or 0.0."""
    answers = {repr(value): chains(clipped(value, constant=constant)) for value in APART}
    for value in APART:
        same = chains(clipped(made_anew(value), constant=constant))
        assert same is answers[repr(value)], "it is worked out once"
        assert repr(same.program) == repr(clipped(value, constant=constant))
        assert same.found.folds
