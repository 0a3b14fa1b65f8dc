"""One model through `weft.compile`, `generate` or `weft.optimize` for a GPU: what came out, and what of it ran in kernels."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import weft
from testkit.models.base import BASE
from testkit.models.zoo import MODELS, Inputs, Model
from weft.api import backend
from weft.plan import Plan

ALL: dict[str, Model] = MODELS | BASE
LENGTHS = (16, 33, 7)
BATCH = 2
CACHES = ("dynamic", "static")
NEW_TOKENS = 6


@dataclass(slots=True)
class Outcome:
    """What a case gave.

    Attributes:
        wrong: what is not as it must be; empty where all is.
        graphs: how many graphs were compiled.
        kernels: launches in them.
        left: operations left to PyTorch, with the reason, and how often.
        seconds: what the case took, eager and the reference included.
    """

    wrong: list[str] = field(default_factory=list[str])
    graphs: int = 0
    kernels: int = 0
    left: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0

    def note(self, plan: Plan) -> None:
        """Counts what became of one graph; wrong is a graph that computes and has no kernel."""
        self.graphs += 1
        self.kernels += len(plan.kernels)
        for fallback in plan.fallbacks:
            text = f"{fallback.operation}: {fallback.reason}"
            self.left[text] = self.left.get(text, 0) + 1
        if plan.captured.program is None:
            self.wrong.append(f"a whole graph is left to PyTorch: {plan.captured.refused}")


@contextmanager
def noting(outcome: Outcome) -> Generator[None]:
    """Notes every graph that is compiled inside, and every warning; takes the time."""
    compile_graph = backend.compile_graph

    def noted(*arguments: Any, **named: Any) -> Plan:
        plan = compile_graph(*arguments, **named)
        outcome.note(plan)
        return plan

    backend.compile_graph = noted
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as heard, torch.no_grad():
            warnings.simplefilter("always")
            yield
    finally:
        backend.compile_graph = compile_graph
        outcome.seconds = time.perf_counter() - begin
    outcome.wrong += [f"warning: {w.message}" for w in heard if "weft" in str(w.message)]
    if not outcome.kernels:
        outcome.wrong.append("no kernel")


def made(name: str, attention: str, dtype: torch.dtype, device: str = "cpu") -> tuple[nn.Module, nn.Module]:
    """A model with random weights, and the same one in fp64."""
    torch.manual_seed(0)
    model = ALL[name].build(attention).eval().to(dtype).to(device)
    reference: Any = copy.deepcopy(model).double()
    if getattr(reference, "_can_set_experts_implementation", lambda: False)():
        reference.set_experts_implementation("eager")  # PyTorch's grouped products take no fp64
    return model, reference


def cast(inputs: Inputs, dtype: torch.dtype, device: str = "cpu") -> Inputs:
    """The inputs on `device`, those of floating point in `dtype`."""
    return {n: v.to(device, dtype if v.is_floating_point() else v.dtype) for n, v in inputs.items()}


def floats(found: Any) -> list[Tensor]:
    """The tensors of floating point among a model's results; caches are none of these."""
    values = [found] if isinstance(found, Tensor) else found.to_tuple()
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]


def settled(reference: Any, given: Inputs, dtype: torch.dtype) -> Tensor | float:
    """1 for the tokens that routers send clearly to some experts, as all before them; 0 for those after one that is nearly tied.

    What lies nearer together than numbers of type `dtype` tell apart, rounding decides, in eager too. 1 where there is no router.
    """
    if not hasattr(getattr(reference, "config", None), "num_experts_per_tok"):
        return 1.0
    clear = torch.ones(given["input_ids"].shape, dtype=torch.bool)
    for logits in reference(**given, output_router_logits=True).router_logits:
        most = logits.view(*clear.shape, -1).topk(reference.config.num_experts_per_tok + 1).values
        clear &= (most[..., -2] - most[..., -1] > torch.finfo(dtype).eps * logits.abs().max()).to(clear.device)
    return clear.cumprod(-1).unsqueeze(-1)


def forward(
    name: str,
    attention: str,
    dtype: torch.dtype,
    draws: int = 2,
    device: str = "cpu",
    lengths: Sequence[int] = LENGTHS,
) -> Outcome:
    """The model at these lengths, by the error rule over all of them; `draws` inputs of each."""
    outcome = Outcome()
    model, reference = made(name, attention, dtype, device)
    fast = weft.compile(model, measure="never")
    found: list[Any] = []
    eager: list[Any] = []
    exact: list[Any] = []
    with noting(outcome):
        for length in lengths:
            for _ in range(draws):
                given = ALL[name].inputs(BATCH, length)
                clear = settled(reference, cast(given, torch.float64, device), dtype)
                for runs, of, kind in ((found, fast, dtype), (eager, model, dtype), (exact, reference, torch.float64)):
                    runs.append([v * clear for v in floats(of(**cast(given, kind, device)))])
    judged = weft.judge(*(weft.Draws(v) for v in (found, eager, exact)))
    if not judged:
        outcome.wrong.append(judged.reason)
    return outcome


def generated(
    name: str,
    attention: str,
    dtype: torch.dtype,
    cache: str,
    device: str = "cpu",
    lengths: Sequence[int] = LENGTHS[:2],
) -> Outcome:
    """`generate` with the model's forward compiled: the tokens that eager gives, for two prompts."""
    outcome = Outcome()
    model, _ = made(name, attention, dtype, device)
    asked: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "cache_implementation": cache}
    given = [cast(tokens_only(ALL[name].inputs(BATCH, length)), dtype, device) for length in lengths]
    generate: Callable[..., Tensor] = getattr(model, "generate")  # noqa: B009 - no part of nn.Module
    with torch.no_grad():
        wanted = [generate(**each, **asked) for each in given]
    model.forward = weft.compile(model.forward, measure="never")
    with noting(outcome):
        found = [generate(**each, **asked) for each in given]
    for mine, theirs in zip(found, wanted, strict=True):
        if not torch.equal(mine, theirs):
            outcome.wrong.append(f"other tokens: {mine.tolist()} and not {theirs.tolist()}")
    return outcome


def tokens_only(given: Inputs) -> Inputs:
    """Keeps what `generate` takes, whole rows: a mask it makes itself, and the words of a decoder."""
    return {n: v for n, v in given.items() if n not in ("decoder_input_ids", "attention_mask")}


def for_a_gpu(name: str, attention: str, dtype: torch.dtype, target: str, lengths: Sequence[int] = LENGTHS) -> Outcome:
    """The model's graphs at these lengths, compiled for a GPU that need not be here."""
    outcome = Outcome()
    model, _ = made(name, attention, dtype)
    with noting(outcome), weft.options(effort="none"):
        for length in lengths:
            given = cast(ALL[name].inputs(BATCH, length), dtype)
            names = list(given)

            def call(*values: Tensor, names: Sequence[str] = names) -> Any:
                return model(**dict(zip(names, values, strict=True)))

            program = weft.optimize(call, tuple(given.values()), target=target)
            for plan in program.plans:
                outcome.note(plan)
            outcome.wrong += [f"{k.name} has no binary" for k in program.kernels if not k.binary]
    return outcome
