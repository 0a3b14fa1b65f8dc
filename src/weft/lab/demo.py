"""The example functions compiled, shown, judged and timed beside eager PyTorch, Inductor and their own peers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import nn

from weft.api.compile import compile as compiled_by_weft
from weft.api.optimize import optimize
from weft.api.program import Program
from weft.block.listing import listing
from weft.lab.examples import ExampleFunction, Sizes
from weft.lab.measure import PeerTiming, Standard, compare, settle
from weft.run import stats
from weft.tracer import TorchDynamoException
from weft.verify import together
from weft.verify.judge import Judgement

# Rows are many: one that takes longer is measured in fewer rounds.
_SECONDS = 20.0
# What `weft.compile` runs, and weft's kernels for all that it knows, whatever is faster.
_OWN = ("weft", "weft kernels")
DTYPES = (torch.float32, torch.bfloat16)
_TORCH: Any = torch  # the type of torch.compile is only partly known


RowKey: TypeAlias = tuple[str, str, str]
"""Function, size and dtype: which row of a table an outcome is."""


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
        """Take the figures of the first output, which is floating; of the others only what is wrong."""
        first = judgement.outputs[0]
        reason = first.reason if len(judgement.outputs) == 1 else judgement.reason
        return Checked(first.error, first.eager_error, first.bound, judgement.ok, reason)


@dataclass(frozen=True, slots=True)
class WorkloadOutcome:
    """What became of one example in one dtype.

    Attributes:
        function, size, dtype: which.
        kernels: launches that replace it.
        rewrites: how often each pass was applied.
        fused: listings of its fused block programs.
        equal, error_probability, agrees, claim: of all verdicts together, as those of `weft.Verdict`.
        fallbacks: what PyTorch would run, and why.
        compile_s: seconds that `weft.optimize` took; `cached` of the kernels came from the cache.
        errors: by candidate, but for eager.
        times: by candidate (eager, Inductor, the example's own peers, weft's kernels, and what `weft.compile` runs).
        runs: what `weft.compile` found to be the fastest and runs: weft, weft with library matmuls, or PyTorch.
        missing: why there is no Inductor, where it was asked for and failed.
    """

    function: str
    size: str
    dtype: str
    kernels: int
    rewrites: Mapping[str, int]
    fused: tuple[str, ...]
    equal: bool | None
    error_probability: float | None
    agrees: bool
    claim: str
    fallbacks: tuple[str, ...]
    compile_s: float
    cached: int
    errors: Mapping[str, Checked]
    times: Mapping[str, PeerTiming]
    missing: str = ""
    runs: str = "weft"

    @property
    def true(self) -> bool:
        """Results keep the error rule, and every kernel that there is agrees with what was written; the rest PyTorch runs."""
        return all(self.errors[name].right for name in _OWN) and (self.agrees or not self.kernels)

    @property
    def right(self) -> bool:
        """weft compiled all of it, it agrees with what was written, and its results keep the error rule."""
        return self.true and self.kernels > 0 and not self.fallbacks

    @property
    def row(self) -> RowKey:
        """Which row of a table it is."""
        return self.function, self.size, self.dtype

    @property
    def ratio(self) -> float:
        """weft's median over the best peer's."""
        return self.times["weft"].median_ms / min(t.median_ms for name, t in self.times.items() if name not in _OWN)

    def written(self) -> dict[str, Any]:
        """Return what the results file holds of it."""
        return {**asdict(self), "right": self.right}

    @staticmethod
    def read(written: Mapping[str, Any]) -> WorkloadOutcome:
        """Read what `written` gave, back from a file; raises KeyError or TypeError where that holds something else."""
        own = {name: value for name, value in written.items() if name != "right"}
        own["errors"] = {name: Checked(**value) for name, value in written["errors"].items()}
        own["times"] = {name: PeerTiming(**value) for name, value in written["times"].items()}
        return WorkloadOutcome(**own)


def _rows(
    examples: Sequence[ExampleFunction], *, quick: bool
) -> dict[RowKey, tuple[ExampleFunction, Sizes, torch.dtype]]:
    """List every example in every dtype that it is measured in, by row."""
    return {
        (e.title, _size(sizes), str(dtype).removeprefix("torch.")): (e, sizes, dtype)
        for e in examples
        for sizes in (e.quick if quick else e.full,)
        for dtype in DTYPES
        if dtype in e.dtypes
    }


def _size(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def outcomes(
    examples: Sequence[ExampleFunction], rounds: int, *, quick: bool, known: Collection[RowKey] = ()
) -> Iterator[WorkloadOutcome]:
    """Compile, judge and time every example in every dtype, one after the other.

    Args:
        examples: which, each beside eager, its own peers and what `torch.compile(fn)` makes of it, as that is used by default.
        rounds: timed calls of each candidate.
        quick: at small sizes, without `torch.compile(fn)`.
        known: rows to leave out.
    """
    settle()
    for row, (example, sizes, dtype) in _rows(examples, quick=quick).items():
        if row not in known:
            yield _outcome(example, sizes, dtype, rounds, inductor=not quick)


def _outcome(
    example: ExampleFunction, sizes: Sizes, dtype: torch.dtype, rounds: int, *, inductor: bool
) -> WorkloadOutcome:
    torch.default_generator.manual_seed(0)  # of a module's parameters
    _TORCH.compiler.reset()  # sizes of an earlier row would make this one's sizes dynamic, which is slower
    fn = example.make(sizes)
    if isinstance(fn, nn.Module):
        fn = fn.to(dtype).eval()

    def make_inputs(number: int) -> tuple[torch.Tensor, ...]:
        return example.inputs(sizes, dtype, number)

    start = time.perf_counter()
    program = optimize(fn, make_inputs(0))
    compile_s = time.perf_counter() - start
    standard = Standard.of(fn, make_inputs, gaps=example.gaps)
    candidates: dict[str, Callable[..., Any]] = {"eager": fn}
    errors: dict[str, Checked] = {}
    missing = ""
    if inductor:
        theirs: Callable[..., Any] = _TORCH.compile(fn)
        try:
            errors["Inductor"] = Checked.of(standard.judge(theirs))
            candidates["Inductor"] = theirs
        except (TorchDynamoException, RuntimeError) as error:  # its own compiler or headers are not there
            missing = next(iter(str(error).splitlines()), type(error).__name__)
    for name, peer in example.peers.items():
        candidates[name] = peer
        errors[name] = Checked.of(standard.judge(peer))
    before = stats.snapshot()
    candidates |= dict(zip(_OWN, (compiled_by_weft(fn), program), strict=True))
    errors |= {name: Checked.of(standard.judge(candidates[name])) for name in _OWN}
    after = stats.snapshot()
    verdict = together([k.verdict for plan in program.plans for region in plan.regions for k in region.kernels[:1]])
    return WorkloadOutcome(
        function=example.title,
        size=_size(sizes),
        dtype=str(dtype).removeprefix("torch."),
        kernels=len(program.kernels),
        rewrites=dict(Counter(step.rule for step in program.trace)),
        fused=_listings(program),
        equal=verdict.equal,
        error_probability=verdict.error_probability,
        agrees=verdict.agrees,
        claim=verdict.claim,
        fallbacks=tuple(map(str, program.fallbacks)),
        compile_s=compile_s,
        cached=sum(k.from_cache for k in program.kernels),
        errors=errors,
        times=compare(candidates, make_inputs, rounds, seconds=_SECONDS),
        missing=missing,
        runs=chosen(before, after),
    )


def chosen(before: stats.Stats, after: stats.Stats) -> str:
    """Name what one compiled function ran after its trial."""
    if after.slower > before.slower:
        return "PyTorch"
    return "weft with library matmuls" if after.library > before.library else "weft"


def _listings(program: Program) -> tuple[str, ...]:
    return tuple(listing(region.fused) for plan in program.plans for region in plan.regions)


# What is printed.


def show(console: Console, outcome: WorkloadOutcome, *, with_listing: bool) -> None:
    """Print what was fused and how it was checked."""
    rules = ", ".join(f"{rule} {count}×" for rule, count in outcome.rewrites.items()) or "none"
    kernels = "1 kernel" if outcome.kernels == 1 else f"{outcome.kernels} kernels"
    verdict = f"over finite fields: {outcome.claim}" if outcome.agrees else "NOT what was written"
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


def tables(found: Sequence[WorkloadOutcome]) -> tuple[Table, Table]:
    """Make the tables of times, and of errors, of all outcomes."""
    names = list(dict.fromkeys(name for outcome in found for name in outcome.times))
    times = Table("function", "size", "dtype", title="time, ms: median (best) of alternating calls")
    for name in names:
        times.add_column(name, justify="right")
    times.add_column("weft / best peer", justify="right")
    times.add_column("runs")
    errors = Table("function", "size", "dtype", title="error: largest |result - fp64| over 4 random inputs")
    for head in ("eager", *(n for n in names if n != "eager"), "allowed", "right"):
        errors.add_column(head, justify="right")
    for outcome in found:
        cells = [_time(outcome.times.get(name)) for name in names]
        times.add_row(*outcome.row, *cells, f"{outcome.ratio:.2f}", outcome.runs)
        weft = outcome.errors["weft"]
        others = [f"{outcome.errors[n].error:.2g}" if n in outcome.errors else "-" for n in names if n != "eager"]
        right = _right(outcome)
        errors.add_row(*outcome.row, f"{weft.eager_error:.2g}", *others, f"{weft.allowed:.2g}", right)
    return times, errors


def _right(outcome: WorkloadOutcome) -> Text:
    if outcome.right:
        return Text("yes", "green")
    return Text("in part PyTorch's" if outcome.true and outcome.fallbacks else "NO", "bold red")


def summary(found: Sequence[WorkloadOutcome]) -> str:
    """Say in one line how weft's times compare with the best peer's over all outcomes."""
    ratios = [outcome.ratio for outcome in found]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    worst = max(found, key=lambda o: o.ratio)
    above = sum(ratio > 1.1 for ratio in ratios)
    return (
        f"weft / best peer over {len(found)} rows: geometric mean {mean:.2f}, {above} above 1.1, "
        f"the most {worst.ratio:.2f} ({worst.function}, {worst.size}, {worst.dtype})"
    )


def _time(timing: PeerTiming | None) -> str:
    return "-" if timing is None else f"{timing.median_ms:.3g} ({timing.best_ms:.3g})"


def complaints(found: Sequence[WorkloadOutcome], *, parts: bool = False) -> Iterator[str]:
    """Yield one line for every outcome that is not right; with `parts`, PyTorch may run a part."""
    for outcome in found:
        if not (outcome.true if parts else outcome.right):
            reasons = [f"{name}: {e.reason}" for name in _OWN if not (e := outcome.errors[name]).right]
            reasons += [] if outcome.agrees else ["not what was written"]
            reasons += [f"left to PyTorch: {why}" for why in outcome.fallbacks]
            reasons += [] if outcome.kernels else ["no kernel"]
            yield f"{outcome.function} in {outcome.dtype} is not right: {'; '.join(reasons)}"
