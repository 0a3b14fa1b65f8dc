"""Calls that PyTorch runs and that only move elements, in any value domain.

Where elements go, PyTorch itself says: the call is run on tensors whose elements are their own numbers, and what comes out says of
each element of the result which one it is. Number 0 is the 0 that padding puts in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree  # no public name

from weft.capture.captured import OpaqueCall, Operand, RuntimeNumber
from weft.errors import UnsupportedError
from weft.tensor.domain import Array, Domain
from weft.tensor.program import Opaque

V = TypeVar("V")
Calls = Mapping[str, OpaqueCall]
"""What opaque operations of a program call, by name."""

_MOVES = frozenset(
    (
        *("reshape", "view", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *(
            "permute",
            "transpose",
            "t",
            "movedim",
            "swapaxes",
            "numpy_T",
            "expand",
            "repeat",
            "repeat_interleave",
            "tile",
        ),
        *(
            "cat",
            "concat",
            "stack",
            "hstack",
            "vstack",
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
            "select",
            "slice",
        ),
        *("narrow", "diagonal", "flip", "roll", "rot90", "tril", "triu", "unfold", "clone", "contiguous", "alias"),
        *("pad", "constant_pad_nd"),
    )
)
_ARGUMENTS = {
    "pad": ("self", "pad", "mode", "value"),
    "constant_pad_nd": ("self", "pad", "value"),
    "repeat_interleave": ("self", "repeats"),
}


def run_moves(calls: Calls, node: Opaque, values: tuple[V, ...], domain: Domain[V]) -> V:
    """Computes what the call gives of values of any domain.

    Args:
        calls: by name, as capture made them.
        node: one of its results, by its axes.
        values: what it uses, by their axes.

    Raises:
        UnsupportedError: it does more than move elements, or depends on sizes that only a run tells.
    """
    call = calls[node.call]
    refuse_unless_moves(call, node)
    numbers: dict[str, torch.Tensor] = {}
    count = 1
    for name, value in zip(node.uses, values, strict=True):
        shape = domain.shape(value)
        size = int(np.prod(shape, dtype=np.int64))
        numbers[name] = torch.arange(count, count + size).reshape(shape)
        count += size

    def given(leaf: Any) -> Any:
        return _laid_out(numbers[leaf.value], leaf) if isinstance(leaf, Operand) else leaf

    args, kwargs = pytree.tree_map(given, (call.args, dict(call.kwargs)), is_leaf=lambda x: isinstance(x, Operand))
    results = pytree.tree_leaves(call.target(*args, **kwargs))
    of = ((i, result.kept) for i, result in enumerate(call.results) if result is not None and result.value == node.name)
    place, kept = next(of)
    taken = results[place][tuple(slice(None) if keep else 0 for keep in kept)].numpy()
    return domain.lift(_taking(taken), *values)


def refuse_unless_moves(call: OpaqueCall, node: Opaque) -> None:
    """Raises an UnsupportedError for a call that does more than move elements."""
    name = getattr(getattr(call.target, "overloadpacket", None), "__name__", "")
    leaves = pytree.tree_leaves(
        (call.args, dict(call.kwargs)), is_leaf=lambda x: isinstance(x, Operand | RuntimeNumber)
    )
    odd = any(isinstance(x, RuntimeNumber) or (isinstance(x, Operand) and x.flagged) for x in leaves)
    ordered = any(r is not None and (r.order is not None or r.flagged) for r in call.results)
    given = dict(zip(_ARGUMENTS.get(name, ()), call.args, strict=False)) | dict(call.kwargs)
    odd = (
        odd or given.get("mode", "constant") != "constant" or bool(given.get("value"))
    )  # a mirror image, another number
    odd = odd or isinstance(given.get("repeats"), Operand)
    if name not in _MOVES or odd or ordered or call.random:
        raise UnsupportedError(
            f"{node.target} runs in PyTorch: {node.reason}", todo="nothing: it has no meaning over fields"
        )


def _laid_out(numbers: torch.Tensor, operand: Operand) -> torch.Tensor:
    """Lays the value out as PyTorch sees it: its axes in another order, and dimensions of size 1."""
    if operand.order is not None:
        numbers = numbers.permute(operand.order)
    for dim, keep in enumerate(operand.kept):
        if not keep:
            numbers = numbers.unsqueeze(dim)
    return numbers


def _taking(numbers: Array) -> Callable[..., Array]:
    def take(*arrays: Array) -> Array:
        flat = [np.zeros(1, np.result_type(*arrays)), *(a.reshape(-1) for a in arrays)]
        return np.concatenate(flat)[numbers]

    return take
