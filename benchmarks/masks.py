"""Attention with masks that are tensors, beside FlexAttention and PyTorch's own attention with the mask.

    PYTHONPATH=src python benchmarks/masks.py [--quick] [--parts PART ...] [--seconds S] [--json FILE] [--plot FILE]
    PYTHONPATH=src python benchmarks/masks.py --of FILE --plot FILE

Patterns are the four of STOF's tables (a window, a dilated window, Longformer's and BigBird's, with windows and global rows
of the square root of the length, and BigBird's random blocks 32 wide at 10 %), and one of random elements, none of whose blocks
is empty; all are tensors of bools of rows by columns. 12 heads of 64 in bf16. weft is given the formula written out, twice: each
mask has a program of its own, made and tuned with that mask as the example ("weft"), and one program, made with the first
mask, serves all of a size ("one for all"). Both find out at each call which blocks are empty. FlexAttention's block mask is made
beforehand, and its time does not count. All are replayed as CUDA graphs, in turn, each sample of some milliseconds (short ones
several times in a graph: `mask_timing.replayed`); medians of 15 in microseconds. Errors are the largest beside fp64, over two
heads. The table comes last; exits with 1 where a row failed.

Other parts (`mask_parts.py`): time by density beside the floor of bytes and operations (`--plot` draws it, with `--of` that of an
earlier run), what finding out empty blocks takes by itself, the bytes that the cost model counts for masked means and logsumexp,
and the regret of what a quick search picks. Where
there is no GPU the parts run on the CPU, at small sizes, in fp32, without FlexAttention; regret is left out. `--parts window` is of
a CPU: attention in a window of 64 of 4,096, as a tensor and by indices, beside eager, Inductor and SDPA with the mask.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from mask_parts import PARTS, plotted, said
from mask_timing import DEVICE, Run, attention, masks, medians, operands, replayed
from torch import Tensor
from torch.nn.functional import max_pool2d, scaled_dot_product_attention

import weft
from weft.lab.measure import setting

BLOCK = 64
SIZES = ((1, 128), (1, 512), (8, 2048), (16, 4096))
ONE_FOR_ALL = "one for all"
EAGER = 512  # scores of longer sequences do not fit


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Run:
    """Compile FlexAttention with the block mask of `mask`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = mask.shape[-1]

    def kept(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[i, j]

    block = create_block_mask(kept, None, None, n, n, device=DEVICE)
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=block)


def errors(results: dict[str, Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> dict[str, float]:
    """Find the largest error of each result beside fp64, in the first two heads."""
    exact = attention(*(t[:1, :2].double() for t in (q, k, v)), mask)
    return {
        name: float(torch.nan_to_num((made[:1, :2].double() - exact).abs(), nan=math.inf).max())
        for name, made in results.items()
    }


def measured(batch: int, n: int, name: str, mask: Tensor, programs: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """Measure one row; `programs` has those of weft that serve all masks of a size, each made with the first."""
    q, k, v = operands(batch, n)
    blocks = max_pool2d(mask[None].float(), BLOCK, ceil_mode=True)
    said: dict[str, Any] = {"batch": batch, "length": n, "mask": name}
    said |= {"kept": float(mask.float().mean()), "blocks of 64": float(blocks.mean())}
    begin = time.perf_counter()
    program: Any = weft.optimize(attention, (q, k, v, mask))
    said["weft compiles, s"] = time.perf_counter() - begin
    shared = programs.setdefault((batch, n), program)
    said["fallbacks"] = [str(each) for each in program.fallbacks]
    said["kernels"] = [str(kernel.schedule).replace("\n", "; ") for kernel in program.kernels]
    said["judged"] = [kernel.judged for kernel in program.kernels]
    peers: dict[str, Run] = {
        "weft": lambda: program(q, k, v, mask),
        ONE_FOR_ALL: lambda: shared(q, k, v, mask),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask),
    }
    if DEVICE == "cuda":
        peers["flex"] = flex(q, k, v, mask)
    if n <= EAGER:
        peers["eager"] = lambda: attention(q, k, v, mask)
    said["errors"] = errors({which: run() for which, run in peers.items()}, q, k, v, mask)
    said["us"] = medians(replayed(peers))
    return said


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows as a table, and the geometric means of the patterns' ratios to the best peer, of both kinds of programs."""
    names = f"{'weft us':>10}{ONE_FOR_ALL:>13}{'flex':>9}{'sdpa':>9}{'best peer':>11}{'for all':>9}"
    lines = [f"{'mask':24}{'kept':>6}{'blocks':>8}{names}   error weft, sdpa"]
    logs: dict[str, list[float]] = {"weft": [], ONE_FOR_ALL: []}
    for row in rows:
        label = f"{row['mask']} {row['batch']}x{row['length']}"
        if "failed" in row:
            lines.append(f"{label:24} failed: {row['failed'].splitlines()[-1]}")
            continue
        us, off = row["us"], row["errors"]
        best = min(each for name, each in us.items() if name not in (*logs, "eager"))
        ratios = {name: us[name] / best for name in logs}
        for name, ratio in ratios.items() if row["mask"] != "random elements" else ():
            logs[name].append(math.log(ratio))
        peers = f"{us.get('flex', math.nan):9.1f}{us['sdpa']:9.1f}{ratios['weft']:11.2f}{ratios[ONE_FOR_ALL]:9.2f}"
        numbers = f"{row['kept']:6.3f}{row['blocks of 64']:8.3f}{us['weft']:10.1f}{us[ONE_FOR_ALL]:13.1f}{peers}"
        lines.append(
            f"{label:24}{numbers}   {off['weft']:.1e} {off['sdpa']:.1e}{'  FALLBACKS' * bool(row['fallbacks'])}"
        )
    if logs["weft"]:
        means = (f"{name} {math.exp(statistics.fmean(each)):.2f}" for name, each in logs.items())
        lines.append(f"geometric mean of the patterns: {', '.join(means)}")
    return "\n".join(lines)


def patterns(*, small: bool) -> Iterator[dict[str, Any]]:
    """Measure every mask at every size."""
    programs: dict[tuple[int, int], Any] = {}
    for batch, n in SIZES[:2] if small else SIZES:
        for name, mask in masks(n).items():
            try:
                yield measured(batch, n, name, mask.contiguous(), programs)
            except Exception:  # noqa: BLE001 - the table says so
                yield {"batch": batch, "length": n, "mask": name, "failed": traceback.format_exc().strip()}


def main() -> None:
    """Measure the parts, and write their rows as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="where to draw time against density")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many no row is begun")
    parser.add_argument("--parts", nargs="+", choices=("patterns", *PARTS), default=("patterns", *PARTS))
    parser.add_argument("--of", type=Path, help="draw the plot of this run's results, and measure nothing")
    given = parser.parse_args()
    if given.of is not None:
        rows = json.loads(given.of.read_text(encoding="utf-8")).get("density")
        if given.plot is None or not rows:
            parser.error("--of takes a file of --parts density, and --plot says where to draw it")
        sys.exit(None if plotted(rows, given.plot) else "matplotlib is not installed")
    end = time.monotonic() + given.seconds
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    about = {"setting": asdict(setting()), "device": name}
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in given.parts}
    failed = False
    for part in given.parts:
        made = {"patterns": patterns, **PARTS}[part](small=given.quick or DEVICE == "cpu")
        while time.monotonic() < end:
            try:
                row = next(made, None)
            except Exception:  # noqa: BLE001 - the other parts are measured all the same
                row, made = {"failed": traceback.format_exc().strip()}, iter(())
            if row is None:
                break
            failed = failed or "failed" in row
            found[part].append(row)
            if part != "patterns":
                sys.stdout.write(said(part, row) + "\n")
            if given.json is not None:
                rows = found.get("patterns", [])
                parts = {name: each for name, each in found.items() if name != "patterns"}
                given.json.write_text(json.dumps({**about, "rows": rows, **parts}, indent=1) + "\n", encoding="utf-8")
        else:
            sys.stdout.write(f"{part}: no time for all of it\n")
    if given.plot is not None and found.get("density") and not plotted(found["density"], given.plot):
        sys.stdout.write("matplotlib is not installed: the rows are the table\n")
    sys.stdout.write(table(found["patterns"]) + "\n" if "patterns" in found else "")
    sys.exit(failed)


if __name__ == "__main__":
    main()
