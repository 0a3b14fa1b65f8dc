"""PyTorch's own attention and norms, and the same written by hand, captured as tensor programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from testkit.block import paper
from testkit.tensor.rewritten import renamed
from weft.capture import capture
from weft.tensor.axes import Space
from weft.tensor.program import TensorProgram

SIZES = {"M": 6, "N": 4, "K": 10, "D": 5, "L": 3}


def attention(q, kt, vt):
    return torch.softmax(q @ kt.T / math.sqrt(q.shape[-1]), -1) @ vt.T


def attention_by_hand(q, kt, vt):
    scores = q @ kt.T / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ vt.T


def attention_divided_last(q, kt, vt):
    scores = q @ kt.T / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return (weights @ vt.T) / weights.sum(-1, keepdim=True)


def attention_shifted_by_the_mean(q, kt, vt):
    scores = q @ kt.T / math.sqrt(q.shape[-1])
    return F.linear(torch.softmax(scores - scores.mean(-1, keepdim=True), -1), vt)


def layernorm(x, yt):
    return F.layer_norm(x, (x.shape[-1],), eps=0.0) @ yt.T


def layernorm_by_hand(x, yt):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance) @ yt.T


def rmsnorm(x, wt, vt, ut):
    h = F.rms_norm(x, (x.shape[-1],), eps=0.0)
    return (F.silu(h @ wt.T) * (h @ vt.T)) @ ut.T


def _llama(x, epsilon):
    """Normalises as Llama does: in fp32, and rounded to the type of the input."""
    h = x.float()
    variance = h.pow(2).mean(-1, keepdim=True)
    return (h * torch.rsqrt(variance + epsilon)).to(x.dtype)


def rmsnorm_of_llama(x, wt, vt, ut):
    h = _llama(x, 0.0)
    return F.linear(F.silu(F.linear(h, wt)) * F.linear(h, vt), ut)


def rmsnorm_with_a_weight(x, g, wt, vt, ut):
    h = g * _llama(x, 0.0)
    return F.linear(F.silu(F.linear(h, wt)) * F.linear(h, vt), ut)


@dataclass(frozen=True)
class Example:
    """What a function must become: the paper's example of that name after its last step, with these sizes taken for numbers."""

    paper: str
    step: int
    given: tuple[tuple[str, int], ...] = ()


ATTENTION, LAYERNORM = Example("attention", 17, (("DD", SIZES["D"]),)), Example("layernorm", 22)


RMSNORM = Example("rmsnorm", 26, (("DD", 1),))


EXAMPLES: dict[Callable[..., torch.Tensor], Example] = {
    attention: ATTENTION,
    attention_by_hand: ATTENTION,
    attention_divided_last: ATTENTION,
    attention_shifted_by_the_mean: ATTENTION,
    layernorm: LAYERNORM,
    layernorm_by_hand: LAYERNORM,
    rmsnorm: RMSNORM,
    rmsnorm_of_llama: RMSNORM,
    rmsnorm_with_a_weight: RMSNORM,
}


def shapes(function: Callable[..., torch.Tensor]) -> dict[str, tuple[str, ...]]:
    """The spaces of the function's arguments, by name, as the paper has them."""
    known = {n.name: tuple(a.space.name for a in n.axes) for n in paper.EXAMPLES[EXAMPLES[function].paper]().inputs}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {name: known.get(name, ("D",)) for name in names}


def arguments(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn([SIZES[s] for s in spaces], dtype=dtype) for spaces in shapes(function).values()]


def captured(function: Callable[..., torch.Tensor], dtype: torch.dtype = torch.float32) -> TensorProgram:
    """The tensor program of `function`, its spaces called as the paper does."""
    found: list[TensorProgram] = []

    def backend(gm, example_inputs):
        program = capture(gm, example_inputs).program
        assert program is not None
        found.append(program)
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*arguments(function, dtype))
    (program,) = found
    known = shapes(function)
    names = {a.space.name: s for n in program.inputs for a, s in zip(n.axes, known[n.name], strict=True)}
    return renamed(program, lambda n: n, lambda s: Space(names[s.name], s.fixed, s.example))
