"""The two kinds of row: a primitive with all its meanings, and a name derived from primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import shorten
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from weft.tensor.optable.formulas import formula
from weft.tensor.scalar import Apply, Scalar, parts

Array: TypeAlias = npt.NDArray[Any]
Interval: TypeAlias = tuple[float, float]
"""All numbers from the first to the second; says nothing about NaN."""
Samples: TypeAlias = Literal["real", "positive", "nonnegative", "nonzero", "small", "bool", "int", "divisor"]
"""What a test may draw an argument from; "small" is within (-0.9, 0.9); a "divisor" is an integer but 0."""


Rounding: TypeAlias = Literal["exact", "chooses", "steps", "rounds", "function"]
"""What becomes of a float in it: "exact" gives bools, integers or what needs no more bits; "chooses" an argument or its negative;
"steps" whole numbers, with jumps; "rounds" the right result, rounded once; "function" is as good as its implementation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A primitive elementwise operation: one column per thing weft can do with it.

    Attributes:
        name: what `Apply.op` says.
        aten: names of the ATen overload packets that mean exactly this ("aten.add").
        samples: per argument, where its meaning is smooth and finite; its length is the arity.
        result: "bool", or "same": the type that the elementwise operation is computed in.
        closed: on integers the result is an integer and `meaning` is exact.
        meaning: on numpy arrays (float64, int64 or bool; broadcastable), with torch's rules for
            NaN and inf.
        field: the method of `weft.tensor.field_arithmetic.FieldArithmetic` that interprets it over
            finite fields, or an expression over its arguments and other rows that does; None where nothing does: a random function.
        cpp, triton: an expression over the arguments' names `{0}`, `{1}` ..; arguments must be
            names or literals, since one may occur twice. C++: over `float` (masks: `bool`), with
            the prelude's functions in namespace weft, which have overloads for `double` and 64-bit
            integers. Triton: over tensors of float32 (masks: int1);
            `tl` is triton.language, and functions weft_... are those of the emitter's prelude.
        interval: bounds of the result from bounds of the arguments; bool results within 0..1.
        rounding: what rounding does to it.
        exact_at: the argument at which a "function" of one argument gives a whole number, as each implementation of it must;
            None for others.
        cpu: what it costs a CPU, in additions of a vector: the length of its polynomial, and the divisions in it.
        gpu: cycles of a GPU's scheduler that it takes on a warp: 1 where all 32 lanes have a unit, 2 where half have (comparisons,
            selections), 8 for each of the special functions (exp2, log2, reciprocal, square root), of which there is a quarter.
    """

    name: str
    aten: tuple[str, ...]
    samples: tuple[Samples, ...]
    result: Literal["same", "bool"] = "same"
    closed: bool
    meaning: Callable[..., Array]
    field: str | Apply | None
    cpp: str
    triton: str
    interval: Callable[..., Interval]
    rounding: Rounding
    exact_at: float | None = None
    cpu: float
    gpu: float

    @property
    def arity(self) -> int:
        """The number of arguments."""
        return len(self.samples)

    @property
    def commutative(self) -> bool:
        """True where the two arguments can be swapped, bit for bit."""
        return self.name in _COMMUTATIVE


_BITS = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor"})
_COMMUTATIVE = _BITS | {"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"}


@dataclass(frozen=True, slots=True)
class DerivedRow:
    """A name that means an expression over primitives: expanded at capture, then forgotten.

    Attributes:
        aten: names of the ATen overload packets that mean exactly this.
        samples: per argument, where it is finite.
        parameters: names and defaults of what ATen passes beside tensors, in ATen's order.
        build: the expression, as a formula of the arguments x, y, z and the parameters (`weft.tensor.optable.formulas`), or a
            function that makes it of them.
        integers: the same where the result is an integer, if that is another one; it has primitives that are closed.
    """

    name: str
    aten: tuple[str, ...]
    samples: tuple[Samples, ...]
    build: str | Callable[..., Scalar]
    parameters: tuple[tuple[str, float | str | None], ...] = ()
    integers: str | Callable[..., Scalar] | None = None

    @property
    def arity(self) -> int:
        """The number of arguments, parameters not counted."""
        return len(self.samples)

    def expand(self, *args: Scalar, integral: bool = False, **parameters: float | str | None) -> Scalar:
        """Returns the expression over `args`; parameters that are not named have their defaults.

        integral: the result is an integer.

        Raises:
            TypeError: wrong number of arguments, a parameter that the row does not have, or a wrong formula.
        """
        if len(args) != self.arity:
            raise TypeError(f"{self.name} takes {self.arity} arguments, not {len(args)}")
        build = self.integers if integral and self.integers is not None else self.build
        known = dict(self.parameters) | parameters
        if len(known) > len(self.parameters):
            raise TypeError(f"{self.name} has no parameter {', '.join(known.keys() - dict(self.parameters).keys())}")
        try:
            return _of_rows(_built(build, args, known))
        except (SyntaxError, TypeError) as error:
            text = (
                f"the function {getattr(build, '__qualname__', build)}"
                if callable(build)
                else f'"{shorten(build, 300)}"'
            )
            what = f"row {self.name!r} of the operation table has a wrong formula, {text}: {error}"
            raise TypeError(f"{what}. Correct the row: {_ADVICE}") from error


_ADVICE = (
    "a formula reads x, y and z, as many as the row has samples, and the row's parameters; what it calls are rows of "
    "src/weft/tensor/optable/primitive.py, with as many arguments as they have samples"
)


def _built(
    build: str | Callable[..., Scalar], args: tuple[Scalar, ...], known: Mapping[str, float | str | None]
) -> Scalar:
    if callable(build):
        return build(*args, **known)
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float)}
    return formula(build, {**dict(zip("xyz", args, strict=False)), **numbers})


def _of_rows(expr: Scalar) -> Scalar:
    """Returns `expr`, which applies nothing but rows.

    Raises:
        TypeError: it applies what is no row, or a row to another number of arguments than it has.
    """
    for op, count in dict.fromkeys((part.op, len(part.args)) for part in parts(expr) if isinstance(part, Apply)):
        arity = _arities().get(op)
        if arity is None:
            close = get_close_matches(op, _arities())
            raise TypeError(
                f"no operation is called {op!r}" + (f" (did you mean {' or '.join(close)}?)" if close else "")
            )
        if arity != count:
            raise TypeError(f"{op} takes {arity} argument{'' if arity == 1 else 's'}, not {count}")
    return expr


@functools.cache
def _arities() -> Mapping[str, int]:
    from weft.tensor.optable.primitive import PRIMITIVES  # made of rows

    return {row.name: row.arity for row in PRIMITIVES}
