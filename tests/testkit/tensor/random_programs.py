"""Random tensor programs, made beside eager's own results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import assume
from hypothesis import strategies as st

from testkit.tensor.forms import ADD
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_UNARY: list[tuple[Scalar, Callable[[torch.Tensor], torch.Tensor]]] = [
    (apply("neg", Arg(0)), torch.neg),
    (apply("mul", Arg(0), Lit(0.5)), lambda x: x * 0.5),
    (apply("maximum", Arg(0), Lit(0.0)), torch.relu),
]
_BINARY: list[tuple[Scalar, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    (ADD, torch.add),
    (apply("sub", Arg(0), Arg(1)), torch.sub),
    (apply("mul", Arg(0), Arg(1)), torch.mul),
    (
        apply("where", apply("lt", Arg(0), Arg(1)), Arg(0), apply("neg", Arg(1))),
        lambda x, y: torch.where(x < y, x, -y),
    ),
]
_REDUCTIONS = [(Monoid.sum, torch.sum), (Monoid.max, torch.amax), (Monoid.min, torch.amin)]

Pair = tuple[Ref, torch.Tensor]


class Writer:
    """Draws operations, and performs each twice: on the builder, and in PyTorch in fp64.

    Attributes:
        inputs: the program's, by name.
        made: the values so far.
    """

    def __init__(self, data: st.DataObject, dtype: DType) -> None:
        self.data, self.dtype, self.builder = data, dtype, Builder()
        self.inputs: dict[str, torch.Tensor] = {}
        self.made: list[Pair] = []
        self.generator = torch.Generator().manual_seed(0)
        for i in range(data.draw(st.integers(1, 3))):
            shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 3)), min_size=1, max_size=3))
            value = torch.randn(shape, dtype=torch.float64, generator=self.generator)
            self.inputs[f"in{i}"] = value
            self.made.append((self.builder.input(f"in{i}", shape, dtype), value))

    def operand(self) -> Pair:
        return self.data.draw(st.sampled_from(self.made))

    def dim(self, value: torch.Tensor) -> int:
        return self.data.draw(st.integers(0, value.ndim - 1))

    def write(self) -> None:
        kinds = [self.unary, self.binary, self.product, self.reduction, self.view, self.slicing]
        made = self.data.draw(st.sampled_from([*kinds, self.slicing, self.counting]))()
        if made is not None:
            ref, value = made
            assert self.builder.shape(ref) == tuple(value.shape)
            assert ref.dtype is self.dtype
            self.made.append(made)

    def unary(self) -> Pair:
        (ref, value), (expr, eager) = self.operand(), self.data.draw(st.sampled_from(_UNARY))
        return self.builder.elementwise(expr, [ref]), eager(value)

    def both(self, ours: Callable[[], Ref], eager: Callable[[], torch.Tensor]) -> Pair | None:
        """None where eager refuses: the builder is not asked then."""
        try:
            value = eager()
        except RuntimeError:
            return None
        return ours(), value

    def binary(self) -> Pair | None:
        (a, x), (b, y) = self.operand(), self.operand()
        expr, eager = self.data.draw(st.sampled_from(_BINARY))
        return self.both(lambda: self.builder.elementwise(expr, [a, b]), lambda: eager(x, y))

    def product(self) -> Pair | None:
        (a, x), (b, y) = self.operand(), self.operand()
        if y.ndim > 1 and self.data.draw(st.booleans()):
            b, y = self.builder.transpose(b, -1, -2), y.transpose(-1, -2)
        return self.both(lambda: self.builder.matmul(a, b), lambda: x @ y)

    def reduction(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim == 0 or 0 in value.shape:
            return None
        dims = sorted({self.dim(value), self.dim(value)})
        keep = self.data.draw(st.booleans())
        if self.data.draw(st.integers(0, 3)) == 0:
            return self.builder.mean(ref, dims, keep), value.mean(dims, keep)
        monoid, eager = self.data.draw(st.sampled_from(_REDUCTIONS))
        return self.builder.reduce(monoid, ref, dims, keep), eager(value, dims, keep)

    def view(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim in (0, 4):
            return None
        kind = self.data.draw(st.sampled_from(("permute", "unsqueeze", "squeeze", "expand")))
        if kind == "permute":
            order = self.data.draw(st.permutations(range(value.ndim)))
            return self.builder.permute(ref, order), value.permute(order)
        if kind == "expand":
            sizes = [2, *([-1] * value.ndim)]
            return self.builder.expand(ref, sizes), value.expand(sizes)
        dim = self.dim(value)
        if kind == "unsqueeze":
            return self.builder.unsqueeze(ref, dim), value.unsqueeze(dim)
        return self.builder.squeeze(ref), value.squeeze()

    def slicing(self) -> Pair | None:
        ref, value = self.operand()
        if value.ndim == 0:
            return None
        dim = self.dim(value)
        size = value.shape[dim]
        kind = self.data.draw(st.sampled_from(("slice", "slice", "flip", "select")))
        if kind == "flip":
            return self.builder.flip(ref, [dim]), value.flip(dim)
        if size < 2:
            return None
        if kind == "select":
            index = self.data.draw(st.integers(-size, size - 1))
            return self.builder.select(ref, dim, index), value.select(dim, index)
        bounds = st.none() | st.integers(-size, size)
        start, stop = self.data.draw(bounds), self.data.draw(bounds)
        step = self.data.draw(st.sampled_from((1, 1, 2)))
        index = (*([slice(None)] * dim), slice(start, stop, step))
        return self.builder.slice(ref, dim, start, stop, step), value[index]

    def counting(self) -> Pair | None:
        ref, value = self.operand()
        axis = ref.dims[-1] if ref.dims else None
        if axis is None:
            return None
        iota = self.builder.iota(axis, self.dtype)
        place = torch.arange(value.shape[-1], dtype=torch.float64)
        return self.builder.elementwise(ADD, [ref, iota]), value + place

    def finish(self) -> tuple[TensorProgram, list[torch.Tensor]]:
        fresh = self.made[len(self.inputs) :]
        assume(fresh)
        outputs = self.data.draw(st.lists(st.sampled_from(fresh), min_size=1, max_size=3))
        return self.builder.finish([r for r, _ in outputs]), [v for _, v in outputs]


def write(data: st.DataObject, dtype: DType) -> tuple[Writer, TensorProgram, list[torch.Tensor]]:
    """Draws a program of up to eight operations; returns its writer, the program, and what eager computes."""
    writer = Writer(data, dtype)
    for _ in range(data.draw(st.integers(1, 8))):
        writer.write()
    return writer, *writer.finish()
