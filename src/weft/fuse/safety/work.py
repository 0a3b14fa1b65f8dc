"""One graph being rewritten: its new operators, and what each old value has become."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.block.program import BlockNode, BlockType, Collapse, Graph, Pointwise
from weft.block.references import finite, joined, restored
from weft.block.rename import fresh, values_of
from weft.fuse.safety.pairs import (
    FIRST,
    SECOND,
    Degree,
    ExponentSource,
    Pair,
    Terms,
    cancelling,
    combined,
    degree_of,
    exponent,
    product,
    scaled_down,
)
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, Scalar, apply, arguments, is_zero, substitute


@dataclass
class Policy:
    """What holds for the whole program.

    Attributes:
        headroom: how far an exponent stays below the maximum, so that narrow significands use their range.
        lists: along which axes of each exponential, by position, the elements of a list may share an exponent.
        plain: exponentials that stay as written, by number.
        real: the type of exponents, and of significands that nothing rounds.
        exposed: exponentials found to reach a place that needs their plain value: nothing is gained by a pair there.
        converted: exponentials that became pairs.
        harmless: exponentials that stay as written because what they raise is bounded.
        along: axes of each exponential, by position, along which all its sums run that something adds up or divides by.
    """

    headroom: float
    lists: Mapping[int, frozenset[int]]
    plain: frozenset[int]
    real: DType = DType.float32
    exposed: set[int] = field(default_factory=set[int])
    converted: set[int] = field(default_factory=set[int])
    harmless: set[int] = field(default_factory=set[int])
    along: dict[int, frozenset[int]] = field(default_factory=dict[int, "frozenset[int]"])
    count: int = 0

    @property
    def lowest(self) -> float:
        """The least exponent."""
        return self.real.lowest

    def runs(self, source: ExponentSource, positions: frozenset[int]) -> None:
        """Takes note of a sum along `positions` of an exponential's axes.

        An exponent that stands for all elements along some axes loses those far below the greatest. They are lost for all sums that
        run along these axes, and for quotients by them; others would miss them.
        """
        self.along[source.number] = self.along.get(source.number, positions) & positions


@dataclass
class PairWork:
    """The state of one graph's rewriting.

    Attributes:
        types: of old and new values.
        values: what each old value has become.
        sources: of the values that serve as exponents.
        units: axes of the unit maps around, which no item has and any may vary along.
    """

    policy: Policy
    graph: Graph
    types: dict[str, BlockType]
    values: dict[str, Pair]
    sources: dict[str, ExponentSource]
    units: tuple[Axis, ...] = ()
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    made: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])

    def __post_init__(self) -> None:
        self.make = fresh(values_of(self.graph) | set(self.types))

    def dims(self, name: str) -> tuple[Axis, ...]:
        """Returns the axes of an item."""
        return self.types[name].dims

    def pointwise(self, wish: str, expr: Scalar, args: Sequence[str], dims: Sequence[Axis], dtype: DType) -> str:
        """Adds an elementwise operator, or returns the one of the same meaning that is there."""
        key = (expr, tuple(args), tuple(dims), dtype)
        if key not in self.made:
            name = self.made[key] = self.make(wish)
            self.nodes.append(Pointwise(name, expr, tuple(args), tuple(dims), dtype))
            self.types[name] = BlockType((), tuple(dims), dtype)
        return self.made[key]

    def whole(self, terms: Terms) -> str:
        """Returns the exponent `terms` as one value."""
        if len(terms) == 1 and terms[0][1] == 1:
            return terms[0][0]
        names = [n for n, _ in terms]
        expr = exponent(terms, self.sources, lambda n: Arg(names.index(n)))
        return self.pointwise("e", expr, names, _joined([self.dims(n) for n in names]), self.policy.real)

    def positive(self, name: str, count: int) -> tuple[str, int]:
        """Returns the exponent `count` times `name` as a value and a positive count of it: the value is negated where
        `count` is below 0.
        """
        if count > 0:
            return name, count
        made = self.pointwise("e", apply("neg", FIRST), (name,), self.dims(name), self.policy.real)
        self.sources[made] = replace(self.sources[name], power=-self.sources[name].power)
        return made, -count

    def degree(self, terms: Terms) -> Degree:
        """Counts how often each exponential is a factor of exp(terms)."""
        return degree_of(terms, self.sources)

    def combined(self, left: Terms, right: Terms, sign: int = 1) -> Terms:
        """Computes `left` + `sign` * `right`; of exponents that cancel, the one that is divided by says how the
        exponential was added up.
        """
        for name, count in left:
            for other, times in right:
                one, two = self.sources[name], self.sources[other]
                mine, theirs = count * one.power, sign * times * two.power
                if one.number == two.number and mine * theirs < 0:
                    above, below = (one, two) if mine > 0 else (two, one)
                    like = all(b is None or a == b for a, b in zip(above.axes, below.axes, strict=True))
                    self.policy.runs(below, below.added(()) if like else frozenset())
        return combined(left, right, sign)

    def added(self, terms: Terms, over: Collection[Axis]) -> None:
        """Takes note that what has the exponent `terms` is added up along `over`."""
        for source in (self.sources[n] for n, _ in terms):
            if source.added(()) != source.added(over):
                self.policy.runs(source, source.added(over))

    def shared(self, pair: Pair, over: frozenset[Axis], dims: tuple[Axis, ...]) -> Pair:
        """Returns `pair`, an item of axes `dims`, with an exponent that does not vary along `over`.

        Two exponents are never added: their sum has fewer digits left than the product of their exponentials. A pair with
        several exponents that vary and do not cancel becomes a plain value.
        """
        varying = [(n, c) for n, c in pair.terms if over.intersection(self.dims(n))]
        if len(varying) > 1:
            return Pair(self.plain(pair, dims))
        if not varying:
            return pair
        (term,) = varying
        rest = tuple(t for t in pair.terms if t != term)
        name, count = self.positive(*term)
        return self.moved(replace(pair, terms=((name, count),)), self.maximum(name, over, count), dims, rest)

    def settled(self, pair: Pair, dims: tuple[Axis, ...]) -> Pair:
        """Moves the differences of `pair`'s exponents into its significand: they are of numbers that the program computes."""
        gone, left = self.settling(pair.terms)
        return Pair(self.plain(Pair(pair.significand, gone, pair.dtype), dims), left) if gone else pair

    def settling(self, terms: Terms) -> tuple[Terms, Terms]:
        """Splits `terms` into the exponents that cancel, and the other ones."""
        left = cancelling(terms, self.sources)[1]
        return combined(terms, left, -1), left

    def maximum(self, name: str, over: frozenset[Axis], count: int = 1) -> str:
        """Returns an exponent for all elements of `name` that differ along `over` alone: their maximum, less the
        headroom, and finite.

        If all are -inf, the differences to it are -inf and the significands 0. Powers have no headroom, since it would be
        raised with them.
        """
        dims = self.dims(name)
        kept = tuple(a for a in dims if a not in over)
        headroom = self.policy.headroom if count == 1 else 0.0
        key = ("maximum", name, kept, headroom)
        if key in self.made:
            return self.made[key]
        made = name
        for axis in (a for a in reversed(dims) if a in over):
            node = Collapse(self.make("z"), Monoid.max, made, axis)
            self.nodes.append(node)
            self.types[node.name] = BlockType((), tuple(a for a in self.dims(made) if a != axis), self.policy.real)
            made = node.name
        floor = finite(apply("sub", FIRST, Lit(headroom)) if headroom else FIRST, self.policy.lowest)
        result = self.pointwise("z", floor, (made,), kept, self.policy.real)
        self.sources[result] = self.sources[name].shared(over)
        self.made[key] = result
        return result

    def moved(self, pair: Pair, target: str, dims: tuple[Axis, ...], rest: Terms) -> Pair:
        """Returns `pair`, of one exponent, with exponent `target` in its place, and with `rest`."""
        ((own, count),) = pair.terms
        if pair.significand is None:
            expr = scaled_down(Lit(1.0), FIRST, SECOND, count)
            name = self.pointwise("s", expr, (own, target), dims, self.policy.real)
        else:
            expr = scaled_down(FIRST, SECOND, Arg(2), count)
            name = self.pointwise("s", expr, (pair.significand, own, target), dims, self.policy.real)
        return Pair(self.rounded(name, pair.dtype, dims), combined(((target, count),), rest))

    def rounded(self, name: str, dtype: DType | None, dims: tuple[Axis, ...]) -> str:
        """Returns `name` in `dtype`."""
        return name if dtype in (None, self.types[name].dtype) else self.pointwise("s", FIRST, (name,), dims, dtype)

    def significand(self, pair: Pair, dims: tuple[Axis, ...]) -> str:
        """Returns the significand as a value."""
        if pair.significand is not None:
            return pair.significand
        return self.rounded(self.pointwise("s", Lit(1.0), (), dims, self.policy.real), pair.dtype, dims)

    def plain(self, pair: Pair, dims: tuple[Axis, ...]) -> str:
        """Returns the item itself, for a reader that knows no pairs."""
        if not pair.terms:
            assert pair.significand is not None
            return pair.significand
        self.policy.exposed.update(origin for origin, _ in self.degree(pair.terms))
        whole = self.whole(pair.terms)
        if pair.significand is None:
            name = self.pointwise("x", restored(FIRST), (whole,), dims, self.policy.real)
        else:
            expr = product(FIRST, restored(SECOND))
            name = self.pointwise("x", expr, (pair.significand, whole), dims, self.policy.real)
        return self.rounded(name, pair.dtype, dims)


def _joined(dims: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Returns all axes of several items, those of the largest first."""
    return tuple(dict.fromkeys(a for d in sorted(dims, key=len, reverse=True) for a in d))


@dataclass(frozen=True, slots=True)
class Sym:
    """A part of an expression as a pair: `expr` over the values that are the arguments, times exp(terms)."""

    expr: Scalar
    terms: Terms = ()


@dataclass
class Expression:
    """The expression of one elementwise operator being rewritten; `args` collects the new operator's arguments."""

    work: PairWork
    node: Pointwise
    args: list[str] = field(default_factory=list[str])

    def arg(self, name: str) -> Arg:
        """Returns `name` as an argument of the new operator."""
        if name not in self.args:
            self.args.append(name)
        return Arg(self.args.index(name))

    def value(self, sym: Sym, wish: str) -> str:
        """Returns the expression of `sym` as a value of its own."""
        if isinstance(sym.expr, Arg):
            return self.args[sym.expr.index]
        used = sorted(arguments(sym.expr))
        args = tuple(self.args[i] for i in used)
        dims = tuple(a for a in self.node.dims if any(a in self.work.dims(n) for n in args))
        expr = substitute(sym.expr, lambda i: Arg(used.index(i)))
        return self.work.pointwise(wish, expr, args, dims, self.work.policy.real)

    def plain(self, sym: Sym) -> Scalar:
        """Returns `sym` for an operation that knows no pairs."""
        if not sym.terms:
            return sym.expr
        self.work.policy.exposed.update(origin for origin, _ in self.work.degree(sym.terms))
        return product(sym.expr, restored(self.arg(self.work.whole(sym.terms))))

    def settled(self, sym: Sym) -> Sym:
        """Moves the differences of `sym`'s exponents into its significand."""
        gone, left = self.work.settling(sym.terms)
        return Sym(self.plain(Sym(sym.expr, gone)), left) if gone else sym

    def together(self, left: Sym, right: Sym) -> tuple[Scalar, Scalar, Terms]:
        """Returns the significands of both, with one exponent: the greater of the two, where they differ."""
        for one, other in ((left, right), (right, left)):
            if is_zero(one.expr):
                return left.expr, right.expr, other.terms
        found = self._apart(left, right)
        if found is None:
            return self.plain(left), self.plain(right), ()
        common, count, names = found
        if not count:
            return left.expr, right.expr, common
        dims = _joined([self.work.dims(n) for n in names])
        greater = self.work.pointwise("z", joined(FIRST, SECOND), names, dims, self.work.policy.real)
        self.work.sources[greater] = self.work.sources[names[0]]
        one, other, top = (self.arg(n) for n in (*names, greater))
        terms = combined(common, ((greater, count),))
        return scaled_down(left.expr, one, top, count), scaled_down(right.expr, other, top, count), terms

    def chosen(self, condition: Scalar, left: Sym, right: Sym) -> Sym:
        """Chooses one or the other, with its own exponent: of what is not chosen, be it NaN, nothing is left."""
        for zero, other in ((left, right), (right, left)):
            if is_zero(zero.expr) and other.terms:
                return self._or_zero(condition, other, chosen_first=other is left)
        found = self._apart(left, right)
        if found is None:
            return Sym(apply("where", condition, self.plain(left), self.plain(right)))
        common, count, names = found
        expr = left.expr if left.expr == right.expr else apply("where", condition, left.expr, right.expr)
        if not count:
            return Sym(expr, common)
        raised = apply("where", condition, self.arg(names[0]), self.arg(names[1]))
        made = self._exponent(raised, self.work.sources[names[0]])
        return Sym(expr, combined(common, ((made, count),)))

    def _or_zero(self, condition: Scalar, sym: Sym, *, chosen_first: bool) -> Sym:
        """Returns `sym` or 0, whose exponent is -inf."""

        def where(value: Scalar, otherwise: Lit) -> Scalar:
            return apply("where", condition, *((value, otherwise) if chosen_first else (otherwise, value)))

        if len(sym.terms) != 1:
            return Sym(where(self.plain(sym), Lit(0.0)))
        name, count = self.work.positive(*sym.terms[0])
        made = self._exponent(where(self.arg(name), Lit(-math.inf)), self.work.sources[name])
        return Sym(sym.expr if sym.expr == Lit(1.0) else where(sym.expr, Lit(0.0)), ((made, count),))

    def _exponent(self, expr: Scalar, source: ExponentSource) -> str:
        made = self.value(Sym(expr), "x")
        self.work.sources[made] = source
        self.work.policy.runs(source, frozenset())  # what is not chosen must not have been greater
        return made

    def _apart(self, left: Sym, right: Sym) -> tuple[Terms, int, tuple[str, ...]] | None:
        """Compares two exponents: what they have in common, and the rest of each, so many times; None where neither can
        stand for the other.
        """
        work = self.work
        if left.terms == right.terms:
            return left.terms, 0, ()
        if work.degree(left.terms) != work.degree(right.terms):
            return None
        common = tuple(t for t in left.terms if t in right.terms)
        own = [[t for t in s.terms if t not in common] for s in (left, right)]
        if any(len(terms) != 1 for terms in own):
            return None
        (name, count), (other, again) = (work.positive(*terms[0]) for terms in own)
        if count != again or work.sources[name] != work.sources[other]:
            return None
        return common, count, (name, other)
