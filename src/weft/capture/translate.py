"""A recording as a tensor program, and as PyTorch calls where the table of operations has nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name
from torch.utils._sympy.printers import PythonPrinter  # no public name

from weft.capture.arguments import Arguments, Handler, dtype_of, expression, hint
from weft.capture.captured import (
    Captured,
    Fallback,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    Layout,
    Number,
    OpaqueCall,
    Operand,
    Result,
    Told,
)
from weft.capture.contents import symbols_of
from weft.capture.creation import CREATION
from weft.capture.describe import alive, dense, first, home_of, memory_order, readable, splits, unlike
from weft.capture.elementwise import elementwise, is_elementwise
from weft.capture.flags import flagged
from weft.capture.indices import INDICES
from weft.capture.memory import STRIDED, Effect, Piece, Write, storage_of
from weft.capture.picks import CHECK
from weft.capture.products import PRODUCTS
from weft.capture.recording import Call, Recording, Slot
from weft.capture.reductions import REDUCTIONS
from weft.capture.sizes import symbolic
from weft.capture.views import RESHAPES, VIEWS, copy, kept_dims
from weft.defects import note
from weft.errors import UnsupportedError, WeftError
from weft.tensor.axes import Axis, Space
from weft.tensor.builder import Builder, Ref, Size
from weft.tensor.dtypes import DType
from weft.tensor.program import Opaque, TensorProgram, uses

_HANDLERS: dict[str, Handler] = {**CREATION, **INDICES, **PRODUCTS, **REDUCTIONS, **VIEWS}

_FLATTEN = torch.ops.aten.flatten.using_ints
_CLONE, _NUMBER = torch.ops.aten.clone.default, "aten.scalar_tensor"
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
_OWN = ("aten", "prims", "weft")
"""The libraries whose operations take operands in any strides: they ask these for them."""
_OF_ROWS = ("aten.view_as_complex", "aten.view_as_real")
"""Views that want the last dimension to be the innermost, as it is in a tensor that eager computed."""


def meaning(packet: str) -> Literal["work", "view"] | None:
    """What weft makes of calls of an overload packet: operations, another look at the same elements, or nothing."""
    if packet in VIEWS:
        return "view"
    return "work" if packet in _HANDLERS or is_elementwise(packet) else None


def translate(recording: Recording, names: Sequence[str], left: Mapping[int, str] | None = None) -> Captured:
    """The tensor program of `recording`.

    Args:
        recording: of a graph on plain CPU tensors.
        names: of the graph's placeholders.
        left: calls that PyTorch is to run although weft knows them, by number (`Captured.made_by`), and why.

    Raises:
        UnsupportedError: an element type or a size has no place in a tensor program.
    """
    left = dict(left or {})
    captured = _Translation(alive(recording), names, left).captured()

    def leaving(more: Mapping[int, str]) -> Captured:
        return translate(recording, names, {**left, **more})

    return replace(captured, leaving=leaving, recording=recording)


class _Translation:
    """One recording on its way."""

    def __init__(self, recording: Recording, names: Sequence[str], left: dict[int, str]) -> None:
        self.recording = recording
        self.left = left
        self.made_by: dict[str, int] = {}
        self.builder = Builder()
        self.inputs = {s: i for i, s in enumerate(recording.inputs) if isinstance(s, Slot)}
        self.fakes = {Slot(i): fake for i, fake in enumerate(recording.fakes)}
        self.refs: dict[Slot, Ref] = {}
        self.axes: dict[Any, Axis] = {}
        self.lengths: dict[Axis, int] = {}
        self.calls: dict[str, OpaqueCall] = {}
        self.flat: dict[str, str] = {}
        self.fallbacks: list[Fallback] = []
        self.looks: list[Fallback] = []
        self.symbols: dict[str, int] = {}
        self.contents: dict[Any, Ref] = {}
        self.arguments: list[int] = []
        self.device = home_of(recording)
        self.unlike = unlike(recording, self.device)
        # Numbers that are tensors on another device: of weft they are numbers, PyTorch must make them.
        self.numbers: dict[Slot, tuple[Call, int]] = {}
        self.made: dict[Slot, Ref] = {}
        # Of inputs, and of what PyTorch makes: what tells their memory from others'.
        self.storages: dict[str, int] = {}
        # Values that lie in memory as eager's do, whatever fake tensors say: the inputs, and what PyTorch makes of such alone.
        self.eagers: set[str] = set()
        # Tensors that are the memory of an input, or may be: the inputs, and what writes made of them.
        self.theirs: dict[Slot, Slot] = {}
        # Results of pinned calls: views of memory that goes out as it is.
        self.shown: set[Slot] = set()
        read = {slot for call in recording.calls for slot in call.reads()}
        held = len(recording.inputs) - len(recording.constants)
        for index, (entry, name) in enumerate(zip(recording.inputs, names, strict=True)):
            if isinstance(entry, Slot):
                if index < held or entry in read:
                    self._input(index, entry, name)
            elif entry is not None:
                self.symbols[str(expression(entry))] = index

    def captured(self) -> Captured:
        """Everything, once each call has been translated."""
        for number, call in self._calls():
            known = self.builder.mark()
            self._translate(call, number)
            self.made_by.update(dict.fromkeys(self.builder.made_since(known), number))
        outputs: list[Ref] = []
        results = tuple(self._result(leaf, outputs) for leaf in self.recording.outputs)
        writes = tuple((self.inputs[slot], self._last(slot, last, outputs)) for slot, last in self.recording.writes)
        program = _pruned(self.builder.finish(outputs), self.calls)
        foreign = next((n for n in program.nodes if n.dtype.is_foreign and not isinstance(n, Opaque)), None)
        if foreign is not None:
            raise UnsupportedError(f"weft would have to copy {foreign.dtype} numbers, which are PyTorch's")
        arguments, fallbacks, looks = tuple(self.arguments), tuple(self.fallbacks), tuple(self.looks)
        made = program, arguments, self.calls, results, writes, fallbacks
        held = self.recording.constants
        return Captured(*made, views=looks, made_by=self.made_by, constants=held, sizes=dict(self._sizes_by_number()))

    def _sizes_by_number(self) -> Iterator[tuple[Space, Number]]:
        """The spaces of the finished program whose sizes follow from numbers that the graph is called with, or never change.

        A size that is the same at each call is one that PyTorch traced the graph for, and guards.
        """
        for axis, length in self.lengths.items():
            space = self.builder.resolved(axis)
            if space is not None:
                yield space, Number(str(length), ())
        for size, axis in self.axes.items():
            space = self.builder.resolved(axis)
            if space is not None and {str(s) for s in size.free_symbols} <= set(self.symbols):
                yield space, self._number_of(size)

    def _calls(self) -> Iterator[tuple[int, Call]]:
        """The calls with their numbers; where PyTorch is to run a part of one into a library, that one in place of its parts."""
        calls = tuple(enumerate(self.recording.calls))
        reasons = {id(c.whole): self.left[n] for n, c in calls if n in self.left and c.whole is not None}
        for number, call in calls:
            whole = call.whole
            if whole is None or id(whole) not in reasons:
                yield number, call
            elif not set(whole.results).isdisjoint(call.results):
                self.left[number] = reasons[id(whole)]
                yield number, whole

    def _input(self, index: int, slot: Slot, name: str) -> None:
        fake = self.fakes[slot]
        name = readable(name)
        if any(ref.value == name for ref in self.refs.values()):
            name = f"{name}_{index}"
        if slot in self.unlike:
            self.refs[slot] = ref = self.builder.input(name, (), DType.unknown)
        else:
            ref = self.builder.input(name, [hint(n) for n in fake.shape], dtype_of(fake.dtype))
            self._shown(slot, ref)
        if fake.layout is torch.strided:
            self.storages[ref.value] = storage_of(fake)
        self.eagers.add(ref.value)
        self.theirs[slot] = slot
        self.arguments.append(index)
        content = getattr(fake, "item_memo", None)  # what Python read of it; None where it was written into
        if isinstance(content, torch.SymFloat):
            self.contents[expression(content)] = ref
            self.symbols[str(expression(content))] = index

    def _shown(self, slot: Slot, ref: Ref) -> None:
        """Notes the tensor, how long its axes always are, and which are as long as symbolic sizes that no earlier tensor has."""
        if ref.dtype is not DType.unknown:
            for axis, size in zip(ref.dims, self.fakes[slot].shape, strict=True):
                if axis is not None and symbolic(size):
                    self.axes.setdefault(expression(size), axis)
                elif axis is not None:
                    self.lengths.setdefault(axis, size)
        self.refs[slot] = ref

    def _translate(self, call: Call, number: int) -> None:
        reason = self._attempt(call, number)
        if reason is not None and self._all_plain(call):
            reason = self._attempt(call, number)
        if reason is None:
            return
        try:
            self._opaque(call, number, reason)
        except UnsupportedError as error:
            raise UnsupportedError(error.what, where=call.location) from error

    def _attempt(self, call: Call, number: int) -> str | None:
        """Has weft make the result of `call`; or says why it cannot, and nothing is done."""
        known = self.builder.mark()
        try:
            made = self._handled(call, number)
        except WeftError as error:
            reason = error.what
        except Exception as error:  # noqa: BLE001 - a defect of weft's costs this call alone; it is reported
            note(error)
            reason = f"weft failed: {type(error).__name__}: {error}"
        else:
            for slot, ref in made:
                self._shown(slot, ref)
            return None
        self.builder.undo(known)
        return reason

    def _all_plain(self, call: Call) -> bool:
        """Makes the merged dimensions of what `call` reads one axis each; False where there is none."""
        merged = [slot for slot in call.reads() if self.builder.merges(self.refs[slot])]
        for slot in merged:
            self.refs[slot] = self._plain(self.refs[slot], in_order=self._copies(call))
        return bool(merged)

    def _plain(self, ref: Ref, *, in_order: bool = False) -> Ref:
        """`ref` with one axis per dimension: PyTorch looks at the value as if it had so many; a copy where that is no view.

        in_order: the value's axes shall lie in memory as the dimensions do.
        """
        if not self.builder.merges(ref):
            return ref
        if in_order:
            ref = self.builder.dense(ref)
        try:
            runs = self.builder.runs(ref)
        except UnsupportedError:
            ref = self.builder.dense(ref)
            runs = self.builder.runs(ref)
        first, last, _ = runs[-1]
        name = f"flatten_{len(self.calls)}"
        made = self.builder.flatten(ref, runs[-1], name)
        operand = Operand(ref.value, (True,) * self.builder.rank(ref))
        result = Operand(made.value, (True,) * self.builder.rank(made))
        self.calls[name] = OpaqueCall(name, _FLATTEN, (operand, first, last), {}, (result,), look=True)
        self.flat[made.value] = ref.value
        return self._plain(made)

    def _handled(self, call: Call, number: int) -> list[tuple[Slot, Ref]]:
        """The results of `call` that are used, made by weft.

        Raises:
            WeftError: weft has nothing for it, or not for these arguments.
        """
        self._demand_plain_call(call, number)
        handler = _HANDLERS.get(call.packet)
        if handler is None and is_elementwise(call.packet):
            handler = elementwise
        used = [slot for slot in call.results if slot is not None]
        if call.packet == _NUMBER and used and self.fakes[used[0]].device != self.device:
            self.numbers[used[0]] = call, number
        self._demand_types(call, used)
        if handler is None or not used:
            raise UnsupportedError(f"{call.packet} is not in weft's table yet")
        arguments = Arguments(self.builder, call, self.fakes, self.refs, self.axes, self.contents | self._read(call))
        found = _used(call, handler(self.builder, arguments))
        for slot, ref in found:
            self._check(ref, self.fakes[slot])
        return found

    def _read(self, call: Call) -> dict[Any, Ref]:
        """The tensors of one element that Python read numbers of which `call` is called with, by symbol."""
        numbers = {s.symbol: s.slot for s in call.sources if s.dim is None and self.fakes[s.slot].ndim == 0}
        given = pytree.tree_leaves((call.args, call.kwargs))
        symbols = {s for each in given if symbols_of(each) for s in expression(each).free_symbols}
        return {s: self.refs[numbers[str(s)]] for s in symbols if str(s) in numbers}

    def _demand_plain_call(self, call: Call, number: int) -> None:
        """Whether `call` does no more than give new values.

        Raises:
            UnsupportedError: it does, or PyTorch is to run it.
        """
        match call.target:
            case _ if number in self.left:
                raise UnsupportedError(self.left[number])
            case Piece(reason=reason):
                raise UnsupportedError(reason)
            case Write():
                raise UnsupportedError("it writes into a part of a tensor")
            case Effect():
                raise UnsupportedError("it writes into its arguments")
            case _ if call.random:
                raise UnsupportedError("it draws random numbers")
            case _ if call.pinned:
                raise UnsupportedError("its result shares memory with an input or another output")
            case _ if call.packet == CHECK:
                raise UnsupportedError("PyTorch looks whether each index exists")
            case _:
                pass

    def _empty(self, slot: Slot) -> bool:
        """Whether a tensor never has elements."""
        return any(expression(n) == 0 for n in self.fakes[slot].shape)

    def _demand_types(self, call: Call, used: Sequence[Slot]) -> None:
        """Whether the tensors that `call` reads and makes, those that are `used`, are such as weft computes with.

        Raises:
            UnsupportedError: they are not; floats of 8 bits are where nothing is computed.
        """
        slots = (*call.reads(), *used)
        unlike = next((self.unlike[s] for s in slots if s in self.unlike and s not in self.numbers), None)
        if unlike is not None:
            raise UnsupportedError(unlike)
        if any(flagged(self.fakes[slot]) for slot in slots):
            raise UnsupportedError(
                "a tensor is marked as conjugate, negative or zeros, which PyTorch computes when it is read"
            )
        if any(map(self._empty, slots)):
            raise UnsupportedError("a tensor has no elements")
        kinds = {dtype_of(self.fakes[s].dtype) for s in slots}
        foreign = sorted(str(k) for k in kinds if k.is_foreign)
        if foreign:
            raise UnsupportedError(f"{' and '.join(foreign)} numbers are PyTorch's")
        kept = sorted(str(k) for k in kinds if k.is_kept and call.packet not in VIEWS)
        if kept:
            raise UnsupportedError(
                f"{' and '.join(kept)} numbers are only cast and moved: what computes with them is PyTorch's"
            )

    def _check(self, ref: Ref, fake: torch.Tensor) -> None:
        """Holds what was built against what PyTorch says of the result."""
        shape = tuple(hint(n) for n in fake.shape)
        if ref.dtype is not dtype_of(fake.dtype) or self.builder.shape(ref) != shape:
            raise UnsupportedError(
                f"weft makes it {ref.dtype}{list(self.builder.shape(ref))}, PyTorch {dtype_of(fake.dtype)}{list(shape)}"
            )

    def _opaque(self, call: Call, number: int, reason: str) -> None:
        name = f"{call.packet.removeprefix('aten.').replace('::', '_')}_{number}"
        self._ready(call)
        target = call.target
        if target is _VIEW and not call.pinned:
            # A computed tensor need not have the strides that eager's has: where they do not allow a view, a copy.
            target = _RESHAPE
        told = {source.symbol: Told(self._held(source.slot), source.dim) for source in call.sources}
        args, kwargs = pytree.tree_map(
            functools.partial(self._held, told=told, exact=_foreign(call)), (call.args, call.kwargs)
        )
        refs = [self._pytorchs(slot) for slot in call.reads()]
        results: list[Operand | None] = []
        for slot in call.results:
            if slot is None:
                results.append(None)
                continue
            fake, unlike = self.fakes[slot], slot in self.unlike
            sizes, dtype = ((), DType.unknown) if unlike else (self._sizes(call, fake), dtype_of(fake.dtype))
            ref = self.builder.opaque(call.packet, name, refs, sizes, dtype, reason, call.location, always=call.random)
            self._shown(slot, ref)
            if fake.layout is torch.strided:
                self.storages[ref.value] = storage_of(fake)
            if all(operand.value in self.eagers for operand in refs):
                self.eagers.add(ref.value)
            results.append(replace(_operand(ref), flagged=flagged(fake)))
        if call.pinned:
            self.shown.update(slot for slot in call.results if slot is not None)
        into = None
        if call.into is not None:
            into = self.inputs[call.into]
            self.theirs |= {slot: call.into for slot in call.results if slot is not None}
        self.calls[name] = OpaqueCall(name, target, args, kwargs, tuple(results), call.random, call.pinned, into)
        if self._looks_only(call):
            self.looks.append(Fallback(call.packet, reason, call.location))
        elif into is None or call.packet not in ("aten.copy_", "aten.fill_", "aten.zero_"):
            self.fallbacks.append(Fallback(call.packet, reason, call.location))

    def _sizes(self, call: Call, fake: torch.Tensor) -> list[Size]:
        """The sizes of a result of `call`: an axis where a reshape leaves a dimension as it is."""
        sizes: list[Size] = [hint(n) for n in fake.shape]
        source = first(call.reads()) if call.packet in RESHAPES else None
        if source is not None and self.fakes[source].dtype == fake.dtype:
            for dim, old in kept_dims(self.fakes[source].shape, fake.shape).items():
                sizes[dim] = self.refs[source].dims[old] or sizes[dim]
        return sizes

    def _pytorchs(self, slot: Slot) -> Ref:
        """The tensor as PyTorch reads it: numbers on another device are made there, each once."""
        if slot not in self.numbers:
            return self.refs[slot]
        if slot not in self.made:
            known, (call, number) = self.refs[slot], self.numbers[slot]
            self._opaque(call, number, self.unlike[slot])
            self.refs[slot], self.made[slot] = known, self.refs[slot]
        return self.made[slot]

    def _ready(self, call: Call) -> None:
        """Makes what `call` reads values that PyTorch can read, each once, so that all views of it are of the same memory."""
        in_order = call.packet in _OF_ROWS or self._copies(call)
        for slot in call.reads():
            if slot in self.numbers:
                continue
            if in_order or self.builder.order(self.refs[slot]) is None:
                self.refs[slot] = self.builder.dense(self.refs[slot])
            if call.into is None and self._looks_into_an_input(call, slot):
                self.refs[slot] = self._copied(slot)
            if call.pinned and slot not in self.theirs and slot not in self.shown:
                self.refs[slot] = self._as_in_memory(self.refs[slot], self.fakes[slot])

    def _looks_into_an_input(self, call: Call, slot: Slot) -> bool:
        """Whether a result of `call` would be a view of an input's memory, where eager's is one of a copy, read as `slot`."""
        memory = storage_of(self.fakes[slot])
        if slot in self.theirs or all(s is None or storage_of(self.fakes[s]) != memory for s in call.results):
            return False
        return any(
            self.refs[s].value == self.refs[slot].value and storage_of(self.fakes[s]) != memory for s in self.theirs
        )

    def _looks_only(self, call: Call) -> bool:
        """Whether a call into PyTorch copies nothing: it gives views, here as in eager, or of what a kernel wrote row-major."""
        if not isinstance(call.target, OpOverload) or not call.reads():
            return False
        source = call.reads()[0]
        memory = storage_of(self.fakes[source])
        viewing = all(s is None or storage_of(self.fakes[s]) == memory for s in call.results)
        if viewing and (call.pinned or source in self.theirs or source in self.shown):
            return True
        if viewing and (call.packet in STRIDED or splits(self.fakes[source], self.fakes[first(call.results)])):
            return True
        ref = self.refs[source]
        return call.packet in VIEWS and self.builder.packed(ref, self._memory(ref.value))

    def _as_in_memory(self, ref: Ref, fake: torch.Tensor) -> Ref:
        """`ref` as a value that lies in memory as eager's does: views of it go out, and so must not be copied any more."""
        if ref.dtype.is_foreign:
            return ref  # PyTorch made it
        order = memory_order(fake)
        if order is None:
            return ref
        back = sorted(range(len(order)), key=lambda d: order[d])
        return self.builder.permute(self.builder.dense(self.builder.permute(ref, order)), back)

    def _copies(self, call: Call) -> bool:
        """Whether the call is a reshape that eager copies for: a kernel that makes the operand had better write it so."""
        memory = [{storage_of(self.fakes[s]) for s in slots if s is not None} for slots in (call.reads(), call.results)]
        return call.packet in VIEWS and memory[0].isdisjoint(memory[1])

    def _held(self, leaf: Any, told: Mapping[str, Told] | None = None, *, exact: bool = False) -> Any:
        """What stands for an argument of a call; where that is to be `exact`, tensors have the strides that they have in eager."""
        match leaf:
            case Slot():
                ref = self._pytorchs(leaf)
                order = self.builder.order(ref)
                plain = order is None or order == tuple(range(len(order)))
                layout = self._exact(leaf) if exact else None
                return replace(_operand(ref), order=None if plain else order, layout=layout)
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._number(leaf, told or {})
            case _:
                return leaf

    def _exact(self, slot: Slot) -> Layout | None:
        """The layout of a tensor in eager; None in an input's memory, or if not plain."""
        fake = self.fakes[slot]
        if slot in self.theirs or slot in self.shown or slot in self.unlike or flagged(fake):
            return None
        return self._layout_of(fake)

    def _layout_of(self, fake: torch.Tensor) -> Layout | None:
        """How a tensor lies in memory in eager; None where only the content of a tensor says it."""

        def known(size: int | torch.SymInt) -> Number | int:
            return self._number(size, {}) if isinstance(size, torch.SymInt) else size

        try:
            return Layout(tuple(map(known, fake.shape)), tuple(map(known, fake.stride())), known(fake.storage_offset()))
        except UnsupportedError:
            return None

    def _number(self, value: Any, told: Mapping[str, Told]) -> Number:
        """A number of PyTorch's; `told` says where those of its symbols are found that no argument of the graph is.

        Raises:
            UnsupportedError: that is nowhere.
        """
        expr = expression(value)
        if not {str(s) for s in expr.free_symbols} <= {*self.symbols, *told}:
            raise UnsupportedError(f"{expr} depends on the content of a tensor")
        return self._number_of(expr, told)

    def _number_of(self, expr: Any, told: Mapping[str, Told] | None = None) -> Number:
        """What SymPy's expression of the graph's numbers comes to at each call."""
        symbols = sorted(str(s) for s in expr.free_symbols)
        text = str(cast("Any", PythonPrinter()).doprint(expr))
        places: dict[str, int | Told] = {**(told or {}), **self.symbols}
        return Number(text, tuple((name, places[name]) for name in symbols))

    def _result(self, leaf: Any, outputs: list[Ref]) -> Result:
        match leaf:
            case Slot():
                if leaf in self.inputs:
                    return FromArgument(self.inputs[leaf])
                return self._output(leaf, outputs)
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._told(leaf, outputs)
            case _:
                return FromNothing(leaf)

    def _told(self, number: Any, outputs: list[Ref]) -> FromSizes:
        """A number among the results; a tensor that tells it, as it was then, is an output of the program."""
        told: dict[str, Told] = {}
        places: dict[Operand, int] = {}
        names = {str(symbol) for symbol in expression(number).free_symbols}
        for source in (source for source in self.recording.sources if source.symbol in names):
            ref = self._copied(source.slot) if source.slot in self.inputs else self._plain(self._pytorchs(source.slot))
            if ref not in outputs:
                outputs.append(ref)
            told[source.symbol] = Told(_operand(ref), source.dim)
            places[_operand(ref)] = outputs.index(ref)
        return FromSizes(self._number(number, told), tuple(places.items()))

    def _output(self, slot: Slot, outputs: list[Ref]) -> FromProgram:
        """A tensor of the program's own: eager's was a tensor of its own too, unless it is pinned."""
        slots = [s for s in self.recording.outputs if isinstance(s, Slot)]
        ref = self.refs[slot] = self._plain(self._pytorchs(slot))
        others = (*self.theirs, *self.shown, *slots[: slots.index(slot)])
        if slot not in self.shown and self._home(ref) in {self._home(self.refs[s]) for s in others}:
            ref = self.refs[slot] = self._copied(slot)
        fake = self.recording.fakes[slot.index]
        theirs = self.storages.get(ref.value) == storage_of(fake) and not self.builder.expanded(ref, 0, len(ref.dims))
        if slot in self.unlike or (theirs and ref.value in self.eagers):
            outputs += [] if ref in outputs else [ref]
            return FromProgram(outputs.index(ref))
        layout = None if slot in self.shown else self._layout(ref, fake)
        if layout is not None:
            ref = self._held_once(ref, layout)
        if ref not in outputs:
            outputs.append(ref)
        return FromProgram(outputs.index(ref), memory_order(fake), layout)

    def _layout(self, ref: Ref, fake: torch.Tensor) -> Layout | None:
        """Of a result that may have gaps or overlaps; None as well where only the content of a tensor says it."""
        if dense(fake) and self.storages.get(self._memory(ref.value), storage_of(fake)) == storage_of(fake):
            return None
        return self._layout_of(fake)

    def _held_once(self, ref: Ref, layout: Layout) -> Ref:
        """`ref` without the dimensions that it was expanded along: elements that memory holds once are computed once."""
        places = accumulate((axis is not None for axis in ref.dims), initial=0)
        once = [
            axis is not None and stride == 0 and self.builder.expanded(ref, place, 1)
            for axis, stride, place in zip(ref.dims, layout.strides, places, strict=False)
        ]
        return replace(ref, dims=tuple(None if o else a for o, a in zip(once, ref.dims, strict=True)))

    def _last(self, entry: Slot, last: Slot, outputs: list[Ref]) -> int:
        """The output that is the last value of the input `entry`; none that lies in another input, which may change too."""
        ref = self.refs[last] = self._plain(self._pytorchs(last))
        theirs = {self._home(self.refs[s]) for s in self.theirs}
        if self.theirs.get(last) != entry and self._home(ref) in theirs:
            ref = self._copied(last)
        if ref not in outputs:
            outputs.append(ref)
        return outputs.index(ref)

    def _copied(self, slot: Slot) -> Ref:
        """The content of `slot` in memory of its own; PyTorch copies what weft cannot read."""
        ref = self._pytorchs(slot)
        if not (ref.dtype.is_foreign or flagged(self.fakes[slot])):
            return copy(self.builder, ref)
        name = f"copy_{len(self.calls)}_of_{ref.value}"
        sizes: list[Size] = [1 if axis is None else axis for axis in ref.dims]
        made = self.builder.opaque("aten.clone", name, [ref], sizes, ref.dtype, "weft cannot read it", None)
        self.calls[name] = OpaqueCall(name, _CLONE, (_operand(ref),), {}, (_operand(made),))
        return made

    def _home(self, ref: Ref) -> int | str:
        """What tells the memory of `ref` from others': the storage that PyTorch shows it in, or the value that a kernel writes."""
        value = self._memory(ref.value)
        return self.storages.get(value, value)

    def _memory(self, value: str) -> str:
        """The value whose memory that is which weft itself had PyTorch look at as `value`."""
        while value in self.flat:
            value = self.flat[value]
        return value


def _foreign(call: Call) -> bool:
    """Whether a call is of something else than an operation of PyTorch's own, which takes its operands in any strides."""
    target = call.target.op if isinstance(call.target, Effect) else call.target
    return isinstance(target, Piece) or (isinstance(target, OpOverload) and target.namespace not in _OWN)


def _used(call: Call, made: Ref | tuple[Ref, ...]) -> list[tuple[Slot, Ref]]:
    """The results of `call` that something uses, of what a handler made.

    Raises:
        UnsupportedError: there are several, and the handler made but one.
    """
    if not isinstance(made, Ref):
        return [(slot, ref) for slot, ref in zip(call.results, made, strict=True) if slot is not None]
    used = [slot for slot in call.results if slot is not None]
    if len(used) != 1:
        raise UnsupportedError(f"{call.packet} is not in weft's table yet")
    return [(used[0], made)]


def _operand(ref: Ref) -> Operand:
    return Operand(ref.value, tuple(axis is not None for axis in ref.dims))


def _pruned(program: TensorProgram, calls: Iterable[str]) -> TensorProgram:
    """Without nodes that neither an output nor a PyTorch call needs."""
    wanted = set(calls)
    needed = set(program.outputs)
    kept: list[Any] = []
    for node in reversed(program.nodes):
        if node.name in needed or (isinstance(node, Opaque) and node.call in wanted):
            kept.append(node)
            needed.update(uses(node))
    return replace(program, nodes=tuple(reversed(kept)))
