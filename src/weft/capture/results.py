"""How a graph's results are made from its program's outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from weft.capture.captured import (
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    GraphResult,
    MemoryLayout,
    Operand,
    Told,
)
from weft.capture.describe import dense, memory_order, packed
from weft.capture.memory import storage_of
from weft.capture.opaque import OpaqueCalls
from weft.capture.recording import Recording, Slot
from weft.capture.sizes import expression
from weft.capture.values import Values, operand
from weft.tensor.builder import Ref


class Results:
    """The results of a recording whose calls are all translated.

    Attributes:
        outputs: those of the program so far, each once.
    """

    def __init__(self, recording: Recording, values: Values, opaque: OpaqueCalls) -> None:
        self.outputs: list[Ref] = []
        self._recording = recording
        self._values = values
        self._opaque = opaque

    def results(self) -> Iterator[GraphResult]:
        """Says of each result where it comes from, in order."""
        return map(self._result, self._recording.outputs)

    def writes(self) -> Iterator[tuple[int, int]]:
        """Lists the arguments of the graph that are written into, each with the output that is its last value."""
        for entry, last in self._recording.writes:
            yield self._values.inputs[entry], self._last(entry, last)

    def _number_of(self, ref: Ref) -> int:
        """Finds an output by its value; a new one where it is none yet."""
        if ref not in self.outputs:
            self.outputs.append(ref)
        return self.outputs.index(ref)

    def _result(self, leaf: Any) -> GraphResult:
        """Says where a result comes from."""
        match leaf:
            case Slot():
                if leaf in self._values.inputs:
                    return FromArgument(self._values.inputs[leaf])
                return self._output(leaf)
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._told(leaf)
            case _:
                return FromNothing(leaf)

    def _told(self, number: Any) -> FromSizes:
        """Makes an output of each tensor that tells a number among the results, as it was when the number was read."""
        values = self._values
        told: dict[str, Told] = {}
        places: dict[Operand, int] = {}
        names = {str(symbol) for symbol in expression(number).free_symbols}
        for source in (source for source in self._recording.sources if source.symbol in names):
            ref = self._opaque.value(source.slot)
            comes_in = source.slot in values.inputs
            ref = values.copied(ref, values.fakes[source.slot]) if comes_in else values.plain(ref)
            told[source.symbol] = Told(operand(ref), source.dim)
            places[operand(ref)] = self._number_of(ref)
        return FromSizes(values.symbols.number(number, told), tuple(places.items()))

    def _output(self, slot: Slot) -> FromProgram:
        """Makes a tensor an output, of memory of its own: eager's was a tensor of its own too, unless it is pinned."""
        values = self._values
        slots = [s for s in self._recording.outputs if isinstance(s, Slot)]
        fake, pinned = values.fakes[slot], slot in values.pinned
        ref = values.refs[slot] = values.looked(values.plain(self._opaque.value(slot), packed=packed(fake)))
        if not pinned and self._lies_elsewhere(ref, fake, slots[: slots.index(slot)]):
            ref = values.refs[slot] = values.copied(ref, fake)
        theirs = values.storages.get(ref.value) == storage_of(fake)
        theirs = theirs and not values.builder.expanded(ref, 0, len(ref.dims))
        if slot in values.unlike or (theirs and ref.value in values.eagers):
            return FromProgram(self._number_of(ref))
        layout = None if pinned else self._layout(ref, fake)
        if layout is not None:
            ref = self._held_once(ref, layout)
        return FromProgram(self._number_of(ref), memory_order(fake), layout)

    def _lies_elsewhere(self, ref: Ref, fake: torch.Tensor, before: Sequence[Slot]) -> bool:
        """Tells whether `ref` is in memory that the result is not in: an input's, that of a result `before` it, of a view."""
        values, home, own = self._values, self._values.home(ref), storage_of(fake)
        if home in {values.home(values.refs[s]) for s in values.theirs}:
            return True
        others = {storage_of(values.fakes[s]) for s in (*values.pinned, *before) if values.home(values.refs[s]) == home}
        for call in values.calls.values():
            if call.pinned and values.memory(ref.value) in map(values.memory, call.reads):
                others |= {values.storages.get(made.value, own) for made in call.results if made is not None}
        return bool(others - {own})

    def _layout(self, ref: Ref, fake: torch.Tensor) -> MemoryLayout | None:
        """Gives the layout of a result that may have gaps or overlaps; None as well where only a tensor's content tells it."""
        values = self._values
        if dense(fake) and values.storages.get(values.memory(ref.value), storage_of(fake)) == storage_of(fake):
            return None
        return values.symbols.layout(fake)

    def _held_once(self, ref: Ref, layout: MemoryLayout) -> Ref:
        """Leaves out the dimensions that `ref` was expanded along: elements that memory holds once are computed once."""
        places = accumulate((axis is not None for axis in ref.dims), initial=0)
        once = [
            axis is not None and stride == 0 and self._values.builder.expanded(ref, place, 1)
            for axis, stride, place in zip(ref.dims, layout.strides, places, strict=False)
        ]
        return replace(ref, dims=tuple(None if o else a for o, a in zip(once, ref.dims, strict=True)))

    def _last(self, entry: Slot, last: Slot) -> int:
        """Makes the last value of the input `entry` an output; it lies in no other input, which may change too."""
        values = self._values
        ref = values.refs[last] = values.plain(self._opaque.value(last))
        theirs = {values.home(values.refs[s]) for s in values.theirs}
        if values.theirs.get(last) != entry and values.home(ref) in theirs:
            ref = values.copied(ref, values.fakes[last])
        return self._number_of(ref)
