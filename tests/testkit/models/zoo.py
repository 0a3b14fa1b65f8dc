"""Models of transformers as people build them, small, with random weights: their default caches, masks and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from weft.lab.workloads.nets import Recurrent, UNet

Inputs = dict[str, Tensor]

# Its configurations are dataclasses by decoration, whose arguments a type checker does not see.
hub: Any = transformers

WORDS, WIDTH, INNER, LAYERS, HEADS, KV_HEADS, LONGEST = 97, 64, 96, 2, 4, 2, 256
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass(frozen=True, slots=True)
class Model:
    """A model and what it is called with.

    Attributes:
        build: makes it for an implementation of attention ("eager" or "sdpa"); weights are random.
        inputs: makes what it is called with, for a batch and a length.
        generates: whether it has `generate`.
        attentions: the implementations that transformers has for it.
    """

    build: Callable[[str], nn.Module]
    inputs: Callable[[int, int], Inputs]
    generates: bool = False
    attentions: tuple[str, ...] = ("eager", "sdpa")


def tokens(batch: int, length: int) -> Inputs:
    """Words that are no ends."""
    return {"input_ids": torch.randint(3, WORDS, (batch, length))}


def padded(batch: int, length: int) -> Inputs:
    """Words, the first row shorter than the others."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - length // 3 :] = 0
    return tokens(batch, length) | {"attention_mask": mask}


def to_and_from(batch: int, length: int) -> Inputs:
    """Words for an encoder, and half as many for a decoder."""
    return tokens(batch, length) | {"decoder_input_ids": torch.randint(3, WORDS, (batch, max(1, length // 2)))}


def pictures(batch: int, length: int) -> Inputs:
    """Pictures of a fixed size; the length adds to the batch."""
    return {"pixel_values": torch.randn(batch + length % 3, 3, 32, 32)}


def bert(attention: str) -> nn.Module:
    """An encoder."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
    }
    return hub.BertModel(hub.BertConfig(vocab_size=WORDS, attn_implementation=attention, **sizes))


def gpt2(attention: str) -> nn.Module:
    """A decoder with learned positions."""
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST}
    return hub.GPT2LMHeadModel(hub.GPT2Config(vocab_size=WORDS, attn_implementation=attention, **sizes, **ENDS))


def decoder(config: Any, model: Any, **more: Any) -> Callable[[str], nn.Module]:
    """A decoder of Llama's family."""

    def build(attention: str) -> nn.Module:
        sizes = {
            "vocab_size": WORDS,
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "max_position_embeddings": LONGEST,
        }
        return model(config(attn_implementation=attention, **(sizes | ENDS | more)))

    return build


def t5(attention: str) -> nn.Module:
    """An encoder and a decoder with relative positions; transformers has one attention for it."""
    del attention
    sizes = {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": INNER, "num_layers": LAYERS, "num_heads": HEADS}
    ends = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    return hub.T5ForConditionalGeneration(hub.T5Config(vocab_size=WORDS, **sizes, **ends))


def vit(attention: str) -> nn.Module:
    """An encoder of pictures."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
    }
    return hub.ViTModel(hub.ViTConfig(image_size=32, patch_size=8, attn_implementation=attention, **sizes))


def resnet(attention: str) -> nn.Module:
    """A ResNet with bottlenecks, as ResNet-50 has, of two stages."""
    del attention
    config = hub.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], layer_type="bottleneck")
    return hub.ResNetModel(config)


def distilbert(attention: str) -> nn.Module:
    """An encoder of fewer parts."""
    sizes = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER}
    return hub.DistilBertModel(hub.DistilBertConfig(vocab_size=WORDS, attn_implementation=attention, **sizes))


def clip(attention: str) -> nn.Module:
    """An encoder of words and one of pictures."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
    }
    config = hub.CLIPConfig(
        text_config={**sizes, **ENDS, "vocab_size": WORDS},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        attn_implementation=attention,
    )
    return hub.CLIPModel(config)


def whisper(attention: str) -> nn.Module:
    """An encoder of sounds, which begins with convolutions, and a decoder."""
    sizes = {
        f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", LAYERS), ("ffn_dim", INNER))
    }
    sizes |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "d_model": WIDTH, "num_mel_bins": 20}
    longest = {"max_source_positions": 32, "max_target_positions": 64}
    config = hub.WhisperConfig(
        vocab_size=WORDS, attn_implementation=attention, decoder_start_token_id=1, **sizes, **longest, **ENDS
    )
    return hub.WhisperModel(config)


def swin(attention: str) -> nn.Module:
    """An encoder of pictures in windows that are shifted."""
    del attention
    sizes = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    }
    return hub.SwinModel(hub.SwinConfig(**sizes))


def encoder(config: Any, model: Any) -> Callable[[str], nn.Module]:
    """An encoder of BERT's family."""

    def build(attention: str) -> nn.Module:
        return model(config(vocab_size=WORDS, attn_implementation=attention, **_SIZES))

    return build


def opt(attention: str) -> nn.Module:
    """A decoder with learned positions and ReLU."""
    sizes = {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": INNER, "max_position_embeddings": LONGEST}
    layers = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    return hub.OPTForCausalLM(hub.OPTConfig(vocab_size=WORDS, attn_implementation=attention, **sizes, **layers, **ENDS))


def bloom(attention: str) -> nn.Module:
    """A decoder with slopes in place of positions; transformers has one attention for it."""
    del attention
    sizes = {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    return hub.BloomForCausalLM(hub.BloomConfig(vocab_size=WORDS, **sizes, **ENDS))


def bart(attention: str) -> nn.Module:
    """An encoder and a decoder with learned positions."""
    sides = ("encoder", "decoder")
    each = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": INNER}
    sizes = {f"{side}_{name}": count for side in sides for name, count in each.items()}
    more = {"d_model": WIDTH, "max_position_embeddings": LONGEST, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
    return hub.BartModel(hub.BartConfig(vocab_size=WORDS, attn_implementation=attention, **sizes, **more, **ENDS))


def convnext(attention: str) -> nn.Module:
    """Convolutions with norms over channels."""
    del attention
    return hub.ConvNextModel(hub.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, image_size=32))


def sounds(batch: int, length: int) -> Inputs:
    """Sounds of a fixed length, and words."""
    words = torch.randint(3, WORDS, (batch, length))
    return {"input_features": torch.randn(batch, 20, 64), "decoder_input_ids": words}


_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
}
MODELS: dict[str, Model] = {
    "bert": Model(bert, padded),
    "gpt2": Model(gpt2, tokens, generates=True),
    "llama": Model(decoder(hub.LlamaConfig, hub.LlamaForCausalLM), padded, generates=True),
    "mixtral": Model(decoder(hub.MixtralConfig, hub.MixtralForCausalLM, num_local_experts=4), tokens, generates=True),
    "t5": Model(t5, to_and_from, generates=True, attentions=("eager",)),
    "vit": Model(vit, pictures),
    "resnet": Model(resnet, pictures, attentions=("eager",)),
    "unet": Model(lambda _: UNet(), pictures, attentions=("eager",)),
    "lstm": Model(lambda _: Recurrent(WORDS, WIDTH), tokens, attentions=("eager",)),
    # What the list above does not name, as a check on it.
    "qwen2": Model(decoder(hub.Qwen2Config, hub.Qwen2ForCausalLM), tokens, generates=True),
    "mistral": Model(decoder(hub.MistralConfig, hub.MistralForCausalLM, sliding_window=24), tokens, generates=True),
    "gemma": Model(decoder(hub.GemmaConfig, hub.GemmaForCausalLM, head_dim=16), tokens, generates=True),
    "phi": Model(decoder(hub.PhiConfig, hub.PhiForCausalLM), tokens, generates=True),
    "gpt_neox": Model(decoder(hub.GPTNeoXConfig, hub.GPTNeoXForCausalLM), tokens, generates=True),
    "qwen2_moe": Model(decoder(hub.Qwen2MoeConfig, hub.Qwen2MoeForCausalLM, **_EXPERTS), tokens, generates=True),
    "distilbert": Model(distilbert, padded),
    "clip": Model(clip, lambda batch, length: tokens(batch, length) | pictures(batch, 0)),
    "whisper": Model(whisper, sounds),
    "swin": Model(swin, pictures, attentions=("eager",)),
    "qwen3": Model(decoder(hub.Qwen3Config, hub.Qwen3ForCausalLM, head_dim=16), tokens, generates=True),
    "olmo2": Model(decoder(hub.Olmo2Config, hub.Olmo2ForCausalLM), tokens, generates=True),
    "starcoder2": Model(decoder(hub.Starcoder2Config, hub.Starcoder2ForCausalLM), tokens, generates=True),
    "opt": Model(opt, tokens, generates=True),
    "bloom": Model(bloom, tokens, generates=True, attentions=("eager",)),
    "roberta": Model(encoder(hub.RobertaConfig, hub.RobertaModel), padded),
    "electra": Model(encoder(hub.ElectraConfig, hub.ElectraModel), padded),
    "bart": Model(bart, to_and_from),
    "convnext": Model(convnext, pictures, attentions=("eager",)),
}
