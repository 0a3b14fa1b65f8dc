"""How much masks leave: the share of their blocks in which anything counts, as it is expected, and as an example has it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import TypeAlias

Shares: TypeAlias = tuple[int, ...]
"""Of blocks of `EDGES`: n stands for 2 ** (-n / 2)."""

EDGES = (1, 16, 32, 64, 128, 256)
"""Rows and columns of the blocks of which it is known how many have something to do."""
_LEAST = 16
"""No share is said to be less than 2 ** (-n / 2)."""


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The class of a mask: about which share of its blocks has any True element, and which any False one.

    It is coarse, so that masks of a kind have one class: shares are powers of the square root of two.

    Attributes:
        true, false: shares of the square blocks of `EDGES`.
    """

    true: Shares
    false: Shares

    def of(self, idle: float | bool | None) -> Shares:
        """Return the shares of blocks in which an element is not `idle`; of numbers, True stands for what counts."""
        return self.false if idle is True else self.true

    def with_idle(self, idle: float | bool | None) -> Shares:
        """Return the shares of the square blocks in which an element is `idle`."""
        return self.true if idle is True else self.false


def classed(share: float) -> int:
    """Return the class of a share, in [0, 1]."""
    return _LEAST if share <= 0 else min(_LEAST, round(-2 * log2(min(1.0, share))))


def share_of(shares: Shares, rows: int, columns: int) -> float:
    """Return about which share of blocks of so many rows and columns has something to do, in (0, 1].

    Other blocks than those of `EDGES` are taken for square ones of as many elements.
    """
    edge = min(float(EDGES[-1]), max(1.0, sqrt(rows * columns)))
    place = next(n for n, each in enumerate(EDGES) if each >= edge)
    if place == 0:
        return 2.0 ** (-shares[0] / 2)
    before, after = EDGES[place - 1], EDGES[place]
    beyond = log2(edge / before) / log2(after / before)
    return 2.0 ** (-(shares[place - 1] + (shares[place] - shares[place - 1]) * beyond) / 2)


def typical(length: int) -> Sparsity:
    """Return the class that a mask of so many columns has where nothing is known of it.

    It is that of a causal mask: models compute theirs from positions, where no example shows it, and most are causal. Whether True
    or False is what counts is not known either: both have these shares.
    """
    blocks = [max(1, ceil(length / min(edge, max(1, length)))) for edge in EDGES]
    shares = tuple(classed((n + 1) / (2 * n)) for n in blocks)
    return Sparsity(shares, shares)
