"""Which chip an algorithm runs fastest on, from its optimum and what chips are (FlashAttention on a Napkin, section 4).

In: the fewest transfers of an algorithm for any memory, its operations, sizes, a type. Out: for each chip the seconds of its
transfers, level by level, and of its arithmetic. No schedule is looked at: it is what none can beat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft.cost.chip import Chip
from weft.cost.optimum import Expr, Optimum, TransferLevel, sp
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class ChipTime:
    """What an algorithm takes on a chip, in seconds.

    Attributes:
        transfers: by the level that values are sent to.
        arithmetic: of its matmuls at the full rate.
    """

    chip: Chip
    transfers: Mapping[str, float]
    arithmetic: float

    @property
    def seconds(self) -> float:
        """Return the longest of them: transfers to different levels, and arithmetic, go on at the same time."""
        return max(self.arithmetic, *self.transfers.values())

    @property
    def bound(self) -> str:
        """Return what takes longest: a level, or "arithmetic"."""
        slowest = max(self.transfers, key=lambda name: self.transfers[name])
        return "arithmetic" if self.arithmetic >= self.transfers[slowest] else slowest


def transfer_levels(chip: Chip, width: int) -> tuple[TransferLevel, ...]:
    """Return the levels of a GPU that values of `width` bytes are sent to, the lowest first (equation 5).

    A multiprocessor gets them from the second-level cache into its shared memory. The cache gets them from device memory;
    what it has to get again depends on how much all its multiprocessors keep (theorem 2), not on its own size.
    """
    shared, cache, memory = chip.level("shared memory"), chip.level("L2"), chip.level("device memory")
    own = TransferLevel("shared memory", shared.bytes / width, width / cache.bytes_per_second)
    beyond = TransferLevel("L2", cache.bytes / width, width / memory.bytes_per_second)
    return own, beyond.cached(shared.instances, own)


def ranked(
    best: Optimum, least: Expr, flops: Expr, sizes: Mapping[str, int], dtype: DType, chips: Iterable[Chip]
) -> tuple[ChipTime, ...]:
    """Return what an algorithm takes on each of `chips`, the fastest first.

    Args:
        best: its fewest transfers for any memory.
        least: values that are moved whatever the memory (`ClosedForm.least`).
        flops: of its matmuls.
        sizes: numbers for the sizes in these, by name.
        dtype: of all its values: operands are multiplied as it, and transferred in its bytes.
    """
    numbers = {sp.Symbol(name, positive=True): size for name, size in sizes.items()}
    found: list[ChipTime] = []
    for chip in chips:
        levels = transfer_levels(chip, dtype.bytes)
        once = float(sp.sympify(least).subs(numbers))
        sent = {each.name: each.weight * max(once, float(best.at(each.values).subs(numbers))) for each in levels}
        operations = float(sp.sympify(flops).subs(numbers))
        found.append(ChipTime(chip, sent, operations / chip.matrix_flops(dtype)))
    return tuple(sorted(found, key=lambda each: each.seconds))
