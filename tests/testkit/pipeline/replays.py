"""Traces of the benchmark list, applied again to the captured programs.

    PYTHONPATH=src:tests python -m testkit.pipeline.replays [--target cuda:90] [--only ROW ...]

Each row of `weft bench`, or of `weft bench --device cuda` for another target than this CPU, is planned in each of its element
types; nothing is compiled or run. Exits with 1 if a trace does not give the programs that were built.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch

import weft
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.lab.workloads.cpu import SUITE
from weft.lab.workloads.gpu import ROWS
from weft.pipeline import replayed
from weft.plan import Plan
from weft.plan.execute import plan as executable
from weft.plan.execute import regions
from weft.plan.targets.candidates import Selection
from weft.plan.targets.compiled import CompiledRegion
from weft.tensor.laws import part
from weft.tensor.passes import Step


class _PlannedError(BaseException):
    """A graph is planned. Nothing catches it on the way: neither weft nor PyTorch goes on."""


def planned(target: str, only: Sequence[str] = ()) -> Iterator[tuple[str, Plan]]:
    """Yields the plan of each example of the benchmark list for `target`, in each of its element types, with a name."""
    for example in SUITE if target == "cpu" else (row.example for row in ROWS):
        for dtype in example.dtypes if not only or example.title in only else ():
            function = example.make(example.full)
            if isinstance(function, torch.nn.Module):
                function = function.to(dtype).eval()
            with (
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
                torch.no_grad(),
                _only_planned() as plans,
            ):
                inputs = example.inputs(example.full, dtype, 0)
                with suppress(_PlannedError):
                    weft.optimize(function, inputs, target=target, cache_dir=folder, judge="off")
            for plan in plans:
                yield f"{example.title}, {str(dtype).removeprefix('torch.')}", plan


def rebuilt(program: Any, steps: Iterable[Step]) -> list[BlockProgram]:
    """Apply `steps` again, and return the block programs that they end in, one for each region, in canonical names."""
    ends: list[Any] = []
    for change in replayed(program, steps):
        if not ends or change.rule == part.name:
            ends.append(None)
        ends[-1] = change.after
    return [canonical(each) for each in ends if isinstance(each, BlockProgram)]


@contextmanager
def _only_planned() -> Generator[list[Plan]]:
    """Stops compilers and checks, and all that comes after a plan."""
    plans: list[Plan] = []

    def made(*args: Any, **options: Any) -> Plan:
        plans.append(Plan(*args, **options))
        raise _PlannedError

    def unbuilt(selection: Selection, *_: Any) -> CompiledRegion:
        one = selection.chosen
        considered, sizes = selection.considered, selection.example.sizes
        return CompiledRegion(selection.program, one.fused, one.trace, (), one.origin, considered, sizes)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(regions, "build_region", unbuilt))
        stack.enter_context(mock.patch.object(executable, "running", return_value=None))
        stack.enter_context(mock.patch.object(executable, "Plan", made))
        yield plans


def differing(plan: Plan) -> list[tuple[BlockProgram | None, BlockProgram]]:
    """Lists the programs of `plan` that its trace does not give: what it gives, and what was built."""
    again = rebuilt(plan.captured.program, plan.trace)
    built = [each.fused for each in plan.regions]
    if len(again) != len(built):
        return [(None, each) for each in built]
    return [(a, b) for a, b in zip(again, built, strict=True) if a != b]


def main() -> int:
    """Prints a line for each row; 1 where a trace gives another program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", help="cpu, or a GPU that need not be here, as cuda:90")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    given = parser.parse_args()
    wrong = count = 0
    for name, plan in planned(given.target, given.only):
        count += 1
        different = len(differing(plan))
        wrong += bool(different)
        said = f"{different} of {len(plan.regions)} programs differ" if different else "the same"
        sys.stdout.write(f"{name}: {len(plan.trace)} steps, {said}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{count} plans, {wrong} of which their traces do not give\n")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    raise SystemExit(main())
