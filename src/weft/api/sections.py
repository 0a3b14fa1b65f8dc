"""What a report says of one graph: a summary first, then every decision in the order in which it was made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from weft.api.left_out import left_out
from weft.api.summary import computing, scheme_lines, summary, written_lines
from weft.block.listing import listing
from weft.block.program import BlockProgram
from weft.cascade import chains, formulas
from weft.cost import closed_form, concrete_schedule
from weft.cost.chip import Chip
from weft.cost.optimum import sp
from weft.draw import Picture, Prose, Section, ShownRewrite, SourceCode, configuration
from weft.draw.diagram import at_whole, diagram
from weft.draw.roofline import RooflinePoint, roofline
from weft.draw.svg import message, svg
from weft.errors import ScheduleError, TargetError, UnsupportedError
from weft.pipeline import cancel_shifts, replayed
from weft.plan import CompiledRegion, Kernel, Plan, described, measured_before
from weft.plan.targets import toolchain
from weft.schedule import KernelNodes, apart, kernels
from weft.tensor.derived import Derived
from weft.tensor.passes import Change
from weft.tensor.program import Input, TensorProgram
from weft.verify import Ranges


def sections(plan: Plan, chip: Chip | None = None) -> Iterator[Section]:
    """Yield the sections of the report on `plan`; kernels are laid out on `chip`, by default on the target's own."""
    yield Section("summary", (Prose("\n".join(summary(plan))),), level=1)
    fallbacks = "\n".join(map(str, plan.fallbacks)) or "none: everything runs in weft's kernels"
    yield Section("fallbacks to PyTorch", (Prose(fallbacks),), level=1)
    lines = written_lines(plan)
    if lines:
        yield Section("your lines, and the regions that compute them", (Prose("\n".join(lines), listing=True),))
    if plan.scheme:
        yield _listed("fusion scheme", "\n".join(scheme_lines(plan)))
    if plan.kernels:
        yield Section("roofline", (Picture("roofline", partial(_roofline, plan)),))
    if plan.captured.program is not None:
        yield _listed("captured program", str(plan.captured.program))
    if plan.program is not None:
        yield _listed("after the laws on tensor programs", str(plan.program))
        yield _listed("sizes", _sizes(plan.program))
    regions = computing(plan)
    for number, region in enumerate(regions, 1):
        of = f" of region {number}" if len(regions) > 1 else ""
        yield from (replace(each, title=each.title + of) for each in _region(region, of, chip))
    if plan.program is not None and plan.captured.writes:
        text = "\n".join(described(plan.captured, plan.program, plan.in_place))
        yield Section("writes into arguments", (Prose(text),))
    if plan.captured.views:
        yield Section("views that PyTorch makes, without a copy", (Prose("\n".join(map(str, plan.captured.views))),))
    measured = measured_before(plan)
    if measured is not None:
        text = f"{measured}; other processes used {measured.load:.1f} cores; trials: {measured.trials}"
        yield Section("measured under weft.compile", (Prose(text),))


def _listed(title: str, text: str) -> Section:
    return Section(title, (Prose(text, listing=True),))


def _roofline(plan: Plan) -> str:
    """Draw where the kernels lie by prediction, and the whole graph where it was measured."""
    target = plan.kernels[0].target
    machine = toolchain(target).machine(torch.get_num_threads())
    points = [
        RooflinePoint(f"region {i}: {k.name}, predicted", c.flops, c.bytes_read + c.bytes_written, c.predicted_seconds)
        for i, region in enumerate(computing(plan), 1)
        for k, c in ((k, k.cost) for k in region.kernels)
    ]
    measured = measured_before(plan)
    if measured is not None:
        flops, moved = sum(p.flops for p in points), sum(p.bytes for p in points)
        points.append(RooflinePoint("all of the graph, measured", flops, moved, measured.weft.seconds))
    rate = max([machine.vector_flops, *machine.matrix_flops.values()])
    return roofline(points, machine.levels[-1].bytes_per_second, rate, f"roofline of {target}")


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
    """Say how a size follows from others."""
    more = (*(space.name for space in rule.others), *([str(rule.plus)] if rule.plus else ()))
    return " + ".join((_part(rule), *more))


def _part(rule: Derived) -> str:
    """Say what part of its source a size is."""
    times = f"{rule.times} times " if rule.times != 1 else ""
    if (rule.start, rule.stop, rule.step) == (None, None, 1):
        return f"{times}{rule.source.name}"
    return f"{times}[{rule.start or ''}:{'' if rule.stop is None else rule.stop}:{rule.step}] of {rule.source.name}"


def _region(region: CompiledRegion, of: str, chip: Chip | None) -> Iterator[Section]:
    """Yield the sections on one region; `of` tells its pictures from those of others."""
    changes = list(replayed(region.program, region.trace))
    yield _listed("candidates", _candidates(region))
    for change in changes:
        if change.rule == cancel_shifts.name:
            yield _listed("tensor program after the law of shifts", str(change.after))
        if isinstance(change.before, TensorProgram) and isinstance(change.after, BlockProgram):
            picture = Picture("before fusion", partial(_drawn, change.after, None, f"before fusion{of}"))
            yield Section(
                "block program before fusion",
                (Prose(listing(change.after), listing=True), Prose(_before(change.after)), picture),
            )
    yield Section("rewrites", _rewrites(changes))
    derived = _chains(region)
    if derived:
        yield _listed("chains of reductions", derived)
    nothing = "nothing: no law or rule that loses digits by cancellation would apply"
    yield Section("left out", (Prose("\n".join(left_out(region.program)) or nothing),))
    yield Section("magnitudes", (Prose(_bears(region)),))
    yield _listed("block program after fusion", listing(region.fused))
    for kernel in region.kernels[:1]:
        yield _listed("schedule", str(kernel.schedule))
        yield _listed("scheduled program", listing(kernel.block_program))
        for made, part in zip(region.kernels, kernels(kernel.block_program), strict=True):
            picture = Picture(made.name, partial(_drawn, kernel.block_program, part, f"{made.name}{of}"))
            text = Prose(_closed(part), listing=True)
            yield Section(f"transfers of {made.name} in closed form", (text, picture))
            yield from _on_chip(region, made, part, chip)
    for kernel in region.kernels:
        title, _, text = str(kernel).partition("\n")
        yield Section(title, (Prose(text), SourceCode(kernel.source, _language(kernel))))


def _language(kernel: Kernel) -> str:
    return "cpp" if "#include" in kernel.source else "python"


def _rewrites(changes: list[Change[object]]) -> tuple[Prose | ShownRewrite, ...]:
    """List the steps with the programs before and after each."""
    found = tuple(ShownRewrite(f"{i}. {each}", each.before, each.after) for i, each in enumerate(changes, 1))
    return found or (Prose("none applied"),)


def _drawn(program: BlockProgram, part: KernelNodes | None, title: str) -> str:
    """Draw a diagram for a page; where a program cannot be drawn, a picture that says why."""
    try:
        return svg(diagram(program, part, title), style="")
    except (ScheduleError, UnsupportedError) as error:
        return message(f"{title}: not drawn: {error.what}")


def _before(program: BlockProgram) -> str:
    """Say what the operations of a program without places move and hold, each for itself; or why that is not known."""
    try:
        forms = [closed_form(part) for part in apart(at_whole(program))]
    except (ScheduleError, UnsupportedError) as error:
        return f"transfers: no closed form is known: {error.what}"
    if not forms:
        return "transfers: none: it computes nothing"
    moved, held = sp.expand(sp.Add(*(f.transfers for f in forms))), sp.Max(0, *(f.memory() for f in forms))
    return (
        f"transfers: {moved} values, where each operation takes its data whole from device memory, and puts its result there; "
        f"held from block to block: {held or 'nothing'}"
    )


def _closed(part: KernelNodes) -> str:
    """Say which values a kernel moves and holds: sizes and blocks are symbols."""
    try:
        return f"in values; g_x: a block of loop x on the grid, s_x: a block of a loop inside\n{closed_form(part)}"
    except UnsupportedError as error:
        return f"none: {error.what}"


def _on_chip(region: CompiledRegion, made: Kernel, part: KernelNodes, chip: Chip | None) -> Iterator[Section]:
    """Lay a kernel out on `chip`, or on that of its target, as a concrete schedule; a target that has none has no such section."""
    title = f"concrete schedule of {made.name}"
    try:
        chip = toolchain(made.target).chip() if chip is None else chip
        if chip is None:
            return
        title = f"{title} on {chip.name}"
        found = configuration(concrete_schedule(part, chip, region.sizes))
    except (TargetError, UnsupportedError) as error:
        found = (Prose(f"none: {error.what}"),)
    yield Section(title, found)


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
