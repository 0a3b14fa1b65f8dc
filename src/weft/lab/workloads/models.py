"""Small models of the `transformers` package with random weights: what `weft bench --first-calls` compiles beside the list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

_WIDTH, _HEADS, _INNER, _WORDS, _BATCH, _LENGTH = 128, 4, 512, 1000, 2, 64
_NAMES = {
    "hidden_size": _WIDTH,
    "num_attention_heads": _HEADS,
    "intermediate_size": _INNER,
}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_TORCH: Any = torch  # the type of torch.manual_seed is only partly known
MISSING = "the package transformers is not installed"


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model of width 128.

    Attributes:
        family: what it is a small one of.
        layers: how many equal layers it has.
        build: makes it from the package `transformers` and a number of layers.
        inputs: what it is called with, by name, on a CPU.
    """

    family: str
    layers: int
    build: Callable[[Any, int], nn.Module]
    inputs: Callable[[], dict[str, Any]]

    @property
    def title(self) -> str:
        """The row's name."""
        return f"{self.family}, {self.layers} layers"

    def made(self) -> nn.Module:
        """Make the model, with the same weights each time; raises ImportError where `transformers` is missing."""
        _TORCH.manual_seed(0)
        return self.build(import_module("transformers"), self.layers).eval()


def here() -> bool:
    """Tell whether `transformers` is installed."""
    return find_spec("transformers") is not None


def _bert(hub: Any, layers: int) -> nn.Module:
    return hub.BertModel(hub.BertConfig(vocab_size=_WORDS, num_hidden_layers=layers, **_NAMES))


def _gpt2(hub: Any, layers: int) -> nn.Module:
    return hub.GPT2Model(hub.GPT2Config(vocab_size=_WORDS, n_embd=_WIDTH, n_layer=layers, n_head=_HEADS, **_ENDS))


def _llama(hub: Any, layers: int) -> nn.Module:
    sizes = {**_NAMES, "num_hidden_layers": layers, "num_key_value_heads": _HEADS // 2}
    return hub.LlamaModel(hub.LlamaConfig(vocab_size=_WORDS, **sizes))


def _vit(hub: Any, layers: int) -> nn.Module:
    return hub.ViTModel(hub.ViTConfig(image_size=64, patch_size=8, num_hidden_layers=layers, **_NAMES))


def _words() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, _WORDS, (_BATCH, _LENGTH), generator=torch.Generator().manual_seed(0))}


def _words_once() -> dict[str, Any]:
    return {**_words(), "use_cache": False}


def _pictures() -> dict[str, Any]:
    return {"pixel_values": torch.randn(_BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(0))}


_FAMILIES = (
    ("BERT", _bert, _words),
    ("GPT-2", _gpt2, _words_once),
    ("Llama", _llama, _words_once),
    ("ViT", _vit, _pictures),
)
MODELS = tuple(SmallModel(*family[:1], layers, *family[1:]) for layers in (2, 6) for family in _FAMILIES)
