"""`Captured`: the tensor program, and what it takes to run it in the graph's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.library import FASTER_IN_LIBRARY, LIBRARY
from weft.capture.memory import Effect, Piece
from weft.capture.recording import Recording
from weft.capture.sizes import symbolic
from weft.errors import Location
from weft.tensor.axes import Space
from weft.tensor.program import TensorProgram

FLATTEN, UNFLATTEN = torch.ops.aten.flatten.using_ints, torch.ops.aten.unflatten.int
"""Calls that look at the same elements in other dimensions, where only the call tells in which."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What PyTorch runs: the operation, or "graph" for all of it; why; and the user's line."""

    operation: str
    reason: str
    location: Location | None = None

    @property
    def is_by_design(self) -> bool:
        """Tell whether a library of PyTorch's runs it best, so that nothing is lost."""
        return self.operation in LIBRARY or self.is_faster

    @property
    def is_faster(self) -> bool:
        """Tell whether weft has kernels for it, and PyTorch's library was measured to be faster."""
        return self.reason == FASTER_IN_LIBRARY

    def __iter__(self) -> Iterator[str]:
        """Unpacks as a pair: the operation and the reason."""
        return iter((self.operation, self.reason))

    def __str__(self) -> str:
        place = "" if self.location is None else f" ({self.location})"
        return f"{self.operation}: {self.reason}{place}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A value of the tensor program as PyTorch sees it, going into a call or coming out of one.

    Attributes:
        value: its name.
        kept: per dimension of PyTorch's tensor: True for the value's next axis, False for size 1.
        order: the value's axes in the order in which PyTorch's tensor has them; None where that is their own.
        flagged: of a result, that it is marked as a conjugate, a negative or zeros, which only PyTorch's calls see.
        layout: of what another library reads: eager's; None where any will do.
    """

    value: str
    kept: tuple[bool, ...]
    order: tuple[int, ...] | None = None
    flagged: bool = False
    layout: MemoryLayout | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A number that a tensor tells: its only element, or where `dim` is one of its dimensions, how long that is."""

    tensor: Operand
    dim: int | None = None


@dataclass(frozen=True, slots=True)
class RuntimeNumber:
    """A number that depends on the sizes of the inputs, on numbers among them, or on the content of tensors.

    Attributes:
        expression: Python, over the names in `symbols`.
        symbols: (name, index of the graph's placeholder that is that number, or a tensor that holds it alone; or what tells it).
    """

    expression: str
    symbols: tuple[tuple[str, int | Told], ...]
    _function: Callable[..., float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = f"lambda {', '.join(name for name, _ in self.symbols)}: {self.expression}"
        # The text is PyTorch's own printing of a size expression; no input's content gets here.
        function = eval(source, {"math": math, "torch": torch})  # noqa: S307
        object.__setattr__(self, "_function", function)

    def __reduce__(self) -> tuple[Any, ...]:
        """Gives a copy, or what a pickle gives, a function of its own."""
        return RuntimeNumber, (self.expression, self.symbols)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that must be there to tell the number."""
        return tuple(place.tensor for _, place in self.symbols if isinstance(place, Told))

    def value(self, arguments: Sequence[Any], seen: Callable[[Operand], torch.Tensor] | None = None) -> float:
        """Returns the number where the graph is called with `arguments`, one per placeholder; `seen` gives what tells numbers."""

        def found(place: int | Told) -> Any:
            if isinstance(place, int):
                given = arguments[place]
                return given.item() if isinstance(given, torch.Tensor) else given
            assert seen is not None, "what tells a number is there where it is wanted"
            tensor = seen(place.tensor)
            return tensor.item() if place.dim is None else tensor.shape[place.dim]

        return self._function(*(found(place) for _, place in self.symbols))


@dataclass(frozen=True, slots=True)
class FixedLayout:
    """Sizes and strides, in elements, that an argument has at each call; None in the place of those that may change."""

    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @staticmethod
    def of(fake: torch.Tensor) -> FixedLayout:
        """Read it off a tensor with PyTorch's symbols for what may change."""
        if fake.layout is not torch.strided:
            return FixedLayout((None,) * fake.ndim, (None,) * fake.ndim)
        return FixedLayout(tuple(map(_fixed, fake.shape)), tuple(map(_fixed, fake.stride())))

    def holds(self, other: FixedLayout) -> bool:
        """Tell whether the other one has as many dimensions, and all that is fixed here is the same there."""
        mine, its = (*self.sizes, *self.strides), (*other.sizes, *other.strides)
        return len(mine) == len(its) and all(own is None or own == there for own, there in zip(mine, its, strict=True))


def _fixed(size: Any) -> int | None:
    return None if symbolic(size) else size


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueCall:
    """An ATen call that PyTorch runs.

    Attributes:
        name: what `Opaque.call` says; opaque nodes of one name are results of one call.
        target: the overload, which changes none of its arguments; or an `Effect`, a `Piece`.
        args, kwargs: an `Operand` in place of each tensor, a `RuntimeNumber` of each symbolic size.
        results: per leaf of what it returns: the program's value, or None where it is none.
        random: it draws from a generator, so it must run once, in order, whether read or not.
        pinned: its result goes out as a view of an input or another output: it must not be copied.
        into: of an `Effect` on the memory of an argument, the graph's placeholder that this is.
        look: it is weft's own way to see a value in other dimensions, in the same memory.
        apart: each of its results lies in memory of its own, which no operand has, as PyTorch's fake tensors tell.
    """

    name: str
    target: OpOverload[..., Any] | Effect | Piece
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Operand | None, ...]
    random: bool = False
    pinned: bool = False
    into: int | None = None
    look: bool = False
    apart: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, each once."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        told = (operand for leaf in leaves if isinstance(leaf, RuntimeNumber) for operand in leaf.tensors)
        every = (*(leaf for leaf in leaves if isinstance(leaf, Operand)), *told)
        return tuple(dict.fromkeys(operand.value for operand in every))

    def run(self, values: Mapping[str, torch.Tensor], arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Runs it.

        Args:
            values: tensors by name of the program's value, one dimension per axis of the value.
            arguments: what the graph is called with, one per placeholder.

        Returns:
            The results by name of value, one dimension per axis of the value.
        """

        def seen(operand: Operand) -> torch.Tensor:
            tensor = values[operand.value]
            tensor = _with_units(tensor if operand.order is None else tensor.permute(operand.order), operand.kept)
            return tensor if operand.layout is None else laid_out(tensor, operand.layout, arguments)

        def fill(leaf: Any) -> Any:
            match leaf:
                case Operand():
                    return seen(leaf)
                case RuntimeNumber():
                    return leaf.value(arguments, seen)
                case _:
                    return leaf

        args, kwargs = pytree.tree_map(fill, (self.args, self.kwargs))
        leaves = pytree.tree_leaves(self.target(*args, **kwargs))
        named = zip(self.results, leaves, strict=True)
        return {to.value: _as_value(leaf, to) for to, leaf in named if to is not None}


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Where the elements of a tensor lie in its memory: its sizes, its strides, and the place of the first element, in elements."""

    sizes: tuple[RuntimeNumber | int, ...]
    strides: tuple[RuntimeNumber | int, ...]
    start: RuntimeNumber | int


@dataclass(frozen=True, slots=True)
class FromProgram:
    """An output of the graph: output number `index` of the program, with its `output_dims`.

    `order` are its dimensions as they lie in memory in eager, outermost first; None where eager's result has gaps or overlaps.
    `layout` is eager's where `order` does not say it: a view of a larger tensor has gaps, an expanded one repeats its elements.
    Code after the graph may rely on both (`view`). The output may have size 1 where the layout's stride is 0.
    """

    index: int
    order: tuple[int, ...] | None = None
    layout: MemoryLayout | None = None


@dataclass(frozen=True, slots=True)
class FromArgument:
    """An output of the graph: its placeholder number `index`, the very same object."""

    index: int


@dataclass(frozen=True, slots=True)
class FromSizes:
    """An output of the graph: a number. `told` says which outputs of the program are the tensors that it is read of."""

    number: RuntimeNumber
    told: tuple[tuple[Operand, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FromNothing:
    """An output of the graph that is always the same: None, a number."""

    value: Any


GraphResult: TypeAlias = FromProgram | FromArgument | FromSizes | FromNothing


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph of Dynamo's, captured.

    Attributes:
        program: None where all of it runs in PyTorch; then `refused` says why.
        arguments: per input of the program, in order: the index of the graph's placeholder, or after those of one of `constants`.
        calls: the PyTorch calls of its opaque nodes, in the order in which they were made, by name.
        results: what the graph returns, a flat tuple.
        writes: placeholders whose tensors have another content afterwards, and which output of the program that is.
        fallbacks: what PyTorch runs, and why.
        views: calls into PyTorch that only look at elements where they lie: they cost nothing, and are no fallbacks.
        refused: why there is no program.
        made_by: values of the program, and the number of the ATen call that each is a part of.
        left: the calls, by that number, that PyTorch runs although weft knows them.
        leaving: the same graph captured again, with these calls left to PyTorch, by number, for the reasons given.
        recording: what it was made of, until it is planned.
        sizes: spaces of the program whose sizes follow from the numbers that the graph is called with.
        constants: tensors that the graph itself holds; wherever a placeholder is named by number, they come after the last one.
        fixed: by placeholder, sizes and strides that PyTorch's guards hold it to.
    """

    program: TensorProgram | None
    arguments: tuple[int, ...] = ()
    calls: Mapping[str, OpaqueCall] = field(default_factory=dict[str, OpaqueCall])
    results: tuple[GraphResult, ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    views: tuple[Fallback, ...] = ()
    refused: Fallback | None = None
    made_by: Mapping[str, int] = field(default_factory=dict[str, int])
    left: tuple[int, ...] = ()
    leaving: Callable[[Mapping[int, str]], Captured] | None = None
    constants: tuple[torch.Tensor, ...] = ()
    recording: Recording | None = None
    sizes: Mapping[Space, RuntimeNumber] = field(default_factory=dict[Space, RuntimeNumber])
    fixed: Mapping[int, FixedLayout] = field(default_factory=dict[int, FixedLayout])

    @property
    def lacking(self) -> tuple[Fallback, ...]:
        """List what PyTorch runs since weft has no kernels for it."""
        return tuple(fallback for fallback in self.fallbacks if not fallback.is_faster)


def without_units(tensor: torch.Tensor, kept: Sequence[bool]) -> torch.Tensor:
    """Returns a view of `tensor` without the dimensions, of size 1, that are not `kept`.

    The view has the form in which a program's values are held. A dimension that is kept may still turn out to have size 1.
    """
    if all(kept):
        return tensor
    return tensor[tuple(slice(None) if keep else 0 for keep in kept)]


def _as_value(tensor: torch.Tensor, result: Operand) -> torch.Tensor:
    """Returns a view of what a call gave with one dimension per axis of the value that it is, in their order."""
    tensor = without_units(tensor, result.kept)
    return tensor if result.order is None else tensor.permute(inverse(result.order))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Returns the permutation that undoes `order`."""
    return tuple(sorted(range(len(order)), key=lambda d: order[d]))


def _with_units(tensor: torch.Tensor, kept: Sequence[bool]) -> torch.Tensor:
    """Reverses `without_units`."""
    if all(kept):
        return tensor
    return tensor[tuple(slice(None) if keep else None for keep in kept)]


def in_order(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Returns `tensor` with its dimensions in memory in this order, outermost first: itself if they are so, else a copy.

    Where strides say nothing, of sizes 1 and of no elements, they are those that a new tensor of this order has.
    """
    turned = tensor.permute(tuple(order)).contiguous()
    if 1 in turned.shape or 0 in turned.shape:
        steps = accumulate((max(size, 1) for size in reversed(turned.shape[1:])), mul, initial=1)
        turned = turned.as_strided(turned.shape, tuple(steps)[::-1])
    return turned.permute(inverse(order))


def laid_out(tensor: torch.Tensor, layout: MemoryLayout, arguments: Sequence[Any]) -> torch.Tensor:
    """Returns `tensor` in a layout: itself if it has its strides, else a copy in memory with room for the gaps between
    its elements.

    Args:
        tensor: what to show; where a stride is 0, it has size 1, or its elements along that dimension are equal.
        layout: where its elements shall lie.
        arguments: what the graph is called with, one per placeholder.
    """

    def known(numbers: Iterable[RuntimeNumber | int]) -> list[int]:
        return [int(n.value(arguments)) if isinstance(n, RuntimeNumber) else n for n in numbers]

    sizes, strides, (start,) = known(layout.sizes), known(layout.strides), known((layout.start,))
    tensor = tensor.expand(sizes)
    if all(size == 1 or new == old for size, new, old in zip(sizes, strides, tensor.stride(), strict=True)):
        return tensor.as_strided(sizes, strides)
    once = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1 if tensor.numel() else 0
    memory = tensor.new_empty(start + reach)
    memory.as_strided(once, strides, start).copy_(tensor[tuple(map(slice, once))])
    return memory.as_strided(sizes, strides, start)
