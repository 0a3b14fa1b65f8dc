"""Placed programs in the machine's arithmetic: the interpreter in float32, and printed kernels, on hard inputs under one rule.

`PYTHONPATH=src:tests python -m testkit.emit.machine --random 50` tries random programs under random schedules, on inputs of all
regimes of the judge (infinities, NaN, ties, rows far apart) that lie in memory in any order and with gaps.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from testkit.emit.comparing import laid_out
from testkit.emit.harness import compiled, dims_of, torch_type
from testkit.emit.triton_cases import carried, poisoned
from testkit.emit.triton_programs import load
from testkit.mutants.fates import Subject, in_machine_arithmetic, rounded_to
from testkit.mutants.subjects import random_subjects
from weft.block.program import BlockProgram
from weft.errors import UnsupportedError
from weft.tensor.domain import Array
from weft.verify.cases import Case
from weft.verify.emitted import ErrorTally

TARGETS = ("interpreter", "cpu", "numpy")
"""Where programs run; beside these "triton", in a process with TRITON_INTERPRET=1."""

Run = Callable[[Case], list[Array]]


def findings(
    subject: Subject, folder: Path, targets: Sequence[str] = TARGETS, applied: BlockProgram | None = None
) -> Iterator[tuple[str, str | None]]:
    """Yields, for each of `targets`, what is wrong with the results of a placed program there, in words; None: nothing.

    What Triton kernels do not do is not run there. `applied` may be another program, with the subject's sizes and inputs.
    """
    for target in targets:
        try:
            run = _on(target, subject, applied or subject.applied, folder)
        except UnsupportedError:
            continue
        tally = ErrorTally(subject.program)
        for case in subject.hard[:: 3 if target == "triton" else 1]:
            tally.add(case, run(case))
        yield target, tally.verdict()


def _on(target: str, subject: Subject, applied: BlockProgram, folder: Path) -> Run:
    """Returns what runs a subject on a case; inputs of printed kernels lie in memory somehow."""
    program, rng = subject.program, random.Random(subject.name)
    if target == "interpreter":
        return lambda case: in_machine_arithmetic(program, applied, case)
    kinds = {n.name: torch_type(n.dtype) for n in program.inputs}
    dtypes = [program.values()[name].dtype for name in program.outputs]
    native = None if target == "triton" else compiled([applied], folder, quickly=True, target=target)[0]
    loaded = load(applied, dims_of(applied), folder) if target == "triton" else None

    def run(case: Case) -> list[Array]:
        inputs = {n: laid_out(torch.from_numpy(np.asarray(v)).to(kinds[n]), rng) for n, v in case.inputs.items()}
        if native is not None:
            found = native(inputs, dict(case.sizes))
        else:
            assert loaded is not None
            found = loaded.prepare(inputs, dict(case.sizes), allocate=poisoned)()
        return [rounded_to(carried(t), dtype) for t, dtype in zip(found, dtypes, strict=True)]

    return run


def main() -> int:
    """Prints what is wrong; 1 where anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=20, help="random programs")
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=(*TARGETS, "triton"))
    given = parser.parse_args()
    wrong = 0
    for subject in random_subjects(range(given.seed, given.seed + given.random)):
        with tempfile.TemporaryDirectory() as folder:
            for target, said in findings(subject, Path(folder), given.targets):
                wrong += said is not None
                sys.stdout.write(f"{subject.name}, {target}: {said or 'right'}\n")
                sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
