"""Expressions on pairs: what each scalar operation does to significands and exponents."""

from __future__ import annotations

from typing import assert_never

from weft.block.program import Pointwise
from weft.fuse.safety.pairs import ExponentSource, Pair, product, quotient
from weft.fuse.safety.work import Expression, PairWork, Policy, Sym
from weft.tensor.optable import row
from weft.tensor.optable.intervals import EVERYTHING
from weft.tensor.optable.row import Interval
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, arguments, substitute

_HARMLESS = 30.0
"""exp of it is 1e13: float32 has room for sums of 1e25 of them, and for inverses."""


def rewritten(work: PairWork, node: Pointwise) -> Pair:
    """Rewrites `node` on pairs; its operators are added to `work`."""
    if isinstance(node.expr, Arg) and len(node.args) == 1:
        return _cast(work, node)
    expression = Expression(work, node)
    sym = _pair(expression, node.expr)
    if sym.expr == Lit(1.0) and sym.terms:
        return Pair(None, sym.terms, node.dtype)
    used = sorted(arguments(sym.expr))
    args = tuple(expression.args[i] for i in used)
    expr = substitute(sym.expr, lambda i: Arg(used.index(i)))
    name = node.name if not sym.terms else work.make(node.name)
    work.nodes.append(Pointwise(name, expr, args, node.dims, node.dtype, node.location))
    work.types[name] = work.types[node.name]
    return Pair(name, sym.terms)


def _cast(work: PairWork, node: Pointwise) -> Pair:
    """Copies, or rounds to another type: the significand, when there is one."""
    pair = work.values[node.args[0]]
    if pair.significand is None:
        return Pair(None, pair.terms, node.dtype)
    name = node.name if not pair.terms else work.make(node.name)
    work.nodes.append(Pointwise(name, node.expr, (pair.significand,), node.dims, node.dtype, node.location))
    work.types[name] = work.types[node.name]
    return Pair(name, pair.terms)


def _pair(of: Expression, expr: Scalar) -> Sym:
    match expr:
        case Arg(index):
            pair = of.work.values[of.node.args[index]]
            if pair.significand is None:
                return Sym(Lit(1.0), pair.terms)
            return Sym(of.arg(pair.significand), pair.terms)
        case Lit():
            return Sym(expr)
        case Convert(dtype, inner):
            return Sym(Convert(dtype, of.plain(_pair(of, inner))))
        case Apply("exp", (inner,)):
            return _exponential(of, _pair(of, inner))
        case Apply(op, args):
            return _applied(of, op, tuple(_pair(of, a) for a in args))
        case _:
            assert_never(expr)


def _exponential(of: Expression, inner: Sym) -> Sym:
    """Returns exp(x) as the pair (1, x), unless x is known to stay where nothing overflows: an exponent would be work
    for nothing.
    """
    policy, power = of.work.policy, of.plain(inner)
    number = policy.count
    policy.count += 1
    if _harmless(policy, power):
        policy.harmless.add(number)
    if number in policy.plain | policy.harmless:
        return Sym(apply("exp", power))
    own = Expression(of.work, of.node, list(of.args))
    name = own.value(Sym(power), "x")
    policy.converted.add(number)
    if name in of.work.sources:  # a value that is an exponent elsewhere gets a name of its own here
        name = of.work.pointwise(of.work.make("x"), Arg(0), (name,), of.work.dims(name), of.work.types[name].dtype)
    of.work.sources[name] = ExponentSource(number, 1, (*of.work.units, *of.work.dims(name)))
    return Sym(Lit(1.0), ((name, 1),))


def _applied(of: Expression, op: str, args: tuple[Sym, ...]) -> Sym:
    if not any(a.terms for a in args):
        return Sym(Apply(op, tuple(a.expr for a in args)))
    match op, args:
        case "mul", (left, right):
            return of.settled(Sym(product(left.expr, right.expr), of.work.combined(left.terms, right.terms)))
        case "div", (left, right):
            return of.settled(Sym(quotient(left.expr, right.expr), of.work.combined(left.terms, right.terms, -1)))
        case "neg", (inner,):
            return Sym(apply("neg", inner.expr), inner.terms)
        case (("add" | "sub"), (left, right)):
            one, other, terms = of.together(left, right)
            return Sym(apply(op, one, other), terms)
        case "where", (condition, left, right):
            return of.chosen(of.plain(condition), left, right)
        case _:
            return Sym(Apply(op, tuple(of.plain(a) for a in args)))


def _harmless(policy: Policy, power: Scalar) -> bool:
    """Tells whether exp(power), and sums of any length of it, are ordinary numbers whatever the arguments are."""
    low, high = _bounds(power)
    return not arguments(power) or (not policy.headroom and low >= -_HARMLESS and high <= _HARMLESS)


def _bounds(expr: Scalar) -> Interval:
    """Bounds an expression over arguments of which nothing is known."""
    match expr:
        case Arg():
            return EVERYTHING
        case Lit(value):
            return (float(value), float(value))
        case Convert(dtype, inner):
            return _bounds(inner) if dtype.is_float else EVERYTHING
        case Apply(op, args):
            return row(op).interval(*(_bounds(a) for a in args))
        case _:
            assert_never(expr)
