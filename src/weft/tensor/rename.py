"""Copies of a node over other axes, or with other operands; builders and laws use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from weft.tensor.axes import Affine, Axis
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    Use,
)


def with_uses(node: Node, change: Callable[[Use], Use]) -> Node:
    """Returns `node` with every `Use` changed; values read without a `Use` (by Reindex, Lookup, Opaque) stay."""
    match node:
        case Lookup():
            return replace(node, index=tuple(change(i) if isinstance(i, Use) else i for i in node.index))
        case Input() | Constant() | Iota() | Extent() | Reindex() | Opaque():
            return node
        case Elementwise() | Scan():
            return replace(node, args=tuple(change(u) for u in node.args))
        case Contraction():
            return replace(node, left=change(node.left), right=change(node.right))
        case Reduction() | Ranking() | Cast():
            return replace(node, arg=change(node.arg))
        case _:
            assert_never(node)


def with_values(node: Node, name: Callable[[str], str]) -> Node:
    """Returns `node` reading `name(v)` wherever it read value v."""
    match node:
        case Reindex():
            return replace(node, source=name(node.source))
        case Lookup():
            node = replace(node, source=name(node.source))
            return with_uses(node, lambda use: replace(use, value=name(use.value)))
        case Opaque():
            return replace(node, uses=tuple(name(u) for u in node.uses))
        case _:
            return with_uses(node, lambda use: replace(use, value=name(use.value)))


def with_axes(node: Node, axis: Callable[[Axis], Axis]) -> Node:
    """Returns `node` over `axis(a)` wherever it was over axis a."""
    own = tuple(axis(a) for a in node.axes)
    match node:
        case Input():
            dims = tuple(None if d is None else axis(d) for d in node.dims)
            return replace(node, axes=own, dims=dims)
        case Constant() | Iota() | Extent() | Opaque():
            return replace(node, axes=own)
        case Reindex():
            return replace(node, axes=own, index=tuple(affine_over(i, axis) for i in node.index))
        case Contraction() | Reduction():
            node = replace(node, axes=own, over=tuple(axis(a) for a in node.over))
        case Scan():
            node = replace(node, axes=own, over=axis(node.over))
        case Ranking():
            rank = None if node.rank is None else axis(node.rank)
            node = replace(node, axes=own, over=axis(node.over), rank=rank)
        case Lookup():
            index = tuple(axis(i) if isinstance(i, Axis) else i for i in node.index)
            node = replace(node, axes=own, index=index)
        case Elementwise() | Cast():
            node = replace(node, axes=own)
        case _:
            assert_never(node)
    return with_uses(node, lambda use: replace(use, axes=tuple(axis(a) for a in use.axes)))


def affine_over(index: Affine, axis: Callable[[Axis], Axis]) -> Affine:
    """Returns `index` over `axis(a)` wherever it was over axis a; no two axes may become one."""
    return replace(index, terms=tuple((axis(a), c) for a, c in index.terms))
