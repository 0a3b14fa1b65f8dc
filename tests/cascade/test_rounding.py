"""Chains that round at the scale so far: which may, what is checked of them, and that without roundings nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from testkit.cascade.folding import Folding, cutting
from testkit.cascade.programs import captured, prepared, scheduled
from weft.block.fold import Fold
from weft.block.places import Place
from weft.block.program import BlockProgram, Pointwise
from weft.block.walk import maps
from weft.cascade import Chains, chains, folds, formulas
from weft.cascade.approximation import without
from weft.lab.workloads.cpu import fp8_matmul, quantised_matmul
from weft.tensor.program import Contraction, TensorProgram
from weft.tensor.scalar import Apply, Arg, Lit, apply
from weft.verify import verify
from weft.verify.inputs import random_inputs
from weft.verify.subject import field_for

E4 = torch.float8_e4m3fn
SHAPES = ((5, 9), (9, 4))


def scale_of(x, largest):
    return x.abs().amax(-1, keepdim=True) / largest


def int8_rows(x, w):
    scale = scale_of(x, 127)
    return (x / scale).round().clamp(-127, 127).to(torch.int8).to(x.dtype) @ w * scale


def by_reciprocal(x, w):
    return (x * (448.0 / x.abs().amax(-1, keepdim=True))).to(E4).to(x.dtype) @ w


def twice_as_large(x, w):
    """Scales what is rounded and what is measured by different numbers: they are multiples of one another."""
    return (2 * x / scale_of(3 * x, 448.0)).to(E4).to(x.dtype) @ w


def never_zero(x, w):
    return (x / (x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0)).to(E4).to(x.dtype) @ w


def weights_too(x, w):
    """Weights that are rounded the same way, which nobody may leave out."""
    return (x / scale_of(x, 448.0)).to(E4).to(x.dtype) @ w.to(E4).to(x.dtype)


def a_sum_of_products(x, w):
    """No product of matrices: the element is a product in itself."""
    return ((x / scale_of(x, 448.0)).to(E4).to(x.dtype) * w.sum(-1)).sum(-1)


DONE = {
    f.__name__: f
    for f in (
        fp8_matmul,
        quantised_matmul,
        int8_rows,
        by_reciprocal,
        twice_as_large,
        never_zero,
        weights_too,
        a_sum_of_products,
    )
}


def asked(function) -> tuple[TensorProgram, Chains]:
    program = captured(function, *(torch.randn(s) for s in SHAPES))
    return program, chains(program, running=True)


@pytest.mark.parametrize("name", DONE)
def test_the_form_is_there_only_where_it_is_asked_for(name):
    program, running = asked(DONE[name])
    assert running.approximation is not None
    assert len(running.found.folds) == 1
    exact = chains(program)
    assert exact.found.folds == ()
    assert exact.approximation is None


# What is approximated.


def too_large_a_step(x, w):
    """Some of what is rounded is beyond the largest float of 8 bits."""
    return (x / scale_of(x, 1000.0)).to(E4).to(x.dtype) @ w


def cut_off(x, w):
    return (x / scale_of(x, 127)).round().clamp(-100, 100).to(torch.int8).to(x.dtype) @ w


def by_another(x, w):
    """The scale is of other data: x may be anything beside it."""
    return (x / scale_of(x + 1, 448.0)).to(E4).to(x.dtype) @ w


def growing(x, w):
    """Rounds what grows with the maximum: so does an error that was made before."""
    return (x * x.abs().amax(-1, keepdim=True)).round() @ w


def by_the_least(x, w):
    return (x / x.abs().amin(-1, keepdim=True)).round() @ w


def by_a_sum(x, w):
    return (x / x.abs().sum(-1, keepdim=True) * 127).round() @ w


def shifted(x, w):
    return (x / scale_of(x, 100) + 0.5).floor() @ w


REFUSED = {
    too_large_a_step: "clipped",
    cut_off: "clipped",
    by_another: "a running maximum of its size",
    growing: "a running maximum of its size",
    by_the_least: "a running maximum of its size",
    by_a_sum: "a running maximum of its size",
    shifted: "is a sum of data",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_would_be_no_fair_approximation_is_refused(function):
    _, running = asked(function)
    assert running.approximation is None
    assert running.found.folds == ()
    (refused,) = running.found.refused
    assert REFUSED[function] in refused.reason


# What is checked.


def in_blocks(program: TensorProgram, loops: Sequence[Fold], *, segments: bool = False) -> BlockProgram:
    """`program`'s loops with a schedule in which they go block by block."""
    for seed in range(50):
        made = scheduled(program, random.Random(seed), loops, segments=segments)
        states = [m for m in maps(made.graph) if m.state is not None and len(m.state.components) > 1]
        if all(m.place is Place.loop for m in states):
            return made
    raise AssertionError("no schedule has blocks")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", DONE)
@pytest.mark.parametrize("segments", [False, True])
def test_without_its_roundings_the_loop_is_exact_and_with_them_it_is_not(name, segments):
    program, running = asked(DONE[name])
    applied = in_blocks(running.program, running.found.folds, segments=segments)
    rounding = running.approximation
    assert rounding is not None
    assert verify(rounding.program, rounding.without(applied)).equal is True
    assert verify(program, applied, trials=20).equal is False


def test_a_wrong_correction_is_refuted():
    _, running = asked(fp8_matmul)
    rounding = running.approximation
    assert rounding is not None
    (loop,) = running.found.folds
    update = loop.state.update
    ratio = apply("div", Arg(0), Arg(1))
    broken = tuple(
        replace(n, expr=apply("div", Arg(1), Arg(0))) if isinstance(n, Pointwise) and n.expr == ratio else n
        for n in update.nodes
    )
    assert broken != update.nodes
    wrong = replace(loop, state=replace(loop.state, update=replace(update, nodes=broken)))
    applied = in_blocks(running.program, [wrong])
    assert verify(rounding.program, rounding.without(applied), trials=20).equal is False


def test_only_what_is_asked_for_is_left_out():
    program, running = asked(weights_too)
    rounding = running.approximation
    assert rounding is not None
    values = rounding.program.values()
    product = next(
        n for n in rounding.program.nodes if n.name in folds(running.program, running=True).folds[0].makes[0]
    )
    assert isinstance(product, Contraction)
    assert values[product.left.value].dtype.name == "float32"
    assert "float8_e4m3fn" in str(rounding.program)
    assert str(rounding.program).count("float8_e4m3fn") < str(program).count("float8_e4m3fn")


def test_a_rounding_is_left_out_wherever_it_is():
    around = apply("round", Arg(0))
    expr = apply("add", apply("round", apply("mul", Arg(0), Lit(2.0))), apply("floor", apply("round", Arg(1))))
    left = without([around], expr)
    assert left == apply("add", apply("mul", Arg(0), Lit(2.0)), Apply("floor", (Arg(1),)))


# Pieces.


@pytest.mark.parametrize("name", DONE)
def test_any_pieces_in_any_order_over_the_field_without_roundings(name):
    """The fold's own graphs, merged in any tree: exactly what the program without roundings gives."""
    _, running = asked(DONE[name])
    rounding = running.approximation
    assert rounding is not None
    program, (loop,) = prepared(rounding.program), running.found.folds
    nodes = tuple(
        replace(n, expr=without(rounding.roundings, n.expr)) if isinstance(n, Pointwise) else n
        for n in loop.state.update.nodes
    )
    plain = replace(loop, state=replace(loop.state, update=replace(loop.state.update, nodes=nodes)))
    sizes = {s.name: s.example or 1 for s in program.spaces()}
    for seed in range(6):
        rng, domain = random.Random(seed), field_for((program,), seed)
        folding = Folding(program, plain, domain, random_inputs(program, sizes, domain, np.random.default_rng(seed)))
        found = folding.over(cutting(folding.length, rng.randint(1, 6), rng), rng)
        assert all(domain.equal(found[value], folding.wanted[value]) for value in found)


# Formulas.


def test_the_formulas_are_the_papers_and_say_what_is_rounded():
    _, running = asked(fp8_matmul)
    (found,) = running.found.decompositions
    amax, product = formulas(
        found, {found.chain.links[0].node: "m", found.chain.links[1].node: "c", "x": "A", "w": "W"}
    )
    assert (amax.data, amax.correct, amax.update) == ("abs(A)", None, "m' = max(m, max over k of abs(A))")
    assert (product.data, product.result_factor) == ("A * W", "1 / (m / 448)")
    assert product.correct == "m / m'"
    assert product.update == "c' = c * m / m' + sum over k of 448 * A * W / m'"
    assert product.merge == "c' = c_1 * m_1 / m' + c_2 * m_2 / m'"
    assert product.rounded == ("float32(float8_e4m3fn(A / (m' / 448)))",)
    assert "roundings left out" in str(product)
