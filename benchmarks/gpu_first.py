"""The first four programs on a GPU, as Triton kernels, beside eager PyTorch: found, checked against fp64, timed.

    PYTHONPATH=src:tests python benchmarks/gpu_first.py [--json FILE] [--only NAME] [--dtype bfloat16|float32]

Each program has a few schedules written here; the fastest that is right counts. Every program runs in a process of its own, so that
a kernel that takes the GPU's context with it costs no more than the rest of its own program. The table comes last.

Times are medians, in microseconds: `graph` replays a CUDA graph of the launches, operands as they lie in the second-level cache;
`cold` has the cache emptied before each call and includes what starting it costs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from testkit.block.paper import EXAMPLES, INVERSE, each
from testkit.block.programs import F32, MUL, axes, linear_relu, tensor
from testkit.emit.harness import dims_of
from testkit.emit.triton_programs import load
from testkit.schedules import fused
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import Machine, MemoryLevel, estimate, total
from weft.emit.triton import GRANULARITY
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Contraction, Extent, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as applied

BYTES_PER_SECOND = 4.27e12
FLOPS = {DType.bfloat16: 672e12, DType.float32: 67e12}
H200 = Machine(
    cores=132,
    vector_flops=FLOPS[DType.float32],
    matrix_flops=FLOPS,
    levels=(
        MemoryLevel("shared memory", 228e3, 33e12),
        MemoryLevel("L2", 50e6, 10e12),
        MemoryLevel("HBM", 141e9, BYTES_PER_SECOND),
    ),
    launch_seconds=2e-6,
)
SECONDS_FOR_A_PROGRAM = 150


@dataclass(frozen=True)
class Candidate:
    """A schedule: levels by the first letter of a loop's name, as "m grid 64, k loop 32 peeled", and Triton's options."""

    levels: str
    warps: int = 4
    stages: int = 2
    program: str = "last"

    def __str__(self) -> str:
        return f"{self.program}: {self.levels}; warps {self.warps}, stages {self.stages}"


@dataclass(frozen=True)
class Problem:
    """A function to measure.

    Attributes:
        build: fused programs by name, for an element type; `Candidate.program` picks one.
        sizes: of each space.
        eager: the function as it is typed, from inputs by name.
        flops: multiplications and additions of its products, each once.
        peers: other ways to compute it in PyTorch, by name.
        scale: what random inputs are multiplied with, so that exp stays in range.
    """

    build: Callable[[DType], dict[str, BlockProgram]]
    sizes: Mapping[str, int]
    eager: Callable[..., torch.Tensor]
    flops: int
    candidates: Mapping[DType, Sequence[Candidate]]
    peers: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    scale: float = 1.0


# Programs.


def typed(program: TensorProgram, dtype: DType) -> TensorProgram:
    """Return `program` with tensors of `dtype`; sizes stay numbers of float32, and products leave their accumulators as `dtype`."""
    inputs = tuple(replace(i, dtype=dtype) for i in program.inputs)
    nodes = [n if isinstance(n, Extent) else replace(n, dtype=dtype) for n in program.nodes]
    axes_of = {n.name: n.axes for n in nodes}
    casts = [Cast(f"{o}.cast", axes_of[o], dtype, Use(o, axes_of[o]), semantic=False) for o in program.outputs]
    if dtype is dtype.accumulator:
        return TensorProgram(inputs, tuple(nodes), program.outputs)
    return TensorProgram(inputs, (*nodes, *casts), tuple(c.name for c in casts))


def snapshots(program: TensorProgram) -> dict[str, BlockProgram]:
    """Fuse `program`: each snapshot by its number from 0, the last as "last", and that made "safe"."""
    found = fuse(lower(program)).snapshots
    last = canonical(found[-1].program)
    safe = canonical(make_safe(last).program)
    return {**{str(i): canonical(s.program) for i, s in enumerate(found)}, "last": last, "safe": safe}


def example(name: str) -> Callable[[DType], dict[str, BlockProgram]]:
    """Return one of the paper's examples."""
    return lambda dtype: snapshots(typed(EXAMPLES[name](), dtype))


def attention_of_heads() -> TensorProgram:
    """Build softmax(q @ k.T / sqrt(d)) @ v for each head, without the maximum."""
    h, m, n, d, l = axes("h", "m", "n", "d", "l")  # noqa: E741 - the paper's name
    q, k, v = tensor("q", h, m, d), tensor("k", h, n, d), tensor("v", h, n, l)
    scale = applied("mul", Arg(0), applied("pow", Arg(1), Lit(-0.5)))
    scores = Contraction("scores", (h, m, n), F32, Use("q", (h, m, d)), Use("k", (h, n, d)), (d,))
    return TensorProgram((q, k, v), (
        Extent("dd", (), F32, d.space),
        scores,
        each("scaled", (h, m, n), scale, Use("scores", (h, m, n)), Use("dd", ())),
        each("e", (h, m, n), applied("exp", Arg(0)), Use("scaled", (h, m, n))),
        Reduction("t", (h, m), F32, Monoid.sum, Use("e", (h, m, n)), (n,)),
        each("inverse", (h, m), INVERSE, Use("t", (h, m))),
        each("p", (h, m, n), MUL, Use("e", (h, m, n)), Use("inverse", (h, m))),
        Contraction("out", (h, m, l), F32, Use("p", (h, m, n)), Use("v", (h, n, l)), (n,)),
    ), ("out",))  # fmt: skip


# The same functions in PyTorch.


def eager_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute relu(x @ w + b)."""
    return torch.relu(x @ w + b)


def eager_attention(q: torch.Tensor, kt: torch.Tensor, vt: torch.Tensor) -> torch.Tensor:
    """Compute attention of one head; `vt` is transposed."""
    return torch.softmax(q @ kt.mT * q.shape[-1] ** -0.5, -1) @ vt.mT


def eager_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention of several heads."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def fused_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Call PyTorch's own fused attention."""
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def eager_layernorm(x: torch.Tensor, yt: torch.Tensor) -> torch.Tensor:
    """Compute LayerNorm(x) @ y."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=0.0) @ yt.mT


def eager_swiglu(x: torch.Tensor, wt: torch.Tensor, vt: torch.Tensor, ut: torch.Tensor) -> torch.Tensor:
    """Compute RMSNorm, without the division by the width, and FFN-SwiGLU."""
    normal = x * torch.rsqrt(x.square().sum(-1, keepdim=True))
    return (torch.nn.functional.silu(normal @ wt.mT) * (normal @ vt.mT)) @ ut.mT


# What is tried.


def both(bfloat16: Sequence[Candidate], float32: Sequence[Candidate]) -> dict[DType, Sequence[Candidate]]:
    """Map element types to their candidates."""
    return {DType.bfloat16: bfloat16, DType.float32: float32}


def over_rows(rest: str, rows: Sequence[int], columns: Sequence[int], **options: Any) -> list[Candidate]:
    """List a candidate for each block of rows and block of the loop over keys or the like; `rest` has {m} and {n}."""
    return [Candidate(rest.format(m=m, n=n), **options) for m in rows for n in columns]


LINEAR = "m grid {m}, n grid {n}, k loop {k}"
PROBLEMS: dict[str, Problem] = {
    "relu(x @ w + b) 512x1024x1024": Problem(
        lambda dtype: {"last": fused(linear_relu(dtype))},
        {"M": 512, "K": 1024, "N": 1024},
        eager_linear,
        2 * 512 * 1024 * 1024,
        both(
            [
                Candidate(LINEAR.format(m=64, n=64, k=64), stages=4),
                Candidate(LINEAR.format(m=64, n=64, k=128), stages=3),
                Candidate(LINEAR.format(m=64, n=128, k=64), stages=4),
                Candidate(LINEAR.format(m=128, n=64, k=64), stages=4),
                Candidate(LINEAR.format(m=64, n=64, k=64) + " peeled", stages=4),
            ],
            [
                Candidate(LINEAR.format(m=64, n=64, k=32), stages=3),
                Candidate(LINEAR.format(m=64, n=64, k=16), stages=3),
                Candidate(LINEAR.format(m=32, n=64, k=32), stages=3),
                Candidate(LINEAR.format(m=64, n=64, k=32), warps=8, stages=3),
            ],
        ),
        scale=0.2,
    ),
    "attention 4096x64": Problem(
        example("attention"),
        {"M": 4096, "N": 4096, "D": 64, "L": 64},
        eager_attention,
        4 * 4096 * 4096 * 64,
        both(
            [
                *over_rows("m grid {m}, l whole, n loop {n}, d whole", (64, 128), (64, 128), stages=3, program="safe"),
                Candidate("m grid 128, l whole, n loop 64, d whole", warps=8, stages=3, program="safe"),
                Candidate("m grid 64, l whole, n loop 64, d whole", stages=3),
            ],
            [
                *over_rows("m grid {m}, l whole, n loop {n}, d whole", (32, 64), (32,), stages=2, program="safe"),
                Candidate("m grid 32, l whole, n loop 32, d loop 16"),
                Candidate("m grid 64, l whole, n loop 32, d whole", warps=8),
            ],
        ),
    ),
    "attention 8x2048x64": Problem(
        lambda dtype: snapshots(typed(attention_of_heads(), dtype)),
        {"H": 8, "M": 2048, "N": 2048, "D": 64, "L": 64},
        eager_heads,
        4 * 8 * 2048 * 2048 * 64,
        both(
            [
                *over_rows(
                    "h grid 1, m grid {m}, l whole, n loop {n}, d whole", (64, 128), (64, 128), stages=3, program="safe"
                ),
                Candidate("h grid 1, m grid 128, l whole, n loop 64, d whole", warps=8, stages=3, program="safe"),
                Candidate("h grid 1, m grid 128, l whole, n loop 128, d whole", warps=8, stages=3, program="safe"),
                Candidate("h grid 1, m grid 128, l whole, n loop 64, d whole", warps=8, stages=3),
            ],
            [
                *over_rows("h grid 1, m grid {m}, l whole, n loop {n}, d whole", (32, 64), (32,), program="safe"),
                Candidate("h grid 1, m grid 64, l whole, n loop 32, d whole", warps=8),
            ],
        ),
        {"scaled_dot_product_attention": fused_heads},
    ),
    "LayerNorm + matmul 512x1024x1024": Problem(
        example("layernorm"),
        {"M": 512, "K": 1024, "N": 1024},
        eager_layernorm,
        2 * 512 * 1024 * 1024,
        both(
            [
                Candidate(LINEAR.format(m=64, n=64, k=64), stages=3),
                Candidate(LINEAR.format(m=64, n=64, k=128), stages=3),
                Candidate(LINEAR.format(m=64, n=128, k=64), stages=3),
                Candidate(LINEAR.format(m=64, n=64, k=64), warps=8, stages=3),
            ],
            [
                Candidate(LINEAR.format(m=64, n=64, k=32), stages=3),
                Candidate(LINEAR.format(m=32, n=64, k=32), stages=3),
                Candidate(LINEAR.format(m=64, n=64, k=32), warps=8, stages=3),
            ],
        ),
    ),
    "RMSNorm + SwiGLU 512x512x1408": Problem(
        example("rmsnorm"),
        {"M": 512, "D": 512, "K": 1408, "N": 512},
        eager_swiglu,
        2 * 512 * 1408 * (512 + 512 + 512),
        both(
            [
                Candidate("m grid 16, n grid 512, k loop 64, d loop 64", stages=3),
                Candidate("m grid 64, n grid 64, k loop 64, d loop 64", stages=3),
                Candidate("m grid 32, n grid 128, k loop 64, d loop 64", stages=3),
                Candidate("m grid 64, n grid 128, k loop 64, d loop 64", warps=8, stages=3),
                Candidate("m grid 32, n grid 128, k loop 64, d loop 64", stages=3, program="1"),
                Candidate("m grid 16, n grid 128, k loop 64, d loop 64", stages=3, program="1"),
            ],
            [
                Candidate("m grid 16, n grid 256, k loop 32, d loop 32"),
                Candidate("m grid 32, n grid 128, k loop 32, d loop 32"),
                Candidate("m grid 64, n grid 64, k loop 32, d loop 32"),
                Candidate("m grid 32, n grid 128, k loop 32, d loop 32", program="1"),
            ],
        ),
        scale=0.2,
    ),
}


def schedule(program: BlockProgram, text: str) -> Schedule:
    """Make the schedule that `text` describes, each loop taking the levels given for the first letter of its name."""
    given: dict[str, LoopSchedule] = {}
    for part in text.split(", "):
        loop, place, *rest = part.split()
        size = int(rest[0]) if rest else 0
        given[loop] = LoopSchedule((Level(LevelPlace(place), size),), peel="peeled" in rest)
    return Schedule(tuple((m.name, given[m.name[0]]) for m in maps(program.graph)))


# Measuring.


def inputs_of(program: BlockProgram, problem: Problem, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Draw random inputs on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    found: dict[str, torch.Tensor] = {}
    for name, kind in program.inputs:
        shape = [a.space.size(problem.sizes) for a in kind.lists]
        found[name] = (torch.randn(shape, device="cuda", generator=generator) * problem.scale).to(dtype)
    return found


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Measure medians in microseconds."""
    from triton import testing

    found = {"cold": 1e3 * float(testing.do_bench(call, warmup=20, rep=80, return_mode="median"))}
    try:
        found["graph"] = 1e3 * float(testing.do_bench_cudagraph(call, rep=60, return_mode="median"))
    except Exception as why:  # noqa: BLE001 - what cannot be captured is timed without a graph
        sys.stderr.write(f"no graph: {why}\n")
    return found


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Measure the largest error, relative to the largest result."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def say(row: Mapping[str, Any]) -> None:
    """Write one line of JSON for the process that waits."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def measure(name: str, dtype: DType) -> None:
    """Measure one problem in one element type; a line of JSON for each thing that was timed."""
    problem = PROBLEMS[name]
    programs = problem.build(dtype)
    inputs = inputs_of(programs["last"], problem, getattr(torch, dtype.name))
    exact = problem.eager(**{n: t.double() for n, t in inputs.items()})
    torch.backends.cuda.matmul.allow_tf32 = False
    eager_error = math.nan
    for peer, function in {"eager": problem.eager, **problem.peers}.items():
        row: dict[str, Any] = {"what": peer}
        try:
            row["error"] = error_of(function(**inputs), exact)
            row |= timed(lambda function=function: function(**inputs))
        except Exception as why:  # noqa: BLE001 - one peer that fails does not end the run
            row["failed"] = described(why)
        if peer == "eager":
            eager_error = row.get("error", math.nan)
        say(row)
    moved = sum(t.nbytes for t in inputs.values()) + exact.numel() * dtype.bytes
    floor = max(moved / BYTES_PER_SECOND, problem.flops / FLOPS[dtype])
    say({"what": "floor", "graph": 1e6 * floor, "bytes": moved, "flops": problem.flops})
    with tempfile.TemporaryDirectory() as folder:
        for candidate in problem.candidates[dtype]:
            row = {"what": "weft", "candidate": str(candidate)}
            try:
                row |= tried(candidate, programs[candidate.program], problem, inputs, exact, Path(folder))
                row["right"] = row["error"] <= max(2.0 * eager_error, dtype.eps / 2)
            except Exception as why:  # noqa: BLE001 - one candidate that fails does not end the run
                row["failed"] = described(why)
            say(row)


def tried(
    candidate: Candidate,
    program: BlockProgram,
    problem: Problem,
    inputs: Mapping[str, torch.Tensor],
    exact: torch.Tensor,
    folder: Path,
) -> dict[str, Any]:
    """Build, run, check and time one candidate."""
    placed = apply(program, schedule(program, candidate.levels), GRANULARITY)
    predicted = total(estimate(placed, problem.sizes, H200)).predicted_seconds
    begin = time.perf_counter()
    kernels = load(placed, dims_of(placed), folder)
    run = kernels.prepare(inputs, problem.sizes, {"num_warps": candidate.warps, "num_stages": candidate.stages})
    (found,) = run()
    torch.cuda.synchronize()
    row: dict[str, Any] = {
        "predicted": 1e6 * predicted, "launches": len(kernels.launches), "build_seconds": time.perf_counter() - begin,
    }  # fmt: skip
    return row | {"error": error_of(found, exact)} | timed(run)


def described(why: Exception) -> str:
    """Describe an error by its kind and text, short enough for a table's file."""
    return f"{type(why).__name__}: {why}"[:800]


# The run.


def in_a_process(name: str, dtype: DType) -> list[dict[str, Any]]:
    """Measure the rows of one problem in a process of its own; what it wrote before it failed counts."""
    command = [sys.executable, __file__, "--worker", "--only", name, "--dtype", dtype.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_FOR_A_PROGRAM, check=False)
        out, failed = done.stdout, "" if done.returncode == 0 else done.stderr[-800:]
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        failed = f"stopped after {SECONDS_FOR_A_PROGRAM} s"
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    return [*rows, {"what": "process", "failed": failed}] if failed else rows


def best(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Find the fastest candidate that is right."""
    good = [r for r in rows if r["what"] == "weft" and r.get("right")]
    return min(good, key=lambda r: r.get("graph", r["cold"]), default=None)


def line(name: str, dtype: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a line of the table."""
    eager = next((r for r in rows if r["what"] == "eager"), {})
    peer = next((r for r in rows if r["what"] not in ("eager", "floor", "weft", "process")), {})
    floor = next((r for r in rows if r["what"] == "floor"), {})
    ours = best(rows) or {}
    numbers = [ours.get("graph"), eager.get("graph"), peer.get("graph"), floor.get("graph"), ours.get("predicted"),
               ours.get("cold"), eager.get("cold")]  # fmt: skip
    texts = "".join(f"{'-' if x is None else f'{x:.1f}':>9}" for x in numbers)
    errors = "".join(f"{r.get('error', math.nan):>10.1e}" for r in (ours, eager))
    failed = sum("failed" in r for r in rows)
    wrong = sum(r["what"] == "weft" and not r.get("right", True) for r in rows)
    return f"{name:34}{dtype:9}{texts}{errors}  {failed} failed, {wrong} wrong; {ours.get('candidate', 'none')}"


def setting() -> dict[str, Any]:
    """Describe where this ran."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "bytes_per_second": BYTES_PER_SECOND,
        "flops_per_second": {d.name: f for d, f in FLOPS.items()},
    }


def main() -> None:
    """Measure, then write the JSON and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("--only", help="the programs whose name holds this")
    parser.add_argument("--dtype", choices=[d.name for d in FLOPS], help="one element type")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    dtypes = [d for d in FLOPS if arguments.dtype in (None, d.name)]
    names = [n for n in PROBLEMS if arguments.only is None or arguments.only in n]
    if arguments.worker:
        measure(arguments.only, dtypes[0])
        return
    results: list[dict[str, Any]] = []
    for name in names:
        for dtype in dtypes:
            rows = in_a_process(name, dtype)
            results.append({"program": name, "dtype": dtype.name, "sizes": dict(PROBLEMS[name].sizes), "rows": rows})
            for row in rows:
                sys.stdout.write(f"{name} {dtype.name}: {json.dumps(row)}\n")
            sys.stdout.flush()
            if arguments.json:
                arguments.json.write_text(json.dumps({"setting": setting(), "results": results}, indent=1) + "\n")
    heads = "".join(f"{h:>9}" for h in ("weft", "eager", "peer", "floor", "predicted", "cold", "eager"))
    sys.stdout.write(f"\n{'us, by graph; cold last':34}{'':9}{heads}{'error':>10}{'eager':>10}\n")
    for result in results:
        sys.stdout.write(line(result["program"], result["dtype"], result["rows"]) + "\n")


if __name__ == "__main__":
    main()
