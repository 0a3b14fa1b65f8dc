"""Products with rows of few elements for a GPU, in Triton's interpreter, which is chosen at import: run by itself.

`python gpu_narrow.py 1`, with TRITON_INTERPRET=1, prints for each program and width (with 2: every second one) what became of it,
as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.lab.gpu.row import tensors
from weft.verify.judge import judge, reference

WIDTHS = (2, 4, 8)
"""A power of two that is less than what a block of a product takes: as many as the least block of them without a product."""

Made = Callable[[int], tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]

ROWS = 24


def _product(fn: Callable[..., Any]) -> Made:
    """`fn` of x @ w, which has rows of `width`."""
    return lambda width: (lambda x, w: fn(x @ w, width), (torch.randn(ROWS, 32), torch.randn(32, width)))


def _attention(width: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    return lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, tuple(torch.randn(2, ROWS, width) for _ in range(3))


PROGRAMS: dict[str, Made] = {
    "logsumexp": _product(lambda s, width: torch.logsumexp(s, -1)),
    "softmax": _product(lambda s, width: torch.softmax(s, -1)),
    "topk": _product(lambda s, width: torch.softmax(s, -1).topk(2)),
    "rms_norm": _product(lambda s, width: torch.nn.functional.rms_norm(s, (width,))),
    "attention": _attention,
}


def main() -> None:
    """Tells for every so many programs and widths, as the argument says, whether kernels computed it, and its results are right."""
    torch.manual_seed(0)
    found: dict[str, bool] = {}
    cases = [(name, width) for name in PROGRAMS for width in WIDTHS]
    for name, width in cases[:: int(sys.argv[1])]:
        fn, inputs = PROGRAMS[name](width)
        program = weft.optimize(fn, inputs, target="cuda:90")
        out, eager = tensors(program(*inputs)), tensors(fn(*inputs))
        exact = tensors(reference(fn, inputs))
        right = all(
            judge(a, b, c).ok if b.is_floating_point() else torch.equal(a, b)
            for a, b, c in zip(out, eager, exact, strict=True)
        )
        found[f"{name} {width}"] = right and bool(program.kernels) and not program.fallbacks
    print(json.dumps(found))


if __name__ == "__main__":
    main()
