"""Results of weft beside eager's and fp64's: what of them counts, and how near it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

# The reference rounds as fp64 results do, and often just as eager does: then the rule's bound is two roundings, for any function.
FP64_BOUNDS = 32


# How many times what the reference then moves by a result may be off. A rounding of its own counts as often, but for 16 bits.
ROOM = {torch.float64: FP64_BOUNDS, torch.float32: 8, torch.float16: 8, torch.bfloat16: 8}


ResultTensors: TypeAlias = tuple[torch.Tensor, ...]


def as_near(found: torch.Tensor, exact: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Tells whether a result is as near to the reference as `others`, references on other arguments, are."""
    if found.numel() == 0:
        return True
    finite, room, limits = torch.isfinite(exact), ROOM[found.dtype], torch.finfo(found.dtype)
    # Infinities that come or go say nothing of roundings.
    apart = torch.stack([(exact - other).abs().nan_to_num(0, 0) for other in others]).amax(0)
    own = 2 * limits.eps * exact.abs() * (1 if limits.bits == 16 else room)
    bound = (room * apart + own).where(finite, 0)
    # One draw of a few says little of a single element: those of a row go together. A row says nothing of another one.
    bound = bound.amax(-1, keepdim=True) if bound.dim() > 1 else bound.max()
    return bool(((found - exact).abs().where(finite, 0) <= bound).all())


def other_strides(mine: Sequence[torch.Tensor], theirs: Sequence[ResultTensors]) -> str | None:
    """Finds the first result that lies in memory as it does in none of `theirs`, eager's first; None where there is none."""
    for number, (found, *known) in enumerate(zip(mine, *theirs, strict=True)):
        if all(_strides(found) != _strides(each) for each in known):
            eager = known[0]
            return f"output {number}: strides {found.stride()}, eager gives {eager.stride()} of {list(eager.shape)}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    """Lists the strides of dimensions in which there is anything to step over."""
    if tensor.numel() == 0:
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def shared(tensor: torch.Tensor, arguments: Sequence[torch.Tensor]) -> list[int]:
    memory = tensor.untyped_storage().data_ptr()
    return [i for i, a in enumerate(arguments) if memory and a.untyped_storage().data_ptr() == memory]


def comparable(
    found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the three, 0 where eager overflows on its way: whether a sum does depends on its order.

    That is where it is infinite or NaN and fp64 is not, and where it is a number of which no digit is right, as the 0 that is left
    of dividing by an infinite variance; of such a number weft owes none. Nor of one where weft is infinite or NaN as fp64 is: there
    eager has divided by what rounding left of a 0. Where the result itself is out of range, and eager's the infinity of its sign,
    weft's must be that. Within two units in the last place of the largest number, weft's may be infinite: it is rounded up.
    """
    mine, theirs, wide = map(numbers, (found, eager, exact))
    if not theirs.is_floating_point():
        return mine, theirs, wide
    wide = wide.where(~beyond(theirs, wide), theirs.double())
    limits = torch.finfo(theirs.dtype)
    at_its_end = (wide.abs() / limits.max - 1).abs() <= 2 * limits.eps
    at_its_end &= mine.isinf() & (mine.sign() == wide.sign())
    mine = mine.where(~(at_its_end & theirs.isfinite()), theirs)
    as_exact = (theirs.isnan() & wide.isnan()) | (theirs.double() == wide)
    as_exact_here = (mine.isnan() & wide.isnan()) | (mine.double() == wide)
    wrong = ~torch.isfinite(mine) & (as_exact_here | ((theirs.double() - wide).abs() > wide.abs() / 2))
    overflowed = ~as_exact & (wrong | ~torch.isfinite(theirs))
    return mine.masked_fill(overflowed, 0), theirs.masked_fill(overflowed, 0), wide.masked_fill(overflowed, 0)


def beyond(eager: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Tells where a result is out of the range of its type, and eager's the infinity of its sign."""
    if not eager.is_floating_point():
        return torch.zeros_like(eager, dtype=torch.bool)
    most = 2 * float(torch.finfo(eager.dtype).max)
    return (exact.abs() > most) & eager.isinf() & (eager.sign() == exact.sign())


def without_masked(
    found: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    finite: Sequence[torch.Tensor],
    huge: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `eager` and `exact` with what does not depend on their NaN in its place, see `_Trial._unmasked`."""
    if not eager.is_floating_point():
        return eager, exact
    hidden = eager.isnan() & exact.isnan() & ~found.isnan()
    for value, known in (
        (finite[0], finite[0] == finite[1]),
        (huge[0], torch.stack([h == huge[0] for h in huge]).all(0) & huge[0].isfinite()),
        *((sign * torch.inf, torch.stack([sign * h > 1e60 for h in huge]).all(0)) for sign in (1.0, -1.0)),
    ):
        here = hidden & known
        eager, exact = torch.where(here, value, eager.double()).to(eager.dtype), torch.where(here, value, exact)
    return eager, exact


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as the error rule takes it: complex numbers as pairs."""
    plain = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(plain) if plain.is_complex() else plain
