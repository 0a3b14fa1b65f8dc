"""Random conditions on the numbers of rows and columns, as source that PyTorch runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
READERS = (
    "torch.where({c}, x, 0).sum(-1)",
    'torch.where({c}, x, float("-inf")).amax(-1)',
    'torch.softmax(x.masked_fill({c}, float("-inf")), -1)',
    "torch.where({c}, x, x * 2)",
    "({c}).to(x.dtype) * x",
    "x * torch.where({c}, 1.0, 0.5)",
    "(({c}) & (x > 0)).sum(-1)",
    "torch.where({c}, 1.5, 0.25) < x",
    "torch.where(({i}) < x, x, {i})",
    "x + ({i})",
)
"""What reads a condition `c`, or an index `i`."""


@dataclass(frozen=True, slots=True)
class IndexConditions:
    """Draws source over `i`, the numbers of rows, and `j`, those of columns."""

    rng: random.Random

    def index(self, depth: int) -> str:
        """An integer; `depth` operations are nested at most."""
        pick = self.rng.choice
        if depth <= 0 or self.rng.random() < 0.2:
            return pick(("i", "j", "j"))
        a, b, c = self.index(depth - 1), self.index(depth - 1), self.condition(depth - 1)
        return pick(
            (
                f"({a} + {pick((1, 2, 3, -1, -2))})",
                f"({a} - {b})",
                f"({a} * {pick((2, 3, -1, -2))})",
                f"({a} % {pick((2, 3, 5, -3))})",
                f"({a} // {pick((2, 3, -2))})",
                f"({a}).abs()",
                f"torch.minimum({a}, {b})",
                f"torch.maximum({a}, {b})",
                f"torch.where({c}, {a}, {pick((0, 5, 100, -7))})",
                f"torch.where({c}, {pick((0, 3, 100, -1))}, {pick((2, 5, 7))})",
            )
        )

    def condition(self, depth: int) -> str:
        """A condition; `depth` operations are nested at most."""
        pick = self.rng.choice
        a, b = self.index(depth - 1), self.index(depth - 1)
        compared = (
            f"({a} {pick(COMPARISONS)} {b})",
            f"({a} {pick(COMPARISONS)} {pick((0, 1, 3, 9, -2, 4.5))})",
            f"({pick((0, 1, 3, 9, -2))} {pick(COMPARISONS)} {a})",
        )
        if depth <= 0 or self.rng.random() < 0.5:
            return pick(compared)
        c, d = self.condition(depth - 1), self.condition(depth - 1)
        chosen = f"torch.where({c}, {d}, {pick((self.condition(depth - 1), 'True', 'False'))})"
        return pick((f"({c} & {d})", f"({c} | {d})", f"({c} ^ {d})", f"(~{c})", chosen))

    def function(self) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
        """A function of a matrix that reads a condition, and its source."""
        depth = self.rng.choice((2, 3))
        said = self.rng.choice(READERS).format(c=self.condition(depth), i=self.index(depth))
        return said, of_source(said)


def of_source(said: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function of a matrix `x` that returns `said`, with `i` and `j` in it."""
    scope: dict[str, Any] = {"torch": torch}
    lines = (
        "def f(x):",
        "    i = torch.arange(x.shape[0])[:, None]",
        "    j = torch.arange(x.shape[1])[None, :]",
        f"    return {said}",
    )
    exec("\n".join(lines), scope)
    return scope["f"]
