"""Dynamo's graph, replayed on its own fake tensors: a flat list of ATen calls without side effects.

The replay runs in inference mode, below autograd and above the decompositions: autocast has become
casts, gradient modes are gone, and composite operations (linear, softmax, layer_norm, silu) are
still whole.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx
from torch._guards import detect_fake_mode  # no public name
from torch._ops import OpOverload  # no public name
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake, maybe_get_fake_mode  # no public name
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.capture.calls import (
    draws,
    form_of,
    is_complex,
    is_composite,
    is_empty,
    is_number,
    keeps_statistics,
    written_by,
)
from weft.capture.captured import inverse
from weft.capture.contents import Silent, silent, with_sources
from weft.capture.describe import laid_out_as_eager, memory_format, memory_order
from weft.capture.inplace import InPlaceCalls
from weft.capture.memory import BY_STRIDE, Piece, storage_of
from weft.capture.nested import calls_nested_graph, every_node
from weft.capture.parts import LIBRARY, PARTS
from weft.capture.picks import PICKS
from weft.capture.pieces import record_as_it_stands
from weft.capture.recording import Call, Meaning, Recording, Slot
from weft.capture.refusal import refused_by_eager
from weft.capture.statistics import IN_DOUBLE
from weft.capture.tape import Tape
from weft.defects import note
from weft.errors import RefusedByEagerError


def differentiates(gm: fx.GraphModule) -> bool:
    """Tells whether the graph itself computes derivatives (`torch.func.grad`): in inference mode nothing is recorded for them."""
    return any(getattr(n.target, "__name__", "") == "_grad_increment_nesting" for n in every_node(gm))


def gradients_possible(gm: fx.GraphModule) -> bool:
    """Tells whether gradients may be recorded on the way, also where no result asks for them."""
    on = torch.is_grad_enabled() or any(
        n.op == "call_function" and "set_grad_enabled" in str(n.target) and True in n.args for n in every_node(gm)
    )
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    return on and any(isinstance(e, torch.Tensor) and e.requires_grad for e in examples)


_ATEN: Any = torch.ops.aten
_TORCH = str(Path(torch.__file__).parent)
_MOST_PARTS, _MOST_OWN, _MOST_WHOLE = 48, 128, 64
_DROPOUTS = (_ATEN.dropout, _ATEN.feature_dropout, _ATEN.alpha_dropout, _ATEN.feature_alpha_dropout)


def record(gm: fx.GraphModule, meaning: Meaning, *, doubles: bool = True) -> Recording:
    """Replays `gm`, a graph of Dynamo's whose placeholders have `example_value`s, and records it.

    Args:
        gm: the graph.
        meaning: what weft makes of a call of this overload packet; composite calls without a meaning are
            recorded as the calls that they consist of.
        doubles: whether kernels compute in float64, so that what PyTorch carries in it on a CPU may be too.

    Raises:
        UnsupportedError: the graph writes in a way that is no operation on values, or has no tensor input.
        Exception: whatever PyTorch raises on an operation that fake tensors cannot run.
    """
    whole: dict[str, Exception] = {}
    while True:
        tape = Tape(_fake_mode(gm))
        recorder = _Recorder(tape, meaning, PARTS | IN_DOUBLE if doubles else PARTS)
        try:
            return _recorded(gm, recorder, whole)
        except RefusedByEagerError:
            raise
        except Exception as error:
            node = tape.node
            if node is None or not node.op.startswith("call_") or tape.path in whole or len(whole) >= _MOST_WHOLE:
                raise
            if not _is_pytorchs(error):
                note(error)
            whole[tape.path] = error  # PyTorch runs that node as it stands


def _is_pytorchs(error: Exception) -> bool:
    """Tells whether PyTorch raised it, and not weft: what tracing cannot do is no defect."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_TORCH)


def _fake_mode(gm: fx.GraphModule) -> Any:
    """Finds the mode of Dynamo's fake tensors; where no tensor goes into the graph, one that knows its sizes."""
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    modes = [maybe_get_fake_mode(e) for e in examples if isinstance(e, torch.Tensor)]
    if modes:
        return modes[0]
    numbers: list[Any] = [e for e in examples if isinstance(e, torch.SymInt | torch.SymFloat)]
    return detect_fake_mode() or FakeTensorMode(shape_env=numbers[0].node.shape_env if numbers else None)


def _recorded(gm: fx.GraphModule, recorder: _Recorder, whole: Mapping[str, Exception]) -> Recording:
    """Replays the graph once; nodes in `whole` as one call each."""
    tape = recorder.tape
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    inputs = tuple(tape.enter(e) if isinstance(e, torch.Tensor) else e for e in examples)
    # The graph may switch gradients on or off; inference mode ends as it began. Fake tensors themselves run outside of it
    # (`Tape.unrecorded`).
    with torch.inference_mode(not differentiates(gm)):
        with recorder:
            result: Any = _Interpreter(gm, recorder, whole).run(*examples)
        outputs = tuple(tape.result(leaf) for leaf in pytree.tree_leaves(result))
    calls = _pinned(tape, outputs)
    held = tuple(tape.constants.values())
    slots = tuple(tape.inputs[id(fake)] for _, fake in held)
    constants = tuple(tensor for tensor, _ in held)
    made = Recording((*inputs, *slots), calls, outputs, tuple(tape.fakes), tape.writes(), constants)
    return with_sources(made, tape.contents)


def _method(name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(tensor, name)(*args, **kwargs)


class _Interpreter(fx.Interpreter):
    """Runs the graph under a recorder, and tells its tape which node runs.

    A call of a nested graph (`torch.compiler.nested_compile_region`) is recorded as the calls of that graph.
    """

    def __init__(
        self, gm: fx.GraphModule, recorder: _Recorder, whole: Mapping[str, Exception], within: str = ""
    ) -> None:
        super().__init__(gm)
        self.recorder = recorder
        self.whole = whole
        self.within = within
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        tape = self.recorder.tape
        tape.node, tape.path = n, f"{self.within}{n.name}"
        nested = calls_nested_graph(n)
        if tape.path not in self.whole and not nested:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if nested and tape.path not in self.whole:
            graph, _, *operands = args
            return _Interpreter(graph, self.recorder, self.whole, f"{tape.path}.").run(*operands)
        function: Any = n.target
        if n.op == "call_module":
            function = self.fetch_attr(str(function))
        elif n.op == "call_method":
            function = functools.partial(_method, str(function))
        return record_as_it_stands(n, function, args, kwargs, self.whole[tape.path], tape, self.recorder.in_place)


class _Recorder(TorchDispatchMode):
    """Runs each ATen call on fake tensors and has it written down: as one call, or as those that it consists of.

    Attributes:
        tape: where calls are written down.
        in_place: records those that write.
    """

    def __init__(self, tape: Tape, meaning: Meaning, parts: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch leaves it untyped
        self.tape = tape
        self.in_place = InPlaceCalls(tape, meaning)
        self._meaning = meaning
        self._parts = parts

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _ATEN.lift_fresh.default and not is_fake(args[0]):
            return self._literal(args[0])
        given, named = pytree.tree_map(self.tape.without_data, (args, kwargs or {}))
        if cast("Any", func)._schema.is_mutable:  # noqa: SLF001 - no public name
            return self.in_place.record(func, given, named, self._in_parts)
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001 - no public name
            return self._content(given[0])
        if silent(func, given):
            return self._silent(func, self.tape.held((given, named)))
        return self._whole_or_in_parts(func, given, named)

    def _whole_or_in_parts(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call that writes into nothing."""
        if func.overloadpacket in _DROPOUTS and not draws(func, args, kwargs):
            # Fake tensors make a copy where real ones come back themselves.
            return args[0]
        if func is _ATEN.detach.default and storage_of(args[0]) not in self.tape.input_storages:
            # Factory functions detach what they made: the tensor itself serves, and shares no memory.
            return args[0]
        if func is _ATEN.cat.default:
            pieces = [piece for piece in args[0] if not is_empty(piece)]
            if len(pieces) == 1 and all(piece.dtype is pieces[0].dtype for piece in args[0]):
                found = memory_format(self.tape.on_fakes(func, args, kwargs)) or torch.contiguous_format
                return self.__torch_dispatch__(_ATEN.clone.default, (), (pieces[0],), {"memory_format": found})
            alike = 1 < len(pieces) < len(args[0]) and all(piece.dtype is pieces[0].dtype for piece in args[0])
            formats = [
                memory_format(self.tape.on_fakes(func, (p, *args[1:]), kwargs)) for p in (pieces, args[0]) if alike
            ]
            if alike and formats[0] is formats[1]:  # those without elements have a say in how the result lies in memory
                return self.__torch_dispatch__(func, (), (pieces, *args[1:]), kwargs)
        refused = refused_by_eager(func, args, kwargs)
        if refused is not None:
            raise RefusedByEagerError(refused, where=self.tape.location)
        made = self._in_parts(func, args, kwargs)
        if made is not NotImplemented:
            return made
        if keeps_statistics(func, args, kwargs):
            return self.in_place.effect(func, args, kwargs, written_by(func, args, kwargs))
        return self.tape.record(func, args, kwargs)

    def _content(self, tensor: torch.Tensor) -> Any:
        """Gives the number that a tensor holds, which is a symbol, and notes that it was read."""
        number, slot = self.tape.on_fakes(_ATEN._local_scalar_dense.default, (tensor,), {}), self.tape.placeheld(tensor)  # noqa: SLF001
        self.tape.contents.append((number, slot, len(self.tape.calls)))
        return number

    def _silent(self, func: OpOverload[..., Any], held: Any) -> None:
        """Records a call that gives nothing, for what it does: it raises where something is not so, or tells somebody."""
        with self.tape.unrecorded():
            stands = torch.empty(())
        self.tape.memory.own(stands)
        target = Piece(str(func.overloadpacket), Silent(func), "it returns nothing, and is called for its side effects")
        self.tape.append(target, held, (self.tape.add(stands),))

    def _literal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Records what `torch.tensor(...)` gives, which is a new tensor at each call: of a number, what is filled with it."""
        if is_number(tensor):
            value, kind = tensor.item(), {"dtype": tensor.dtype, "device": tensor.device}
            made = self.__torch_dispatch__(_ATEN.scalar_tensor.default, (), (value,), kind)
            self.tape.numbers[id(made)] = made, value
            return made
        with torch.inference_mode(False):
            own = tensor.clone()
        return self.__torch_dispatch__(_ATEN.clone.default, (), (own,))

    def _in_parts(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call as those that it consists of; NotImplemented, and nothing is recorded, where it stays whole.

        It does where weft means it as it is, where its parts cannot be recorded, or where too little of them is weft's.
        """
        if str(func) in PARTS and any(map(is_complex, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented  # those are of real numbers
        parts = self._parts.get(str(func))
        if parts is None and str(func) in PICKS and self._computed(self.tape.slot(args[0])):
            parts = PICKS[str(func)]
        if parts is None:
            if self._meaning(str(func.overloadpacket)) is not None or not is_composite(func):
                return NotImplemented
            parts = func.decompose
        undo = self.tape.mark()
        try:
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented:
                made = self._as_whole(made, laid_out_as_eager(func, args, self.tape.on_fakes(func, args, kwargs)), args)
        except Exception:  # noqa: BLE001 - what its parts need may not be known: the call itself may run all the same
            made = NotImplemented
        if made is not NotImplemented and self._worth(self.tape.calls[undo.calls :], own=str(func) in PARTS):
            if str(func) in LIBRARY:
                given, named = self.tape.held((args, kwargs))
                whole = Call(func, given, named, (self.tape.placeheld(made),), self.tape.location)
                self.tape.calls[undo.calls :] = [replace(call, whole=whole) for call in self.tape.calls[undo.calls :]]
            return made
        self.tape.undo(undo)
        return NotImplemented

    def _computed(self, slot: Slot | None) -> bool:
        """Tells whether weft makes the tensor, or what it is a view of."""
        call = next((call for call in reversed(self.tape.calls) if slot in call.results), None)
        if slot is None or call is None:
            return False
        kind = self._meaning(call.packet)
        return kind == "work" or (kind == "view" and self._computed(call.reads()[0]))

    def _as_whole(self, made: Any, wanted: Any, args: tuple[Any, ...]) -> Any:
        """Gives what the parts of a call give, laid out as its own results; NotImplemented where these differ in form."""
        found, form = pytree.tree_flatten(made)
        whole = pytree.tree_leaves(wanted)
        if [form_of(leaf) for leaf in found] != [form_of(leaf) for leaf in whole]:
            return NotImplemented
        given = {storage_of(leaf) for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        for place, leaf in enumerate(whole):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and storage_of(leaf) not in given:
                found[place] = self._laid_out(found[place], leaf)
        return pytree.tree_unflatten(found, form)

    def _laid_out(self, made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Gives a tensor that lies in memory as another one, where that is dense: what looks at it may rely on that."""
        known, order = memory_format(wanted), memory_order(wanted)
        if known is not None:
            if made.is_contiguous(memory_format=known):
                return made
            return self.__torch_dispatch__(_ATEN.clone.default, (), (made,), {"memory_format": known})
        if order is None or order == memory_order(made):
            return made
        with self:
            return made.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse(order))

    def _worth(self, parts: Sequence[Call], *, own: bool) -> bool:
        """Tells whether weft has something to do among the parts, and it is not a program of its own (an LSTM).

        own: they are weft's, which are meant as they are; views alone are still a program of their own if they are many.
        """
        kinds = [self._meaning(call.packet) for call in parts]
        most = _MOST_OWN if own and "work" in kinds else _MOST_PARTS
        return len(kinds) <= most and ("work" in kinds or None not in kinds)


def _pinned(tape: Tape, outputs: tuple[Any, ...]) -> tuple[Call, ...]:
    """Lists the calls, those pinned that make an output a view of an input or of another output."""
    made = {slot: i for i, call in enumerate(tape.calls) for slot in call.results if slot}
    storages: dict[Slot, int] = {o: storage_of(tape.fakes[o.index]) for o in outputs if isinstance(o, Slot)}
    seen = list(storages.values())
    calls = list(tape.calls)
    shared = [o for o, s in storages.items() if s in tape.input_storages or seen.count(s) > 1]
    # What is read by strides must lie as it does in eager.
    shared += [slot for call in calls if call.packet in BY_STRIDE for slot in call.results if slot]
    for output in shared:
        storage, waiting = storage_of(tape.fakes[output.index]), [output]
        while waiting:
            index = made.get(waiting.pop())
            if index is None or index in tape.written:
                continue
            bases = [s for s in calls[index].reads() if storage_of(tape.fakes[s.index]) == storage]
            if bases:
                calls[index] = replace(calls[index], pinned=True)
                waiting += bases
    return tuple(calls)
