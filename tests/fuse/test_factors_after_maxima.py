"""Factors of scores that wait for the maximum: where they may, that results stay, and where something else reads the exponent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from testkit.block import handmade
from testkit.block.paper import INVERSE, each, row_sum
from testkit.block.programs import F32, MUL, axes, tensor
from testkit.fuse.same import assert_same
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Final, Map, Pointwise
from weft.block.walk import maps
from weft.fuse.factors_after_maxima import factors_after_maxima
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Contraction, Extent, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply

M, N, D, P = axes("m", "n", "d", "p")
BOTH = (M, N)
SIZES = {"M": 7, "N": 11, "D": 4, "P": 3}
BLOCKS = {"m": 3, "n": 4, "d": 2, "p": 3}


def attention(score: Scalar) -> BlockProgram:
    """softmax(score(q @ k.T)) @ v without the maximum, fused and made safe."""
    program = TensorProgram((tensor("q", M, D), tensor("k", N, D), tensor("v", N, P)), (
        Contraction("s", BOTH, F32, Use("q", (M, D)), Use("k", (N, D)), (D,)),
        Extent("dd", (), F32, D.space),
        each("t", BOTH, score, Use("s", BOTH), Use("dd", ())),
        each("e", BOTH, apply("exp", Arg(0)), Use("t", BOTH)),
        row_sum("l", "e", M, N),
        each("i", (M,), INVERSE, Use("l", (M,))),
        each("p", BOTH, MUL, Use("e", BOTH), Use("i", (M,))),
        Contraction("out", (M, P), F32, Use("p", BOTH), Use("v", (N, P)), (N,)),
    ), ("out",))  # fmt: skip
    return canonical(make_safe(canonical(fuse(lower(program)).last)).program)


def decays(program: BlockProgram) -> list[Scalar]:
    """Lists the arguments of decays."""
    found: list[Scalar] = []
    for node in maps(program.graph):
        graphs = [node.body] if node.state is None else [node.body, node.state.update, node.state.merge]
        exprs = [n.expr for g in graphs for n in g.nodes if isinstance(n, Pointwise)]
        found += [e.args[0] for e in exprs if isinstance(e, Apply) and e.op == "decay"]
    return found


MASKED = apply("where", apply("lt", Arg(0), Lit(0.5)), apply("mul", Arg(0), Lit(0.25)), Lit(-math.inf))


@pytest.mark.parametrize(
    ("score", "factor"),
    [
        (apply("mul", Arg(0), Lit(0.125)), ("mul", 0.125)),
        (apply("mul", Lit(3.0), Arg(0)), ("mul", 3.0)),
        (apply("div", Arg(0), Lit(8.0)), ("div", 8.0)),
        (apply("div", Arg(0), Lit(11.3137)), ("div", 11.3137)),  # whose inverse is no float
        (MASKED, ("mul", 0.25)),
    ],
    ids=["product", "larger", "quotient", "quotient without inverse", "masked"],
)
def test_the_factor_is_of_the_difference(score: Scalar, factor: tuple[str, float]) -> None:
    before = attention(score)
    after = factors_after_maxima(before)
    found = decays(after)
    assert len(found) == len(decays(before)) > 2
    for expr in found:
        match expr:
            case Apply(op, (Apply("sub", (Arg(), Arg())), Lit(value))):
                assert (op, value) == factor
            case _:
                pytest.fail(f"{expr} in {listing(after)}")
    if score is not MASKED:  # what is compared has no values over a field
        assert_same(before, after, SIZES, BLOCKS)


def test_rows_of_large_scores_and_masked_ones_come_out_as_before() -> None:
    before = attention(MASKED)
    after = factors_after_maxima(before)
    rng = np.random.default_rng(1)
    inputs = {n: rng.standard_normal([a.space.size(SIZES) for a in k.lists]) for n, k in before.inputs}
    inputs["q"][1] *= 1e4
    inputs["q"][2:4] = np.abs(inputs["q"][2:4])
    inputs["k"][:5] = np.abs(inputs["k"][:5])  # the scores of rows 2 and 3 with them are masked, block after block
    inputs["q"][4] = math.nan
    (old,), (new,) = (interpret(p, inputs, SIZES, Fp64Domain(), BLOCKS)[0] for p in (before, after))
    assert np.isnan(old[4]).all()
    assert np.isfinite(np.delete(old, 4, 0)).all()
    np.testing.assert_allclose(new, old, rtol=1e-11)


@pytest.mark.parametrize(
    "score",
    [
        apply("mul", Arg(0), Lit(-0.125)),
        apply("mul", Arg(0), Lit(0.0)),
        apply("mul", Arg(0), apply("pow", Arg(1), Lit(-0.5))),
        apply("add", Arg(0), Lit(0.125)),
        apply("where", apply("lt", Arg(0), Lit(0.5)), apply("mul", Arg(0), Lit(0.25)), Lit(-1e9)),
    ],
    ids=["negative", "zero", "a size", "a sum", "masked by a number"],
)
def test_what_does_not_change_places_with_a_maximum_stays(score: Scalar) -> None:
    before = attention(score)
    assert factors_after_maxima(before) == before


def test_an_exponent_that_leaves_the_loop_stays() -> None:
    def left(node: Map) -> Map:
        exponents = [] if node.state is None else [c.name for c in node.state.components if c.init < 0.0]
        return replace(node, outputs=(*node.outputs, *(Final(f"{node.name}.left", e) for e in exponents)))

    base = attention(apply("mul", Arg(0), Lit(0.125)))
    before = handmade.everywhere(base, left)
    assert factors_after_maxima(base) != base
    assert before != base
    assert factors_after_maxima(before) == before
