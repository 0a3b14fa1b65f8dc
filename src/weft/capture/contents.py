"""Numbers that depend on the content of tensors: results of `item`, sizes that `nonzero` makes, and constraints on them.

PyTorch traces them as symbols that no argument is. A call that has such a number among its arguments reads the tensor that tells
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.recording import Recording, Slot, Source
from weft.capture.sizes import expression, symbolic

Content = tuple[Any, Slot, int]
"""A number, the tensor that holds it, and how many calls were made before it was read."""


def with_sources(recording: Recording, contents: Sequence[Content]) -> Recording:
    """Adds to the calls and outputs of `recording` which tensors tell the numbers that no argument of the graph is."""
    given = {
        str(expression(entry)) for entry in recording.inputs if symbolic(entry) and not isinstance(entry, Slot | None)
    }
    known: dict[str, Source] = {}

    def meet(slots: Sequence[Slot | None]) -> None:
        for slot in slots:
            for dim, size in enumerate(recording.fakes[slot.index].shape if slot is not None else ()):
                if symbolic(size) and expression(size).is_Symbol:
                    known.setdefault(str(expression(size)), Source(str(expression(size)), cast("Slot", slot), dim))

    def sources(leaves: Sequence[Any]) -> tuple[Source, ...]:
        names = dict.fromkeys(name for leaf in leaves for name in symbols_of(leaf) if name not in given)
        return tuple(known[name] for name in names if name in known)

    meet([entry for entry in recording.inputs if isinstance(entry, Slot)])
    calls = list(recording.calls)
    for number, call in enumerate(calls):
        _read(known, contents, number)
        calls[number] = replace(call, sources=sources(pytree.tree_leaves((call.args, call.kwargs))))
        meet(call.results)
    _read(known, contents, len(calls))
    return replace(recording, calls=tuple(calls), sources=sources(recording.outputs))


def _read(known: dict[str, Source], contents: Sequence[Content], number: int) -> None:
    """Adds what was read just before call `number`."""
    for value, slot, before in contents:
        names = symbols_of(value)
        if before == number and len(names) == 1:  # a bool is one that is 1
            known.setdefault(names[0], Source(names[0], slot))


@dataclass(frozen=True, slots=True)
class Silent:
    """A call of `operation` that gives a tensor, as calls of a program do, where that gives nothing."""

    operation: OpOverload[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs the operation, and returns a number without meaning."""
        self.operation(*args, **kwargs)
        return torch.zeros(())


_KNOWN_WITHOUT_RUNNING = (
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "aten::_assert_tensor_metadata",
)


def silent(func: OpOverload[..., Any], args: Sequence[Any]) -> bool:
    """Tells whether a call gives nothing, and is made for what it does besides: an assertion, something that is printed."""
    schema: Any = cast("Any", func)._schema  # noqa: SLF001 - no public name
    if schema.returns or schema.name in _KNOWN_WITHOUT_RUNNING:
        return False
    return schema.name != "aten::_assert_scalar" or not statically_known_true(args[0])


def symbols_of(value: Any) -> tuple[str, ...]:
    """Names the symbols that a number of PyTorch's is made of; none of anything else."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return ()
    return tuple(sorted(str(symbol) for symbol in expression(value).free_symbols))
