"""What `weft bench` measures: the functions of the papers' tables at sizes for a CPU, in plain PyTorch.

RedFuser's (appendix A.5, A.6) keep the names of its tables: H multi-head attention, L its latent form, R routing to experts, Q a
matmul after quantisation, V variance, I moment of inertia. Mirage's (its table 4) are attention with several, grouped or one head
of keys, for one new token, for 32 and for 512, and layers for few tokens. Blockbuster's are attention, LayerNorm + matmul and
RMSNorm + SwiGLU. Sizes are the papers' where a CPU takes 1 to 200 ms for them, else with fewer rows, heads or batches. Reductions
alone are in `workloads_reductions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from weft.lab.examples import EXAMPLES, ExampleFunction, OperandSpec, Sizes, one_matmul, two_matmuls, weight
from weft.lab.workloads.reductions import REDUCTIONS, normalised_matmul, order_gaps
from weft.verify.judge import IndexGap, allowed_error

_EXPERTS = 8


# Attention.


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes softmax attention, of matrices or of any number of heads; keys may have one head for all."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes attention to no later token, by a mask."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v


def sink_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Computes attention with one more logit a head, `sink`, that has no value: a head may attend to nothing."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    nothing = sink[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, nothing), -1), -1)[..., :-1] @ v


def capped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes attention whose logits stay between -30 and 30, by a tanh."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(30.0 * torch.tanh(scores / 30.0), -1) @ v


def alibi_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Computes attention with a bias that falls with the distance of two tokens, at another slope for each head."""
    distance = torch.arange(q.shape[-2], device=q.device)[:, None] - torch.arange(k.shape[-2], device=q.device)
    bias = -slopes[:, None, None] * distance.abs()
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1) @ v


def tempered_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Computes attention whose logits are divided by a temperature, which is a tensor of no dimensions."""
    return torch.softmax(q @ k.mT / temperature, -1) @ v


def grouped_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes attention in which several heads of queries share a head of keys and values, which is not copied for each."""
    batch, heads, queries, width = q.shape
    grouped = q.view(batch, k.shape[1], heads // k.shape[1], queries, width)
    return attention(grouped, k[:, :, None], v[:, :, None]).flatten(1, 2)


def latent_attention(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Computes attention of one new token: all heads attend to one latent vector a token, whose last 64 elements
    (position) are no value.
    """
    return attention(q, kv, kv[..., :-64])


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def _sdpa_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa_grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _sdpa_latent(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    one = kv[:, None]
    return functional.scaled_dot_product_attention(q[:, None], one, one[..., :-64])[:, 0]


def _heads(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes each operand by its sizes: batch, heads, length, width."""
    return (OperandSpec(sizes),) * 3


def queries_and_keys(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: batch, heads of queries, heads of keys, queries, keys, width."""
    batch, heads, key_heads, queries, keys, width = sizes
    return OperandSpec((batch, heads, queries, width)), *((OperandSpec((batch, key_heads, keys, width)),) * 2)


def latent(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: batch, heads, keys, width of keys."""
    batch, heads, keys, width = sizes
    return OperandSpec((batch, heads, width)), OperandSpec((batch, keys, width))


def _heads_and_sink(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes heads, and one logit for each."""
    return *_heads(sizes), OperandSpec(sizes[1:2])


def _heads_and_slopes(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes heads, and one slope for each."""
    return *_heads(sizes), OperandSpec(sizes[1:2], 0.05, 0.2)


def _heads_and_temperature(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes heads, and one number."""
    return *_heads(sizes), OperandSpec((), 0.5, 8.0)


_SOFTMAX = "softmax(q @ k.T / sqrt(d)) @ v"
_Function = Callable[..., Any]


def _attention(
    title: str,
    full: Sizes,
    quick: Sizes,
    fn: _Function = attention,
    peer: _Function | None = _sdpa,
    operands: Callable[[Sizes], tuple[OperandSpec, ...]] = _heads,
    formula: str = _SOFTMAX,
) -> ExampleFunction:
    return ExampleFunction(title, lambda _: fn, operands, full, quick, {"SDPA": peer} if peer else {}, formula)


def _latent_attention(title: str, full: Sizes) -> ExampleFunction:
    return _attention(title, full, (1, 4, 96, 80), latent_attention, _sdpa_latent, latent)


def _biased(
    title: str, fn: _Function, formula: str, operands: Callable[[Sizes], tuple[OperandSpec, ...]] = _heads
) -> ExampleFunction:
    """Makes an example of attention with something done to its logits, for which PyTorch has no kernel of its own."""
    return _attention(title, (1, 8, 2048, 64), (1, 2, 96, 16), fn, None, operands, formula)


def _modes(
    name: str, heads: int, key_heads: int, width: int, fn: _Function, peer: _Function
) -> tuple[ExampleFunction, ...]:
    """Lists Mirage's three modes: one new token, 32 that are speculated on, 512 of a prompt; 4096 keys."""
    modes = (("one token", 1), ("32 tokens", 32), ("prompt", 512))
    few = min(key_heads, 2)
    return tuple(
        _attention(
            f"{name}, {mode}",
            (1, heads, key_heads, queries, 4096, width),
            (1, 2 * few if heads > key_heads else few, few, min(queries, 16), 96, 16),
            fn,
            peer,
            queries_and_keys,
        )
        for mode, queries in modes
    )


ATTENTION = _attention("attention", (1, 8, 2048, 64), (1, 2, 256, 64))
_ATTENTIONS = (
    ATTENTION,
    _attention("attention, causal by mask", (1, 8, 2048, 64), (1, 2, 96, 16), causal_attention, _sdpa_causal),
    _attention("attention, long", (1, 2, 4096, 128), (1, 1, 200, 16)),
    _attention("attention, BERT (H1)", (4, 8, 512, 64), (2, 2, 64, 16)),
    _attention("attention, ViT (H6)", (4, 16, 256, 80), (2, 2, 40, 20)),
    _attention("attention, decode (H9)", (8, 16, 16, 1, 4096, 64), (2, 2, 2, 1, 96, 16), operands=queries_and_keys),
    _latent_attention("latent attention, decode (L1)", (4, 128, 1024, 576)),
    _latent_attention("latent attention, decode (L7)", (1, 128, 1024, 576)),
    _latent_attention("latent attention, decode (L9)", (1, 128, 4096, 576)),
    _biased(
        "attention, sink", sink_attention, "softmax(cat((q @ k.T / sqrt(d), sink)))[..., :-1] @ v", _heads_and_sink
    ),
    _biased("attention, soft-cap", capped_attention, "softmax(30 * tanh(q @ k.T / sqrt(d) / 30)) @ v"),
    _biased("attention, ALiBi", alibi_attention, "softmax(q @ k.T / sqrt(d) - slope * |i - j|) @ v", _heads_and_slopes),
    _biased("attention, temperature", tempered_attention, "softmax(q @ k.T / t) @ v", _heads_and_temperature),
    *_modes("multi-head", 8, 8, 128, attention, _sdpa),
    *_modes("grouped-query", 16, 2, 128, grouped_attention, _sdpa_grouped),
    *_modes("multi-query", 16, 1, 64, attention, _sdpa_grouped),
)


# Layers.


def layernorm_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiplies rows that are centred and scaled to variance 1 by a matrix."""
    return functional.layer_norm(x, (x.shape[-1],)) @ w


def rmsnorm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiplies rows that are scaled to a root mean square of 1 by a matrix."""
    return functional.rms_norm(x, (x.shape[-1],)) @ w


def rmsnorm_swiglu(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Computes the feed-forward part of a Llama layer, with its normalisation."""
    h = functional.rms_norm(x, (x.shape[-1],))
    return (functional.silu(h @ w) * (h @ v)) @ u


def gated_mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes two matmuls of the same rows, one gating the other."""
    return functional.silu(x @ w) * (x @ v)


def adapter(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Adds a multi-layer perceptron through a narrow middle to what it adapts."""
    return x + torch.relu(x @ down) @ up


def lora(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Computes a linear layer with an adaptation of low rank."""
    return x @ w + (x @ down) @ up


def quantised_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiplies rows rounded to 255 steps of their own size by a matrix, and scales back."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) @ w * scale


def fp8_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiplies rows rounded to fp8 numbers, the largest of each row to the largest of these, by a matrix, and
    scales back.
    """
    scale = x.abs().amax(-1, keepdim=True) / 448.0
    return ((x / scale).to(torch.float8_e4m3fn).to(x.dtype) @ w.to(x.dtype)) * scale


def int8_matmul(x: torch.Tensor, w: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Multiplies rows rounded to bytes by a matrix of bytes whose columns have scales of their own."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    q = (x / scale).round().clamp(-127, 127).to(torch.int8)
    return (q.to(x.dtype) @ w.to(x.dtype)) * scale * columns


def route(x: torch.Tensor, w: torch.Tensor, count: int = _EXPERTS) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses for each row the experts that it goes to, and their shares."""
    shares, experts = torch.softmax(x @ w, -1).topk(count)
    return shares / shares.sum(-1, keepdim=True), experts


def route_gaps(x: torch.Tensor, w: torch.Tensor, count: int = _EXPERTS) -> tuple[None, IndexGap]:
    """Measures how far each expert's share is from the neighbours' in order, and what error shares may have."""
    exact = torch.softmax(x.double() @ w.double(), -1)
    return None, IndexGap(order_gaps(exact, count), allowed_error(torch.softmax(x @ w, -1), exact))


def three_matmuls(sizes: Sizes) -> tuple[OperandSpec, ...]:
    _, inner, columns = sizes
    return *two_matmuls(sizes), weight(columns, inner)


def _fp8(sizes: Sizes) -> tuple[OperandSpec, ...]:
    rows, inner, columns = sizes
    return OperandSpec((rows, inner)), OperandSpec((inner, columns), inner**-0.5, kept=torch.float8_e4m3fn)


def _int8(sizes: Sizes) -> tuple[OperandSpec, ...]:
    rows, inner, columns = sizes
    return (
        OperandSpec((rows, inner)),
        OperandSpec((inner, columns), 40.0, kept=torch.int8),
        OperandSpec((columns,), 0.001, 0.01),
    )


def narrow(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: rows, width, width of the middle."""
    rows, width, middle = sizes
    return OperandSpec((rows, width)), weight(width, middle), weight(middle, width)


def low_rank(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: rows, inner, columns, rank."""
    *plain, rank = sizes
    return *one_matmul(tuple(plain)), weight(plain[1], rank), weight(rank, plain[2])


def _layer(
    title: str,
    fn: _Function,
    full: Sizes,
    formula: str = "",
    operands: Callable[[Sizes], tuple[OperandSpec, ...]] = one_matmul,
    quick: Sizes = (32, 64, 48),
) -> ExampleFunction:
    return ExampleFunction(title, lambda _: fn, operands, full, quick, formula=formula)


_SWIGLU = "h = rms_norm(x, (x.shape[-1],)); (silu(h @ w) * (h @ v)) @ u"
LAYERNORM = _layer(
    "LayerNorm + matmul", layernorm_matmul, (512, 1024, 1024), formula="layer_norm(x, (x.shape[-1],)) @ w"
)
RMSNORM = _layer("RMSNorm + SwiGLU", rmsnorm_swiglu, (512, 512, 1408), _SWIGLU, three_matmuls)
_RMS_LINEAR = "rms_norm(x, (x.shape[-1],)) @ w"
_FP8 = "s = amax(|x|) / 448; ((x / s).to(float8_e4m3fn) @ w) * s"
_INT8 = "s = amax(|x|) / 127; ((x / s).round().to(int8) @ w) * s * c"
_ROUTE = "p, e = softmax(x @ w).topk(8); p / p.sum(-1), e"
_LAYERS = (
    LAYERNORM,
    RMSNORM,
    _layer("RMSNorm + SwiGLU, decode", rmsnorm_swiglu, (16, 1024, 2816), _SWIGLU, three_matmuls),
    _layer("RMSNorm + linear", rmsnorm_linear, (512, 1024, 1024), _RMS_LINEAR),
    _layer("RMSNorm + linear, decode", rmsnorm_linear, (16, 2048, 4096), _RMS_LINEAR),
    _layer("L2-normalise + matmul", normalised_matmul, (512, 1024, 1024), "normalize(x, dim=-1) @ w"),
    _layer("gated MLP, decode", gated_mlp, (16, 2048, 4096), "silu(x @ w) * (x @ v)", two_matmuls),
    _layer("adapter MLP", adapter, (2048, 1024, 64), "x + relu(x @ w) @ v", narrow, (32, 64, 8)),
    _layer("LoRA, decode", lora, (16, 2048, 4096, 16), "x @ w + (x @ a) @ b", low_rank, (32, 64, 48, 4)),
    _layer("quantised matmul (Q7)", quantised_matmul, (1024, 768, 2048), "s = amax(|x|) / 127; round(x / s) @ w * s"),
    _layer("fp8 matmul (Q7)", fp8_matmul, (1024, 768, 2048), _FP8),
    _layer("fp8 matmul, fp8 weights (Q8)", fp8_matmul, (1024, 2048, 768), _FP8, _fp8),
    _layer("int8 matmul, int8 weights (Q1)", int8_matmul, (1024, 2560, 1536), _INT8, _int8),
    ExampleFunction(
        "routing to experts (R1)", lambda _: route, one_matmul, (2048, 768, 128), formula=_ROUTE, gaps=route_gaps
    ),
    ExampleFunction(
        "routing to experts (R7)", lambda _: route, one_matmul, (2048, 2048, 128), formula=_ROUTE, gaps=route_gaps
    ),
)

SUITE = (*EXAMPLES, *_ATTENTIONS, *_LAYERS, *REDUCTIONS)
"""What `weft bench` measures."""
