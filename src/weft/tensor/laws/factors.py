"""The law of factors: factors of whole rows of an operand are multiplied last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.tensor.axes import Axis
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import Bears, Conditioning, tensor_pass
from weft.tensor.program import Cast, Contraction, Elementwise, Node, TensorProgram, Use, uses
from weft.tensor.scalar import Apply, Arg, Lit, Scalar


@tensor_pass(Conditioning.rounding, Bears.checked)
def scale_rows_last(program: TensorProgram) -> TensorProgram:
    """Move factors that lack the axis that a contraction sums over behind those that have it.

        y[m, k] = g[k] * (x[m, k] * r[m])                        y0[m, k] = g[k] * x[m, k]
        z[m, n] = sum over k of y[m, k] * w[k, n]      ==>       y[m, k] = y0[m, k] * r[m]
                                                                 z[m, n] = sum over k of y[m, k] * w[k, n]

    so that what scales rows stands next to the product, where it can change places with it. Condition: a chain of products and
    quotients of floats, perhaps rounded for the contraction; nothing else reads what is in between. Numbers, and what the
    chain has of one kind, keep their order. Conditioning: rounding, the same operations in another order; what is in between
    may overflow or underflow where it did not.
    """
    chains = _Chains(program)
    return chains.made_by(chains.add)


_Factor: TypeAlias = tuple[Use | Lit, bool]
"""A factor, and whether it multiplies rather than divides."""


@dataclass
class _Chains(Draft):
    readers: Counter[str] = field(init=False)
    contracted: dict[str, set[Axis]] = field(default_factory=dict[str, "set[Axis]"])

    def __post_init__(self) -> None:
        super().__post_init__()
        self.readers = Counter(self.program.outputs)
        for node in self.program.nodes:
            self.readers.update(uses(node))
            if isinstance(node, Contraction):
                self.mark(node.left, node.over)
                self.mark(node.right, node.over)

    def mark(self, use: Use, over: Iterable[Axis]) -> None:
        """Note which axes a contraction sums the value over that `use` reads, and the values that casts round to it."""
        node = self.values[use.value]
        own = {a for a, b in zip(node.axes, use.axes, strict=True) if b in set(over)}
        self.contracted.setdefault(node.name, set()).update(own)
        if isinstance(node, Cast) and not node.semantic:
            self.mark(node.arg, own)

    def add(self, node: Node) -> None:
        """Append `node`, its factors in order."""
        over = self.contracted.get(node.name, set())
        if over and isinstance(node, Elementwise) and _is_product(node):
            factors = self.factors(node, over)
            rows = [f for f in factors if isinstance(f[0], Use) and not over & set(f[0].axes)]
            rest = [f for f in factors if f not in rows]
            if rows and rest and not self.in_order(node, rows, over):
                self.nodes += self.rebuilt(node, rest, rows)
                return
        self.nodes.append(node)

    def factors(self, top: Elementwise, over: set[Axis]) -> list[_Factor]:
        """List the factors that `top` is the product of, in the order in which it is written."""
        found: list[_Factor] = []
        pending: list[_Factor] = _operands(top, True, None)
        while pending:
            factor, multiplies = pending.pop(0)
            inner = None if isinstance(factor, Lit) else self.inner(factor, over)
            if inner is None:
                found.append((factor, multiplies))
            else:
                assert isinstance(factor, Use)
                pending = [*_operands(inner, multiplies, factor), *pending]
        return found

    def inner(self, use: Use, over: set[Axis]) -> Elementwise | None:
        """Return the product that `use` reads, where it may be taken apart: it has the axes, and nothing else reads it."""
        node = self.values[use.value]
        fits = isinstance(node, Elementwise) and _is_product(node) and bool(over & set(use.axes))
        return node if fits and self.readers[use.value] == 1 and isinstance(node, Elementwise) else None

    def in_order(self, top: Elementwise, rows: Sequence[_Factor], over: set[Axis]) -> bool:
        """Tell whether the `rows` are the last factors that the chain multiplies with."""
        left = list(rows)
        node, bound = top, None
        while left:
            (first, _), (second, multiplies) = _operands(node, True, bound)
            if (second, multiplies) not in left:
                return False
            left.remove((second, multiplies))
            inner = None if isinstance(first, Lit) else self.inner(first, over)
            if left and (inner is None or isinstance(first, Lit)):
                return False
            if inner is not None and not isinstance(first, Lit):
                node, bound = inner, first
        return True

    def rebuilt(self, top: Elementwise, rest: Sequence[_Factor], rows: Sequence[_Factor]) -> list[Node]:
        """Return the nodes of the product of `rest`, then `rows`; the last is `top`'s."""
        start = next((i for i, (_, multiplies) in enumerate(rest) if multiplies), None)
        made: list[Node] = []
        value: Use | Lit = Lit(1.0) if start is None else rest[start][0]
        others = [*(f for i, f in enumerate(rest) if i != start), *rows]
        for number, (factor, multiplies) in enumerate(others):
            operands = [value, factor]
            args = list(dict.fromkeys(o for o in operands if isinstance(o, Use)))
            terms: list[Scalar] = [o if isinstance(o, Lit) else Arg(args.index(o)) for o in operands]
            axes = tuple(a for a in top.axes if any(a in u.axes for u in args))
            expr = Apply("mul" if multiplies else "div", tuple(terms))
            last = number == len(others) - 1
            name = top.name if last else self.fresh(top.name)
            node = replace(top, name=name, axes=top.axes if last else axes, expr=expr, args=tuple(args))
            made.append(node)
            value = Use(node.name, node.axes)
        return made


def _is_product(node: Elementwise) -> bool:
    match node.expr:
        case Apply("mul" | "div", (Arg() | Lit() as left, Arg() | Lit() as right)):
            return node.dtype.is_float and left != right
        case _:
            return False


def _operands(node: Elementwise, multiplies: bool, use: Use | None) -> list[_Factor]:
    """Return the two factors of `node`, along the axes of `use` where it is read through one."""
    assert isinstance(node.expr, Apply)
    bound = {a: a for a in node.axes} if use is None else dict(zip(node.axes, use.axes, strict=True))
    found: list[Use | Lit] = []
    for term in node.expr.args:
        if isinstance(term, Lit):
            found.append(term)
        else:
            assert isinstance(term, Arg)
            arg = node.args[term.index]
            found.append(arg.within(bound))
    return [(found[0], multiplies), (found[1], multiplies == (node.expr.op == "mul"))]
