"""Calls that PyTorch runs: opaque nodes of the program, with what it takes to call PyTorch there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.arguments import dtype_of
from weft.capture.calls import may_view
from weft.capture.captured import Fallback, MemoryLayout, OpaqueCall, Operand, Told
from weft.capture.convolutions import CHANNELS_LAST, with_channels_last
from weft.capture.describe import first, memory_order, splits
from weft.capture.flags import flagged
from weft.capture.memory import STRIDED, Effect, Piece, storage_of
from weft.capture.recording import Call, Slot
from weft.capture.reshapes import kept_dims
from weft.capture.sizes import hint
from weft.capture.values import Values, operand
from weft.capture.views import RESHAPES, VIEWS
from weft.tensor.builder import Ref, SizeOrAxis
from weft.tensor.dtypes import DType

_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
_OWN = ("aten", "prims", "weft")
"""The libraries whose operations take operands in any strides: they ask these for them."""
_OF_ROWS = ("aten.view_as_complex", "aten.view_as_real")
"""Views that want the last dimension to be the innermost, as it is in a tensor that eager computed."""


class OpaqueCalls:
    """Leaves calls to PyTorch; `channels_last`: element types of which convolutions of pictures read these with channels last.

    Attributes:
        values: the program's so far.
        numbers: numbers that are tensors on another device, each with the call that makes it and that call's number. To weft it is
            a number; PyTorch must make it.
        fallbacks: the calls that compute or copy something.
        looks: those that give views alone.
    """

    def __init__(self, values: Values, *, channels_last: frozenset[torch.dtype]) -> None:
        self.values = values
        self.numbers: dict[Slot, tuple[Call, int]] = {}
        self.fallbacks: list[Fallback] = []
        self.looks: list[Fallback] = []
        self._channels_last = channels_last
        # The numbers that PyTorch has made.
        self._made: dict[Slot, Ref] = {}

    def leave(self, call: Call, number: int, reason: str) -> None:
        """Leaves call `number` of a recording to PyTorch, for this reason.

        Raises:
            UnsupportedError: an element type or a size has no place in a tensor program.
        """
        values, builder = self.values, self.values.builder
        name = f"{call.packet.removeprefix('aten.').replace('::', '_')}_{number}"
        self._ready(call)
        turned = with_channels_last(call, values.fakes, self._channels_last)
        known = values.unlike.keys().isdisjoint(turned)
        copies = {slot: values.lying(values.refs[slot], CHANNELS_LAST) for slot in turned if known}
        target = call.target
        if target is _VIEW and not call.pinned:
            # A computed tensor need not have the strides that eager's has: where they do not allow a view, a copy.
            target = _RESHAPE
        told = {source.symbol: Told(self._held(source.slot), source.dim) for source in call.sources}
        args, kwargs = pytree.tree_map(
            functools.partial(self._held, told=told, instead=copies, exact=_foreign(call) or self._makes_foreign(call)),
            (call.args, call.kwargs),
        )
        refs = [copies.get(slot) or self.value(slot) for slot in call.reads()]
        results: list[Operand | None] = []
        for slot in call.results:
            if slot is None:
                results.append(None)
                continue
            fake, unlike = values.fakes[slot], slot in values.unlike
            sizes, dtype = ((), DType.unknown) if unlike else (self._sizes(call, fake), dtype_of(fake.dtype))
            ref = builder.opaque(call.packet, name, refs, sizes, dtype, reason, call.location, always=call.random)
            order = CHANNELS_LAST if copies else None if unlike else self._order(call, fake)
            if order is not None:
                builder.lies(ref, order)
            values.note(slot, ref)
            if fake.layout is torch.strided:
                values.storages[ref.value] = storage_of(fake)
            # Of dimensions of size 1 a value has no strides, by which PyTorch may tell one memory format from another.
            if not copies and all(read.value in values.eagers and None not in read.dims for read in refs):
                values.eagers.add(ref.value)
            results.append(replace(operand(ref), order=self._turned(ref), flagged=flagged(fake)))
        made = [slot for slot in call.results if slot is not None]
        if call.pinned:
            values.pinned.update(made)
        into = None
        if call.into is not None:
            into = values.inputs[call.into]
            values.theirs |= dict.fromkeys(made, call.into)
        told_of = tuple(results), call.random, call.pinned, into
        values.calls[name] = OpaqueCall(name, target, args, kwargs, *told_of, apart=self._is_apart(call))
        if self._looks_only(call):
            self.looks.append(Fallback(call.packet, reason, call.location))
        elif into is None or call.packet not in ("aten.copy_", "aten.fill_", "aten.zero_"):
            self.fallbacks.append(Fallback(call.packet, reason, call.location))

    def _makes_foreign(self, call: Call) -> bool:
        """Tells whether a result is of a type that weft cannot read, and so cannot put in eager's memory order either."""
        fakes = [
            self.values.fakes[slot] for slot in call.results if slot is not None and slot not in self.values.unlike
        ]
        return any(dtype_of(fake.dtype).is_foreign for fake in fakes)

    def value(self, slot: Slot) -> Ref:
        """Gives a tensor as PyTorch reads it: numbers on another device are made there, each once."""
        refs = self.values.refs
        if slot not in self.numbers:
            return refs[slot]
        if slot not in self._made:
            known, (call, number) = refs[slot], self.numbers[slot]
            self.leave(call, number, self.values.unlike[slot])
            refs[slot], self._made[slot] = known, refs[slot]
        return self._made[slot]

    def _ready(self, call: Call) -> None:
        """Makes what `call` reads values that PyTorch can read, each once, so that all views of it are of the same memory."""
        values, refs, builder = self.values, self.values.refs, self.values.builder
        in_order = call.packet in _OF_ROWS or values.copies(call)
        for slot in call.reads():
            if slot in self.numbers:
                continue
            refs[slot] = values.looked(refs[slot])
            # What weft cannot read PyTorch has made, and it lies as in eager.
            if not refs[slot].dtype.is_foreign and (in_order or builder.order(refs[slot]) is None):
                refs[slot] = builder.dense(refs[slot])
            if call.into is None and values.looks_into_an_input(call, slot):
                refs[slot] = values.copied(refs[slot], values.fakes[slot])
            if call.pinned and slot not in values.theirs and slot not in values.pinned:
                refs[slot] = values.as_in_memory(refs[slot], values.fakes[slot])

    def _held(
        self,
        leaf: Any,
        told: Mapping[str, Told] | None = None,
        instead: Mapping[Slot, Ref] | None = None,
        *,
        exact: bool = False,
    ) -> Any:
        """Gives what stands for an argument of a call.

        Args:
            leaf: the argument.
            told: what tells the numbers among arguments, by symbol.
            instead: values that are read in place of those of their slots.
            exact: give tensors the strides that they have in eager.
        """
        match leaf:
            case Slot():
                ref = (instead or {}).get(leaf) or self.value(leaf)
                layout = self._exact(leaf) if exact else None
                return replace(operand(ref), order=self._turned(ref), layout=layout)
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self.values.symbols.number(leaf, told or {})
            case _:
                return leaf

    def _turned(self, ref: Ref) -> tuple[int, ...] | None:
        """Gives the order of an operand's axes; None where it is that of its value, or the value has others too."""
        order = self.values.builder.order(ref)
        return None if order is None or order == tuple(range(len(order))) else order

    def _order(self, call: Call, fake: torch.Tensor) -> tuple[int, ...] | None:
        """Gives the dimensions of what `call` computes as they lie in memory, as a convolution's do by its operands' order.

        What other kernels read of it, they go over in this order. None for views, which other calls look at as they are, and where
        it is not known.
        """
        if call.pinned or call.into is not None or call.packet in VIEWS or fake.layout is not torch.strided:
            return None
        theirs = {storage_of(self.values.fakes[slot]) for slot in call.reads()}
        return None if storage_of(fake) in theirs else memory_order(fake)

    def _is_apart(self, call: Call) -> bool:
        """Tells whether each result of a call lies in memory of its own, as fake tensors have it; not all do that should."""
        fakes = [self.values.fakes[slot] for slot in call.results if slot is not None]
        read = [self.values.fakes[slot] for slot in call.reads()]
        if any(fake.layout is not torch.strided for fake in (*fakes, *read)):
            return False
        made = [storage_of(fake) for fake in fakes]
        return len(set(made)) == len(made) and set(made).isdisjoint(map(storage_of, read))

    def _exact(self, slot: Slot) -> MemoryLayout | None:
        """Gives the layout of a tensor in eager; None in an input's memory, or if not plain."""
        values = self.values
        if slot in values.theirs or slot in values.pinned or slot in values.unlike or flagged(values.fakes[slot]):
            return None
        return values.symbols.layout(values.fakes[slot])

    def _sizes(self, call: Call, fake: torch.Tensor) -> list[SizeOrAxis]:
        """Lists the sizes of a result of `call`: an axis where a reshape leaves a dimension as it is."""
        values = self.values
        sizes: list[SizeOrAxis] = [hint(n) for n in fake.shape]
        source = first(call.reads()) if call.packet in RESHAPES else None
        if source is not None and values.fakes[source].dtype == fake.dtype:
            for dim, old in kept_dims(values.fakes[source].shape, fake.shape).items():
                sizes[dim] = values.refs[source].dims[old] or sizes[dim]
        return sizes

    def _looks_only(self, call: Call) -> bool:
        """Tells whether a call copies nothing: it gives views, here as in eager, or of what a kernel wrote row-major."""
        if not isinstance(call.target, OpOverload) or not call.reads():
            return False
        values = self.values
        source = call.reads()[0]
        memory = storage_of(values.fakes[source])
        viewing = may_view(call.target) and all(
            s is None or storage_of(values.fakes[s]) == memory for s in call.results
        )
        if viewing and (call.pinned or source in values.theirs or source in values.pinned):
            return True
        if viewing and (call.packet in STRIDED or splits(values.fakes[source], values.fakes[first(call.results)])):
            return True
        ref = values.refs[source]
        return call.packet in VIEWS and values.builder.packed(ref, values.memory(ref.value))


def _foreign(call: Call) -> bool:
    """Tells whether a call is of something else than an operation of PyTorch's own, which takes its operands in any strides."""
    target = call.target.op if isinstance(call.target, Effect) else call.target
    return isinstance(target, Piece) or (isinstance(target, OpOverload) and target.namespace not in _OWN)
