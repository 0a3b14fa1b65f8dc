"""Rows in registers, rankings and first iterations, for the tests of Triton kernels; run by itself, in Triton's interpreter.

As `triton_cases`: `python triton_rows.py FOLDER`, with TRITON_INTERPRET=1, prints what was found, as JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from testkit.block import handmade, paper, programs
from testkit.block.programs import F32, axes, matmul, tensor
from testkit.block.rankings import FIRST, ORDERS, ranking, rows
from testkit.emit import special
from testkit.emit.harness import dims_of, torch_type
from testkit.emit.rankings import of_sums
from testkit.emit.triton_cases import GRID, LOOP, SPLIT, WHOLE, Case, error, levels, placed, poisoned
from testkit.emit.triton_programs import load
from testkit.fuse import peelable
from testkit.schedules import fused, random_schedule
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import BlockProgram, Collapse, Graph, Pointwise, State
from weft.block.ranges import First, Remainder
from weft.block.walk import maps, spaces
from weft.errors import ScheduleError
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.run.gpu.interpreted import mend_floats
from weft.schedule import Level, LoopSchedule, Schedule, grid_maps
from weft.schedule import apply as scheduled
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Elementwise, Monoid, Ranking, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply

_SUMS = (Collapse("sum", Monoid.sum, "x", handmade.K),)


def cases() -> dict[str, Case]:
    """The named cases."""
    mnk = {"M": 21, "N": 19, "K": 23}
    tile, loop, row = levels((GRID, 8)), levels((LOOP, 16)), levels(WHOLE)
    softmax, layers = fused(special.softmax()), fused(programs.two_layers())
    safe = canonical(make_safe(canonical(fuse(lower(paper.attention())).last)).program)
    queries = {"M": 5, "N": 41, "D": 6, "L": 7}
    found = {
        "softmax": Case(placed(softmax, m=tile, n=row, k=loop), mnk),
        "softmax_bf16": Case(placed(fused(special.softmax(DType.bfloat16)), m=tile, n=row, k=row), mnk),
        "softmax_one_program": Case(placed(softmax, m=row, n=row, k=loop), {**mnk, "N": 5}),
        "two_layers": Case(placed(layers, m=tile, n=row, k=loop, p=row), {**mnk, "P": 11}),
        "column_extrema": Case(placed(fused(special.columns()), m=row, n=tile), mnk),
        "routing": Case(in_rows(fused(routing(4))), mnk),
        "column_extrema_again": Case(columns_twice(), mnk),
        "read_twice": Case(placed(read_twice(), m=tile, k=loop), mnk),
        "fading": Case(placed(fading(), m=tile, k=loop), mnk),
        "read_inside": Case(placed(read_inside(), m=tile, k=loop), mnk),
        "any": Case(placed(fused(predicates()), m=tile, n=loop), mnk),
        "attention_split": Case(placed(safe, m=tile, n=levels((SPLIT, 3), (LOOP, 8)), d=row, l=row), queries),
        "repeated": Case(placed(fused(repeated()), m=tile, n=levels((LOOP, 1))), mnk),
        "attention_together": Case(placed(safe, 4, m=tile, n=levels((SPLIT, 3), (LOOP, 8)), d=row, l=row), queries),
        "attention_in_pairs": Case(placed(safe, 2, m=tile, n=levels((SPLIT, 3), (LOOP, 8)), d=row, l=levels((GRID, 4))), queries),
        "routing_split": Case(in_rows(fused(routing(4)), cut="K"), {**mnk, "K": 40}),
        "attention_merged": Case(merged_by_two(safe), queries),
        "attention_segments": Case(placed(safe, m=tile, n=levels((SPLIT, 8), (LOOP, 8)), d=row, l=levels((GRID, 4))), queries),
    }  # fmt: skip
    for name, make in (
        ("rmsnorm", paper.rmsnorm),
        ("one_query", peelable.one_query),
        ("peeled", peelable.peeled_softmax),
    ):
        for number, other in enumerate(fuse(lower(make())).alternatives):
            program = canonical(other.program)
            sizes = {s.name: n for s, n in zip(spaces(program), (9, 13, 6, 10), strict=False)}
            found[f"{name}_{number}"] = Case(in_rows(program), sizes)
    return found


def predicates() -> TensorProgram:
    """Build a program: whether any element of a row is positive, whether all are; the least and the product of each row."""
    m, n = axes("m", "n")
    positive, x = Use("positive", (m, n)), Use("x", (m, n))
    return TensorProgram((tensor("positive", m, n, dtype=DType.bool), tensor("x", m, n)), (
        Reduction("any", (m,), DType.bool, Monoid.max, positive, (n,)),
        Reduction("all", (m,), DType.bool, Monoid.min, positive, (n,)),
        Reduction("least", (m,), F32, Monoid.min, x, (n,)),
        Reduction("product", (m,), F32, Monoid.prod, x, (n,)),
    ), ("any", "all", "least", "product"))  # fmt: skip


def merged_by_two(program: BlockProgram) -> BlockProgram:
    """Attention with its keys in segments, merged by programs of two rows; columns go by the same blocks before and after."""
    own = {"m": levels((GRID, 8)), "l": levels((GRID, 4)), "n": levels((SPLIT, 3), (LOOP, 8)), "d": levels(WHOLE)}
    names = [m.name for m in maps(program.graph)]
    finer = tuple((name, 2) for name in names if name[0] in "ml")
    return scheduled(program, Schedule(tuple((name, own[name[0]]) for name in names), merging=finer))


def repeated() -> TensorProgram:
    """Each row's element times as many as there are columns: repeated along them, and summed."""
    m, n = axes("m", "n")
    every = Elementwise("b", (m, n), F32, Arg(0), (Use("x", (m,)),))
    total = Reduction("s", (m,), F32, Monoid.sum, Use("b", (m, n)), (n,))
    return TensorProgram((tensor("x", m), tensor("y", m, n)), (
        every, total,
        Elementwise("o", (m, n), F32, apply("add", Arg(0), Arg(1)), (Use("s", (m,)), Use("y", (m, n)))),
    ), ("o",))  # fmt: skip


def read_twice() -> BlockProgram:
    """s / (s + 100) for each row's sum s."""
    ratio = apply("div", Arg(0), apply("add", Arg(0), Lit(100.0)))
    state = State.of_monoid(Monoid.sum, "sum", (handmade.M,), F32, "s")
    end = Graph(("s",), (Pointwise("end", ratio, ("s",), (handmade.M,), F32),), ("end",))
    return handmade.rows(_SUMS, replace(state, finish=end), "end")


def fading() -> BlockProgram:
    """s = s / 2 + the row sums of a block."""
    step = Pointwise("n", apply("add", apply("mul", Arg(0), Lit(0.5)), Arg(1)), ("s", "p"), (handmade.M,), F32)
    state = State.of_monoid(Monoid.sum, "sum", (handmade.M,), F32, "s")
    return handmade.rows(_SUMS, replace(state, update=Graph(("s", "p"), (step,), ("n",))), "s")


def read_inside() -> BlockProgram:
    """s = s + the row sums of a block, and t = t / 2 + s as it was before the block."""
    step = Pointwise("n", handmade.ADD, ("s", "p"), (handmade.M,), F32)
    other = Pointwise("o", apply("add", apply("mul", Arg(0), Lit(0.5)), Arg(1)), ("t", "s"), (handmade.M,), F32)
    state = State.of_monoid(Monoid.sum, "sum", (handmade.M,), F32, "s")
    component = replace(state.components[0], name="t")
    update = Graph(("s", "t", "p"), (step, other), ("n", "o"))
    merge = Graph(("a", "b", "c", "d"), (), ("c", "d"))  # nothing here merges parts
    finish = Graph(("s", "t"), (), ("t",))
    both = replace(state, components=(*state.components, component), update=update, merge=merge, finish=finish)
    return handmade.rows(_SUMS, both, "t")


def columns_twice() -> BlockProgram:
    """`special.columns` with its first loop down the columns in blocks, and all of a column at once from then on."""
    program = fused(special.columns())
    first, *_ = [m.name for m in maps(program.graph) if m.axis.space.name == "M"]
    chosen = {m.name: levels((GRID, 8)) if m.axis.space.name == "N" else levels(WHOLE) for m in maps(program.graph)}
    chosen[first] = levels((LOOP, 16))
    return scheduled(program, Schedule(tuple(chosen.items())))


def routing(count: int) -> TensorProgram:
    """For each row of x @ w its `count` greatest, as shares of their sum, and where they are."""
    m, k, n = axes("m", "k", "n")
    rank = Axis("r", Space("R", count))
    scores, both = Use("s", (m, n)), (m, rank)
    return TensorProgram((tensor("x", m, k), tensor("w", k, n)), (
        matmul("s", Use("x", (m, k)), Use("w", (k, n)), k),
        Ranking("v", both, F32, scores, n, rank, FIRST, places=False),
        Ranking("p", both, DType.int64, scores, n, rank, FIRST, places=True),
        Reduction("sum", (m,), F32, Monoid.sum, Use("v", both), (rank,)),
        Elementwise("share", both, F32, apply("div", Arg(0), Arg(1)), (Use("v", both), Use("sum", (m,)))),
    ), ("share", "p"))  # fmt: skip


def in_rows(program: BlockProgram, cut: str = "") -> BlockProgram:
    """`program` with its first parallel loop on the grid, by 8, and others whole; rests in the blocks of what is first.

    Loops over the space `cut` are cut in three segments, which are merged at once.
    """
    top = set(grid_maps(program.graph))
    found: dict[str, LoopSchedule] = {}
    chosen: dict[object, Level] = {}
    for node in maps(program.graph):
        outermost = not any(m in found for m in top if not node.unit)
        level = Level(WHOLE)
        if node.unit or isinstance(node.range, First) or (node.name in top and outermost):
            level = Level(GRID if node.name in top else LOOP, 1 if node.unit else 8)
        if isinstance(node.range, Remainder):
            before = chosen[node.range.after]
            level = Level(GRID if node.name in top and before.place is not WHOLE else before.place, before.size)
        chosen[node.axis] = level
        found[node.name] = LoopSchedule((level,))
        if node.axis.space.name == cut:
            found[node.name] = levels((SPLIT, 3), (LOOP, 16))
    return scheduled(program, Schedule(tuple(found.items()), together=4))


def ranked(folder: Path) -> Iterator[tuple[str, str]]:
    """Rankings under random schedules beside the interpreter: of each, by name, what differs, "" where nothing does."""
    rng = random.Random(7)
    counts = {F32: (None, 1, 5, 33), DType.bfloat16: (None, 3), DType.int64: (None, 9)}
    for dtype, orders in ((F32, ORDERS), (DType.bfloat16, ORDERS[2:]), (DType.int64, ORDERS[:2])):
        for count, order in itertools.product(counts[dtype], orders):
            program = fused(ranking(count, order, dtype))
            sizes = {"M": rng.choice((1, 5, 7)), "N": rng.choice((1, 3, 16, 17, 33))}
            name = f"{dtype} first {count} of {sizes['N']} {order}"
            yield name, difference(_in_blocks(program, rng), sizes, folder, rng)
    for count in (None, 4):
        for order in ORDERS[1:]:
            program = fused(of_sums(count or 1, order))
            sizes = {s.name: s.fixed or rng.choice((5, 8, 19)) for s in spaces(program)}
            yield f"first {count} of sums {order}", difference(_in_blocks(program, rng), sizes, folder, rng)
    for parts in (2, 7):
        for count in (None, 5):
            program = fused(ranking(count))
            tiles = {"M": levels((GRID, 8)), "R": levels(WHOLE), "N": levels((SPLIT, parts), (LOOP, 16))}
            schedule = Schedule(tuple((m.name, tiles[m.axis.space.name]) for m in maps(program.graph)))
            split = scheduled(program, schedule)
            yield f"first {count} of {parts} segments", difference(split, {"M": 7, "N": 61}, folder, rng)


def _in_blocks(program: BlockProgram, rng: random.Random) -> BlockProgram:
    """`program` under the first random schedule that fits."""
    for _ in range(50):
        try:
            return scheduled(program, random_schedule(program, rng, (8, 16, 32)))
        except ScheduleError:
            continue
    raise ScheduleError("no random schedule fits")


def difference(program: BlockProgram, sizes: dict[str, int], folder: Path, rng: random.Random) -> str:
    """Say what of a ranking is not as the interpreter has it, to the last bit (one NaN is like another)."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    inputs: dict[str, torch.Tensor] = {}
    for name, kind in program.inputs:
        shape = [a.space.size(sizes) for a in kind.lists]
        x = np.resize(rows(numbers, shape[-1]), (3 * shape[0], *shape[1:]))[: shape[0]]
        if not kind.dtype.is_float:
            ends = np.iinfo(kind.dtype.name)
            x = np.nan_to_num(x, nan=9, posinf=3, neginf=-9).astype(np.int64)
            x = np.where(x == 3, ends.max, np.where(x == -9, ends.min, x))
        inputs[name] = torch.from_numpy(x).to(torch_type(kind.dtype))
    exact = {n: t.double().numpy() if t.is_floating_point() else t.numpy().astype(np.int64) for n, t in inputs.items()}
    wanted, _ = interpret(program, exact, sizes, Fp64Domain())
    found = load(program, dims_of(program), folder).prepare(inputs, sizes, allocate=poisoned)()
    for place, (a, tensor_) in enumerate(zip(wanted, found, strict=True)):
        b = tensor_.double().numpy() if tensor_.is_floating_point() else tensor_.numpy()
        same = (a == b) | ((a != a) & (b != b))
        if not np.all(same & ((np.signbit(a) == np.signbit(b)) | (a != a))):
            return f"output {place}: {b[~same][:4].tolist()} for {a[~same][:4].tolist()}"
    return ""


def reduced(folder: Path) -> Iterator[tuple[str, str]]:
    """The results of `predicates` for rows with NaN and infinities: of each, by name, what is not as PyTorch has it."""
    x = torch.from_numpy(rows(np.random.default_rng(5), 21)).float()
    positive = torch.stack([x[0] > 5, x[0] == x[0], x[1] > 0, *(x[3:] > -9)])
    for name, n in (("in blocks", levels((LOOP, 8))), ("whole", levels(WHOLE))):
        program = placed(fused(predicates()), m=levels((GRID, 4)), n=n)
        sizes = {"M": len(x), "N": x.shape[1]}
        found = load(program, dims_of(program), folder).prepare(
            {"positive": positive, "x": x}, sizes, allocate=poisoned
        )()
        wanted = (positive.any(-1), positive.all(-1), x.amin(-1), x.prod(-1))
        for what, a, b in zip(program.graph.outputs, wanted, found, strict=True):
            same = torch.equal(a, b) if a.dtype is torch.bool else torch.allclose(a, b, equal_nan=True)
            yield f"{what} {name}", "" if same else f"{b.tolist()} for {a.tolist()}"


def main(folder: Path) -> None:
    """Run all; print a JSON object: "cases", as those of `triton_cases`, "rankings" and "reductions", by name."""
    mend_floats()
    found: dict[str, float | str] = {}
    for name, case in cases().items():
        found[name] = error(case, folder, random.Random(name))
    print(json.dumps({"cases": found, "rankings": dict(ranked(folder)), "reductions": dict(reduced(folder))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
