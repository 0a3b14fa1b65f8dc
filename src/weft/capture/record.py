"""Dynamo's graph, replayed on its own fake tensors: a flat list of ATen calls without side effects.

The replay runs in inference mode, below autograd and above the decompositions: autocast has become
casts, gradient modes are gone, and composite operations (linear, softmax, layer_norm, silu) are
still whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import fx
from torch._C import DispatchKey  # no public name
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.capture.parts import PARTS
from weft.capture.source import location_of
from weft.errors import Location, UnsupportedError

_ATEN: Any = torch.ops.aten
_ARRANGEMENTS = ("aten.broadcast_tensors", "aten.tensor_split", "aten.unsafe_chunk")
Meaning: TypeAlias = Callable[[str], Literal["work", "view"] | None]
"""What weft makes of a call of an overload packet: operations, another look at the same elements, nothing."""
_MOST_PARTS = 48
_DROPOUTS = (_ATEN.dropout, _ATEN.feature_dropout, _ATEN.alpha_dropout, _ATEN.feature_alpha_dropout)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a recording, by number: it stands where the tensor stood."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One ATen call.

    Attributes:
        target: what is called; it changes none of its arguments.
        args, kwargs: as called, a `Slot` in place of each tensor; sizes may be `torch.SymInt`.
        results: per leaf of what it returns: a `Slot`, or None where that is no tensor, or an
            earlier one.
        location: the user's line.
        random: it draws from a generator: it must run once, in its order, used or not.
        pinned: a result shares memory with something that the caller gets or gave, and must go on
            doing so.
    """

    target: OpOverload[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Slot | None, ...]
    location: Location | None = None
    random: bool = False
    pinned: bool = False

    @property
    def packet(self) -> str:
        """The overload packet's name: "aten.add"."""
        return str(self.target.overloadpacket)

    def reads(self) -> tuple[Slot, ...]:
        """The tensors it reads, in order of its arguments, one entry per use."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Slot))


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What a graph computes.

    Attributes:
        inputs: per placeholder of the graph: its `Slot`, or where it is no tensor, itself.
        calls: in an order in which each tensor is made before it is read.
        outputs: leaves of what the graph returns: a `Slot`, or anything else as it is.
        fakes: by slot number, a tensor without data with the shape, dtype and device of each.
    """

    inputs: tuple[Any, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]
    fakes: tuple[torch.Tensor, ...]


def record(gm: fx.GraphModule, meaning: Meaning) -> Recording:
    """Replay `gm`, a graph of Dynamo's whose placeholders have `example_value`s, and record it.

    Args:
        gm: the graph.
        meaning: what weft makes of a call of this overload packet; composite calls without a meaning are
            recorded as the calls that they consist of.

    Raises:
        UnsupportedError: the graph writes into memory that others see, holds a tensor constant, or
            has no tensor input.
        Exception: whatever PyTorch raises on an operation that fake tensors cannot run.
    """
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    if not tensors:
        raise UnsupportedError("no tensor goes into the graph")
    recorder = _Recorder(cast("Any", tensors[0]).fake_mode, meaning)
    inputs = tuple(recorder.enter(e) if isinstance(e, torch.Tensor) else e for e in examples)
    # The graph may switch gradients on or off; inference mode ends as it began. Fake tensors themselves run outside of it
    # (`_Recorder`): within, PyTorch's shape functions refuse symbolic sizes.
    with torch.inference_mode(), recorder:
        result: Any = _Interpreter(gm, recorder).run(*examples)
    outputs = tuple(recorder.placeheld(leaf) for leaf in pytree.tree_leaves(result))
    calls = _pinned(recorder, outputs)
    return Recording(inputs, calls, outputs, tuple(recorder.fakes))


def gradient_line(gm: fx.GraphModule) -> tuple[bool, Location | None]:
    """Whether gradients may be asked for through a result of `gm`, and the line that makes it."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    for node in output.all_input_nodes:
        leaves = pytree.tree_leaves(node.meta.get("example_value"))
        wanted = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
        if wanted and node.op != "placeholder":
            return True, location_of(node)
    return False, None


class _Interpreter(fx.Interpreter):
    """Tells the recorder which node runs."""

    def __init__(self, gm: fx.GraphModule, recorder: _Recorder) -> None:
        super().__init__(gm)
        self.recorder = recorder
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.node = n
        return super().run_node(n)


class _Recorder(TorchDispatchMode):
    """Runs each ATen call on fake tensors and writes it down."""

    def __init__(self, fake_mode: Any, meaning: Meaning) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch leaves it untyped
        self.fake_mode = fake_mode
        self.meaning = meaning
        self.node: fx.Node | None = None
        self.calls: list[Call] = []
        self.fakes: list[torch.Tensor] = []
        self.input_storages: set[int] = set()
        # Calls whose result has taken the place of an argument that the user's own call wrote into.
        self.written: set[int] = set()
        self._slots: dict[int, Slot] = {}
        # Tensors are known by id: each is kept, so that no id comes back for another.
        self._kept: list[torch.Tensor] = []
        self._sharers: dict[int, set[int]] = {}

    def enter(self, tensor: torch.Tensor) -> Slot:
        """A new slot for an input."""
        self.input_storages.add(storage_of(tensor))
        return self._add(tensor, tensor)

    def placeheld(self, leaf: Any) -> Any:
        """The slot of a tensor; anything else unchanged.

        Raises:
            UnsupportedError: a tensor that neither came in nor was computed: a constant.
        """
        if not isinstance(leaf, torch.Tensor):
            return leaf
        slot = self._slots.get(id(leaf))
        if slot is None:
            raise UnsupportedError(
                "the graph holds a tensor constant",
                where=location_of(self.node),
                todo="make the tensor outside and hand it over, to have this part compiled",
            )
        return slot

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if cast("Any", func)._schema.is_mutable:  # noqa: SLF001 - no public name
            return self._write(func, args, kwargs)
        if func.overloadpacket in _DROPOUTS and not _draws(func, args, kwargs):
            # Fake tensors make a copy where real ones come back themselves.
            return args[0]
        if func is _ATEN.detach.default and storage_of(args[0]) not in self.input_storages:
            # Factory functions detach what they made: the tensor itself serves, and shares no memory.
            return args[0]
        made = self._in_parts(func, args, kwargs)
        if made is not NotImplemented:
            return made
        held = pytree.tree_map(self.placeheld, (args, kwargs))
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            result = func(*args, **kwargs)
        leaves = pytree.tree_leaves(result)
        new = [isinstance(leaf, torch.Tensor) and id(leaf) not in self._slots for leaf in leaves]
        # Sizes, devices, x.contiguous() where that is x: nothing to do when the program runs.
        if any(new):
            slots = [self._add(leaf, leaf) if n else None for leaf, n in zip(leaves, new, strict=True)]
            self._call(func, held, tuple(slots))
        return result

    def _in_parts(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as those that it consists of; NotImplemented, and nothing is recorded, where it stays whole.

        It does where weft means it as it is, where its parts cannot be recorded, or where too little of them is weft's.
        """
        parts = PARTS.get(str(func))
        if parts is None:
            if self.meaning(str(func.overloadpacket)) is not None or not _composite(func):
                return NotImplemented
            parts = func.decompose
        calls, tensors, slots = len(self.calls), len(self.fakes), dict(self._slots)
        try:
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented and not self._agrees(made, func, args, kwargs):
                made = NotImplemented
        except Exception:  # noqa: BLE001 - what its parts need may not be known: the call itself may run all the same
            made = NotImplemented
        if made is not NotImplemented and self._worth(self.calls[calls:]):
            return made
        for tensor in self._kept[tensors:]:
            self._sharers[storage_of(tensor)].discard(id(tensor))
        del self.calls[calls:], self.fakes[tensors:], self._kept[tensors:]
        self._slots = slots
        self.written = {index for index in self.written if index < calls}
        return NotImplemented

    def _agrees(self, made: Any, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the parts give tensors of the shapes and element types that the call gives."""
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            wanted = pytree.tree_leaves(func(*args, **kwargs))
        found = pytree.tree_leaves(made)
        return [_form(leaf) for leaf in found] == [_form(leaf) for leaf in wanted]

    def _worth(self, parts: Sequence[Call]) -> bool:
        """Whether weft has something to do among the parts, and it is not a program of its own (an LSTM)."""
        kinds = [self.meaning(call.packet) for call in parts]
        return len(kinds) <= _MOST_PARTS and ("work" in kinds or None not in kinds)

    def _write(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An in-place call on memory that nobody else sees, as one that returns the new value."""
        functional = self._functional(func, args)
        target = cast("torch.Tensor", args[0])
        made = self._in_parts(functional, args, kwargs)
        if isinstance(made, torch.Tensor) and (made.dtype, made.shape, made.stride()) == (
            target.dtype,
            target.shape,
            target.stride(),
        ):
            with self.fake_mode:
                result = func(*args, **kwargs)
            self._slots[id(target)] = self._slots[id(made)]
            return result
        held = pytree.tree_map(self.placeheld, (args, kwargs))
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            # What was written so far keeps its shape: squeeze_ and its like change that of the tensor itself.
            self.fakes[self._slots[id(target)].index] = target.detach()
            fake: torch.Tensor = functional(*args, **kwargs)
            result = func(*args, **kwargs)
        converts = fake.dtype != target.dtype
        slot = self._add(fake, fake) if converts else self._add(target, target)
        self.written.add(len(self.calls))
        self._call(functional, held, (slot,))
        if converts:
            self.written.add(len(self.calls))
            converted = self._add(target, target)
            self._call(_ATEN.to.dtype, ((slot, target.dtype), {}), (converted,))
        return result

    def _functional(self, func: OpOverload[..., Any], args: tuple[Any, ...]) -> OpOverload[..., Any]:
        """What returns what `func` writes, where only `args[0]` shows that it was written.

        Raises:
            UnsupportedError: something else shows it: an input, a view, an `out` argument.
        """
        where = location_of(self.node)
        name = str(func.overloadpacket)
        base = getattr(_ATEN, name.removeprefix("aten.").removesuffix("_"), None)
        functional = getattr(base, cast("Any", func)._overloadname, None)  # noqa: SLF001 - no public name
        if not name.endswith("_") or functional is None or not isinstance(args[0], torch.Tensor):
            raise UnsupportedError(f"{func} writes into its arguments", where=where)
        storage = storage_of(args[0])
        if storage in self.input_storages:
            raise UnsupportedError(f"{func} writes into an input", where=where)
        if len(self._sharers[storage]) > 1:
            raise UnsupportedError(f"{func} writes into memory that several tensors share", where=where)
        return functional

    def _add(self, tensor: torch.Tensor, fake: torch.Tensor) -> Slot:
        slot = Slot(len(self.fakes))
        self.fakes.append(fake)
        self._kept.append(tensor)
        self._slots[id(tensor)] = slot
        self._sharers.setdefault(storage_of(tensor), set()).add(id(tensor))
        return slot

    def _call(self, func: OpOverload[..., Any], held: Any, results: tuple[Slot | None, ...]) -> None:
        args, kwargs = held
        random = _draws(func, args, kwargs)
        self.calls.append(Call(func, args, kwargs, results, location_of(self.node), random))


def _composite(func: OpOverload[..., Any]) -> bool:
    """Whether PyTorch has the call only as calls of other operations.

    Where it has a second way in Python, for tracing, eager takes the other, whose numbers are not always the same: an
    interpolation multiplies infinities by 0 in one of them only. Arrangements of tensors are the same either way.
    """
    in_python = DispatchKey.CompositeImplicitAutograd in cast("Any", func).py_kernels
    if in_python and str(func.overloadpacket) not in _ARRANGEMENTS:
        return False
    try:
        return cast("Any", func)._can_decompose()  # noqa: SLF001 - no public name
    except RuntimeError:  # only TorchScript knows it
        return False


def by_name(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each argument of a call by the name in ATen's schema, with its default."""
    found: dict[str, tuple[Any, Any]] = {}
    schema: Any = cast("Any", func)._schema  # noqa: SLF001 - no public name
    for position, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = args[position] if position < len(args) else default
        found[argument.name] = (kwargs.get(argument.name, given), default)
    return found


def _draws(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call draws from a generator. Dropout does so only where it drops something."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    named = {name: value for name, (value, _) in by_name(func, args, kwargs).items()}
    probability = named.get("p", named.get("dropout_p"))
    return named.get("train") is not False and probability != 0


def _form(leaf: Any) -> Any:
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else None


def storage_of(tensor: torch.Tensor) -> int:
    """What tells one piece of memory from another."""
    return cast("Any", tensor.untyped_storage())._cdata  # noqa: SLF001 - no public name


def _pinned(recorder: _Recorder, outputs: tuple[Any, ...]) -> tuple[Call, ...]:
    """The calls, those pinned that make an output a view of an input or of another output."""
    made = {slot: i for i, call in enumerate(recorder.calls) for slot in call.results if slot}
    storages: dict[Slot, int] = {o: storage_of(recorder.fakes[o.index]) for o in outputs if isinstance(o, Slot)}
    seen = list(storages.values())
    calls = list(recorder.calls)
    for output, storage in storages.items():
        if storage not in recorder.input_storages and seen.count(storage) == 1:
            continue
        waiting = [output]
        while waiting:
            index = made.get(waiting.pop())
            if index is None or index in recorder.written:
                continue
            bases = [s for s in calls[index].reads() if storage_of(recorder.fakes[s.index]) == storage]
            if bases:
                calls[index] = replace(calls[index], pinned=True)
                waiting += bases
    return tuple(calls)
