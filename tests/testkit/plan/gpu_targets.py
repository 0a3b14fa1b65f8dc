"""Every row of the benchmark on a GPU at its full size, compiled for every target; no GPU, and no memory of that size, is needed.

`PYTHONPATH=src:tests python -m testkit.plan.gpu_targets [ROW ...] [--target TARGET] [--folder FOLDER] [--workers N]` prints a
table of rows and targets: kernels, the most shared memory that a program of one takes and has, registers of a thread, bytes
spilled; or why it failed. What is done is kept in the folder, and not done again: 10 to 20 seconds of one core a row and target.

A row on a target fails where PyTorch is left with an operation, or a kernel asks for more shared memory than there is. Floats of
8 bits of kind e4m3 came after sm_80: such a row is left to PyTorch there, whose own product refuses it as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from weft.api.backend import compile_graph
from weft.api.compile import torch_compile
from weft.cost import gpu
from weft.lab.workloads import cpu as workloads
from weft.lab.workloads.gpu import ROWS
from weft.plan import Plan
from weft.run.gpu import Assembled
from weft.target import Target

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")
_NO_E4M3 = "has no float8_e4m3fn"
# Attention of the benchmark on a CPU with biases of other kinds; sizes: batch, heads, tokens, width.
_MORE = ("ALiBi", "soft-cap", "temperature")
_LONG = (4, 16, 4096, 128)


@dataclass(frozen=True, slots=True)
class Case:
    """A function to compile, and what it is called with: tensors whose memory nothing ever touches."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    def operands(self) -> tuple[torch.Tensor, ...]:
        """The tensors, without values."""
        return tuple(torch.empty(shape, dtype=dtype) for shape, dtype in self.shapes)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a row on a target.

    Attributes:
        shared, most_shared: bytes of shared memory that a program takes at most, and that there are.
        registers, spilled: of a thread, the most of any kernel; None where nothing says so.
        left: operations that PyTorch is left with, and why; failed: what was raised.
    """

    row: str
    target: str
    kernels: int = 0
    shared: int = 0
    most_shared: int = 0
    registers: int | None = None
    spilled: int | None = None
    left: tuple[str, ...] = ()
    failed: str = ""
    seconds: float = 0.0

    @property
    def expected(self) -> bool:
        """True where PyTorch runs it all because the target lacks a type."""
        return not self.failed and self.kernels == 0 and bool(self.left) and all(_NO_E4M3 in line for line in self.left)

    @property
    def ok(self) -> bool:
        """Compiled as a whole, within the target's limits; or known not to be possible there."""
        fits = self.kernels > 0 and self.shared <= self.most_shared and not self.left and not self.failed
        return fits or (self.expected and self.target == "cuda:80")

    def __str__(self) -> str:
        if self.expected:
            return "no e4m3"
        if self.failed or self.left:
            reasons: dict[str, str] = {}
            for operation, _, reason in (line.partition(": ") for line in self.left):
                reasons[reason] = f"{reasons[reason]}, {operation}" if reason in reasons else operation
            return f"FAILED {self.failed or '; '.join(f'{names}: {why}' for why, names in reasons.items())}"
        spilled = "" if not self.spilled else f" !{self.spilled} B"
        return f"{self.kernels}: {self.shared >> 10}/{self.most_shared >> 10} K, {self.registers or '?'}{spilled}"


def cases() -> dict[str, Case]:
    """Every row by name, and attention with biases that it has not."""
    found: dict[str, Case] = {}
    for row in ROWS:
        operands = row.example.operands(row.sizes(small=False))
        found[row.name] = Case(row.fn, tuple((o.shape, o.kept or row.dtype) for o in operands))
    for each in workloads.SUITE:
        kind = each.title.removeprefix("attention, ")
        for name, sizes in ((kind, each.full), (f"{kind}-long", _LONG)) if kind in _MORE else ():
            shapes = tuple((o.shape, o.kept or torch.bfloat16) for o in each.operands(sizes))
            found[name] = Case(each.make(sizes), shapes)
    return found


def plans_of(case: Case, target: Target) -> list[Plan]:
    """The plans of a case for `target`; nothing is run."""
    plans: list[Plan] = []

    def keep(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        plans.append(compile_graph(gm, example, target))
        results: Any = next(node for node in gm.graph.nodes if node.op == "output").args[0]
        return lambda *_: [None] * len(results)

    torch.compiler.reset()
    with torch.no_grad():
        torch_compile(case.fn, backend=keep, dynamic=False)(*case.operands())
    return plans


def compiled(row: str, case: Case, target: str) -> Compiled:
    """`case` compiled for `target`, with the binaries of its first calls."""
    found = Compiled(row, target, most_shared=gpu(Target.parse(target)).thread_block_bytes)
    began = time.perf_counter()
    try:
        plans = plans_of(case, Target.parse(target))
        every = [kernel.assembled() for plan in plans for kernel in plan.kernels if kernel.assembled is not None]
        binaries = [each for each in every if isinstance(each, Assembled)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's and is printed
        return replace(found, failed=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - began)
    used = [registers(binary) for binary in binaries]
    known = [each for each in used if each is not None]
    return replace(
        found,
        kernels=len(binaries),
        shared=max((binary.shared for binary in binaries), default=0),
        registers=max((r for r, _ in known), default=None),
        spilled=max((s for _, s in known), default=None),
        left=tuple(f"{f.operation}: {f.reason}" for plan in plans for f in plan.fallbacks),
        seconds=time.perf_counter() - began,
    )


def registers(binary: Assembled) -> tuple[int, int] | None:
    """Registers of a thread, and bytes of its memory that stand in for registers; None where no tool says so."""
    if binary.target.kind == "hip":
        counts = dict(re.findall(r"\.(vgpr_count|private_segment_fixed_size):\s+(\d+)", binary.assembly))
        return int(counts["vgpr_count"]), int(counts["private_segment_fixed_size"])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.binary)
        file.flush()
        tool: str = import_module("triton.knobs").nvidia.cuobjdump.path
        done = subprocess.run([tool, "-res-usage", file.name], check=False, capture_output=True, text=True)
    said = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", done.stdout)
    return None if said is None else (int(said[1]), int(said[2]) + int(said[3]))


def _one(given: tuple[str, str]) -> Compiled:
    torch.set_num_threads(1)
    return compiled(given[0], cases()[given[0]], given[1])


def _read(file: Path) -> Compiled:
    known: dict[str, Any] = json.loads(file.read_text())
    known["left"] = tuple(known["left"])
    return Compiled(**known)


def table(found: Sequence[Compiled]) -> Table:
    """Rows and targets; with what failed in words, below."""
    targets = [t for t in TARGETS if any(each.target == t for each in found)]
    shown = Table("row", *targets, title="kernels: shared memory of a program taken/there, registers, bytes spilled")
    cells = {(each.row, each.target): each for each in found}
    for row in dict.fromkeys(each.row for each in found):
        line = [cells.get((row, target)) for target in targets]
        shown.add_row(row, *("-" if c is None else str(c) if c.ok else "FAILED" for c in line))
    return shown


def main() -> int:
    """The command: 0 where every row is compiled for every target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--folder", type=Path, default=Path("gpu-targets"))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = given.rows or list(cases())
    wanted = {(n, t): given.folder / f"{n.replace(' ', '-')}.{t}.json" for n in names for t in given.target or TARGETS}
    missing = [each for each, file in wanted.items() if not file.exists()]
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=12) as pool:
        for done in pool.imap_unordered(_one, missing):
            print(f"{done.row} {done.target} {done.seconds:.0f} s: {done}", flush=True)
            wanted[done.row, done.target].write_text(json.dumps(asdict(done)))
    found = [_read(file) for file in wanted.values()]
    Console(width=150).print(table(found))
    failed = [each for each in found if not each.ok]
    for each in failed:
        print(f"{each.row} on {each.target}: {each}")
    print(f"{len(found) - len(failed)} of {len(found)} compiled")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
