"""How much masks leave: the share of their blocks in which anything counts, as it is expected, and as an example has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import TypeAlias

Shares: TypeAlias = tuple[int, ...]
"""Classes of shares of blocks of `EDGES`: n stands for 2 ** (-n / 2), and the last of them, `NONE`, for nothing."""

EDGES = (1, 16, 32, 64, 128, 256)
"""Rows and columns of the blocks of which it is known how many have something to do."""
NONE = 16
"""The class of shares that are nothing, or nearly so: less than 2 ** (-n / 2)."""
_MOST_OF_ALL = 0.6


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The class of a mask: about which share of its blocks has any True element, which any False one, and which nothing else.

    It is coarse, so that masks of a kind have one class: shares are powers of the square root of two. Of blocks that are nearly all
    of them it is the others whose share says more, so both are there.

    Attributes:
        true, false: shares of the square blocks of `EDGES` that have such an element.
        all_true, all_false: shares of those that have no other.
    """

    true: Shares
    false: Shares
    all_true: Shares
    all_false: Shares

    def busy(self, idle: float | bool | None) -> tuple[float, ...]:
        """Return the shares of blocks in which an element is not `idle`; of numbers, True stands for what counts."""
        return _shares(self.false, self.all_true) if idle is True else _shares(self.true, self.all_false)

    def full(self, idle: float | bool | None) -> tuple[float, ...]:
        """Return the shares of blocks in which no element is `idle`."""
        return _shares(self.all_false, self.true) if idle is True else _shares(self.all_true, self.false)


def _shares(some: Shares, others: Shares) -> tuple[float, ...]:
    """Return the shares that `some` stands for, or what `others` leave of 1, where that is known better."""
    return tuple(
        1 - _share(other) if _share(one) > _MOST_OF_ALL else _share(one)
        for one, other in zip(some, others, strict=True)
    )


def _share(number: int) -> float:
    return 0.0 if number >= NONE else 2.0 ** (-number / 2)


def classed(share: float) -> int:
    """Return the class of a share, in [0, 1]."""
    return NONE if share <= 0 else min(NONE, round(-2 * log2(min(1.0, share))))


def share_of(shares: Sequence[float], rows: int, columns: int) -> float:
    """Return about which share of blocks of so many rows and columns it is, where `shares` are those of blocks of `EDGES`.

    Other blocks than those of `EDGES` are taken for square ones of as many elements.
    """
    edge = min(float(EDGES[-1]), max(1.0, sqrt(rows * columns)))
    place = next(n for n, each in enumerate(EDGES) if each >= edge)
    if place == 0:
        return shares[0]
    before, after = EDGES[place - 1], EDGES[place]
    beyond = log2(edge / before) / log2(after / before)
    least = 2.0 ** (-NONE / 2)
    first, second = (max(least, each) for each in shares[place - 1 : place + 1])
    return first * (second / first) ** beyond


def typical(length: int) -> Sparsity:
    """Return the class that a mask of so many columns has where nothing is known of it.

    It is that of a causal mask: models compute theirs from positions, where no example shows it, and most are causal. Whether True
    or False is what counts is not known either: both have these shares.
    """
    blocks = [max(1, ceil(length / min(edge, max(1, length)))) for edge in EDGES]
    shares = tuple(classed((n + 1) / (2 * n)) for n in blocks)
    full = (shares[0], *(classed((n - 1) / (2 * n)) for n in blocks[1:]))
    return Sparsity(shares, shares, full, full)
