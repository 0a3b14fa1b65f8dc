"""The one evaluator of tensor programs, over any value domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, assert_never

import numpy as np

from weft.errors import InvalidProgramError, ShapeError, UnsupportedError
from weft.tensor.axes import Affine, Axis, Space, present
from weft.tensor.domain import Array, Domain, at, broadcast, looked_up, scanned
from weft.tensor.dtypes import DType
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
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg

V = TypeVar("V")


def evaluate(
    program: TensorProgram,
    inputs: Mapping[str, V],
    domain: Domain[V],
    opaque: Callable[[Opaque, tuple[V, ...]], V] | None = None,
    sizes: Mapping[str, int] | None = None,
    watch: Callable[[Node], None] | None = None,
) -> tuple[V, ...]:
    """Runs `program` node by node over `domain` and returns its outputs, by their axes (see `returned`).

    Args:
        program: well formed (see `well_formed`).
        inputs: a value for each of the program's inputs, by name: one dimension per axis, or as
            the user has it, with the dimensions of size 1.
        domain: what to compute with.
        opaque: computes an Opaque node from the values it uses.
        sizes: sizes of spaces that no input has and none follows from, by space name.
        watch: called with each node before it is computed.

    Raises:
        ShapeError: an input is missing, or has another rank or size than the program and the
            other inputs say.
        InvalidProgramError: the size of a space is not known, or an index leaves its source.
        UnsupportedError: there is an Opaque node and no `opaque`.
    """
    known = dict(sizes or {})
    values: dict[str, V] = {}
    for node in program.inputs:
        if node.name not in inputs:
            raise ShapeError(f"the program has an input {node.name!r} that got no value")
        values[node.name] = _received(node, inputs[node.name], domain)
        _bind(node, domain.shape(values[node.name]), known)
    program.follow(known)
    made: dict[Node, tuple[V, ...]] = {}  # what gives several results, once
    for node in program.nodes:
        if watch is not None:
            watch(node)
        if isinstance(node, Ranking):
            both = node.both
            if both not in made:
                made[both] = _ranking(node, values, known, domain)
            values[node.name] = made[both][int(node.places)]
        elif isinstance(node, Scan):
            if node.whole not in made:
                made[node.whole] = _scan(node, values, known, domain)
            values[node.name] = made[node.whole][node.result]
        elif isinstance(node, Opaque):
            values[node.name] = _opaque(node, values, opaque)
            _bind(node, domain.shape(values[node.name]), known)
            program.follow(known)
        else:
            values[node.name] = _run(node, values, known, domain)
    return tuple(values[name] for name in program.outputs)


def returned(program: TensorProgram, outputs: Sequence[V], domain: Domain[V]) -> tuple[V, ...]:
    """Returns the outputs of `evaluate` with the dimensions that the user gets, size 1 among them."""
    if not program.output_dims:
        return tuple(outputs)
    values = program.values()
    return tuple(
        domain.lift(at(_units(dims)), aligned(domain, v, values[name].axes, present(dims)))
        for name, v, dims in zip(program.outputs, outputs, program.output_dims, strict=True)
    )


def _units(dims: Sequence[Axis | None]) -> tuple[slice | None, ...]:
    """Returns the numpy index that puts in a dimension of size 1 for each None."""
    return tuple(None if a is None else slice(None) for a in dims)


def aligned(domain: Domain[V], v: V, bound: Sequence[Axis], axes: Sequence[Axis]) -> V:
    """Returns `v`, whose dimension d runs over `bound[d]`, with one dimension per axis of `axes`, in order.

    Axes that `bound` lacks become dimensions of size 1. An axis twice in `bound` is a diagonal.
    """
    if tuple(bound) == tuple(axes):
        return v
    distinct = list(dict.fromkeys(bound))
    labels = [distinct.index(a) for a in bound]
    target = [distinct.index(a) for a in axes if a in distinct]
    expand = tuple(slice(None) if a in distinct else None for a in axes)

    def move(array: Array) -> Array:
        if len(distinct) == len(labels):
            return array.transpose(target)[expand]
        return np.einsum(array, labels, target)[expand]

    return domain.lift(move, v)


def _opaque(node: Opaque, values: Mapping[str, V], handler: Callable[[Opaque, tuple[V, ...]], V] | None) -> V:
    if handler is None:
        raise UnsupportedError(
            f"{node.target} ({node.name}) runs in PyTorch and has no meaning here: {node.reason}",
            where=None if node.location is None else str(node.location),
            todo="evaluate a program without opaque operations, or pass `opaque` to compute them",
        )
    return handler(node, tuple(values[name] for name in node.uses))


def _received(node: Input, v: V, domain: Domain[V]) -> V:
    """Returns an input's value as its axes have it, without the dimensions of size 1 that the caller gave."""
    shape = domain.shape(v)
    if len(node.axes) == len(shape) or len(node.dims) != len(shape):
        return v
    for dim, (axis, size) in enumerate(zip(node.dims, shape, strict=True)):
        if axis is None and size != 1:
            raise ShapeError(f"dimension {dim} of {node.name} has size {size}, not 1")
    return domain.lift(at(tuple(0 if a is None else slice(None) for a in node.dims)), v)


def _bind(node: Input | Opaque, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Reads the sizes of the node's spaces off a value's shape."""
    if len(shape) != len(node.axes):
        raise ShapeError(f"{node.name} has {len(node.axes)} axes, its value has shape {shape}")
    for dim, (axis, size) in enumerate(zip(node.axes, shape, strict=True)):
        space = axis.space
        want = size if space.fixed is None else space.fixed
        want = sizes.setdefault(space.name, want)
        if size != want:
            raise ShapeError(
                f"axis {dim} of {node.name} runs over {space.name}, whose size is {want}, but has {size} elements"
            )


def _size(space: Space, sizes: Mapping[str, int], node: str) -> int:
    if space.fixed is None and space.name not in sizes:
        raise InvalidProgramError(
            f"the size of {space.name} is not known",
            node=node,
            condition="every size is in an input's shape, follows from one, or is in `sizes`",
            todo=f"pass sizes={{{space.name!r}: ...}}",
        )
    return space.size(sizes)


def _ranking(node: Ranking, values: Mapping[str, V], sizes: Mapping[str, int], domain: Domain[V]) -> tuple[V, V]:
    """Computes both results of a ranking: the values and their places."""
    kept = tuple(a for a in node.axes if a != node.rank)
    every = (*kept, node.over)
    shape = tuple(_size(a.space, sizes, node.name) for a in every)
    v = _spread(domain, aligned(domain, values[node.arg.value], node.arg.axes, every), shape)
    numbers = domain.lift(broadcast(shape), domain.iota(shape[-1], DType.int64))
    found = domain.ranked(v, numbers, node.count, node.order)
    if node.rank is None:
        first, second = (domain.lift(at((..., 0)), part) for part in found)
        return aligned(domain, first, kept, node.axes), aligned(domain, second, kept, node.axes)
    first, second = (aligned(domain, part, (*kept, node.rank), node.axes) for part in found)
    return first, second


def _scan(node: Scan, values: Mapping[str, V], sizes: Mapping[str, int], domain: Domain[V]) -> tuple[V, ...]:
    """Computes all results of a scan."""
    every = (*(a for a in node.axes if a != node.over), node.over)
    shape = tuple(_size(a.space, sizes, node.name) for a in every)
    args = [_spread(domain, aligned(domain, values[u.value], u.axes, every), shape) for u in node.args]
    states = [
        args[expr.index] if isinstance(expr, Arg) else _spread(domain, domain.elementwise(expr, args, kind), shape)
        for expr, kind in zip(node.element, node.kinds, strict=True)
    ]
    return tuple(aligned(domain, found, every, node.axes) for found in scanned(domain, node.merge, node.kinds, states))


def _run(node: Node, values: Mapping[str, V], sizes: Mapping[str, int], domain: Domain[V]) -> V:
    def shape() -> tuple[int, ...]:
        return tuple(_size(a.space, sizes, node.name) for a in node.axes)

    def argument(use: Use, axes: Sequence[Axis]) -> V:
        return aligned(domain, values[use.value], use.axes, axes)

    match node:
        case Input() | Opaque() | Ranking() | Scan():
            raise InvalidProgramError(f"{node.name} has no value", node=node.name)
        case Constant() | Extent() | Iota():
            return _source(node, sizes, domain)
        case Elementwise():
            args = [argument(use, node.axes) for use in node.args]
            result = domain.elementwise(node.expr, args, node.dtype)
        case Contraction():
            every = (*node.axes, *node.over)
            result = domain.contract(
                *_operand(domain, values, node.left, every),
                *_operand(domain, values, node.right, every),
                range(len(node.axes)),
            )
        case Reduction():
            every = (*node.axes, *node.over)
            dims = range(len(node.axes), len(every))
            result = domain.reduce(node.monoid, argument(node.arg, every), dims)
        case Reindex():
            result = _reindex(node, values[node.source], sizes, domain)
        case Lookup():
            index = [argument(i, node.axes) if isinstance(i, Use) else _along(i, node, sizes) for i in node.index]
            checked = [d for d, i in enumerate(node.index) if isinstance(i, Use)] if node.masked else []
            result = looked_up(domain, values[node.source], index, checked, node.dtype)
        case Cast():
            result = domain.convert(argument(node.arg, node.axes), node.dtype, node.semantic)
        case _:
            assert_never(node)
    return _spread(domain, result, shape())


def _source(node: Constant | Extent | Iota, sizes: Mapping[str, int], domain: Domain[V]) -> V:
    match node:
        case Constant():
            return domain.full((), node.value, node.dtype)
        case Extent():
            return domain.full((), _size(node.space, sizes, node.name), node.dtype)
        case Iota():
            return domain.iota(_size(node.axes[0].space, sizes, node.name), node.dtype)
        case _:
            assert_never(node)


def _spread(domain: Domain[V], v: V, shape: tuple[int, ...]) -> V:
    """Returns `v` broadcast to `shape`, where its own is smaller."""
    return v if domain.shape(v) == shape else domain.lift(broadcast(shape), v)


def _operand(domain: Domain[V], values: Mapping[str, V], use: Use, axes: Sequence[Axis]) -> tuple[V, list[int]]:
    """Returns the used value and, per dimension, its axis' place in `axes`."""
    own = tuple(dict.fromkeys(use.axes))
    return aligned(domain, values[use.value], use.axes, own), [axes.index(a) for a in own]


def _reindex(node: Reindex, source: V, sizes: Mapping[str, int], domain: Domain[V]) -> V:
    shape = tuple(_size(a.space, sizes, node.name) for a in node.axes)
    starts = tuple(
        i.offset + (size - 1 if i.from_end else 0) for i, size in zip(node.index, domain.shape(source), strict=True)
    )
    extent = dict(zip(node.axes, shape, strict=True))
    if 0 not in shape:
        _check_bounds(node, starts, domain.shape(source), extent)
    single = [term[0] for i in node.index for term in i.terms]
    if all(len(i.terms) <= 1 for i in node.index) and len(set(single)) == len(single):
        pick = tuple(_slice(i, start, extent) for i, start in zip(node.index, starts, strict=True))
        return aligned(domain, domain.lift(at(pick), source), single, node.axes)
    grids = {a: np.arange(n).reshape([-1 if b is a else 1 for b in node.axes]) for a, n in extent.items()}
    indices = tuple(
        np.broadcast_to(sum((c * grids[a] for a, c in i.terms), np.asarray(start)), shape)
        for i, start in zip(node.index, starts, strict=True)
    )
    return domain.lift(at(indices), source)


def _along(axis: Axis, node: Lookup, sizes: Mapping[str, int]) -> Array:
    """Numbers the elements along one of the axes of `node`."""
    numbers = np.arange(_size(axis.space, sizes, node.name))
    return numbers.reshape([-1 if a == axis else 1 for a in node.axes])


def _slice(index: Affine, start: int, extent: Mapping[Axis, int]) -> slice | int:
    """Returns an affine index of at most one term, as a slice that never wraps around."""
    if not index.terms:
        return start
    ((axis, step),) = index.terms
    if extent[axis] == 0:
        return slice(0, 0)
    stop = start + step * extent[axis]
    return slice(start, None if stop < 0 else stop, step)


def stays_inside(program: TensorProgram, sizes: Mapping[str, int]) -> bool:
    """Tells whether no index of `program` leaves its source at `sizes`, of all its spaces by name."""
    values = program.values()
    for node in program.nodes:
        if isinstance(node, Reindex):
            source = tuple(a.space.size(sizes) for a in values[node.source].axes)
            extent = {a: a.space.size(sizes) for a in node.axes}
            starts = tuple(i.offset + (n - 1 if i.from_end else 0) for i, n in zip(node.index, source, strict=True))
            try:
                _check_bounds(node, starts, source, extent)
            except InvalidProgramError:
                return False
    return True


def _check_bounds(node: Reindex, starts: tuple[int, ...], source: tuple[int, ...], extent: Mapping[Axis, int]) -> None:
    for index, start, size in zip(node.index, starts, source, strict=True):
        ends = [c * (extent[a] - 1) for a, c in index.terms]
        low = start + sum(min(e, 0) for e in ends)
        high = start + sum(max(e, 0) for e in ends)
        if low < 0 or high >= size:
            raise InvalidProgramError(
                f"index {index} of {node.source} runs from {low} to {high}, of {size} elements",
                node=node.name,
                condition="an index stays within its source",
            )
