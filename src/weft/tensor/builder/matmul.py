"""Matmuls of every rank, each as one contraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.builder.base import Base, Ref, present
from weft.tensor.builder.promote import Number
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Contraction,
)
from weft.tensor.scalar import Arg, Lit, Scalar, apply


class Matmuls(Base):
    """The methods that make contractions."""

    def matmul(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch.matmul does: 1-D, 2-D or batched with broadcasting."""
        return self._rounded(self._matmul(a, b, location), a.dtype, location)

    def mm(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch.mm does: 2-D only."""
        return self.matmul(self._ranked(a, 2, "self"), self._ranked(b, 2, "mat2"), location)

    def int_mm(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch._int_mm does: 2-D, of bytes, with int32 sums, which wrap."""
        made = self._matmul(self._ranked(a, 2, "self"), self._ranked(b, 2, "mat2"), location)
        return self._rounded(made, DType.int32, location)

    def bmm(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch.bmm does: 3-D only, equal batches."""
        self._batched(a, b, location)
        return self.matmul(a, b, location)

    def linear(self, x: Ref, weight: Ref, bias: Ref | None = None, location: Location | None = None) -> Ref:
        """Multiplies x [..., K] by the transpose of weight [N, K] (or [K]) and adds bias [N]; rounded once."""
        turned = replace(weight, dims=weight.dims[::-1])
        matmul = self._matmul(x, turned, location)
        if bias is not None:
            expr = apply("add", Arg(0), Arg(1))
            matmul = self._pointwise(expr, (matmul, bias), matmul.dtype, location)
        return self._rounded(matmul, x.dtype, location)

    def addmm(
        self,
        bias: Ref,
        a: Ref,
        b: Ref,
        beta: Number = 1,
        alpha: Number = 1,
        location: Location | None = None,
    ) -> Ref:
        """Computes beta * bias + alpha * (a @ b) for 2-D a and b; rounded once.

        beta = 0 ignores bias, NaN and all.
        """
        a, b = self._ranked(a, 2, "mat1"), self._ranked(b, 2, "mat2")
        return self._scaled(bias, self._matmul(a, b, location), beta, alpha, location)

    def baddbmm(
        self,
        bias: Ref,
        a: Ref,
        b: Ref,
        beta: Number = 1,
        alpha: Number = 1,
        location: Location | None = None,
    ) -> Ref:
        """Computes beta * bias + alpha * (a @ b) for 3-D a and b; rounded once.

        beta = 0 ignores bias, NaN and all.
        """
        self._batched(a, b, location)
        return self._scaled(bias, self._matmul(a, b, location), beta, alpha, location)

    def contract(
        self,
        a: Ref,
        b: Ref,
        labels: tuple[Sequence[str], Sequence[str]],
        kept: Sequence[str],
        location: Location | None = None,
    ) -> Ref:
        """Multiplies `a` and `b`, whose dimensions have `labels`, and sums over all labels but those `kept`: an einsum.

        Labels are distinct within an operand; one that is not kept is in both. A dimension of size 1 fits any other. Rounded.

        Raises:
            ShapeError: dimensions of one label differ in size, or the dtypes do.
        """
        if a.dtype is not b.dtype:
            raise ShapeError(f"expected both to have the same dtype, but got: {a.dtype} != {b.dtype}", where=location)
        every = list(dict.fromkeys((*labels[0], *labels[1])))
        places = [[own.index(n) if n in own else None for own in labels] for n in every]
        refs, models = self._aligned((a, b), places, location)
        merged = dict(zip(every, models, strict=True))
        if any(models):
            apart = [self._apart(own, merged) for own in (*labels, kept)]
            made = self.contract(refs[0], refs[1], (apart[0], apart[1]), apart[2], location)
            return replace(made, dims=self._merged(made.dims, [merged[n] for n in kept]))
        sides = [
            {n: d for n, d in zip(own, r.dims, strict=True) if d is not None}
            for r, own in zip((a, b), labels, strict=True)
        ]
        bound: list[dict[Axis, Axis]] = [{}, {}]
        taken = set[Axis]()

        def shared(label: str) -> Axis | None:
            own: Axis | None = None
            for side, binding in zip(sides, bound, strict=True):
                axis = side.get(label)
                if axis is not None:
                    own = self._free(axis, taken) if own is None else own
                    self._demand(own, axis, 0, location)
                    binding[axis] = own
            return own

        dims = tuple(shared(label) for label in kept)
        summed = [shared(label) for label in dict.fromkeys((*labels[0], *labels[1])) if label not in kept]
        over = present(summed)
        return self._rounded(self._contracted((a, b), bound, dims, over, location), a.dtype, location)

    def _apart(self, labels: Sequence[str], merged: Mapping[str, Axis | None]) -> list[str]:
        """Returns the labels of dimensions after `_aligned` has split those that are `merged`."""
        counts = {n: 1 if axis is None else len(self._atoms([axis])) for n, axis in merged.items()}
        return [n if counts[n] == 1 else f"{n}.{i}" for n in labels for i in range(counts[n])]

    def _contracted(
        self,
        refs: tuple[Ref, Ref],
        bound: Sequence[dict[Axis, Axis]],
        dims: tuple[Axis | None, ...],
        over: tuple[Axis, ...],
        location: Location | None,
    ) -> Ref:
        """Sums the product of `refs`, their axes `bound`, over `over`; the result has `dims` and is not rounded."""
        axes, dtype = present(dims), refs[0].dtype.accumulator
        if not over:
            back = [{new: old for old, new in own.items()} for own in bound]
            moved = [
                replace(r, dims=tuple(None if d is None else own.get(d) for d in dims))
                for r, own in zip(refs, back, strict=True)
            ]
            return self._pointwise(apply("mul", Arg(0), Arg(1)), moved, dtype, location)
        uses = (self._use(refs[0], bound[0]), self._use(refs[1], bound[1]))
        read = [set(u.axes) for u in uses]
        if not set(axes) <= read[0] | read[1] or not set(over) <= read[0] & read[1]:
            return self._contracted((self.dense(refs[0]), self.dense(refs[1])), bound, dims, over, location)
        node = Contraction(self._name(), axes, dtype, *uses, over, location)
        return replace(self._add(node), dims=dims)

    def _matmul(self, a: Ref, b: Ref, location: Location | None) -> Ref:
        """Computes a @ b, not rounded."""
        self._check_matmul(a, b, location)
        a, b, models = self._batches(a, b, location)
        left, right, taken = dict[Axis, Axis](), dict[Axis, Axis](), set[Axis]()
        dims = self._broadcast([a.dims[:-2], b.dims[:-2]], [left, right], taken, location)
        column = b.dims[-1:] if len(b.dims) > 1 else ()
        for free, bound in ((a.dims[-2:-1], left), (column, right)):
            for axis in free:
                own = None if axis is None else self._free(axis, taken)
                dims.append(own)
                if axis is not None and own is not None:
                    bound[axis] = own
        inner, other = a.dims[-1], _inner(b)
        dtype = a.dtype.accumulator
        if inner is None or other is None:
            made = self._outer(a, b, location)
            return replace(made, dims=self._merged(made.dims, models))
        over = left[inner] = right[other] = self._free(inner, taken)
        uses = (self._use(a, left), self._use(b, right))
        operands = [set(u.axes) for u in uses]
        axes = present(dims)
        if not set(axes) <= operands[0] | operands[1] or over not in operands[0] & operands[1]:
            made = self._matmul(self.dense(a), self.dense(b), location)
            return replace(made, dims=self._merged(made.dims, models))
        node = Contraction(self._name(), axes, dtype, *uses, (over,), location)
        return replace(self._add(node), dims=self._merged(dims, models))

    def _batches(self, a: Ref, b: Ref, location: Location | None) -> tuple[Ref, Ref, list[Axis | None]]:
        """Returns the factors of a matmul without merged dimensions, and which dimensions of the result were merged.

        Raises:
            UnsupportedError: a dimension is merged that is none of the batch.
        """
        if any(self.merges(replace(r, dims=r.dims[-2:])) for r in (a, b)):
            raise UnsupportedError("a matmul over merged dimensions", where=location)
        sides = [(r, r.dims[-2:]) for r in (a, b)]
        rank = max(len(r.dims) - len(rest) for r, rest in sides)
        places = [
            [d if (d := place - rank + len(r.dims) - len(rest)) >= 0 else None for r, rest in sides]
            for place in range(rank)
        ]
        found, models = self._aligned([replace(r, dims=r.dims[:-2]) for r in (a, b)], places, location)
        wide = [replace(r, dims=(*r.dims, *rest)) for r, (_, rest) in zip(found, sides, strict=True)]
        free = len(a.dims[-2:-1]) + len(b.dims[-1:] if len(b.dims) > 1 else ())
        return wide[0], wide[1], [*models, *[None] * free]

    def _outer(self, a: Ref, b: Ref, location: Location | None) -> Ref:
        """Computes a @ b where the inner dimension has size 1: there is nothing to sum."""
        if len(b.dims) == 1:
            a, b = replace(a, dims=a.dims[:-1]), replace(b, dims=())
        elif len(a.dims) == 1:
            a, b = replace(a, dims=()), replace(b, dims=(*b.dims[:-2], *b.dims[-1:]))
        return self._pointwise(apply("mul", Arg(0), Arg(1)), (a, b), a.dtype.accumulator, location)

    def _check_matmul(self, a: Ref, b: Ref, location: Location | None) -> None:
        """Raises what eager's matmul raises; unifies the inner dimensions."""
        if not a.dims or not b.dims:
            ranks = f"{len(a.dims)}D and {len(b.dims)}D"
            raise ShapeError(
                f"both arguments to matmul need to be at least 1D, but they are {ranks}",
                where=location,
            )
        if a.dtype is not b.dtype:
            raise ShapeError(
                f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}",
                where=location,
                todo="convert one of the two, for instance by .to(other.dtype)",
            )
        if a.dtype is DType.bool:
            raise ShapeError("\"addmm_impl_cpu_\" not implemented for 'Bool'", where=location)
        inner, other = a.dims[-1], _inner(b)
        if inner is None and other is None:
            return
        if inner is None or other is None or not self._spaces.unify(inner.space, other.space):
            raise ShapeError(_matmul_message(self.shape(a), self.shape(b)), where=location)

    def _scaled(self, bias: Ref, matmul: Ref, beta: Number, alpha: Number, location: Location | None) -> Ref:
        # The matmul comes first, so that the result runs over its axes.
        dtype = bias.dtype
        expr: Scalar = Arg(0) if alpha == 1 else apply("mul", Lit(alpha), Arg(0))
        refs = (matmul,)
        if beta != 0:
            term: Scalar = Arg(1) if beta == 1 else apply("mul", Lit(beta), Arg(1))
            expr, refs = apply("add", term, expr), (matmul, bias)
        made = self._pointwise(expr, refs, matmul.dtype, location)
        return self._rounded(made, dtype, location)

    def _batched(self, a: Ref, b: Ref, location: Location | None) -> None:
        a, b = self._ranked(a, 3, "batch1"), self._ranked(b, 3, "batch2")
        (n, _, k), (n2, k2, _) = self.shape(a), self.shape(b)
        if (n, k) != (n2, k2):
            raise ShapeError(
                f"Expected size for first two dimensions of batch2 tensor to be: [{n}, {k}] but got: [{n2}, {k2}].",
                where=location,
            )

    def _ranked(self, ref: Ref, rank: int, what: str) -> Ref:
        if len(ref.dims) != rank:
            raise ShapeError(f"{what} must be a {rank}D tensor, but it is {len(ref.dims)}D")
        return ref


def _matmul_message(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Returns the message of eager's matmul for shapes whose inner sizes differ."""
    if len(a) == len(b) == 1:
        return (
            f"inconsistent tensor size, expected tensor [{a[0]}] and src [{b[0]}] to have the same"
            f" number of elements, but got {a[0]} and {b[0]} elements respectively"
        )
    if len(b) == 1:
        return f"size mismatch, got input ({prod(a[:-1])}), mat ({prod(a[:-1])}x{a[-1]}), vec ({b[0]})"
    if len(b) == 2:
        rows = prod(a[:-1])
        return f"mat1 and mat2 shapes cannot be multiplied ({rows}x{a[-1]} and {b[0]}x{b[1]})"
    batch = prod(b[:-2])
    return (
        f"Expected size for first two dimensions of batch2 tensor to be: [{batch}, {a[-1]}] but"
        f" got: [{batch}, {b[-2]}]."
    )


def _inner(right: Ref) -> Axis | None:
    """Returns the dimension of a matmul's right operand that is summed over."""
    return right.dims[max(len(right.dims) - 2, 0)]
