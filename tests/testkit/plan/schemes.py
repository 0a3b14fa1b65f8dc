"""Random fusion schemes."""

from __future__ import annotations

import random

from weft.plan.partition.schemes import Scheme


def any_scheme(rng: random.Random, count: int) -> Scheme:
    """A random code of `count` operators; in most, few kernels end."""
    share = rng.choice((0.1, 0.3, 0.5))
    levels = [0]
    for _ in range(count - 1):
        levels.append(levels[-1] ^ (rng.random() < share))
    words = [int("".join(map(str, levels)), 2)]
    if rng.random() < 0.3:
        words.append(sum((rng.random() < 0.2) << i for i in range(count)))
    return Scheme(tuple(words), sum((rng.random() < 0.05) << i for i in range(count)))
