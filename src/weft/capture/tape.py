"""The recorder's state: the calls so far, a slot for each tensor, and the memory that each tensor looks at.

A tape works on fake tensors alone. It decides nothing about how a call is recorded: `weft.capture.record` does, and for calls that
write `weft.capture.inplace`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher  # no public name
from torch._ops import OpOverload  # no public name
from torch._subclasses.fake_tensor import is_fake  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.calls import consists_of_others, draws
from weft.capture.contents import Content
from weft.capture.memory import Effect, Memory, Piece, TensorPlace, storage_of
from weft.capture.recording import Call, CallTarget, Slot
from weft.capture.refused import PLAIN
from weft.capture.sizes import symbolic
from weft.capture.source import location_of
from weft.errors import Location, UnsupportedError


@dataclass(frozen=True, slots=True)
class Mark:
    """A state of a tape, to go back to.

    Attributes:
        calls: how many there were.
        fakes: how many tensors there were.
    """

    calls: int
    fakes: int
    slots: dict[int, Slot]
    memory: Memory
    inputs: dict[int, Slot]
    input_storages: set[int]
    constants: dict[int, tuple[torch.Tensor, torch.Tensor]]


class Tape:
    """Calls in order, and what stands for each of their tensors.

    Attributes:
        fake_mode: that of the fake tensors.
        node: the node of the graph that runs now; None before the first.
        path: its name, after those of the calls of nested graphs that it is within.
        calls: as recorded so far.
        fakes: by slot number, a tensor without data with the shape, dtype and device of each.
        memory: whose memory each tensor looks at.
        inputs: the slot in which each input came, by the tensor's id.
        input_storages: the memory of the inputs.
        constants: tensors that the graph holds, by id, with what stands for each in the replay.
        numbers: tensors of one element that Python made of a number, by id, with it.
        contents: what Python reads of tensors, numbers from then on.
        written: calls, by number, whose result has taken the place of an argument that the user's own call wrote into.
    """

    def __init__(self, fake_mode: Any) -> None:
        self.fake_mode = fake_mode
        self.node: fx.Node | None = None
        self.path = ""
        self.calls: list[Call] = []
        self.fakes: list[torch.Tensor] = []
        self.memory = Memory()
        self.inputs: dict[int, Slot] = {}
        self.input_storages: set[int] = set()
        self.constants: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.numbers: dict[int, tuple[torch.Tensor, Any]] = {}
        self.contents: list[Content] = []
        self.written: set[int] = set()
        self._slots: dict[int, Slot] = {}
        # Tensors are known by id: each is kept, so that no id comes back for another.
        self._kept: list[torch.Tensor] = []
        self._sharers: dict[int, set[int]] = {}

    @property
    def location(self) -> Location | None:
        """The user's line of what runs now."""
        return location_of(self.node)

    # What is known of tensors.

    def knows(self, tensor: torch.Tensor) -> bool:
        """Tells whether a tensor came in or was computed."""
        return id(tensor) in self._slots

    def slot(self, tensor: torch.Tensor) -> Slot | None:
        """Looks up the slot of a tensor, whether or not its value has changed since; None where it has none."""
        return self._slots.get(id(tensor))

    def is_fresh(self, leaf: Any) -> bool:
        """Tells whether `leaf` is a tensor that a call has just made, not one that was there before."""
        return isinstance(leaf, torch.Tensor) and not self.knows(leaf)

    def shows_known_memory(self, tensor: torch.Tensor) -> bool:
        """Tells whether a tensor lies in memory in which another one was seen before."""
        return storage_of(tensor) in self._sharers

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Tells whether other tensors look at the memory of a known one."""
        return len(self._sharers[storage_of(tensor)]) > 1

    def enter(self, tensor: torch.Tensor) -> Slot:
        """Gives an input a new slot."""
        self.input_storages.add(storage_of(tensor))
        self.memory.own(tensor)
        self.inputs[id(tensor)] = self.add(tensor)
        return self.inputs[id(tensor)]

    def without_data(self, leaf: Any) -> Any:
        """Replaces a tensor that the graph holds by what stands for it, an input from now on; leaves anything else as it is.

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

    def held(self, given: Any) -> Any:
        """Puts slots in place of the tensors in `given`, arguments of a call.

        Raises:
            UnsupportedError: see `placeheld`.
        """
        return pytree.tree_map(self.placeheld, given)

    def placeheld(self, leaf: Any) -> Any:
        """Finds the slot of a tensor, with its value now; leaves anything else as it is.

        Raises:
            UnsupportedError: a tensor that neither came in nor was computed, nor is held by the graph.
        """
        leaf = self.without_data(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        slot = self._slots.get(id(leaf))
        if slot is None:
            raise UnsupportedError("it reads a tensor that weft has not seen being made", where=self.location)
        if self.memory.stale(leaf):
            slot = self._slots[id(leaf)] = self._slots[id(self._shown(self.memory.place(leaf)))]
            self.memory.current(leaf)
        return slot

    def _shown(self, place: TensorPlace) -> torch.Tensor:
        """Records again the views that lead to `place`, and returns what lies there now."""
        shown = place.base
        for step in place.steps:
            found = self.record(step.call, (shown, *step.args), step.kwargs)
            shown = pytree.tree_leaves(found)[step.result]
        return shown

    # What is written down.

    def record(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call that writes into nothing, as the one call that it is, and returns its results without data."""
        held = self.held((args, kwargs))
        result = self.on_fakes(func, args, kwargs)
        leaves = pytree.tree_leaves(result)
        new = list(map(self.is_fresh, leaves))
        # Sizes, devices, x.contiguous() where that is x: nothing to do when the program runs.
        if any(new):
            slots = [self.add(leaf) if n else None for leaf, n in zip(leaves, new, strict=True)]
            for place, leaf in enumerate(leaves):
                if new[place]:
                    self.memory.made(leaf, func, args, kwargs, place)
            self.append(func, held, tuple(slots))
        return result

    def renew(self, tensor: torch.Tensor, target: CallTarget, held: Any, into: Slot | None = None) -> Slot:
        """Records a call whose result is the value of `tensor` from now on, and returns its slot.

        Args:
            tensor: what is written into.
            target: what is called.
            held: its arguments, positional and by name, with slots in place of tensors.
            into: the input whose memory that is, if it is one's.
        """
        slot = self.new_slot(tensor)
        self.append(target, held, (slot,), into)
        return slot

    def new_slot(self, tensor: torch.Tensor) -> Slot:
        """Gives a tensor that is written into another slot: the result of the next call is its value from now on."""
        self.written.add(len(self.calls))
        known = self._slots.get(id(tensor))
        if known is not None and self.fakes[known.index] is tensor:
            # What it was so far keeps its shape: squeeze_ and its like change that of the tensor itself.
            with self.unrecorded():
                self.fakes[known.index] = tensor.detach()
        return self.add(tensor)

    def add(self, tensor: torch.Tensor) -> Slot:
        """Gives a tensor the next slot."""
        slot = Slot(len(self.fakes))
        self.fakes.append(tensor)
        self._kept.append(tensor)
        self._slots[id(tensor)] = slot
        self._sharers.setdefault(storage_of(tensor), set()).add(id(tensor))
        return slot

    def append(self, target: CallTarget, held: Any, results: tuple[Slot | None, ...], into: Slot | None = None) -> None:
        """Writes down a call: `held` are its arguments, positional and by name, with slots in place of tensors."""
        args, kwargs = held
        match target:
            case Piece() | Effect(op=Piece()):
                random = True  # for all that is known
            case Effect(op=op):
                random = draws(op, args[2], args[3])
            case _:
                random = draws(target, args, kwargs)
        self.calls.append(Call(target, args, kwargs, results, self.location, random, into=into))

    # Going back.

    def mark(self) -> Mark:
        """Notes what is known now, for `undo`."""
        slots, memory, inputs = dict(self._slots), self.memory.copy(), dict(self.inputs)
        storages, constants = set(self.input_storages), dict(self.constants)
        return Mark(len(self.calls), len(self.fakes), slots, memory, inputs, storages, constants)

    def undo(self, mark: Mark) -> None:
        """Forgets what was recorded since."""
        for tensor in self._kept[mark.fakes :]:
            self._sharers[storage_of(tensor)].discard(id(tensor))
        del self.calls[mark.calls :], self.fakes[mark.fakes :], self._kept[mark.fakes :]
        self._slots, self.memory, self.inputs = mark.slots, mark.memory, mark.inputs
        self.input_storages, self.constants = mark.input_storages, mark.constants
        self.contents = [content for content in self.contents if content[1].index < mark.fakes]
        self.written = {index for index in self.written if index < mark.calls}

    # Running without data.

    @contextmanager
    def unrecorded(self) -> Generator[None]:
        """Runs a block on fake tensors, with nothing recorded.

        That is outside of inference mode: within it, PyTorch's shape functions refuse symbolic sizes.
        """
        with torch.inference_mode(False), torch.no_grad(), self.fake_mode:
            yield

    def on_fakes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `func` without data, unrecorded.

        Composite operations on symbolic sizes are run as PyTorch itself traces them, as Dynamo does: their C++ functions may
        ask a symbol for its number (`matmul` of torch 2.11 does), and Dynamo then compiles anew for each. Other calls use
        their C++ functions, which are eager's, and are traced that way only if one fails.
        """
        python_first = consists_of_others(func) and _has_symbols((args, kwargs))
        first, second = (
            (enable_python_dispatcher, nullcontext) if python_first else (nullcontext, enable_python_dispatcher)
        )
        with self.unrecorded():
            try:
                with first():
                    return func(*args, **kwargs)
            except (RuntimeError, TypeError, NotImplementedError):
                with second():
                    return func(*args, **kwargs)

    # What the graph leaves behind.

    def result(self, leaf: Any) -> Any:
        """Finds the slot of what the graph returns: for a view of memory that was written into, of the view as it is at the end.

        A view of an input is one of its memory, which has its last value by then.
        """
        leaf = self.without_data(leaf)
        if not isinstance(leaf, torch.Tensor) or not self.knows(leaf) or not self.memory.written(leaf):
            return self.placeheld(leaf)
        place = self.memory.place(leaf)
        base = id(place.base)
        last = self._slots[base]
        self._slots[base] = self.inputs.get(base, last)
        slot = self._slots[id(self._shown(place))]
        self._slots[base] = last
        return slot

    def writes(self) -> tuple[tuple[Slot, Slot], ...]:
        """Lists the inputs that were written into, each with its last value."""
        every = ((slot, self._slots[tensor]) for tensor, slot in self.inputs.items())
        return tuple((slot, last) for slot, last in every if slot != last)


def _has_symbols(given: Sequence[Any]) -> bool:
    """Tells whether a size of a tensor in `given`, or a number there, is a symbol."""
    return any(
        isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
        or (isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and any(map(symbolic, leaf.shape)))
        for leaf in pytree.tree_leaves(given)
    )
