"""What the cost model counts beside what the interpreter counts, over the benchmark list under random schedules.

    PYTHONPATH=src:tests python -m testkit.cost.counts [--target cuda:90] [--only ROW ...] [--schedules 20] [--seed 0]

Every fused program that is planned for `weft bench`, or for `weft bench --device cuda` for another target than this CPU, is placed
by random schedules (levels, splits, peeling, staging), at random small sizes: most do not divide the blocks. Bytes loaded and
stored by memory, operations, first states and bytes on chip must be equal. Exits with 1 if any differ.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from testkit.pipeline.replays import planned
from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.block.walk import spaces
from weft.cost import on_chip_bytes, traffic
from weft.errors import ScheduleError
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.tensor.fp64 import Fp64Domain

# Block operations of one run at most: the interpreter does some ten thousand a second.
_MOST = 20_000


def programs(target: str, only: list[str]) -> Iterator[tuple[str, BlockProgram]]:
    """Yield the fused programs of the benchmark list, each once, with the row that has it first."""
    seen: set[str] = set()
    for name, plan in planned(target, only):
        for number, region in enumerate(plan.regions):
            if str(region.fused) not in seen:
                seen.add(str(region.fused))
                yield f"{name}, region {number}", region.fused


def differences(program: BlockProgram, sizes: Mapping[str, int]) -> list[str]:
    """Name what the model counts of an applied `program` otherwise than the interpreter."""
    inputs = {n: np.ones([a.space.size(sizes) for a in kind.lists]) for n, kind in program.inputs}
    with np.errstate(all="ignore"):
        counted = interpret(program, inputs, sizes, Fp64Domain(), on_chip=True)[1]
    found = traffic(program, sizes)
    pairs = {
        "loaded": (dict(found.loaded), dict(+counted.loaded)),
        "stored": (dict(found.stored), dict(+counted.stored)),
        "operations": (dict(found.operations), dict(+counted.operations)),
        "starts": (dict(found.starts), dict(+counted.starts)),
        "on chip": (on_chip_bytes(program, sizes), counted.on_chip),
    }
    return [f"{what}: {model}, counted {real}" for what, (model, real) in pairs.items() if model != real]


def trials(fused: BlockProgram, count: int, rng: random.Random) -> Iterator[tuple[BlockProgram, dict[str, int]]]:
    """Yield so many placed programs with sizes; fewer where few schedules fit, or where sizes are fixed and large."""
    for _ in range(3 * count):
        if not count:
            return
        try:
            _, applied = fitting_schedule(fused, rng)
        except ScheduleError:
            return
        sizes = {s.name: rng.randint(1, 9) if s.fixed is None else s.fixed for s in spaces(applied)}
        if sum(traffic(applied, sizes).operations.values()) <= _MOST:
            count -= 1
            yield applied, sizes


def main() -> int:
    """Print what differs, and how much was compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu", help="cpu, or a GPU that need not be here, as cuda:90")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    parser.add_argument("--schedules", type=int, default=20, help="placed programs of each fused program")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    compared, few, wrong = 0, list[str](), 0
    for name, fused in programs(given.target, given.only):
        tried = 0
        for applied, sizes in trials(fused, given.schedules, random.Random(f"{given.seed} {name}")):
            tried += 1
            for each in differences(applied, sizes):
                wrong += 1
                sys.stdout.write(f"{name}, {sizes}: {each}\n{applied}\n")
        compared += tried
        few += [f"{name}: {tried}"] if tried < given.schedules else []
    sys.stdout.write(f"{compared} placed programs compared, {wrong} differences\n")
    sys.stdout.write("".join(f"fewer schedules fit: {each}\n" for each in few))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
