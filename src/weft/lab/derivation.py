"""From a function to its fused, safe program, with every step on the way (`weft demo`)."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from weft import pipeline
from weft.api.left_out import place
from weft.api.optimize import optimize
from weft.api.program import Program
from weft.block.copies import canonical
from weft.block.listing import listing
from weft.block.program import BlockProgram
from weft.fuse import Fusion, Rule
from weft.fuse.safety import Safe, make_safe
from weft.lab.examples import ExampleFunction, Sizes
from weft.lab.measure import Standard
from weft.lab.workloads.cpu import ATTENTION, LAYERNORM, RMSNORM
from weft.pipeline import DERIVED_LAWS, PASSES, replayed
from weft.tensor.passes import Change, Conditioning, Setting
from weft.tensor.program import TensorProgram
from weft.verify import together
from weft.verify.eager import EagerDomain, eagerly
from weft.verify.judge import OutputJudgement, reference

DERIVED: Mapping[str, tuple[ExampleFunction, Sizes]] = {
    "attention": (ATTENTION, (96, 32)),
    "layernorm": (LAYERNORM, (48, 64, 40)),
    "rmsnorm": (RMSNORM, (32, 24, 40)),
}
"""Blockbuster's three examples, with sizes that compile and run at once."""

_FAR = 1.0e4
"""What is added to the first operand to see whether a program is accurate far from zero."""


@dataclass(frozen=True, slots=True, eq=False)
class Derivation:
    """How a tensor program becomes a fused one.

    Attributes:
        written: the program under the laws that every program goes through.
        laws: the applications of the other laws that changed it.
        lowered: every operation on its own.
        fusion: the snapshots, and every step.
        safe: the last snapshot, made numerically safe.
    """

    written: TensorProgram
    laws: tuple[Change[TensorProgram], ...]
    lowered: BlockProgram
    fusion: Fusion
    safe: Safe

    @property
    def before_fusion(self) -> TensorProgram:
        """The program that was lowered."""
        return self.laws[-1].after if self.laws else self.written

    @property
    def cancelling(self) -> tuple[str, ...]:
        """The laws and rules used that may cancel most of a result away: no kernel is made with one."""
        used = dict.fromkeys(step.rule for step in (*self.laws, *self.fusion.steps))
        return tuple(name for name in used if PASSES[name].conditioning is Conditioning.cancels)


def derive(program: TensorProgram) -> Derivation:
    """Derive `program` with all laws and all rules, those that may cancel among them."""
    setting = Setting()
    begun = pipeline.DERIVED.begun(program, setting)
    names = {law.name for law in DERIVED_LAWS}
    laws = tuple(change for change in replayed(program, begun.steps) if change.rule in names)
    fusion = pipeline.DERIVED.fusion(begun.program, setting)
    return Derivation(program, laws, begun.program, fusion, make_safe(fusion.last))


@dataclass(frozen=True, slots=True)
class FarFromZero:
    """Largest |result - fp64| where the first operand is moved by `by`; None where a result is NaN.

    Attributes:
        by: what is added to each element.
        derived: of the derived program before fusion, each operation rounded as eager rounds it.
        eager: of the function in eager PyTorch.
        kernels: of weft's kernels.
    """

    by: float
    derived: float | None
    eager: float | None
    kernels: float | None


@dataclass(frozen=True, slots=True)
class DerivationOutcome:
    """What became of a function that was derived and compiled.

    Attributes:
        function: its title.
        steps: every rewrite, as text.
        snapshots: after how many steps nothing was left to fuse without extending a map.
        exponentials: how many became significand-exponent pairs.
        cancelling: laws and rules among them that no kernel is made with.
        kernels: how many weft runs.
        same_program: whether they are made from the last snapshot, made safe.
        equal, error_probability, agrees, claim: the verdict on them, as those of `weft.Verdict`.
        error, allowed: of their results, under the error rule.
        right: whether all of it is kernels that agree with what was written, and within the rule.
        far: where something cancels, errors far from zero.
    """

    function: str
    steps: tuple[str, ...]
    snapshots: tuple[int, ...]
    exponentials: int
    cancelling: tuple[str, ...]
    kernels: int
    same_program: bool
    equal: bool | None
    error_probability: float | None
    agrees: bool
    claim: str
    error: float
    allowed: float
    right: bool
    far: FarFromZero | None


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """An example of the paper, compiled and derived."""

    example: ExampleFunction
    sizes: Sizes
    program: Program
    derivation: Derivation

    @staticmethod
    def of(name: str) -> Compiled:
        """Compile the example `name` of `DERIVED`."""
        example, sizes = DERIVED[name]
        program = optimize(example.make(sizes), example.inputs(sizes, torch.float32, 0))
        written = program.plans[0].program
        assert written is not None
        return Compiled(example, sizes, program, derive(written))

    def inputs(self, number: int) -> tuple[torch.Tensor, ...]:
        """Draw random operands."""
        return self.example.inputs(self.sizes, torch.float32, number)

    def found(self) -> DerivationOutcome:
        """Collect what there is to say of it, its results judged on fresh inputs."""
        fn, program, derivation = self.example.make(self.sizes), self.program, self.derivation
        verdict = together([k.verdict for plan in program.plans for region in plan.regions for k in region.kernels[:1]])
        judgement: OutputJudgement = Standard.of(fn, self.inputs, draws=2).judge(program).outputs[0]
        regions = [region for plan in program.plans for region in plan.regions]
        return DerivationOutcome(
            function=self.example.title,
            steps=tuple(map(str, derivation.fusion.steps)),
            snapshots=tuple(s.steps for s in derivation.fusion.snapshots),
            exponentials=derivation.safe.converted,
            cancelling=derivation.cancelling,
            kernels=len(program.kernels),
            same_program=len(regions) == 1 and listing(regions[0].fused) == listing(canonical(derivation.safe.program)),
            equal=verdict.equal,
            error_probability=verdict.error_probability,
            agrees=verdict.agrees,
            claim=verdict.claim,
            error=judgement.error,
            allowed=judgement.bound,
            right=verdict.agrees and judgement.ok and not program.fallbacks,
            far=self._far_from_zero(fn) if derivation.cancelling else None,
        )

    def _far_from_zero(self, fn: Callable[..., Any]) -> FarFromZero:
        first, *others = self.inputs(0)
        inputs = (first + _FAR, *others)
        captured = self.program.plans[0].captured
        program = self.derivation.before_fusion
        assert captured.program is not None
        at = {node.name: index for node, index in zip(captured.program.inputs, captured.arguments, strict=True)}
        given = {node.name: inputs[at[node.name]].numpy() for node in program.inputs}
        known = {
            axis.space.name: size
            for node in program.inputs
            for axis, size in zip(node.axes, given[node.name].shape, strict=True)
        }
        (derived,) = map(torch.tensor, eagerly(program, given, program.sizes(known), EagerDomain()))
        exact: Any = reference(fn, inputs)
        with torch.no_grad():
            results = (derived, fn(*inputs), self.program(*inputs))
        errors = [float((r.double() - exact).abs().max()) for r in results]  # NaN where there is one
        return FarFromZero(_FAR, *(None if math.isnan(error) else error for error in errors))


# What is printed.


def show(console: Console, compiled: Compiled, found: DerivationOutcome, *, every: bool) -> None:
    """Print the derivation, a numbered line for each step.

    Args:
        console: to print to.
        compiled: what was derived.
        found: and what became of it.
        every: print the program after every step, not only the snapshots.
    """
    derivation = compiled.derivation
    console.print(Text.assemble("derivation of ", (found.function, "bold"), f": {compiled.example.formula}"))
    _said(console, "written in PyTorch, captured as a tensor program", str(derivation.written))
    for change in derivation.laws:
        _said(console, f"law {change.rule}: {PASSES[change.rule].says}", str(change.after))
    _said(console, "as a block program: every operation alone, every result a list", listing(derivation.lowered))
    rules = ", ".join(f"{rule} {count}×" for rule, count in Counter(s.rule for s in derivation.fusion.steps).items())
    _line(console, f"{len(derivation.fusion.steps)} rewrites: {rules}")
    _steps(console, derivation.fusion, every=every)
    _safety(console, derivation.safe)
    for text in _end(compiled, found):
        _line(console, text)


def _steps(console: Console, fusion: Fusion, *, every: bool) -> None:
    ends = {s.steps: s.program for s in fusion.snapshots}
    for number, step in enumerate(fusion.steps, 1):
        rule = PASSES[step.rule]
        assert isinstance(rule, Rule)
        console.print(Text(f"  {number:4}. {rule.kind:<6}  {rule.name:<28} in {place(step)}"))
        if number in ends:
            last = number == len(fusion.steps)
            rest = "nothing matches any more" if last else "nothing is left to fuse without extending a map"
            _said(console, f"snapshot after {number} steps: {rest}", listing(ends[number]))
        elif every:
            _program(console, listing(step.after))


def _safety(console: Console, safe: Safe) -> None:
    count, left = safe.converted, safe.plain
    if count:
        pairs = "1 exponential becomes a pair" if count == 1 else f"{count} exponentials become pairs"
        text = f"numerical safety: {pairs} of significand and exponent; loops carry the largest exponent so far"
        _said(console, text, listing(safe.program))
    if left:
        stay = "1 exponential stays" if left == 1 else f"{left} exponentials stay"
        _line(console, f"numerical safety: {stay} as written: the result needs the value, no factor of it cancels")
    if not count and not left:
        _line(console, "numerical safety: there is no exponential")


def _end(compiled: Compiled, found: DerivationOutcome) -> Iterator[str]:
    if found.far is not None:
        far = found.far
        yield (
            f"{' and '.join(found.cancelling)} cancel: this program is ill-conditioned. With a mean of {far.by:g} in the first "
            f"operand, it is {_wrong(far.derived)} before fusion already, eager {_wrong(far.eager)}, weft's kernels "
            f"{_wrong(far.kernels)}: kernels are made without these laws, they keep two-pass statistics."
        )
    kernels = "1 kernel" if found.kernels == 1 else f"{found.kernels} kernels"
    regions = [region for plan in compiled.program.plans for region in plan.regions]
    origins = "the program above" if found.same_program else "; ".join(r.origin for r in regions)
    yield f"runs as {kernels}, made from: {origins}"
    if not found.same_program:
        for region in regions:
            yield textwrap.indent(listing(region.fused), " " * 6)
    yield f"checked over finite fields: {found.claim if found.agrees else 'NOT what was written'}"
    verdict = "right" if found.right else "NOT right"
    yield f"judged at {'x'.join(map(str, compiled.sizes))}, fp32: {verdict}, error {found.error:.2g}, {found.allowed:.2g} allowed"


def _wrong(error: float | None) -> str:
    return "NaN" if error is None else f"wrong by {error:.2g}"


def _said(console: Console, head: str, program: str) -> None:
    _line(console, f"{head}:")
    _program(console, program)


def _line(console: Console, text: str) -> None:
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def _program(console: Console, text: str) -> None:
    console.print(Text(textwrap.indent(text, " " * 8), "cyan"), soft_wrap=True)
