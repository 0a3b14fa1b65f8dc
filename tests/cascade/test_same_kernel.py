"""Attention by the algebra of chains and by pairs of a significand and an exponent: one program, literally."""

from __future__ import annotations

import functools

import pytest
import torch

from testkit.cascade.programs import captured, wrong
from testkit.pipeline.candidates import candidates
from weft.block.ranges import Spans
from weft.block.walk import maps
from weft.lab.workloads import cpu as workloads
from weft.pipeline import ONE_LOOP, SNAPSHOTS
from weft.tensor.program import TensorProgram

SHAPES = ((64, 16), (80, 16), (80, 24))


def by_hand(q, k, v):
    scores = q @ k.T / 4.0
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def scaled_before(q, k, v):
    return torch.softmax((q * 0.25) @ k.T, -1) @ v


def without_scale(q, k, v):
    return torch.softmax(q @ k.T, -1) @ v


def causal(q, k, v):
    seen = torch.arange(k.shape[0]) <= torch.arange(q.shape[0])[:, None]
    return torch.softmax((q @ k.T / 4.0).masked_fill(~seen, -torch.inf), -1) @ v


def divided_last(q, k, v):
    scores = q @ k.T / 4.0
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


OTHER_AXES = "the sum, which something else than the chain reads, and the product have other free axes: two loops"
FORMS = (workloads.attention, by_hand, scaled_before, without_scale, causal)
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
EVERY = pytest.mark.parametrize("function", [*FORMS, wrong(divided_last, reason=OTHER_AXES)], ids=lambda f: f.__name__)


@functools.cache
def program(function, dtype) -> TensorProgram:
    return captured(function, *(torch.randn(shape, dtype=dtype) for shape in SHAPES))


@BOTH
@EVERY
def test_the_algebra_and_the_pairs_give_one_program(function, dtype):
    """The last snapshot of both: online softmax, once derived and once made safe."""
    written = program(function, dtype)
    derived, safe = candidates(ONE_LOOP, written), candidates(SNAPSHOTS, written)
    assert derived[-1] == safe[-1]
    states = [m.state for m in maps(derived[-1].graph) if m.state is not None and len(m.state.components) > 1]
    assert [len(s.components) for s in states] == [3]
    # Where a comparison of indices excludes keys, the loop runs only over the others.
    bands = [m for m in maps(derived[-1].graph) if isinstance(m.range, Spans)]
    assert len(bands) == (function is causal)


def test_two_forms_that_differ_give_two_programs():
    """So that the equality above says something."""
    with_scale, without = (candidates(ONE_LOOP, program(form, torch.float32))[-1] for form in FORMS[:4:3])
    assert with_scale != without
