"""Laws and rules that kernels do not use because most digits of a result may cancel: applied only to be reported by `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.block import lower
from weft.block.program import BlockProgram, Map
from weft.errors import UnsupportedError
from weft.fuse import Rule
from weft.pipeline import DERIVED_LAWS, PASSES, cancel_shifts, fuse
from weft.tensor.laws import sizes_in_place
from weft.tensor.passes import Change, Conditioning
from weft.tensor.program import TensorProgram


def left_out(program: TensorProgram) -> tuple[str, ...]:
    """List each law and rule that cancels and would apply to `program`, and why it is not used; empty where there is none.

    Found by applying them: rules are looked for among the steps of fusing with all of them, first without the laws that cancel,
    then with them.
    """
    start = cancel_shifts(program)
    lines = [_line(rule, where, "") for rule, where in _cancelling(start)]
    for law in (law for law in DERIVED_LAWS if law.conditioning is Conditioning.cancels):
        expanded = law.rewrite(start)
        if expanded == start:
            continue
        if not lines:
            lines = [_line(rule, where, f" after {law.name}") for rule, where in _cancelling(expanded)]
        lines.insert(0, f"law {law.name} would apply: {law.says}")
    return (*lines, _REASON) if lines else ()


_REASON = (
    "left out because digits cancel: it would subtract numbers that may be far larger than their difference, which is inaccurate "
    "far from zero; kernels take differences first, as the function is written, and compute statistics of them in two passes"
)


def _line(rule: Rule, where: str, after: str) -> str:
    return f"{rule.kind} ({rule.name}) would match in {where}{after}: {rule.says}"


def _cancelling(program: TensorProgram) -> Iterator[tuple[Rule, str]]:
    """Yield each rule that cancels among the steps of fusing `program`, with where it first matched."""
    try:
        steps = fuse(lower(sizes_in_place(program))).steps
    except UnsupportedError:
        return
    seen: set[str] = set()
    for step in steps:
        rule = PASSES[step.rule]
        if isinstance(rule, Rule) and rule.conditioning is Conditioning.cancels and rule.name not in seen:
            seen.add(rule.name)
            yield rule, place(step)


def place(step: Change[BlockProgram]) -> str:
    """Name the loops around the graph that `step` rewrote, as its program's listing calls them."""
    graph, loops = step.before.graph, list[str]()
    for name in step.place or ():
        node = next(n for n in graph.nodes if isinstance(n, Map) and n.name == name)
        loops.append(node.axis.space.name.lower())
        graph = node.body
    return " > ".join(loops) or "the top level"
