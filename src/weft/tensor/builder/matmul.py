"""Matmuls of every rank, each as one contraction.

What eager refuses does not come here: PyTorch has run the call on tensors without data before it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Axis, present
from weft.tensor.builder.base import Base, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Contraction
from weft.tensor.scalar import Arg, Lit, Number, Scalar, apply


class Matmuls(Base):
    """The methods that make contractions."""

    def matmul(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch.matmul does: 1-D, 2-D or batched with broadcasting."""
        return self._rounded(self._matmul(a, b, location), a.dtype, location)

    def int_mm(self, a: Ref, b: Ref, location: Location | None = None) -> Ref:
        """Multiplies as torch._int_mm does: 2-D, of bytes, with int32 sums, which wrap."""
        return self._rounded(self._matmul(a, b, location), DType.int32, location)

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
        """Computes beta * bias + alpha * (a @ b), of any rank; rounded once.

        beta = 0 ignores bias, NaN and all.
        """
        # The matmul comes first, so that the result runs over its axes.
        refs = (self._matmul(a, b, location),)
        expr: Scalar = Arg(0) if alpha == 1 else apply("mul", Lit(alpha), Arg(0))
        if beta != 0:
            term: Scalar = Arg(1) if beta == 1 else apply("mul", Lit(beta), Arg(1))
            expr, refs = apply("add", term, expr), (*refs, bias)
        made = self._pointwise(expr, refs, refs[0].dtype, location)
        return self._rounded(made, bias.dtype, location)

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
        return self._rounded(self._product(a, b, labels, kept, location), a.dtype, location)

    def _matmul(self, a: Ref, b: Ref, location: Location | None) -> Ref:
        """Computes a @ b, not rounded."""
        summed = (replace(a, dims=a.dims[-1:]), replace(b, dims=b.dims[-2:][:1]))
        if any(map(self.merges, summed)) or any(
            self.merges(replace(r, dims=r.dims[-2:])) and self._expanded(r) for r in (a, b)
        ):
            raise UnsupportedError("a matmul over merged dimensions", where=location)
        last = (["m", "k"][-len(a.dims) :], ["k", "n"][: len(b.dims)])
        batch = [str(i) for i in reversed(range(max(len(a.dims), len(b.dims)) - 2))]
        labels = tuple(
            [*batch[len(batch) + len(own) - len(r.dims) :], *own] for r, own in zip((a, b), last, strict=True)
        )
        kept = [*batch, *(n for own in last for n in own if n != "k")]
        return self._product(a, b, (labels[0], labels[1]), kept, location)

    def _product(
        self,
        a: Ref,
        b: Ref,
        labels: tuple[Sequence[str], Sequence[str]],
        kept: Sequence[str],
        location: Location | None,
    ) -> Ref:
        """Contracts as `contract` does, without rounding."""
        if a.dtype is not b.dtype:
            raise ShapeError(f"expected both to have the same dtype, but got: {a.dtype} != {b.dtype}", where=location)
        every = list(dict.fromkeys((*labels[0], *labels[1])))
        places = [[own.index(n) if n in own else None for own in labels] for n in every]
        refs, models = self._aligned((a, b), places, location)
        merged = dict(zip(every, models, strict=True))
        if any(models):
            apart = [self._apart(own, merged) for own in (*labels, kept)]
            made = self._product(refs[0], refs[1], (apart[0], apart[1]), apart[2], location)
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
        return self._contracted((a, b), bound, dims, over, location)

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
