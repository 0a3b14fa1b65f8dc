"""What `gpu_levels.py` compares: functions, sizes, and for each the ways to run it that weft's programs and schedules give.

Levels say who shares one reference (the greatest element) before results are corrected to a common one: a thread, a warp, a block
(a program of the grid), or all of a row. Forms say what becomes of the results: "apart", segments in programs of their own, which a
second launch merges; "in turn", one loop with a running state; "whole", nothing to merge; "unfused", a launch for each reduction.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from math import ceil
from typing import Any

import torch

from weft.block.program import BlockProgram, Map, Stacked
from weft.block.walk import maps
from weft.capture import capture
from weft.cost import Corrections, Resources, dependents, gpu, in_levels, launches_of, resources, total
from weft.emit.triton import GRANULARITY
from weft.errors import ScheduleError
from weft.pipeline import normalize
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.execute.regions import Regions
from weft.plan.partition.partition import Region, partition, united
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Example
from weft.plan.targets.triton.schedules import Blocks, parts, schedule
from weft.plan.targets.triton.select import GpuWays
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.target import Target
from weft.tensor.program import TensorProgram
from weft.verify.field_check import small_tiles

TARGET = Target("cuda", "90")
CHIP = gpu(TARGET)


class Exchange(Enum):
    """Between whom a kernel moves values other than through memory."""

    thread = auto()
    warp = auto()
    block = auto()


# The functions, in plain PyTorch.


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute the safe softmax of rows."""
    return torch.softmax(x, -1)


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute what safe softmax subtracts, and what it divides by."""
    most = x.amax(-1)
    return most, torch.exp(x - most[:, None]).sum(-1)


def greatest(x: torch.Tensor) -> torch.Tensor:
    """Compute the first launch of the unfused softmax."""
    return x.amax(-1)


def summed(x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Compute its second launch."""
    return torch.exp(x - most[:, None]).sum(-1)


def divided(x: torch.Tensor, most: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Compute its third launch."""
    return torch.exp(x - most[:, None]) / norm[:, None]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention with heads of 64."""
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


@dataclass(frozen=True)
class Function:
    """A function, or a launch of an unfused one.

    Attributes:
        fn: it.
        results: what its results are called.
        shapes: of its operands, at some sizes.
        examples: sizes at which it is fused; programs are the same at all.
        dtype: of its operands.
        flops: of its products.
        apart: the launches of its unfused form, by name.
    """

    fn: Callable[..., Any]
    results: tuple[str, ...]
    shapes: Callable[..., tuple[tuple[int, ...], ...]]
    examples: tuple[int, ...] = (4096, 8192)
    dtype: torch.dtype = torch.float32
    flops: Callable[[tuple[int, ...]], float] = lambda _: 0.0
    apart: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.fn).parameters)


def _heads(batch: int, heads: int, queries: int, keys: int, width: int) -> tuple[tuple[int, ...], ...]:
    return (batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, keys, width)


FUNCTIONS = {
    "softmax": Function(softmax, ("out",), lambda m, n: ((m, n),), apart=("greatest", "summed", "divided")),
    "statistics": Function(statistics, ("most", "norm"), lambda m, n: ((m, n),), apart=("greatest", "summed")),
    "greatest": Function(greatest, ("most",), lambda m, n: ((m, n),)),
    "summed": Function(summed, ("norm",), lambda m, n: ((m, n), (m,))),
    "divided": Function(divided, ("out",), lambda m, n: ((m, n), (m,), (m,))),
    "attention": Function(
        attention, ("out",), _heads, (8, 12, 512, 512, 64), torch.float16, lambda s: 4.0 * s[0] * s[1] * s[2] * s[3] * s[4]
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A function at sizes: what is compared is compared within one."""

    function: str
    sizes: tuple[int, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the operands."""
        return FUNCTIONS[self.function].shapes(*self.sizes)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its operands."""
        return FUNCTIONS[self.function].parameters

    @property
    def operands(self) -> Mapping[str, tuple[int, ...]]:
        """Their shapes, by name."""
        return dict(zip(self.parameters, self.shapes, strict=True))

    @property
    def results(self) -> tuple[str, ...]:
        """Names of its results."""
        return FUNCTIONS[self.function].results

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that are to be fused for the cell."""
        return (self.function, *FUNCTIONS[self.function].apart)

    @property
    def judged(self) -> tuple[int, ...]:
        """Rows that are judged: all, of the largest matrices a part."""
        return () if self.function == "attention" else (1024,)

    def __str__(self) -> str:
        return f"{self.function} {'x'.join(map(str, self.sizes))}"


ROWS, WIDTHS = (128, 4096), (1024, 2048, 4096, 8192)
"""Fewer rows than multiprocessors, and many; RedFuser's lengths (section 5.3), which says nothing of rows."""
BERT = (8, 12, 512, 512, 64)
"""Sequences, heads, queries, keys, width of BERT-base (section 5.4), which says nothing of sequences."""
CELLS = (
    *(Cell(name, (rows, width)) for name in ("statistics", "softmax") for rows in ROWS for width in WIDTHS),
    Cell("attention", BERT),
)
SMALL = (Cell("statistics", (6, 64)), Cell("softmax", (6, 64)), Cell("attention", (1, 1, 16, 32, 16)))
SEGMENTS = (1, 2, 3, 4, 6, 8, 16)
"""In which the keys of attention are cut."""


@dataclass(frozen=True)
class Fused:
    """The programs of a function.

    Attributes:
        program: what was written, with names of its own.
        inputs: (parameter, the program's name of it).
        innermost: as `Example` has it.
        candidates: fused programs, the likeliest first, without their traces.
    """

    program: TensorProgram
    inputs: tuple[tuple[str, str], ...]
    innermost: Mapping[str, int | None]
    candidates: tuple[Candidate, ...]

    def example(self, shapes: Mapping[str, tuple[int, ...]]) -> Example:
        """Describe operands of these shapes, by parameter."""
        named = {own: shapes[parameter] for parameter, own in self.inputs}
        nodes = ((n.axes, named[n.name]) for n in self.program.inputs)
        sizes = {a.space.name: size for axes, shape in nodes for a, size in zip(axes, shape, strict=True)}
        return Example(sizes, self.innermost, 1, TARGET)

    def one(self, what: str, of: Callable[[BlockProgram], bool]) -> Candidate:
        """Find the likeliest candidate of a form.

        Raises:
            LookupError: there is none.
        """
        found = next((c for c in self.candidates if of(c.fused)), None)
        if found is None:
            raise LookupError(f"no candidate for {what}; there are {[c.origin for c in self.candidates]}")
        return found


def fused(name: str) -> Fused:
    """Make the programs of a function of `FUNCTIONS`."""
    function = FUNCTIONS[name]
    own = dict(zip(function.parameters, function.shapes(*function.examples), strict=True))
    shapes = function.shapes(*range(3, 3 + len(function.examples)))  # the trace is for all sizes: small ones do
    region = _captured(function.fn, tuple(torch.zeros(s, dtype=function.dtype) for s in shapes))
    prepared = Regions({}, TARGET).prepared(region)
    assert not prepared.made
    named = zip(prepared.viewed.inputs, prepared.program.inputs, strict=True)
    inputs = tuple((old.name, new.name) for old, new in named)
    made = Fused(prepared.program, inputs, prepared.example.innermost, ())
    selection = looked_at_closely(select(prepared.program, made.example(own)))
    distinct: dict[BlockProgram, Candidate] = {}
    for each in (selection.chosen, *(selection.others or ())):
        distinct.setdefault(each.fused, replace(each, trace=()))
    return replace(made, candidates=tuple(distinct.values()))


def _captured(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Region:
    """Capture all of `fn` as one region."""
    programs: list[TensorProgram] = []

    def backend(gm: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., Any]:
        program = capture(gm, example).program
        assert program is not None
        programs.append(program)
        return gm.forward

    traced: Any = vars(torch)["compile"](fn, backend=backend, dynamic=True, fullgraph=True)
    traced(*inputs)
    program = normalize(programs[0])
    stages = partition(program)
    return united(program, [stage for stage in stages if isinstance(stage, Region)])


# The forms of programs.


def chains(program: BlockProgram) -> list[Map]:
    """List the loops that carry a state of several components."""
    return [m for m in maps(program.graph) if m.state is not None and len(m.state.components) > 1]


def is_one_loop(program: BlockProgram) -> bool:
    """Tell whether one loop carries all that depends on one another, and keeps nothing of its blocks: it can be cut in segments."""
    found = chains(program)
    return len(found) == 1 and not any(isinstance(o, Stacked) for o in found[0].outputs)


def is_loop_by_loop(program: BlockProgram) -> bool:
    """Tell whether no loop carries what depends on what it carries: each reduction ends before the next begins."""
    return not chains(program)


# Ways.


@dataclass(frozen=True)
class Placed:
    """A launch, or several, of one program.

    Attributes:
        program, example: what is computed, and its sizes.
        candidate: how.
        inputs: (value, the program's name of it); results: what its outputs are called.
    """

    program: TensorProgram
    example: Example
    candidate: Candidate
    inputs: tuple[tuple[str, str], ...]
    results: tuple[str, ...]

    @property
    def unfit(self) -> str | None:
        """Why a launch does not fit the GPU, by the model."""
        plan = self.candidate.schedule
        found = launches_of(self.candidate.applied, self.example.sizes)
        return next((why for each in found if (why := each.unfit(CHIP, plan.warps, plan.stages))), None)


@dataclass(frozen=True)
class Way:
    """A way to run a cell.

    Attributes:
        cell: of which.
        level, form: see the module's docstring.
        outputs: results of a row with references of their own: L of RedFuser's equation 11.
        steps: what is launched, in order.
        corrections: of a row, or of a block of rows: how often one is brought to another reference.
        exchange: between whom the first launch may exchange values; None: it does not matter.
    """

    cell: Cell
    level: str
    form: str
    outputs: int
    steps: tuple[Placed, ...]
    corrections: Corrections = field(default_factory=Corrections)
    exchange: Exchange | None = None

    @functools.cached_property
    def text(self) -> str:
        """A text that is equal for ways with equal kernels, at whatever number of rows."""
        return repr([(s.program, s.candidate.applied, s.candidate.schedule, s.example.innermost) for s in self.steps])

    @property
    def name(self) -> str:
        """A name among the cell's ways."""
        last = "; ".join(str(s.candidate.schedule).replace("\n", ", ") for s in self.steps)
        return f"{self.level} {self.form}, {self.outputs} outputs: {last}".strip()

    @property
    def predicted(self) -> float:
        """Seconds, by the model."""
        return sum(s.candidate.cost.predicted_seconds for s in self.steps)

    @functools.cached_property
    def unfit(self) -> str | None:
        """Why a launch does not fit the GPU, by the model."""
        return next((why for s in self.steps if (why := s.unfit)), None)

    @functools.cached_property
    def proofs(self) -> tuple[str, ...]:
        """For each step the same as of another way's where one proof serves both: what is proven has small tiles."""
        return tuple(repr((s.program, small_tiles(s.candidate.applied))) for s in self.steps)

    def know(self) -> None:
        """Work out all the above that takes long: it goes with the way from process to process."""
        _ = self.text, self.unfit, self.proofs, self.launches, self.first

    @functools.cached_property
    def launches(self) -> int:
        """The number of launches."""
        return sum(len(kernels(s.candidate.applied)) for s in self.steps)

    @functools.cached_property
    def first(self) -> Resources:
        """The resources of the first launch, by the model."""
        step = self.steps[0]
        applied, plan = step.candidate.applied, step.candidate.schedule
        return resources(applied, kernels(applied)[0], step.example.sizes, CHIP, plan.warps, plan.stages)


def ways(cell: Cell, programs: Mapping[str, Fused]) -> Iterator[Way]:
    """Yield the ways of a cell that weft can place, whether they fit or not."""
    found = _attention(cell, programs["attention"]) if cell.function == "attention" else _rows(cell, programs)
    for each in found:
        if each is not None:
            yield each


def placed(cell: Cell, name: str, own: Fused, candidate: Candidate, wanted: Schedule) -> Placed:
    """Place `candidate` of the function `name` under a schedule, at the sizes of `cell`; raises ScheduleError as `apply`."""
    function = FUNCTIONS[name]
    shapes = dict(zip(function.parameters, function.shapes(*cell.sizes), strict=True))
    example = own.example(shapes)
    applied = _applied(candidate, wanted)
    made = replace(
        candidate,
        schedule=wanted,
        applied=applied,
        cost=total(toolchain(example.target).costs(example, applied, wanted)),
    )
    return Placed(own.program, example, made, own.inputs, function.results)


@functools.cache  # candidates are compared by identity: one serves all sizes
def _applied(candidate: Candidate, wanted: Schedule) -> BlockProgram:
    return apply(candidate.fused, wanted, GRANULARITY)


def scheduled(
    own: Fused, cell: Cell, candidate: Candidate, blocks: Blocks, chain: tuple[Level, ...] = (), merging: int = 0
) -> Schedule:
    """Make the schedule that weft makes of `blocks`, its chain in the levels `chain`, where there are any."""
    sizes = own.example(cell.operands).sizes
    made = schedule(candidate.fused, parts(candidate.fused, sizes, own.innermost), blocks, sizes)
    loop = chains(candidate.fused)[0].name if chain else ""
    loops = tuple((name, LoopSchedule(chain) if name == loop else levels) for name, levels in made.loops)
    on_grid = [name for name, loop in loops if loop.levels[-1].place is LevelPlace.grid]
    return replace(made, loops=loops, merging=tuple((name, merging) for name in on_grid) if merging else ())


def segments(count: int, tile: int) -> tuple[Level, ...]:
    """Return levels for so many segments, each block by block; one segment is no split."""
    own = (Level(LevelPlace.loop, tile),)
    return (Level(LevelPlace.split, count), *own) if count > 1 else own


# Rows of a program whose threads have a row each, and what a thread reads of it at once.
_LANES, _READ = 128, 4
# Elements of a block of what follows the reductions.
_REST = 4096


def outputs_of(cell: Cell) -> dict[Exchange, int]:
    """Return L of each level: two blocks of four warps of 32 threads to a row, as in docs/measurements/cascades-levels.md; at small
    sizes fewer.
    """
    if cell in SMALL:
        return {Exchange.thread: 8, Exchange.warp: 4, Exchange.block: 2}
    return {Exchange.thread: 256, Exchange.warp: 8, Exchange.block: 2}


@dataclass(frozen=True)
class _Chain:
    """How a chain goes: as `Way` has it, the levels of its loop, and the rows of a program that merges."""

    level: str
    form: str
    outputs: int
    levels: tuple[Level, ...]
    merging: int = 0
    exchange: Exchange | None = None


def _rows(cell: Cell, programs: Mapping[str, Fused]) -> Iterator[Way | None]:
    """Yield ways of softmax or of its statistics."""
    own = programs[cell.function]
    width = cell.sizes[1]
    after = (32, 128) if cell.function == "statistics" else (2, 8)  # rows of a program that merges
    for level, outputs in outputs_of(cell).items():
        tile = _READ if level is Exchange.thread else width // outputs
        blocks = {
            Exchange.thread: ((_LANES, 4), (_LANES // 4, 1)),
            Exchange.warp: ((1, 1), (4, 1)),
            Exchange.block: ((1, 4), (1, 8), (4, 4), (4, 8)),
        }[level]
        for rows, warps in blocks:
            # What follows in the same launch has the blocks of a thread's rows too: other layouts would be exchanged.
            lanes = _READ if level is Exchange.thread else _REST // rows
            turn = _Chain(level.name, "in turn", 1, segments(1, tile), exchange=level)
            yield _chained(cell, own, Blocks(few=rows, lanes=lanes, warps=warps, stages=1), turn)
            for merging in sorted({min(n, rows) for n in after}):
                each = Blocks(few=rows, lanes=max(32, _REST // merging), warps=warps, stages=1)
                apart = _Chain(level.name, "apart", outputs, segments(outputs, tile), merging, level)
                yield _chained(cell, own, each, apart)
    held = own.one("loop by loop", is_loop_by_loop)
    for rows in (1, 4):
        for warps in (4, 8):
            whole = scheduled(own, cell, held, Blocks(few=rows, lanes=0, warps=warps, stages=1))
            step = _placed(cell, own, held, whole)
            yield None if step is None else Way(cell, "row", "whole", 1, (step,))
    yield from _unfused(cell, programs)


def _attention(cell: Cell, own: Fused) -> Iterator[Way | None]:
    """Yield ways of attention: segments of the keys, each block by block or in one block."""
    queries, keys = cell.sizes[2:4]
    for count in SEGMENTS:
        for tile in (16, 32, 64, 128, 256, 512):
            each = ceil(ceil(keys / tile) / count) * tile
            if keys // count < 16 or tile * count > keys or each * (count - 1) >= keys or (tile < 32 and each > 96):
                continue  # segments without keys; blocks that are small for no reason
            whole = tile * count == keys
            chain = _Chain(
                "block", "whole" if whole else "in turn", count, segments(count, tile), 4 if count > 1 else 0
            )
            for warps in (4, 8):
                for stages in (1,) if whole else (2, 3):
                    yield _chained(
                        cell, own, Blocks(rows=min(128, queries), depth=tile, warps=warps, stages=stages), chain
                    )


def _chained(cell: Cell, own: Fused, blocks: Blocks, chain: _Chain) -> Way | None:
    """Return a way with the chain in one loop; None where the program cannot have it."""
    candidate = own.one("one loop", is_one_loop)
    step = _placed(cell, own, candidate, scheduled(own, cell, candidate, blocks, chain.levels, chain.merging))
    if step is None:
        return None
    node = chains(candidate.fused)[0]
    assert node.state is not None
    corrections = in_levels(node.axis.space.size(step.example.sizes), chain.levels, dependents(node.state))
    return Way(cell, chain.level, chain.form, chain.outputs, (step,), corrections, chain.exchange)


def _placed(cell: Cell, own: Fused, candidate: Candidate, wanted: Schedule) -> Placed | None:
    """Place a candidate of the cell's function, as `placed` does; None where the program cannot have the schedule."""
    try:
        return placed(cell, cell.function, own, candidate, wanted)
    except ScheduleError:
        return None


def _unfused(cell: Cell, programs: Mapping[str, Fused]) -> Iterator[Way]:
    """Yield a launch for each reduction and one for the rest, each as weft's model likes it best, second best, third best."""
    steps: list[list[Placed]] = []
    for name in FUNCTIONS[cell.function].apart:
        function, own = FUNCTIONS[name], programs[name]
        example = own.example(dict(zip(function.parameters, function.shapes(*cell.sizes), strict=True)))
        candidate = own.candidates[0]
        found = GpuWays(candidate.fused, example.sizes, example.innermost, toolchain(TARGET)).few()[:3]
        steps.append([placed(cell, name, own, candidate, way.schedule) for way in found])
    for choice in zip(*steps, strict=False):
        yield Way(cell, "", "unfused", 1, choice)
