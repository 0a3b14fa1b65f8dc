"""From PyTorch to the paper's final programs: nothing on the way knows what attention or a normalisation is.

The functions are called with the paper's transposed matrices. What comes out is held against the golden listings, loop by loop,
load by load, sum by sum, with the scalar functions compared as algebra (`fuse.algebra`): PyTorch divides by sqrt(d), by the sum
and by the deviation where the paper multiplies by d**-0.5 and by inverses, and subtracts a mean where the paper adds its
negative. The paper has no epsilon: here it is 0. Its RMSNorm lacks the division by the width: there the width is taken for 1.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from testkit.block.normal import signature
from testkit.fuse.algebra import algebra
from testkit.fuse.front_ends import (
    EXAMPLES,
    SIZES,
    arguments,
    attention,
    attention_by_hand,
    attention_divided_last,
    attention_shifted_by_the_mean,
    captured,
    layernorm,
    layernorm_by_hand,
    rmsnorm,
    rmsnorm_of_llama,
    rmsnorm_with_a_weight,
    shapes,
)
from testkit.fuse.shuffle import shuffled
from testkit.tensor.rewritten import renamed, rewritten
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.fuse import Fusion
from weft.pipeline import fuse, normalize
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import cancel_shifts, expand_sums, scale_rows_last
from weft.tensor.program import TensorProgram
from weft.verify import equivalent

GOLDEN = Path(__file__).parent / "golden"


DTYPES = (torch.float32, torch.bfloat16)
EVERY = pytest.mark.parametrize("function", EXAMPLES, ids=lambda f: f.__name__)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def golden(function: Callable[..., torch.Tensor]) -> str:
    """The paper's last listing; for RMSNorm with a weight, which the paper has not, with the weight on what is multiplied."""
    example = EXAMPLES[function]
    text = (GOLDEN / f"{example.paper}_{example.step}.txt").read_text()
    if function is rmsnorm_with_a_weight:
        load = "        t1 = load(X[m,d])\n"
        assert load in text
        text = text.replace(load, f"{load}        g1 = load(G[d])\n        g2 = col_scale(t1,g1)\n")
        text = text.replace("dot(t1,", "dot(g2,")
    return text


def derived(program: TensorProgram) -> TensorProgram:
    """`program` under the laws, those that only a derivation may use among them."""
    return scale_rows_last(expand_sums(cancel_shifts(normalize(program))))


def fused(program: TensorProgram) -> Fusion:
    return fuse(lower(derived(program)), checked=True)


@EVERY_DTYPE
@EVERY
def test_the_final_program_is_the_papers(function, dtype):
    given = dict(EXAMPLES[function].given)
    final = fused(captured(function, dtype)).last
    assert algebra(listing(final), given) == algebra(golden(function), given)


@pytest.mark.parametrize(
    ("function", "missing"),
    [(attention, cancel_shifts), (layernorm, expand_sums), (rmsnorm_with_a_weight, scale_rows_last)],
    ids=("attention", "layernorm", "rmsnorm"),
)
def test_each_law_is_needed(function, missing):
    program = normalize(captured(function))
    for law in (cancel_shifts, expand_sums, scale_rows_last):
        program = law(program) if law is not missing else program
    loops, wanted = (text.count(" in range") for text in (listing(fuse(lower(program)).last), golden(function)))
    assert loops > wanted


def test_algebra_tells_listings_apart():
    texts = {path.stem: path.read_text() for path in GOLDEN.glob("*.txt")}
    assert algebra(texts["attention_12"]) == algebra(texts.pop("attention_13"))  # two scalar functions become one
    assert len({algebra(text) for text in texts.values()}) == len(texts)
    text = texts["attention_17"]
    same = text.replace("t4", "t40").replace("O[", "Out[").replace("t9 = row_scale(t7,t8)", "t9 = t7/t5[:,newaxis]")
    assert algebra(same) == algebra(text)
    for old, new in (("row_sum", "col_sum"), ("t6 = load(VT[l,n])", "t6 = load(VT[n,l])"), ("dot(t4,t6)", "dot(t6,t4)"),
                     ("for d", "forall d"), ("range(D)", "range(N)"), ("1/t5", "t5/1"), ("-0.5", "0.5")):  # fmt: skip
        assert old in text
        assert algebra(text.replace(old, new)) != algebra(text)


@EVERY_DTYPE
def test_softmax_by_name_and_by_hand_is_one_program(dtype):
    wanted = signature(fused(captured(attention, dtype)).last)
    for function in (attention_by_hand, attention_divided_last, attention_shifted_by_the_mean):
        assert signature(fused(captured(function, dtype)).last) == wanted


def test_normalisations_by_name_and_by_hand_are_one_program():
    """In bfloat16 too: the roundings that PyTorch's own RMSNorm does inside, and Llama's, are gone alike."""
    for dtype in DTYPES:
        (one, other) = (algebra(listing(fused(captured(f, dtype)).last)) for f in (layernorm, layernorm_by_hand))
        assert one == other
        (one, other) = (algebra(listing(fused(captured(f, dtype)).last)) for f in (rmsnorm, rmsnorm_of_llama))
        assert one == other


@EVERY
def test_types_change_no_loop(function):
    """In bfloat16 the same rules, but for the maps that casts add, and the same loops."""
    wide, narrow = (fused(captured(function, dtype)) for dtype in DTYPES)
    kept = {"swap_scale_dot", "swap_shift_dot", "duplicate_mapped_scale", "extend_map"}
    counts = [Counter(s.rule for s in fusion.steps if s.rule in kept) for fusion in (wide, narrow)]
    assert counts[0] == counts[1]
    loops = [[line for line in listing(f.last).splitlines() if " in range" in line] for f in (wide, narrow)]
    assert loops[0] == loops[1]


@EVERY_DTYPE
@EVERY
def test_the_laws_keep_what_is_computed(function, dtype):
    program = captured(function, dtype)
    before = normalize(program)
    fields = [{n.name: tuple(a.space.size({**SIZES, "D": d}) for a in n.axes) for n in program.inputs} for d in (2, 3)]
    verdict = equivalent(before, derived(program), fields)
    assert verdict.agrees, verdict  # but for roundings, which the laws drop


@EVERY
def test_the_final_program_computes_what_eager_does(function, monkeypatch):
    final = fused(captured(function)).last
    inputs = arguments(function, torch.float64)
    given = {name: x.numpy() for name, x in zip(shapes(function), inputs, strict=True)}
    (found,), _ = interpret(final, given, SIZES, Fp64Domain(), {"M": 3, "N": 2, "K": 5, "D": 5, "L": 1})
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # the reference is fp64 throughout
    np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=1e-9, atol=1e-12)


@EVERY_DTYPE
@EVERY
def test_writing_it_otherwise_changes_nothing(function, dtype):
    """Nodes in another order, everything renamed: of the tensor program, and of the block program."""
    program = captured(function, dtype)
    known = lower(derived(program))
    final = fuse(known).last
    for seed in range(5):
        rng = random.Random(seed)
        other = renamed(derived(rewritten(program, rng)), lambda n: n, lambda s: replace(s, name=s.name[1:]))
        assert algebra(listing(fuse(lower(other)).last)) == algebra(listing(final))
        assert signature(fuse(shuffled(known, rng)).last) == signature(final)
