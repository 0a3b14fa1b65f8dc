"""Scalar expressions as one writes them: `x / (1.0 + exp(-x))`, in Python's grammar, with the table's rows for functions."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from weft.tensor.scalar import Lit, Scalar, apply

_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.USub: "neg",
    ast.Not: "logical_not",
    ast.And: "logical_and",
    ast.Or: "logical_or",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


def _quotient(one: float, other: float) -> float:
    return one / other


_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "neg": operator.neg,
    "eq": operator.eq,
    "sqrt": math.sqrt,
    "log": math.log,
}


FormulaTerm: TypeAlias = Scalar | float
"""A part of a formula; a Python number where numbers alone decide it. An argument that is a number is a `Lit`, and stays one."""


def formula(text: str, names: Mapping[str, FormulaTerm]) -> Scalar:
    """Reads an expression.

    Args:
        text: the expression; before it, on lines of their own or with semicolons, names for parts of it. A call is of a row of the
            table, `pi` and `inf` are those numbers. What numbers alone decide is worked out here, and may choose:
            `y if value == 1 else value * y`.
        names: what the names in it stand for: arguments, and numbers.

    Raises:
        SyntaxError: `text` is no Python.
        TypeError: `text` is in another form, or nothing says what a name stands for.
    """
    *parts, last = _statements(text) or [ast.Pass()]
    known = {"pi": math.pi, "inf": math.inf, **names}
    for part in parts:
        match part:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known[name] = _read(value, known)
            case _:
                raise TypeError(f"no part of a formula: {ast.unparse(part)}")
    if not isinstance(last, ast.Expr):
        raise TypeError("a formula ends with an expression, on a line of its own")
    return _scalar(_read(last.value, known))


@functools.cache
def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _read(node: ast.expr, names: Mapping[str, FormulaTerm]) -> FormulaTerm:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise TypeError(f"nothing is called {name!r}; there is {', '.join(names)}")
            return names[name]
        case ast.UnaryOp(op=op, operand=one) if type(op) in _OPERATORS:
            return _applied(_OPERATORS[type(op)], _read(one, names))
        case (
            ast.BinOp(left=one, op=op, right=other)
            | ast.Compare(left=one, ops=[op], comparators=[other])
            | ast.BoolOp(op=op, values=[one, other])
        ) if type(op) in _OPERATORS:
            return _applied(_OPERATORS[type(op)], _read(one, names), _read(other, names))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _applied(name, *(_read(each, names) for each in args))
        case ast.IfExp(test=test, body=one, orelse=other):
            chosen = _read(test, names)
            assert isinstance(chosen, bool), "numbers alone decide"
            return _read(one if chosen else other, names)
        case _:
            known = "numbers, names, calls, + - * /, comparisons, and, or, not; if, where numbers decide"
            raise TypeError(
                f"{ast.unparse(node)!r} is none of what a formula may hold: {known}; operators take two operands"
            )


def _applied(op: str, *args: FormulaTerm) -> FormulaTerm:
    numbers = [each for each in args if isinstance(each, int | float)]
    if len(numbers) < len(args):
        return apply(op, *map(_scalar, args))
    if op not in _OF_NUMBERS:
        raise TypeError(f"{op} of numbers alone is not worked out here: write its value")
    return _OF_NUMBERS[op](*numbers)


def _scalar(term: FormulaTerm) -> Scalar:
    return Lit(term) if isinstance(term, int | float) else term
