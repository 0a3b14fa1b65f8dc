"""The example functions compiled, shown, judged and timed beside eager PyTorch, Inductor and their own peers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import nn
from torch._dynamo.exc import TorchDynamoException

from weft.api.examples import Example, Sizes
from weft.api.measure import Timing, compare, judged, settle
from weft.api.optimize import optimize
from weft.api.program import Program
from weft.block.listing import listing
from weft.verify.judge import Judgement

DTYPES = (torch.float32, torch.bfloat16)
_TORCH: Any = torch  # the type of torch.compile is only partly known


@dataclass(frozen=True, slots=True)
class Checked:
    """A result under the error rule: max |result - fp64| of it and of eager, and what is allowed."""

    error: float
    eager_error: float
    allowed: float
    right: bool
    reason: str

    @staticmethod
    def of(judgement: Judgement) -> Checked:
        """The judgement of a single output."""
        (only,) = judgement.outputs
        return Checked(only.error, only.eager_error, only.bound, only.ok, only.reason)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one example in one dtype.

    Attributes:
        function, size, dtype: which.
        kernels: launches that replace it.
        rewrites: how often each rule was applied.
        fused: listings of its fused block programs.
        equal, error_probability: of all verdicts together.
        fallbacks: what PyTorch would run, and why.
        compile_s: seconds that `weft.optimize` took; `cached` of the kernels came from the cache.
        errors: by candidate, but for eager.
        times: by candidate (eager, Inductor, the example's own peers, weft).
        missing: why there is no Inductor, where it was asked for and failed.
    """

    function: str
    size: str
    dtype: str
    kernels: int
    rewrites: Mapping[str, int]
    fused: tuple[str, ...]
    equal: bool
    error_probability: float
    fallbacks: tuple[str, ...]
    compile_s: float
    cached: int
    errors: Mapping[str, Checked]
    times: Mapping[str, Timing]
    missing: str = ""

    @property
    def right(self) -> bool:
        """weft compiled all of it, proved it equal, and its results keep the error rule."""
        return self.errors["weft"].right and self.equal and self.kernels > 0 and not self.fallbacks


def outcomes(examples: Sequence[Example], rounds: int, *, quick: bool) -> Iterator[Outcome]:
    """Compile, judge and time every example in every dtype, one after the other.

    Args:
        examples: which, each beside eager, its own peers and what `torch.compile(fn)` makes of it, as that is used by default.
        rounds: timed calls of each candidate.
        quick: at small sizes, without `torch.compile(fn)`.
    """
    settle()
    for example in examples:
        for dtype in DTYPES:
            sizes = example.quick if quick else example.full
            yield _outcome(example, sizes, dtype, rounds, inductor=not quick)


def _outcome(example: Example, sizes: Sizes, dtype: torch.dtype, rounds: int, *, inductor: bool) -> Outcome:
    torch.default_generator.manual_seed(0)  # of a module's parameters
    fn = example.make(sizes)
    if isinstance(fn, nn.Module):
        fn = fn.to(dtype).eval()

    def make_inputs(number: int) -> tuple[torch.Tensor, ...]:
        return example.inputs(sizes, dtype, number)

    start = time.perf_counter()
    program = optimize(fn, make_inputs(0))
    compile_s = time.perf_counter() - start
    candidates: dict[str, Callable[..., Any]] = {"eager": fn}
    errors: dict[str, Checked] = {}
    missing = ""
    if inductor:
        theirs: Callable[..., Any] = _TORCH.compile(fn)
        try:
            errors["Inductor"] = Checked.of(judged(theirs, fn, make_inputs))
            candidates["Inductor"] = theirs
        except (TorchDynamoException, RuntimeError) as error:  # its own compiler or headers are not there
            missing = next(iter(str(error).splitlines()), type(error).__name__)
    for name, peer in example.peers.items():
        candidates[name] = peer
        errors[name] = Checked.of(judged(peer, fn, make_inputs))
    candidates["weft"] = program
    errors["weft"] = Checked.of(judged(program, fn, make_inputs))
    verdicts = [k.verdict for plan in program.plans for region in plan.regions for k in region.kernels[:1]]
    return Outcome(
        function=example.title,
        size="x".join(map(str, sizes)),
        dtype=str(dtype).removeprefix("torch."),
        kernels=len(program.kernels),
        rewrites=dict(Counter(step.rule for step in program.trace)),
        fused=_listings(program),
        equal=bool(verdicts) and all(v.equal is True for v in verdicts),
        error_probability=min(1.0, sum(v.error_probability for v in verdicts)) if verdicts else 1.0,
        fallbacks=tuple(map(str, program.fallbacks)),
        compile_s=compile_s,
        cached=sum(k.from_cache for k in program.kernels),
        errors=errors,
        times=compare(candidates, make_inputs, rounds),
        missing=missing,
    )


def _listings(program: Program) -> tuple[str, ...]:
    return tuple(listing(region.fused) for plan in program.plans for region in plan.regions)


# What is printed.


def show(console: Console, outcome: Outcome, *, with_listing: bool) -> None:
    """What was fused and how it was checked."""
    rules = ", ".join(f"{rule} {count}×" for rule, count in outcome.rewrites.items()) or "none"
    kernels = "1 kernel" if outcome.kernels == 1 else f"{outcome.kernels} kernels"
    chance = f"equal over finite fields, wrong with probability at most {outcome.error_probability:.1e}"
    verdict = chance if outcome.equal else "NOT shown equal to what was written"
    built = f", {outcome.cached} from the cache" if outcome.cached else ""
    console.print(Text.assemble((outcome.function, "bold"), f"  {outcome.size} {outcome.dtype}"))
    _line(console, "fused", f"{kernels}; rewrites: {rules}")
    if with_listing:
        for text in outcome.fused:
            console.print(Padding(Text(text, "cyan"), (0, 0, 0, 6), expand=False))
    _line(console, "checked", verdict)
    _line(console, "compiled", f"in {outcome.compile_s:.2f} s{built}")
    if outcome.fallbacks:
        _line(console, "left to PyTorch", "; ".join(outcome.fallbacks))
    if outcome.missing:
        _line(console, "Inductor failed", outcome.missing)


def _line(console: Console, head: str, text: str) -> None:
    console.print(Padding(Text(f"{head}: {text}"), (0, 0, 0, 2), expand=False))


def tables(found: Sequence[Outcome]) -> tuple[Table, Table]:
    """Times, and errors, of all outcomes."""
    names = list(dict.fromkeys(name for outcome in found for name in outcome.times))
    times = Table("function", "size", "dtype", title="time, ms: median (best) of alternating calls")
    for name in names:
        times.add_column(name, justify="right")
    times.add_column("weft / best peer", justify="right")
    errors = Table("function", "size", "dtype", title="error: largest |result - fp64| over 4 random inputs")
    for head in ("eager", *(n for n in names if n != "eager"), "allowed", "right"):
        errors.add_column(head, justify="right")
    for outcome in found:
        which = (outcome.function, outcome.size, outcome.dtype)
        cells = [_time(outcome.times.get(name)) for name in names]
        peers = min(t.median_ms for name, t in outcome.times.items() if name != "weft")
        ratio = f"{outcome.times['weft'].median_ms / peers:.2f}"
        times.add_row(*which, *cells, ratio)
        weft = outcome.errors["weft"]
        others = [f"{outcome.errors[n].error:.2g}" if n in outcome.errors else "-" for n in names if n != "eager"]
        right = Text("yes", "green") if outcome.right else Text("NO", "bold red")
        errors.add_row(*which, f"{weft.eager_error:.2g}", *others, f"{weft.allowed:.2g}", right)
    return times, errors


def _time(timing: Timing | None) -> str:
    return "-" if timing is None else f"{timing.median_ms:.3g} ({timing.best_ms:.3g})"


def complaints(found: Sequence[Outcome]) -> Iterator[str]:
    """One line for every outcome that is not right."""
    for outcome in found:
        if not outcome.right:
            weft = outcome.errors["weft"]
            reasons = [weft.reason] if not weft.right else []
            reasons += [] if outcome.equal else ["not shown equal to what was written"]
            reasons += [f"left to PyTorch: {why}" for why in outcome.fallbacks]
            reasons += [] if outcome.kernels else ["no kernel"]
            yield f"{outcome.function} in {outcome.dtype} is not right: {'; '.join(reasons)}"
