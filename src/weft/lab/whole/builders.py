"""Models of the package transformers, and two of PyTorch's own layers, with random weights: what `weft bench --models` calls.

Each takes the package, an implementation of attention by its name there ("" where a model has none), and whether to be small: one
layer of width 64, or so.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from weft.lab.workloads.nets import Recurrent, UNet


def bert(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make BERT-base without its pooling."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = hub.BertConfig(attn_implementation=attention, **(sizes if small else {}))
    return hub.BertModel(config, add_pooling_layer=False)


def gpt2(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make GPT-2 with its words."""
    sizes = {"n_embd": 64, "n_layer": 1, "n_head": 2}
    return hub.GPT2LMHeadModel(hub.GPT2Config(attn_implementation=attention, **(sizes if small else {})))


def llama(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make four layers of Llama of width 1024."""
    return hub.LlamaForCausalLM(hub.LlamaConfig(attn_implementation=attention, **_decoder(1024, 2816, small)))


def mixtral(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make four layers of Mixtral of width 512 with eight experts."""
    return hub.MixtralForCausalLM(hub.MixtralConfig(attn_implementation=attention, **_decoder(512, 1408, small)))


def llama_8b(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make four layers of Llama-3-8B."""
    sizes = _decoder(4096, 14336, small, head=128) | {"vocab_size": 1000 if small else 128256}
    config = hub.LlamaConfig(attn_implementation=attention, max_position_embeddings=8192, rope_theta=500000.0, **sizes)
    return hub.LlamaForCausalLM(config)


def t5(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make T5-small."""
    sizes = {"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 1, "num_heads": 2}
    return hub.T5ForConditionalGeneration(hub.T5Config(attn_implementation=attention, **(sizes if small else {})))


def vit(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make ViT-base for pictures of 224 by 224."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = hub.ViTConfig(attn_implementation=attention, **(sizes if small else {}))
    return hub.ViTModel(config, add_pooling_layer=False)


def mixtral_layer(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make one layer of Mixtral in its size, with eight experts."""
    sizes = _decoder(4096, 14336, small, head=128) | {"num_hidden_layers": 1, "vocab_size": 32000}
    return hub.MixtralForCausalLM(hub.MixtralConfig(attn_implementation=attention, **sizes))


def resnet(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make ResNet-50 without its classes."""
    del attention
    sizes = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}
    return hub.ResNetModel(hub.ResNetConfig(layer_type="bottleneck", **(sizes if small else {})))


def unet(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make a U-Net of four levels with attention in the last."""
    del hub, attention
    return UNet(16, 1) if small else UNet(64, 3, attention=True)


def lstm(hub: Any, attention: str, small: bool) -> nn.Module:
    """Make two layers of an LSTM over 30,000 words, of width 650."""
    del hub, attention
    return Recurrent(1000, 64) if small else Recurrent(30000, 650)


def _decoder(width: int, inner: int, small: bool, head: int = 64) -> dict[str, int]:
    """Return the sizes of four layers whose heads share their keys by four; small: of one layer with four heads of 16."""
    width, inner, layers, head = (64, 96, 1, 16) if small else (width, inner, 4, head)
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // head // 4,
    }
