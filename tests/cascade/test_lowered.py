"""Loops of chains as block programs: with random schedules they are verified; random chains; planted bugs, which are refuted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from testkit.cascade.chains import CHAINS, one_loop
from testkit.cascade.folding import Folding, cutting
from testkit.cascade.programs import captured, prepared, scheduled
from testkit.cascade.random_chains import random_chain
from testkit.walk import WALK_ALL
from weft.block.check import check
from weft.block.fold import Fold
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import Graph, Pointwise
from weft.cascade import chains, folds
from weft.tensor.evaluate import evaluate
from weft.tensor.field import FieldElements, FieldValue
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply
from weft.verify import verify
from weft.verify.inputs import random_inputs
from weft.verify.subject import field_for


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHAINS)
def test_a_loop_is_verified_with_schedules_of_all_kinds(name):
    """Segments and their merge among them."""
    program, _ = one_loop(name)
    for seed in range(8 if WALK_ALL else 1):
        verdict = verify(program, scheduled(program, random.Random(seed)), trials=1)
        assert verdict.equal is True, verdict


BROADCAST = {
    "softmax": lambda x: torch.softmax(x, -1),
    "nested": lambda x: torch.log_softmax(x.logsumexp(-1, keepdim=True).expand(-1, 7), -1),
    "variance": lambda x: x.var(-1),
    "product": lambda x: torch.softmax(x, -1) @ torch.ones(9, 2),
    "product in half": lambda x: torch.softmax(x, -1).bfloat16() @ torch.ones(9, 2, dtype=torch.bfloat16),
    "weights": lambda x: (torch.softmax(x, -1) * x).sum(-1),
    "powers": lambda x: torch.exp(x - x.amax(-1, keepdim=True)).prod(-1),
}
"""Reductions along an axis of what is the same all along it."""


@pytest.mark.parametrize("name", BROADCAST)
def test_data_that_are_the_same_along_the_axis(name):
    program = prepared(captured(lambda x: BROADCAST[name](x.expand(-1, 9)), torch.randn(3, 1)))
    for seed in range(3):
        verdict = verify(program, scheduled(program, random.Random(seed)), trials=1)
        assert verdict.equal is True, verdict


AROUND = {
    "the mean of deviations": lambda x: x.std(3, correction=0).mean(),
    "the variance of variances": lambda x: (x.var((2, 3)), x.var((2, 3)).var()),
    "sums of logarithms": lambda x: torch.logsumexp(x, 1).sum((0, 2)),
    "a logarithm along all of logarithms along one": lambda x: x.logsumexp(1).logsumexp((0, 1, 2)),
    "a norm of means": lambda x: torch.nn.functional.layer_norm(x.mean((2, 3)), (4,)),
    "as long as another": lambda x: (x + x.mT).std(1).amax(),
    "weights": lambda x: (torch.softmax(x, 1) * x).sum(1).sum((1, 2)),
}
"""Chains, and around them several axes that something else reduces at once."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", AROUND)
def test_axes_around_a_loop_that_are_reduced_together(name):
    found = chains(captured(AROUND[name], torch.randn(3, 4, 5, 5)))
    assert found.found.folds
    lowered = lower(found.program, found.found.folds)
    check(lowered)
    sizes = {s.name: 2 + number % 2 for number, s in enumerate(found.program.spaces())}
    domain = field_for((found.program,), 7)
    inputs = random_inputs(found.program, sizes, domain, np.random.default_rng(7))
    outputs, _ = interpret(lowered, inputs, sizes, domain, {name: size // 2 for name, size in sizes.items()})
    assert all(map(agree, outputs, evaluate(found.program, inputs, domain)))


# Random chains: a share, and more with WALK_ALL=1 in the environment.

EACH = 600 if WALK_ALL else 60


def agree(found: FieldElements, wanted: FieldElements) -> bool:
    """Equal where `wanted` is a number; where it is none, because something is divided by 0, neither is `found`."""
    assert isinstance(found, FieldValue)
    assert isinstance(wanted, FieldValue)
    number = wanted.codes == 0
    same = (found.last == wanted.last) & (found.codes == 0)
    return found.last.shape == wanted.last.shape and bool(np.all(np.where(number, same, found.codes != 0)))


@pytest.mark.parametrize(("part", "repeated"), [(0, False), (1, False), (2, False), (3, False), (4, True)])
def test_random_chains_over_the_field(part, repeated):
    """Each loop alone, cut and merged at random, and the whole program lowered, in blocks."""
    loops = 0
    for seed in range(EACH * part, EACH * (part + 1)):
        rng = random.Random(seed)
        program = prepared(random_chain(rng, repeated=repeated))
        found = folds(program).folds
        sizes = {s.name: s.example or 1 for s in program.spaces()}
        domain = field_for((program,), seed)
        inputs = random_inputs(program, sizes, domain, np.random.default_rng(seed))
        for fold in found:
            folding = Folding(program, fold, domain, inputs)
            made = folding.over(cutting(folding.length, rng.randint(1, 3), rng), rng)
            assert all(agree(made[value], folding.wanted[value]) for value in made), (seed, program)
        if found:
            lowered = lower(program, found)
            check(lowered)
            outputs, _ = interpret(
                lowered, inputs, sizes, domain, {name: size // 2 or 1 for name, size in sizes.items()}
            )
            wanted = evaluate(program, inputs, domain)
            assert all(map(agree, outputs, wanted)), (seed, program)
        loops += len(found)
    assert loops > 10


def test_random_chains_in_numbers():
    loops = 0
    domain = Fp64Domain()
    for seed in range(2000, 2000 + 2 * EACH):
        rng = random.Random(seed)
        program = prepared(random_chain(rng, extrema_of_sums=True))
        found = folds(program)
        inputs = random_inputs(
            program, {s.name: s.example or 1 for s in program.spaces()}, domain, np.random.default_rng(seed)
        )
        for fold in found.folds:
            loops += 1
            folding = Folding(program, fold, domain, inputs)
            made = folding.over(cutting(folding.length, rng.randint(1, 3), rng), rng)
            for value, wanted in folding.wanted.items():
                number = np.isfinite(wanted)
                scale = np.abs(wanted[number]).max(initial=1.0)
                np.testing.assert_allclose(made[value][number], wanted[number], rtol=1e-6, atol=1e-9 * scale)
                assert not np.isfinite(made[value][~number]).any(), (seed, program)
    assert loops > 20


def test_random_chains_with_random_schedules():
    checked = 0
    for seed in range(1000, 1040 if WALK_ALL else 1010):
        program = prepared(random_chain(random.Random(seed)))
        if folds(program).folds:
            verdict = verify(program, scheduled(program, random.Random(seed)), trials=1)
            assert verdict.equal is True, (seed, verdict, program)
            checked += 1
    assert checked >= 2


# Planted bugs.


def changed(graph: Graph, wish: str, change: Callable[[Scalar], Scalar]) -> Graph:
    """`graph` with the expressions of the operators called `wish` (and a number) changed."""
    nodes = tuple(
        replace(n, expr=change(n.expr)) if isinstance(n, Pointwise) and n.name.rstrip("0123456789") == wish else n
        for n in graph.nodes
    )
    assert nodes != graph.nodes, "no bug was planted"
    return replace(graph, nodes=nodes)


def in_update(fold: Fold, wish: str, change: Callable[[Scalar], Scalar]) -> Fold:
    return replace(fold, state=replace(fold.state, update=changed(fold.state.update, wish, change)))


def in_merge(fold: Fold, wish: str, change: Callable[[Scalar], Scalar]) -> Fold:
    return replace(fold, state=replace(fold.state, merge=changed(fold.state.merge, wish, change)))


def inverse(expr: Scalar) -> Scalar:
    """exp(new - old) for exp(old - new)."""
    assert expr == apply("decay", apply("sub", Arg(0), Arg(1)))
    return apply("decay", apply("sub", Arg(1), Arg(0)))


def last_left_out(expr: Scalar) -> Scalar:
    """A sum without its last summand, the lowest power; or a product without its last factor."""
    assert isinstance(expr, Apply)
    return expr.args[0]


BUGS: dict[str, tuple[str, Callable[[Fold], Fold]]] = {
    "the correction is the wrong way round": ("log-sum-exp", lambda f: in_update(f, "f", inverse)),
    "the correction of a product": ("attention", lambda f: in_update(f, "f", inverse)),
    "nothing is corrected": ("mean under a softmax", lambda f: in_update(f, "kept", last_left_out)),
    "the lowest power of a second moment": ("variance", lambda f: in_update(f, "kept", last_left_out)),
    "the lowest power of a fourth moment": ("kurtosis", lambda f: in_update(f, "kept", last_left_out)),
    "the lowest power under an entropy": ("entropy", lambda f: in_update(f, "by", lambda _: Lit(0.0))),
    "the centre of a product": ("LayerNorm + matmul", lambda f: in_update(f, "by", lambda _: Arg(0))),
    "a merge that forgets one part": ("sum and sum", lambda f: in_merge(f, "s", lambda _: Arg(1))),
    "a merge that forgets what moved": ("covariance", lambda f: in_merge(f, "s", lambda _: Arg(1))),
    "a merge that corrects the wrong way round": ("log-sum-exp", lambda f: in_merge(f, "f", inverse)),
    "a merge without the lowest power": ("skewness", lambda f: in_merge(f, "kept", last_left_out)),
    "logarithms that a product is relative to": (
        "product below the greatest",
        lambda f: in_update(f, "l", last_left_out),
    ),
    "a merge that forgets logarithms": ("product by the mean", lambda f: in_merge(f, "l", last_left_out)),
    "a merge that forgets factors": ("product of shares", lambda f: in_merge(f, "p", last_left_out)),
    "a merge that forgets the greatest": ("times the greatest", lambda f: in_merge(f, "m", lambda _: Arg(0))),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_refuted(bug):
    name, plant = BUGS[bug]
    program, fold = one_loop(name)

    def verdicts(made: Fold) -> set[bool]:
        """With segments of several kinds: not each has a block for every part of the state to matter."""
        applied = (scheduled(program, random.Random(seed), [made], segments=True) for seed in range(6))
        return {verify(program, a, trials=1).agrees for a in applied}

    assert verdicts(fold) == {True}
    assert False in verdicts(plant(fold))
