"""Attention with masks that are tensors, on a GPU, beside FlexAttention and PyTorch's own attention with the mask.

    PYTHONPATH=src python benchmarks/masks.py [--quick] [--json FILE]

Masks are the four patterns of STOF's tables (a window, a dilated window, Longformer's and BigBird's, with windows and global rows
of the square root of the length, and BigBird's random blocks 32 wide at 10 %), and one of random elements, none of whose blocks
is empty; all are tensors of bools of rows by columns. 12 heads of 64 in bf16. weft is given the formula written out, and one
program serves all masks of a size: it finds out at each call which blocks are empty. FlexAttention's block mask is made
beforehand, and its time does not count. All are replayed as CUDA graphs, in turn, each sample of some milliseconds; medians of 15
in microseconds. Errors are the largest beside fp64, over two heads. The table comes last; exits with 1 where a row failed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, scaled_dot_product_attention

import weft
from weft.lab.measure import setting

HEADS, WIDTH, BLOCK, ROUNDS = 12, 64, 64, 15
SIZES = ((1, 128), (1, 512), (8, 2048), (16, 4096))
SAMPLE = 0.004
EAGER = 512  # scores of longer sequences do not fit

Run = Callable[[], Any]


def masks(n: int) -> dict[str, Tensor]:
    """Make the masks of n rows and n columns by name; True: the element counts."""
    i, j = torch.arange(n, device="cuda")[:, None], torch.arange(n, device="cuda")[None]
    width = int(math.sqrt(n))
    near = (i - j).abs() <= width
    everywhere = (i < width) | (j < width)
    generator = torch.Generator("cuda").manual_seed(0)
    cells = torch.rand(-(-n // 32), -(-n // 32), device="cuda", generator=generator) < 0.1
    some = cells.repeat_interleave(32, 0).repeat_interleave(32, 1)[:n, :n]
    return {
        "window": near,
        "dilated": ((i - j).abs() <= 2 * width) & ((i - j) % 2 == 0),
        "longformer": near | everywhere,
        "bigbird": near | everywhere | some,
        "random elements": torch.rand(n, n, device="cuda", generator=generator) < 0.5,
    }


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Compute attention, written out."""
    scores = q @ k.transpose(-1, -2) / WIDTH**0.5
    return torch.softmax(scores.masked_fill(~mask, -math.inf), -1) @ v


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Run:
    """Compile FlexAttention with the block mask of `mask`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = mask.shape[-1]

    def kept(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[i, j]

    block = create_block_mask(kept, None, None, n, n, device="cuda")
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=block)


def replayed(run: Run) -> Run:
    """Capture `run` in a CUDA graph, and return what replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def medians(runs: dict[str, Run]) -> dict[str, float]:
    """Time `runs` in turn; returned are median microseconds of a call."""
    counts: dict[str, int] = {}
    for name, run in runs.items():
        run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        counts[name] = max(1, min(200, int(SAMPLE / max(1e-6, time.perf_counter() - begin))))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            for _ in range(counts[name]):
                run()
            ended.record()
            torch.cuda.synchronize()
            found[name].append(begun.elapsed_time(ended) * 1e3 / counts[name])
    return {name: statistics.median(each) for name, each in found.items()}


def errors(results: dict[str, Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> dict[str, float]:
    """Find the largest error of each result beside fp64, in the first two heads."""
    exact = attention(*(t[:1, :2].double() for t in (q, k, v)), mask)
    return {
        name: float(torch.nan_to_num((made[:1, :2].double() - exact).abs(), nan=math.inf).max())
        for name, made in results.items()
    }


def measured(batch: int, n: int, name: str, mask: Tensor, programs: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """Measure one row; `programs` has those of weft by size."""
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    blocks = max_pool2d(mask[None].float(), BLOCK, ceil_mode=True)
    said: dict[str, Any] = {"batch": batch, "length": n, "mask": name}
    said |= {"kept": float(mask.float().mean()), "blocks of 64": float(blocks.mean())}
    if (batch, n) not in programs:
        begin = time.perf_counter()
        programs[batch, n] = weft.optimize(attention, (q, k, v, mask))
        said["weft compiles, s"] = time.perf_counter() - begin
    program = programs[batch, n]
    said["fallbacks"] = [str(each) for each in program.fallbacks]
    said["kernels"] = [str(kernel.schedule).replace("\n", "; ") for kernel in program.kernels]
    said["judged"] = [kernel.judged for kernel in program.kernels]
    peers: dict[str, Run] = {
        "weft": lambda: program(q, k, v, mask),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask),
        "flex": flex(q, k, v, mask),
    }
    if n <= EAGER:
        peers["eager"] = lambda: attention(q, k, v, mask)
    said["errors"] = errors({which: run() for which, run in peers.items()}, q, k, v, mask)
    said["us"] = medians({which: replayed(run) for which, run in peers.items()})
    return said


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows as a table, and the geometric mean of the patterns' ratios to the best peer."""
    lines = [
        f"{'mask':24}{'kept':>6}{'blocks':>8}{'weft us':>10}{'flex':>9}{'sdpa':>9}{'best peer':>11}   error weft, sdpa"
    ]
    logs: list[float] = []
    for row in rows:
        label = f"{row['mask']} {row['batch']}x{row['length']}"
        if "failed" in row:
            lines.append(f"{label:24} failed: {row['failed'].splitlines()[-1]}")
            continue
        us, off = row["us"], row["errors"]
        ratio = us["weft"] / min(us["flex"], us["sdpa"])
        if row["mask"] != "random elements":
            logs.append(math.log(ratio))
        numbers = f"{row['kept']:6.3f}{row['blocks of 64']:8.3f}{us['weft']:10.1f}{us['flex']:9.1f}{us['sdpa']:9.1f}{ratio:11.2f}"
        lines.append(
            f"{label:24}{numbers}   {off['weft']:.1e} {off['sdpa']:.1e}{'  FALLBACKS' * bool(row['fallbacks'])}"
        )
    if logs:
        lines.append(f"geometric mean of the patterns: {math.exp(statistics.fmean(logs)):.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure the rows, and write them as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two small sizes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    programs: dict[tuple[int, int], Any] = {}
    about = {"setting": asdict(setting()), "device": torch.cuda.get_device_name()}
    for batch, n in SIZES[:2] if given.quick else SIZES:
        for name, mask in masks(n).items():
            try:
                rows.append(measured(batch, n, name, mask.contiguous(), programs))
            except Exception:  # noqa: BLE001 - the table says so
                rows.append({"batch": batch, "length": n, "mask": name, "failed": traceback.format_exc().strip()})
            if given.json is not None:
                given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(table(rows) + "\n")
    sys.exit(any("failed" in row for row in rows))


if __name__ == "__main__":
    main()
