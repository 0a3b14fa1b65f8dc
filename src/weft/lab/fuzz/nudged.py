"""How a PyTorch function is conditioned: it runs in fp64, the results of operations off by a rounding of the types elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.lab.fuzz.accidents import OF_TYPE, floating, repeats
from weft.lab.fuzz.function_values import generator

UNITS = {torch.float64: 2.0**-52, torch.float32: 2.0**-24, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-24}
"""What an operation's result may be off by, as a part of it. What has 16 bits is computed in float32, and need not be rounded to 16
bits before it is read again."""

_ADDS = ("mm", "dot", "mv", "sum", "mean", "var", "std", "norm", "conv", "pool", "attention")
"""In the names of calls that add up: that a result equals an operand does not show that it was not rounded."""


def nudged(
    plain: Callable[[], tuple[torch.Tensor, ...]], wide: Callable[[], tuple[torch.Tensor, ...]], number: int
) -> tuple[torch.Tensor, ...] | None:
    """Runs `wide` with the results of its operations off by a unit, up or down (Monte Carlo arithmetic, Parker 1997).

    Exact are whole numbers and what an operation picks from its operands, so that what reads exact values decides alike.

    Args:
        plain: runs the function as it is: it tells the types.
        wide: the same function in fp64.
        number: of the roundings. With an even one equal results are rounded alike: a row that is constant stays so, and its mean is
            another number.

    Returns:
        The results of `wide`; None where the two do not make the same calls.
    """
    noted, moved = _Noted(), _Moved(number)
    with noted:
        plain()
    moved.calls = noted.calls
    with moved:
        results = wide()
    return results if moved.alike and moved.at == len(noted.calls) else None


class _Noted(TorchDispatchMode):
    """Notes the calls, and the types of their results."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch annotates nothing here
        self.calls: list[tuple[str, list[torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.name() != OF_TYPE:
            self.calls.append((func.name(), [t.dtype for t in floating(made)]))
        return made


class _Moved(TorchDispatchMode):
    """Moves the results of calls, which `calls` knows from another run, by a unit of the types that they had there."""

    def __init__(self, number: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch annotates nothing here
        self.calls: list[tuple[str, list[torch.dtype]]] = []
        self.number, self.at, self.alike = number, 0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        before = torch.cat([t.double().flatten().abs() for t in floating((args, kwargs))] or [torch.zeros(0)])
        made, name = func(*args, **(kwargs or {})), func.name()
        if name == OF_TYPE:
            return made
        found = floating(made)
        its_name, dtypes = self.calls[self.at] if self.at < len(self.calls) else ("", [])
        self.at += 1
        if its_name != name or len(dtypes) != len(found):
            self.alike = False
            return made
        returned = func._schema.returns  # noqa: SLF001 - no public name
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returned):
            return made  # views
        for place, (tensor, dtype) in enumerate(zip(found, dtypes, strict=True)):
            if dtype in UNITS and tensor.dtype is torch.float64 and not repeats(tensor):
                exact = tensor == tensor.round()
                if not any(word in name for word in _ADDS):
                    exact |= torch.isin(tensor.abs(), before)
                off = self._signs(tensor, place) * UNITS[dtype]
                tensor.copy_(torch.where(exact | ~tensor.isfinite(), tensor, tensor * (1 + off)))
        return made

    def _signs(self, tensor: torch.Tensor, place: int) -> torch.Tensor:
        """Returns 1 or -1 for each element; with an even number equal elements have the same."""
        if self.number % 2:
            signs = torch.randint(2, tensor.shape, generator=generator(self.number, self.at, place)) * 2 - 1
            return signs.double()
        bits = tensor.contiguous().view(torch.int64)
        mixed = (bits ^ (bits >> 29)) * (0x9E3779B9 + 2 * (self.number + 7 * self.at))
        return ((mixed >> 40) % 2 * 2 - 1).double()
