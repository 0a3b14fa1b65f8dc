"""How long the memory of each value of a plan is read, and whose it is: known when the runner is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never, cast

from torch._ops import OpOverload

from weft.capture import OpaqueCall, may_view
from weft.plan.execute.steps import CallStep, PlanStep, RegionStep, ViewStep

_PRODUCTS = frozenset(
    (
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("linear", "matmul", "scaled_dot_product_attention"),
    )
)
"""Operators that PyTorch composes of others, so that in general they might give back what they are given: these give sums."""
_GIVE_BACK = frozenset(
    (
        *("lift", "lift_fresh", "dequantize", "native_dropout", "channel_shuffle", "_unsafe_view", "_reshape_alias"),
        *("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
    )
)
"""Operators that may give back what they are given, or views of it, though their schemas do not say so."""


@dataclass
class Lifetimes:
    """What is read when. Values are known by their names in the program, steps by their places.

    Attributes:
        last: which step reads the memory of each value last, by the value that it was made for.
        inside: the values made by kernels that nothing but kernels reads.
        own: the values whose memory is the run's own, and of which nothing goes out: they can be written over once they are read.
    """

    last: dict[str, int] = field(default_factory=dict[str, int])
    inside: set[str] = field(default_factory=set[str])
    own: set[str] = field(default_factory=set[str])
    _shown: dict[str, str] = field(default_factory=dict[str, str])

    def memory(self, value: str) -> str:
        """Return the value that the memory of `value` was made for."""
        while value in self._shown:
            value = self._shown[value]
        return value

    def made(self, value: str, number: int) -> None:
        """Note a value of its own memory, which step `number` makes."""
        self._shown.pop(value, None)
        self.own.add(value)
        self.last[value] = number

    def read(self, value: str, number: int) -> str:
        """Note that step `number` reads a value, and return whose memory it is."""
        memory = self.memory(value)
        self.last[memory] = number
        return memory

    def shows(self, value: str, other: str, number: int) -> None:
        """Note that a value is the memory of another one."""
        memory = self.read(other, number)
        if value != memory:
            self._shown[value] = memory


def lifetimes(outputs: Sequence[str], steps: Sequence[PlanStep]) -> Lifetimes:
    """Find how long the memory of each value is read. `outputs`: values of the program that go out of it."""
    found = Lifetimes()
    for number, step in enumerate(steps):
        match step:
            case ViewStep():
                for view in step.made:
                    found.shows(view.name, view.source, number)
            case CallStep():
                _call(found, step, number)
            case RegionStep():
                _region(found, step, number)
            case _:
                assert_never(step)
    out = {found.memory(value) for value in outputs}
    found.inside -= out
    found.own -= out
    return found


def _call(found: Lifetimes, step: CallStep, number: int) -> None:
    call = step.call
    values = [step.aliases.get(value, value) for value in call.reads]
    read = [found.read(value, number) for value in values]
    found.inside.difference_update(read)
    results = [result.value for result in call.results if result is not None]
    if call.look:
        found.shows(results[0], values[0], number)
    elif not _is_new(call):
        found.own.difference_update(read)  # its results may be views of them
    elif len(call.results) == 1 and results:
        found.made(results[0], number)


def _region(found: Lifetimes, step: RegionStep, number: int) -> None:
    read = dict(step.reads)
    for value in read.values():
        found.read(value, number)
    for inner, outer in step.writes:
        first = step.first_name(inner)
        if inner in read:
            found.shows(outer, read[inner], number)
        elif first is not None and first != outer:
            found.shows(outer, first, number)
        else:
            found.made(outer, number)
            found.inside.add(outer)


def _is_new(call: OpaqueCall) -> bool:
    """Tell whether what a call gives lies in memory of its own, whatever its operands' strides: it does in eager, and is one of
    PyTorch's own operators, whose schema says so.
    """
    target = call.target
    if not call.apart or not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    name: str = cast("Any", target).overloadpacket.__name__
    if call.pinned or call.into is not None or name in _GIVE_BACK:
        return False
    return name in _PRODUCTS or not may_view(target)
