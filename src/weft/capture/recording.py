"""A recording: a flat list of ATen calls without side effects, and what is written in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.memory import Effect, Piece
from weft.errors import Location

CallTarget: TypeAlias = OpOverload[..., Any] | Effect | Piece
Meaning: TypeAlias = Callable[[str], Literal["work", "view"] | None]
"""What weft makes of a call of an overload packet: operations, another look at the same elements, nothing."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a recording, by number: it stands where the tensor stood."""

    index: int


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number is found that no argument of the graph is.

    Attributes:
        symbol: PyTorch's name for it.
        slot: the tensor that tells it: its only element, or where `dim` is one of its dimensions, how long that is.
    """

    symbol: str
    slot: Slot
    dim: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One ATen call.

    Attributes:
        target: what is called; it changes none of its arguments, or is an `Effect` that gives them anew.
        args, kwargs: as called, a `Slot` in place of each tensor; sizes may be `torch.SymInt`.
        results: per leaf of what it returns: a `Slot`, or None where that is no tensor, or an
            earlier one.
        location: the user's line.
        random: it draws from a generator: it must run once, in its order, used or not.
        pinned: a result shares memory with something that the caller gets or gave, and must go on
            doing so.
        into: of an `Effect` on the memory of an input, that input.
        whole: the call into a library that this one is a part of. Where PyTorch is to run a part, it runs the whole.
        sources: of the numbers among its arguments that only tensors tell.
    """

    target: CallTarget
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Slot | None, ...]
    location: Location | None = None
    random: bool = False
    pinned: bool = False
    into: Slot | None = None
    whole: Call | None = None
    sources: tuple[Source, ...] = ()

    @property
    def packet(self) -> str:
        """The overload packet's name: "aten.add"."""
        return str(self.target.overloadpacket)

    def reads(self) -> tuple[Slot, ...]:
        """Lists the tensors it reads, in order of its arguments, one entry per use; then those that tell numbers among these."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return (*(leaf for leaf in leaves if isinstance(leaf, Slot)), *(source.slot for source in self.sources))


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What a graph computes.

    Attributes:
        inputs: per placeholder of the graph: its `Slot`, or where it is no tensor, itself. Then the slots of `constants`.
        calls: in an order in which each tensor is made before it is read.
        outputs: leaves of what the graph returns: a `Slot`, or anything else as it is.
        fakes: by slot number, a tensor without data with the shape, dtype and device of each.
        writes: inputs whose content is another one afterwards, each with its last value.
        constants: the tensors that the graph itself holds.
        sources: of the numbers among the outputs that only tensors tell.
    """

    inputs: tuple[Any, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]
    fakes: tuple[torch.Tensor, ...]
    writes: tuple[tuple[Slot, Slot], ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    sources: tuple[Source, ...] = ()


def by_name(func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Maps each argument's name in ATen's schema to its value in a call and its default."""
    found: dict[str, tuple[Any, Any]] = {}
    schema: Any = cast("Any", func)._schema  # noqa: SLF001 - no public name
    for position, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = args[position] if position < len(args) else default
        found[argument.name] = (kwargs.get(argument.name, given), default)
    return found
