"""ATen calls that multiply matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from weft.capture.arguments import Arguments, Handler
from weft.capture.elementwise import integral
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Number, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Lit


def _factor(a: Arguments, name: str) -> Ref:
    ref = a.ref(name)
    if ref.dtype is DType.bool:
        raise UnsupportedError("weft does not compute matmuls of bool tensors")
    return ref


def _scale(a: Arguments, name: str) -> Number:
    """Reads a factor of a sum of products; PyTorch truncates those of integers.

    Raises:
        UnsupportedError: the integer type does not have the number.
    """
    value = a.number(name)
    if a.dtype.is_float:
        return value
    whole = integral(Lit(value), a.dtype, wraps=False)
    assert isinstance(whole, Lit)
    return whole.value


def _matmul(b: Builder, a: Arguments) -> Ref:
    return b.matmul(_factor(a, a.names[0]), _factor(a, a.names[1]), a.location)


def _linear(b: Builder, a: Arguments) -> Ref:
    return b.linear(_factor(a, "input"), _factor(a, "weight"), a.maybe_ref("bias"), a.location)


def _addmm(b: Builder, a: Arguments) -> Ref:
    left, right = (_factor(a, name) for name in a.names[1:3])
    return b.addmm(a.ref("self"), left, right, _scale(a, "beta"), _scale(a, "alpha"), a.location)


def _einsum(b: Builder, a: Arguments) -> Ref:
    """Contracts pairwise from the left; what only one operand has, and nobody wants, is summed first."""
    refs = list(a.refs("tensors"))
    if not all(ref.dtype.is_float for ref in refs):
        raise UnsupportedError("weft computes it only for floating-point tensors")
    labels, kept = _subscripts(a.plain("equation"), [len(ref.dims) for ref in refs])
    ref, own = refs[0], labels[0]
    for place in range(1, len(refs)):
        later = {*kept, *chain.from_iterable(labels[place + 1 :])}
        other, others = refs[place], labels[place]
        ref, own = _summed(b, a, ref, own, {*later, *_present(other, others)})
        other, others = _summed(b, a, other, others, {*later, *_present(ref, own)})
        wanted = [n for n in dict.fromkeys((*own, *others)) if n in later]
        ref, own = b.contract(ref, other, (own, others), wanted, a.location), wanted
    ref, own = _summed(b, a, ref, own, set(kept))
    return b.permute(ref, [own.index(n) for n in kept])


def _present(ref: Ref, labels: Sequence[str]) -> list[str]:
    """Lists the labels of dimensions that are not of size 1."""
    return [n for n, axis in zip(labels, ref.dims, strict=True) if axis is not None]


def _summed(b: Builder, a: Arguments, ref: Ref, labels: list[str], kept: set[str]) -> tuple[Ref, list[str]]:
    """Sums `ref` over the dimensions whose labels are not among those `kept`; returned with the other labels."""
    gone = [i for i, n in enumerate(labels) if n not in kept]
    made = b.reduce(Monoid.sum, ref, gone, False, None, a.location) if gone else ref
    return made, [n for n in labels if n in kept]


def _subscripts(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Reads the labels of each operand's dimensions, and of the result's; those of an ellipsis are numbers, aligned on the right.

    Raises:
        UnsupportedError: a label is twice in one operand: a diagonal.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [max(rank - len(term.replace("...", "")), 0) for term, rank in zip(terms, ranks, strict=True)]

    def spelled(term: str, count: int) -> list[str]:
        before, dots, after = term.partition("...")
        numbers = [str(n) for n in reversed(range(count))] if dots else []
        return [*before, *numbers, *after]

    labels = [spelled(term, count) for term, count in zip(terms, hidden, strict=True)]
    widest = max(hidden) if "..." in left else 0
    every = [*chain.from_iterable(labels)]
    if arrow:
        kept = spelled(right, widest)
    else:
        kept = [
            *(str(n) for n in reversed(range(widest))),
            *sorted(n for n in set(every) if every.count(n) == 1 and n.isalpha()),
        ]
    if any(len(set(own)) != len(own) for own in labels):
        raise UnsupportedError("it takes a diagonal: an operand has the same index twice")
    return labels, kept


MATMULS: dict[str, Handler] = {
    "aten._int_mm": lambda b, a: b.int_mm(a.ref("self"), a.ref("mat2"), a.location),
    "aten.addmm": _addmm,
    "aten.baddbmm": _addmm,
    "aten.bmm": _matmul,
    "aten.dot": _matmul,
    "aten.einsum": _einsum,
    "aten.linear": _linear,
    "aten.matmul": _matmul,
    "aten.mm": _matmul,
    "aten.mv": _matmul,
}
