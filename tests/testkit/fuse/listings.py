"""What a listing says, whatever it calls its temporaries, intermediates and outputs, and in whatever order it says it.

The form of a listing is the tree of its loops, each with the multiset of its statements; a value in a statement is written
out as how it is computed, from inputs on. Two listings with one form so have the same loops with the same operations in
them, and the same buffers between the loops.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, field

_LOOP = re.compile(r"(for|forall) (\w+) in range\((\w+)\):")
_STATEMENT = re.compile(r"(\w+) (\+?=) (.*)")
_STORE = re.compile(r"store\((\w+),(\w+)\[(.*)\]\)")
_TABLE1 = {"row_sum", "row_scale", "row_shift", "dot", "outer", "add", "mul"}
_COMMUTES = {"add", "mul"}


def form(listing: str) -> str:
    """The form of `listing`: equal for two listings exactly where only names and the order of independent lines differ."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in listing.splitlines() if line.strip()]
    reader = _Reader(lines)
    return "\n".join(reader.block({}, {}, [], -1))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass
class _Reader:
    lines: list[tuple[int, str]]
    at: int = 0
    buffers: dict[str, str] = field(default_factory=dict[str, str])

    def block(self, values: dict[str, str], loops: dict[str, str], sums: list[str], indent: int) -> list[str]:
        """The statements deeper than `indent`, in a canonical order; `sums` gets what they accumulate."""
        found: list[str] = []
        while self.at < len(self.lines) and self.lines[self.at][0] > indent:
            depth, line = self.lines[self.at]
            self.at += 1
            if loop := _LOOP.fullmatch(line):
                kind, variable, space = loop.groups()
                inner = values if kind == "for" else dict(values)
                accumulated: list[str] = []
                body = self.block(inner, {**loops, variable: f"@{len(loops)}{space}"}, accumulated, depth)
                for name in accumulated:  # after the loop, it is a sum over all of it
                    values[name] = _digest("sum", space, inner[name])
                found.append(
                    "\n".join([f"{kind} {space}", *(f"  {text}" for part in body for text in part.split("\n"))])
                )
            elif store := _STORE.fullmatch(line):
                value, buffer, index = store.groups()
                place = ",".join(loops[i] for i in index.split(","))
                self.buffers[buffer] = _digest("list", values[value], place)
                found.append(f"store {self.buffers[buffer]}")
            else:
                found += self.statement(line, values, loops, sums)
        return sorted(found)

    def statement(self, line: str, values: dict[str, str], loops: dict[str, str], sums: list[str]) -> list[str]:
        """An assignment or accumulation; an operator inside another one's call is a statement of its own."""
        match = _STATEMENT.fullmatch(line)
        assert match is not None, line
        name, sign, text = match.groups()
        found: list[str] = []
        value = self.value(ast.parse(text, mode="eval").body, values, loops, found)
        if sign == "+=":
            sums.append(name)
        values[name] = value
        return [*found, f"{sign} {value}"]

    def value(self, node: ast.expr, values: dict[str, str], loops: dict[str, str], hoisted: list[str]) -> str:
        """The digest of an expression; appends the statements of operators that are inside another one's call."""
        match node:
            case ast.Name(name):
                return values.get(name, name)
            case ast.Call(ast.Name("load"), [ast.Subscript(ast.Name(buffer), index)]):
                names = [n.id for n in ast.walk(index) if isinstance(n, ast.Name)]
                return _digest("load", self.buffers.get(buffer, buffer), *(loops[n] for n in names))
            case ast.Call(ast.Name(operator), args):
                given = [self.value(a, values, loops, hoisted) for a in args]
                if operator in _TABLE1:
                    hoisted += [f"= {g}" for a, g in zip(args, given, strict=True) if not isinstance(a, ast.Name)]
                return _digest("call", operator, *(sorted(given) if operator in _COMMUTES else given))
            case ast.BinOp(left, operator, right):
                both = (self.value(side, values, loops, hoisted) for side in (left, right))
                return _digest("infix", type(operator).__name__, *both)
            case ast.UnaryOp(ast.USub(), operand):
                return _digest("minus", self.value(operand, values, loops, hoisted))
            case ast.Constant(value):
                return repr(value)
            case _:
                raise AssertionError(ast.dump(node))
