"""Which value of a program stands for each tensor of a recording, and whose memory it lies in.

Eager's tensors may share memory, with each other and with the graph's inputs. A value that weft computes has memory of its own.
Where PyTorch looks at it or writes into it, or where it goes out, it has to share what eager's tensor shares, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.capture.arguments import dtype_of
from weft.capture.captured import FLATTEN, UNFLATTEN, OpaqueCall, Operand, inverse
from weft.capture.describe import memory_order, readable
from weft.capture.flags import flagged
from weft.capture.memory import storage_of
from weft.capture.recording import Call, Recording, Slot
from weft.capture.sizes import expression, hint
from weft.capture.symbols import Symbols
from weft.capture.views import VIEWS, copy
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref, SizeOrAxis
from weft.tensor.dtypes import DType

_CLONE = torch.ops.aten.clone.default


class Values:
    """The values so far.

    Attributes:
        builder: makes the program.
        symbols: what is known of the graph's numbers.
        fakes: the tensors without data.
        unlike: the tensors that a program has no words for, and why.
        refs: the value of each tensor.
        inputs: of a tensor that comes in, which argument of the graph it is.
        arguments: the arguments of the graph that are inputs of the program, in order.
        calls: what PyTorch is to call, by name.
        storages: of inputs, and of what PyTorch makes: what tells their memory from others'.
        eagers: values that lie in memory as eager's do, whatever fake tensors say: inputs, and what PyTorch makes of such alone.
        theirs: tensors that are the memory of an input, or may be, with it: the inputs, and what writes made of them.
        pinned: results of pinned calls: views of memory that goes out as it is.
    """

    def __init__(self, recording: Recording, names: Sequence[str], unlike: dict[Slot, str]) -> None:
        self.builder = Builder()
        self.symbols = Symbols()
        self.fakes = {Slot(i): fake for i, fake in enumerate(recording.fakes)}
        self.unlike = unlike
        self.refs: dict[Slot, Ref] = {}
        self.inputs = {s: i for i, s in enumerate(recording.inputs) if isinstance(s, Slot)}
        self.arguments: list[int] = []
        self.calls: dict[str, OpaqueCall] = {}
        self.storages: dict[str, int] = {}
        self.eagers: set[str] = set()
        self.theirs: dict[Slot, Slot] = {}
        self.pinned: set[Slot] = set()
        # Values that PyTorch looks at, with fewer dimensions, as another one.
        self._flat: dict[str, str] = {}
        read = {slot for call in recording.calls for slot in call.reads()}
        held = len(recording.inputs) - len(recording.constants)
        for index, (entry, name) in enumerate(zip(recording.inputs, names, strict=True)):
            if isinstance(entry, Slot):
                if index < held or entry in read:
                    self._input(index, entry, name)
            elif entry is not None:
                self.symbols.arguments[str(expression(entry))] = index

    def _input(self, index: int, slot: Slot, name: str) -> None:
        """Makes a tensor that comes in an input of the program."""
        fake = self.fakes[slot]
        name = readable(name)
        if any(ref.value == name for ref in self.refs.values()):
            name = f"{name}_{index}"
        if slot in self.unlike:
            self.refs[slot] = ref = self.builder.input(name, (), DType.unknown)
        else:
            ref = self.builder.input(name, [hint(n) for n in fake.shape], dtype_of(fake.dtype))
            self.note(slot, ref)
            self.builder.lies(ref, memory_order(fake) or range(fake.ndim))
        if fake.layout is torch.strided:
            self.storages[ref.value] = storage_of(fake)
        self.eagers.add(ref.value)
        self.theirs[slot] = slot
        self.arguments.append(index)
        content = getattr(fake, "item_memo", None)  # what Python read of it; None where it was written into
        if isinstance(content, torch.SymFloat):
            self.symbols.contents[expression(content)] = ref
            self.symbols.arguments[str(expression(content))] = index

    def note(self, slot: Slot, ref: Ref) -> None:
        """Notes the value of a tensor, and what its sizes tell."""
        if ref.dtype is not DType.unknown:
            self.symbols.see(self.builder, ref, self.fakes[slot].shape)
        self.refs[slot] = ref

    # Other forms of a value.

    def plain(self, ref: Ref, *, packed: bool = False) -> Ref:
        """Gives `ref` one axis per dimension: PyTorch looks at the value as if it had so many; a copy where that is no view.

        packed: a copy shall be row-major.
        """
        while self.builder.merges(ref):
            ref = self.plainer(ref, packed=packed, every=True)
        return ref

    def plainer(self, ref: Ref, *, in_order: bool = False, packed: bool = False, every: bool = False) -> Ref:
        """Gives `ref`, which has merged dimensions, one less: the last one is one axis.

        in_order: the value's axes shall lie in memory as the dimensions do.
        packed: they shall where it must be copied in any case.
        every: the others will be one axis each as well, so that one copy makes them all lie side by side.
        """
        split = self.builder.dense(ref) if in_order else ref
        ref = self.looked(split)
        try:
            run = self.builder.last_run(ref, every=every)
        except UnsupportedError:
            # A kernel copies: what weft makes it can copy where it is made, where PyTorch's view of it would be read from memory.
            source = ref if self._is_given(ref) else split
            ref = self.builder.dense(source) if packed else self.builder.side_by_side(source)
            run = self.builder.last_run(ref)
        first, last, _ = run
        name = f"flatten_{len(self.calls)}"
        made = self.builder.flatten(ref, run, name)
        self._look(name, FLATTEN, ref, made, first, last)
        return made

    def looked(self, ref: Ref) -> Ref:
        """Gives `ref`, where its value is a view with dimensions split, as PyTorch's view of the value that is split."""
        found = self.builder.undivided(ref)
        if found is None:
            return ref
        whole, parts = self.looked(found[0]), found[1]
        for dim, digits in reversed(list(enumerate(parts))):
            if len(digits) > 1:
                name = f"unflatten_{len(self.calls)}"
                made = self.builder.unflatten(whole, dim, digits, name)
                sizes = [-1, *self.builder.shape(made)[dim + 1 : dim + len(digits)]]
                self._look(name, UNFLATTEN, whole, made, dim, sizes)
                whole = made
        new = dict(zip((axis for digits in parts for axis in digits), whole.dims, strict=True))
        return self.builder.over(replace(ref, value=whole.value), {a: b for a, b in new.items() if b is not None})

    def _is_given(self, ref: Ref) -> bool:
        """Tells whether `ref` lies in memory before any kernel runs, or PyTorch puts it there."""
        return self.memory(ref.value) in self.storages

    def _look(self, name: str, target: Any, source: Ref, made: Ref, *args: Any) -> None:
        """Notes that PyTorch's view of a value, `source`, is the value `made`."""
        whole = Operand(source.value, (True,) * self.builder.rank(source))
        result = Operand(made.value, (True,) * self.builder.rank(made))
        self.calls[name] = OpaqueCall(name, target, (whole, *args), {}, (result,), look=True)
        self._flat[made.value] = source.value

    def copied(self, ref: Ref, fake: torch.Tensor) -> Ref:
        """Puts the content of a tensor, whose value is `ref`, into memory of its own; PyTorch copies what weft cannot read."""
        if not (ref.dtype.is_foreign or flagged(fake)):
            return copy(self.builder, ref)
        name = f"copy_{len(self.calls)}_of_{ref.value}"
        sizes: list[SizeOrAxis] = [1 if axis is None else axis for axis in ref.dims]
        made = self.builder.opaque("aten.clone", name, [ref], sizes, ref.dtype, "weft cannot read it", None)
        self.calls[name] = OpaqueCall(name, _CLONE, (operand(ref),), {}, (operand(made),), apart=True)
        return made

    def as_in_memory(self, ref: Ref, fake: torch.Tensor) -> Ref:
        """Makes of `ref` a value that lies in memory as eager's does: views of it go out, and so must not be copied any more."""
        if ref.dtype.is_foreign:
            return ref  # PyTorch made it
        order = memory_order(fake)
        if order is None:
            return ref
        return self._in_order(ref, order)

    def lying(self, ref: Ref, order: tuple[int, ...]) -> Ref:
        """Gives `ref` as it is where its dimensions lie in memory in this order, outermost first, else a value of which they do."""
        return ref if self.builder.lies_in(ref, order) else self._in_order(ref, order)

    def _in_order(self, ref: Ref, order: tuple[int, ...]) -> Ref:
        return self.builder.permute(self.builder.dense(self.builder.permute(ref, order)), inverse(order))

    # Whose memory a value lies in.

    def home(self, ref: Ref) -> int | str:
        """Tells the memory of `ref` from others': by the storage that PyTorch shows it in, or the value that a kernel writes."""
        value = self.memory(ref.value)
        return self.storages.get(value, value)

    def memory(self, value: str) -> str:
        """Finds the value whose memory that is which weft itself had PyTorch look at as `value`."""
        while value in self._flat:
            value = self._flat[value]
        return value

    def copies(self, call: Call) -> bool:
        """Tells whether the call is a reshape that eager copies for: a kernel that makes the operand had better write it so."""
        memory = [{storage_of(self.fakes[s]) for s in slots if s is not None} for slots in (call.reads(), call.results)]
        return call.packet in VIEWS and memory[0].isdisjoint(memory[1])

    def looks_into_an_input(self, call: Call, slot: Slot) -> bool:
        """Tells whether a result of `call` would be a view of an input's memory, where eager's is one of a copy, read as `slot`."""
        memory = storage_of(self.fakes[slot])
        if slot in self.theirs or all(s is None or storage_of(self.fakes[s]) != memory for s in call.results):
            return False
        return any(
            self.refs[s].value == self.refs[slot].value and storage_of(self.fakes[s]) != memory for s in self.theirs
        )


def operand(ref: Ref) -> Operand:
    """Names a value as an operand of a PyTorch call."""
    return Operand(ref.value, tuple(axis is not None for axis in ref.dims))
