"""What kernels are made without, because it may cancel most of a result away: laws and rules, tried and not used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weft.block import lower
from weft.block.program import Map
from weft.errors import UnsupportedError
from weft.fuse import EXTENSION, PRIORITY, Conditioning, Rule, Step, fuse
from weft.tensor.laws import cancel_shifts, expand_sums, scale_rows_last, sizes_in_place
from weft.tensor.program import TensorProgram

RULES = {rule.name: rule for rule in (*PRIORITY, *EXTENSION)}
"""The rules of a fusion's steps, by name."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law on tensor programs that not every program goes through.

    Attributes:
        name: of its function.
        rewrite: the program under it; the same program where it has nothing to change.
        says: what it does, in a few words.
        conditioning: what it does to floating-point results.
    """

    name: str
    rewrite: Callable[[TensorProgram], TensorProgram]
    says: str
    conditioning: Conditioning


LAWS = (
    Law(
        "cancel_shifts",
        cancel_shifts,
        "a shift under exponentials whose factor cancels in every result goes; numerical safety comes after fusion",
        Conditioning.rounding,
    ),
    Law(
        "expand_sums",
        expand_sums,
        "sums of products of sums are multiplied out, so that no sum waits for another: a variance from raw moments",
        Conditioning.cancels,
    ),
    Law(
        "scale_rows_last",
        scale_rows_last,
        "what scales whole rows of a product's operand scales them last",
        Conditioning.rounding,
    ),
)
"""In the order that lets each see what it needs."""


def left_out(program: TensorProgram) -> tuple[str, ...]:
    """List each law and rule that cancels and would apply to `program`, and why it is not used; empty where there is none.

    Found by applying them: rules are looked for among the steps of fusing with all of them, first without the laws that cancel,
    then with them.
    """
    start = cancel_shifts(program)
    lines = [_line(rule, where, "") for rule, where in _cancelling(start)]
    for law in (law for law in LAWS if law.conditioning is Conditioning.cancels):
        expanded = law.rewrite(start)
        if expanded == start:
            continue
        if not lines:
            lines = [_line(rule, where, f" after {law.name}") for rule, where in _cancelling(expanded)]
        lines.insert(0, f"law {law.name} would apply: {law.says}")
    return (*lines, _REASON) if lines else ()


_REASON = (
    "left out because this cancels: it subtracts numbers that may be far larger than their difference, so that a result is "
    "ill-conditioned far from zero; differences are taken first, as written, and statistics of them need two passes"
)


def _line(rule: Rule, where: str, after: str) -> str:
    return f"rule {rule.number} ({rule.name}) would match in {where}{after}: {_statement(rule)}"


def _cancelling(program: TensorProgram) -> Iterator[tuple[Rule, str]]:
    """Yield each rule that cancels among the steps of fusing `program`, with where it first matched."""
    try:
        steps = fuse(lower(sizes_in_place(program))).steps
    except UnsupportedError:
        return
    seen: set[str] = set()
    for step in steps:
        rule = RULES[step.rule]
        if rule.conditioning is Conditioning.cancels and rule.name not in seen:
            seen.add(rule.name)
            yield rule, place(step)


def place(step: Step) -> str:
    """Name the loops around the graph that `step` rewrote, as its program's listing calls them."""
    graph, loops = step.before.graph, list[str]()
    for name in step.place:
        node = next(n for n in graph.nodes if isinstance(n, Map) and n.name == name)
        loops.append(node.axis.space.name.lower())
        graph = node.body
    return " > ".join(loops) or "the top level"


def _statement(rule: Rule) -> str:
    """State the rule in words: what its file begins with, without the number."""
    module = inspect.getmodule(rule.rewrite)
    text = (module.__doc__ if module is not None else None) or rule.name
    return text.strip().splitlines()[0].partition(": ")[2].rstrip(".") or rule.name
