"""What `weft bench --device cuda` measures: the papers' workloads at full size, in plain PyTorch, beside what else computes them.

H, L, R, Q, V, I are RedFuser's tables 2 and 3 (appendix A.5, A.6) as printed. Mirage's table 4 names its workloads; its prose gives
4096 keys, 1, 32 and 512 queries, and two heads of keys on each of four GPUs for LLaMA-2-70B. Blockbuster gives no sizes. Sizes that
no paper gives follow from floors that were measured beside peers: bytes over 4.27 TB/s, or FLOPs over 672 TFLOP/s.

| workload | floor, us | sizes that give it |
| --- | --- | --- |
| LN-mm-small | 8.1 | 4096x4096 weights take 7.85; 64 rows in and out the rest |
| LN-mm-large | 409 | 2 * 8192 * 4096 * 4096 FLOPs |
| RMS-SwiGLU-decode | 82.5 | three weights of 4096x14336 (Llama-3-8B's), 16 rows |
| RMS-SwiGLU-narrow | 52.7 | 6 * 8192 * 512 * 1408 FLOPs |
| RMS-SwiGLU-large | 1649 | 6 * 4096 * 4096 * 11008 FLOPs (LLaMA-7B's widths) |
| LoRA-b1, -b8 | 8.0, 8.4 | weights of 4096x4096; eight times the rows add 0.4: 16 rows a batch; rank 16 the rest |
| MLP-b1, -b8 | 0.1, 0.6 | as LoRA's 16 rows of 4096 a batch, through a middle of 16 |
| GatedMLP, RMSLinear | 15.7, 7.9 | two weights, one weight of 4096x4096; a row a batch |
| MHA, GQA, MQA | 15.7, 1.0, 0.2 | one token: 32 heads of 128; 16 on 2 of keys, of 128; 71 on 1 of keys, of 64 (Falcon-7B) |

Everything is in bfloat16 but V and I (float32). Each row has small sizes too, for a CPU and for Triton's interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from weft.lab.examples import ExampleFunction, OperandSpec, Sizes, one_matmul, two_matmuls, weight
from weft.lab.workloads import cpu as workloads
from weft.lab.workloads import reductions as workloads_dims
from weft.lab.workloads.cpu import attention, queries_and_keys
from weft.lab.workloads.reductions import bodies, inertia, matrix, variance
from weft.verify.judge import IndexGap

_Function = Callable[..., Any]
_BF16, _FP32 = (torch.bfloat16,), (torch.float32,)
_E4M3 = torch.float8_e4m3fn
scaled_mm: Any = torch.ops.aten._scaled_mm  # noqa: SLF001 - PyTorch has no other name for a matmul of fp8 numbers


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the benchmark on a GPU.

    Attributes:
        example: the function, its operands and sizes, its element type; its title is the row's name.
        group: which target of `weft.lab.gpu.bench` it counts for; empty: none.
        flops: of its matmuls, at some sizes.
        matrix: the element type whose rate of matmuls counts.
        best: the fastest peers of an earlier measurement: one, or those that may be it.
        peers: names of what else can compute it, beside eager and Inductor (`weft.lab.gpu.peers`).
        exact: what computes the same in fp64, where the function's own operations cannot; None: the function.
        judged: of the leading dimensions of results and of operands, how many elements are judged; empty: all.
        common: trailing operands, such as weights, that all of what is judged has in common.
        causal: no query attends to later keys; peers that know such a mask are told.
    """

    example: ExampleFunction
    group: str
    flops: Callable[[Sizes], float]
    matrix: str = "bfloat16"
    best: tuple[str, ...] = ("inductor",)
    peers: tuple[str, ...] = ()
    exact: _Function | None = None
    judged: Sizes = ()
    common: int = 0
    causal: bool = False

    @property
    def name(self) -> str:
        """The row's name in the papers' tables, or what it is."""
        return self.example.title

    @property
    def dtype(self) -> torch.dtype:
        """The type of the floating operands."""
        return self.example.dtypes[0]

    @property
    def fn(self) -> _Function:
        """The plain function."""
        return self.example.make(self.example.full)

    def sizes(self, *, small: bool) -> Sizes:
        """Returns the full sizes, or the small ones."""
        return self.example.quick if small else self.example.full

    def inputs(self, sizes: Sizes, number: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
        """Draws the random operands with this number."""
        return self.example.inputs(sizes, self.dtype, number, device)

    def part(self, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Cuts the operands to what the part of the result that is judged depends on."""
        count = len(operands) - self.common
        return *(self.cut(each) for each in operands[:count]), *operands[count:]

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Cuts a result to the part that is judged."""
        return tensor[tuple(slice(kept) for kept in self.judged)]


# Functions that the benchmark on a CPU does not have.


def repeated_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Computes attention in which several heads of queries share a head of keys and values, repeated for each as models
    write it.
    """
    times = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


def switch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses for each row the one expert that it goes to, and its probability, which scales what the expert gives."""
    shares, experts = torch.softmax(x @ w, -1).topk(1)
    return shares, experts


def routing(count: int) -> _Function:
    """Returns routing to `count` experts."""

    def route(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return workloads.route(x, w, count)

    return switch if count == 1 else route


def scaled_linear(x: torch.Tensor, w: torch.Tensor, columns: torch.Tensor, *, fast: bool = False) -> torch.Tensor:
    """Multiplies rows rounded to fp8 numbers by a scale of their own, by a matrix of such numbers whose columns
    have scales too.

    `fast`: partial sums may be kept in fewer bits than float32 has, where the device is faster so.
    """
    scale = x.abs().amax(-1, keepdim=True).float() / 448.0
    rounded = (x / scale).to(_E4M3)
    return scaled_mm(rounded, w.T, scale, columns, out_dtype=x.dtype, use_fast_accum=fast)


def fast_scaled_linear(x: torch.Tensor, w: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Computes `scaled_linear` with partial sums in fewer bits."""
    return scaled_linear(x, w, columns, fast=True)


def scaled_linear_in_parts(x: torch.Tensor, w: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Computes `scaled_linear` with a matmul of the operands' own type: PyTorch's of 8 bits takes no fp64."""
    scale = x.abs().amax(-1, keepdim=True) / 448.0
    rounded = (x / scale).to(_E4M3).to(x.dtype)
    return (rounded @ w.T.to(x.dtype)) * scale * columns


def _fp8_linear(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: rows, inner, columns. Weights are as a layer keeps them, columns × inner, and
    use most of what 8 bits can say.
    """
    rows, inner, columns = sizes
    scale = inner**-0.5 / 48.0
    return (
        OperandSpec((rows, inner)),
        OperandSpec((columns, inner), 48.0, kept=_E4M3),
        OperandSpec((1, columns), 0.2 * scale, scale, kept=torch.float32),
    )


def mixture(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Computes gated MLPs of which each row takes two, by shares; all are computed, those that a row does not take
    count for nothing.
    """
    shares = torch.softmax(x @ gate, -1)
    least = shares.topk(2).values[..., -1:]
    taken = torch.where(shares >= least, shares, 0.0)
    each = (functional.silu(x @ w) * (x @ v)) @ u
    return ((taken / taken.sum(-1, keepdim=True)).T[..., None] * each).sum(0)


def _experts(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: rows, width, experts, width inside of each."""
    rows, width, experts, inner = sizes
    into, out = OperandSpec((experts, width, inner), width**-0.5), OperandSpec((experts, inner, width), inner**-0.5)
    return OperandSpec((rows, width)), weight(width, experts), into, into, out


# Floating-point operations of matmuls.


def _attention_flops(sizes: Sizes) -> float:
    batch, heads, _, queries, keys, width = sizes
    return 4.0 * batch * heads * queries * keys * width


def _causal_flops(sizes: Sizes) -> float:
    return _attention_flops(sizes) / 2


def _latent_flops(sizes: Sizes) -> float:
    batch, heads, keys, width = sizes
    return 2.0 * batch * heads * keys * (2 * width - 64)


def _matmuls(count: int) -> Callable[[Sizes], float]:
    """Counts the operations of `count` matmuls of the same three lengths."""
    return lambda sizes: 2.0 * count * math.prod(sizes)


def _lora_flops(sizes: Sizes) -> float:
    rows, inner, columns, rank = sizes
    return 2.0 * rows * (inner * columns + rank * (inner + columns))


def _mixture_flops(sizes: Sizes) -> float:
    rows, width, experts, inner = sizes
    return 2.0 * rows * width * experts * (1 + 3 * inner)


def _no_flops(_: Sizes) -> float:
    return 0.0


# Rows.

_DENSE = ("sdpa_cudnn", "sdpa_flash", "flex")


def _attention(
    name: str,
    group: str,
    sizes: Sizes,
    few: Sizes,
    judged: Sizes = (),
    fn: _Function = attention,
    best: str = "inductor",
) -> Workload:
    """Makes a workload of attention. Sizes: batch, heads, heads of keys, queries, keys, width."""
    example = ExampleFunction(name, lambda _: fn, queries_and_keys, sizes, few, dtypes=_BF16)
    return Workload(example, group, _attention_flops, best=(best,), peers=_DENSE, judged=judged)


def _layer(
    name: str,
    group: str,
    fn: _Function,
    sizes: Sizes,
    operands: Callable[[Sizes], tuple[OperandSpec, ...]],
    flops: Callable[[Sizes], float],
    few: Sizes = (16, 64, 48),
    judged: Sizes = (),
    **more: Any,
) -> Workload:
    """Makes a workload of a function of rows; every operand but the first is common to all rows."""
    example = ExampleFunction(name, lambda _: fn, operands, sizes, few, dtypes=_BF16)
    return Workload(example, group, flops, judged=judged, common=len(operands(few)) - 1, **more)


_SHORT = "attention"
_DECODE = "decode"


def _mha(number: int, batch: int, heads: int, queries: int, keys: int, width: int, group: str = "") -> Workload:
    few = (2, 2, 2, 40, 40, width // 4) if queries > 1 else (2, 2, 2, 1, 96, 16)
    sizes = (batch, heads, heads, queries, keys, width)
    return _attention(f"H{number}", group, sizes, few, (8,))


_H = (
    _mha(1, 32, 8, 512, 512, 64, _SHORT),
    _mha(2, 32, 12, 512, 512, 64),
    _mha(3, 32, 16, 512, 512, 64, _SHORT),
    _mha(4, 32, 12, 256, 256, 64, _SHORT),
    _mha(5, 32, 16, 256, 256, 64),
    _mha(6, 32, 16, 256, 256, 80, _SHORT),
    _mha(7, 32, 64, 1, 1024, 128, _DECODE),
    _mha(8, 32, 64, 1, 2048, 128),
    _mha(9, 32, 64, 1, 4096, 128, _DECODE),
)


def _mla(number: int, batch: int, keys: int) -> Workload:
    """Makes a workload in which the latent vector of a token has 512 elements, and 64 more of its position."""
    example = ExampleFunction(
        f"L{number}",
        lambda _: workloads.latent_attention,
        workloads.latent,
        (batch, 128, keys, 576),
        (2, 4, 96, 80),
        dtypes=_BF16,
    )
    return Workload(example, "MLA" if number in (1, 3, 6, 9) else "", _latent_flops)


_L = tuple(
    _mla(number, batch, keys)
    for number, (batch, keys) in enumerate(((b, k) for b in (32, 16, 1) for k in (1024, 2048, 4096)), 1)
)


def _moe(number: int, width: int, experts: int, count: int) -> Workload:
    def gaps(x: torch.Tensor, w: torch.Tensor) -> tuple[None, IndexGap]:
        return workloads.route_gaps(x, w, count)

    fn = routing(count)
    example = ExampleFunction(
        f"R{number}", lambda _: fn, one_matmul, (2048, width, experts), (16, 48, 32), dtypes=_BF16, gaps=gaps
    )
    return Workload(example, "MoE" if number in (1, 3, 5, 8) else "", _matmuls(1), common=1)


_ROUTES = [
    *((768, 128, 1), (1024, 128, 1), (4096, 128, 1)),
    *((2560, 64, 6), (8192, 64, 8), (2048, 64, 6), (2048, 128, 8), (4096, 128, 8)),
]
_R = tuple(_moe(number, *each) for number, each in enumerate(_ROUTES, 1))


def _quant(number: int, columns: int, inner: int, *, fast: bool = False) -> Workload:
    return _layer(
        f"Q{number}-fast" if fast else f"Q{number}",
        "Quant+GEMM" if number in (1, 3, 5, 8) and not fast else "",
        fast_scaled_linear if fast else scaled_linear,
        (4096, inner, columns),
        _fp8_linear,
        _matmuls(1),
        (32, 64, 48),
        (512,),
        matrix="float8_e4m3fn",
        exact=scaled_linear_in_parts,
    )


_QUANTS = [
    *((1536, 2560), (2560, 1536), (3584, 8192), (8192, 3584), (7168, 2048)),
    *((2048, 7168), (2048, 768), (768, 2048), (4096, 1536), (1536, 4096)),
]
_Q = tuple(_quant(number, *each, fast=fast) for fast in (False, True) for number, each in enumerate(_QUANTS, 1))


def _variance(number: int, batch: int, points: int) -> Workload:
    group = "variance" if number in (1, 3, 6, 8) else ""
    return Workload(
        ExampleFunction(f"V{number}", lambda _: variance, matrix, (batch, points), (4, 200), dtypes=_FP32),
        group,
        _no_flops,
    )


def _inertia(number: int, batch: int, points: int) -> Workload:
    group = "inertia" if number in (1, 3, 6, 8) else ""
    return Workload(
        ExampleFunction(f"I{number}", lambda _: inertia, bodies, (batch, points, 3), (4, 100, 3), dtypes=_FP32),
        group,
        _no_flops,
    )


_POINTS = [(batch, points) for batch in (1, 128, 512, 1024) for points in (8192, 32768)]
_V = tuple(_variance(number, *each) for number, each in enumerate(_POINTS, 1))
_I = tuple(_inertia(number, *each) for number, each in enumerate(_POINTS, 1))

_TINY = "small layers"
_SWIGLU = "SwiGLU"
_LARGE = "large layers"


def _normed(name: str, group: str, sizes: Sizes, judged: Sizes = ()) -> Workload:
    """Makes a workload of LayerNorm + matmul."""
    return _layer(name, group, workloads.layernorm_matmul, sizes, one_matmul, _matmuls(1), judged=judged)


def _swiglu(name: str, group: str, sizes: Sizes, judged: Sizes = ()) -> Workload:
    """Makes a workload of RMSNorm + SwiGLU."""
    return _layer(name, group, workloads.rmsnorm_swiglu, sizes, workloads.three_matmuls, _matmuls(3), judged=judged)


_BLOCKBUSTER = (
    _normed("LN-mm-small", _TINY, (64, 4096, 4096)),
    _normed("LN-mm-large", _LARGE, (8192, 4096, 4096), (512,)),
    _swiglu("RMS-SwiGLU-decode", _SWIGLU, (16, 4096, 14336)),
    _swiglu("RMS-SwiGLU-narrow", _SWIGLU, (8192, 512, 1408), (2048,)),
    _swiglu("RMS-SwiGLU-large", _LARGE, (4096, 4096, 11008), (512,)),
)


def _long(length: int, *, causal: bool) -> Workload:
    """Makes a workload of 16 heads of 128; as many tokens in all whatever the length. Where a mask is, what it hides
    counts for nothing.
    """
    batch = 16384 // length
    name = f"FA-{'causal' if causal else 'full'}-{length}"
    sizes, few, judged = (batch, 16, 16, length, length, 128), (1, 2, 2, 96, 96, 16), (1, 4 if length < 8192 else 2)
    if not causal:
        return _attention(name, _SHORT, sizes, few, judged, best="inductor" if length < 8192 else _DENSE[0])
    masked = _attention(name, _SHORT, sizes, few, judged, workloads.causal_attention, _DENSE[0])
    return replace(masked, flops=_causal_flops, peers=_DENSE[:2], causal=True)


_FA = tuple(_long(length, causal=causal) for length in (4096, 16384) for causal in (False, True))

_MODES = (("inc", 1, _DECODE), ("spec", 32, "speculation and prompt"), ("prefill", 512, "speculation and prompt"))
_MODELS = (
    ("MHA", 32, 32, 128, attention, {"spec-b1": "sdpa_flash", "prefill-b1": "sdpa_cudnn"}, "inductor"),
    ("GQA", 16, 2, 128, repeated_attention, {"spec-b1": "sdpa_flash"}, "sdpa_cudnn"),
    ("MQA", 71, 1, 64, attention, {"spec-b1": "sdpa_flash"}, "sdpa_cudnn"),
)


def _modes(batch: int) -> tuple[Workload, ...]:
    """Lists attention of one new token, of 32 that are speculated on, of 512 of a prompt, over 4096 keys."""
    return tuple(
        _attention(
            f"{name}-{mode}-b{batch}",
            group,
            (batch, heads, key_heads, queries, 4096, width),
            (1, 3 * min(key_heads, 2) if heads > key_heads else 2, min(key_heads, 2), min(queries, 16), 96, 16),
            (1,),
            fn,
            best=best.get(f"{mode}-b{batch}", else_best),
        )
        for name, heads, key_heads, width, fn, best, else_best in _MODELS
        for mode, queries, group in _MODES
    )


def _few_rows(batch: int) -> tuple[Workload, ...]:
    """Lists layers for `batch` prompts: 16 rows of each in what adapts a layer, one row in what decodes."""
    rows, wide, few = 16 * batch, 4096, (batch, 64, 48)
    best = "inductor" if batch == 1 else "eager"
    lora, down_and_up = (rows, wide, wide, 16), (rows, wide, 16)
    layers = (
        ("LoRA", workloads.lora, lora, workloads.low_rank, _lora_flops, (16, 64, 48, 8), "eager"),
        ("MLP", workloads.adapter, down_and_up, workloads.narrow, _matmuls(2), (16, 64, 8), best),
        ("GatedMLP", workloads.gated_mlp, (batch, wide, wide), two_matmuls, _matmuls(2), few, "inductor"),
        ("RMSLinear", workloads.rmsnorm_linear, (batch, wide, wide), one_matmul, _matmuls(1), few, "inductor"),
    )
    return tuple(
        _layer(f"{name}-b{batch}", _TINY, fn, sizes, operands, flops, small_sizes, best=(peer,))
        for name, fn, sizes, operands, flops, small_sizes, peer in layers
    )


# Mixtral's experts. With eight rows nearly all are taken by one of them.
_MIXTURE = _layer("MoE-b8", "", mixture, (8, 4096, 8, 14336), _experts, _mixture_flops, (4, 32, 4, 48))
_MIRAGE = (*(row for batch in (1, 8) for row in (*_modes(batch), *_few_rows(batch))), _MIXTURE)


def _dims(example: ExampleFunction, judged: Sizes) -> Workload:
    """Makes a workload of reductions over dimensions; weights are common to all that is judged."""
    return Workload(
        example,
        "",
        _no_flops,
        judged=judged,
        common=sum(len(o.shape) < len(example.full) for o in example.operands(example.full)),
    )


_DIMS = tuple(_dims(*each) for each in workloads_dims.EXAMPLES)

ROWS = (*_H, *_L, *_R, *_Q, *_V, *_I, *_BLOCKBUSTER, *_FA, *_MIRAGE, *_DIMS)
"""All rows, in the order of their tables."""
