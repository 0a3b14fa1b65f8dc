"""Reductions over any dimensions on a GPU, at small sizes, in Triton's interpreter, which is chosen at import: run by itself.

`python gpu_reductions.py SEED NAME ...`, with TRITON_INTERPRET=1, prints for each what became of it, as JSON. Blocks are a few
elements, so that every loop is tiled, and predicted times are random, so that every cut, nest and number of segments comes up.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import starmap
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

import weft
from weft.cost import Cost, Gpu, gpu_model
from weft.lab.gpu.row import tensors
from weft.lab.measure import settle
from weft.plan.targets.triton import choices as gpu_choices
from weft.verify.judge import judge, reference

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers, the same in each run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the moments of each channel."""
    return x.mean((0, 2, 3)), x.var((0, 2, 3))


def crossed(x: torch.Tensor) -> torch.Tensor:
    """Sums along some dimensions beside maxima along others."""
    return x - x.amax((1, 3, 4), keepdim=True) + x.sum((0, 2), keepdim=True)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Each pair of trailing rows by its own moments, then summed over channels."""
    centred = x - x.mean((2, 3), keepdim=True)
    return (centred * torch.rsqrt(centred.pow(2).mean((2, 3), keepdim=True) + 1e-5)).abs().sum(1)


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A sum, by its moments over three dimensions."""
    return functional.layer_norm(x + y, x.shape[1:])


def exponentials(x: torch.Tensor) -> torch.Tensor:
    """A softmax over two dimensions."""
    return torch.exp(x - torch.logsumexp(x, (1, 2), keepdim=True))


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    """Over channels, which lie across memory."""
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def cases() -> dict[str, Case]:
    """By name."""
    box = (4, 6, 7)
    groups = randn(2, 6, 5, 7), randn(6), randn(6)
    return {
        "layer norm of three": (
            lambda x, w, b: functional.layer_norm(x, box, w, b),
            (randn(3, *box), randn(*box), randn(*box)),
        ),
        "rms of channels": (root_mean_square, (randn(2, 5, 7, 9),)),
        "group norm": (lambda x, w, b: functional.group_norm(x, 2, w, b), groups),
        "one group": (lambda x: functional.group_norm(x, 1), (randn(1, 3, 9, 5, dtype=torch.bfloat16),)),
        "moments of channels": (moments, (randn(3, 4, 5, 6),)),
        "moments of all": (torch.var_mean, (randn(7, 13, 9),)),
        "mean square": (lambda x, y: ((x - y) ** 2).mean(), (randn(5, 3, 6, 7), randn(5, 3, 6, 7) + 1)),
        "softmax of channels": (lambda x: torch.log_softmax(x, 1), (randn(2, 5, 6, 3),)),
        "softmax of rows": (lambda x: torch.softmax(x, 0), (randn(37, 6),)),
        "softmax of two": (exponentials, (randn(3, 5, 9, dtype=torch.float16),)),
        "maxima of two": (lambda x: x.amax((1, 3)), (randn(3, 5, 4, 6),)),
        "crossed": (crossed, (randn(2, 3, 4, 3, 5),)),
        "fed on": (normalised, (randn(2, 3, 5, 6),)),
        "by its length": (lambda x: x / x.norm(), (randn(19, 21),)),
        "places of maxima": (lambda x: x.argmax(1), (randn(3, 11, 5),)),
        "added, then normalised": (added, (randn(2, 3, 5, 6), randn(2, 3, 5, 6) + 1)),
    }


def is_right(out: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """By the error rule; of indices, all."""
    return judge(out, eager, exact).ok if eager.is_floating_point() else torch.equal(out, eager)


def main(seed: int, names: list[str]) -> None:
    """For each case: how many kernels it has, what is left to PyTorch, and whether it is right."""
    settle()
    rng = random.Random(seed)
    cost = gpu_model.Launch.cost

    def at_random(launch: gpu_model.Launch, chip: Gpu, warps: int, stages: int) -> Cost:
        return replace(cost(launch, chip, warps, stages), predicted_seconds=rng.random())

    found: dict[str, dict[str, object]] = {}
    with (
        mock.patch.object(gpu_model.Launch, "cost", at_random),
        mock.patch.object(gpu_choices, "_SHARED", (4, 16, 32)),
        mock.patch.object(gpu_choices, "_ALONG", (0, 2, 4)),
        mock.patch.object(gpu_choices, "segment_counts", return_value=(1, 2, 3)),
    ):
        for name in names:
            fn, inputs = cases()[name]
            program = weft.optimize(fn, inputs, target="cuda:90", effort="none")
            results = zip(*map(tensors, (program(*inputs), fn(*inputs), reference(fn, inputs))), strict=True)
            left = [str(f) for f in program.fallbacks]
            found[name] = {"kernels": len(program.kernels), "left": left, "right": all(starmap(is_right, results))}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(cases()))
