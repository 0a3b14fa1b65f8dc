"""Tensor programs that rank: which element is greatest or least, and where, first or last, of rows and of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from weft.block.program import BlockNode, BlockProgram, Graph, Map
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.order import Order
from weft.tensor.program import Input, Ranking, TensorProgram, Use

M, N = (Axis(n, Space(n.upper())) for n in "mn")


FIRST = Order(largest=True, nan_first=True)


ORDERS = (FIRST, Order(largest=False, nan_first=True), Order(largest=False, nan_first=False))


def ranking(count: int | None, order: Order = FIRST, dtype: DType = DType.float32) -> TensorProgram:
    """Values and places of the first `count` of each row."""
    rank = None if count is None else Axis("r", Space("R", count))
    axes = (M,) if rank is None else (M, rank)
    nodes = tuple(
        Ranking(name, axes, DType.int64 if places else dtype.accumulator, Use("x", (M, N)), N, rank, order, places)
        for name, places in (("v", False), ("p", True))
    )
    return TensorProgram((Input("x", (M, N), dtype),), nodes, ("v", "p"))


def every(program: BlockProgram, change: Callable[[BlockNode], BlockNode]) -> BlockProgram:
    """`program` with its operators, those that update states too, changed."""

    def graph(old: Graph) -> Graph:
        return replace(old, nodes=tuple(node(n) for n in old.nodes))

    def node(old: BlockNode) -> BlockNode:
        if not isinstance(old, Map):
            return change(old)
        state = None if old.state is None else replace(old.state, update=graph(old.state.update))
        return replace(old, body=graph(old.body), state=state)

    return replace(program, graph=graph(program.graph))


def rows(rng: np.random.Generator, size: int) -> np.ndarray:
    """Rows with ties, infinities, NaN, zeros of both signs; all equal; all minus infinity."""
    some = rng.choice([0.0, -0.0, 1.0, 2.0, -3.0, np.inf, -np.inf, np.nan], (3, size))
    return np.stack([*some, np.full(size, 2.5), np.full(size, -np.inf), np.full(size, np.nan), np.arange(size) % 3.0])
