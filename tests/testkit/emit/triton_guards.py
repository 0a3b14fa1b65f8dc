"""Triton kernels whose loops are guarded, run in Triton's interpreter: it must be asked for before Triton is imported."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from testkit.emit.triton_cases import GRID, LOOP, WHOLE, Case, error, levels
from testkit.masks.guarded import MASKED, groups
from testkit.masks.limited import fused
from testkit.walk import share
from weft.block.copies import canonical
from weft.block.program import Map
from weft.block.walk import maps
from weft.emit.triton import GRANULARITY
from weft.masks import guard
from weft.schedule import LevelPlace, LoopSchedule, Schedule, apply


def guarded(name: str, *, beforehand: bool, long: bool = False, split: bool = False, apart: bool = False) -> Case:
    """A guarded loop, beside blocks of 2 rows, 2 elements a block, so that some blocks of a random mask are empty.

    Args:
        name: of the program; "groups" for the one whose loop goes by single elements.
        beforehand: a launch before says which blocks are.
        long: the loop has more blocks than one integer has bits.
        split: the loop is cut in 3 segments.
        apart: full blocks have a loop of their own.
    """
    written = groups() if name == "groups" else MASKED[name][0]()
    program = canonical(guard(fused(written)))
    first, *_ = maps(program.graph)
    asking = frozenset(m.name for m in maps(program.graph) if m.guard is not None)

    def given(node: Map) -> LoopSchedule:
        if node is first:
            return levels((GRID, 2))
        if node.name in asking:
            size = 1 if node.unit else 2
            return levels((LevelPlace.split, 3), (LOOP, size)) if split else levels((LOOP, size))
        return levels(WHOLE)

    loops = tuple((m.name, given(m)) for m in maps(program.graph))
    none = frozenset[str]()
    schedule = Schedule(loops, beforehand=asking if beforehand else none, apart=asking if apart else none)
    applied = apply(program, schedule, GRANULARITY)
    spaces = dict.fromkeys(s.name for s in written.spaces())
    along = {m.axis.space.name for m in maps(program.graph) if m.guard is not None}
    sizes = {space: (143 if long else 37) if space in along else 11 - place for place, space in enumerate(spaces)}
    return Case(applied, sizes)


def cases() -> dict[str, Case]:
    """Each program with a mask, asked in the loop and beforehand, full blocks with the others and apart."""
    found = {
        f"{name}{', beforehand' if b else ''}": guarded(name, beforehand=b)
        for name in (*MASKED, "groups")
        for b in (False, True)
    }
    found |= {
        f"{name}, apart{', beforehand' if b else ''}": guarded(name, beforehand=b, apart=True)
        for name in MASKED
        for b in (False, True)
    }
    found |= {f"{n}, apart, split": guarded(n, beforehand=True, split=True, apart=True) for n in ("sums", "weighted")}
    found |= {f"{n}, split": guarded(n, beforehand=True, split=True) for n in ("sums", "weighted")}
    return found | {f"{n}, long": guarded(n, beforehand=True, long=True) for n in ("sums", "weighted")}


def run_cases() -> dict[str, Case]:
    """The cases that a run of the tests takes: each program, each way to ask and each cut of the loop is among them."""
    found = cases()
    names = [name for name in found if not name.endswith(("split", "long"))]
    return {name: found[name] for name in (*share(names, 3), *share((n for n in found if n not in names), 2, start=1))}


def main(folder: Path) -> None:
    """Run these cases; print a JSON object by case: its error in units of rounding."""
    print(json.dumps({name: error(case, folder, random.Random(name)) for name, case in run_cases().items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
