"""`explain`: every decision, as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from weft.api.files import path_of, replacing
from weft.api.left_out import left_out
from weft.block.listing import listing
from weft.block.program import BlockProgram
from weft.cascade import chains, formulas
from weft.cost import closed_form
from weft.errors import UnsupportedError
from weft.pipeline import cancel_shifts, replayed
from weft.plan import CompiledRegion, Plan, described, measured_before
from weft.schedule import KernelNodes, kernels
from weft.tensor.program import Derived, Input, TensorProgram
from weft.verify import Ranges


@dataclass(frozen=True, slots=True)
class Report:
    """Titled sections of plain text; `str` joins them, `save` writes them."""

    sections: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "\n\n".join(f"== {title}\n{text}" for title, text in self.sections)

    def save(self, path: str | Path) -> Path:
        """Write the report to `path`: a page where the name ends in .html, else plain text.

        Raises:
            ArgumentError: `path` is none.
            MissingFileError: its folder is not there; a FileNotFoundError, too.
            FileError: it is a folder, or cannot be written; an OSError, too.
        """
        path = path_of(path, "the path to save the report to")
        text = self._page() if path.suffix.lower() in (".html", ".htm") else f"{self}\n"
        with replacing(path) as new:
            new.write_text(text, encoding="utf-8")
        return path

    def _page(self) -> str:
        console = Console(record=True, width=140, file=io.StringIO())
        for title, text in self.sections:
            console.print(Text(title, style="bold"))
            console.print(Text(text))
            console.print()
        return console.export_html()


def report(plans: Sequence[Plan]) -> Report:
    """Write the report of the plans of one function."""
    sections: list[tuple[str, str]] = []
    for number, plan in enumerate(plans, 1):
        of = f" (graph {number} of {len(plans)})" if len(plans) > 1 else ""
        sections += [(title + of, text) for title, text in _plan(plan)]
    if not plans:
        sections.append(
            ("captured program", "no graph was captured: the function does nothing that weft could compile")
        )
    return Report(tuple(sections))


def _plan(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.captured.program is not None:
        yield "captured program", str(plan.captured.program)
    if plan.program is not None:
        yield "after the laws on tensor programs", str(plan.program)
    if plan.program is not None:
        yield "sizes", _sizes(plan.program)
    for number, region in enumerate(plan.regions, 1):
        of = f" of region {number}" if len(plan.regions) > 1 else ""
        yield from ((title + of, text) for title, text in _region(region))
    if plan.program is not None and plan.captured.writes:
        yield "writes into arguments", "\n".join(described(plan.captured, plan.program, plan.in_place))
    if plan.captured.views:
        yield "views that PyTorch makes, without a copy", "\n".join(map(str, plan.captured.views))
    measured = measured_before(plan)
    if measured is not None:
        text = f"{measured}; other processes used {measured.load:.1f} cores; trials: {measured.trials}"
        yield "measured under weft.compile", text
    fallbacks = "\n".join(map(str, plan.fallbacks)) or "none: everything runs in weft's kernels"
    yield "fallbacks to PyTorch", fallbacks


def _sizes(program: TensorProgram) -> str:
    """List the dimensions of each input; which sizes any call may have, and which are fixed, and why."""

    def dims(node: Input) -> str:
        return " × ".join("1" if a is None else a.space.name for a in node.dims or node.axes) or "a number"

    lines = [f"{node.name}: {dims(node)}" for node in program.inputs]
    spaces, follows = program.spaces(), {rule.space.name: rule for rule in program.derived}
    free = [s.name for s in spaces if s.fixed is None and s.name not in follows]
    lines.append(f"read at each call: {', '.join(free) or 'none'}; other values of these need no new binary")
    lines += [f"{name} follows: {_rule(rule)}" for name, rule in follows.items()]
    lines += [f"{s.name} = {s.fixed}: fixed by the program" for s in spaces if s.fixed is not None]
    if any(axis is None for node in program.inputs for axis in node.dims):
        lines.append(
            "dimensions of size 1 are broadcast, and no loop runs over them: another size there needs another program"
        )
    return "\n".join(lines)


def _rule(rule: Derived) -> str:
    """Say how a size follows from another one."""
    times = f"{rule.times} times " if rule.times != 1 else ""
    if times and (rule.start, rule.stop, rule.step) == (None, None, 1):
        return f"{times}{rule.source.name}"
    return f"{times}[{rule.start or ''}:{'' if rule.stop is None else rule.stop}:{rule.step}] of {rule.source.name}"


def _region(region: CompiledRegion) -> Iterator[tuple[str, str]]:
    yield "candidates", _candidates(region)
    for change in replayed(region.program, region.trace):
        if change.rule == cancel_shifts.name:
            yield "tensor program after the law of shifts", str(change.after)
        if isinstance(change.before, TensorProgram) and isinstance(change.after, BlockProgram):
            yield "block program before fusion", listing(change.after)
    yield "rewrites", "\n".join(f"{i}. {step}" for i, step in enumerate(region.trace, 1)) or "none applied"
    derived = _chains(region)
    if derived:
        yield "chains of reductions", derived
    yield (
        "left out",
        "\n".join(left_out(region.program)) or "nothing: no law or rule that loses digits by cancellation would apply",
    )
    yield "magnitudes", _bears(region)
    yield "block program after fusion", listing(region.fused)
    for kernel in region.kernels[:1]:
        yield "schedule", str(kernel.schedule)
        yield "scheduled program", listing(kernel.block_program)
        for made, part in zip(region.kernels, kernels(kernel.block_program), strict=True):
            yield f"transfers of {made.name} in closed form", _closed(part)
    for kernel in region.kernels:
        title, _, text = str(kernel).partition("\n")
        yield title, text


def _closed(part: KernelNodes) -> str:
    """Say which values a kernel moves and holds: sizes and blocks are symbols."""
    try:
        return f"in values; g_x: a block of loop x on the grid, s_x: a block of a loop inside\n{closed_form(part)}"
    except UnsupportedError as error:
        return f"none: {error.what}"


def _chains(region: CompiledRegion) -> str:
    """Show how each chain of dependent reductions is one loop: decomposition, update and merge of each."""
    found = chains(region.program, running=region.approximation is not None).found.decompositions
    return "\n\n".join("\n".join(map(str, formulas(each))) for each in found)


def _candidates(region: CompiledRegion) -> str:
    """List each candidate with its predicted time and how much more than the chosen one's that is, or why it cannot be a kernel."""
    best = next(c.seconds for c in region.considered if c.origin == region.origin and c.seconds is not None)
    lines: list[str] = []
    for each in region.considered:
        verdict = ""
        if each.origin == region.origin:
            verdict = f"; chosen: {_why(region, best)}"
        elif each.seconds is not None:
            verdict = f"; {each.seconds / best:.3g} times the chosen one's"
            verdict += f"; {each.reason}" if each.reason else ""
        lines.append(f"{each}{' predicted' if each.seconds is not None else ''}{verdict}")
    return "\n".join(lines)


def _why(region: CompiledRegion, seconds: float) -> str:
    """Say why the chosen candidate, predicted to take `seconds`, is chosen."""
    if all(o.seconds is None or o.reason or o.seconds >= seconds for o in region.considered):
        return "the lowest predicted time"
    if region.approximation is not None:
        return 'options(rounding="running") asks for it'
    return "its predicted time is as good as the lowest, and it moves fewer bytes"


def _bears(region: CompiledRegion) -> str:
    """Say which magnitudes of inputs the chosen candidate bears, and each of its exponentials, squares and products."""
    unknown = "unknown: the program has no floating-point input, or cannot be run at small sizes"
    return "\n".join(Ranges(region.program).said(region.fused)) or unknown
