"""A share of the models' campaign, `python -m testkit.models.campaign`: right, in kernels, nothing lost, nothing said."""

from __future__ import annotations

import logging

import pytest
import torch

from testkit.models.check import LENGTHS, for_a_gpu, forward, generated
from testkit.walk import WALK_ALL

FORWARD = [("gpt2", "sdpa", torch.float32)]
MORE = [
    ("llama", "eager", torch.bfloat16),
    ("vit", "sdpa", torch.float32),
    ("t5", "eager", torch.float32),
    ("mixtral", "sdpa", torch.float32),
    ("bert", "eager", torch.bfloat16),
]


@pytest.fixture(autouse=True)
def _quiet():
    """Nothing of transformers' own advice: pytest would take what it writes at the end of the process for an error."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(("name", "attention", "dtype"), FORWARD + MORE * WALK_ALL, ids=str)
def test_forward_at_three_lengths(name: str, attention: str, dtype: torch.dtype) -> None:
    outcome = forward(name, attention, dtype, draws=4 if WALK_ALL else 1)
    assert not outcome.wrong
    assert outcome.kernels > 10


@pytest.mark.skipif(
    not WALK_ALL, reason="a minute; WALK_ALL=1 takes it, and tests/plan/test_spare.py holds what went wrong"
)
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generate_gives_the_tokens_of_eager(cache: str) -> None:
    outcome = generated("llama", "sdpa", torch.float32, cache)
    assert not outcome.wrong


@pytest.mark.parametrize("name", ["gpt2", *["bert", "llama"] * WALK_ALL])
def test_forward_for_a_gpu_that_is_not_here(name: str) -> None:
    outcome = for_a_gpu(name, "sdpa", torch.bfloat16, "cuda:90", LENGTHS[: 3 if WALK_ALL else 1])
    assert not outcome.wrong
    assert outcome.kernels >= 5  # a few for each layer: what is fused more has fewer
    assert not any("reshape" in left or "embedding" in left for left in outcome.left)
