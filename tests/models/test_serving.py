"""Serving: what a decoder of transformers costs while its cache grows, its batches change or its window slides."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft
from testkit.models.check import Outcome, noting
from testkit.models.zoo import ENDS, KV_HEADS, LONGEST, WIDTH, WORDS, decoder, hub
from testkit.walk import WALK_ALL


def _gpt2(attention: str) -> Any:
    sizes = {"n_embd": WIDTH, "n_layer": 1, "n_head": KV_HEADS, "n_positions": LONGEST}
    return hub.GPT2LMHeadModel(hub.GPT2Config(vocab_size=WORDS, attn_implementation=attention, **sizes, **ENDS))


MODELS: dict[str, Callable[[str], Any]] = {
    "llama": decoder(hub.LlamaConfig, hub.LlamaForCausalLM, num_hidden_layers=1),
    "gpt2": _gpt2,
    "mistral": decoder(hub.MistralConfig, hub.MistralForCausalLM, num_hidden_layers=1, sliding_window=6),
}
STEPS = 50 if WALK_ALL else 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    torch.compiler.reset()
    yield
    logger.setLevel(before)


def _decoded(run: Callable[..., Any], model: Any, words: torch.Tensor, kind: str, steps: int) -> tuple[Any, list[int]]:
    """Decode greedily, the prompt in the first step; returned are tokens, and how many kernels each step compiled."""
    longest = words.shape[1] + steps
    static = kind == "static"
    cache = (
        hub.StaticCache(config=model.config, max_cache_len=longest) if static else hub.DynamicCache(config=model.config)
    )
    named = next(name for name in ("cache", "past_key_values") if name in inspect.signature(model.forward).parameters)
    found: list[torch.Tensor] = []
    compiled: list[int] = []
    for _ in range(steps):
        before = weft.stats().compiles
        logits = run(input_ids=words, **{named: cache}, use_cache=True).logits
        compiled.append(weft.stats().compiles - before)
        words = logits[:, -1:].argmax(-1)
        found.append(words)
    return torch.cat(found, 1), compiled


CASES = [("llama", "dynamic")]
MORE = [("llama", "static"), ("gpt2", "dynamic"), ("gpt2", "static"), ("mistral", "static")]


@pytest.mark.parametrize(("name", "kind"), CASES + MORE * WALK_ALL)
def test_steps_of_decoding_compile_in_the_first_three_alone(name: str, kind: str) -> None:
    torch.manual_seed(0)
    model, outcome = MODELS[name]("sdpa").eval(), Outcome()
    words = torch.randint(3, WORDS, (2, 9))
    with torch.no_grad():
        wanted, _ = _decoded(model, model, words, kind, STEPS)
    with noting(outcome), weft.options(measure="auto"):
        found, compiled = _decoded(weft.compile(model), model, words, kind, STEPS)
    assert torch.equal(found, wanted)
    assert not outcome.wrong
    assert not any(compiled[3:])
    # The prompt's graph has kernels of its own; of those of a step there is one for the first length and one for all others.
    assert sum(compiled[1:]) <= 2 * outcome.kernels / outcome.graphs


@pytest.mark.skipif(
    not WALK_ALL, reason="a minute; WALK_ALL=1 takes it, tests/api/test_serving.py has a window by hand"
)
def test_a_window_that_slides() -> None:
    torch.manual_seed(0)
    model, outcome = MODELS["mistral"]("sdpa").eval(), Outcome()
    words = torch.randint(3, WORDS, (1, 4))
    with torch.no_grad():
        wanted, _ = _decoded(model, model, words, "dynamic", 12)
    with noting(outcome):
        found, compiled = _decoded(weft.compile(model), model, words, "dynamic", 12)
    assert torch.equal(found, wanted)
    assert not outcome.wrong
    assert not any(compiled[-3:])


@pytest.mark.skipif(
    not WALK_ALL, reason="half a minute; WALK_ALL=1 takes it, tests/api/test_serving.py has a layer by hand"
)
def test_twenty_shapes_of_batches() -> None:
    torch.manual_seed(0)
    model, outcome = MODELS["llama"]("sdpa").eval(), Outcome()
    fast = weft.compile(model)
    compiled: list[int] = []
    with noting(outcome):
        for number in range(20):
            words = torch.randint(3, WORDS, (2 + number * 7 % 5, 5 + number * 11 % 17))
            before = weft.stats().compiles
            found = fast(input_ids=words, use_cache=False).logits
            compiled.append(weft.stats().compiles - before)
            torch.testing.assert_close(found, model(input_ids=words, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    assert not outcome.wrong
    assert not any(compiled[3:])
    assert sum(compiled) <= 2 * outcome.kernels / outcome.graphs
