"""Campaigns of random programs through lowering, fusion, scheduling and, if asked, compiled kernels.

Every snapshot of the fusion and every applied schedule is run beside the evaluator: over a finite field, where results must be
the same, and in fp64, where they may differ by rounding. Kernels are judged by the error rule, beside the same program run in
PyTorch.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np
import torch

from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.errors import ScheduleError, UnsupportedError, WeftError
from weft.fuse import Fusion
from weft.lab.fuzz.campaign import Course, Tally, run
from weft.lab.fuzz.random_programs import minimised, random_program
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.lab.fuzz.record import Outcome
from weft.options import options
from weft.pipeline import AFTER_FUSION, RULES_IN_PLANS, fuse
from weft.plan.choose.region import Example, compile_region
from weft.schedule import Schedule
from weft.tensor.domain import Array, Domain
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.passes import Step
from weft.tensor.program import TensorProgram
from weft.tensor.wellformed import well_formed
from weft.verify.eager import EagerDomain, eagerly
from weft.verify.inputs import random_inputs, with_numbers
from weft.verify.judge import Draws, judge
from weft.verify.subject import field_for

T = TypeVar("T")
V = TypeVar("V")

_SIZES = (1, 2, 3, 5, 7)
_DRAWS = 4
# fp64 results may differ by this much of the largest value anywhere in the program: thousands of roundings.
_ROUNDING = 1.0e-11


class _WrongError(Exception):
    """A result that is not what it must be, or an error where none may be."""

    def __init__(self, stage: str, what: str) -> None:
        super().__init__(what)
        self.stage, self.what = stage, what


def campaign(
    seeds: Iterable[int],
    *,
    compiled: bool = False,
    operations: int | None = None,
    course: Course | None = None,
) -> Tally:
    """Check the random programs with these seeds.

    Args:
        seeds: of the programs; each can be looked at alone.
        compiled: also build the kernels of each and judge their results.
        operations: about how many each has (`random_program`).
        course: limit of time, and where results go.

    Returns:
        Counts of programs, operations, snapshots, schedules and kernels; of rewrites by rule; of refusals by reason.
    """

    def examine(program: TensorProgram, seed: int, counts: Counter[str], stage: str) -> tuple[str, str] | None:
        counts["operations"] += len(program.nodes)
        wrong = _examine(program, seed, counts, compiled and stage in ("", "kernel"))
        return None if wrong is None else (wrong.stage, wrong.what)

    def outcomes(left: Iterator[int]) -> Generator[Outcome]:
        return examined(left, examine, operations)

    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder, options(cache_dir=folder):
        return run("random programs", seeds, outcomes, course)


Examine: TypeAlias = Callable[[TensorProgram, int, Counter[str], str], tuple[str, str] | None]
"""Says at which stage a program is wrong, and what is: of a program, its seed, counts to add to, and the one stage that is of
interest, or ""."""


def examined(seeds: Iterable[int], examine: Examine, operations: int | None = None) -> Generator[Outcome]:
    """Yield what became of the random program with each of `seeds`; of one that is wrong, with the smallest that is wrong alike."""
    for seed in seeds:
        begun, counts = time.monotonic(), Counter[str]()
        program = random_program(random.Random(seed), operations)
        wrong = examine(program, seed, counts, "")
        seconds = time.monotonic() - begun
        if wrong is None:
            yield Outcome(seed, counts=counts, seconds=seconds)
            continue
        stage, what = wrong

        def fails(smaller: TensorProgram, seed: int = seed, stage: str = stage) -> bool:
            found = examine(smaller, seed, Counter(), stage)
            return found is not None and found[0] == stage

        minimal = minimised(program, fails)
        text = f"{program}\n\nsmallest program that fails so:\n\n{minimal}"
        yield Outcome(seed, stage, what, text, counts, seconds, minimal)


def _examine(program: TensorProgram, seed: int, counts: Counter[str], compiled: bool) -> _WrongError | None:
    """Say what is wrong with `program` and all that is made of it; None where nothing is."""
    rng = random.Random(f"{seed} choices")
    try:
        _staged("lower", counts, lambda: well_formed(program))
        lowered = _staged("lower", counts, lambda: lower(program))
        if lowered is None:
            return None
        _staged("lower", counts, lambda: check(lowered))
        fusion = _staged("fuse", counts, lambda: fuse(lowered, checked=True))
        plain = _staged("fuse", counts, lambda: fuse(lowered, RULES_IN_PLANS, (), checked=True))
        assert fusion is not None
        assert plain is not None
        counts.update(f"rule: {step.rule}" for step in fusion.steps)
        counts["snapshots"] += len(fusion.snapshots)
        _staged("snapshot", counts, lambda: _check_snapshots(program, fusion, rng))
        chosen = _after_fusion(rng.choice(fusion.snapshots).program)
        found = _staged("schedule", counts, lambda: _check_schedule(program, canonical(plain.last), rng, counts))
        _staged("schedule", counts, lambda: _check_schedule(program, canonical(chosen), rng, counts))
        if compiled and found is not None:
            _staged("kernel", counts, lambda: _check_kernel(program, found, rng, counts))
    except _WrongError as wrong:
        return wrong
    return None


def _staged(stage: str, counts: Counter[str], work: Callable[[], T]) -> T | None:
    """Do `work`; None where it is refused, and any other error is a finding."""
    try:
        return work()
    except _WrongError as wrong:
        raise _WrongError(stage, wrong.what) from wrong
    except (UnsupportedError, ScheduleError) as refusal:
        counts[f"refused: {stage}: {_reason(refusal)}"] += 1
    except Exception as error:
        raise _WrongError(stage, f"{type(error).__name__}: {getattr(error, 'what', error)}") from error
    return None


def _reason(refusal: WeftError) -> str:
    """Leave names and numbers out, which differ from program to program."""
    return re.sub(r"'[^']*'|\b[a-z]\d[\w.]*|\[[^]]*\]", "..", refusal.what)


def _check_snapshots(program: TensorProgram, fusion: Fusion, rng: random.Random) -> None:
    """Check every snapshot at sizes of several whole blocks; of one that is wrong, name the first rewrite that made it so."""
    blocks = {s.name: rng.choice((1, 2, 3)) for s in program.spaces() if s.fixed is None}
    trial = ProgramTrial(program, {name: size * rng.choice((1, 2, 3)) for name, size in blocks.items()}, rng, blocks)
    for number, snapshot in enumerate(fusion.snapshots):
        different = trial.difference(snapshot.program)
        if different is None:
            continue
        wrong = next((step for step in fusion.steps if trial.difference(step.after) is not None), None)
        by = "before any rewrite" if wrong is None else f"since {wrong}"
        raise _WrongError("snapshot", f"snapshot {number}, {by}: {different}")
    for number, other in enumerate(fusion.alternatives):
        different = trial.difference(other.program)
        if different is not None:
            raise _WrongError("snapshot", f"alternative {number}, with the first iteration peeled off: {different}")
    for program_ in (*(s.program for s in fusion.snapshots), *(a.program for a in fusion.alternatives)):
        last = _after_fusion(program_)
        check(last)
        different = trial.difference(last)
        if different is not None:
            raise _WrongError("after fusion", f"with the passes after fusion: {different}")


def _after_fusion(program: BlockProgram) -> BlockProgram:
    """Apply the passes that come after fusion, those for other targets among them."""
    for each in AFTER_FUSION:
        program = each.again(program, Step(each.name))
    return program


def _check_schedule(
    program: TensorProgram, block: BlockProgram, rng: random.Random, counts: Counter[str]
) -> tuple[BlockProgram, Schedule]:
    """Check `block` under a random schedule, at sizes of its own."""
    schedule, applied = fitting_schedule(block, rng)
    counts["schedules"] += 1
    trial = ProgramTrial(program, {s.name: rng.choice(_SIZES) for s in program.spaces() if s.fixed is None}, rng)
    different = trial.difference(applied)
    if different is not None:
        raise _WrongError("schedule", f"{different}\n\nunder the schedule\n{schedule}\n\nof\n{listing(block)}")
    return applied, schedule


class ProgramTrial:
    """One choice of sizes and inputs: what the program gives there over a field and in fp64."""

    def __init__(
        self,
        program: TensorProgram,
        sizes: Mapping[str, int],
        rng: random.Random,
        blocks: Mapping[str, int] | None = None,
    ) -> None:
        self.sizes, self.blocks = program.sizes(sizes), blocks
        numbers = np.random.default_rng(rng.getrandbits(32))
        self.field, self.reals = field_for((program,), rng.getrandbits(31)), TameNumbers()
        self.elements = inputs_of(program, self.sizes, self.field, numbers)
        self.numbers = inputs_of(program, self.sizes, self.reals, numbers)
        self.exact = evaluate(program, self.elements, self.field)
        self.wanted = evaluate(program, self.numbers, self.reals)
        self.tolerance = _ROUNDING * largest(program, self.numbers)

    def difference(self, block: BlockProgram) -> str | None:
        """Say where `block` gives something else; None where it does not."""
        at = f"at sizes {self.sizes}" + (f" in blocks of {self.blocks}" if self.blocks else "")
        elements, _ = interpret(block, self.elements, self.sizes, self.field, self.blocks)
        for place, (a, b) in enumerate(zip(self.exact, elements, strict=True)):
            if not self.field.equal(a, b):
                return f"output {place} differs over the field, {at}"
        numbers, _ = interpret(block, self.numbers, self.sizes, self.reals, self.blocks)
        for place, (a, b) in enumerate(zip(self.wanted, numbers, strict=True)):
            if a.shape != b.shape or not np.allclose(a, b, rtol=0.0, atol=self.tolerance, equal_nan=True):
                return f"output {place} differs in fp64, {at}"
        return None


def inputs_of(
    program: TensorProgram, sizes: Mapping[str, int], domain: Domain[V], rng: np.random.Generator
) -> dict[str, V]:
    """Draw random inputs, with numbers of the program among them."""
    return with_numbers(random_inputs(program, sizes, domain, rng), (program,), domain, rng)


class TameNumbers(Fp64Domain):
    """Numbers whose random inputs lie where `random_programs` wants them."""

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
        """Draw floats in -1 .. 1, exact in the type, and integers in -3 .. 3."""
        if dtype.is_float:
            return rounded(rng.uniform(-1.0, 1.0, tuple(shape)), dtype)
        return rng.integers(-3, 4, tuple(shape))


def largest(program: TensorProgram, inputs: Mapping[str, Array]) -> float:
    """Find the largest number that the program computes anywhere, at least 1: what roundings are relative to."""
    every = replace(program, outputs=tuple(n.name for n in program.nodes), output_dims=())
    values = evaluate(every, inputs, Fp64Domain())
    return max([1.0, *(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in values if v.dtype.kind == "f")])


def laid_out(array: Array, dtype: DType, rng: random.Random) -> torch.Tensor:
    """Make the numbers a tensor, its dimensions in one of several orders in memory, dense or not."""
    tensor = torch.tensor(array).to(getattr(torch, dtype.name))
    order = list(range(tensor.ndim))
    rng.shuffle(order)
    if rng.random() < 0.5:
        tensor = tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.ndim)])
    if tensor.ndim and rng.random() < 0.2:
        tensor = torch.stack((tensor, torch.full_like(tensor, 99)), dim=-1)[..., 0]
    return tensor


def _check_kernel(
    program: TensorProgram, found: tuple[BlockProgram, Schedule], rng: random.Random, counts: Counter[str]
) -> None:
    """Check kernels of `program` under the schedule, beside eager, at several sizes, 0 among them."""
    _, schedule = found
    spaces = [s for s in program.spaces() if s.fixed is None]
    example = Example({s.name: s.fixed or 5 for s in program.spaces()}, {n.name: None for n in program.inputs}, 2)
    region = compile_region(program, example, schedule)
    counts["kernels"] += len(region.kernels)
    kinds = program.values()
    results: list[tuple[tuple[torch.Tensor, ...], ...]] = []
    for draw in range(_DRAWS):
        sizes = program.sizes({s.name: rng.choice((0, *_SIZES) if draw == 0 else _SIZES[1:]) for s in spaces})
        numbers = inputs_of(program, sizes, TameNumbers(), np.random.default_rng(rng.getrandbits(32)))
        values = {n.name: laid_out(numbers[n.name], n.dtype, rng) for n in program.inputs}
        exact = tuple(torch.tensor(v) for v in evaluate(program, numbers, Fp64Domain(), sizes=sizes))
        eager = tuple(
            torch.tensor(v).to(getattr(torch, kinds[name].dtype.name))
            for v, name in zip(eagerly(program, numbers, sizes, EagerDomain()), program.outputs, strict=True)
        )
        for kernel in region.kernels:
            passed = [sizes[name] for name in kernel.sizes]
            values.update(zip(kernel.writes, kernel.launch(*[values[n] for n in kernel.reads], *passed), strict=True))
        results.append((tuple(values[n] for n in program.outputs), eager, exact))
    judgement = judge(*(Draws([r[i] for r in results]) for i in range(3)))
    if not judgement.ok:
        raise _WrongError(
            "kernel", f"{judgement.reason}\n\nunder the schedule\n{schedule}\n\n{region.kernels[0].source}"
        )
