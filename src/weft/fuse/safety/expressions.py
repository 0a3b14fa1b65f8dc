"""Expressions on pairs: what each scalar operation does to significands and exponents."""

from __future__ import annotations

from typing import assert_never

from weft.block.program import Pointwise
from weft.fuse.safety.pairs import Pair, combined, product, quotient
from weft.fuse.safety.work import Expression, Sym, Work
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, arguments, substitute


def rewritten(work: Work, node: Pointwise) -> Pair:
    """What `node` has become; its operators are added to `work`."""
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


def _cast(work: Work, node: Pointwise) -> Pair:
    """A copy, or a rounding to another type: of the significand, when there is one."""
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
    """exp(x) is the pair (1, x), where x is not a number known beforehand."""
    policy, power = of.work.policy, of.plain(inner)
    number = policy.count
    policy.count += 1
    if number in policy.plain or not arguments(power):
        return Sym(apply("exp", power))
    own = Expression(of.work, of.node, list(of.args))
    name = own.value(Sym(power), "x")
    policy.converted.add(number)
    degrees = dict(of.work.degrees.get(name, ()))
    if degrees:  # a value that is an exponent elsewhere gets a name of its own here
        name = of.work.pointwise(of.work.make("x"), Arg(0), (name,), of.work.dims(name), of.work.types[name].dtype)
    of.work.degrees[name] = ((number, 1),)
    return Sym(Lit(1.0), ((name, 1),))


def _applied(of: Expression, op: str, args: tuple[Sym, ...]) -> Sym:
    if not any(a.terms for a in args):
        return Sym(Apply(op, tuple(a.expr for a in args)))
    match op, args:
        case "mul", (left, right):
            return Sym(product(left.expr, right.expr), combined(left.terms, right.terms))
        case "div", (left, right):
            return Sym(quotient(left.expr, right.expr), combined(left.terms, right.terms, -1))
        case "neg", (inner,):
            return Sym(apply("neg", inner.expr), inner.terms)
        case (("add" | "sub"), (left, right)):
            one, other, terms = of.together(left, right)
            return Sym(apply(op, one, other), terms)
        case "where", (condition, left, right):
            chosen = of.plain(condition)
            one, other, terms = of.together(left, right)
            return Sym(apply(op, chosen, one, other), terms)
        case _:
            return Sym(Apply(op, tuple(of.plain(a) for a in args)))
