"""Which memory each tensor of a recording looks at, and whether it still holds what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.sizes import symbolic
from weft.errors import UnsupportedError

_ATEN: Any = torch.ops.aten
BY_STRIDE = ("aten.as_strided", "aten._reshape_alias")
"""Operations that see strides, which a computed value need not share with eager's."""
STRIDED = frozenset(
    f"aten.{name}"
    for name in (
        *("slice", "select", "narrow", "diagonal", "unbind", "split", "split_with_sizes", "chunk", "tensor_split"),
        *("transpose", "permute", "t", "mT", "numpy_T", "swapaxes", "swapdims", "movedim", "unsqueeze", "squeeze"),
        *("expand", "broadcast_to", "alias", "detach", "view_as_real"),
    )
)
"""Views that there are of any tensor, whatever its strides."""
# Views of the shape of another tensor: the same views with the shape itself.
_SHAPED_AS = {
    _ATEN.view_as.default: _ATEN.view.default,
    _ATEN.expand_as.default: _ATEN.expand.default,
    _ATEN.reshape_as.default: _ATEN.view.default,
}


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One step from a tensor to a view of it: the call, the arguments after the tensor, which of the call's results."""

    call: OpOverload[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorPlace:
    """Where a tensor's elements are: in the memory of `base`, where these steps lead."""

    base: torch.Tensor
    steps: tuple[Look, ...] = ()

    @property
    def calls(self) -> Looks:
        """Gives of each step the call, and which of its results is the next tensor."""
        return tuple((step.call, step.result) for step in self.steps)

    @property
    def arguments(self) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]:
        """Gives of each step the arguments after the tensor, positional and by name."""
        return tuple((step.args, step.kwargs) for step in self.steps)


@dataclass(slots=True)
class Memory:
    """Places by id of tensor; versions by id of base tensor: how often its memory has been written into.

    Two inputs are two bases: that they have no element in common is tested where they come in (`apart`).
    """

    places: dict[int, TensorPlace] = field(default_factory=dict[int, TensorPlace])
    versions: dict[int, int] = field(default_factory=dict[int, int])
    seen: dict[int, int] = field(default_factory=dict[int, int])
    tangled: set[int] = field(default_factory=set[int])
    """Memory of tensors that views of several tensors at once were made of."""

    def copy(self) -> Memory:
        """Copies the state, to go back to."""
        return Memory(dict(self.places), dict(self.versions), dict(self.seen), set(self.tangled))

    def place(self, tensor: torch.Tensor) -> TensorPlace:
        """Returns the place of a tensor that is known."""
        return self.places[id(tensor)]

    def own(self, tensor: torch.Tensor) -> None:
        """Notes a tensor with memory of its own."""
        self.places[id(tensor)] = TensorPlace(tensor)
        self.seen[id(tensor)] = self.versions[id(tensor)] = 0

    def made(
        self, tensor: torch.Tensor, call: OpOverload[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: int
    ) -> None:
        """Notes a tensor that `call` gave as its leaf number `result`: a view of an argument, or one with memory of its own."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        storage = storage_of(tensor)
        sources = [leaf for leaf in leaves if storage_of(leaf) == storage]
        if not sources:
            self.own(tensor)
            return
        if call in _SHAPED_AS:
            call, args, leaves = _SHAPED_AS[call], (args[0], tensor.shape), leaves[:1]
        first = self.place(sources[0])
        self.places[id(tensor)] = TensorPlace(first.base, (*first.steps, Look(call, tuple(args[1:]), kwargs, result)))
        self.seen[id(tensor)] = self.versions[id(first.base)]
        if len(leaves) > 1 or args[0] is not sources[0] or str(call.overloadpacket) in BY_STRIDE:
            self.tangled.add(storage)

    def looked(
        self, tensor: torch.Tensor, call: OpOverload[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        """Notes that `tensor`, where it is a view, is from now on what `call` shows of it."""
        place = self.place(tensor)
        if place.base is not tensor:
            self.places[id(tensor)] = TensorPlace(place.base, (*place.steps, Look(call, tuple(args[1:]), kwargs, 0)))

    def stand_in(self, tensor: torch.Tensor, base: torch.Tensor) -> None:
        """Notes that `base` is what `tensor` was, and all that looked into `tensor` looks into it, `tensor` itself as well."""
        self.versions[id(base)] = self.seen[id(base)] = self.versions[id(tensor)]
        for known, place in list(self.places.items()):
            if place.base is tensor:
                self.places[known] = TensorPlace(base, place.steps)
        self.places[id(base)] = TensorPlace(base)

    def stale(self, tensor: torch.Tensor) -> bool:
        """Tells whether its memory was written into since its value was noted."""
        return self.seen[id(tensor)] != self.versions[id(self.place(tensor).base)]

    def may_write(self, tensor: torch.Tensor) -> None:
        """Tells whether a write into `tensor` is one into its base alone, and into each element once.

        Raises:
            UnsupportedError: it is not, or that is not known.
        """
        if storage_of(tensor) in self.tangled:
            raise UnsupportedError("it writes into memory that several tensors share")
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        if any(not symbolic(step) and step == 0 and (symbolic(size) or size != 1) for size, step in sizes):
            raise UnsupportedError("it writes into a tensor whose elements share memory")

    def wrote(self, tensor: torch.Tensor) -> None:
        """Notes that the memory of `tensor` changed: what is known of others that look at it is no longer so."""
        self.versions[id(self.place(tensor).base)] += 1

    def current(self, tensor: torch.Tensor) -> None:
        """Notes that the value of `tensor` is known as it is now."""
        self.seen[id(tensor)] = self.versions[id(self.place(tensor).base)]

    def written(self, tensor: torch.Tensor) -> bool:
        """Tells whether anything was written into the memory that `tensor` looks at."""
        return self.versions[id(self.place(tensor).base)] > 0


Looks: TypeAlias = tuple[tuple[OpOverload[..., Any], int], ...]
"""Calls that lead to a view, each on the result of the one before, and which of its results that is."""


@dataclass(frozen=True, slots=True)
class Written:
    """Stands among the arguments of an `Effect` for the tensor number `index` that it writes into."""

    index: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call does that writes into its arguments: `op`, on what views of the first arguments show.

    Attributes:
        op: what is called.
        places: of each tensor that it writes into: which of the first arguments it lies in, and the views that lead there, each a
            call and which of its results.
        packed: of each of the first arguments, whether a copy of it is made row-major: views were made of a tensor that is.
        kept: which leaves of what `op` returns are results too, after the first arguments as they are afterwards.
        in_place: the first arguments themselves are written into, else copies of them.
    """

    op: Any
    places: tuple[tuple[int, Looks], ...]
    packed: tuple[bool, ...]
    kept: tuple[int, ...] = ()
    in_place: bool = False

    @property
    def overloadpacket(self) -> Any:
        """That of what is called."""
        return self.op.overloadpacket

    @property
    def namespace(self) -> str:
        """That of what is called."""
        return self.op.namespace

    def __call__(
        self, bases: Sequence[torch.Tensor], views: Sequence[Sequence[Any]], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Returns `bases` as they are afterwards, then what the call returns; `views` are the further arguments of each view.

        Raises:
            RuntimeError: a view is a copy, and what is written would be lost.
        """
        with torch.no_grad():
            orders = (torch.contiguous_format if packed else torch.preserve_format for packed in self.packed)
            pairs = zip(bases, orders, strict=True)
            wholes = [base if self.in_place else base.clone(memory_format=order) for base, order in pairs]
            places = zip(self.places, views, strict=True)
            shown = [self._shown(wholes[number], looks, further) for (number, looks), further in places]

            def given(leaf: Any) -> Any:
                return shown[leaf.index] if isinstance(leaf, Written) else leaf

            leaves = pytree.tree_leaves(self.op(*pytree.tree_map(given, args), **pytree.tree_map(given, kwargs)))
        return [*wholes, *(leaves[i] for i in self.kept)]

    def _shown(self, whole: torch.Tensor, looks: Looks, further: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        """Returns the view of `whole` that is written into; `further` are the further arguments of each call."""
        seen: Any = whole
        for (call, result), (more, named) in zip(looks, further, strict=True):
            seen = pytree.tree_leaves(call(seen, *more, **named))[result]
        if storage_of(seen) != storage_of(whole):
            raise RuntimeError(f"{self.op} would write into a copy")
        return seen


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A piece of a graph that PyTorch runs as it stands: a call of something that is no single operation.

    Attributes:
        overloadpacket: its name, for a user: there is no operation.
        namespace: none, since what it does is not known.
        function: what is called; it changes none of its arguments.
        reason: why it is called as a whole.
        autocast: kinds of devices on which autocast is on there, each with its element type.
    """

    overloadpacket: str
    function: Callable[..., Any]
    reason: str
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    namespace: ClassVar[str] = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, and returns what it does."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            return self.function(*args, **kwargs)


def storage_of(tensor: torch.Tensor) -> int:
    """Returns what tells one piece of memory from another."""
    return cast("Any", tensor.untyped_storage())._cdata  # noqa: SLF001 - no public name


def apart(arguments: Sequence[Any], written: Sequence[int]) -> bool:
    """Tells whether the arguments number `written` may be written into one by one.

    No byte of them lies between the first and the last element of another argument, and no two of their elements share memory.
    """
    if not written:
        return True
    tensors = [(i, a) for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
    starts = [(i, a, a.data_ptr()) for i, a in tensors if a.layout is torch.strided]
    for index in written:
        own = arguments[index]
        start = own.data_ptr()
        end = start + _reach(own)
        if not _each_once(own):
            return False
        for i, tensor, first in starts:
            if first < end and i != index and (first >= start or first + _reach(tensor) > start):
                return False
    return True


def _reach(tensor: torch.Tensor) -> int:
    """Counts the bytes from the first element's first to the last one's last."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size() if tensor.numel() else 0


def _each_once(tensor: torch.Tensor) -> bool:
    """Tells whether each dimension steps over all that the dimensions of smaller steps reach."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return False
        reach += (size - 1) * step
    return True
