"""The example functions: compiled, shown, judged and timed beside eager PyTorch and Inductor (`weft demo`, `weft bench`)."""

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

from weft.api.measure import Timing, compare, judged, settle
from weft.api.optimize import optimize
from weft.api.program import Program
from weft.block.listing import listing
from weft.verify.judge import Judgement

DTYPES = (torch.float32, torch.bfloat16)
_TORCH: Any = torch  # the type of torch.compile is only partly known


@dataclass(frozen=True, slots=True)
class Size:
    """x is rows × inner, w and v inner × columns, b columns."""

    rows: int
    inner: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


FULL = Size(512, 1024, 1024)
QUICK = Size(32, 64, 48)


@dataclass(frozen=True, slots=True)
class Example:
    """A function to compile.

    Attributes:
        title: as one would write it.
        make: the function, or a new module.
        operands: which of x, w, v, b it takes.
    """

    title: str
    make: Callable[[Size], Callable[..., Any]]
    operands: str


def relu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product, a bias and a relu."""
    return torch.relu(x @ w + b)


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two products of the same rows, one gating the other."""
    return nn.functional.silu(x @ w) * (x @ v)


def sum_of_squares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product of which only a sum along each row is wanted."""
    return ((x @ w) ** 2).sum(-1)


class TwoLayers(nn.Module):
    """A multi-layer perceptron: inner → columns → inner."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first = nn.Linear(size.inner, size.columns)
        self.second = nn.Linear(size.columns, size.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: rows × inner, as the result."""
        return self.second(torch.relu(self.first(x)))


EXAMPLES = (
    Example("relu(x @ w + b)", lambda _: relu_linear, "xwb"),
    Example("silu(x @ w) * (x @ v)", lambda _: gated, "xwv"),
    Example("((x @ w) ** 2).sum(-1)", lambda _: sum_of_squares, "xw"),
    Example("two-layer MLP module", TwoLayers, "x"),
)


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
        function, dtype: which.
        kernels: launches that replace it.
        rewrites: how often each rule was applied.
        fused: listings of its fused block programs.
        equal, error_probability: of all verdicts together.
        fallbacks: what PyTorch would run, and why.
        compile_s: seconds that `weft.optimize` took; `cached` of the kernels came from the cache.
        errors: by candidate (weft, Inductor).
        times: by candidate (eager, Inductor, weft).
        missing: why there is no Inductor, where it was asked for and failed.
    """

    function: str
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


def outcomes(size: Size, rounds: int, *, inductor: bool) -> Iterator[Outcome]:
    """Compile, judge and time every example in every dtype, one after the other.

    Args:
        size: of the operands.
        rounds: timed calls of each candidate.
        inductor: also compile with `torch.compile(fn)`, as it is used by default.
    """
    settle()
    for example in EXAMPLES:
        for dtype in DTYPES:
            yield _outcome(example, size, dtype, rounds, inductor=inductor)


def _outcome(example: Example, size: Size, dtype: torch.dtype, rounds: int, *, inductor: bool) -> Outcome:
    torch.default_generator.manual_seed(0)  # of a module's parameters
    fn = example.make(size)
    if isinstance(fn, nn.Module):
        fn = fn.to(dtype).eval()

    def make_inputs(number: int) -> tuple[torch.Tensor, ...]:
        return operands(example, size, dtype, number)

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
    candidates["weft"] = program
    errors["weft"] = Checked.of(judged(program, fn, make_inputs))
    verdicts = [k.verdict for plan in program.plans for region in plan.regions for k in region.kernels[:1]]
    return Outcome(
        function=example.title,
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


def operands(example: Example, size: Size, dtype: torch.dtype, number: int) -> tuple[torch.Tensor, ...]:
    """The random operands with this number: x and b of variance 1, w and v such that products have it too."""
    random = torch.Generator().manual_seed(number)
    shapes = {
        "x": (size.rows, size.inner),
        "w": (size.inner, size.columns),
        "v": (size.inner, size.columns),
        "b": (size.columns,),
    }
    made = {name: torch.randn(shapes[name], generator=random) for name in example.operands}
    return tuple((t * size.inner**-0.5 if name in "wv" else t).to(dtype) for name, t in made.items())


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
    console.print(Text.assemble((outcome.function, "bold"), f"  {outcome.dtype}"))
    _line(console, "fused", f"{kernels}; rewrites: {rules}")
    if with_listing:
        for text in outcome.fused:
            console.print(Padding(Text(text, "cyan"), (0, 0, 0, 6)))
    _line(console, "checked", verdict)
    _line(console, "compiled", f"in {outcome.compile_s:.2f} s{built}")
    if outcome.fallbacks:
        _line(console, "left to PyTorch", "; ".join(outcome.fallbacks))
    if outcome.missing:
        _line(console, "Inductor failed", outcome.missing)


def _line(console: Console, head: str, text: str) -> None:
    console.print(Padding(Text(f"{head}: {text}"), (0, 0, 0, 2)))


def tables(found: Sequence[Outcome]) -> tuple[Table, Table]:
    """Times, and errors, of all outcomes."""
    names = list(dict.fromkeys(name for outcome in found for name in outcome.times))
    times = Table("function", "dtype", title="time, ms: median (best) of alternating calls")
    for name in names:
        times.add_column(name, justify="right")
    times.add_column("weft / best peer", justify="right")
    errors = Table("function", "dtype", title="error: largest |result - fp64| over 4 random inputs")
    for head in ("eager", *(n for n in names if n != "eager"), "allowed", "right"):
        errors.add_column(head, justify="right")
    for outcome in found:
        cells = [_time(outcome.times.get(name)) for name in names]
        peers = min(t.median_ms for name, t in outcome.times.items() if name != "weft")
        ratio = f"{outcome.times['weft'].median_ms / peers:.2f}"
        times.add_row(outcome.function, outcome.dtype, *cells, ratio)
        weft = outcome.errors["weft"]
        others = [f"{outcome.errors[n].error:.2g}" if n in outcome.errors else "-" for n in names if n != "eager"]
        right = Text("yes", "green") if outcome.right else Text("NO", "bold red")
        errors.add_row(
            outcome.function, outcome.dtype, f"{weft.eager_error:.2g}", *others, f"{weft.allowed:.2g}", right
        )
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
