"""What a listing says as algebra: its loops, loads, sums and stores, each scalar function in a normal form of SymPy's.

Listings that agree in this have the same loops with the same loads and sums in them, and store the same functions of these;
they may spell the functions differently: a division, or a factor that is an inverse. Roundings are taken for what they are
in algebra, nothing.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

sympy: Any = import_module("sympy")

_LOOP = re.compile(r"(for|forall) (\w+) in range\((\w+)\):")
_STATEMENT = re.compile(r"(\w+) (\+?=) (.*)")
_STORE = re.compile(r"store\((\w+),(\w+)\[(.*)\]\)")
_PRODUCTS = {"row_scale", "col_scale", "mul", "outer"}
_SUMS = {"row_shift", "col_shift", "add"}
_REDUCES = {"row_sum", "col_sum", "dot"}
_ROUNDS = {"bfloat16", "float16", "float32"}


def algebra(listing: str, given: Mapping[str, int] | None = None) -> str:
    """The algebra of `listing`; `given` are the values of sizes that are to be taken for numbers."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in listing.splitlines() if line.strip()]
    return "\n".join(_Reader(lines, given or {}).block({}, {}, [], -1))


def _symbol(*parts: object) -> Any:
    return sympy.Symbol(hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12], real=True)


def _number(value: float) -> Any:
    """An exact number; the square root of a whole one where that is what its digits are."""
    square = value * value
    if value != int(value) and abs(square - round(square)) < 1e-12 * square:
        return sympy.sqrt(round(square))
    return sympy.Rational(str(value))


@dataclass
class _Reader:
    lines: list[tuple[int, str]]
    given: Mapping[str, int]
    at: int = 0
    buffers: dict[str, Any] = field(default_factory=dict[str, Any])

    def block(self, values: dict[str, Any], loops: dict[str, str], sums: list[str], indent: int) -> list[str]:
        """The loops, loads, sums and stores deeper than `indent`, sorted; `sums` gets what they accumulate."""
        found: list[str] = []
        while self.at < len(self.lines) and self.lines[self.at][0] > indent:
            depth, line = self.lines[self.at]
            self.at += 1
            if loop := _LOOP.fullmatch(line):
                kind, variable, space = loop.groups()
                inner = values if kind == "for" else dict(values)
                accumulated: list[str] = []
                body = self.block(inner, {**loops, variable: f"@{len(loops)}{space}"}, accumulated, depth)
                for name in accumulated:
                    values[name] = _symbol("sum", space, inner[name])
                found.append("\n".join([f"{kind} {space}", *(f"  {t}" for part in body for t in part.split("\n"))]))
            elif store := _STORE.fullmatch(line):
                value, buffer, index = store.groups()
                place = ",".join(loops[i] for i in index.split(","))
                self.buffers[buffer] = _symbol("list", values[value], place)
                found.append(f"store {self.buffers[buffer]}")
            else:
                name, sign, text = _matched(line)
                values[name] = self.value(ast.parse(text, mode="eval").body, values, loops, found)
                if sign == "+=":
                    sums.append(name)
                    found.append(f"+= {values[name]}")
        return sorted(found)

    def value(self, node: ast.expr, values: Mapping[str, Any], loops: Mapping[str, str], found: list[str]) -> Any:
        """The value of an expression; appends its loads."""
        match node:
            case ast.Name(name):
                size = sympy.Integer(self.given[name]) if name in self.given else sympy.Symbol(name, real=True)
                return values.get(name, size)
            case ast.Call(ast.Name("load"), [ast.Subscript(ast.Name(buffer), index)]):
                names = [loops[n.id] for n in ast.walk(index) if isinstance(n, ast.Name)]
                loaded = _symbol("load", self.buffers.get(buffer, buffer), *names)
                found.append(f"load {loaded}")
                return loaded
            case ast.Call(ast.Name(operator), args):
                return self.call(operator, [self.value(a, values, loops, found) for a in args])
            case ast.BinOp(left, operator, right):
                one, other = (self.value(side, values, loops, found) for side in (left, right))
                return _INFIX[type(operator)](one, other)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.value(operand, values, loops, found)
            case ast.Subscript(item, _):  # aligned as numpy does
                return self.value(item, values, loops, found)
            case ast.Constant(int() | float() as value):
                return _number(value)
            case _:
                raise AssertionError(ast.dump(node))

    def call(self, operator: str, args: list[Any]) -> Any:
        """The value of an operator."""
        if operator in _REDUCES:
            return _symbol(operator, *args)
        if operator in _ROUNDS:
            return args[0]
        if operator in _PRODUCTS:
            return args[0] * args[1]
        if operator in _SUMS:
            return args[0] + args[1]
        return {"exp": sympy.exp, "sqrt": sympy.sqrt}[operator](*args)


_INFIX: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}


def _matched(line: str) -> tuple[str, str, str]:
    match = _STATEMENT.fullmatch(line)
    assert match is not None, line
    name, sign, text = match.groups()
    return name, sign, text
