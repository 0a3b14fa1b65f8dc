"""From steps to columns: each step as early as what it reads allows, loads as late as what they serve allows.

A loop keeps its columns to itself: what stands before it in the program is before it in the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.cost.optimum import sp
from weft.draw.form import (
    Bracket,
    Colour,
    Columns,
    DataColumn,
    DataItem,
    DrawnElement,
    DrawnStep,
    Flow,
    FunctionColumn,
    Loop,
    StepKind,
)


def columns(flow: Flow) -> Columns:
    """Arrange the steps of `flow` in columns, and say of each what is moved and what is on chip."""
    placed = _Placing()
    placed.region(flow.elements, 0)
    used = sorted({placed.at[id(step)] for step in every(flow.elements)})
    order = {column: i for i, column in enumerate(used)}
    at = {key: order[column] for key, column in placed.at.items()}
    functions = tuple(
        FunctionColumn(steps, sp.Add(*(s.moved or 0 for s in steps)) if not flow.why_not else None)
        for steps in (tuple(s for s in every(flow.elements) if at[id(s)] == i) for i in range(len(used)))
    )
    brackets = tuple(_brackets(flow.elements, at, 0))
    lives = _lives(flow, at, len(used))
    data: list[DataColumn] = []
    for i in range(len(used) + 1):
        items = tuple(item for item, (born, last) in lives.items() if born <= i <= last)
        held = sp.Add(*(item.values for item in items if item.level is Colour.chip))
        data.append(DataColumn(items, None if flow.why_not else held))
    return Columns(flow, tuple(data), functions, brackets)


def every(elements: Sequence[DrawnElement]) -> Iterator[DrawnStep]:
    """Yield all steps, those in loops too, in order."""
    for element in elements:
        if isinstance(element, Loop):
            yield from every(element.steps)
        else:
            yield element


@dataclass(slots=True)
class _Placing:
    """Columns of functions by the identity of their steps, and the first column that an item can be read in."""

    at: dict[int, int] = field(default_factory=dict[int, int])
    ready: dict[int, int] = field(default_factory=dict[int, int])

    def region(self, elements: Sequence[DrawnElement], begin: int) -> int:
        """Place `elements` from column `begin` on; return the first column after them."""
        start, end = begin, begin
        barriers: list[tuple[int, int]] = []
        for position, element in enumerate(elements):
            if isinstance(element, Loop):
                barriers.append((position, end))
                start = end = self.region(element.steps, end)
            else:
                column = max(start, *(self.ready.get(item.key, 0) for item in element.inputs), 0)
                self.put(element, column)
                end = max(end, column + 1)
        self.late(elements, barriers, end)
        return end

    def put(self, step: DrawnStep, column: int) -> None:
        """Place one step."""
        self.at[id(step)] = column
        for item in step.outputs:
            self.ready[item.key] = column + 1

    def late(self, elements: Sequence[DrawnElement], barriers: Sequence[tuple[int, int]], end: int) -> None:
        """Move loads, and what starts from nothing, to just before what reads them first."""
        steps = list(every(elements))
        for position, element in enumerate(elements):
            if isinstance(element, DrawnStep) and element.kind in (StepKind.load, StepKind.start):
                wanted = {item.key for item in element.outputs}
                readers = [self.at[id(s)] for s in steps if any(i.key in wanted for i in s.inputs)]
                before = [column for other, column in barriers if other > position]
                latest = min([*readers, *before[:1], end]) - 1
                self.put(element, max(self.at[id(element)], latest))


def _brackets(elements: Sequence[DrawnElement], at: dict[int, int], depth: int) -> Iterator[Bracket]:
    for element in elements:
        if isinstance(element, Loop):
            inner = [at[id(step)] for step in every(element.steps)]
            carried = f", carrying {', '.join(element.carried)}" if element.carried else ""
            if inner:
                yield Bracket(element.label + carried, min(inner), max(inner), depth)
            yield from _brackets(element.steps, at, depth + 1)


def _lives(flow: Flow, at: dict[int, int], last: int) -> dict[DataItem, tuple[int, int]]:
    """Find for each item the first and the last column of data that it is in.

    What a loop reads on chip and has not made is there until the loop is done, but for the state that the loop begins with.
    """
    found: dict[DataItem, tuple[int, int]] = {}
    found |= dict.fromkeys(flow.inputs, (0, 0))
    begun = {item.key for step in every(flow.elements) if step.kind is StepKind.start for item in step.outputs}
    for step in every(flow.elements):
        found |= {item: (at[id(step)] + 1, at[id(step)] + 1) for item in step.outputs}

    def lasts(item: DataItem, until: int) -> None:
        found[item] = (found[item][0], max(found[item][1], until))

    def region(elements: Sequence[DrawnElement]) -> None:
        for element in elements:
            if isinstance(element, DrawnStep):
                for item in element.inputs:
                    lasts(item, at[id(element)])
                continue
            inner = list(every(element.steps))
            made = {item.key for step in inner for item in step.outputs}
            end = max((at[id(step)] for step in inner), default=0)
            for step in inner:
                for item in step.inputs:
                    if item.level is Colour.chip and item.key not in made | begun:
                        lasts(item, end)
            region(element.steps)

    region(flow.elements)
    for item in flow.outputs:
        lasts(item, last)
    return found
