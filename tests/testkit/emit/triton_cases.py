"""Applied programs for the tests of Triton kernels; run by itself, it runs them in Triton's interpreter.

The interpreter is chosen when Triton is imported, so it needs a process of its own: `python triton_cases.py FOLDER`, with
TRITON_INTERPRET=1, prints for each case how far its results are from the block interpreter's, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testkit.block import handmade, lookups, programs
from testkit.block.paper import initial
from testkit.block.programs import F32
from testkit.emit import special
from testkit.emit.comparing import PROGRAMS, inputs_for
from testkit.emit.harness import dims_of
from testkit.emit.triton_programs import load
from testkit.masks.limited import band
from testkit.schedules import fused, random_schedule
from testkit.walk import WALK_ALL
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.program import (
    BlockProgram,
    BlockType,
    Collapse,
    Dot,
    Feed,
    Final,
    Graph,
    Grouped,
    Iterate,
    Map,
    Pointwise,
    Stacked,
    State,
    sealed,
)
from weft.block.walk import maps
from weft.emit.triton import GRANULARITY, prelude
from weft.errors import ScheduleError, UnsupportedError
from weft.pipeline import fuse
from weft.run.gpu.interpreted import mend_floats
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.optable import PRIMITIVES, Row
from weft.tensor.program import Cast, Contraction, Elementwise, Monoid, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Convert, Lit
from weft.tensor.scalar import apply as apply_scalar

GRID, LOOP, WHOLE, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.whole, LevelPlace.split
E4M3, E5M2 = DType.float8_e4m3fn, DType.float8_e5m2
RANDOM = 300 if WALK_ALL else 9
SMALL = (1, 2, 3, 5, 8, 9, 17)


@dataclass(frozen=True)
class Case:
    """An applied program, and sizes of its spaces: most of them do not divide its tiles."""

    program: BlockProgram
    sizes: Mapping[str, int]


def levels(*given: tuple[LevelPlace, int] | LevelPlace, peel: bool = False) -> LoopSchedule:
    """The levels of a loop."""
    return LoopSchedule(tuple(Level(g) if isinstance(g, LevelPlace) else Level(*g) for g in given), peel)


def placed(program: BlockProgram, together: int = 1, /, **loops: LoopSchedule) -> BlockProgram:
    """`program` with the levels of each loop, by the first letter of its name; so many parts are merged at once."""
    own = tuple((m.name, loops[m.name.lstrip("%")[0]]) for m in maps(program.graph))
    return apply(program, Schedule(own, together=together), GRANULARITY)


def paper(name: str) -> BlockProgram:
    """Fuse one of the paper's examples by the nine rules."""
    return canonical(fuse(initial(name)).last)


def cases() -> dict[str, Case]:
    """The named cases."""
    grid, loop, whole = (GRID, 32), (LOOP, 16), WHOLE
    attention, layernorm, rmsnorm = (paper(n) for n in ("attention", "layernorm", "rmsnorm"))
    linear, state = fused(programs.linear_relu()), handmade.rows(handmade.SOFTMAX, handmade.softmax_state(), "end")
    narrow = {t: fused(programs.linear_relu(t)) for t in (DType.bfloat16, DType.float16)}
    mnk, mnkl = {"M": 45, "N": 37, "K": 51}, {"M": 45, "N": 37, "D": 20, "L": 24}
    tile = levels(grid)
    lists = {"m": tile, "n": tile, "k": levels(loop)}
    rows = {"m": tile, "l": levels(whole), "n": levels(loop), "d": levels(whole)}
    cut = {"m": levels((GRID, 48), (LOOP, 16)), "n": tile, "k": levels((SPLIT, 3), loop)}
    return {
        "linear_relu": Case(placed(linear, m=tile, n=tile, k=levels(loop)), mnk),
        "linear_relu_peeled": Case(placed(linear, m=tile, n=tile, k=levels((LOOP, 8), peel=True)), mnk),
        "linear_relu_split": Case(placed(linear, m=tile, n=tile, k=levels((SPLIT, 3), loop)), mnk),
        "linear_relu_levels": Case(placed(linear, m=levels((GRID, 40), (LOOP, 12)), n=levels(whole), k=levels(loop)), mnk),
        "linear_relu_turned": Case(turned(placed(linear, m=tile, n=levels((GRID, 16)), k=levels(loop))), mnk),
        "linear_relu_divided": Case(placed(linear, m=tile, n=tile, k=levels(loop)), {"M": 64, "N": 32, "K": 48}),
        "linear_relu_within": Case(placed(linear, **cut), {"M": 80, "N": 32, "K": 48}),
        "linear_bytes": Case(placed(fused(narrow_product(DType.int8, DType.int8, DType.int32)), **lists), mnk),
        "linear_e4m3": Case(placed(fused(narrow_product(E4M3, E4M3, DType.bfloat16)), **lists), mnk),
        "linear_e5m2": Case(placed(fused(narrow_product(E5M2, E4M3, F32)), m=tile, n=tile, k=levels(whole)), mnk),
        "quantised": Case(placed(canonical(fuse(lower(quantised())).last), **lists), mnk),
        "vector": Case(placed(fused(vector_product()), k=levels(loop), n=tile), mnk),
        "vector_turned": Case(turned(placed(fused(vector_product(bytes_=True)), k=levels(loop), n=tile)), mnk),
        "linear_relu_two_grids": Case(placed(linear, m=levels((GRID, 40), (GRID, 16)), n=tile, k=levels(loop)), mnk),
        "linear_relu_bf16": Case(placed(narrow[DType.bfloat16], m=tile, n=tile, k=levels(loop)), mnk),
        "linear_relu_fp16": Case(placed(narrow[DType.float16], m=tile, n=levels((LOOP, 8)), k=levels(whole)), mnk),
        "gated": Case(placed(fused(programs.gated()), m=tile, n=tile, k=levels(loop)), mnk),
        "attention": Case(placed(attention, **rows), mnkl),
        "attention_divided": Case(placed(attention, **rows), {"M": 32, "N": 48, "D": 16, "L": 24}),
        "attention_grid": Case(placed(attention, m=tile, l=levels((GRID, 16)), n=levels(loop), d=levels(loop)), mnkl),
        "attention_peeled": Case(placed(attention, m=tile, l=levels(whole), n=levels((LOOP, 8), peel=True), d=levels(whole)), mnkl),
        "layernorm": Case(placed(layernorm, m=tile, n=tile, k=levels(loop)), mnk),
        "layernorm_peeled": Case(placed(layernorm, m=tile, n=levels(whole), k=levels(loop, peel=True)), mnk),
        "rmsnorm": Case(placed(rmsnorm, m=tile, n=tile, k=levels(loop), d=levels(loop)), {**mnk, "D": 40}),
        "rmsnorm_whole": Case(placed(rmsnorm, m=tile, n=levels(whole), k=levels(loop), d=levels(whole)), {**mnk, "D": 40}),
        "softmax_state": Case(placed(state, m=tile, k=levels(loop)), mnk),
        "softmax_state_levels": Case(placed(state, m=tile, k=levels((LOOP, 16), (LOOP, 4))), mnk),
        "softmax_state_whole": Case(placed(state, m=tile, k=levels(whole)), mnk),
        "softmax_state_split": Case(placed(state, m=tile, k=levels((SPLIT, 2), (LOOP, 8), peel=True)), mnk),
        "softmax_state_segments": Case(placed(state, m=tile, k=levels((SPLIT, 2), WHOLE)), mnk),
        "triangle": Case(placed(triangle(), m=tile, k=levels(loop)), mnk),
        "triangle_whole": Case(placed(triangle(), m=tile, k=levels(whole)), mnk),
        "shared_heads": Case(placed(shared_heads(), h=levels((GRID, 1)), m=tile), {"H": 6, "G": 3, "M": 45}),
        "online_attention": Case(special.attention(32, 16), {"M": 45, "N": 37, "K": 24, "D": 20}),
        "online_attention_bf16": Case(special.attention(32, 16, DType.bfloat16), {"M": 45, "N": 37, "K": 24, "D": 20}),
        "turning": Case(placed(special.turning(), m=tile, k=levels(loop)), mnk),
        "looking_back": Case(special.looking_back(32, 16, late=True), mnk),
        "entangled": Case(special.entangled(16), mnk),
        "normalised": Case(placed(special.normalised(), m=levels(whole), n=levels(whole)), mnk),
        "masked": Case(placed(fused(special.masked()), m=tile, n=levels(loop)), mnk),
        "integers": Case(placed(fused(special.integers()), m=levels(whole), n=levels(whole)), mnk),
        "lookup": Case(placed(fused(lookups.table()), m=tile, d=levels(whole)), {"M": 45, "D": 37, "V": 11}),
        "lookup_elements": Case(placed(fused(lookups.elements()), m=tile, n=levels(loop)), {"M": 45, "N": 37, "V": 11}),
        "lookup_several": Case(
            placed(fused(lookups.several()), m=levels((GRID, 1)), n=tile, d=levels(loop)),
            {"M": 5, "N": 37, "D": 9, "V": 11, "U": 12},
        ),
        "lookup_multiplied": Case(
            placed(fused(lookups.multiplied()), m=tile, n=levels(whole), d=levels(whole)), {**mnk, "D": 51, "V": 11}
        ),
        "columns": Case(placed(fused(special.columns()), m=levels(loop), n=tile), mnk),
    }  # fmt: skip


def narrow_product(left: DType, right: DType, result: DType) -> TensorProgram:
    """x @ w.T of operands of 8 bits, as `result`."""
    m, k, n = programs.axes("m", "k", "n")
    x, w = programs.tensor("x", m, k, dtype=left), programs.tensor("w", n, k, dtype=right)
    total = Contraction("s", (m, n), left.accumulator, Use("x", (m, k)), Use("w", (n, k)), (k,))
    return TensorProgram((x, w), (total, Cast("y", (m, n), result, Use("s", (m, n)), semantic=True)), ("y",))


def quantised() -> TensorProgram:
    """x @ w, x rounded to 8 bits on the way, the result too."""
    m, k, n = programs.axes("m", "k", "n")
    x, w = programs.tensor("x", m, k), programs.tensor("w", k, n, dtype=E5M2)
    near = Elementwise("near", (m, k), E4M3, Convert(E4M3, apply_scalar("div", Arg(0), Lit(0.01))), (Use("x", (m, k)),))
    total = Contraction("s", (m, n), F32, Use("near", (m, k)), Use("w", (k, n)), (k,))
    wide = Elementwise("y", (m, n), F32, Convert(E5M2, apply_scalar("mul", Arg(0), Lit(0.01))), (Use("s", (m, n)),))
    return TensorProgram((x, w), (near, total, wide), ("y",))


def vector_product(*, bytes_: bool = False) -> TensorProgram:
    """x @ w for a vector x."""
    k, n = programs.axes("k", "n")
    dtype = DType.int8 if bytes_ else DType.bfloat16
    x, w = programs.tensor("x", k, dtype=dtype), programs.tensor("w", k, n, dtype=dtype)
    return TensorProgram(
        (x, w), (Contraction("y", (n,), dtype.accumulator, Use("x", (k,)), Use("w", (k, n)), (k,)),), ("y",)
    )


def turned(program: BlockProgram) -> BlockProgram:
    """`program` with the operands of the products in its states exchanged; results keep their axes."""

    def exchanged(node: Map) -> Map:
        if node.state is None:
            return node
        update = node.state.update
        nodes = tuple(replace(n, left=n.right, right=n.left) if isinstance(n, Dot) else n for n in update.nodes)
        return replace(node, state=replace(node.state, update=replace(update, nodes=nodes)))

    return handmade.everywhere(program, exchanged)


def triangle() -> BlockProgram:
    """For each block of rows, the row sums of the columns up to its last row: a range that depends on the loop around it."""
    columns = Axis("%k", handmade.M.space)
    given = {"x": (handmade.own("x", handmade.M), Axis("x.k", handmade.M.space))}
    state = State.of_monoid(Monoid.sum, "r", (handmade.M,), F32, "s")
    sums = (Collapse("r", Monoid.sum, "x", columns),)
    inner = handmade.loop(columns, {"x": given["x"][1:]}, sums, (Final("o", "s"),), state)
    inner = replace(inner, range=band(handmade.M, high=0))
    outer = handmade.loop(handmade.M, given, (inner,), (Stacked("out", "o"),))
    return handmade.program(outer, over=(handmade.M,), given=given)


def shared_heads() -> BlockProgram:
    """x[h, m] + y[h // 2, m]: two heads share what they read."""
    h, m, g = Axis("%h", Space("H")), handmade.M, Axis("y.g", Space("G"))
    given = {"x": (handmade.own("x", h), handmade.own("x", m)), "y": (g, handmade.own("y", m))}
    node = Pointwise("o", programs.ADD, ("x", "y"), (m,), F32)
    inner = handmade.loop(m, {n: axes[1:] for n, axes in given.items()}, (node,), (Stacked("o", "o"),))
    feeds = (Feed("x", "x", Iterate(given["x"][0])), Feed("y", "y", Grouped(g, 2)))
    outer = sealed(Map("%h", h, feeds, Graph((), (inner,), ()), (Stacked("out", "o"),), unit=True))
    types = tuple((n, BlockType(axes, axes[1:], F32)) for n, axes in given.items())
    return BlockProgram(types, Graph(("x", "y"), (outer,), ("out",)), ((h, m),))


def operations(dtype: DType = DType.float32) -> Case:
    """Every row of the table at every element of vectors x, y (numbers), p, q (bools), i, j (integers); one result for each."""
    m = handmade.M
    kinds = {"x": dtype, "y": dtype, "p": DType.bool, "q": DType.bool, "i": DType.int64, "j": DType.int64}
    given = handmade.inputs(**dict.fromkeys(kinds, (m,)))
    nodes: list[Pointwise] = []
    for row in PRIMITIVES:
        expr = Apply(row.name, tuple(Arg(i) for i in range(row.arity)))
        result = DType.bool if row.result == "bool" else DType.int64 if "int" in row.samples else F32
        nodes.append(Pointwise(f"t_{row.name}", expr, operands_of(row), (m,), result))
    over = handmade.loop(m, given, tuple(nodes), tuple(Stacked(f"r_{n.name}", n.name) for n in nodes))
    types = tuple((n, BlockType(given[n], given[n], kind)) for n, kind in kinds.items())
    outputs = tuple(o.outer for o in over.outputs)
    program = BlockProgram(types, Graph(tuple(kinds), (over,), outputs), ((m,),) * len(outputs))
    return Case(placed(program, m=levels((GRID, 128))), {"M": 14 * 14 + 60})


def operands_of(row: Row) -> tuple[str, ...]:
    """The vectors that the row is applied to; a third number is the first again."""
    numbers, bools, whole = cycle("xy"), iter("pq"), iter("ij")
    return tuple(next({"bool": bools, "int": whole, "divisor": whole}.get(s, numbers)) for s in row.samples)


def operation_errors(folder: Path) -> dict[str, float]:
    """Measure how far each operation is from its meaning, relative to it, in units of 2**-23; NaN and infinity must be the same."""
    case = operations()
    rng = np.random.default_rng(3)
    numbers = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -3.0, 1e3, -1e3, np.inf, -np.inf, np.nan]
    x, y = (np.concatenate([g.ravel(), rng.standard_normal(60)]) for g in np.meshgrid(numbers, numbers))
    x, y = x.astype(np.float32), y.astype(np.float32)
    arrays = {"x": x, "y": y, "p": rng.random(len(x)) < 0.5, "q": rng.random(len(x)) < 0.5}
    arrays |= {"i": rng.integers(-99, 100, len(x)), "j": rng.integers(1, 70, len(x)) * rng.choice([-1, 1], len(x))}
    inputs = {n: torch.from_numpy(a) for n, a in arrays.items()}
    results = load(case.program, dims_of(case.program), folder).prepare(inputs, case.sizes)()
    found: dict[str, float] = {}
    with np.errstate(all="ignore"):
        for row, result in zip(PRIMITIVES, results, strict=True):
            args = [arrays[name] for name in operands_of(row)]
            exact = row.meaning(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in args)).astype(
                np.float32
            )
            ours = result.numpy().astype(np.float32)
            same = (exact == ours) | (np.isnan(exact) & np.isnan(ours))
            off = np.where(same, 0.0, np.abs(exact - ours) / np.maximum(np.abs(exact), 2.0**-100) * 2.0**23)
            found[row.name] = float(np.where(np.isnan(off), np.inf, off).max())
    return found


def random_cases() -> dict[str, Case]:
    """Programs of other tests under random schedules."""
    rng = random.Random(20)
    found: dict[str, Case] = {}
    while len(found) < RANDOM:
        name = rng.choice(sorted(PROGRAMS))
        dtype = rng.choice([DType.float32, DType.float32, DType.bfloat16])
        block = fused(PROGRAMS[name](dtype))
        sizes = {s: rng.choice(SMALL) for s in "BMNKP"}
        try:
            program = apply(block, random_schedule(block, rng), GRANULARITY)
        except ScheduleError:
            continue
        found[f"{name}_{len(found)}"] = Case(program, sizes)
    return found


def carried(t: torch.Tensor) -> np.ndarray:
    """`t` as the evaluator carries it: floats as float64, integers as int64."""
    if t.is_floating_point():
        return t.double().numpy()
    return t.numpy() if t.dtype is torch.bool else t.long().numpy()


def error(case: Case, folder: Path, rng: random.Random) -> float:
    """The largest error of a result, in units of what rounding explains (element type, magnitude)."""
    inputs = inputs_for(case.program, case.sizes, rng)
    if "V" in case.sizes:  # a kernel ends where it meets what is no index
        inputs = {n: t if t.is_floating_point() else t.abs() for n, t in inputs.items()}
    exact = {n: carried(t) for n, t in inputs.items()}
    wanted, _ = interpret(case.program, exact, case.sizes, Fp64Domain())
    loaded = load(case.program, dims_of(case.program), folder)
    found = loaded.prepare(inputs, case.sizes, allocate=poisoned)()
    worst = 0.0
    for a, b in zip(wanted, found, strict=True):
        assert tuple(b.shape) == a.shape
        if not b.is_floating_point():
            worst = max(worst, 0.0 if np.array_equal(a, b.numpy()) else float("inf"))
            continue
        assert bool(torch.isfinite(b).all()), "something is missing"
        narrow = any(k.dtype.bytes < 4 for _, k in case.program.inputs) or b.dtype is not torch.float32
        scale = (2.0**-6 if narrow else 2.0**-20) * max(1.0, float(np.abs(a).max(initial=0.0)))
        worst = max(worst, float(np.abs(a - b.double().numpy()).max(initial=0.0)) / scale)
    return worst


def conversions(folder: Path) -> dict[str, int]:
    """Count the floats that become another float of 8 bits than they should: where they are kept, and where they are
    computed with.

    Both by integer arithmetic and by a machine's own conversion.
    """
    m = handmade.M
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 2**32, 6000, dtype=np.uint64).astype(np.uint32)
    edges = np.array([0.0, 2.0**-9, 2.0**-10, 3 * 2.0**-11, 1.0625, 1.1875, 448, 449, 464, 465, 480])
    edges = np.concatenate([edges, [61439, 61440, 65536, np.inf, np.nan]])
    usual = rng.standard_normal((2, 3000)) * [[8.0], [2.0**-9]]
    near = np.concatenate([bits.view(np.float32), edges, -edges, *usual])
    x = torch.from_numpy(near.astype(np.float32))
    found: dict[str, int] = {}
    for dtype in (E4M3, E5M2):
        nodes = (
            Pointwise("kept", Convert(dtype, Arg(0)), ("x",), (m,), dtype),
            Pointwise("used", apply_scalar("mul", Convert(dtype, Arg(0)), Lit(1.0)), ("x",), (m,), F32),
            Pointwise("read", Arg(0), ("kept",), (m,), F32),
        )
        given = handmade.inputs(x=(m,))
        over = handmade.loop(m, given, nodes, tuple(Stacked(f"r_{n.name}", n.name) for n in nodes))
        graph = Graph(("x",), (over,), tuple(o.outer for o in over.outputs))
        kind = BlockType(given["x"], given["x"], F32)
        program = placed(BlockProgram((("x", kind),), graph, ((m,),) * 3), m=levels((GRID, 1024)))
        exact = rounded(x.double().numpy(), dtype)
        for target in (None, Target("cuda", "90")):
            results = load(program, dims_of(program), folder, target=target).prepare({"x": x}, {"M": len(x)})()
            for name, result in zip(("kept", "used", "read"), results, strict=True):
                ours = result.double().numpy()
                same = np.where(
                    np.isnan(exact), np.isnan(ours), (ours == exact) & (np.signbit(ours) == np.signbit(exact))
                )
                found[f"{name} {dtype} {target}"] = int((~same).sum())
    return found


def poisoned(shape: list[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory that shows what nobody wrote."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype, device=device)


def roundings(folder: Path) -> dict[str, float]:
    """Collect the numbers that are not rounded or negated as PyTorch does, to the bit of a sign."""
    m = handmade.M
    halves = np.array(
        [0.5, 1.5, 2.5, 2.0**22 - 0.5, 2.0**22 + 0.5, 2.0**22 + 1.5, 5000001.5, 2.0**23 - 1.5, 2.0**23 - 0.5]
    )
    others = np.array(
        [0.0, 1e-40, 0.3, 0.50000006, 0.49999997, 7.0, 2.0**23, 2.0**23 + 1, 2.0**24, 3e38, np.inf, np.nan]
    )
    near = np.concatenate([halves, np.nextafter(halves, 0, dtype=np.float32), others])
    x = torch.from_numpy(np.concatenate([near, -near]).astype(np.float32))
    given = handmade.inputs(x=(m,))
    nodes = tuple(Pointwise(op, Apply(op, (Arg(0),)), ("x",), (m,), F32) for op in ("round", "neg"))
    over = handmade.loop(m, given, nodes, tuple(Stacked(f"r_{node.name}", node.name) for node in nodes))
    kind = BlockType(given["x"], given["x"], F32)
    program = BlockProgram((("x", kind),), Graph(("x",), (over,), ("r_round", "r_neg")), ((m,),) * 2)
    applied, sizes = placed(program, m=levels((GRID, 32))), {"M": len(x)}
    results = load(applied, dims_of(applied), folder).prepare({"x": x}, sizes, allocate=poisoned)()
    wrong: dict[str, float] = {}
    for node, found, wanted in zip(nodes, results, (torch.round(x), -x), strict=True):
        same = (found.view(torch.int32) == wanted.view(torch.int32)) | (found.isnan() & wanted.isnan())
        wrong |= {f"{node.name} of {n}": float(y) for n, y in zip(x[~same].tolist(), found[~same], strict=True)}
    return wrong


_QUOTIENTS = """
@triton.jit
def quotients(a, b, out, N: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, N)
    tl.store(out + row * N + i, weft_quotient(tl.load(a + row * N + i), tl.load(b + row)))
"""


def quotients(folder: Path) -> dict[str, float]:
    """Collect quotients by a number that many share that are not as they should be.

    That is rounded once where the quotient is neither tiny nor huge, and else wrong by two units at most; infinities, NaN and the
    sign of 0 are eager's.
    """
    rng = np.random.default_rng(5)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0, -448.0])
    spread = rng.integers(0, 2**32, 503, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = np.float32(rng.standard_normal(512) * 2.0 ** rng.integers(-80, 80, 512))
    a = torch.from_numpy(np.concatenate([np.float32(special), spread, usual]))
    divisors = rng.integers(0, 2**32, 60, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = np.nextafter(2.0 ** rng.integers(-90, 90, 30), [[0.0], [np.inf]]).ravel()
    b = torch.from_numpy(
        np.concatenate([np.float32(special), divisors, np.float32(near), np.array([448, 127, 0.01, 3], np.float32)])
    )
    module = _module("quotients", _QUOTIENTS, folder)
    found = torch.empty(len(b), len(a))
    with np.errstate(all="ignore"):
        module.quotients[(len(b),)](a.expand(len(b), -1).contiguous(), b, found, N=len(a))
    wanted = a / b[:, None]
    size = wanted.abs()
    same = (found.view(torch.int32) == wanted.view(torch.int32)) | (found.isnan() & wanted.isnan())
    close = (found - wanted).abs() <= size * 2.0**-22 + 2.0**-148
    right = same | (close & ((size < 2.0**-88) | (size > 2.0**99)))
    return {f"{a[j]} / {b[i]}": float(found[i, j]) for i, j in (~right).nonzero().tolist()}


_CHOICES = """
@triton.jit
def choices(chosen, a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    bits = tl.load(weft_bytes(chosen + i))
    tl.store(out + i, weft_either(bits, tl.load(a + i), tl.load(b + i)))
    tl.store(out + N + i, weft_either(bits, tl.load(a + i), float("-inf")))
    tl.store(out + 2 * N + i, weft_either(bits, 0.5, tl.load(b + i)))
"""


def choices(folder: Path) -> dict[str, float]:
    """Collect choices by a loaded bool that are not `torch.where`'s to the bit: of any floats, by a tensor or a number."""
    rng = np.random.default_rng(6)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 3e38])
    a, b = (
        torch.from_numpy(
            np.concatenate(
                [
                    rng.permutation(np.float32(special)),
                    rng.integers(0, 2**32, 504, dtype=np.uint64).astype(np.uint32).view(np.float32),
                ]
            )
        )
        for _ in range(2)
    )
    chosen = torch.from_numpy(rng.integers(0, 2, 512).astype(bool))
    found = torch.empty(3, 512)
    _module("choices", _CHOICES, folder).choices[(1,)](chosen, a, b, found, N=512)
    low, half = torch.full_like(a, -torch.inf), torch.full_like(a, 0.5)
    wanted = torch.stack([torch.where(chosen, *each) for each in ((a, b), (a, low), (half, b))])
    same = found.view(torch.int32) == wanted.view(torch.int32)
    return {f"{i} {j}": float(found[i, j]) for i, j in (~same).nonzero().tolist()}


def _module(name: str, text: str, folder: Path) -> Any:
    """Import a module of Triton functions, with those of the prelude that they call."""
    path = folder / f"{name}.py"
    lines = ["import triton", "import triton.language as tl", *prelude.functions(text), text]
    path.write_text("\n".join(lines), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    """Run every case; print a JSON object by case: an error in units of rounding, or why there is none."""
    mend_floats()
    found: dict[str, float | str] = {}
    for name, case in {**cases(), **random_cases()}.items():
        try:
            found[name] = error(case, folder, random.Random(name))
        except UnsupportedError as why:
            found[name] = f"unsupported: {why.what}"
    found.update({f"conversion {name}": count for name, count in conversions(folder).items()})
    found.update({f"rounding {name}": got for name, got in roundings(folder).items()})
    found.update({f"quotient {name}": got for name, got in quotients(folder).items()})
    found.update({f"choice {name}": got for name, got in choices(folder).items()})
    found.update({f"operation {name}": off for name, off in operation_errors(folder).items()})
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
