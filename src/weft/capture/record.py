"""Dynamo's graph, replayed on its own fake tensors: a flat list of ATen calls without side effects.

The replay runs in inference mode, below autograd and above the decompositions: autocast has become
casts, gradient modes are gone, and composite operations (linear, softmax, layer_norm, silu) are
still whole.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher  # no public name
from torch._guards import detect_fake_mode  # no public name
from torch._ops import HigherOrderOperator, OpOverload  # no public name
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake, maybe_get_fake_mode  # no public name
from torch.utils import _python_dispatch  # no public name
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.capture.calls import (
    draws,
    form_of,
    functional_of,
    is_complex,
    is_composite,
    is_empty,
    is_number,
    keeps_statistics,
    plain_size,
    version_of,
    written_by,
)
from weft.capture.contents import Content, Silent, silent, with_sources
from weft.capture.describe import memory_format, packed
from weft.capture.gradients import differentiates
from weft.capture.memory import BY_STRIDE, STRIDED, Effect, Memory, Piece, Place, Write, Written, storage_of
from weft.capture.parts import IN_DOUBLE, LIBRARY, PARTS
from weft.capture.picks import PICKS
from weft.capture.pieces import may_write
from weft.capture.recording import Call, Recording, Slot, Target
from weft.capture.refusal import refused_by_eager
from weft.capture.sizes import symbolic
from weft.capture.source import location_of
from weft.defects import note
from weft.errors import RefusedByEagerError, UnsupportedError

_ATEN: Any = torch.ops.aten
_TORCH = str(Path(torch.__file__).parent)
Meaning: TypeAlias = Callable[[str], Literal["work", "view"] | None]
"""What weft makes of a call of an overload packet: operations, another look at the same elements, nothing."""
_MOST_PARTS, _MOST_WHOLE = 48, 64
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""The kinds of tensors that are what they seem: other subclasses may mean anything."""
_DROPOUTS = (_ATEN.dropout, _ATEN.feature_dropout, _ATEN.alpha_dropout, _ATEN.feature_alpha_dropout)


def record(gm: fx.GraphModule, meaning: Meaning, *, doubles: bool = True) -> Recording:
    """Replay `gm`, a graph of Dynamo's whose placeholders have `example_value`s, and record it.

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
        recorder = _Recorder(_fake_mode(gm), meaning, whole, PARTS | IN_DOUBLE if doubles else PARTS)
        try:
            return _recorded(gm, recorder)
        except RefusedByEagerError:
            raise
        except Exception as error:
            node = recorder.node
            if node is None or not node.op.startswith("call_") or node.name in whole or len(whole) >= _MOST_WHOLE:
                raise
            if not _is_pytorchs(error):
                note(error)
            whole[node.name] = error  # PyTorch runs that node as it stands


def _is_pytorchs(error: Exception) -> bool:
    """Whether PyTorch raised it, and not weft: what tracing cannot do is no defect."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_TORCH)


def _fake_mode(gm: fx.GraphModule) -> Any:
    """The one of Dynamo's fake tensors; where no tensor goes into the graph, one that knows its sizes."""
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    modes = [maybe_get_fake_mode(e) for e in examples if isinstance(e, torch.Tensor)]
    if modes:
        return modes[0]
    numbers: list[Any] = [e for e in examples if isinstance(e, torch.SymInt | torch.SymFloat)]
    return detect_fake_mode() or FakeTensorMode(shape_env=numbers[0].node.shape_env if numbers else None)


def _recorded(gm: fx.GraphModule, recorder: _Recorder) -> Recording:
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    inputs = tuple(recorder.enter(e) if isinstance(e, torch.Tensor) else e for e in examples)
    # The graph may switch gradients on or off; inference mode ends as it began. Fake tensors themselves run outside of it
    # (`_Recorder`): within, PyTorch's shape functions refuse symbolic sizes.
    with torch.inference_mode(not differentiates(gm)):
        with recorder:
            result: Any = _Interpreter(gm, recorder).run(*examples)
        outputs = tuple(recorder.result(leaf) for leaf in pytree.tree_leaves(result))
    calls = _pinned(recorder, outputs)
    held = tuple(recorder.constants.values())
    slots = tuple(recorder.inputs[id(fake)] for _, fake in held)
    constants = tuple(tensor for tensor, _ in held)
    made = Recording((*inputs, *slots), calls, outputs, tuple(recorder.fakes), recorder.writes(), constants)
    return with_sources(made, recorder.contents)


def _form_in_memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a write leaves as it is, and a change of shape in place does not."""
    return tuple(map(plain_size, (*tensor.shape, *tensor.stride())))


def _method(name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(tensor, name)(*args, **kwargs)


def _name_of(node: fx.Node) -> str:
    target: Any = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", node.name))


class _Interpreter(fx.Interpreter):
    """Tells the recorder which node runs."""

    def __init__(self, gm: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(gm)
        self.recorder = recorder
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.node = n
        if n.name not in self.recorder.whole:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        function = n.target
        if n.op == "call_module":
            function = self.fetch_attr(str(function))
        elif n.op == "call_method":
            function = functools.partial(_method, str(function))
        return self.recorder.piece(_name_of(n), cast("Any", function), args, kwargs, n.meta.get("example_value"))


def _symbolic(given: Any) -> bool:
    """Whether a size of a tensor in `given`, or a number there, is a symbol."""
    return any(
        isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
        or (isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and any(map(symbolic, leaf.shape)))
        for leaf in pytree.tree_leaves(given)
    )


@dataclass(frozen=True, slots=True)
class _Mark:
    """A recorder's state."""

    calls: int
    fakes: int
    slots: dict[int, Slot]
    memory: Memory
    inputs: dict[int, Slot]
    input_storages: set[int]
    constants: dict[int, tuple[torch.Tensor, torch.Tensor]]


class _Recorder(TorchDispatchMode):
    """Runs each ATen call on fake tensors and writes it down."""

    def __init__(
        self, fake_mode: Any, meaning: Meaning, whole: Mapping[str, Exception], parts: Mapping[str, Callable[..., Any]]
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch leaves it untyped
        self.fake_mode = fake_mode
        self.meaning = meaning
        self.whole = whole
        self.parts = parts
        self.node: fx.Node | None = None
        self.calls: list[Call] = []
        self.fakes: list[torch.Tensor] = []
        self.memory = Memory()
        self.inputs: dict[int, Slot] = {}
        self.input_storages: set[int] = set()
        # Tensors that the graph holds, by id, with what stands for each in the replay.
        self.constants: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # Tensors of one element that Python made of a number, with it.
        self.numbers: dict[int, tuple[torch.Tensor, Any]] = {}
        # What Python reads of tensors, numbers from then on.
        self.contents: list[Content] = []
        # Calls whose result has taken the place of an argument that the user's own call wrote into.
        self.written: set[int] = set()
        self._slots: dict[int, Slot] = {}
        # Tensors are known by id: each is kept, so that no id comes back for another.
        self._kept: list[torch.Tensor] = []
        self._sharers: dict[int, set[int]] = {}

    def enter(self, tensor: torch.Tensor) -> Slot:
        """A new slot for an input."""
        self.input_storages.add(storage_of(tensor))
        self.memory.own(tensor)
        self.inputs[id(tensor)] = self._add(tensor, tensor)
        return self.inputs[id(tensor)]

    def without_data(self, leaf: Any) -> Any:
        """What stands for a tensor that the graph holds, an input from now on; anything else unchanged.

        Raises:
            UnsupportedError: it is not a plain tensor.
        """
        if not isinstance(leaf, torch.Tensor) or is_fake(leaf):
            return leaf
        if type(leaf) not in PLAIN:
            raise UnsupportedError(f"a constant is a {type(leaf).__name__}, not a plain tensor")
        found = self.constants.get(id(leaf))
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                fake = self.fake_mode.from_tensor(leaf, static_shapes=True)
            self.enter(fake)
            found = self.constants[id(leaf)] = leaf, fake
        return found[1]

    def result(self, leaf: Any) -> Any:
        """The slot of what the graph returns: for a view of memory that was written into, of the view as it is at the end.

        A view of an input is one of its memory, which has its last value by then.
        """
        leaf = self.without_data(leaf)
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in self._slots or not self.memory.written(leaf):
            return self.placeheld(leaf)
        place = self.memory.place(leaf)
        base = id(place.base)
        last = self._slots[base]
        self._slots[base] = self.inputs.get(base, last)
        slot = self._slots[id(self._shown(place))]
        self._slots[base] = last
        return slot

    def writes(self) -> tuple[tuple[Slot, Slot], ...]:
        """The inputs that were written into, each with its last value."""
        every = ((slot, self._slots[tensor]) for tensor, slot in self.inputs.items())
        return tuple((slot, last) for slot, last in every if slot != last)

    def placeheld(self, leaf: Any) -> Any:
        """The slot of a tensor, with its value now; anything else unchanged.

        Raises:
            UnsupportedError: a tensor that neither came in nor was computed, nor is held by the graph.
        """
        leaf = self.without_data(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        slot = self._slots.get(id(leaf))
        if slot is None:
            raise UnsupportedError("a tensor of unknown origin", where=location_of(self.node))
        if self.memory.stale(leaf):
            slot = self._slots[id(leaf)] = self._slots[id(self._shown(self.memory.place(leaf)))]
            self.memory.current(leaf)
        return slot

    def _shown(self, place: Place) -> torch.Tensor:
        """What lies at `place` now."""
        shown = place.base
        for step in place.steps:
            found = self.__torch_dispatch__(step.call, (), (shown, *step.args), step.kwargs)
            shown = pytree.tree_leaves(found)[step.result]
        return shown

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _ATEN.lift_fresh.default and not is_fake(args[0]):
            return self._literal(args[0])
        given, named = pytree.tree_map(self.without_data, args), pytree.tree_map(self.without_data, kwargs or {})
        if cast("Any", func)._schema.is_mutable:  # noqa: SLF001 - no public name
            return self._write(func, given, named)
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001 - no public name
            return self._content(given[0])
        if silent(func, given):
            return self._silent(func, pytree.tree_map(self.placeheld, (given, named)))
        return self._whole_or_in_parts(func, given, named)

    def _whole_or_in_parts(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that writes into nothing, recorded."""
        if func.overloadpacket in _DROPOUTS and not draws(func, args, kwargs):
            # Fake tensors make a copy where real ones come back themselves.
            return args[0]
        if func is _ATEN.detach.default and storage_of(args[0]) not in self.input_storages:
            # Factory functions detach what they made: the tensor itself serves, and shares no memory.
            return args[0]
        if func is _ATEN.cat.default:
            pieces = [piece for piece in args[0] if not is_empty(piece)]
            if len(pieces) == 1 and all(piece.dtype is pieces[0].dtype for piece in args[0]):
                found = memory_format(self._on_fakes(func, args, kwargs)) or torch.contiguous_format
                return self.__torch_dispatch__(_ATEN.clone.default, (), (pieces[0],), {"memory_format": found})
        refused = refused_by_eager(func, args, kwargs)
        if refused is not None:
            raise RefusedByEagerError(refused, where=location_of(self.node))
        made = self._in_parts(func, args, kwargs)
        if made is not NotImplemented:
            return made
        if keeps_statistics(func, args, kwargs):
            return self._effect(func, args, kwargs, written_by(func, args, kwargs))
        held = pytree.tree_map(self.placeheld, (args, kwargs))
        result = self._on_fakes(func, args, kwargs)
        leaves = pytree.tree_leaves(result)
        new = [isinstance(leaf, torch.Tensor) and id(leaf) not in self._slots for leaf in leaves]
        # Sizes, devices, x.contiguous() where that is x: nothing to do when the program runs.
        if any(new):
            slots = [self._add(leaf, leaf) if n else None for leaf, n in zip(leaves, new, strict=True)]
            for place, leaf in enumerate(leaves):
                if new[place]:
                    self.memory.made(leaf, func, args, kwargs, place)
            self._call(func, held, tuple(slots))
        return result

    def _content(self, tensor: torch.Tensor) -> Any:
        """The number that a tensor holds, which is a symbol."""
        number, slot = self._on_fakes(_ATEN._local_scalar_dense.default, (tensor,), {}), self.placeheld(tensor)  # noqa: SLF001
        self.contents.append((number, slot, len(self.calls)))
        return number

    def _silent(self, func: OpOverload[..., Any], held: Any) -> None:
        """Records a call that gives nothing, for what it does: it raises where something is not so, or tells somebody."""
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            stands = torch.empty(())
        self.memory.own(stands)
        target = Piece(str(func.overloadpacket), Silent(func), "it gives nothing, and is called for what it does")
        self._call(target, held, (self._add(stands, stands),))

    def _literal(self, tensor: torch.Tensor) -> torch.Tensor:
        """What `torch.tensor(...)` gives, which is a new tensor at each call: of a number, what is filled with it."""
        if is_number(tensor):
            value, kind = tensor.item(), {"dtype": tensor.dtype, "device": tensor.device}
            made = self.__torch_dispatch__(_ATEN.scalar_tensor.default, (), (value,), kind)
            self.numbers[id(made)] = made, value
            return made
        with torch.inference_mode(False):
            own = tensor.clone()
        return self.__torch_dispatch__(_ATEN.clone.default, (), (own,))

    def _in_parts(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as those that it consists of; NotImplemented, and nothing is recorded, where it stays whole.

        It does where weft means it as it is, where its parts cannot be recorded, or where too little of them is weft's.
        """
        if str(func) in PARTS and any(map(is_complex, pytree.tree_leaves((args, kwargs)))):
            return NotImplemented  # those are of real numbers
        parts = self.parts.get(str(func))
        if parts is None and str(func) in PICKS and self._computed(self._slots.get(id(args[0]))):
            parts = PICKS[str(func)]
        if parts is None:
            if self.meaning(str(func.overloadpacket)) is not None or not is_composite(func):
                return NotImplemented
            parts = func.decompose
        undo = self._mark()
        try:
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented:
                made = self._as_whole(made, self._on_fakes(func, args, kwargs), args)
        except Exception:  # noqa: BLE001 - what its parts need may not be known: the call itself may run all the same
            made = NotImplemented
        if made is not NotImplemented and self._worth(self.calls[undo.calls :]):
            if str(func) in LIBRARY:
                given, named = pytree.tree_map(self.placeheld, args), pytree.tree_map(self.placeheld, kwargs)
                whole = Call(func, given, named, (self.placeheld(made),), location_of(self.node))
                self.calls[undo.calls :] = [replace(call, whole=whole) for call in self.calls[undo.calls :]]
            return made
        self._undo(undo)
        return NotImplemented

    def _mark(self) -> _Mark:
        """What is known now, for `_undo`."""
        slots, memory, inputs = dict(self._slots), self.memory.copy(), dict(self.inputs)
        storages, constants = set(self.input_storages), dict(self.constants)
        return _Mark(len(self.calls), len(self.fakes), slots, memory, inputs, storages, constants)

    def _undo(self, mark: _Mark) -> None:
        """Forgets what was recorded since."""
        for tensor in self._kept[mark.fakes :]:
            self._sharers[storage_of(tensor)].discard(id(tensor))
        del self.calls[mark.calls :], self.fakes[mark.fakes :], self._kept[mark.fakes :]
        self._slots, self.memory, self.inputs = mark.slots, mark.memory, mark.inputs
        self.input_storages, self.constants = mark.input_storages, mark.constants
        self.contents = [content for content in self.contents if content[1].index < mark.fakes]
        self.written = {index for index in self.written if index < mark.calls}

    def _computed(self, slot: Slot | None) -> bool:
        """Whether weft makes the tensor, or what it is a view of."""
        call = next((call for call in reversed(self.calls) if slot in call.results), None)
        if slot is None or call is None:
            return False
        kind = self.meaning(call.packet)
        return kind == "work" or (kind == "view" and self._computed(call.reads()[0]))

    def _as_whole(self, made: Any, wanted: Any, args: tuple[Any, ...]) -> Any:
        """What the parts of a call give, as it lies in memory of the call itself; NotImplemented where that has other forms."""
        found, form = pytree.tree_flatten(made)
        whole = pytree.tree_leaves(wanted)
        if [form_of(leaf) for leaf in found] != [form_of(leaf) for leaf in whole]:
            return NotImplemented
        given = {storage_of(leaf) for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        for place, leaf in enumerate(whole):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and storage_of(leaf) not in given:
                order = memory_format(leaf)
                if order is not None and not found[place].is_contiguous(memory_format=order):
                    copied = self.__torch_dispatch__(_ATEN.clone.default, (), (found[place],), {"memory_format": order})
                    found[place] = copied
        return pytree.tree_unflatten(found, form)

    def _on_fakes(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func` gives, without data.

        Symbolic sizes are for PyTorch's own way of tracing, which is Dynamo's too: C++ functions may ask a symbol for its number
        (`matmul` of torch 2.11 does), and Dynamo then compiles anew for each. Of other calls that way is next where one fails.
        """
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            ways = (
                (enable_python_dispatcher, nullcontext)
                if _symbolic((args, kwargs))
                else (nullcontext, enable_python_dispatcher)
            )
            try:
                with ways[0]():
                    return func(*args, **kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                with ways[1]():
                    return func(*args, **kwargs)

    def _worth(self, parts: Sequence[Call]) -> bool:
        """Whether weft has something to do among the parts, and it is not a program of its own (an LSTM)."""
        kinds = [self.meaning(call.packet) for call in parts]
        return len(kinds) <= _MOST_PARTS and ("work" in kinds or None not in kinds)

    def _write(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An in-place call, as calls that return new values."""
        if func is _ATEN.detach_.default:
            return args[0]  # no gradients are recorded here
        func, args = self._with_a_number(func, args)
        functional = functional_of(func, args)
        if functional is None:
            return self._effect(func, args, kwargs, written_by(func, args, kwargs))
        try:
            target = cast("torch.Tensor", args[0])
            place = self.memory.place(target)
            if torch.Tag.inplace_view in func.tags:
                self._reshape(functional, target, args, kwargs)
            elif is_empty(target):
                pass  # there is nothing to write
            elif func is _ATEN.copy_.default and self._same(target, args[1]):
                pass  # as Python has it in x[0] += y: what has been added to is then put where it already is
            elif self._rather_in_place(func, functional, target, args):
                self.memory.may_write(target)
                self._write_into(target, func, args[1:], kwargs)
            else:
                self.memory.may_write(target)
                self._replace(func, functional, target, args, kwargs)
                if place.steps:
                    self._write_into(target, _ATEN.copy_.default, (target,), {})
                else:
                    self.memory.wrote(target)
                self.memory.current(target)
        except UnsupportedError as error:
            raise UnsupportedError(error.what, where=location_of(self.node)) from error
        return self._on_fakes(func, args, kwargs)

    def _with_a_number(
        self, func: OpOverload[..., Any], args: tuple[Any, ...]
    ) -> tuple[OpOverload[..., Any], tuple[Any, ...]]:
        """A call that fills with what Python made of a number as one that fills with the number."""
        if func in {_ATEN.fill_.Tensor, _ATEN.copy_.default}:
            tensor, value = self.numbers.get(id(args[1]), (None, None))
            if tensor is args[1] and not self.memory.written(args[1]):
                return _ATEN.fill_.Scalar, (args[0], value)
        return func, args

    def _rather_in_place(
        self, func: OpOverload[..., Any], functional: OpOverload[..., Any], target: torch.Tensor, args: tuple[Any, ...]
    ) -> bool:
        """Whether PyTorch had better write: there is nothing to compute, or nothing that weft can."""
        place, packet = self.memory.place(target), str(func.overloadpacket)
        if not place.steps and id(target) not in self.inputs:
            return False
        if packet == "aten.copy_":
            source = self.memory.place(args[1]).base if isinstance(args[1], torch.Tensor) else None
            return bool(place.steps) or id(source) in self.inputs
        if packet in {"aten.fill_", "aten.zero_"}:
            return bool(place.steps)
        known = self.meaning(str(functional.overloadpacket)) is not None or str(functional) in PARTS
        return not (known or draws(func, args, {}))

    def _same(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether both are the same elements of the same tensor."""
        if not (self._slots.keys() >= {id(target), id(source)}):
            return False
        forms = [(t.dtype, *map(plain_size, (*t.shape, *t.stride(), t.storage_offset()))) for t in (target, source)]
        return self.memory.place(target).base is self.memory.place(source).base and forms[0] == forms[1]

    def _replace(
        self,
        func: OpOverload[..., Any],
        functional: OpOverload[..., Any],
        target: torch.Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Makes the result of `functional` the value of `target`."""
        made = self._copied(args[1], target) if func is _ATEN.copy_.default else NotImplemented
        if made is NotImplemented:
            made = self._in_parts(functional, args, kwargs)
        if isinstance(made, torch.Tensor) and (made.dtype, made.shape) == (target.dtype, target.shape):
            self._make(_ATEN.clone.default, ((self.placeheld(made),), {}), target)
            return
        held = pytree.tree_map(self.placeheld, (args, kwargs))
        fake: torch.Tensor = self._on_fakes(functional, args, kwargs)
        if fake.dtype == target.dtype:
            self._make(functional, held, target)
            return
        self.memory.own(fake)
        slot = self._make(functional, held, fake)
        self._make(_ATEN.to.dtype, ((slot, target.dtype), {}), target)

    def _copied(self, source: torch.Tensor, target: torch.Tensor) -> Any:
        """What `target` is once `source` has been copied into it."""
        if source.dtype != target.dtype:
            source = self.__torch_dispatch__(_ATEN.to.dtype, (), (source, target.dtype))
        if source.shape != target.shape:
            source = self.__torch_dispatch__(_ATEN.expand.default, (), (source, target.shape))
        return source

    def _reshape(
        self, functional: OpOverload[..., Any], target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An in-place call that changes how a tensor looks at its memory, as squeeze_ does.

        Raises:
            UnsupportedError: others look at that memory, or the caller sees it.
        """
        if id(target) in self.inputs:
            raise UnsupportedError(f"{functional} in place changes the shape of an input")
        place, storage = self.memory.place(target), storage_of(target)
        if not place.steps and len(self._sharers[storage]) > 1:
            self._set_apart(target)
            place = self.memory.place(target)
        held = pytree.tree_map(self.placeheld, (args, kwargs))
        if place.steps and storage_of(self._on_fakes(functional, args, kwargs)) != storage:
            raise UnsupportedError(f"{functional} in place on memory that several tensors share")
        self.memory.looked(target, functional, args, kwargs)
        self._make(functional, held, target)

    def _set_apart(self, tensor: torch.Tensor) -> None:
        """Makes `tensor`, which others look into, a view too: of one that keeps its shape, into which they look from now on."""
        held = self.placeheld(tensor)
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            base = tensor.detach()
        self._call(_ATEN.detach.default, ((held,), {}), (self._add(base, base),))
        self.memory.stand_in(tensor, base)

    def _write_into(
        self, target: torch.Tensor, op: OpOverload[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Records `op`, in place on `target`, as a change of the tensor whose memory that is.

        Raises:
            UnsupportedError: on a copy of that tensor, the views that lead to `target` need not exist.
        """
        place = self.memory.place(target)
        base, into = place.base, self.inputs.get(id(place.base))
        looks = [str(step.call.overloadpacket) for step in place.steps]
        row_major = packed(base)
        if into is None and not row_major and not STRIDED.issuperset(looks):
            raise UnsupportedError(f"{op} writes into a reshaped tensor that is not contiguous")
        views = tuple((step.args, step.kwargs) for step in place.steps)
        held = pytree.tree_map(self.placeheld, ((base, views, tuple(args), kwargs), {}))
        write = Write(tuple((step.call, step.result) for step in place.steps), op, row_major)
        self._make(write, held, base, into)
        self.memory.wrote(base)
        self.memory.current(base)

    def _effect(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], written: Sequence[torch.Tensor], result: Any = None
    ) -> Any:
        """Records a call that writes into `written`, some of its arguments, as one that gives what they look into anew.

        result: what it gives without data; None where that is to be found out.

        Raises:
            UnsupportedError: what is written may be the memory of others, or a result is a view.
        """
        if torch.Tag.inplace_view in getattr(op, "tags", ()):
            raise UnsupportedError(f"{op} changes the shape of an argument", where=location_of(self.node))
        for tensor in written:
            self.memory.may_write(tensor)
        places = [self.memory.place(tensor) for tensor in written]
        bases = list({id(place.base): place.base for place in places}.values())
        numbers = [next(i for i, base in enumerate(bases) if base is place.base) for place in places]
        stands = {id(tensor): Written(i) for i, tensor in enumerate(written)}

        def held(leaf: Any) -> Any:
            return stands[id(leaf)] if id(leaf) in stands else self.placeheld(leaf)

        views = tuple(tuple((step.args, step.kwargs) for step in place.steps) for place in places)
        given = pytree.tree_map(self.placeheld, (tuple(bases), views)) + tuple(pytree.tree_map(held, (args, kwargs)))
        result = self._on_fakes(op, tuple(args), kwargs) if result is None else result
        leaves = pytree.tree_leaves(result)
        fresh = {
            i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and id(leaf) not in self._slots
        }
        if any(storage_of(leaf) in self._sharers for leaf in fresh.values()):
            raise UnsupportedError(f"{op} gives a view of what it writes into", where=location_of(self.node))
        looks = tuple(
            (number, tuple((step.call, step.result) for step in place.steps))
            for number, place in zip(numbers, places, strict=True)
        )
        target = Effect(op, looks, tuple(map(packed, bases)), tuple(fresh))
        into = self.inputs.get(id(bases[0])) if len(bases) == 1 and not fresh else None
        slots = [self._renewed(base) for base in bases]
        for leaf in fresh.values():
            slots.append(self._add(leaf, leaf))
            self.memory.own(leaf)
        self._call(target, (given, {}), tuple(slots), into)
        for base in bases:
            self.memory.wrote(base)
            self.memory.current(base)
        return result

    def piece(self, name: str, function: Any, args: Sequence[Any], kwargs: dict[str, Any], example: Any) -> Any:
        """Records a call of anything as a whole; `example` is what Dynamo found that it gives.

        Raises:
            UnsupportedError: a result is a view of a tensor that was there before.
            Exception: PyTorch cannot run it without data.
        """
        args, kwargs = pytree.tree_map(self.without_data, (tuple(args), kwargs))
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        before, forms = [version_of(leaf) for leaf in given], [_form_in_memory(leaf) for leaf in given]
        with cast("Any", _python_dispatch)._disable_current_modes():  # noqa: SLF001 - no public name
            try:
                result = self._on_fakes(function, tuple(args), kwargs)
            except Exception:
                if example is None:
                    raise
                result = example
        if [_form_in_memory(leaf) for leaf in given] != forms:
            raise UnsupportedError(f"{name} changes the shape of an argument", where=location_of(self.node))
        written = [leaf for leaf, version in zip(given, before, strict=True) if version_of(leaf) != version]
        written += may_write(function, args, kwargs, result)
        target, held = self._as_it_stands(name, function), (tuple(args), kwargs)
        if written:
            self._effect(
                target, *held, list({id(leaf): leaf for leaf in written}.values()), () if result is None else result
            )
            return result
        held = pytree.tree_map(self.placeheld, held)
        leaves = pytree.tree_leaves(result)
        fresh = [isinstance(leaf, torch.Tensor) and id(leaf) not in self._slots for leaf in leaves]
        if any(new and storage_of(leaf) in self._sharers for new, leaf in zip(fresh, leaves, strict=True)):
            raise UnsupportedError(f"{name} gives a view of a tensor", where=location_of(self.node))
        slots = tuple(self._add(leaf, leaf) if new else None for new, leaf in zip(fresh, leaves, strict=True))
        for new, leaf in zip(fresh, leaves, strict=True):
            if new:
                self.memory.own(leaf)
        self._call(target, held, slots)
        return result

    def _as_it_stands(self, name: str, function: Callable[..., Any]) -> Piece:
        assert self.node is not None
        error = self.whole[self.node.name]
        said = error.what if isinstance(error, UnsupportedError) else f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(self.node.target, HigherOrderOperator):
            said = "it calls functions, and is no operation of its own"
        kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        return Piece(name, function, said, tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds))

    def _make(self, target: Target, held: Any, tensor: torch.Tensor, into: Slot | None = None) -> Slot:
        """Records a call whose result is what `tensor` is from now on."""
        slot = self._renewed(tensor)
        self._call(target, held, (slot,), into)
        return slot

    def _renewed(self, tensor: torch.Tensor) -> Slot:
        """A new slot for `tensor`: the result of the next call is what it is from now on."""
        self.written.add(len(self.calls))
        known = self._slots.get(id(tensor))
        if known is not None and self.fakes[known.index] is tensor:
            # What it was so far keeps its shape: squeeze_ and its like change that of the tensor itself.
            with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
                self.fakes[known.index] = tensor.detach()
        return self._add(tensor, tensor)

    def _add(self, tensor: torch.Tensor, fake: torch.Tensor) -> Slot:
        slot = Slot(len(self.fakes))
        self.fakes.append(fake)
        self._kept.append(tensor)
        self._slots[id(tensor)] = slot
        self._sharers.setdefault(storage_of(tensor), set()).add(id(tensor))
        return slot

    def _call(self, func: Target, held: Any, results: tuple[Slot | None, ...], into: Slot | None = None) -> None:
        args, kwargs = held
        match func:
            case Piece() | Effect(op=Piece()):
                random = True  # for all that is known
            case Effect(op=op):
                random = draws(op, args[2], args[3])
            case Write():
                random = False
            case _:
                random = draws(func, args, kwargs)
        self.calls.append(Call(func, args, kwargs, results, location_of(self.node), random, into=into))


def _pinned(recorder: _Recorder, outputs: tuple[Any, ...]) -> tuple[Call, ...]:
    """The calls, those pinned that make an output a view of an input or of another output."""
    made = {slot: i for i, call in enumerate(recorder.calls) for slot in call.results if slot}
    storages: dict[Slot, int] = {o: storage_of(recorder.fakes[o.index]) for o in outputs if isinstance(o, Slot)}
    seen = list(storages.values())
    calls = list(recorder.calls)
    shared = [o for o, s in storages.items() if s in recorder.input_storages or seen.count(s) > 1]
    # What is read by strides must lie as it does in eager.
    shared += [slot for call in calls if call.packet in BY_STRIDE for slot in call.results if slot]
    for output in shared:
        storage, waiting = storage_of(recorder.fakes[output.index]), [output]
        while waiting:
            index = made.get(waiting.pop())
            if index is None or index in recorder.written:
                continue
            bases = [s for s in calls[index].reads() if storage_of(recorder.fakes[s.index]) == storage]
            if bases:
                calls[index] = replace(calls[index], pinned=True)
                waiting += bases
    return tuple(calls)
