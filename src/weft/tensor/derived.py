"""Sizes that follow from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.tensor.axes import Space


@dataclass(frozen=True, slots=True)
class Derived:
    """The size of `space` follows from that of `source`: what `[start:stop:step]` leaves of it, `times` over; and `plus` elements
    and all those of the `others` more.
    """

    space: Space
    source: Space
    start: int | None = None
    stop: int | None = None
    step: int = 1
    times: int = 1
    plus: int = 0
    others: tuple[Space, ...] = ()

    @property
    def sources(self) -> tuple[Space, ...]:
        """The spaces that the size follows from."""
        return (self.source, *self.others)

    def size(self, source: int, *others: int) -> int:
        """Returns the number of elements, where `source`, and the `others`, have that many."""
        part = len(range(*slice(self.start, self.stop, self.step).indices(source)))
        return self.times * part + self.plus + sum(others)

    def size_in(self, sizes: Mapping[str, int]) -> int:
        """Returns the number of elements, given the `sizes` of spaces by name."""
        return self.size(*(space.size(sizes) for space in self.sources))

    @property
    def backwards(self) -> Derived | None:
        """The rule from `space` to `source`, where it has a number of elements for each of the source's, and some more."""
        whole = (self.start, self.stop, self.step, self.others) == (None, None, 1, ()) and self.plus >= 0
        return Derived(self.source, self.space, start=self.plus or None, step=self.times) if whole else None

    @property
    def open_spaces(self) -> tuple[Space, ...]:
        """The spaces that it speaks of whose sizes are not fixed, each once."""
        return tuple(dict.fromkeys(s for s in (self.space, *self.sources) if s.fixed is None))


def by_space(rules: Iterable[Derived]) -> Mapping[Space, Sequence[int]]:
    """Lists for each space without a fixed size the numbers of the rules that speak of it."""
    found: dict[Space, list[int]] = {}
    for number, rule in enumerate(rules):
        for space in rule.open_spaces:
            found.setdefault(space, []).append(number)
    return found


def about(spaces: Iterable[Space], rules: Sequence[Derived], of: Mapping[Space, Sequence[int]]) -> tuple[Derived, ...]:
    """Finds what says something of `spaces`, in order: rules that bind them to one another or to fixed sizes, if through others.

    Args:
        spaces: of a part of a program.
        rules: of the whole program.
        of: the same `by_space`.
    """
    own = set(spaces)
    waiting, near = list(own), dict[int, tuple[Space, ...]]()
    while waiting:
        for number in of.get(waiting.pop(), ()):
            if number not in near:
                near[number] = rules[number].open_spaces
                waiting += near[number]
    # A space of another part that one rule alone speaks of is not known by another one, nor does another need it.
    count = Counter(space for spoken_of in near.values() for space in spoken_of)
    lone = [space for space, rules_of_it in count.items() if rules_of_it == 1 and space not in own]
    while lone:
        for number in of[lone.pop()]:
            for space in near.pop(number, ()):
                count[space] -= 1
                if count[space] == 1 and space not in own:
                    lone.append(space)
    return tuple(rules[number] for number in sorted(near))
