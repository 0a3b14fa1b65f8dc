"""The domain of bytes: what running each operation by itself, as eager does, moves and computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.tensor.domain import Array, Structural, contract_arrays
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.program import Monoid, Order, TensorProgram
from weft.tensor.scalar import Scalar, operations


@dataclass(frozen=True, slots=True)
class Transfer:
    """One operation's traffic.

    Attributes:
        operation: "elementwise", "contract", "reduce", "rank", "convert", "copy" or "iota".
        read, written: bytes of global memory, each stored element once.
        flops: arithmetic operations; a multiplication and addition of a contraction are two.
    """

    operation: str
    read: int
    written: int
    flops: int


@dataclass(slots=True)
class Ledger:
    """The transfers of an evaluation, in order."""

    transfers: list[Transfer] = field(default_factory=list[Transfer])

    @property
    def read(self) -> int:
        """Bytes read by all operations together."""
        return sum(t.read for t in self.transfers)

    @property
    def written(self) -> int:
        """Bytes written by all operations together."""
        return sum(t.written for t in self.transfers)

    @property
    def flops(self) -> int:
        """Arithmetic operations of all together."""
        return sum(t.flops for t in self.transfers)


@dataclass(frozen=True, slots=True, eq=False)
class TrafficValue:
    """A tensor without content.

    Attributes:
        layout: one byte per stored element, never written, so that no memory is touched; its
            strides tell repeated elements from stored ones.
        dtype: the element type.
        resident: it lies in memory; numbers that the program spells do not.
    """

    layout: Array
    dtype: DType
    resident: bool = True

    @property
    def stored(self) -> int:
        """Distinct elements; repetitions along broadcast dimensions count once."""
        if not self.resident or self.layout.size == 0:
            return 0
        dims = zip(self.layout.shape, self.layout.strides, strict=True)
        return int(np.prod([n for n, stride in dims if stride != 0], dtype=np.int64))

    @property
    def bytes(self) -> int:
        """The bytes of the stored elements."""
        return self.stored * self.dtype.bytes


class BytesDomain:
    """Values know their shape, element type and stored elements; `ledger` collects the traffic.

    Views are free, as in eager; structural functions that copy read and write. An elementwise
    operation reads each distinct argument once, and is one operation, however long its expression.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()

    def shape(self, v: TrafficValue) -> tuple[int, ...]:
        """Return the layout's shape."""
        return tuple(v.layout.shape)

    def _made(
        self, operation: str, args: Sequence[TrafficValue], layout: Array, dtype: DType, flops: int
    ) -> TrafficValue:
        result = TrafficValue(layout, dtype)
        distinct = {(_place(a), a.layout.shape, a.layout.strides): a.bytes for a in args}
        read = sum(distinct.values())
        self.ledger.transfers.append(Transfer(operation, read, result.bytes, flops))
        return result

    def lift(self, fn: Structural, *values: TrafficValue) -> TrafficValue:
        """Count nothing where the result is a view of its one argument."""
        layout = np.asarray(fn(*(v.layout for v in values)))
        first = values[0]
        if len(values) == 1 and (layout.size == 0 or np.may_share_memory(layout, first.layout)):
            return TrafficValue(layout, first.dtype, first.resident)
        return self._made("copy", values, layout, first.dtype, 0)

    def constant(self, value: float | int | bool, dtype: DType) -> TrafficValue:
        """Return a number that is not in memory."""
        return self.full((), value, dtype)

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> TrafficValue:
        """Return a value that is not in memory."""
        del value
        return TrafficValue(np.broadcast_to(np.zeros((), np.int8), tuple(shape)), dtype, False)

    def iota(self, size: int, dtype: DType) -> TrafficValue:
        """Count one write."""
        return self._made("iota", (), _blank((size,)), dtype, 0)

    def poison(self, shape: Sequence[int], dtype: DType) -> TrafficValue:
        """Return memory, without traffic."""
        return TrafficValue(_blank(shape), dtype)

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> TrafficValue:
        """Return an input: memory, without traffic."""
        del rng
        return TrafficValue(_blank(shape), dtype)

    def equal(self, a: TrafficValue, b: TrafficValue) -> bool:
        """Compare shapes and element types."""
        return (a.layout.shape, a.dtype) == (b.layout.shape, b.dtype)

    def elementwise(self, expr: Scalar, args: Sequence[TrafficValue], dtype: DType) -> TrafficValue:
        """Count as many flops per element as the expression has operations."""
        layout = _blank(np.broadcast_shapes(*(a.layout.shape for a in args)))
        return self._made("elementwise", args, layout, dtype, layout.size * operations(expr))

    def contract(
        self,
        left: TrafficValue,
        left_axes: Sequence[int],
        right: TrafficValue,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> TrafficValue:
        """Count two flops per product."""
        flops = 0

        def matmul(a: Array, b: Array) -> Array:
            nonlocal flops
            flops = 2 * a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2]
            return _blank((a.shape[0], a.shape[1], b.shape[2]))

        layouts = (left.layout, left_axes, right.layout, right_axes)
        layout = contract_arrays(matmul, *layouts, out_axes)
        return self._made("contract", (left, right), layout, left.dtype, flops)

    def reduce(self, monoid: Monoid, v: TrafficValue, dims: Sequence[int]) -> TrafficValue:
        """Count one flop per element."""
        shape = [n for d, n in enumerate(v.layout.shape) if d not in dims]
        counted = v.dtype is DType.bool and monoid in (Monoid.sum, Monoid.prod)
        dtype = DType.int64 if counted else v.dtype
        return self._made("reduce", (v,), _blank(shape), dtype, v.layout.size)

    def ranked(
        self, v: TrafficValue, numbers: TrafficValue, count: int, order: Order
    ) -> tuple[TrafficValue, TrafficValue]:
        """Count one flop per element; the elements' numbers are not read, the values and their places are written."""
        del numbers, order
        values = TrafficValue(_blank((*v.layout.shape[:-1], count)), v.dtype)
        places = self._made("rank", (v,), _blank(values.layout.shape), DType.int64, v.layout.size)
        last = self.ledger.transfers[-1]
        self.ledger.transfers[-1] = replace(last, written=last.written + values.bytes)
        return values, places

    def convert(self, v: TrafficValue, dtype: DType, semantic: bool) -> TrafficValue:
        """Count nothing where nothing changes."""
        del semantic
        if v.dtype is dtype:
            return v
        return self._made("convert", (v,), _blank(v.layout.shape), dtype, 0)


def traffic(program: TensorProgram, sizes: Mapping[str, int]) -> Ledger:
    """Count what `program` moves and computes where every operation runs by itself: the unfused figure.

    Args:
        program: without opaque operations.
        sizes: by space name, of every space that is not fixed and does not follow.

    Raises:
        UnsupportedError: there is an opaque operation.
    """
    domain = BytesDomain()
    every = program.sizes(sizes)
    rng = np.random.default_rng(0)
    inputs = {i.name: domain.random([a.space.size(every) for a in i.axes], i.dtype, rng) for i in program.inputs}
    evaluate(program, inputs, domain, sizes=every)
    return domain.ledger


def _blank(shape: Sequence[int]) -> Array:
    """Return address space of that shape; memory that is never read or written is never given."""
    return np.zeros(tuple(shape), np.int8)


def _place(v: TrafficValue) -> int:
    return int(v.layout.__array_interface__["data"][0])
