"""Scans in Triton's interpreter beside weft's own; run by itself: `python triton_scans.py FOLDER`, with TRITON_INTERPRET=1,
prints for each case what differs, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from testkit.block.scans import (
    M,
    N,
    between,
    fused,
    log_sums,
    log_sums_of_a_row,
    recurrence,
    row,
    scan,
    twice,
)
from testkit.emit.harness import dims_of, torch_type
from testkit.emit.triton_cases import GRID, LOOP, SPLIT, WHOLE, levels, poisoned
from testkit.emit.triton_programs import load
from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.schedule import Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Monoid, TensorProgram

SIZES = ((5, 37), (1, 1), (8, 64), (3, 16))


def programs() -> dict[str, TensorProgram]:
    """The programs, by name: each monoid, each kind of elements, both directions, and what is fused with a scan."""
    found = {f"{monoid.name} along {over}": scan(monoid, over=over) for monoid in Monoid for over in (M, N)}
    found |= {f"sum of {d}": scan(Monoid.sum, d) for d in (DType.bfloat16, DType.int64, DType.int32, DType.bool)}
    found |= {f"{m.name} of int64": scan(m, DType.int64) for m in (Monoid.prod, Monoid.max, Monoid.min)}
    found |= {f"log sums along {over}": log_sums(over=over) for over in (M, N)}
    found |= {f"recurrence along {over}": recurrence(over=over) for over in (M, N)}
    return found | {"between": between(), "between columns": between(M), "twice": twice()}


def placed(program: BlockProgram, rng: random.Random) -> BlockProgram:
    """`program` with the loops without state on the grid, the scans in blocks or whole."""
    chosen = {
        node.name: levels((GRID, rng.choice((4, 8))))
        if node.state is None
        else levels(WHOLE if rng.random() < 0.3 else (LOOP, rng.choice((8, 16))))
        for node in maps(program.graph)
    }
    return apply(program, Schedule(tuple(chosen.items())))


def difference(program: BlockProgram, sizes: dict[str, int], folder: Path, rng: random.Random) -> str:
    """Say what of a scan is not as the interpreter has it: of integers, and of whole floats below 2^24, to the last bit; of others
    within a few roundings.
    """
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    inputs: dict[str, torch.Tensor] = {}
    for name, kind in program.inputs:
        shape = [a.space.size(sizes) for a in kind.lists]
        small = numbers.integers(-2, 3, shape)
        inputs[name] = torch.from_numpy(np.where(small == 0, 1, small)).to(torch_type(kind.dtype))
    exact = {
        n: t.double().numpy() if t.is_floating_point() else t.numpy() if t.dtype is torch.bool else t.long().numpy()
        for n, t in inputs.items()
    }
    wanted, _ = interpret(program, exact, sizes, Fp64Domain())
    found = load(program, dims_of(program), folder).prepare(inputs, sizes, allocate=poisoned)()
    for place, (a, b) in enumerate(zip(wanted, found, strict=True)):
        own = b.double().numpy() if b.is_floating_point() else b.numpy()
        whole = np.array_equal(a, np.round(a)) and np.abs(a).max(initial=0) < 2**24
        if not (np.array_equal(a, own) if whole else np.allclose(own, a, rtol=1e-5, atol=1e-5)):
            return f"output {place} at {sizes}: {b.flatten()[:6].tolist()} for {a.flatten()[:6].tolist()}"
    return ""


def in_segments(program: BlockProgram, parts: int, together: int = 1) -> BlockProgram:
    """`program` with each scan in so many segments; with several merged `together`, each merges those before it by itself."""
    chosen = {
        node.name: levels((GRID, 4)) if node.state is None else levels((SPLIT, parts), (LOOP, 8))
        for node in maps(program.graph)
    }
    return apply(program, Schedule(tuple(chosen.items()), together=together))


SEGMENTS = ((2, 1), (7, 1), (7, 4), (5, 8), (8, 4))
"""Segments of a scan, and how many are merged at once."""


def found_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each case's name and what differs, "" where nothing does."""
    rng = random.Random(11)
    for name, tensors in programs().items():
        for m, n in SIZES:
            made = placed(fused(tensors, doubles=False), rng)
            yield f"{name}, {m} x {n}", difference(made, {"M": m, "N": n}, folder, rng)
    cut = {"log sums": (log_sums_of_a_row(), [log_sums(over=M)], ["m"])}
    for monoid in set(Monoid) - {Monoid.prod}:  # of floats
        cut[monoid.name] = row(monoid), [scan(monoid, over=axis) for axis in (M, N)], ["m", "n"]
    for name, (alone, others, axes) in cut.items():
        for number, (parts, together) in enumerate(SEGMENTS):
            said = f"in {parts} segments by {together}"
            made = in_segments(fused(alone, doubles=False), parts, together)
            yield f"{name} {said}", difference(made, {"N": 45}, folder, rng)
            which = number % len(others)
            made = in_segments(fused(others[which], doubles=False), parts, together)
            yield f"{name} along {axes[which]} {said}", difference(made, {"M": 21, "N": 45}, folder, rng)


if __name__ == "__main__":
    print(json.dumps(dict(found_in(Path(sys.argv[1])))))
