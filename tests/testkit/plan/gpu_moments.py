"""Rows that are constant, and squares that overflow, in kernels for a GPU, in Triton's interpreter: run by itself.

`python gpu_moments.py 1`, with TRITON_INTERPRET=1, prints for each function and width what became of it, as JSON.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable

import torch
from torch.nn import functional

import weft
from weft.verify.judge import judge, reference

WIDTHS = (96, 3000)
CONSTANT, ORDINARY = slice(0, 2), slice(2, None)

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "layer_norm before a product": lambda x: functional.layer_norm(x, x.shape[-1:]) @ x.T,
    "group_norm": lambda x: functional.group_norm(x.unsqueeze(1), 1),
    "variance": lambda x: x.var(-1),
}


def right(function: Callable[[torch.Tensor], torch.Tensor], width: int) -> bool:
    """Tells whether a kernel gives 0 for constant rows, what eager gives for others, and infinity where squares overflow."""
    x = torch.randn(6, width)
    x[0], x[1], x[2] = 1000.3, 12345.678, x[2] + 1e4
    program = weft.optimize(function, (x,), target="cuda:90")
    out, eager, exact = program(x), function(x), reference(function, (x,))
    assert isinstance(exact, torch.Tensor)
    kept = bool((out[CONSTANT] == 0).all()) and judge(out[ORDINARY], eager[ORDINARY], exact[ORDINARY]).ok
    infinite = out.ndim > 1 or bool((program(torch.randn(6, width) * 1e25) == math.inf).all())
    return kept and infinite and bool(program.kernels) and not program.fallbacks


def main() -> None:
    """Tells for every so many functions and widths, as the argument says, whether it is right."""
    torch.manual_seed(0)
    cases = [(name, width) for name in FUNCTIONS for width in WIDTHS]
    print(
        json.dumps(
            {
                f"{name} {width}": right(FUNCTIONS[name], width)
                for name, width in cases[int(sys.argv[1]) // 2 :: int(sys.argv[1])]
            }
        )
    )


if __name__ == "__main__":
    main()
