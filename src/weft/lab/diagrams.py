"""Draws the diagrams of `docs/guide/reports.md`: `python -m weft.lab.diagrams docs/guide/diagrams`.

Functions are compiled for a GPU that need not be there, by the model's choice, so that the pictures are the same on any machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from weft.api.optimize import optimize
from weft.api.program import Program
from weft.block.program import BlockProgram
from weft.draw import Diagram, diagram, diagrams, svg
from weft.lab.examples import ExampleFunction, Sizes
from weft.lab.workloads import cpu
from weft.pipeline import replayed
from weft.plan import CompiledRegion
from weft.tensor.program import TensorProgram

DRAWN: Mapping[str, tuple[ExampleFunction, Sizes]] = {
    "attention": (cpu.ATTENTION, (1, 8, 4096, 64)),
    "grouped-query-attention": (
        ExampleFunction("grouped-query attention", lambda _: cpu.grouped_attention, cpu.queries_and_keys),
        (1, 8, 2, 4096, 4096, 64),
    ),
    "layernorm-matmul": (cpu.LAYERNORM, (4096, 1024, 1024)),
    "rmsnorm-swiglu": (cpu.RMSNORM, (4096, 1024, 2816)),
}
"""By the names of their files: what is drawn, and the sizes for which kernels are chosen."""


def drawn(name: str) -> Iterator[tuple[str, Diagram]]:
    """Yield the pictures of the function called `name` in `DRAWN`: (name of the file, diagram)."""
    example, sizes = DRAWN[name]
    inputs = example.inputs(sizes, torch.bfloat16, 0)
    program = optimize(example.make(sizes), inputs, target="cuda:90", effort="none", judge="off")
    regions = _regions(program)
    for i, region in enumerate(regions, 1):
        number = f"-{i}" if len(regions) > 1 else ""
        for change in replayed(region.program, region.trace):
            if isinstance(change.before, TensorProgram) and isinstance(change.after, BlockProgram):
                title = f"{example.title} before fusion: every operation takes its data from device memory"
                yield f"{name}-before{number}.svg", diagram(change.after, title=title)
        parts = diagrams(region.kernels[0].block_program, f"{example.title} after fusion")
        for j, part in enumerate(parts, 1):
            yield f"{name}-after{number}{f'-{j}' if len(parts) > 1 else ''}.svg", part


def _regions(program: Program) -> list[CompiledRegion]:
    return [region for plan in program.plans for region in plan.regions if region.kernels]


def main(folder: Path) -> None:
    """Write all pictures to `folder`, and remove others that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name in DRAWN:
        for file, picture in drawn(name):
            (folder / file).write_text(svg(picture), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
