"""Translating a recording into a tensor program; calls that the operation table lacks become calls into PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree  # no public name

from weft.capture.arguments import Arguments, Handler, dtype_of
from weft.capture.captured import Captured, FixedLayout
from weft.capture.contents import symbols_of
from weft.capture.convolutions import types_with_channels_last
from weft.capture.creation import CREATION
from weft.capture.describe import alive, home_of, unlike
from weft.capture.elementwise import elementwise, is_elementwise
from weft.capture.flags import flagged
from weft.capture.joins import JOINS
from weft.capture.library import unsupported
from weft.capture.lookups import CHECKS, LOOKUPS
from weft.capture.matmuls import MATMULS
from weft.capture.memory import Effect, Piece, Written
from weft.capture.numbers import INDICES
from weft.capture.opaque import OpaqueCalls
from weft.capture.parts import TAKEN_APART
from weft.capture.recording import Call, Recording, Slot
from weft.capture.reductions import REDUCTIONS
from weft.capture.results import Results
from weft.capture.scans import SCANS
from weft.capture.sizes import expression, hint
from weft.capture.stores import MANY
from weft.capture.values import Values
from weft.capture.views import VIEWS
from weft.capture.windows import WINDOWS
from weft.defects import note
from weft.errors import UnsupportedError, WeftError
from weft.tensor.builder import Ref
from weft.tensor.program import Opaque, TensorProgram, uses

_HANDLERS: dict[str, Handler] = {
    **CHECKS,
    **CREATION,
    **INDICES,
    **JOINS,
    **LOOKUPS,
    **MATMULS,
    **REDUCTIONS,
    **SCANS,
    **VIEWS,
    **WINDOWS,
}

_NUMBER = "aten.scalar_tensor"


def meaning(packet: str) -> Literal["work", "view"] | None:
    """Says what weft makes of calls of an overload packet: operations, another look at the same elements, or nothing."""
    if packet in VIEWS:
        return "view"
    return "work" if packet in _HANDLERS or is_elementwise(packet) else None


def translate(
    recording: Recording, names: Sequence[str], left: Mapping[int, str] | None = None, *, guarded: bool = False
) -> Captured:
    """Makes the tensor program of `recording`.

    Args:
        recording: of a graph on plain CPU tensors.
        names: of the graph's placeholders.
        left: calls that PyTorch is to run although weft knows them, by number (`Captured.made_by`), and why.
        guarded: PyTorch's guards stand before each call.

    Raises:
        UnsupportedError: an element type or a size has no place in a tensor program.
    """
    left = dict(left or {})
    captured = _Translation(alive(recording), names, left).captured()

    def leaving(more: Mapping[int, str]) -> Captured:
        return translate(recording, names, {**left, **more}, guarded=guarded)

    fixed = fixed_layouts(recording) if guarded else {}
    return replace(captured, left=tuple(sorted(left)), leaving=leaving, recording=recording, fixed=fixed)


def fixed_layouts(recording: Recording) -> dict[int, FixedLayout]:
    """Lists, by placeholder, the sizes and strides that do not change from call to call."""
    given = recording.inputs[: len(recording.inputs) - len(recording.constants)]
    return {i: FixedLayout.of(recording.fakes[s.index]) for i, s in enumerate(given) if isinstance(s, Slot)}


class _Translation:
    """One recording on its way: each call becomes operations, or is left to PyTorch."""

    def __init__(self, recording: Recording, names: Sequence[str], left: dict[int, str]) -> None:
        self.recording = recording
        self.left = left
        self.device = home_of(recording)
        self.values = Values(recording, names, unlike(recording, self.device))
        self.builder = self.values.builder
        self.opaque = OpaqueCalls(self.values, channels_last=types_with_channels_last(recording))

    def captured(self) -> Captured:
        """Translates each call, and says how the graph's results come of the program."""
        values, made_by = self.values, dict[str, int]()
        for number, call in self._calls():
            known = self.builder.mark()
            self._translate(call, number)
            made_by.update(dict.fromkeys(self.builder.made_since(known), number))
        found = Results(self.recording, values, self.opaque)
        results, writes = tuple(found.results()), tuple(found.writes())
        wanted = (name for name, call in values.calls.items() if not call.look)  # of views those that are read
        program = _pruned(self.builder.finish(found.outputs), wanted)
        there = {node.call for node in program.nodes if isinstance(node, Opaque)}
        foreign = next((n for n in program.nodes if n.dtype.is_foreign and not isinstance(n, Opaque)), None)
        if foreign is not None:
            raise UnsupportedError(f"weft does not copy {foreign.dtype} numbers")
        return Captured(
            program,
            tuple(values.arguments),
            {name: call for name, call in values.calls.items() if not call.look or name in there},
            results,
            writes,
            tuple(self.opaque.fallbacks),
            views=tuple(self.opaque.looks),
            made_by=made_by,
            constants=self.recording.constants,
            sizes=dict(values.symbols.sizes(self.builder)),
        )

    def _calls(self) -> Iterator[tuple[int, Call]]:
        """Numbers the calls; where PyTorch is to run a part of one into a library, that one in place of its parts."""
        calls = tuple(enumerate(self.recording.calls))
        reasons = {id(c.whole): self.left[n] for n, c in calls if n in self.left and c.whole is not None}
        for number, call in calls:
            whole = call.whole
            if whole is None or id(whole) not in reasons:
                yield number, call
            elif not set(whole.results).isdisjoint(call.results):
                self.left[number] = reasons[id(whole)]
                yield number, whole

    def _translate(self, call: Call, number: int) -> None:
        """Lets weft make the result of a call, where need be with merged dimensions made one axis; else leaves it to PyTorch."""
        reason = self._attempt(call, number)
        if reason is not None and call.packet in _HANDLERS and self._one_plainer(call, number):
            return
        while reason is not None and self._plainer(call, every=True):
            reason = self._attempt(call, number)
        if reason is None:
            return
        try:
            self.opaque.leave(call, number, reason)
        except UnsupportedError as error:
            raise UnsupportedError(error.what, where=call.location) from error

    def _attempt(self, call: Call, number: int) -> str | None:
        """Tries to make the result of `call`, or says why weft cannot; then nothing is done."""
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
                self.values.note(slot, ref)
            return None
        self.builder.undo(known)
        return reason

    def _one_plainer(self, call: Call, number: int) -> bool:
        """Tries `call` with the last merged dimension alone of what it reads as one axis; where that does not do, nothing is done.

        The others stay as they are: of heads that are repeated in memory none is written more than once.
        """
        refs, known = dict(self.values.refs), self.builder.mark()
        if self._plainer(call, every=False) and self._attempt(call, number) is None:
            return True
        self.builder.undo(known)
        self.values.refs.update(refs)  # views that nothing reads are left out in the end
        return False

    def _plainer(self, call: Call, *, every: bool) -> bool:
        """Makes the last merged dimension of each tensor that `call` reads one axis; False where none has any.

        every: as of `Values.plainer`.
        """
        merged = [slot for slot in dict.fromkeys(call.reads()) if self.builder.merges(self.values.refs[slot])]
        for slot in merged:
            self.values.refs[slot] = self.values.plainer(
                self.values.refs[slot], in_order=self.values.copies(call), every=every
            )
        return bool(merged)

    def _handled(self, call: Call, number: int) -> list[tuple[Slot, Ref]]:
        """Makes the results of `call` that are used.

        Raises:
            WeftError: weft has nothing for it, or not for these arguments.
        """
        self._demand_plain_call(call, number)
        handler = _HANDLERS.get(call.packet)
        if handler is None and is_elementwise(call.packet):
            handler = elementwise
        used = [slot for slot in call.results if slot is not None]
        if call.packet == _NUMBER and used and self.values.fakes[used[0]].device != self.device:
            self.opaque.numbers[used[0]] = call, number
        self._demand_types(call, used)
        if handler is None or not used:
            raise UnsupportedError(
                MANY.get(call.packet) or unsupported(call.packet, for_some=call.packet in TAKEN_APART)
            )
        values, symbols = self.values, self.values.symbols
        arguments = Arguments(
            self.builder, call, values.fakes, values.refs, symbols.axes, symbols.contents | self._read(call)
        )
        found = _used(call, handler(self.builder, arguments))
        for slot, ref in found:
            self._check(ref, self.values.fakes[slot])
        return found

    def _read(self, call: Call) -> dict[Any, Ref]:
        """Finds the tensors of one element that Python read numbers of which `call` is called with, by symbol."""
        numbers = {s.symbol: s.slot for s in call.sources if s.dim is None and self.values.fakes[s.slot].ndim == 0}
        given = pytree.tree_leaves((call.args, call.kwargs))
        symbols = {s for each in given if symbols_of(each) for s in expression(each).free_symbols}
        return {s: self.values.refs[numbers[str(s)]] for s in symbols if str(s) in numbers}

    def _demand_plain_call(self, call: Call, number: int) -> None:
        """Makes sure that `call` does no more than give new values.

        Raises:
            UnsupportedError: it does, or PyTorch is to run it.
        """
        match call.target:
            case _ if number in self.left:
                raise UnsupportedError(self.left[number])
            case Piece(reason=reason):
                raise UnsupportedError(reason)
            case Effect() if call.args[2][:1] == (Written(0),):
                raise UnsupportedError("it writes into a part of a tensor")
            case Effect():
                raise UnsupportedError("it writes into its arguments")
            case _ if call.random:
                raise UnsupportedError("it draws random numbers")
            case _ if call.pinned:
                raise UnsupportedError("its result shares memory with an input or another output")
            case _:
                pass

    def _demand_types(self, call: Call, used: Sequence[Slot]) -> None:
        """Makes sure that the tensors that `call` reads and makes, those that are `used`, are such as weft computes with.

        Raises:
            UnsupportedError: they are not; fp8 numbers are where nothing is computed.
        """
        slots = (*call.reads(), *used)
        unlike, fakes = self.values.unlike, [self.values.fakes[slot] for slot in slots]
        reason = next((unlike[s] for s in slots if s in unlike and s not in self.opaque.numbers), None)
        if reason is not None:
            raise UnsupportedError(reason)
        if any(map(flagged, fakes)):
            raise UnsupportedError(
                "a tensor has PyTorch's conjugate, negative or zero mark, so its elements are computed when they are read"
            )
        if any(expression(n) == 0 for fake in fakes for n in fake.shape):
            raise UnsupportedError("a tensor has no elements")
        kinds = {dtype_of(fake.dtype) for fake in fakes}
        foreign = sorted(str(k) for k in kinds if k.is_foreign)
        if foreign:
            raise UnsupportedError(f"PyTorch runs operations on {' and '.join(foreign)}")
        kept = sorted(str(k) for k in kinds if k.is_kept and call.packet not in VIEWS)
        if kept:
            raise UnsupportedError(
                f"weft only casts and moves {' and '.join(kept)} numbers; PyTorch computes with them"
            )

    def _check(self, ref: Ref, fake: torch.Tensor) -> None:
        """Holds what was built against what PyTorch says of the result."""
        shape = tuple(hint(n) for n in fake.shape)
        if ref.dtype is not dtype_of(fake.dtype) or self.builder.shape(ref) != shape:
            raise UnsupportedError(
                f"weft's result would be {ref.dtype}{list(self.builder.shape(ref))}, "
                f"PyTorch's is {dtype_of(fake.dtype)}{list(shape)}"
            )


def _used(call: Call, made: Ref | tuple[Ref, ...]) -> list[tuple[Slot, Ref]]:
    """Picks the results of `call` that something uses, of what a handler made.

    Raises:
        UnsupportedError: there are several, and the handler made but one.
    """
    if not isinstance(made, Ref):
        return [(slot, ref) for slot, ref in zip(call.results, made, strict=True) if slot is not None]
    used = [slot for slot in call.results if slot is not None]
    if len(used) != 1:
        raise UnsupportedError(unsupported(call.packet, for_some=call.packet in TAKEN_APART))
    return [(used[0], made)]


def _pruned(program: TensorProgram, calls: Iterable[str]) -> TensorProgram:
    """Leaves out nodes that neither an output nor a PyTorch call needs."""
    wanted = set(calls)
    needed = set(program.outputs)
    kept: list[Any] = []
    for node in reversed(program.nodes):
        if node.name in needed or (isinstance(node, Opaque) and node.call in wanted):
            kept.append(node)
            needed.update(uses(node))
    return replace(program, nodes=tuple(reversed(kept)))
