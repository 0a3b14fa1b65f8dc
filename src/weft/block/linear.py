"""Linear: integers that are so many times indices, quotients of these, and sizes; a condition is one that is at least 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from weft.block.order import larger
from weft.block.roles import AXES
from weft.block.size import Begin, Elements, Size, Valid, blocks_of, minus, plus, times
from weft.tensor.axes import Axis, Space


@dataclass(frozen=True, slots=True)
class Quotient:
    """A number divided by a positive one, rounded down."""

    of: Linear = field(metadata=AXES)
    by: int

    def extreme(self, *, greatest: bool) -> Size:
        """Bound it as `Linear.extreme` does: rounded down on both sides of 0."""
        found = self.of.extreme(greatest=greatest)
        up = blocks_of(larger(0, minus(found, self.by - 1)), self.by)
        return up if self.of.natural else minus(up, blocks_of(larger(0, minus(0, found)), self.by))

    def __str__(self) -> str:
        return f"({self.of})//{self.by}"


IndexTerm: TypeAlias = Axis | Quotient
"""The element number along an axis, or a quotient of such numbers."""


@dataclass(frozen=True, slots=True)
class Linear:
    """An integer: so many times each term, plus so many times each size, plus a constant. No zero factors, sorted by name."""

    terms: tuple[tuple[IndexTerm, int], ...] = field(default=(), metadata=AXES)
    sizes: tuple[tuple[Space, int], ...] = ()
    constant: int = 0

    @staticmethod
    def index(axis: Axis) -> Linear:
        """Return the element number along `axis`."""
        return Linear(((axis, 1),))

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """Add `other`, so many times."""
        terms, sizes = dict(self.terms), dict(self.sizes)
        for term, factor in other.terms:
            terms[term] = terms.get(term, 0) + times * factor
        for space, factor in other.sizes:
            sizes[space] = sizes.get(space, 0) + times * factor
        return Linear(
            tuple(sorted(((t, f) for t, f in terms.items() if f), key=lambda p: str(p[0]))),
            tuple(sorted(((s, f) for s, f in sizes.items() if f), key=lambda p: p[0].name)),
            self.constant + times * other.constant,
        )

    def more(self, constant: int) -> Linear:
        """Add a number."""
        return Linear(self.terms, self.sizes, self.constant + constant)

    def times(self, factor: int) -> Linear:
        """Multiply by a number."""
        return Linear().plus(self, factor)

    def over(self, by: int) -> Linear:
        """Divide by a positive number, rounded down."""
        if by == 1 or self.number is not None:
            return self if by == 1 else Linear(constant=self.constant // by)
        return Linear(((Quotient(self, by), 1),))

    def negated(self) -> Linear:
        """Return the number that is at least 0 exactly where this is less: -1 - this."""
        return Linear(constant=-1).plus(self, -1)

    def along(self, old: Axis, new: Axis) -> Linear:
        """Rename index `old` to `new`."""
        if old not in self.axes:
            return self
        made = Linear(sizes=self.sizes, constant=self.constant)
        for term, factor in self.terms:
            match term:
                case Axis():
                    renamed = Linear.index(new if term == old else term)
                case Quotient(of, by):
                    renamed = of.along(old, new).over(by)
            made = made.plus(renamed, factor)
        return made

    @property
    def number(self) -> int | None:
        """The number that it is, where it is one."""
        return None if self.terms or self.sizes else self.constant

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes whose indices it is made of."""
        own = (frozenset((t,)) if isinstance(t, Axis) else t.of.axes for t, _ in self.terms)
        return frozenset[Axis]().union(*own)

    @property
    def natural(self) -> bool:
        """True where it is at least 0 whatever the indices are."""
        terms = all(f > 0 and (isinstance(t, Axis) or t.of.natural) for t, f in self.terms)
        return terms and self.constant >= 0 and all(f > 0 for _, f in self.sizes)

    @property
    def reach(self) -> int:
        """Bound how far from its indices it can lie, but for sizes: the constant, and what quotients round down."""
        quotients = (abs(f) * (t.by + t.of.reach // t.by) for t, f in self.terms if isinstance(t, Quotient))
        return abs(self.constant) + sum(quotients)

    def end(self, own: Axis) -> tuple[bool, Linear] | None:
        """Solve "this is at least 0" for the index of `own`.

            i - j + 3 >= 0              gives        j <= i + 3
            i//64 - j//64 >= 0          gives        j <= 64*(i//64) + 63

        Returns:
            True and the least index, or False and the greatest; None where several terms have the index.
        """
        mine = [(term, factor) for term, factor in self.terms if own in Linear(((term, 1),)).axes]
        if len(mine) != 1:
            return None
        ((term, factor),) = mine
        others = self.plus(Linear(((term, 1),)), -factor)
        low, by = factor > 0, abs(factor)
        most = others.times(-1).more(by - 1).over(by) if low else others.over(by)
        match term:
            case Axis():
                return low, most
            case Quotient(of, divisor):
                least = most.times(divisor)
                return (of.plus(least, -1) if low else least.more(divisor - 1).plus(of, -1)).end(own)

    def extreme(self, *, greatest: bool) -> Size:
        """Bound it over the current blocks of the loops around: its greatest number there, or its least."""
        parts: list[tuple[Size, int]] = [(Elements(space), factor) for space, factor in self.sizes]
        constant = self.constant
        for term, factor in self.terms:
            up = greatest == (factor > 0)
            match term:
                case Axis() if up:
                    parts += [(Begin(term), factor), (Valid(term), factor)]
                    constant -= factor
                case Axis():
                    parts.append((Begin(term), factor))
                case Quotient():
                    parts.append((term.extreme(greatest=up), factor))
        more = [part if factor == 1 else times(part, factor) for part, factor in parts if factor > 0]
        less = [part if factor == -1 else times(part, -factor) for part, factor in parts if factor < 0]
        if not more or constant > 0:
            more.append(constant)
        elif constant < 0:
            less.append(-constant)
        found: Size = more[0] if len(more) == 1 else plus(*more)
        return found if not less else minus(found, less[0] if len(less) == 1 else plus(*less))

    def __str__(self) -> str:
        parts = [(str(t), f) for t, f in self.terms] + [(s.name, f) for s, f in self.sizes]
        text = "".join(f"{'+' if f > 0 else '-'}{'' if abs(f) == 1 else f'{abs(f)}*'}{t}" for t, f in parts)
        return text.removeprefix("+") + (f"{self.constant:+d}" if text else str(self.constant))
