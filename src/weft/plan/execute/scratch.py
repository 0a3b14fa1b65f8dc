"""One allocation for the small results of a run that only its kernels read.

Behind a kernel that streams weights through the caches an allocation takes as long as a small kernel. Which results there are, how
long they are and which step reads them last is known when the runner is written, so their places are given out then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from torch.utils import _pytree as pytree

from weft.capture import Operand, RuntimeNumber
from weft.plan.execute.steps import CallStep, PlanStep, RegionStep, ViewStep

_MOST, _MOST_IN_ALL = 1 << 16, 1 << 20
"""Bytes of a result that lies there, and of all at once: larger ones would be kept for longer than they are needed."""
_ALIGNMENT = 64
"""Bytes: what PyTorch gives its own tensors on a CPU."""


def last_readers(outputs: Sequence[str], steps: Sequence[PlanStep]) -> dict[str, int]:
    """Find which step reads each result of a kernel last, for those that nothing but kernels reads.

    `outputs`: values of the program that go out of it. Results are known by their names in the program, steps by their places.
    """
    shown: dict[str, str] = {}
    outside, last, made = set(outputs), dict[str, int](), dict[str, int]()
    for number, step in enumerate(steps):
        match step:
            case ViewStep():
                shown |= {view.name: view.source for view in step.made}
                last |= {view.source: number for view in step.made}
            case CallStep():
                outside |= {step.aliases.get(operand.value, operand.value) for operand in _operands(step)}
            case RegionStep():
                read = dict(step.reads)
                last |= dict.fromkeys(read.values(), number)
                through = {outer: read[inner] for inner, outer in step.writes if inner in read}
                shown |= {value: other for value, other in through.items() if value != other}
                firsts = {outer: step.first_name(inner) or outer for inner, outer in step.writes if inner not in read}
                shown |= {outer: first for outer, first in firsts.items() if outer != first}
                made |= {outer: number for outer, first in firsts.items() if outer == first}
            case _:
                assert_never(step)

    def memory(value: str) -> str:
        while value in shown:
            value = shown[value]
        return value

    taken_out = {memory(value) for value in outside}
    found = {value: number for value, number in made.items() if value not in taken_out}
    for value, number in last.items():
        own = memory(value)
        if own in found:
            found[own] = max(found[own], number)
    return found


def _operands(step: CallStep) -> list[Operand]:
    leaves = pytree.tree_leaves((step.call.args, step.call.kwargs))
    told = [operand for leaf in leaves if isinstance(leaf, RuntimeNumber) for operand in leaf.tensors]
    return [*(leaf for leaf in leaves if isinstance(leaf, Operand)), *told]


@dataclass
class Scratch:
    """The places of results in one allocation.

    Attributes:
        size: bytes that it has.
        taken: places that are in use: the first byte, the one behind the last, and the step that reads it last.
    """

    size: int = 0
    taken: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def place(self, size: int, step: int, last: int) -> int | None:
        """Give a place to a result of so many bytes, which `step` makes and `last` reads last; None for a large one."""
        if not 0 < size <= _MOST:
            return None
        self.taken = [each for each in self.taken if each[2] >= step]
        start = 0
        for first, end, _ in sorted(self.taken):
            if start + size <= first:
                break
            start = max(start, -(-end // _ALIGNMENT) * _ALIGNMENT)
        if start + size > _MOST_IN_ALL:
            return None
        self.taken.append((start, start + size, last))
        self.size = max(self.size, start + size)
        return start
