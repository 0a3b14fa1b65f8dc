"""Attention by the algebra of chains and by pairs of a significand and an exponent: one program, literally."""

from __future__ import annotations

import functools

import pytest
import torch

from testkit.cascade.programs import captured, prepared, wrong
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.ranges import Band
from weft.block.walk import maps
from weft.cascade import folds
from weft.fuse.coarse_where_kept_in_16_bits import coarse_where_kept_in_16_bits
from weft.fuse.round_where_made import round_where_made
from weft.fuse.safety import make_safe
from weft.lab.workloads import cpu as workloads
from weft.masks import limit
from weft.pipeline import RULES_THAT_KEEP_PRECISION, fuse
from weft.tensor.laws import cancel_shifts, sizes_in_place
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


def kernels(lowered: BlockProgram) -> list[BlockProgram]:
    """Lists what each snapshot of fusion becomes, as the plan makes it."""
    found: list[BlockProgram] = []
    for snapshot in fuse(lowered, RULES_THAT_KEEP_PRECISION, checked=True).snapshots:
        safe = make_safe(limit(snapshot.program)).program
        found.append(canonical(coarse_where_kept_in_16_bits(round_where_made(safe))))
    return found


@BOTH
@EVERY
def test_the_algebra_and_the_pairs_give_one_program(function, dtype):
    """The last snapshot of both: online softmax, once derived and once made safe."""
    written = program(function, dtype)
    ready = prepared(written)
    derived = kernels(lower(ready, folds(ready).folds))
    safe = kernels(lower(sizes_in_place(cancel_shifts(written))))
    assert derived[-1] == safe[-1]
    states = [m.state for m in maps(derived[-1].graph) if m.state is not None and len(m.state.components) > 1]
    assert [len(s.components) for s in states] == [3]
    # Where a comparison of indices excludes keys, the loop runs only over the others.
    bands = [m for m in maps(derived[-1].graph) if isinstance(m.range, Band)]
    assert len(bands) == (function is causal)


def test_two_forms_that_differ_give_two_programs():
    """So that the equality above says something."""
    with_scale, without = (kernels(lower(prepared(p), folds(prepared(p)).folds))[-1] for p in map(_fp32, FORMS[:4:3]))
    assert with_scale != without


def _fp32(function) -> TensorProgram:
    return program(function, torch.float32)
