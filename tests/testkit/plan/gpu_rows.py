"""Rows of the benchmark on a GPU, at small sizes, in Triton's interpreter, which is chosen at import: run by itself.

`python gpu_rows.py NAME ...`, with TRITON_INTERPRET=1, prints for each row what became of it, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import weft
from weft.lab.gpu.row import tensors
from weft.lab.measure import settle
from weft.lab.workloads.gpu import ROWS, Workload
from weft.verify.judge import judge, reference


def small(
    row: Workload, number: int = 0, device: torch.device | str = "cpu"
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the function of `row`, and operands at its small sizes."""
    return row.fn, row.inputs(row.example.quick, number, device)


def main(names: list[str]) -> None:
    """For each row: its kernels, what is left to PyTorch, and whether its floating results are right."""
    settle()
    rows = {row.name: row for row in ROWS}
    found: dict[str, dict[str, object]] = {}
    for name in names:
        row = rows[name]
        fn, inputs = small(row)
        program = weft.optimize(fn, inputs, target="cuda:90")
        out, eager = tensors(program(*inputs)), tensors(fn(*inputs))
        exact = tensors(reference(row.exact or fn, inputs))
        floats = [i for i, each in enumerate(eager) if each.is_floating_point()]
        right = all(judge(out[i], eager[i], exact[i]).ok for i in floats)
        left = [str(f) for f in program.fallbacks]
        found[name] = {"kernels": len(program.kernels), "left": left, "right": right}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
