"""What one-hot reductions do on a CPU: each element of what is reduced is combined in one row, not in all of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from weft.cost.cpu_work import ElementLoop, OperatorWork
from weft.cost.traffic import Traffic


def in_one_row(counted: Traffic, works: Mapping[str, OperatorWork]) -> Traffic:
    """Return what a launch does where loops over the rows of one-hot reductions have one iteration.

    Args:
        counted: with all rows.
        works: what its operators do, by name.
    """
    operations, before, after = Counter[tuple[str, tuple[int, ...]]](), Counter[str](), Counter[str]()
    for (name, lengths), times in counted.operations.items():
        work = works.get(name)
        row = work.row if isinstance(work, ElementLoop) else None
        left = lengths if row is None else (*lengths[:row], min(1, lengths[row]), *lengths[row + 1 :])
        operations[name, left] += times
        before[name] += times * prod(lengths)
        after[name] += times * prod(left)
    flops = {n: round(count * after[n] / before[n]) if before[n] else count for n, count in counted.flops.items()}
    return replace(counted, operations=operations, flops=flops)
