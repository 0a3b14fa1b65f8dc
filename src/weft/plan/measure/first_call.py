"""Comparing a first call's results with eager's before weft's kernels may serve.

What the two differ by is mostly a few roundings, and no more is asked. Where it is more, eager in fp64 says which of them is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree  # no public name
from torch.utils._python_dispatch import TorchDispatchMode  # no public name

from weft.plan.execute.runner import Runner
from weft.plan.measure.spare import Spare

# Units in the last place, of the largest result, that need no third opinion: of types of 32 and 64 bits, and of fewer.
_FEW, _FEW_OF_16_BITS = 256.0, 16.0
# One call is one draw: how many times the error rule's bound it may be off; which share of integers and infinities may be others.
_ROOM, _OTHERS = 8.0, 0.01
# Bytes of arguments up to which there is a third opinion: it takes twice the memory.
_MOST_BYTES = 1 << 30


def wrong_results(mine: Sequence[Any], theirs: Sequence[Any], eager: Runner, given: Spare) -> str | None:
    """Says in words what is wrong with a call's results; None where nothing is, or nobody can say.

    Args:
        mine: what weft's kernels gave, and left in the arguments that they write into (`Spare.left`).
        theirs: what PyTorch gave and left.
        eager: the same graph in PyTorch.
        given: arguments for it.

    Raises:
        OutOfMemoryError: a GPU has no room to compare them.
        Exception: what eager fails with.
    """
    with torch.no_grad():
        if len(mine) != len(theirs):
            return f"{len(mine)} results, where eager gives {len(theirs)}"
        pairs = [pair for pair in zip(mine, theirs, strict=True) if isinstance(pair[1], torch.Tensor)]
        for number, (one, other) in enumerate(pairs):
            if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
                return f"result {number} differs from eager's in shape or element type"
        doubtful = [number for number, (one, other) in enumerate(pairs) if not _alike(one, other)]
        if not doubtful:
            return None
        exact = _exactly(eager, given)
        if exact is None or len(exact) != len(theirs):
            return None
        third = [e for e, other in zip(exact, theirs, strict=True) if isinstance(other, torch.Tensor)]
        found = (_wrong(*pairs[number], third[number]) for number in doubtful)
        return next((f"result {n}: {said}" for n, said in zip(doubtful, found, strict=True) if said), None)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tells whether two results differ by a few roundings."""
    if one.is_complex() or one.layout is not torch.strided or not one.numel():
        return True
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    few = _FEW if one.itemsize >= 4 else _FEW_OF_16_BITS
    a, b = one.double(), other.double()
    finite = torch.isfinite(b)
    same = (finite & torch.isfinite(a)) | (a == b) | (torch.isnan(a) & torch.isnan(b))
    if not bool(same.all()):
        return False
    most = b.abs().where(finite, 0.0).max()
    return bool(((a - b).abs().where(finite, 0.0) <= few * torch.finfo(one.dtype).eps * most).all())


class _InFp64(TorchDispatchMode):
    """Computes in float64 also where the graph names another type, or holds tensors of one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        given: tuple[Any, Any] = (args, kwargs or {})
        wide = pytree.tree_map(_widened, given)
        if func._schema.is_mutable and any(  # noqa: SLF001 - no public name
            one is not other and isinstance(one, torch.Tensor)
            for one, other in zip(pytree.tree_leaves(given), pytree.tree_leaves(wide), strict=True)
        ):
            raise RuntimeError("it writes into a tensor of a fixed type")
        return func(*wide[0], **wide[1])


def _widened(leaf: Any) -> Any:
    match leaf:
        case torch.Tensor() if leaf.is_floating_point() and leaf.dtype is not torch.float64:
            return leaf.double()
        case torch.dtype() if leaf.is_floating_point:
            return torch.float64
        case _:
            return leaf


def _exactly(eager: Runner, given: Spare) -> Sequence[Any] | None:
    """Computes eager's results in fp64; None where that cannot be, or takes too much memory."""
    tensors = [a for a in given.arguments if isinstance(a, torch.Tensor)]
    if sum(t.numel() * t.itemsize for t in tensors) > _MOST_BYTES:
        return None
    given.restore()
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in given.arguments]
    try:
        with _InFp64():
            results = list(eager(*wide))
    except RuntimeError:
        return None
    written = {id(a) for a in given.written}
    return results + [w for a, w in zip(given.arguments, wide, strict=True) if id(a) in written]


def _wrong(one: torch.Tensor, other: torch.Tensor, exact: Any) -> str | None:
    """Says in words what is wrong with `one`, beside eager's result and that in fp64."""
    if not isinstance(exact, torch.Tensor) or exact.shape != one.shape:
        return None
    if not one.is_floating_point():
        differs = float(((one != other) & (other == exact)).double().mean())
        return f"{differs:.1%} of the elements differ" if differs > _OTHERS else None
    if exact.dtype is not torch.float64:
        return None
    a, b = one.double(), other.double()
    counted = torch.isfinite(b) & torch.isfinite(exact)
    if bool((counted & ~torch.isfinite(a)).any()):
        return "NaN or infinity where eager gives a number"
    # A kernel may have a NaN for an infinity, and rounding may decide what is divided by 0, but hardly for many elements.
    infinite = torch.isinf(b) & (b == exact)
    others = float((infinite & ~torch.isnan(a) & (a != b)).double().mean())
    if others > _OTHERS:
        return f"{others:.1%} of the elements differ from the infinity that eager gives"
    error, own = (float((x - exact).abs().where(counted, 0.0).max()) for x in (a, b))
    peak = float(exact.abs().where(counted, 0.0).max())
    bound = 2.0 * own + 2.0 * torch.finfo(one.dtype).eps * peak
    return f"error {error:.3g}, eager's {own:.3g}, bound {bound:.3g}" if error > _ROOM * bound else None
