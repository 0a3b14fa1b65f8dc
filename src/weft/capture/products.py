"""Matrix products."""

from __future__ import annotations

from weft.capture.arguments import Arguments, Handler
from weft.capture.elementwise import integral
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Number, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Lit


def _factor(a: Arguments, name: str) -> Ref:
    ref = a.ref(name)
    if ref.dtype is DType.bool:
        raise UnsupportedError("a product of masks")
    return ref


def _scale(a: Arguments, name: str) -> Number:
    """A factor of a sum of products; PyTorch truncates those of integers.

    Raises:
        UnsupportedError: the integer type does not have the number.
    """
    value = a.number(name)
    if a.dtype.is_float:
        return value
    whole = integral(Lit(value), a.dtype, wraps=False)
    assert isinstance(whole, Lit)
    return whole.value


def _mm(b: Builder, a: Arguments) -> Ref:
    return b.mm(_factor(a, "self"), _factor(a, "mat2"), a.location)


def _bmm(b: Builder, a: Arguments) -> Ref:
    return b.bmm(_factor(a, "self"), _factor(a, "mat2"), a.location)


def _matmul(b: Builder, a: Arguments) -> Ref:
    other = next(name for name in ("other", "vec", "tensor") if name in a.names)
    return b.matmul(_factor(a, "self"), _factor(a, other), a.location)


def _linear(b: Builder, a: Arguments) -> Ref:
    return b.linear(_factor(a, "input"), _factor(a, "weight"), a.maybe_ref("bias"), a.location)


def _addmm(b: Builder, a: Arguments) -> Ref:
    left, right = _factor(a, "mat1"), _factor(a, "mat2")
    return b.addmm(a.ref("self"), left, right, _scale(a, "beta"), _scale(a, "alpha"), a.location)


def _baddbmm(b: Builder, a: Arguments) -> Ref:
    left, right = _factor(a, "batch1"), _factor(a, "batch2")
    return b.baddbmm(a.ref("self"), left, right, _scale(a, "beta"), _scale(a, "alpha"), a.location)


PRODUCTS: dict[str, Handler] = {
    "aten.addmm": _addmm,
    "aten.baddbmm": _baddbmm,
    "aten.bmm": _bmm,
    "aten.dot": _matmul,
    "aten.linear": _linear,
    "aten.matmul": _matmul,
    "aten.mm": _mm,
    "aten.mv": _matmul,
}
