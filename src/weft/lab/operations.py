"""A tensor program run operation by operation in PyTorch, each result rounded to its type: what eager does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import torch

from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Monoid,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar


def run_in_pytorch(
    program: TensorProgram, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> tuple[torch.Tensor, ...]:
    """Compute the outputs of `program`, one dimension per axis of each.

    Args:
        program: without reindexing and opaque operations.
        inputs: a tensor for each, by name.
        sizes: of all spaces, by name.

    Raises:
        UnsupportedError: a reindexing or an opaque operation.
    """
    values = dict(inputs)
    for node in program.nodes:
        shape = [a.space.size(sizes) for a in node.axes]
        values[node.name] = _run(node, values, sizes).to(torch_type(node.dtype)).expand(shape)
    return tuple(values[name] for name in program.outputs)


def torch_type(dtype: DType) -> torch.dtype:
    """Return PyTorch's name for it."""
    return getattr(torch, dtype.name)


def laid_out(array: Array, dtype: DType, rng: random.Random) -> torch.Tensor:
    """Make the numbers a tensor, its dimensions in one of several orders in memory, dense or not."""
    tensor = torch.tensor(array).to(torch_type(dtype))
    order = list(range(tensor.ndim))
    rng.shuffle(order)
    if rng.random() < 0.5:
        tensor = tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.ndim)])
    if tensor.ndim and rng.random() < 0.2:
        tensor = torch.stack((tensor, torch.full_like(tensor, 99)), dim=-1)[..., 0]
    return tensor


def _run(node: Node, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    def argument(use: Use, axes: Sequence[Axis]) -> torch.Tensor:
        return _aligned(values[use.value], use.axes, axes)

    match node:
        case Constant(value=value, dtype=dtype):
            return torch.tensor(value, dtype=torch_type(dtype))
        case Extent(space=space):
            return torch.tensor(space.size(sizes))
        case Iota():
            return torch.arange(node.axes[0].space.size(sizes))
        case Elementwise(expr=expr, args=args):
            return _scalar(expr, [argument(u, node.axes) for u in args])
        case Contraction():
            every = list(dict.fromkeys((*node.left.axes, *node.right.axes)))
            labels = [[every.index(a) for a in axes] for axes in (node.left.axes, node.right.axes, node.axes)]
            common = torch.promote_types(values[node.left.value].dtype, values[node.right.value].dtype)
            left, right = (values[u.value].to(common) for u in (node.left, node.right))
            return torch.einsum(left, labels[0], right, labels[1], labels[2])
        case Reduction():
            every = (*node.axes, *node.over)
            shape = [a.space.size(sizes) for a in every]
            dims = list(range(len(node.axes), len(every)))
            return _reduced(node.monoid, argument(node.arg, every).expand(shape), dims)
        case Ranking():
            return _ranked(node, argument)
        case Cast():
            return argument(node.arg, node.axes)
        case Input() | Reindex() | Opaque():
            raise UnsupportedError(f"{node.name} cannot be run operation by operation")
        case _:
            assert_never(node)


def _ranked(node: Ranking, argument: Callable[[Use, Sequence[Axis]], torch.Tensor]) -> torch.Tensor:
    """Rank by sorting, which PyTorch does without moving equal elements past each other."""
    kept = tuple(a for a in node.axes if a != node.rank)
    value = argument(node.arg, (*kept, node.over))
    first = torch.argsort(value, dim=-1, descending=node.order.largest, stable=True)
    late = torch.isnan(torch.gather(value, -1, first)) != node.order.nan_first
    first = torch.gather(first, -1, torch.argsort(late.to(torch.int8), dim=-1, stable=True))[..., : node.count]
    found = first if node.places else torch.gather(value, -1, first)
    if node.rank is None:
        return _aligned(found[..., 0], kept, node.axes)
    return _aligned(found, (*kept, node.rank), node.axes)


def _aligned(value: torch.Tensor, bound: Sequence[Axis], axes: Sequence[Axis]) -> torch.Tensor:
    """Return `value` with one dimension per axis of `axes`, of size 1 where it lacks it."""
    distinct = list(dict.fromkeys(bound))
    kept = [a for a in axes if a in distinct]
    value = torch.einsum(value, [distinct.index(a) for a in bound], [distinct.index(a) for a in kept])
    return value[tuple(slice(None) if a in distinct else None for a in axes)]


def _reduced(monoid: Monoid, value: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Reduce; over nothing the result is the monoid's identity, where PyTorch raises for extrema."""
    if 0 in value.shape:
        return torch.full([n for d, n in enumerate(value.shape) if d not in dims], monoid.identity)
    match monoid:
        case Monoid.sum:
            return value.sum(dims)
        case Monoid.max:
            return value.amax(dims)
        case Monoid.min:
            return value.amin(dims)
        case Monoid.prod:
            for dim in reversed(dims):
                value = value.prod(dim)
            return value
        case _:
            assert_never(monoid)


def _scalar(expr: Scalar, args: Sequence[torch.Tensor]) -> torch.Tensor:
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            return torch.tensor(value)
        case Apply(op, inner):
            return getattr(torch, op)(*(_scalar(a, args) for a in inner))
        case Convert(dtype, inner):
            return _scalar(inner, args).to(torch_type(dtype))
        case _:
            assert_never(expr)
