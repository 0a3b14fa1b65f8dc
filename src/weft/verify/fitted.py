"""Sizes that are small enough for a program to be evaluated at, near those that are wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.tensor.axes import Space
from weft.tensor.evaluate import stays_inside
from weft.tensor.program import Contraction, TensorProgram, axes_of
from weft.verify.inputs import reached
from weft.verify.regimes import REGIMES, ROWS, RowLayout, reduced_spaces

# Operations that the reference of a case may have: for cases of all regimes, a millisecond; for one whose sizes reach beyond every
# block; and where the program's own sizes leave no smaller ones.
MANY, FAR, AT_MOST = 1 << 17, 1 << 20, 1 << 24
# So many multiplications and additions of a product cost as much as one other operation.
_OF_A_PRODUCT = 8
# A size that is made smaller is no smaller than the first; where all that is left takes more operations than the second, than the
# third, or 1: a reference of many operations takes seconds, and the regimes that rows have no room for come in other cases.
_LEAST, _SLOW, _FEWEST = 5, 1 << 21, 2
# So often sizes are doubled that others follow from, and one is raised that several must agree with.
_GROWN, _RAISED = 8, 16

Allowed = Callable[[str, int], int]


def points(program: TensorProgram, sizes: Mapping[str, int]) -> int:
    """Estimates how many operations the program takes at `sizes`, one for each element of an input among them."""
    return _points(_runs(program), sizes)


def _points(runs: Sequence[tuple[tuple[Space, ...], int]], sizes: Mapping[str, int]) -> int:
    return sum(math.prod([space.size(sizes) for space in over]) // shared for over, shared in runs)


def _runs(program: TensorProgram) -> list[tuple[tuple[Space, ...], int]]:
    """Lists the spaces that each node runs over, and how many of its operations count as one."""
    nodes = (*program.inputs, *program.nodes)
    return [(tuple(a.space for a in axes_of(n)), _OF_A_PRODUCT if isinstance(n, Contraction) else 1) for n in nodes]


def with_own_rules(program: TensorProgram) -> TensorProgram:
    """Returns `program`, a part of another, with those rules alone that bind sizes of its own to numbers and to each other.

    What the rest of that other program asks of one size alone, no other size of the part goes with: 1024 words, of which the first
    1024 of one more are read elsewhere. The part means the same at any.
    """
    own, groups = set(program.spaces()), dict[Space, set[Space]]()
    for rule in program.derived:  # spaces of the rest that are bound to each other
        others = {s for s in (rule.space, *rule.sources) if s.fixed is None and s not in own}
        together = others.union(*(groups.get(s, ()) for s in others))
        groups |= dict.fromkeys(together, together)
    bound: dict[Space, set[Space]] = {s: set() for s in groups}
    for rule in program.derived:
        spaces = {rule.space, *rule.sources}
        for space in {each for s in spaces & groups.keys() for each in groups[s]}:
            bound[space] |= spaces & own
    kept = (r for r in program.derived if all(len(bound[s]) > 1 for s in (r.space, *r.sources) if s in bound))
    return replace(program, derived=tuple(kept))


def fitted(
    program: TensorProgram,
    wanted: Mapping[str, int],
    layout: RowLayout,
    most: int,
    whole: Collection[str] = (),
    allowed: Allowed = lambda _, size: size,
    at_most: int = AT_MOST,
    tied: Mapping[str, int] | None = None,
) -> dict[str, int] | None:
    """Chooses sizes of all spaces of `program` that take few enough operations; None where its fixed sizes leave no such.

    Args:
        program: what is to be run.
        wanted: of spaces without a fixed size, by name. First rows become fewer, then the largest sizes smaller, those last that
            something is summed along: blocks of these have a state.
        layout: spaces of rows have room for all regimes, several times where that is cheap.
        most: so many operations. Where the least sizes take far more, rows are not of all regimes.
        whole: spaces that keep the size wanted, whatever becomes of the others; then rows need not be of all regimes.
        allowed: gives the size of a space, by name, to take in place of one that is wanted.
        at_most: so many operations where nothing that is allowed takes fewer.
        tied: sizes that agree, by name, of spaces that are bound to each other; they become smaller where the program takes that.
    """
    return _Fitting(program, layout, set(whole), allowed, dict(tied or {})).found(dict(wanted), most, at_most)


@dataclass(eq=False)
class _Fitting:
    """The sizes `chosen` by now of spaces that follow from no other, the `least` that they may become, and what they should be."""

    program: TensorProgram
    layout: RowLayout
    whole: set[str]
    allowed: Allowed
    tied: dict[str, int]
    aim: dict[str, int] = field(default_factory=dict[str, int])
    chosen: dict[str, int] = field(default_factory=dict[str, int])
    least: dict[str, int] = field(default_factory=dict[str, int])

    def found(self, wanted: dict[str, int], most: int, at_most: int) -> dict[str, int] | None:
        """Chooses sizes, as `fitted`."""
        self._begin(wanted)
        summed, runs = reduced_spaces(self.program), _runs(self.program)
        # Rows that are not of all regimes, and one row where not even so many can be run.
        fewer_rows = [(1, _SLOW)] if self.whole else [(_FEWEST, _SLOW), (1, at_most)]
        sizes = self._taken(self.chosen)
        while sizes is not None and _points(runs, sizes) > most:
            room = [name for name in self.chosen if self.chosen[name] > self.least[name] and any(self._smaller(name))]
            if not room and fewer_rows and _points(runs, sizes) > fewer_rows[0][1]:
                fewest, _ = fewer_rows.pop(0)
                self.least |= {name: min(n, fewest) for name, n in self.least.items() if name not in self.whole}
                continue
            if not room:
                return self._roomy(sizes) if _points(runs, sizes) <= at_most else None
            first = set(room) & set(self.layout.slots) or set(room) - summed or set(room)
            name = max([name for name in room if name in first], key=self.chosen.__getitem__)
            taken = next(filter(None, (self._with(name, fewer) for fewer in self._smaller(name))), None)
            if taken is None:  # what follows from it would have no elements
                self.least[name] = self.chosen[name]
            else:
                sizes = taken
                self.chosen |= {each: taken[each] for each in self.chosen}
        return None if sizes is None else self._roomy(sizes)

    def _begin(self, wanted: dict[str, int]) -> None:
        """Begins with the sizes `wanted`, where these are allowed and agree."""
        program, layout = self.program, self.layout
        chosen = {name: size for name, size in (self.tied | wanted).items() if name not in program.following}
        for name in wanted.keys() & program.following:  # what it follows from is as large as it takes
            sizes = {name: wanted[name]}
            program.follow(sizes)
            sources = chosen.keys() & sizes.keys()
            chosen |= {source: max(chosen[source], sizes[source]) for source in sources}
            self.whole |= sources if name in self.whole else set()
        least = {name: min(size, _LEAST) for name, size in chosen.items()}
        for name in layout.slots:
            if name in chosen and name not in self.whole:
                # So many more, not so many: a number that blocks divide would leave no rest.
                chosen[name] += ROWS * len(REGIMES) if chosen[name] < ROWS * len(REGIMES) else 0
                least[name] = len(REGIMES) if not self.whole else _LEAST
        if not layout.slots:
            # Of integers alone: three blocks of each loop and a rest, so that each must begin where the last one ended.
            free = chosen.keys() - reduced_spaces(program) - self.whole
            chosen |= {name: 2 * chosen[name] + 3 for name in free}
        self.aim = {name: self.allowed(name, size) for name, size in chosen.items()}
        tied = {name: size for name, size in self.tied.items() if name in chosen}
        self.chosen = self._agreeing(self._grown(self.aim | tied))
        self.least = least | {name: self.chosen[name] for name in self.whole & chosen.keys()}

    def _smaller(self, name: str) -> Iterator[int]:
        """Yields smaller sizes of a space."""
        size, least = self.chosen[name], self.least[name]
        tried = (self.allowed(name, max(least, n)) for n in (self.aim[name], size * 2 // 3, size // 2))
        return (n for n in tried if n < size)

    def _with(self, name: str, fewer: int) -> dict[str, int] | None:
        """Returns all sizes with `fewer` elements of a space, and of what goes with it; None where no such are."""
        taken = self._taken(self.chosen | {name: fewer})
        if taken is not None and taken[name] == fewer:  # not where its size is fixed
            return taken
        beside = self._beside([name], {name: fewer})
        if beside.get(name, self.chosen[name]) >= self.chosen[name]:
            return None
        # None may grow: two that grow in turn would never end.
        room = {each: range(self.least[each], self.chosen[each] + 1) for each in beside}
        if any(n not in room[each] or n != self.allowed(each, n) for each, n in beside.items()):
            return None
        taken = self._taken(self.chosen | beside)
        return taken if taken is not None and all(taken[each] == n for each, n in beside.items()) else None

    def _agreeing(self, chosen: dict[str, int]) -> dict[str, int]:
        """Returns the sizes `chosen`, those raised that must agree and do not: they follow from one that the program has not."""
        if self._taken(chosen) is not None:
            return chosen
        for more in range(_RAISED):
            beside = self._beside([name for name in chosen if name not in self.whole], chosen, more)
            if (
                all(n == self.allowed(name, n) for name, n in beside.items())
                and self._taken(chosen | beside) is not None
            ):
                return chosen | beside
        return chosen

    def _beside(self, names: Collection[str], chosen: Mapping[str, int], more: int = 0) -> dict[str, int]:
        """Works out the sizes that agree with those `chosen` of `names`, of these and of all that go with them.

        A part of a program may have sizes that are so many times another one, which the part does not have: those of queries and
        of keys are so many times the number of heads.

        Args:
            more: what that other one is raised by.
        """
        program = self.program
        made, own = {rule.space.name for rule in program.derived}, {s.name for s in program.spaces()}
        heads: dict[str, int] = {}
        for name in names:
            sizes = {name: chosen[name]}
            program.follow(sizes)
            for head in sizes.keys() - made - own:
                heads[head] = max(heads.get(head, 0), sizes[head] + more)
        sizes = dict(heads)
        program.follow(sizes)
        return {name: n for name, n in sizes.items() if name in self.chosen or name in chosen}

    def _roomy(self, sizes: dict[str, int]) -> dict[str, int]:
        """Returns `sizes` with what is looked up in as long as indices made of sizes reach."""
        needed = reached(self.program, sizes).items()
        short = {name: self.allowed(name, n) for name, n in needed if n > self.chosen.get(name, n)}
        return (self._taken({**self.chosen, **short}) or sizes) if short else sizes

    def _grown(self, chosen: dict[str, int]) -> dict[str, int]:
        """Returns the sizes `chosen`, those that others follow from greater where these would have no elements else."""
        sizes = dict(chosen)
        sources = {source.name for rule in self.program.derived for source in rule.sources} & sizes.keys() - self.whole
        for _ in range(_GROWN if sources else 0):
            if self._taken(sizes) is not None:
                return sizes
            sizes |= {name: self.allowed(name, 2 * sizes[name] + 1) for name in sources}
        return chosen

    def _taken(self, chosen: Mapping[str, int]) -> dict[str, int] | None:
        """Returns the sizes of all spaces; None where no such are."""
        sizes = self.program.sizes(chosen)
        if not all(s.name in sizes for s in self.program.spaces()) or any(size < 1 for size in sizes.values()):
            return None
        return sizes if self.program.consistent(sizes) and stays_inside(self.program, sizes) else None
