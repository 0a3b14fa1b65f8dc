"""Scalar expressions: the body of an elementwise operation, small, frozen and never reordered.

SymPy sees them only in the rooms that do algebra, because it reorders floating-point
arithmetic (docs/decisions/0028-columns-of-the-operation-table.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, TypeVar, assert_never

from weft.tensor.dtypes import DType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arg:
    """The current element of the operation's argument number `index`."""

    index: int


Number: TypeAlias = float | int | bool


def exactly_equal(one: object, other: object) -> bool:
    """Tell whether programs cannot tell two values apart: 0.0 is not -0.0, 1 is neither 1.0 nor True, and NaN is NaN."""
    return _exact(one) == _exact(other)


def _exact(value: object) -> tuple[type, object]:
    return value.__class__, repr(value) if isinstance(value, float) else value


class ExactNumbers:
    """Mix-in for frozen dataclasses with numbers, declared with `eq=False`: equal where all fields are `exactly_equal`."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def __eq__(self, other: object) -> bool:
        """Compare classes and fields."""
        if self.__class__ is not other.__class__:
            return False
        for name in self.__match_args__:
            own, another = getattr(self, name), getattr(other, name)
            if own is not another and not exactly_equal(own, another):
                return False
        return True

    def __hash__(self) -> int:
        """Return the hash of all fields."""
        return hash(tuple([_exact(getattr(self, name)) for name in self.__match_args__]))


@dataclass(frozen=True, slots=True, eq=False)
class Lit(ExactNumbers):
    """A number that stands in the program."""

    value: Number


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


def is_zero(expr: Scalar) -> bool:
    """Tell whether `expr` is the number 0, of either sign."""
    return isinstance(expr, Lit) and expr.value == 0


class ArgumentTable(list[T]):
    """What an expression in the making reads, each once."""

    def arg(self, what: T) -> Arg:
        """Returns the argument that stands for `what`; where that is new, it comes after all others."""
        if what not in self:
            self.append(what)
        return Arg(self.index(what))


def operands(expr: Scalar) -> tuple[Scalar, ...]:
    """Returns what `expr` is applied to; nothing for an argument or a number."""
    if isinstance(expr, Apply):
        return expr.args
    return (expr.arg,) if isinstance(expr, Convert) else ()


def parts(expr: Scalar) -> list[Scalar]:
    """Lists `expr` and all that it is made of, from the outside in and from left to right, each as often as it stands there."""
    found, waiting = list[Scalar](), [expr]
    while waiting:
        part = waiting.pop()
        found.append(part)
        waiting += operands(part)[::-1]
    return found


def rewritten(expr: Scalar, of: Callable[[Scalar], Scalar]) -> Scalar:
    """Returns `expr` applied to `of` each of its operands."""
    match expr:
        case Apply(op, args):
            return Apply(op, tuple(map(of, args)))
        case Convert(dtype, inner):
            return Convert(dtype, of(inner))
        case Arg() | Lit():
            return expr
        case _:
            assert_never(expr)


def substitute(expr: Scalar, arg: Callable[[int], Scalar], lit: Callable[[Lit], Scalar] | None = None) -> Scalar:
    """Returns `expr` with every `Arg(i)` replaced by `arg(i)`, and every number by `lit` of it if that is given."""
    match expr:
        case Arg(index):
            return arg(index)
        case Lit():
            return expr if lit is None else lit(expr)
        case _:
            return rewritten(expr, lambda inner: substitute(inner, arg, lit))


def occurrences(expr: Scalar) -> tuple[int, ...]:
    """Returns the indices of the arguments that `expr` reads, from left to right, each as often as it is read."""
    return tuple([part.index for part in parts(expr) if isinstance(part, Arg)])


def arguments(expr: Scalar) -> frozenset[int]:
    """Returns the indices of the arguments that `expr` reads."""
    return frozenset(occurrences(expr))


def applied(expr: Scalar) -> list[str]:
    """Returns the rows of the table that `expr` applies, each as often as it does."""
    return [part.op for part in parts(expr) if isinstance(part, Apply)]


def operations(expr: Scalar) -> int:
    """Counts the table operations that one evaluation of `expr` performs (casts count as one)."""
    return sum(isinstance(part, Apply | Convert) for part in parts(expr))


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


def constant_factor(expr: Scalar) -> tuple[float, Scalar]:
    """Splits `expr` into a number and an expression whose product it is, but for rounding; the number is 1 where there is none."""
    match expr:
        case Apply("mul", (Lit(value), rest)) | Apply("mul", (rest, Lit(value))) if _moderate(value):
            own = float(value)
        case Apply("div" | "coarse_div", (rest, Lit(value))) if _moderate(value):
            own = 1.0 / float(value)
        case Apply("neg", (rest,)):
            own = -1.0
        case _:
            return 1.0, expr
    factor, inner = constant_factor(rest)
    return own * factor, inner


def _moderate(value: float) -> bool:
    """Tells whether a factor leaves a product with it far from what is too large or too small."""
    return 2.0**-40 < abs(value) < 2.0**40
