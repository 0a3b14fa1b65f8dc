"""Positions for the columns of a diagram.

An item keeps its height for as long as it lives, so that what passes is a straight line. Texts stand where no wire crosses another:
labels of wires in columns of data, labels of functions on top of their boxes; wires bend in the gaps between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from weft.cost.optimum import Expr, sp
from weft.draw.form import Bracket, Columns, DataItem, DrawnStep, FunctionColumn, StepKind, spelled
from weft.draw.picture import Box, Diagram, Font, Joint, Line, Separator, Text

_ROW, _NAME, _HEADER, _GAP, _EDGE, _STEP = 17.0, 14.0, 17.0, 24.0, 14.0, 4.0
_AGAIN = 5
"""After so many columns an item's labels are written once more."""


def laid_out(columns: Columns, title: str) -> Diagram:
    """Return the diagram of `columns`, called `title`."""
    return _Layout(columns, title).diagram()


@dataclass(slots=True)
class _Heights:
    """Which heights are taken, and from which column to which; data column i is 2i here, the functions after it 2i + 1."""

    taken: list[tuple[int, int, float, float]] = field(default_factory=list[tuple[int, int, float, float]])

    def find(self, first: int, last: int, height: float, wanted: float) -> float:
        """Take `height` pixels as near to `wanted` as is free over these columns."""
        busy = [(top, bottom) for begin, end, top, bottom in self.taken if begin <= last and first <= end]

        def free(y: float) -> bool:
            return y >= 0 and all(y + height <= top or bottom <= y for top, bottom in busy)

        around = (max(0.0, wanted), 0.0, *(bottom for _, bottom in busy), *(top - height for top, _ in busy))
        y = min((y for y in around if free(y)), key=lambda y: abs(y - wanted))
        self.taken.append((first, last, y, y + height))
        return y


class _Layout:
    """The layout of one diagram."""

    def __init__(self, columns: Columns, title: str) -> None:
        self.columns, self.title = columns, title
        self.lives = _lives(columns)
        self.heights = _Heights()
        self.items: dict[int, float] = {}
        self.steps: dict[int, float] = {}
        self.lines: list[Line] = []
        self.separators: list[Separator] = []
        self.boxes: list[Box] = []
        self.dots: list[Joint] = []
        self.texts: list[Text] = []

    def diagram(self) -> Diagram:
        """Find all positions: first heights, then the columns from left to right, then what stands above and below them."""
        self._find_heights()
        data, functions, right = self._widths()
        top = self._frames(functions)
        for height in (self.items, self.steps):
            for key in height:
                height[key] += top
        bottom = top + max((bottom for *_, bottom in self.heights.taken), default=0.0)
        for i, (x, width) in enumerate(data):
            self._data(i, x, width)
        for i, (x, width) in enumerate(functions):
            self._functions(i, x, width, data)
        frames = [b for b in self.boxes if b.role == "loop"]
        self.boxes = [b for b in self.boxes if b.role != "loop"]
        self.boxes[:0] = [Box(b.x, b.y, b.width, bottom + 4 - b.y, b.title, b.role) for b in frames]
        height = self._below(data, functions, bottom + 22)
        width = max([right, *(t.box[2] for t in self.texts)]) + _EDGE
        return Diagram(
            self.title, self.columns, width, height + _EDGE / 2,
            tuple(self.lines), tuple(self.separators), tuple(self.boxes), tuple(self.dots), tuple(self.texts),
        )  # fmt: skip

    # Heights.

    def _find_heights(self) -> None:
        y = 0.0
        for item in self.columns.data[0].items:
            self._place(item, y)
            y = self.items[item.key] + _height(item)
        for i, column in enumerate(self.columns.functions):
            for step in column.steps:
                read = [self.items[item.key] for item in step.inputs]
                wanted = sum(read) / len(read) if read else 0.0
                height = _step_height(step)
                self.steps[id(step)] = self.heights.find(2 * i + 1, 2 * i + 1, height, wanted) + 3
                y = self.steps[id(step)] + (_HEADER if step.label else 0.0)
                for item in step.outputs:
                    before = next((o for o in step.inputs if o.name and o.name == item.name), None)
                    self._place(item, y if before is None else self.items[before.key])
                    y += _height(item)

    def _place(self, item: DataItem, wanted: float) -> None:
        first, last = self.lives[item.key]
        self.items[item.key] = self.heights.find(2 * first, 2 * last, _height(item), wanted)

    # Widths.

    def _widths(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]], float]:
        """Return (left, width) of the columns of data and of functions, and where the last ends."""
        x = _EDGE + Font.text.width("M  ")
        data: list[tuple[float, float]] = []
        functions: list[tuple[float, float]] = []
        for i, column in enumerate(self.columns.data):
            labels = [t for item in column.items if self._labelled(item, i) for t in _labels(item)]
            terms = _terms(column.memory)
            wide = max([12.0, *(Font.label.width(t) + 10 for t in (*labels, *terms))])
            data.append((x, wide))
            x += wide
            if i < len(self.columns.functions):
                function = self.columns.functions[i]
                boxes = [Font.label.width(s.label) + 14 for s in function.steps if s.label]
                counts = [Font.label.width(t) + 10 - 2 * _GAP for t in _terms(_moved(function))]
                wide = max([14.0, *boxes, *counts]) + 2 * _GAP
                functions.append((x, wide))
                x += wide
        return data, functions, x

    def _labelled(self, item: DataItem, column: int) -> bool:
        first, last = self.lives[item.key]
        return column == first or (column == last and last - first >= _AGAIN)

    # What is drawn.

    def _frames(self, functions: Sequence[tuple[float, float]]) -> float:
        """Draw the frames of loops and their labels, and return where the columns begin."""
        self.texts.append(Text(_EDGE, 18, self.title, Font.text, "title"))
        y = 36.0
        groups = self.columns.flow.groups
        if groups != 1:
            self.texts.append(
                Text(_EDGE, y, f"on chip: each of {spelled(groups)} thread blocks", Font.label, "caption")
            )
            y += 16
        rows: list[float] = []
        placed: list[tuple[Bracket, int]] = []
        for bracket in sorted(self.columns.brackets, key=lambda b: (b.depth, b.first)):
            left = functions[bracket.first][0]
            deeper = [r for other, r in placed if other.depth < bracket.depth]
            row = next((r for r, end in enumerate(rows) if end + 12 <= left and r > max(deeper, default=-1)), len(rows))
            rows[row:] = [left + Font.label.width(bracket.label), *rows[row + 1 :]]
            placed.append((bracket, row))
        for bracket, row in placed:
            left, (last, wide) = functions[bracket.first][0] + 4, functions[bracket.last]
            above = y + 15 * row
            self.texts.append(Text(left + 4, above + 8, bracket.label, Font.label, "loop"))
            inset = 5.0 * bracket.depth
            self.boxes.append(
                Box(left + inset, above + 12, last + wide - 8 - left - 2 * inset, 0.0, bracket.label, "loop")
            )
        return y + 15 * len(rows) + 8

    def _data(self, number: int, x: float, width: float) -> None:
        """Draw one column of data: its wires, their labels, and a dashed line between two items."""
        items = sorted(self.columns.data[number].items, key=lambda item: self.items[item.key])
        for item in items:
            labelled = self._labelled(item, number)
            if labelled and item.name:
                self.texts.append(Text(x + 4, self.items[item.key] + 11, item.name, Font.label, "name"))
            for row, y in enumerate(self._wires(item)):
                self.lines.append(Line(((x, y), (x + width, y)), item.level, not item.wires))
                if labelled and item.wires:
                    label = spelled(item.wires[row].size)
                    self.texts.append(Text(x + 4, y - 3, label, Font.label, item.level.value))
        for above, below in pairwise(items):
            y = (self._wires(above)[-1] + self.items[below.key] + 4) / 2
            self.separators.append(Separator(x + 1, y, width - 2))

    def _wires(self, item: DataItem) -> list[float]:
        """Return the heights of the wires of `item`."""
        y = self.items[item.key] + (_NAME if item.name else 0.0) - 3
        return [y + _ROW * (row + 1) for row in range(max(1, len(item.wires)))]

    def _functions(self, number: int, x: float, width: float, data: Sequence[tuple[float, float]]) -> None:
        """Draw one column of functions, and what passes it."""
        column = self.columns.functions[number]
        right = data[number + 1][0]
        for item in self.columns.data[number].items:
            if self.lives[item.key][1] > number:
                for y in self._wires(item):
                    self.lines.append(Line(((x, y), (right, y)), item.level, not item.wires))
        for step in column.steps:
            self._step(step, x, width)

    def _step(self, step: DrawnStep, x: float, width: float) -> None:
        """Draw one function: wires that it is mapped over go on above its box, others end or begin in a dot."""
        top = self.steps[id(step)]
        left, right = x + _GAP, x + width - _GAP
        middle = (left + right) / 2
        if step.label:
            self.boxes.append(Box(left, top, right - left, _step_height(step) - 6, step.title, "function"))
            at = middle - Font.label.width(step.label) / 2
            self.texts.append(Text(at, top + 12, step.label, Font.label, "function"))
        begin = top + (_HEADER if step.label else 0.0)
        ins = [(item, y) for item in step.inputs for y in self._wires(item)]
        outs = [(item, y) for item in step.outputs for y in self._wires(item)]
        sides = max(len(ins), len(outs))
        ports = [[begin + _ROW * (i + 0.5 + (sides - len(rows)) / 2) for i in range(len(rows))] for rows in (ins, outs)]
        inner, outer = ports
        ended = [i for i in range(len(ins)) if all(i != a for a, _ in step.links)]
        made = [j for j in range(len(outs)) if all(j != b for _, b in step.links)]
        boxed = bool(step.label)
        for i, (item, y) in enumerate(ins):
            self.lines.append(Line(((x, y), (left, inner[i])), item.level, not item.wires))
        for j, (item, y) in enumerate(outs):
            self.lines.append(Line(((right, outer[j]), (x + width, y)), item.level, not item.wires))
        for i, j in step.links:
            (first, _), (second, _) = ins[i], outs[j]
            half = (middle, (inner[i] + outer[j]) / 2)
            self.lines.append(Line(((left, inner[i]), half), first.level))
            self.lines.append(Line((half, (right, outer[j])), second.level))
        # What is summed over meets in one dot, as a cup; what an item has no axis for comes from the same place.
        meeting = (middle - 4, sum(inner[i] for i in ended) / len(ended)) if ended and boxed else None
        for i in ended:
            item = ins[i][0]
            end = meeting or (left + 4, inner[i])
            self.lines.append(Line(((left, inner[i]), end), item.level, not item.wires))
            self.dots.append(Joint(*end, item.level))
        for j in made:
            item = outs[j][0]
            start = (middle + 4, outer[j]) if boxed else (right - 4, outer[j])
            self.lines.append(Line((start, (right, outer[j])), item.level, not item.wires))
            self.dots.append(Joint(*start, item.level))

    def _below(self, data: Sequence[tuple[float, float]], functions: Sequence[tuple[float, float]], y: float) -> float:
        """Write M and H under the columns, a line for each term of a sum, and what they come to; return where that ends."""
        lines: list[str] = []
        if self.columns.flow.why_not:
            lines.append(f"H and M are not known: {self.columns.flow.why_not}")
        else:
            memory = [(x, _terms(c.memory)) for (x, _), c in zip(data, self.columns.data, strict=True)]
            moved = [(x, _terms(_moved(c))) for (x, _), c in zip(functions, self.columns.functions, strict=True)]
            for letter, cells in (("M", memory), ("H", moved)):
                self.texts.append(Text(_EDGE, y, letter, Font.text, "caption"))
                for x, terms in cells:
                    self.texts += [Text(x + 4, y + 13 * i, t, Font.label, "count") for i, t in enumerate(terms)]
                y += 13 * max([1, *(len(terms) for _, terms in cells)]) + 8
            lines.append(f"H = {spelled(self.columns.transfers)} values change level")
            if any(bracket for bracket in self.columns.brackets):
                lines.append(f"M = {spelled(self.columns.flow.memory)} values stay on chip from block to block")
        for line in lines:
            self.texts.append(Text(_EDGE, y + 6, line, Font.text, "caption"))
            y += 18
        return y


def _lives(columns: Columns) -> dict[int, tuple[int, int]]:
    """Return the first and the last column of data of each item, by key."""
    found: dict[int, tuple[int, int]] = {}
    for i, column in enumerate(columns.data):
        for item in column.items:
            found[item.key] = (found.get(item.key, (i, i))[0], i)
    return found


def _height(item: DataItem) -> float:
    return (_NAME if item.name else 0.0) + _ROW * max(1, len(item.wires)) + _STEP


def _step_height(step: DrawnStep) -> float:
    rows = max(sum(max(1, len(item.wires)) for item in side) for side in (step.inputs, step.outputs))
    return (_HEADER if step.label else 0.0) + _ROW * rows + 8


def _labels(item: DataItem) -> Iterator[str]:
    if item.name:
        yield item.name
    yield from (spelled(wire.size) for wire in item.wires)


def _moved(column: FunctionColumn) -> Expr | None:
    """Return what a column moves; None where no step of it moves anything."""
    return column.transfers if any(s.kind in (StepKind.load, StepKind.store) for s in column.steps) else None


def _terms(expr: Expr | None) -> list[str]:
    """Write the terms of a sum, one a line."""
    if expr is None:
        return []
    terms = sp.Add.make_args(sp.expand(expr))
    return [("+ " if i else "") + spelled(term) for i, term in enumerate(sorted(terms, key=str))]
