"""The law of shifts: a factor that cancels in all results of a program need not be computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from weft.tensor.axes import Axis
from weft.tensor.laws.cleaning import merge_equal, remove_dead
from weft.tensor.laws.elementwise import split_elementwise
from weft.tensor.laws.finite import FiniteAsRaised, is_exponential
from weft.tensor.laws.names import fresh
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    reads_through,
    uses,
)
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, substitute


def cancel_shifts(program: TensorProgram, but: Collection[str] = ()) -> TensorProgram:
    """Returns `program` without the shifts under exponentials whose effect cancels; `program` itself where there is none.

    Exponentials named in `but`, as `split_elementwise` calls them, keep theirs.

        c[m] = max over n of x[m, n]              e[m, n] = exp(x[m, n])
        e[m, n] = exp(x[m, n] - c[m])      ==>    t[m] = sum over n of e[m, n]
        t[m] = sum over n of e[m, n]              return e[m, n] / t[m]
        return e[m, n] / t[m]

    Condition: c lacks an axis of the exponential, and is a term of what is raised: through sums, differences, signs and
    products with numbers. It is made of extrema and sums of what stays raised, of logarithms of sums of such exponentials, or
    of element numbers and constants: an infinity or a NaN in any other value, as a bias for each row, would no longer show. With
    g = exp(c), each value derived from such exponentials is what it was times a power of g; the shift cancels where that power
    is 0 for every output, and for all that is read by something that is not homogeneous. Powers add in products and
    contractions, subtract in quotients, and must be equal in sums, differences, branches and extrema (g > 0), where an exact 0
    has any power; a sum or extremum over axes keeps the power where c has none of them. The nodes that computed c are removed
    if nothing else reads them.

    Conditioning: none of its own, ill-conditioned alone: exp(x) overflows where exp(x - max x) cannot. The result must be
    made safe before it runs on numbers; that pass then also takes care of infinities and NaN. Where c is -inf, as the maximum
    of a row that is all -inf, both sides give NaN: -inf - -inf there, and 0 / 0 here. Of a mean, a
    minimum, and an extremum of several rows that is not so: one -inf makes all of the row NaN, or all rows, only with the shift.
    Such inputs are the judge's.
    """
    before = split = split_elementwise(program)
    found = _cancelled(split, but)
    if found is None:
        return program
    while found is not None:
        # One that never had a shift may be a result itself: what has lost its own can do without it as a pair alone.
        split = remove_dead(merge_equal(found, lost_shifts(before, found)))
        found = _cancelled(split, but)
    return split


def lost_shifts(before: TensorProgram, after: TensorProgram) -> frozenset[str]:
    """Returns the exponentials of `after`, which is `before` with elementwise operations split, that are not the same there."""
    known = split_elementwise(before).values()
    return frozenset(n.name for n in after.nodes if is_exponential(n) and n != known.get(n.name))


@dataclass(frozen=True, slots=True)
class _Shift:
    """A term of what the exponential `of` raises, along axes of `of`."""

    of: str
    term: Use


_Binding: TypeAlias = tuple[Axis, ...]
"""The axes of a value along which g varies, one for each axis of c."""


@dataclass(frozen=True, slots=True)
class _Degree:
    """The power of g along one binding, and the shifts that it comes from."""

    power: Fraction
    shifts: frozenset[_Shift]


_Degrees: TypeAlias = Mapping[_Binding, _Degree]
"""Powers other than 0. A value may have several: g[m] g[n] is not g[m] squared."""


def _cancelled(program: TensorProgram, but: Collection[str]) -> TensorProgram | None:
    """Returns `program` without the shifts by one value; None where none cancels."""
    values = program.values()
    position = {name: i for i, name in enumerate(values)}
    raised: dict[str, _Raised] = {}
    for node in program.nodes:
        match node:
            case Elementwise(expr=Apply("exp", (Arg(),)), args=(use,)) if node.name not in but:
                raised[node.name] = _Raised(node, use, values, position)
            case _:
                pass
    by_value: dict[str, dict[_Shift, Fraction]] = {}
    for name, sum_ in raised.items():
        for term, factor in sum_.shifts.items():
            by_value.setdefault(term.value, {})[_Shift(name, term)] = factor
    for value, shifts in by_value.items():
        together = {use.value for shift in shifts for use in raised[shift.of].sums}
        kept = _harmless(program, raised, shifts) if FiniteAsRaised(values, together).of(value) else None
        if kept:
            return _without(program, raised, kept)
    return None


def _harmless(
    program: TensorProgram, raised: Mapping[str, _Raised], shifts: Mapping[_Shift, Fraction]
) -> frozenset[_Shift]:
    """Returns the largest part of `shifts`, all by one value, that cancels together."""
    kept = frozenset(shifts)
    while kept:
        wrong = _Powers(program.values(), {s: f for s, f in shifts.items() if s in kept}).wrong(program)
        # An exponential of nothing is left alone: it is no longer one over any axes.
        wrong |= {s for s in kept if raised[s.of].whole(t.term for t in kept if t.of == s.of)}
        if not wrong:
            return kept
        kept -= wrong
    return kept


@dataclass
class _Raised:
    """What one exponential raises, as a sum of terms.

    Attributes:
        node: the exponential.
        use: what it raises.
        sums: the sums that this was found to be, by use.
        shifts: the terms that lack one of its axes, with their factors.
    """

    node: Elementwise
    use: Use
    values: Mapping[str, Node]
    position: Mapping[str, int]
    sums: dict[Use, list[tuple[Use, Fraction]]] = field(default_factory=dict[Use, "list[tuple[Use, Fraction]]"])
    shifts: dict[Use, Fraction] = field(default_factory=dict[Use, Fraction])

    def __post_init__(self) -> None:
        axes = set(self.node.axes)
        pending = {self.use: Fraction(1)}
        while pending:  # the latest first, so that each is met once, with its whole factor
            use = max(pending, key=lambda u: self.position[u.value])
            factor = pending.pop(use)
            if set(use.axes) < axes:
                if factor:
                    self.shifts[use] = factor
                continue
            self.sums[use] = _terms(self.values[use.value], use)
            for term, times in self.sums[use]:
                pending[term] = pending.get(term, Fraction(0)) + factor * times

    def whole(self, terms: Iterable[Use]) -> bool:
        """Tells whether without `terms` nothing but numbers is left of what is raised, or of a part of it."""
        gone = set(terms)
        for use, parts in reversed(self.sums.items()):
            if parts and all(part in gone for part, _ in parts):
                gone.add(use)
                if _has_offset(self.values[use.value]):
                    return True
        return self.use in gone

    def without(self, terms: Iterable[Use], taken: set[str]) -> tuple[Use, list[Node]]:
        """Returns the exponent without `terms`, and the nodes that compute it."""
        changed: dict[Use, Use | None] = dict.fromkeys(terms)
        made: list[Node] = []
        for use, parts in reversed(self.sums.items()):
            if any(part in changed for part, _ in parts):
                node = _without_terms(self.values[use.value], use, changed)
                if isinstance(node, Elementwise | Cast):
                    node = replace(node, name=fresh(node.name, taken))
                    made.append(node)
                    changed[use] = Use(node.name, use.axes)
                else:
                    changed[use] = node
        left = changed[self.use]
        assert left is not None  # `whole` has seen to that
        return left, made


def _terms(node: Node, use: Use) -> list[tuple[Use, Fraction]]:
    """Returns the terms that `use` of `node` is the sum of, as far as one node shows, and their factors."""
    match node:
        case Elementwise(expr=expr):
            read = reads_through(node, use)
            return [(read[i], factor) for i, factor in _linear(expr)]
        case Cast(semantic=False):
            return [(reads_through(node, use)[0], Fraction(1))]
        case _:
            return []


def _linear(expr: Scalar) -> list[tuple[int, Fraction]]:
    """Returns the arguments that `expr` is the sum of, up to a number, with their factors; empty where it is no sum."""
    one = Fraction(1)
    match expr:
        case Arg(i):
            return [(i, one)]
        case Apply("neg", (Arg(i),)):
            return [(i, -one)]
        case Apply("add" | "sub" as op, (first, second)):
            signs = ((first, one), (second, one if op == "add" else -one))
            return [(a.index, sign) for a, sign in signs if isinstance(a, Arg)]
        case Apply("mul", (Arg(i), Lit(value)) | (Lit(value), Arg(i))) if isfinite(value):
            return [(i, Fraction(value))]
        case Apply("div", (Arg(i), Lit(value))) if isfinite(value) and value:
            return [(i, 1 / Fraction(value))]
        case _:
            return []


def _has_offset(node: Node) -> bool:
    """Tells whether `node` adds a number to its terms."""
    match node:
        case Elementwise(expr=Apply("add" | "sub", args)):
            return any(isinstance(a, Lit) for a in args)
        case _:
            return False


def _without_terms(node: Node, use: Use, changed: Mapping[Use, Use | None]) -> Elementwise | Cast | Use | None:
    """Returns `use` of `node` with its terms `changed`, None for a 0: a node over `use`'s axes, a use, or None."""
    match node:
        case Elementwise():
            args = [changed.get(u, u) for u in reads_through(node, use)]
            rest = [a for a in args if a is not None]
            distinct = list(dict.fromkeys(rest))

            def argument(index: int) -> Scalar:
                arg = args[index]
                return Lit(0.0) if arg is None else Arg(distinct.index(arg))

            expr = _plain(substitute(node.expr, argument))
            if expr == Lit(0.0):
                return None
            if isinstance(expr, Arg) and set(distinct[expr.index].axes) == set(use.axes):
                return distinct[expr.index]
            return replace(node, axes=use.axes, expr=expr, args=tuple(distinct))
        case Cast():
            arg = changed[reads_through(node, use)[0]]
            return None if arg is None else replace(node, axes=use.axes, arg=arg)
        case _:
            raise AssertionError(node)


def _plain(expr: Scalar) -> Scalar:
    """Returns `expr`, of one operation, with what it does to a term that is 0 left out."""
    zero = Lit(0.0)
    match expr:
        case Apply("add", (left, right)) if zero in (left, right):
            return right if left == zero else left
        case Apply("sub", (left, right)) if right == zero:
            return left
        case Apply("sub", (left, right)) if left == zero:
            return apply("neg", right)
        case Apply("neg" | "mul" | "div", args) if zero in args:
            return zero
        case _:
            return expr


def _without(program: TensorProgram, raised: Mapping[str, _Raised], shifts: Iterable[_Shift]) -> TensorProgram:
    terms: dict[str, list[Use]] = {}
    for shift in shifts:
        terms.setdefault(shift.of, []).append(shift.term)
    taken = set(program.values())
    nodes: list[Node] = []
    for node in program.nodes:
        if node.name in terms:
            use, made = raised[node.name].without(terms[node.name], taken)
            nodes += [*made, with_uses(node, lambda _, use=use: use)]
        else:
            nodes.append(node)
    return replace(program, nodes=tuple(nodes))


# Powers.


@dataclass
class _Powers:
    """The power of g in each value, were `removed` not there; None for an exact 0, which has any."""

    values: Mapping[str, Node]
    removed: Mapping[_Shift, Fraction]
    of: dict[str, _Degrees | None] = field(default_factory=dict[str, "_Degrees | None"])
    culprits: set[_Shift] = field(default_factory=set[_Shift])

    def wrong(self, program: TensorProgram) -> frozenset[_Shift]:
        """Returns the shifts on which a result depends that must not; empty if all cancel."""
        for node in (*program.inputs, *program.nodes):
            self.of[node.name] = self.degrees(node)
        for name in program.outputs:
            self.none(self.of[name])
        return frozenset(self.culprits)

    def degrees(self, node: Node) -> _Degrees | None:
        """Computes the degrees of a node's value; None for 0."""
        match node:
            case Constant(value=0):
                return None
            case Input() | Constant() | Iota() | Extent():
                return {}
            case Elementwise():
                found = self.scalar(node.expr, [self.at(u) for u in node.args])
                own = {s: f for s, f in self.removed.items() if s.of == node.name}
                for shift, factor in own.items():
                    found = _times(found, {shift.term.axes: _Degree(-factor, frozenset((shift,)))})
                return found
            case Contraction():
                return self.summed(_times(self.at(node.left), self.at(node.right)), node.over)
            case Reduction(monoid=Monoid.prod):
                return self.none(self.at(node.arg))
            case Reduction():
                return self.summed(self.at(node.arg), node.over)
            case Ranking() | Cast():
                exact = isinstance(node, Ranking) or node.semantic
                return self.none(self.at(node.arg)) if exact else self.at(node.arg)
            case Reindex():
                return self.moved(node)
            case Scan() | Lookup() | Opaque():
                for value in uses(node):
                    self.none(self.of[value])
                return {}

    def at(self, use: Use) -> _Degrees | None:
        """Returns the degrees of a use."""
        found = self.of[use.value]
        if not found:
            return found
        bound = dict(zip(self.values[use.value].axes, use.axes, strict=True))
        return {tuple(bound[a] for a in binding): degree for binding, degree in found.items()}

    def moved(self, node: Reindex) -> _Degrees | None:
        """Computes the degrees of a reindexing: g moves along where its axes remain axes."""
        found = self.of[node.source]
        if not found:
            return found
        at = dict(zip(self.values[node.source].axes, (i.axis for i in node.index), strict=True))
        moved: dict[_Binding, _Degree] = {}
        for binding, degree in found.items():
            axes = [at[a] for a in binding]
            plain = tuple(a for a in axes if a is not None)
            if len(plain) == len(axes):
                moved[plain] = degree
            else:
                self.none({binding: degree})
        return moved

    def scalar(self, expr: Scalar, args: Sequence[_Degrees | None]) -> _Degrees | None:
        """Computes the degrees of an expression over arguments of these degrees."""
        match expr:
            case Arg(index):
                return args[index]
            case Lit(value):
                return {} if value else None
            case Apply("neg", (inner,)):
                return self.scalar(inner, args)
            case Apply("mul", (left, right)):
                return _times(self.scalar(left, args), self.scalar(right, args))
            case Apply("div", (left, right)):
                divisor = self.scalar(right, args)
                return _times(self.scalar(left, args), _power(divisor or {}, -1))
            case Apply("pow", (base, Lit(int() | float() as exponent))) if exponent == exponent // 1:
                return _power(self.scalar(base, args) or {}, int(exponent))
            case Apply("add" | "sub" | "maximum" | "minimum", (left, right)):
                return self.alike(self.scalar(left, args), self.scalar(right, args))
            case Apply("where", (mask, left, right)):
                self.none(self.scalar(mask, args))
                return self.alike(self.scalar(left, args), self.scalar(right, args))
            case Apply(_, inner):
                for each in inner:
                    self.none(self.scalar(each, args))
                return {}
            case Convert(_, inner):
                return self.none(self.scalar(inner, args))

    def alike(self, left: _Degrees | None, right: _Degrees | None) -> _Degrees | None:
        """Combines the degrees of the parts of a sum or a choice, which must be equal."""
        if left is None or right is None:
            return right if left is None else left
        both: dict[_Binding, _Degree] = {}
        for binding in (*left, *right):
            one, other = left.get(binding, _NONE), right.get(binding, _NONE)
            both[binding] = _Degree(one.power, one.shifts | other.shifts)
            if one.power != other.power:
                self.none({binding: both[binding]})
        return both

    def summed(self, degrees: _Degrees | None, over: Sequence[Axis]) -> _Degrees | None:
        """Computes the degrees of a sum or extremum over axes, along which no g may vary."""
        if degrees is None:
            return None
        along = {binding for binding in degrees if set(binding) & set(over)}
        self.none({binding: degrees[binding] for binding in along})
        return {binding: degree for binding, degree in degrees.items() if binding not in along}

    def none(self, degrees: _Degrees | None) -> _Degrees:
        """Requires degree 0, and notes the shifts of any other degree."""
        for degree in (degrees or {}).values():
            self.culprits |= degree.shifts
        return {}


_NONE = _Degree(Fraction(0), frozenset())


def _times(left: _Degrees | None, right: _Degrees | None) -> _Degrees | None:
    """Adds the degrees of the factors of a product; it is 0 where either is 0."""
    if left is None or right is None:
        return None
    product = dict(left)
    for binding, degree in right.items():
        old = product.pop(binding, _NONE)
        if old.power + degree.power:
            product[binding] = _Degree(old.power + degree.power, old.shifts | degree.shifts)
    return product


def _power(degrees: _Degrees, exponent: int) -> _Degrees:
    """Multiplies degrees by a whole exponent."""
    return {b: replace(d, power=d.power * exponent) for b, d in degrees.items()} if exponent else {}
