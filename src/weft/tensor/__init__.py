"""The tensor program: what the user wrote, over named axes.

In: nothing; capture builds the forms. Out: spaces and axes, scalar expressions, the operation
table (`optable`), the tensor program with its checker, the one evaluator, and the value domains
it runs over: numbers (`Fp64Domain`), field elements (`FieldDomain`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.tensor.axes import Affine, Axis, Space
    from weft.tensor.domain import Domain
    from weft.tensor.dtypes import DType
    from weft.tensor.evaluate import evaluate, returned
    from weft.tensor.field import FieldDomain
    from weft.tensor.fp64 import Fp64Domain
    from weft.tensor.program import TensorProgram
    from weft.tensor.scalar import Scalar
    from weft.tensor.wellformed import well_formed

__all__ = [
    "Affine",
    "Axis",
    "DType",
    "Domain",
    "FieldDomain",
    "Fp64Domain",
    "Scalar",
    "Space",
    "TensorProgram",
    "evaluate",
    "returned",
    "well_formed",
]

export_lazily(__name__)
