"""Scalar expressions: the body of an elementwise operation, small, frozen and never reordered.

SymPy sees them only in the rooms that do algebra, because it reorders floating-point arithmetic (design.md, decision 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Arg:
    """The current element of the operation's argument number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Lit:
    """A number that stands in the program: a Python float, int or bool."""

    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Apply:
    """A row of the operation table applied to sub-expressions; `op` is the row's name."""

    op: str
    args: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Convert:
    """A semantic cast inside an expression: rounds to `dtype`. Precision casts never get here, they are dropped."""

    dtype: DType
    arg: Scalar


Scalar: TypeAlias = Arg | Lit | Apply | Convert


def apply(op: str, *args: Scalar) -> Apply:
    """Makes an `Apply` with its arguments spelled out."""
    return Apply(op, args)


def substitute(expr: Scalar, arg: Callable[[int], Scalar], lit: Callable[[Lit], Scalar] | None = None) -> Scalar:
    """Returns `expr` with every `Arg(i)` replaced by `arg(i)`, and every number by `lit` of it if that is given."""
    match expr:
        case Arg(index):
            return arg(index)
        case Lit():
            return expr if lit is None else lit(expr)
        case Apply(op, args):
            return Apply(op, tuple(substitute(a, arg, lit) for a in args))
        case Convert(dtype, inner):
            return Convert(dtype, substitute(inner, arg, lit))
        case _:
            assert_never(expr)


def arguments(expr: Scalar) -> frozenset[int]:
    """Returns the indices of the arguments that `expr` reads."""
    match expr:
        case Arg(index):
            return frozenset((index,))
        case Lit():
            return frozenset()
        case Apply(_, args):
            return frozenset[int]().union(*(arguments(a) for a in args))
        case Convert(_, inner):
            return arguments(inner)
        case _:
            assert_never(expr)


def occurrences(expr: Scalar) -> tuple[int, ...]:
    """Returns the indices of the arguments that `expr` reads, each as often as it is read."""
    match expr:
        case Arg(index):
            return (index,)
        case Lit():
            return ()
        case Apply(_, args):
            return tuple(i for a in args for i in occurrences(a))
        case Convert(_, inner):
            return occurrences(inner)
        case _:
            assert_never(expr)


def operations(expr: Scalar) -> int:
    """Counts the table operations that one evaluation of `expr` performs (casts count as one)."""
    match expr:
        case Arg() | Lit():
            return 0
        case Apply(_, args):
            return 1 + sum(operations(a) for a in args)
        case Convert(_, inner):
            return 1 + operations(inner)
        case _:
            assert_never(expr)


def operation_count(expr: Scalar, op: str) -> int:
    """Counts how many times `expr` applies the row `op` of the table."""
    match expr:
        case Arg() | Lit():
            return 0
        case Apply(name, args):
            return (name == op) + sum(operation_count(a, op) for a in args)
        case Convert(_, inner):
            return operation_count(inner, op)
        case _:
            assert_never(expr)


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}


def show(expr: Scalar, names: tuple[str, ...]) -> str:
    """Writes `expr` as text, its arguments called `names`, in the style of the paper's listings."""
    match expr:
        case Arg(index):
            return names[index]
        case Lit(value):
            return repr(value)
        case Apply(op, (left, right)) if op in _INFIX:
            return f"({show(left, names)} {_INFIX[op]} {show(right, names)})"
        case Apply("neg", (inner,)):
            return f"(-{show(inner, names)})"
        case Apply(op, args):
            return f"{op}({', '.join(show(a, names) for a in args)})"
        case Convert(dtype, inner):
            return f"{dtype}({show(inner, names)})"
        case _:
            assert_never(expr)
