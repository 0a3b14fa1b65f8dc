"""Which operations become one kernel: the cuts of a graph for which the cost model predicts the least time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from weft.defects import note
from weft.plan.partition.chain import ChainInterval, cheapest
from weft.plan.partition.partition import (
    Region,
    Task,
    TorchCall,
    apart,
    before_matmuls,
    before_reductions,
    between_passes,
    in_order,
    linear,
    partition,
    united,
)
from weft.plan.targets.candidates import Selection
from weft.tensor.program import Contraction, Lookup, Reduction, TensorProgram, uses

# A matmul in one kernel with the matmul that makes its operand must be predicted to save this share, and the launch besides:
# the model is a model, and two kernels are what is known to work.
_GAIN = 0.1
# But where it sums along what was reduced, the kernel of the first has whole rows as it is: together they take no loop off the
# grid. That saves a launch and a list as large as all that is read: they are cut only where this is predicted clearly faster.
_LOSS = 0.1
# On a GPU a region that has a kernel is cut inside, before the reductions of a matmul's results, where so much is predicted to be
# saved of the kernels that the cut makes, whatever else is in them; on a CPU it is not.
_CLEARLY = 0.2
# Fusing looks at every pair of operators, again after every rewrite: beyond this many, a join costs more to find than it saves.
_MOST_NODES, _MOST_CONTRACTIONS = 40, 4
# Matmuls of matmuls are not looked at in one kernel of a GPU where they would have to reach more than this of the machine's rates
# to pay: lone ones are predicted to reach 0.89 at best, joined ones 0.42 (RMSNorm + SwiGLU of 8192 rows).
_REACHED = 0.8
# Seconds of a region that has no kernel, and no parts either: any other way is better, and where there is none, PyTorch runs it.
_NONE = 1e3


class Prices(Protocol):
    """What is known of regions."""

    @property
    def launch_seconds(self) -> float:
        """Seconds of one kernel's launch, beyond its work."""
        ...

    @property
    def fine(self) -> bool:
        """True where kernels may end between a matmul and what makes its operands."""
        ...

    def lengths(self, region: Region) -> Mapping[str, int]:
        """Returns the elements of each space of `region`, by name, at the example."""
        ...

    def selection(self, region: Region) -> Selection:
        """Selects kernels for `region` at the example's sizes; raises where there are none. This may take seconds."""
        ...

    def foreseen(self, regions: Sequence[Region]) -> bool:
        """Hears of regions most of which will be asked for; returns whether selections for them were made at once."""
        ...

    def settled(self, regions: Sequence[Region]) -> None:
        """Hears that the graph is cut into `regions`, and others that may still be looked for."""
        ...

    def least(self, region: Region) -> float:
        """Bounds the seconds that no kernels of `region` improve on, without launches."""
        ...


@dataclass(frozen=True, slots=True)
class Atom:
    """A stage that is not cut.

    Attributes:
        stage: the operations.
        home: the number of the stage of the partition that it is of.
        inside: the regions that it is a part of, and that are only cut where they have no kernel as they are, or a slow one.
    """

    stage: Task
    home: int
    inside: tuple[Region, ...] = ()


@dataclass
class Cuts:
    """The stages of `program` that are predicted to take the least time together.

    Attributes:
        prices: of regions.
        known: what was found out before, by the names of a region's values.
        again: values that each region which wants them makes for itself.
    """

    program: TensorProgram
    prices: Prices
    known: dict[frozenset[str], tuple[Region, float]] = field(
        default_factory=dict[frozenset[str], tuple[Region, float]]
    )
    again: frozenset[str] = frozenset()
    _joins: dict[TensorProgram, tuple[int, int]] = field(default_factory=dict[TensorProgram, tuple[int, int]])

    def stages(self) -> tuple[Task, ...]:
        """Returns the stages in order. A kernel may end wherever two atoms meet."""
        stages = linear(partition(self.program))
        return in_order(_Chain(self, [atom for i, stage in enumerate(stages) for atom in self._atoms(stage, i)]).best())

    def price(self, region: Region) -> float:
        """Returns the seconds that `region` takes, as they count here; `inf` where it has no kernel."""
        names = frozenset(n.name for n in region.program.nodes)
        if names not in self.known:
            try:
                found = self.prices.selection(region)
                work = found.work_seconds
                seconds = self.counted(region.program, work, found.chosen.cost.predicted_seconds - work)
            except Exception as error:  # noqa: BLE001 - no kernel then; where such a region stays, building it says why
                note(error)
                seconds = inf
            self.known[names] = region, seconds
        return self.known[names][1]

    def bound(self, region: Region) -> float:
        """Bounds the price of `region` from below."""
        names = frozenset(n.name for n in region.program.nodes)
        if names in self.known:
            return self.known[names][1]
        launch = 0.0 if region.looks else self.prices.launch_seconds
        reached = _REACHED if self.prices.fine and self.joins(region.program)[0] else 1.0
        return self.counted(region.program, self.prices.least(region) / reached, launch)

    def counted(self, program: TensorProgram, work: float, launches: float) -> float:
        """Weighs the seconds of a region that works so long and whose launches take so long against those of other cuts."""
        doubtful, whole_rows = self.joins(program)
        seconds = work / (1 - _GAIN) ** doubtful + launches + doubtful * self.prices.launch_seconds
        return seconds / (1 + _LOSS) ** whole_rows

    def joins(self, program: TensorProgram) -> tuple[int, int]:
        """Counts as `joins` does, once for each program."""
        found = self._joins.get(program)
        if found is None:
            found = self._joins[program] = joins(program)
        return found

    def _atoms(self, stage: Task, home: int) -> tuple[Atom, ...]:
        if isinstance(stage, TorchCall):
            return (Atom(stage, home),)
        parts = before_matmuls(self.program, stage) if self.prices.fine else (stage,)
        return tuple(atom for part in parts for atom in self._pieces(part, home, ()))

    def _pieces(self, region: Region, home: int, inside: tuple[Region, ...]) -> tuple[Atom, ...]:
        """Cuts `region` into the parts that may have a kernel where it has none."""
        for split in (apart, before_reductions):
            parts = split(self.program, region)
            if len(parts) > 1:
                return tuple(atom for part in parts for atom in self._pieces(part, home, (*inside, region)))
        if self.prices.fine:
            parts, again = between_passes(self.program, region, self.prices.lengths(region))
            self.again |= again
            if len(parts) > 1:
                return tuple(Atom(part, home, (*inside, region)) for part in parts)
        return (Atom(region, home, inside),)


class _Chain:
    """The atoms of a graph in a row, and what intervals of the row cost: the connected parts of each, one by one."""

    def __init__(self, cuts: Cuts, atoms: Sequence[Atom]) -> None:
        self.cuts, self.atoms = cuts, atoms
        maker = {name: i for i, atom in enumerate(atoms) for name in atom.stage.results}
        self.reads = [{maker[v] for v in atom.stage.uses if v in maker} for atom in atoms]
        wholes: dict[Region, set[int]] = {}
        # For each atom, the regions that it is a part of, each with all the atoms that are.
        self.inside = [[(r, wholes.setdefault(r, set())) for r in atom.inside] for atom in atoms]
        for i, regions in enumerate(self.inside):
            for _, parts in regions:
                parts.add(i)
        self.made: dict[tuple[int, ...], Region] = {}
        self.paying: set[tuple[int, ...]] = set()

    def best(self) -> tuple[Task, ...]:
        """Returns the stages of the best cut, in no order. The regions of each link are told as soon as they are found, but where
        all of them are found at once.
        """
        links, prices = list(self._links()), self.cuts.prices
        at_once = prices.foreseen(list(self._thinkable(links)))
        found: list[Task] = []
        for batch in (links,) if at_once else ([link] for link in links):
            stages = [stage for first, end in batch for stage in self._best_between(first, end)]
            prices.settled([stage for stage in stages if isinstance(stage, Region)])
            found += stages
        return tuple(found)

    def _thinkable(self, links: Sequence[tuple[int, int]]) -> Iterator[Region]:
        """Yields the regions that the first round of each link may ask for, each once."""
        parts = (own for first, end in links for ways in self._intervals(first, end).values() for own in ways)
        for own in dict.fromkeys(parts):
            stage = self._stage(own)
            if isinstance(stage, Region):
                yield stage

    def _links(self) -> Iterator[tuple[int, int]]:
        """Yields the links of the chain, (first, end): parts that no interval joins, as calls into PyTorch part them."""
        first = end = 0
        for place in range(len(self.atoms)):
            if place and place >= end:
                yield first, place
                first = place
            end = max([end, *(last + 1 for last, _ in self._grown(place))])
        yield first, len(self.atoms)

    def _best_between(self, first: int, end: int) -> tuple[Task, ...]:
        """Returns the stages of the best cut of one link.

        More than one doubtful join in a region is looked at only where a part of it with one less is a region of the best cut.
        """
        while True:
            parts = self._intervals(first, end)
            bounds = {interval: sum(map(self._bound, own)) for interval, own in parts.items()}

            def price(interval: ChainInterval, parts: dict[ChainInterval, list[tuple[int, ...]]] = parts) -> float:
                return sum(map(self._price, parts[interval]))

            intervals, _ = cheapest(end - first, bounds, price)
            chosen = [own for interval in intervals for own in parts[interval]]
            paying = {own for own in chosen if len(own) > 1 and self.cuts.joins(self._region(own).program)[0]}
            if paying <= self.paying:
                return tuple(self._stage(own) for own in sorted(chosen, key=lambda own: own[-1]))
            self.paying |= paying

    def _intervals(self, begin: int, end: int) -> dict[ChainInterval, list[tuple[int, ...]]]:
        """Returns the intervals of a link that may be cut off, counted from its begin, with their connected parts; or with
        one atom of a part by itself.
        """
        found: dict[ChainInterval, list[tuple[int, ...]]] = {}
        for first in range(begin, end):
            for place, parts in self._grown(first):
                grown = next(own for own in parts if own[-1] == place)
                ways = [parts] if _interleaved(parts) else []
                ways += [[*(own for own in parts if own != grown), *pair] for pair in self._one_apart(grown)]
                for number, way in enumerate(ways):
                    if all(map(self._looked_at, way)):
                        found[first - begin, place + 1 - begin, number] = way
        return found

    def _grown(self, first: int) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
        """Yields the intervals that begin with atom `first`, shortest first: the last atom of each, and its connected parts."""
        parts: list[tuple[int, ...]] = []
        for place in range(first, len(self.atoms)):
            touching = [own for own in parts if not self.reads[place].isdisjoint(own)]
            grown = tuple(sorted((place, *(i for own in touching for i in own))))
            if not self._possible(first, place, grown):
                return
            parts = [*(own for own in parts if own not in touching), grown]
            yield place, parts

    def _one_apart(self, own: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yields `own` in two: one atom between others in the row that can run before or after the rest, and the rest,
        still connected.
        """
        for place in own[1:-1]:
            rest = tuple(i for i in own if i != place)
            before, after = not self.reads[place].isdisjoint(rest), any(place in self.reads[i] for i in rest)
            if not (before and after) and self._connected(rest):
                yield (place,), rest

    def _connected(self, own: tuple[int, ...]) -> bool:
        parts: list[set[int]] = []
        for place in own:
            touching = [part for part in parts if not self.reads[place].isdisjoint(part)]
            parts = [*(part for part in parts if part not in touching), {place}.union(*touching)]
        return len(parts) == 1

    def _possible(self, first: int, last: int, own: tuple[int, ...]) -> bool:
        """Tells whether the atoms `own` of an interval may be one region; if not, then no larger interval is looked at either."""
        joined = [self.atoms[i].stage for i in own] if len(own) > 1 else []
        if any(isinstance(stage, TorchCall) or stage.looks for stage in joined):
            return False
        made = {name for stage in joined for name in stage.results}
        if any(
            n.source in made for s in joined if isinstance(s, Region) for n in s.program.nodes if isinstance(n, Lookup)
        ):
            return False  # what is looked up in is in memory before
        if len({atom.home for atom in self.atoms[first : last + 1]}) == 1:
            return True
        stages = [atom.stage for atom in self.atoms[first : last + 1]]
        nodes = sum(len(stage.program.nodes) for stage in stages if isinstance(stage, Region))
        regions = (self.atoms[i].stage for i in own)
        matmuls = sum(isinstance(n, Contraction) for r in regions if isinstance(r, Region) for n in r.program.nodes)
        return nodes <= _MOST_NODES and matmuls <= _MOST_CONTRACTIONS

    def _looked_at(self, own: tuple[int, ...]) -> bool:
        if len(own) == 1:
            return True
        doubtful = self.cuts.joins(self._region(own).program)[0]
        return doubtful < 2 or any(
            set(part) < set(own) and self.cuts.joins(self._region(part).program)[0] == doubtful - 1
            for part in self.paying
        )

    def _region(self, own: tuple[int, ...]) -> Region:
        if own not in self.made:
            stages = [self.atoms[i].stage for i in own]
            self.made[own] = united(self.cuts.program, [s for s in stages if isinstance(s, Region)], self.cuts.again)
        return self.made[own]

    def _stage(self, own: tuple[int, ...]) -> Task:
        stage = self.atoms[own[0]].stage
        return stage if isinstance(stage, TorchCall) else self._region(own)

    def _bound(self, own: tuple[int, ...]) -> float:
        stage = self._stage(own)
        found = 0.0 if isinstance(stage, TorchCall) else self.cuts.bound(stage)
        return min(found, _NONE) if len(own) == 1 else found

    def _price(self, own: tuple[int, ...]) -> float:
        stage = self._stage(own)
        if isinstance(stage, TorchCall):
            return 0.0
        cut = [region for i in own for region, parts in self.inside[i] if not parts.issubset(own)]
        whole = any(self.cuts.price(region) < inf for region in cut)
        if whole and not self.cuts.prices.fine:
            return inf
        found = self.cuts.price(stage) / (1 - _CLEARLY if whole else 1)
        return min(found, _NONE) if len(own) == 1 else found


def _interleaved(parts: Sequence[tuple[int, ...]]) -> bool:
    """Tells whether no cut of the interval leaves all its connected parts whole; else two shorter intervals say the same."""
    ends = sorted((own[0], own[-1]) for own in parts)
    reach = ends[0][1]
    for first, last in ends[1:]:
        if first > reach:
            return False
        reach = max(reach, last)
    return True


def joins(program: TensorProgram) -> tuple[int, int]:
    """Counts the matmuls of `program` that read what others of them made: doubtful ones, and those that sum along what
    was reduced before.
    """
    before: dict[str, bool] = {}
    for node in program.nodes:
        before[node.name] = isinstance(node, Contraction) or any(before.get(v, False) for v in uses(node))
    doubtful = whole_rows = 0
    for node in program.nodes:
        if isinstance(node, Contraction) and any(before.get(v, False) for v in uses(node)):
            summed = {a.space for a in node.over}
            own = _reading(program, node.name)
            known = {a.space for n in program.nodes if isinstance(n, Reduction) and n.name not in own for a in n.over}
            whole_rows += not summed.isdisjoint(known)
            doubtful += summed.isdisjoint(known)
    return doubtful, whole_rows


def _reading(program: TensorProgram, name: str) -> set[str]:
    """Returns the values that depend on `name`."""
    found = {name}
    for node in program.nodes:
        if not found.isdisjoint(uses(node)):
            found.add(node.name)
    return found
