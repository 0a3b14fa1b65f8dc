"""`diagram`: the neural circuit diagram of a kernel, or of a program in which nothing is fused."""

from __future__ import annotations

from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.draw.columns import columns
from weft.draw.layout import laid_out
from weft.draw.picture import Diagram
from weft.draw.steps import flow
from weft.schedule import KernelNodes, Level, LevelPlace, LoopSchedule, Schedule, apply, kernels


def diagram(program: BlockProgram, part: KernelNodes | None = None, title: str = "") -> Diagram:
    """Lay out the diagram of `program`, or of `part`, one of its launches.

    A program without places is drawn as if each of its outermost loops were a kernel that takes what it reads whole: its lists are
    in device memory. Batches and heads, which items have no axis for, are on the grid.

    Raises:
        ScheduleError, UnsupportedError: the program has no places, and cannot be given any.
    """
    placed = program if any(m.place is not None for m in maps(program.graph)) else at_whole(program)
    return laid_out(columns(flow(placed, part)), title or "diagram")


def diagrams(program: BlockProgram, name: str = "kernel") -> tuple[Diagram, ...]:
    """Lay out a diagram for each launch of the applied `program`, in order."""
    parts = kernels(program)
    titles = [f"{name}, kernel {i}" if len(parts) > 1 else name for i in range(1, len(parts) + 1)]
    return tuple(diagram(program, part, title) for part, title in zip(parts, titles, strict=True))


def at_whole(program: BlockProgram) -> BlockProgram:
    """Give each loop of `program` its whole space, and each parallel loop over single elements a place on the grid."""
    named = canonical(program)
    levels = (
        (m.name, Level(LevelPlace.grid, 1) if m.unit and m.state is None else Level(LevelPlace.whole))
        for m in maps(named.graph)
    )
    return apply(named, Schedule(tuple((name, LoopSchedule((level,))) for name, level in levels)))
