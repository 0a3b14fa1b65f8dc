"""One graph being rewritten: its new operators, and what each old value has become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.block.program import BlockNode, BlockType, Collapse, Graph, Pointwise
from weft.block.rename import fresh, values_of
from weft.fuse.safety.pairs import (
    FIRST,
    SECOND,
    Degree,
    Pair,
    Share,
    Terms,
    degree_of,
    product,
    scaled_down,
    sum_of,
)
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, Scalar, apply, arguments, substitute


@dataclass
class Policy:
    """What holds for the whole program.

    Attributes:
        share: which elements share an exponent where they must.
        headroom: how far an exponent stays below the maximum, so that narrow significands use their range.
        reduced: says of an axis whether anything is added up along it, here or where a list is read.
        plain: exponentials that stay as written, by number.
        real: the type of exponents, and of significands that nothing rounds.
        exposed: exponentials found to reach a place that needs their plain value: nothing is gained by a pair there.
        converted: exponentials that became pairs.
        harmless: exponentials that stay as written because what they raise is bounded.
    """

    share: Share
    headroom: float
    reduced: Callable[[Axis], bool]
    plain: frozenset[int]
    real: DType = DType.float32
    exposed: set[int] = field(default_factory=set[int])
    converted: set[int] = field(default_factory=set[int])
    harmless: set[int] = field(default_factory=set[int])
    count: int = 0

    @property
    def lowest(self) -> float:
        """The least exponent."""
        return self.real.lowest


@dataclass
class Work:
    """The state of one graph's rewriting.

    Attributes:
        types: of old and new values.
        values: what each old value has become.
        degrees: of the values that serve as exponents.
    """

    policy: Policy
    graph: Graph
    types: dict[str, BlockType]
    values: dict[str, Pair]
    degrees: dict[str, Degree]
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    made: dict[tuple[object, ...], str] = field(default_factory=dict[tuple[object, ...], str])

    def __post_init__(self) -> None:
        self.make = fresh(values_of(self.graph) | set(self.types))

    def dims(self, name: str) -> tuple[Axis, ...]:
        """The axes of an item."""
        return self.types[name].dims

    def pointwise(self, wish: str, expr: Scalar, args: Sequence[str], dims: Sequence[Axis], dtype: DType) -> str:
        """A new elementwise operator, or the one of the same meaning that is there."""
        key = (expr, tuple(args), tuple(dims), dtype)
        if key not in self.made:
            name = self.made[key] = self.make(wish)
            self.nodes.append(Pointwise(name, expr, tuple(args), tuple(dims), dtype))
            self.types[name] = BlockType((), tuple(dims), dtype)
        return self.made[key]

    def single(self, terms: Terms) -> str:
        """The exponent `terms` as one value."""
        if len(terms) == 1 and terms[0][1] == 1:
            return terms[0][0]
        names = [n for n, _ in terms]
        expr = sum_of((Arg(i), c) for i, (_, c) in enumerate(terms))
        dims = _joined([self.dims(n) for n in names])
        name = self.pointwise("e", expr, names, dims, self.policy.real)
        self.degrees[name] = degree_of(terms, self.degrees)
        return name

    def degree(self, terms: Terms) -> Degree:
        """How often each exponential is a factor of exp(terms)."""
        return degree_of(terms, self.degrees)

    def shared(self, pair: Pair, over: frozenset[Axis], dims: tuple[Axis, ...]) -> Pair:
        """`pair`, an item of axes `dims`, with an exponent that does not vary along `over`."""
        varying = [n for n, _ in pair.terms if over.intersection(self.dims(n))]
        if not varying:
            return pair
        whole = self.single(pair.terms)
        if self.policy.share is Share.block:
            over = frozenset(self.dims(whole))
        return self.moved(pair, self.maximum(whole, over), dims)

    def maximum(self, name: str, over: frozenset[Axis]) -> str:
        """An exponent for all elements of `name` that differ along `over` alone: their maximum, less the headroom, and finite.

        Where all are -inf the differences to it are -inf, and the significands 0.
        """
        dims = self.dims(name)
        kept = tuple(a for a in dims if a not in over)
        if ("maximum", name, kept) in self.made:
            return self.made["maximum", name, kept]
        made = name
        for axis in (a for a in reversed(dims) if a in over):
            node = Collapse(self.make("z"), Monoid.max, made, axis)
            self.nodes.append(node)
            self.types[node.name] = BlockType((), tuple(a for a in self.dims(made) if a != axis), self.policy.real)
            made = node.name
        floor: Scalar = apply("maximum", FIRST, Lit(self.policy.lowest))
        if self.policy.headroom:
            floor = apply("maximum", apply("sub", FIRST, Lit(self.policy.headroom)), Lit(self.policy.lowest))
        result = self.pointwise("z", floor, (made,), kept, self.policy.real)
        self.degrees[result] = self.degrees[name]
        self.made["maximum", name, kept] = result
        return result

    def moved(self, pair: Pair, target: str, dims: tuple[Axis, ...]) -> Pair:
        """`pair` with exponent `target` in place of its own."""
        whole = self.single(pair.terms)
        if pair.significand is None:
            expr = scaled_down(Lit(1.0), FIRST, SECOND)
            name = self.pointwise("s", expr, (whole, target), dims, self.policy.real)
        else:
            expr = scaled_down(FIRST, SECOND, Arg(2))
            name = self.pointwise("s", expr, (pair.significand, whole, target), dims, self.policy.real)
        return Pair(self.rounded(name, pair.dtype, dims), ((target, 1),))

    def rounded(self, name: str, dtype: DType | None, dims: tuple[Axis, ...]) -> str:
        """`name` in `dtype`."""
        return name if dtype in (None, self.types[name].dtype) else self.pointwise("s", FIRST, (name,), dims, dtype)

    def significand(self, pair: Pair, dims: tuple[Axis, ...]) -> str:
        """The significand as a value."""
        if pair.significand is not None:
            return pair.significand
        return self.rounded(self.pointwise("s", Lit(1.0), (), dims, self.policy.real), pair.dtype, dims)

    def plain(self, pair: Pair, dims: tuple[Axis, ...]) -> str:
        """The item itself, for a reader that knows no pairs."""
        if not pair.terms:
            assert pair.significand is not None
            return pair.significand
        self.policy.exposed.update(origin for origin, _ in self.degree(pair.terms))
        whole = self.single(pair.terms)
        if pair.significand is None:
            name = self.pointwise("x", apply("exp", FIRST), (whole,), dims, self.policy.real)
        else:
            expr = product(FIRST, apply("exp", SECOND))
            name = self.pointwise("x", expr, (pair.significand, whole), dims, self.policy.real)
        return self.rounded(name, pair.dtype, dims)


def _joined(dims: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """All axes of several items, those of the largest first."""
    return tuple(dict.fromkeys(a for d in sorted(dims, key=len, reverse=True) for a in d))


@dataclass(frozen=True, slots=True)
class Sym:
    """A part of an expression as a pair: `expr` over the values that are the arguments, times exp(terms)."""

    expr: Scalar
    terms: Terms = ()


@dataclass
class Expression:
    """The expression of one elementwise operator being rewritten; `args` collects the new operator's arguments."""

    work: Work
    node: Pointwise
    args: list[str] = field(default_factory=list[str])

    def arg(self, name: str) -> Arg:
        """`name` as an argument of the new operator."""
        if name not in self.args:
            self.args.append(name)
        return Arg(self.args.index(name))

    def value(self, sym: Sym, wish: str) -> str:
        """The expression of `sym` as a value of its own."""
        if isinstance(sym.expr, Arg):
            return self.args[sym.expr.index]
        used = sorted(arguments(sym.expr))
        args = tuple(self.args[i] for i in used)
        dims = tuple(a for a in self.node.dims if any(a in self.work.dims(n) for n in args))
        expr = substitute(sym.expr, lambda i: Arg(used.index(i)))
        return self.work.pointwise(wish, expr, args, dims, self.work.policy.real)

    def plain(self, sym: Sym) -> Scalar:
        """`sym` for an operation that knows no pairs."""
        if not sym.terms:
            return sym.expr
        self.work.policy.exposed.update(origin for origin, _ in self.work.degree(sym.terms))
        return product(sym.expr, apply("exp", self.arg(self.work.single(sym.terms))))

    def together(self, left: Sym, right: Sym) -> tuple[Scalar, Scalar, Terms]:
        """The significands of both, with one exponent: the greater of the two, where they differ."""
        for one, other in ((left, right), (right, left)):
            if one.expr == Lit(0.0) or one.expr == Lit(0):
                return left.expr, right.expr, other.terms
        if left.terms == right.terms:
            return left.expr, right.expr, left.terms
        work = self.work
        if work.degree(left.terms) != work.degree(right.terms) or not left.terms or not right.terms:
            return self.plain(left), self.plain(right), ()
        one, other = self.arg(work.single(left.terms)), self.arg(work.single(right.terms))
        names = [self.args[one.index], self.args[other.index]]
        dims = _joined([work.dims(n) for n in names])
        greater = work.pointwise("z", apply("maximum", FIRST, SECOND), names, dims, work.policy.real)
        work.degrees[greater] = work.degree(left.terms)
        top = self.arg(greater)
        return scaled_down(left.expr, one, top), scaled_down(right.expr, other, top), ((greater, 1),)
