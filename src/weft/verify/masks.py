"""Masks whose blocks are left out: which inputs of a scheduled program are such, and draws in which whole blocks are idle."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TypeVar

import numpy as np

from weft.block.program import BlockProgram
from weft.masks import questions
from weft.tensor.domain import Array, Domain, Structural
from weft.tensor.dtypes import DType

V = TypeVar("V")

_STRUCTURED = 0.8
"""Of so many draws: in the others no more of a mask's elements are idle than are by chance."""
_FEW = (1, 2, 4)
"""How many different integers masks have in a draw: the fewer, the oftener two inputs agree all over a block."""


def masks_of(applied: BlockProgram) -> Mapping[str, float | bool | None]:
    """Return what is idle in each input of `applied`, a program with loads, that says whether iterations of a loop are.

    Where several decide it together, it is what masks usually have. Of integers, such as numbers of documents, none is idle by
    itself (None). Where a loop asks one input of integers, all such inputs are here: it may be compared with any of them.
    """
    kinds = {name: kind.dtype for name, kind in applied.inputs}
    usual = {name: None if dtype.kind == "int" else -inf if dtype.is_float else False for name, dtype in kinds.items()}
    found = {name: idle for asked in questions(applied) for name, idle in asked.inputs.items()}
    integers = {name for name, dtype in kinds.items() if dtype.kind == "int"}
    of_masks = found.keys() | (integers if integers & found.keys() else set[str]())
    return {name: usual[name] if found.get(name) is None else found[name] for name in sorted(of_masks)}


def with_idle_blocks(
    values: Mapping[str, V], masks: Mapping[str, float | bool | None], domain: Domain[V], rng: np.random.Generator
) -> dict[str, V]:
    """Make whole blocks of `masks`, inputs among `values` by name, idle now and then, and others leave nothing out.

    Integers are alike in a block, and of few numbers: random ones are hardly ever equal all over a block of two. Where all are
    one number, another block keeps what was drawn.
    """
    found = dict(values)
    few = int(rng.choice(_FEW))
    for name, idle in masks.items():
        shape = domain.shape(found[name])
        if 0 in shape or (idle is not None and rng.uniform() > _STRUCTURED):
            continue
        if idle is None:
            numbers = [domain.full((), number, DType.int64) for number in range(few)]
            shares = [1 / few] * few
        else:
            dtype = DType.bool if isinstance(idle, bool) else DType.float64
            numbers = [domain.full((), idle, dtype)]
            numbers.append(domain.full((), not idle if isinstance(idle, bool) else 0.0, dtype))
            share, full = float(rng.choice((0.1, 0.5, 0.8))), float(rng.choice((0.3, 0.9)))
            shares = [share, (1 - share) * full, (1 - share) * (1 - full)]
        found[name] = domain.lift(_put(_in_blocks(shape, rng, shares)), found[name], *numbers)
    return found


def _in_blocks(shape: tuple[int, ...], rng: np.random.Generator, shares: list[float]) -> Array:
    """Draw a number for each block of stretches along every dimension, each as often as its share says.

    One block at least is 0, and one 1 if there are two.
    """
    edges = [int(rng.integers(size // 4 + 1, size // 2 + 2)) for size in shape]
    drawn = rng.choice(len(shares), [-(-size // edge) for size, edge in zip(shape, edges, strict=True)], p=shares)
    for number, place in enumerate(rng.permutation(drawn.size)[:2]):
        drawn.flat[place] = number
    for dim, (size, edge) in enumerate(zip(shape, edges, strict=True)):
        drawn = np.repeat(drawn, edge, axis=dim).take(np.arange(size), axis=dim)
    return drawn


def _put(chosen: Array) -> Structural:
    def put(values: Array, *numbers: Array) -> Array:
        return np.where(chosen == len(numbers), values, np.stack([*numbers, numbers[0]])[chosen])

    return put
