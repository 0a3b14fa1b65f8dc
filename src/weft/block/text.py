"""The words of a listing: names of inputs and spaces, numbers, and scalar expressions as the paper
writes them, `t10/(1+exp(-t10))`, without spaces or needless parentheses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from weft.block.guard import Guard
from weft.block.linear import IndexTerm, Linear, Quotient
from weft.block.spans import Span
from weft.tensor.axes import Axis, Space
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Number, Scalar, exactly_equal

# The sign of an operation, and how tightly it binds. Only a left operand may bind as loosely as
# that: a+(b+c) keeps its parentheses, for floating-point arithmetic is not associative.
_INFIX = {
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1),
    "ne": ("!=", 1), "add": ("+", 2), "sub": ("-", 2), "mul": ("*", 3), "div": ("/", 3),
}  # fmt: skip
_COMPARISON, _NEGATION, _POWER, _ATOM = 1, 4, 5, 6


def number(value: Number) -> str:
    """Write a number as the listings do: 1 for 1.0, but -0.0; inf, -inf."""
    whole = isinstance(value, float) and abs(value) < 1e16 and value.is_integer() and not exactly_equal(value, -0.0)
    return str(int(value)) if whole else repr(value)


def left_out(guard: Guard, value: str) -> str:
    """Write which iterations `guard`, which asks `value`, leaves out."""
    said = (
        f"{number(each)} everywhere" if alike else f"not {number(each)} everywhere" for each, alike in guard.left_out
    )
    rows = "" if guard.rows is None else f", and {guard.rows} where it is {number(guard.idle)}"
    return f"{value} is {', or '.join(said)}{rows}"


def expression(expr: Scalar, names: Sequence[str]) -> str:
    """Write `expr` with argument i as `names[i]`, each a name or a number."""
    return _write(expr, names)[0]


def _write(expr: Scalar, names: Sequence[str]) -> tuple[str, int]:
    match expr:
        case Arg(index):
            return _atom(names[index])
        case Lit(value):
            return _atom(number(value))
        case Apply(op, (left, right)) if op in _INFIX:
            sign, binding = _INFIX[op]
            first = _binding(_write(left, names), binding + (binding == _COMPARISON))
            second = _binding(_write(right, names), binding + 1)
            # 2--t1 would be hard to read.
            second = f"({second})" if second.startswith("-") else second
            return f"{first}{sign}{second}", binding
        case Apply("neg", (inner,)):
            return f"-{_binding(_write(inner, names), _POWER)}", _NEGATION
        case Apply("pow", (base, exponent)):
            low, high = _write(base, names), _write(exponent, names)
            return f"{_binding(low, _ATOM)}**{_binding(high, _ATOM)}", _POWER
        case Apply(op, args):
            return f"{op}({','.join(_write(a, names)[0] for a in args)})", _ATOM
        case Convert(dtype, inner):
            return f"{dtype}({_write(inner, names)[0]})", _ATOM
        case _:
            assert_never(expr)


def _atom(text: str) -> tuple[str, int]:
    return text, _NEGATION if text.startswith("-") else _ATOM


def _binding(written: tuple[str, int], least: int) -> str:
    """Return the text, in parentheses where it binds less tightly than `least`."""
    return written[0] if written[1] >= least else f"({written[0]})"


def space_names(spaces: Iterable[Space]) -> dict[Space, str]:
    """Name the spaces as the listings write sizes: upper case, and distinct."""
    names: dict[Space, str] = {}
    for space in spaces:
        names[space] = _distinct(re.sub(r"\W", "_", space.name).upper(), set(names.values()))
    return names


def extent_names(names: Mapping[Space, str]) -> dict[Space, str]:
    """Name the numbers of elements of the spaces with these names: KK, as in the paper, or len(SEQ)."""
    taken = set(names.values())
    return {
        space: 2 * name if len(name) == 1 and 2 * name not in taken else f"len({name})" for space, name in names.items()
    }


def input_names(names: Iterable[str]) -> list[str]:
    """Name inputs as the listings do: KT for kt, Bias for bias; never like an I1 or an O."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"\W", "_", name)
        stem = stem.upper() if len(stem) <= 2 else stem[:1].upper() + stem[1:]
        stem = f"{stem}_in" if re.fullmatch(r"O\d*|I\d+", stem) else stem
        found.append(_distinct(stem, set(found)))
    return found


def _distinct(stem: str, taken: set[str]) -> str:
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    return name


def variable(space: str, taken: set[str]) -> str:
    """Name a loop variable over the space with this name: m, and m1 inside of m; never like a t1."""
    stem = space.lower()
    name, count = stem, 0
    while name in taken or re.fullmatch(r"t\d+", name):
        count += 1
        name = f"{stem}_{count}" if re.fullmatch(r"t\d*", stem) else f"{stem}{count}"
    return name


def between(span: Span, variables: Mapping[Axis, str], spaces: Mapping[Space, str]) -> str:
    """Prints a span as ` from n-3 to n+0`: the elements beside element n of a loop around.

    Args:
        span: the span.
        variables: the names of loops, by axis.
        spaces: the names of sizes.
    """
    lows, highs = span.ends
    words = [*(("from", end) for end in lows), *(("to", end) for end in highs)]
    return "".join(f" {word} {_linear(end, variables, spaces)}" for word, end in words)


def _linear(of: Linear, variables: Mapping[Axis, str], spaces: Mapping[Space, str]) -> str:
    """Prints `2*n+3+N`: indices by the names of loops, sizes by those of spaces."""

    def named(term: IndexTerm) -> str:
        if isinstance(term, Quotient):
            return f"({_linear(term.of, variables, spaces).removesuffix('+0')})//{term.by}"
        return variables.get(term, "?")

    terms = [(named(term), factor) for term, factor in of.terms]
    if not of.sizes and not terms:
        return str(of.constant)
    text = "".join(f"{'-' if f < 0 else '+'}{'' if abs(f) == 1 else f'{abs(f)}*'}{t}" for t, f in terms)
    sizes = "".join(f"{f:+d}*{spaces[space]}" for space, f in of.sizes)
    return f"{text.removeprefix('+')}{of.constant:+d}{sizes}"
