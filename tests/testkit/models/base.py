"""The models of `zoo` in the sizes that people run, by public configurations, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from testkit.models.zoo import ENDS, MODELS, WORDS, Inputs, Model, hub
from weft.lab.workloads.nets import Recurrent, UNet


def of_default(config: Any, model: Any, **sizes: Any) -> Callable[[str], nn.Module]:
    """Make a model by the defaults of its configuration, which are those of its base size, and these sizes."""
    return lambda attention: model(config(attn_implementation=attention, **sizes))


def decoder(config: Any, model: Any, width: int, inner: int) -> Callable[[str], nn.Module]:
    """Make four layers of Llama's family, heads of 64 of which four share their keys."""
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 256}
    return of_default(config, model, hidden_size=width, intermediate_size=inner, num_hidden_layers=4, **heads, **ENDS)


def pictures(size: int) -> Callable[[int, int], Inputs]:
    """Make pictures of this size; the length adds to the batch."""

    def inputs(batch: int, length: int) -> Inputs:
        return {"pixel_values": torch.randn(batch + length % 3, 3, size, size)}

    return inputs


def words_to_words(batch: int, length: int) -> Inputs:
    """Make words for an encoder, and half as many for a decoder."""
    halves = torch.randint(3, WORDS, (batch, max(1, length // 2)))
    return {"input_ids": torch.randint(3, WORDS, (batch, length)), "decoder_input_ids": halves}


_T5 = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "decoder_start_token_id": 0}
_RESNET = {"depths": [3, 4, 6, 3], "layer_type": "bottleneck"}


def _larger(name: str, build: Callable[[str], nn.Module], **changed: Any) -> Model:
    return replace(MODELS[name], build=build, **changed)


BASE: dict[str, Model] = {
    "bert-base": _larger("bert", of_default(hub.BertConfig, hub.BertModel)),
    "gpt2-base": _larger("gpt2", of_default(hub.GPT2Config, hub.GPT2LMHeadModel)),
    "t5-base": _larger("t5", of_default(hub.T5Config, hub.T5ForConditionalGeneration, **_T5), inputs=words_to_words),
    "llama-base": _larger("llama", decoder(hub.LlamaConfig, hub.LlamaForCausalLM, 1024, 2816)),
    "mixtral-base": _larger("mixtral", decoder(hub.MixtralConfig, hub.MixtralForCausalLM, 512, 1408)),
    "vit-base": _larger("vit", of_default(hub.ViTConfig, hub.ViTModel), inputs=pictures(224)),
    "resnet-50": _larger("resnet", lambda _: hub.ResNetModel(hub.ResNetConfig(**_RESNET)), inputs=pictures(224)),
    "unet-base": _larger("unet", lambda _: UNet(64, 3, attention=True), inputs=pictures(128)),
    "lstm-base": _larger("lstm", lambda _: Recurrent(10000, 650)),
}
"""What `MODELS` has under the first part of the name, larger: BERT, GPT-2 and ViT of 12 layers and width 768, T5-base, ResNet-50,
four layers of Llama of width 1024 and of Mixtral of 512 with eight experts."""
