"""Programs whose transfers the paper gives in closed form: a matmul and attention, with places."""

from __future__ import annotations

from dataclasses import replace

from testkit.block import programs
from testkit.emit.triton_cases import paper as fused_example
from testkit.schedules import fused
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import ClosedForm, closed_form
from weft.cost.optimum import Expr, sp
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.program import TensorProgram, Use

GRID, LOOP, WHOLE = LevelPlace.grid, LevelPlace.loop, LevelPlace.whole
SEGMENTS = (Level(LevelPlace.split, 4), Level(LOOP, 8))
A, B, C, D, Q, X, H = sp.symbols("A B C D Q X H", positive=True)


def placed(program: BlockProgram, **levels: tuple[LevelPlace, int]) -> BlockProgram:
    """Apply the levels that are given to loops by name; other loops cover their spaces at once."""
    own = {m.name: levels.get(m.name, (WHOLE, 0)) for m in maps(program.graph)}
    return apply(program, Schedule(tuple((n, LoopSchedule((Level(*level),))) for n, level in own.items())))


def only(program: BlockProgram) -> ClosedForm:
    """Return the closed form of the one kernel of `program`."""
    (part,) = kernels(program)
    return closed_form(part)


def product() -> TensorProgram:
    """Return a times b and b times c."""
    a, b, c = programs.axes("a", "b", "c")
    inputs = (programs.tensor("x", a, b), programs.tensor("w", b, c))
    return TensorProgram(inputs, (programs.matmul("y", Use("x", (a, b)), Use("w", (b, c)), b),), ("y",))


def matmul(rows: int = 16, columns: int = 16, depth: int = 8) -> BlockProgram:
    """Place a matmul, each thread block having a block of the result."""
    return placed(fused(product()), a=(GRID, rows), c=(GRID, columns), b=(LOOP, depth))


def attention() -> ClosedForm:
    """Return the paper's attention with queries q, keys x and a width of d for both matmuls."""
    found = only(placed(fused_example("attention"), m=(GRID, 16), n=(LOOP, 8)))
    names = {"M": Q, "N": X, "D": D, "L": D}

    def renamed(expr: Expr) -> Expr:
        return expr.subs({sp.Symbol(name, positive=True): by for name, by in names.items()})

    loaded, stored = ({n: renamed(e) for n, e in part.items()} for part in (found.loaded, found.stored))
    held = tuple(replace(h, values=renamed(h.values)) for h in found.held)
    return replace(found, loaded=loaded, stored=stored, held=held)
