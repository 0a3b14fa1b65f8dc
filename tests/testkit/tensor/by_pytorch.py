"""An evaluation of tensor programs by PyTorch, written without a look at weft's: names of axes are einsum letters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Iota,
    Node,
    Reduction,
    Reindex,
    Use,
)
from weft.tensor.scalar import Arg, Convert, Lit, Scalar


def torch_expr(expr: Scalar, args: list[torch.Tensor]) -> Any:
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        case Convert(dtype, inner):
            return torch_expr(inner, args).to(getattr(torch, dtype.name)).double()
        case _:
            return getattr(torch.ops.aten, expr.op)(*(torch_expr(a, args) for a in expr.args))


def torch_aligned(t: torch.Tensor, bound: tuple[Axis, ...], axes: tuple[Axis, ...]) -> torch.Tensor:
    letters = {a: "abcdefgh"[i] for i, a in enumerate(dict.fromkeys((*axes, *bound)))}
    target = [a for a in axes if a in bound]
    spec = f"{''.join(letters[a] for a in bound)}->{''.join(letters[a] for a in target)}"
    out = torch.einsum(spec, t.double()).to(t.dtype)
    for d, a in enumerate(axes):
        if a not in bound:
            out = out.unsqueeze(d)
    return out


def torch_gather(node: Reindex, source: torch.Tensor, sizes: dict[Axis, int]) -> torch.Tensor:
    out = torch.empty([sizes[a] for a in node.axes], dtype=source.dtype)
    for point in np.ndindex(*out.shape):
        where = dict(zip(node.axes, point, strict=True))
        at = tuple(
            (source.shape[d] - 1 if i.from_end else 0) + i.offset + sum(c * where[a] for a, c in i.terms)
            for d, i in enumerate(node.index)
        )
        assert all(0 <= i < n for i, n in zip(at, source.shape, strict=True))
        out[point] = source[at]
    return out


def torch_node(node: Node, values: dict[str, torch.Tensor], sizes: dict[Axis, int]) -> torch.Tensor:
    shape = [sizes[a] for a in node.axes]

    def get(u: Use, axes: tuple[Axis, ...]) -> torch.Tensor:
        return torch_aligned(values[u.value], u.axes, axes)

    match node:
        case Constant(value=value):
            return torch.tensor(value, dtype=torch.float64)
        case Iota():
            return torch.arange(shape[0])
        case Elementwise():
            # In double: PyTorch takes functions of integers in float32.
            out = torch_expr(node.expr, [get(u, node.axes).double() for u in node.args])
        case Contraction():
            every = (*node.axes, *node.over)
            product = get(node.left, every) * get(node.right, every)
            out = product.expand([sizes[a] for a in every])
            for _ in node.over:  # torch sums over everything, told to sum over nothing
                out = out.sum(-1)
        case Reduction():
            out = get(node.arg, (*node.axes, *node.over))
            for _ in node.over:
                combine = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}
                out = combine[node.monoid.name](out, -1)
        case Reindex():
            out = torch_gather(node, values[node.source], sizes)
        case Cast():
            out = get(node.arg, node.axes)
            out = out.to(getattr(torch, node.dtype.name)).double() if node.semantic else out
        case _:
            raise AssertionError(node)
    out = out.bool() if node.dtype is DType.bool else out.long() if node.dtype is DType.int64 else out.double()
    return out.expand(shape)
