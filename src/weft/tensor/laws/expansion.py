"""The law of distribution: a sum of products of sums is expanded term by term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from weft.tensor.axes import Axis
from weft.tensor.laws.cleaning import form_of, merge_equal, remove_dead
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import Bears, Conditioning, tensor_pass
from weft.tensor.program import Elementwise, Extent, Monoid, Node, Reduction, TensorProgram, Use, reads_through, uses
from weft.tensor.scalar import Apply, Arg, Lit, Scalar

_LARGEST = 16
"""Terms and depth up to which an expression is taken apart."""


@tensor_pass(Conditioning.cancels, Bears.checked)
def expand_sums(program: TensorProgram) -> TensorProgram:
    """Expands sums of products of sums into terms that can be summed without waiting for another sum.

        c[m] = (sum over k of x[m, k]) / K                        q[m] = sum over k of x[m, k] * x[m, k]
        v[m] = (sum over k of (x[m, k] - c[m]) ** 2) / K   ==>    v[m] = q[m] / K - c[m] * c[m]

    What is summed is multiplied out as far as it has terms that lack the axes; factors that lack them are pulled out of the sum,
    and the sum of 1 is the number of elements. A sum that something divides by its number of elements is that many times the
    quotient, and terms that are then alike are added up; a quotient by a number of elements is divided term by term.

    Condition: floats; up to 16 terms. Conditioning: cancels, as raw moments do: right as algebra, and useless far from zero. So
    this is for derivations, and no kernel is made with it.
    """
    done: set[str] = set()
    while True:
        expansion = _Expansion(program, done)
        if (made := expansion.expanded()) is None:
            return program
        program = remove_dead(merge_equal(made))


_Monomial: TypeAlias = tuple[tuple[Use, int], ...]
"""Powers of values, by position in the program."""

_Polynomial: TypeAlias = dict[_Monomial, Fraction]


@dataclass
class _Expansion(Draft):
    """`done`: sums that have been looked at; `nodes` are those that one sum needs."""

    done: set[str]
    position: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.position = {name: i for i, name in enumerate(self.values)}

    def expanded(self) -> TensorProgram | None:
        """Returns the program with its first sum that has something to expand expanded."""
        for node in self.program.nodes:
            if isinstance(node, Reduction) and node.monoid is Monoid.sum and node.name not in self.done:
                self.done.add(node.name)
                terms = self.polynomial(node.arg, frozenset(node.over), 0) if node.dtype.is_float else {}
                if len(terms) > 1:
                    return self.replaced(node, terms)
        return None

    # From values to polynomials.

    def polynomial(self, use: Use, over: frozenset[Axis], depth: int) -> _Polynomial:
        """Takes `use` apart as far as there are terms that lack the axes `over`."""
        whole: _Polynomial = {((use, 1),): Fraction(1)}
        node = self.values[use.value]
        if not over & set(use.axes) or not isinstance(node, Elementwise) or not node.dtype.is_float or depth > _LARGEST:
            return whole
        args = reads_through(node, use)

        def part(of: Scalar) -> _Polynomial | None:
            match of:
                case Arg(index):
                    return self.polynomial(args[index], over, depth + 1)
                case Lit(value) if isfinite(value):
                    return {(): Fraction(value)}
                case _:
                    return None

        found = self.combined(node.expr, [part(a) for a in node.expr.args] if isinstance(node.expr, Apply) else [])
        if found is None or len(found) > _LARGEST:
            return whole
        free = [m for m in found if not any(over & set(u.axes) for u, _ in m)]
        is_sum = isinstance(node.expr, Apply) and node.expr.op in ("add", "sub")
        return whole if is_sum and not free else found

    def combined(self, expr: Scalar, parts: list[_Polynomial | None]) -> _Polynomial | None:
        """Returns the polynomial that one operation makes of its operands'; None where it makes none."""
        match expr, parts:
            case Apply("add" | "sub" as op, _), [dict() as left, dict() as right]:
                sign = Fraction(1 if op == "add" else -1)
                return _sum((*left.items(), *((m, sign * f) for m, f in right.items())))
            case Apply("mul", _), [dict() as left, dict() as right]:
                return self.product(left, right)
            case Apply("neg", _), [dict() as inner]:
                return {m: -f for m, f in inner.items()}
            case Apply("div", (_, Lit(value))), [dict() as left, _] if value:
                return {m: f / Fraction(value) for m, f in left.items()}
            case Apply("pow", (_, Lit(2))), [dict() as inner, _]:
                return self.product(inner, inner)
            case _:
                return None

    def product(self, left: _Polynomial, right: _Polynomial) -> _Polynomial:
        """Multiplies term by term."""
        pairs = ((a, b, f * g) for a, f in left.items() for b, g in right.items())
        return _sum((self.times(a, b), factor) for a, b, factor in pairs)

    def times(self, left: _Monomial, right: _Monomial) -> _Monomial:
        """Returns the product of two monomials."""
        powers = dict(left)
        for use, power in right:
            powers[use] = powers.get(use, 0) + power
        kept = [(u, p) for u, p in powers.items() if p]
        return tuple(sorted(kept, key=lambda t: (self.position[t[0].value], [a.name for a in t[0].axes])))

    # Sums.

    def replaced(self, node: Reduction, terms: _Polynomial) -> TensorProgram:
        """Returns the program with the sum `node` of `terms` as a polynomial in simpler sums, divided by what its
        reader divides by.
        """
        over = frozenset(node.over)
        total: _Polynomial = {}
        for monomial, factor in terms.items():
            summed = tuple((u, p) for u, p in monomial if over & set(u.axes))
            pulled = tuple(t for t in monomial if t not in summed)
            sums = self.sum_of(node, summed) if summed else self.count(node.over, node)
            total = _sum((*total.items(), (self.times(pulled, self.simpler(sums, node)), factor)))
        root: Reduction | Elementwise = node
        divisor = self.divisor(node)
        if divisor is not None:
            root, by = divisor
            bound = dict(zip(node.axes, next(u for u in root.args if u.value == node.name).axes, strict=True))
            inverse = tuple((u, -p) for u, p in by)
            total = _sum((self.times(_over(m, bound), inverse), f) for m, f in total.items())
        new = self.spelled(root, total)
        nodes = [n for old in self.program.nodes for n in ((*self.nodes, new) if old.name == root.name else (old,))]
        return replace(self.program, nodes=tuple(nodes))

    def sum_of(self, node: Reduction, monomial: _Monomial) -> _Monomial:
        """Returns the sum of a monomial over `node`'s axes: one that is there, or a new one."""
        use = self.multiplied(monomial, (*node.axes, *node.over), node)
        made = replace(node, name=self.fresh(node.name), arg=use)
        found = next((n for n in self.program.nodes if isinstance(n, Reduction) and form_of(n) == form_of(made)), None)
        # One that reads along other axes is the same value only where its own axes are in this order too.
        if found is not None and self.position[found.name] < self.position[node.name]:
            return ((Use(found.name, node.axes), 1),)
        return ((self.append(made), 1),)

    def count(self, over: Iterable[Axis], node: Reduction) -> _Monomial:
        """Returns the number of elements along `over` as a product of extents."""
        counts: _Monomial = ()
        for axis in over:
            known = (n for n in self.values.values() if isinstance(n, Extent) and n.space == axis.space)
            extent = next((n for n in known if n.dtype is node.dtype), None)
            if extent is None or self.position[extent.name] > self.position[node.name]:
                extent = Extent(self.fresh("extent"), (), node.dtype, axis.space)
                self.append(extent)
            counts = self.times(counts, ((Use(extent.name, ()), 1),))
        return counts

    def simpler(self, sums: _Monomial, node: Reduction) -> _Monomial:
        """Returns a sum as so many times its mean, where the program has that before `node`."""
        if len(sums) != 1:
            return sums
        ((use, _),) = sums
        for mean in self.program.nodes[: self.program.nodes.index(node)]:
            match mean:
                case Elementwise(expr=Apply("div", (Arg(0), Arg(1))), args=(total, by)) if total.value == use.value:
                    counts = self.extents(by)
                    if counts is not None and set(total.axes) == set(mean.axes):
                        bound = dict(zip(total.axes, use.axes, strict=True))
                        return self.times(counts, ((Use(mean.name, tuple(bound[a] for a in mean.axes)), 1),))
                case _:
                    pass
        return sums

    def divisor(self, node: Reduction) -> tuple[Elementwise, _Monomial] | None:
        """Returns the one reader of `node`, and the numbers of elements that it divides by."""
        readers = [n for n in self.program.nodes for name in uses(n) if name == node.name]
        if len(readers) != 1 or node.name in self.program.outputs:
            return None
        match readers[0]:
            case Elementwise(expr=Apply("div", (Arg(0), Arg(1))), args=(total, by)) as reader:
                counts = self.extents(by)
                fits = total.value == node.name and set(total.axes) == set(reader.axes)
                return None if counts is None or not fits else (reader, counts)
            case _:
                return None

    def extents(self, use: Use) -> _Monomial | None:
        """Returns `use` as a product of numbers of elements."""
        match self.values[use.value]:
            case Extent():
                return ((use, 1),)
            case Elementwise(axes=(), expr=Apply("mul", (Arg(0), Arg(1))), args=(left, right)):
                one, other = self.extents(left), self.extents(right)
                return None if one is None or other is None else self.times(one, other)
            case _:
                return None

    # From polynomials to nodes.

    def spelled(self, root: Reduction | Elementwise, total: _Polynomial) -> Node:
        """Makes a node named as `root` that computes `total`; the nodes before it are in `nodes`."""
        ordered = sorted(total.items(), key=lambda t: (t[1] < 0, sum(p for _, p in t[0]), len(t[0])))
        value: Use | Lit = Lit(0.0)
        for monomial, factor in ordered:
            part = self.multiplied(monomial, root.axes, root, abs(factor))
            if value == Lit(0.0):
                value = part if factor > 0 else self.each("neg", (part,), root)
            else:
                value = self.each("add" if factor > 0 else "sub", (value, part), root)
        last = self.nodes[-1] if self.nodes else None
        if isinstance(last, Elementwise) and value == Use(last.name, root.axes):
            self.nodes.pop()
            return replace(last, name=root.name)
        args = (value,) if isinstance(value, Use) else ()
        return Elementwise(root.name, root.axes, root.dtype, Arg(0) if args else Lit(0.0), args, root.location)

    def multiplied(
        self, monomial: _Monomial, axes: tuple[Axis, ...], root: Reduction | Elementwise, factor: Fraction = Fraction(1)
    ) -> Use:
        """Returns a use of the product of a monomial and a number, over those of `axes` that it has."""
        over = [u for u, p in monomial for _ in range(p)]
        under = [u for u, p in monomial for _ in range(-p)]
        value: Use | Lit = over[0] if over else Lit(float(factor))
        for use in over[1:]:
            value = self.each("mul", (value, use), root, axes)
        for use in under:
            value = self.each("div", (value, use), root, axes)
        if over and factor != 1:
            value = self.each("mul", (value, Lit(float(factor))), root, axes)
        return value if isinstance(value, Use) else self.each("mul", (value, Lit(1.0)), root, ())

    def each(
        self,
        op: str,
        operands: tuple[Use | Lit, ...],
        root: Reduction | Elementwise,
        axes: tuple[Axis, ...] | None = None,
    ) -> Use:
        """Makes an elementwise node, and returns a use of it."""
        args = list(dict.fromkeys(o for o in operands if isinstance(o, Use)))
        own = tuple(a for a in (root.axes if axes is None else axes) if any(a in u.axes for u in args))
        expr = Apply(op, tuple(o if isinstance(o, Lit) else Arg(args.index(o)) for o in operands))
        made = Elementwise(self.fresh(root.name), own, root.dtype, expr, tuple(args), root.location)
        return self.append(made)

    def append(self, node: Node) -> Use:
        """Appends a node, after all others."""
        self.position[node.name] = len(self.position)
        return super().append(node)


def _sum(terms: Iterable[tuple[_Monomial, Fraction]]) -> _Polynomial:
    total: _Polynomial = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, Fraction(0)) + factor
    return {m: f for m, f in total.items() if f}


def _over(monomial: _Monomial, bound: Mapping[Axis, Axis]) -> _Monomial:
    return tuple((u.within(bound), p) for u, p in monomial)
