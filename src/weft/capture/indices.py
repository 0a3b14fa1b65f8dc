"""Operations that keep some elements by where they are: comparisons of the indices themselves."""

from __future__ import annotations

import torch

from weft.capture.arguments import Arguments, Handler
from weft.capture.numbers import computed
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply


def _triangle(keeps: str) -> Handler:
    """Keeps the elements for which `column - row` compares so with the diagonal's number; elsewhere 0."""

    def triangle(b: Builder, a: Arguments) -> Ref:
        x, diagonal = a.ref("self"), a.plain("diagonal")
        if len(x.dims) < 2:
            raise UnsupportedError("of a tensor with fewer than two dimensions")
        rows = b.unsqueeze(b.iota(x.dims[-2] or 1), 1)
        columns = b.iota(x.dims[-1] or 1)
        refs = [columns, rows, x]
        if isinstance(diagonal, torch.SymInt):
            refs.append(computed(b, a, diagonal, DType.int64))
            bound: Scalar = apply("add", Arg(1), Arg(3))
        else:
            bound = Arg(1) if diagonal == 0 else apply("add", Arg(1), Lit(diagonal))
        kept = apply(keeps, Arg(0), bound)
        nothing = {"float": 0.0, "bool": False, "int": 0}[x.dtype.kind]
        expr = apply("where", kept, Arg(2), Lit(nothing))
        return b.elementwise(expr, refs, x.dtype, a.location)

    return triangle


INDICES: dict[str, Handler] = {"aten.tril": _triangle("le"), "aten.triu": _triangle("ge")}
