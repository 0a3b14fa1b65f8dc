"""What masks cost beyond patterns: time by density, regret of the choice, what building summaries takes, counted bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from mask_timing import DEVICE, DTYPE, HEADS, WIDTH, Run, attention, blocks, masks, medians, operands, replayed
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.cost import gpu
from weft.lab.measure import compare
from weft.plan import home
from weft.plan.targets import toolchain
from weft.tensor.dtypes import DType

Row = dict[str, Any]

DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0)
_COUNTED = (0.01, 0.1, 0.5, 1.0)
_CALLS, _WINDOW = 20, 64
# Exponentials that a multiprocessor of NVIDIA's makes in a cycle, and the fewest instructions of a score between the matmuls.
_SPECIAL, _ISSUED = 16, 5


def by_density(*, small: bool) -> Iterator[Row]:
    """Time attention over random blocks of 64, of rising density, beside its floor.

    One program, compiled with a tenth of the blocks, takes all masks; FlexAttention is compiled once as well.
    """
    batch, n = (1, 512) if small else (4, 4096)
    q, k, v = operands(batch, n)
    program = weft.optimize(attention, (q, k, v, blocks(n, n, 0.1)))
    flex = None if DEVICE == "cpu" else _flex(q, k, v)
    for density in DENSITIES:
        mask = blocks(n, n, density)
        runs: dict[str, Run] = {
            "weft": lambda mask=mask: program(q, k, v, mask),
            "sdpa": lambda mask=mask: scaled_dot_product_attention(q, k, v, attn_mask=mask),
        }
        if flex is not None:
            runs["flex"] = flex(mask)
        share = float(mask[::64, ::64].float().mean())
        us = medians(replayed(runs))
        yield {"batch": batch, "length": n, "density": share, "us": us} | _bounds(q, mask, share)


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Callable[[Tensor], Run]:
    """Compile FlexAttention once: the function of its mask reads one tensor, into which each mask is copied."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = q.shape[-2]
    held = torch.zeros(n, n, dtype=torch.bool, device=DEVICE)
    compiled: Any = torch.compile(flex_attention, dynamic=False)

    def kept(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return held[i, j]

    def of(mask: Tensor) -> Run:
        held.copy_(mask)
        found = create_block_mask(kept, None, None, n, n, device=DEVICE)
        return lambda: compiled(q, k, v, block_mask=found)

    return of


def _bounds(q: Tensor, mask: Tensor, share: float) -> Row:
    """Say in microseconds what attention over the blocks that count takes at least, and what it takes if its units work in turn.

    "floor us": a launch, and every byte once or the matmuls, whichever takes longer. "in turn us", for a GPU: the same with the
    matmuls and after these what lies between them: of each score one exponential, and five instructions to be issued for it (the
    factor and the difference from the maximum in one, the maximum, the exponential, the sum, and half of a conversion to bf16
    and half of a rescaling). It is no floor: the two overlap where several thread blocks, or warps with work of their own, share
    a multiprocessor.
    """
    machine = toolchain(home((q,))).machine(torch.get_num_threads())
    moved = 4 * q.numel() * q.element_size() + mask.numel()
    scores = q.numel() // q.shape[-1] * mask.shape[-1] * share
    rate = machine.matrix_rate(DType.bfloat16 if DTYPE is torch.bfloat16 else DType.float32)
    matmuls = 4 * scores * q.shape[-1] / rate
    moving = moved / machine.holding(moved).bytes_per_second
    found: Row = {"floor us": 1e6 * (machine.launch_seconds + max(moving, matmuls))}
    if DEVICE == "cuda":
        chip = gpu(home((q,)))
        cycles = chip.multiprocessors * chip.hertz
        between = scores * max(1 / (_SPECIAL * cycles), _ISSUED / (chip.lanes * cycles))
        found["in turn us"] = 1e6 * (machine.launch_seconds + max(moving, matmuls + between))
    return found


def plotted(rows: list[Row], path: Path) -> bool:
    """Draw times against density, if matplotlib is installed; tells whether it is."""
    try:
        import matplotlib as mpl
        from matplotlib import pyplot
    except ImportError:
        return False
    mpl.rcParams.update({"svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    figure, axes = pyplot.subplots()
    density = [row["density"] for row in rows]
    for name in rows[0]["us"]:
        axes.plot(density, [row["us"][name] for row in rows], marker="o", label=name)
    axes.plot(density, [row["floor us"] for row in rows], linestyle="--", label="floor")
    if "in turn us" in rows[0]:
        axes.plot(density, [row["in turn us"] for row in rows], linestyle=":", label="units in turn")
    axes.set(xlabel="share of blocks that count", ylabel="microseconds", xscale="log", yscale="log")
    axes.legend()
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata)
    return True


def regret(*, small: bool) -> Iterator[Row]:
    """Time what is picked after a quick search beside the best of a full one, on Longformer's mask; on a GPU alone."""
    lengths, batches = ((128, 512), (1,)) if small else ((128, 256, 512, 1024, 2048, 4096), (1, 4, 16))
    for n in lengths if DEVICE == "cuda" else ():
        mask = masks(n)["longformer"].contiguous()
        for batch in batches:
            q, k, v = operands(batch, n)
            programs: dict[str, Any] = {}
            for effort in ("quick", "full"):
                with weft.options(effort=effort):
                    programs[effort] = weft.optimize(attention, (q, k, v, mask))
            given = (q, k, v, mask)
            runs = replayed({name: functools.partial(each, *given) for name, each in programs.items()})
            us = medians(runs)
            picked = [str(kernel.schedule).replace("\n", "; ") for kernel in programs["quick"].kernels]
            yield {"batch": batch, "length": n, "us": us, "regret": us["quick"] / min(us.values()), "picked": picked}


def summaries(*, small: bool) -> Iterator[Row]:
    """Time what finds out which blocks of a mask are empty: weft's launch before, `weft.block_mask`, and PyTorch's own."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch, n = (1, 512) if small else (16, 4096)
    mask = masks(n)["longformer"].contiguous()

    def kept(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask[i, j]

    us = medians(
        {
            "weft.block_mask": lambda: weft.block_mask(mask),
            "create_block_mask": lambda: create_block_mask(kept, None, None, n, n, device=DEVICE),
        }
    )
    yield {"batch": batch, "length": n, "us": us | (_launches(batch, n, mask) if DEVICE == "cuda" else {})}


def _launches(batch: int, n: int, mask: Tensor) -> dict[str, float]:
    """Return the microseconds of each kernel of a call, by name: the one that reads the mask alone comes first.

    The host waits after each call. Kernels start early, and wait for the one before them: in a row of calls the first one's time
    is mostly that of the second one of the call before. The second one's still contains the first one's.
    """
    q, k, v = operands(batch, n)
    program = weft.optimize(attention, (q, k, v, mask))
    program(q, k, v, mask)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_CALLS):
            program(q, k, v, mask)
            torch.cuda.synchronize()
    events: Any = profile.key_averages()
    return {f"kernel {each.key}": each.device_time_total / each.count for each in events if each.device_time_total}


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of what a mask keeps of each row."""
    return torch.where(mask, x, 0.0).sum(-1) / mask.sum(-1)


def log_sums(x: Tensor, mask: Tensor) -> Tensor:
    """Compute the logarithm of the sum of the exponentials of what a mask keeps of each row."""
    return torch.logsumexp(x.masked_fill(~mask, -math.inf), -1)


def of_scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """Compute the same of the scores of attention, which are made of factors that are smaller than the mask."""
    return torch.logsumexp((q @ k.mT).masked_fill(~mask, -math.inf), -1)


def counted(*, small: bool) -> Iterator[Row]:
    """Count the bytes that masked means and masked logsumexp move, as the cost model has them, beside those of a dense mask."""
    n = 1024 if small else 4096
    x = torch.randn(n, n, device=DEVICE)
    q, k = (torch.randn(n, WIDTH, device=DEVICE, dtype=DTYPE) for _ in range(2))
    given: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "mean": (mean, (x,)),
        "log_sums": (log_sums, (x,)),
        "log_sums of scores": (of_scores, (q, k)),
    }
    for name, (f, inputs) in given.items():
        moved: dict[float, int] = {}
        for density in reversed(_COUNTED):
            program = weft.optimize(f, (*inputs, blocks(n, n, density)))
            costs = [kernel.cost for kernel in program.kernels]
            moved[density] = sum((c.device_read + c.device_written) or (c.bytes_read + c.bytes_written) for c in costs)
            yield {
                "function": name,
                "length": n,
                "density": density,
                "bytes": moved[density],
                "of dense": moved[density] / moved[1.0],
            }


def by_index(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention in a window of 64, written with indices; `mask` says the same, and is not read."""
    at = torch.arange(mask.shape[-1])
    far = (at[:, None] - at[None, :]).abs() > _WINDOW
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(far, -math.inf), -1) @ v


def window(*, small: bool) -> Iterator[Row]:
    """Time attention in a window on a CPU, in 1x8x4096x64 however `small` the rest is: fp32, medians, calls in turn.

    weft has the mask as a tensor, and as conditions of indices, whose results are the same.
    """
    del small
    if DEVICE != "cpu":
        return
    n = 4096
    at = torch.arange(n)
    mask = (at[:, None] - at[None, :]).abs() <= _WINDOW

    def given(number: int) -> tuple[Tensor, ...]:
        random = torch.Generator().manual_seed(number)
        return *(torch.randn(1, 8, n, 64, generator=random) for _ in range(3)), mask

    calls: dict[str, Callable[..., Any]] = {
        "weft": weft.optimize(attention, given(0)),
        "by indices": weft.optimize(by_index, given(0)),
        "Inductor": torch.compile(attention),
        "eager": attention,
        "sdpa": lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, attn_mask=mask),
    }
    with torch.no_grad():
        us = {name: timing.median_ms * 1e3 for name, timing in compare(calls, given, 15, 2).items()}
        wanted = attention(*given(7))
        far = {
            f"off by, {name}": float((calls[name](*given(7)) - wanted).abs().max()) for name in ("weft", "by indices")
        }
    best = min(us[name] for name in ("Inductor", "eager", "sdpa"))
    ratios = {f"{name} by the best peer": us[name] / best for name in ("weft", "by indices")}
    yield {"length": n, "heads": 8, "us": us} | ratios | far


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    "density": by_density,
    "summaries": summaries,
    "bytes": counted,
    "regret": regret,
    "window": window,
}


def said(part: str, row: Row) -> str:
    """Write a row as a line."""
    us = "  ".join(f"{name} {value:.1f} us" for name, value in row.get("us", {}).items())
    rest = {key: value for key, value in row.items() if key not in ("us", "picked", "heads")}
    words = "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in rest.items()
    )
    return f"{part}: {words}  {us}  ({row.get('heads', HEADS)} heads)" if us else f"{part}: {words}"
