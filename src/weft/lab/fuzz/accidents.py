"""What eager's results owe to accident: the order of sums out of range, the order of elements that are read and written at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # no public name
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.capture.memory import apart
from weft.lab.fuzz.compared import ResultTensors

Function: TypeAlias = Callable[..., ResultTensors]


def traced(function: Function, given: Sequence[torch.Tensor]) -> ResultTensors | None:
    """Gives the results of `function` and its arguments after it, traced and run call by call; None where PyTorch cannot.

    There each statement reads all that it reads before it writes, and an operation may have another form (one_hot).
    """
    try:
        results: ResultTensors = cast("Any", torch).compile(function, backend="aot_eager")(*given)
    except Exception:  # noqa: BLE001 - whatever PyTorch raises
        return None
    return *results, *given


def described(function: Function, given: Sequence[torch.Tensor]) -> ResultTensors | None:
    """Gives results without data, of whose strides PyTorch's shape functions may say another thing than its kernels (`angle`)."""
    mode: Any = FakeTensorMode()
    without = [mode.from_tensor(tensor) for tensor in given]
    try:
        with mode:
            return function(*without)
    except Exception:  # noqa: BLE001 - whatever PyTorch raises
        return None


OF_TYPE = "aten::_to_copy"
"""A change of type: the reference, where all floats are of one type, makes fewer."""
_ADDS = ("mm", "dot", "mv", "sum", "mean", "var", "std", "norm", "pool", "conv", "attention")
"""In the names of calls that add up: whether they overflow on the way depends on the order."""
_FACTORS = {"sum": 1, "mean": 1, "cumsum": 1, "mm": 2, "bmm": 2, "mv": 2, "dot": 2}
"""How many operands each term of a sum is the product of, by the names of calls."""
_SQUARES = ("var", "std", "norm")
"""In the names of calls that square inside: they show no call of their own whose result leaves the range."""
_SCALE = 2.0**-520


def out_of_range(
    plain: Callable[[], tuple[torch.Tensor, ...]], wide: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...] | None:
    """Tells which elements of each result depend on a number that is out of range in `plain` and not in `wide`, or on a sum
    whose order decides whether it leaves the range of fp64.

    `wide` is run again, with NaN in the place of each such number, and with 0: what is NaN only with NaN depends on one.

    Args:
        plain: runs the function as it is, and gives its results.
        wide: the same function of the same arguments, in fp64.

    Returns:
        A bool for each element of each result; None where the two do not make the same calls.
    """
    seen, without = _Leaving(), wide()
    with seen:
        plain()
    results: list[tuple[torch.Tensor, ...]] = []
    for poison in (torch.nan, 0.0):
        poisoned = _Poisoned(seen.masks, poison)
        with poisoned:
            results.append(wide())
        if poisoned.different or poisoned.number != len(seen.masks):
            return None
    return tuple(a.isnan() & ~(b.isnan() & c.isnan()) for a, b, c in zip(results[0], without, results[1], strict=True))


def floating(made: Any) -> list[torch.Tensor]:
    """Lists the floating tensors in what a call was given or made."""
    leaves = pytree.tree_leaves(made)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


class _Leaving(TorchDispatchMode):
    """Notes for each call which elements of its results are no numbers, or would not be if terms did not cancel."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch annotates nothing here
        self.masks: list[tuple[str, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.name()
        largest: list[torch.Tensor] = []
        if any(word in name for word in _ADDS) and not func._schema.is_mutable:  # noqa: SLF001 - no public name
            sizes = pytree.tree_map_only(torch.Tensor, _magnitude, (args, kwargs or {}))
            largest = floating(func(*sizes[0], **sizes[1]))
        made = func(*args, **(kwargs or {}))
        if name != OF_TYPE:
            masks = [~torch.isfinite(each) for each in floating(made)]
            if largest:
                masks = [mask | ~torch.isfinite(most) for mask, most in zip(masks, largest, strict=True)]
            self.masks.append((name, masks))
        return made


def _magnitude(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def _leaves_inside(name: str, args: tuple[Any, ...], made: torch.Tensor) -> bool:
    """Tells whether a call squares finite numbers of fp64: where its results are none, its own order of steps left the range."""
    operands = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    squares = any(word in name for word in _SQUARES) and made.dtype is torch.float64
    return squares and all(bool(a.isfinite().all()) for a in operands)


def _leaves_by_accident(func: Any, args: tuple[Any, ...], kwargs: Any, made: torch.Tensor) -> torch.Tensor:
    """Tells where sums in fp64 leave the range on one side and their results do not, or on both sides.

    On both sides a fused multiplication and addition, which adds an unrounded product to an infinity, gives that infinity, and
    others NaN; likewise where a term of one side is infinite and a product of the other leaves the range.
    """
    name = func.name().removeprefix("aten::").partition(".")[0]
    factors = _FACTORS.get(name, 0)
    operands = [a for a in args[:factors] if isinstance(a, torch.Tensor) and a.dtype is torch.float64]
    if not factors or len(operands) < factors or made.dtype is not torch.float64:
        return torch.zeros_like(made, dtype=torch.bool)

    def added(left: torch.Tensor, *right: torch.Tensor) -> torch.Tensor:
        return func(left, *right, *args[factors:], **(kwargs or {}))

    def sums(of: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums up the terms that are positive, and the others, less their sign."""
        (up, down), *rest = [(a.clamp(min=0), (-a).clamp(min=0)) for a in of]
        if not rest:
            return added(up), added(down)
        ((plus, minus),) = rest
        return added(up, plus) + added(down, minus), added(up, minus) + added(down, plus)

    infinite = [torch.isinf(a) for a in operands]
    above, below = sums([a.masked_fill(out, 0) * _SCALE for a, out in zip(operands, infinite, strict=True)])
    largest = torch.finfo(torch.float64).max * _SCALE**factors
    if name == "mean":
        largest *= made.numel() / operands[0].numel()
    either = (above > largest) & ((below > largest) | (above - below <= largest))
    either |= (below > largest) & (above - below >= -largest)
    # Each infinity counts as 1, with its sign, beside the signs of what it is multiplied with.
    signs = [a.sign() for a in operands]
    for place, out in enumerate(infinite):
        if bool(out.any()):
            up, down = sums([s.where(out, 0) if n == place else s for n, s in enumerate(signs)])
            either |= ((up > 0) & (below > largest)) | ((down > 0) & (above > largest))
    return either


class _Poisoned(TorchDispatchMode):
    """Puts `poison` where the same call of another run gave no number, and this one does, or has one by accident."""

    def __init__(self, masks: list[tuple[str, list[torch.Tensor]]], poison: float) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch annotates nothing here
        self.masks, self.number, self.different, self.poison = masks, 0, False, poison

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        made, name = func(*args, **(kwargs or {})), func.name()
        if name == OF_TYPE:
            return made
        found = floating(made)
        its_name, masks = self.masks[self.number] if self.number < len(self.masks) else ("", [])
        self.number += 1
        if its_name != name or [m.shape for m in masks] != [t.shape for t in found]:
            self.different = True
            return made
        for tensor, mask in zip(found, masks, strict=True):
            left = mask & torch.isfinite(tensor)
            if bool(mask.any()):
                left = (
                    left | _leaves_by_accident(func, args, kwargs, tensor) | (mask & _leaves_inside(name, args, tensor))
                )
            if bool(left.any()) and not repeats(tensor):
                tensor.masked_fill_(left, self.poison)  # one that repeats elements is a view of what was here before
        return made


class OfCopies(TorchDispatchMode):
    """Gives calls that make new tensors copies of operands that repeat elements: PyTorch's median reads beyond the end of these."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        schema = func._schema  # noqa: SLF001 - no public name
        if not schema.is_mutable and all(result.alias_info is None for result in schema.returns):
            args, kwargs = pytree.tree_map_only(torch.Tensor, _dense, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if repeats(tensor) else tensor


def repeats(tensor: torch.Tensor) -> bool:
    """Tells whether elements lie in one place, along a dimension."""
    return any(s == 0 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


class Overlaps(TorchDispatchMode):
    """Looks for calls that write into memory which they read elsewhere, or into an element more than once.

    Attributes:
        found: whether there was one.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - PyTorch annotates nothing here
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        schema: list[Any] = func._schema.arguments  # noqa: SLF001 - no public name
        named: dict[str, Any] = {**dict(zip((a.name for a in schema), args, strict=False)), **(kwargs or {})}
        for argument in schema:
            written = named.get(argument.name)
            if argument.is_write and isinstance(written, torch.Tensor):
                others = [t for t in pytree.tree_leaves(named) if isinstance(t, torch.Tensor) and not _same(t, written)]
                self.found = self.found or not apart([written, *others], [0])
        return func(*args, **(kwargs or {}))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether two tensors are the same elements."""
    places = [(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (one, other)]
    return places[0] == places[1]
