"""Which operations become one kernel: the cuts of a graph for which the cost model predicts the least time."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from weft.defects import note
from weft.errors import ScheduleError, UnsupportedError
from weft.plan.choose.joins import crowded, joins
from weft.plan.choose.refused import RefusedRegions, RegionValues
from weft.plan.partition.cover import Subset, Waits, cheapest, convex_parts, elements, stretches, subset_of
from weft.plan.partition.halves import (
    before_matmuls,
    before_reductions,
    before_repeats,
    before_wider,
    beside_matmuls,
)
from weft.plan.partition.partition import (
    Region,
    Task,
    TorchCall,
    apart,
    between_passes,
    linear,
    partition,
    sorted_by,
    united,
    waits_of,
)
from weft.plan.partition.schemes import as_launched
from weft.plan.targets.candidates import Selection
from weft.tensor.program import Contraction, Lookup, TensorProgram

# A matmul in one kernel with the matmul that makes its operand must be predicted to save this share, and the launch besides:
# the model is a model, and two kernels are what is known to work.
_GAIN = 0.1
# But where it sums along what was reduced, the kernel of the first has whole rows as it is: together they take no loop off the
# grid. That saves a launch and a list as large as all that is read: they are cut only where this is predicted clearly faster.
_LOSS = 0.1
# On a GPU a region that has a kernel is cut inside, before the reductions of a matmul's results, where so much is predicted to be
# saved of the kernels that the cut makes, whatever else is in them.
_CLEARLY = 0.2
# On a CPU it is where a matmul is off the grid and the kernel takes so many times the least that it could: a single row that a
# matmul makes and a reduction goes over is a loop with a state, and one thread does it all. Whole rows are no reason to stay with
# such a loop.
_IDLE = 2.0
# Fusing looks at every pair of operators, again after every rewrite: beyond this many, a join costs more to find than it saves.
_MOST_NODES, _MOST_CONTRACTIONS = 40, 4
# Matmuls of matmuls are not looked at in one kernel of a GPU where they would have to reach more than this of the machine's rates
# to pay: lone ones are predicted to reach 0.89 at best, joined ones 0.42 (RMSNorm + SwiGLU of 8192 rows).
_REACHED = 0.8
# Where one has more columns than the largest block (`crowded`), what it reads is made again for each block of them, or few rows
# hold all sums: where matmuls are what bounds them, such reach 0.44 of the rates at best, as predicted (25 sizes, 1 to 65536 rows).
_CROWDED = 0.5
# Seconds of a region that has no kernel, and no parts either: any other way is better, and where there is none, PyTorch runs it.
_NONE = 1e3
# Regions of several atoms are foreseen where they may take so much of their atoms' time: of Llama's token 18 of 45 could gain less,
# took 5.1 of 10.9 s of processors, and none of them was asked for.
_PROMISING = 0.82


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

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        """Hears of regions most of which will be asked for; returns whether selections for them were made at once.

        doubtful: few of them are expected to be chosen.
        """
        ...

    def at_hand(self, region: Region) -> bool:
        """Tells whether kernels for `region`, or for one like it, were selected or foreseen."""
        ...

    def form(self, region: Region) -> Hashable:
        """Returns what is equal for regions that differ in names alone, and for all parts of which the same is selected."""
        ...

    def settled(self, regions: Sequence[Region]) -> None:
        """Hears that the graph is cut into `regions`, and others that may still be looked for."""
        ...

    def least(self, region: Region, reached: float = 1.0) -> float:
        """Bounds the seconds that no kernels of `region` improve on, without launches, if matmuls reach so much of their rates."""
        ...


@dataclass(frozen=True, slots=True)
class Atom:
    """A stage that is not cut.

    Attributes:
        stage: the operations.
        home: the number of the stage of the partition that it is of.
        inside: the regions that it is a part of, and that are only cut where they have no kernel as they are, or a slow one.
        after: of a write, what those make that read the memory as it was before.
    """

    stage: Task
    home: int
    inside: tuple[Region, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def waits(self) -> tuple[str, ...]:
        """The values that must be there before it runs."""
        return (*self.stage.waits, *self.after)

    @property
    def results(self) -> tuple[str, ...]:
        """The values that it makes for others."""
        return self.stage.results


@dataclass
class Cuts:
    """The stages of `program` that are predicted to take the least time together.

    Attributes:
        prices: of regions.
        known: what was found out before, by the names of a region's values.
        again: values that each region which wants them makes for itself.
        writes: the calls into PyTorch that can write in place, and the values that may be that memory before. They wait for what
            reads these: else the write would copy all of the memory.
        refused: regions that have no kernels.
    """

    program: TensorProgram
    prices: Prices
    known: dict[frozenset[str], tuple[Region, float]] = field(
        default_factory=dict[frozenset[str], tuple[Region, float]]
    )
    again: frozenset[str] = frozenset()
    writes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    refused: RefusedRegions = field(default_factory=RefusedRegions)
    _off_the_grid: set[frozenset[str]] = field(default_factory=set[frozenset[str]])
    _joins: dict[TensorProgram, tuple[int, int]] = field(default_factory=dict[TensorProgram, tuple[int, int]])

    def stages(self) -> tuple[Task, ...]:
        """Returns the stages in order. A kernel may end wherever two atoms meet."""
        return as_launched(self.program, _Graph(self, self.atoms()).best())

    def atoms(self) -> tuple[Atom, ...]:
        """Returns what is not cut, in a row, each after those whose values it waits for."""
        uncut = self.uncut()
        if self.prices.fine:
            self.prices.foreseen(self._asked_for(uncut), doubtful=True)
        found = tuple(part for atom in uncut for part in self._with_kernels(atom))
        for name, old in self.writes.items():
            found = _readers_first(found, name, old)
        return found

    def uncut(self) -> list[Atom]:
        """Returns what is not cut if all of it has kernels; nothing is selected for that."""
        stages = linear(partition(self.program))
        return [atom for i, stage in enumerate(stages) for atom in self._uncut(stage, i)]

    def is_priced(self, region: Region) -> bool:
        """Tells whether the price of `region` takes no time."""
        made = RegionValues.by(region)
        return made.values in self.known or self.refused.follows(made) or self.prices.at_hand(region)

    def price(self, region: Region) -> float:
        """Returns the seconds that `region` takes, as they count here; `inf` where it has no kernel."""
        made = RegionValues.by(region)
        if made.values not in self.known:
            self.known[made.values] = region, inf if self.refused.follows(made) else self._selected(region)
        return self.known[made.values][1]

    def _selected(self, region: Region) -> float:
        """Returns the price of the kernels that are selected for `region`."""
        try:
            found = self.prices.selection(region)
            work = found.work_seconds
            if not self.prices.fine and found.chosen.off_the_grid:
                self._off_the_grid.add(RegionValues.by(region).values)
            return self.counted(region.program, work, found.chosen.cost.predicted_seconds - work)
        except (UnsupportedError, ScheduleError) as error:
            self.refused.add(region)
            note(error)
        except Exception as error:  # noqa: BLE001 - no kernel then; where such a region stays, building it says why
            note(error)
        return inf

    def bound(self, region: Region) -> float:
        """Bounds the price of `region` from below."""
        made = RegionValues.by(region)
        if made.values in self.known:
            return self.known[made.values][1]
        if self.refused.follows(made):
            return inf
        launch = 0.0 if region.looks else self.prices.launch_seconds
        least = self.prices.least(region)
        if self.prices.fine and self.joins(region.program)[0]:
            share = crowded(region.program, self.prices.lengths(region))
            reached = 1 / (share / _CROWDED + (1 - share) / _REACHED)
            least = max(least / _REACHED, self.prices.least(region, reached))
        return self.counted(region.program, least, launch)

    def idle(self, region: Region) -> bool:
        """Tells whether a matmul of `region`, which has kernels, is left to one thread, and they take far more than the least."""
        if self.price(region) <= _IDLE * (self.prices.least(region) + self.prices.launch_seconds):
            return False
        return RegionValues.by(region).values in self._off_the_grid

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

    def _uncut(self, stage: Task, home: int) -> Iterator[Atom]:
        """Yields the parts of a stage, which are atoms but for those that have no kernel."""
        if isinstance(stage, TorchCall):
            yield Atom(stage, home)
            return
        parts = before_matmuls(self.program, stage) if self.prices.fine else (stage,)
        for part in parts:
            yield from self._pieces(part, home, ())

    def _pieces(self, region: Region, home: int, inside: tuple[Region, ...]) -> Iterator[Atom]:
        """Cuts `region` into the parts that may have a kernel where it has none."""
        for split in (*((before_repeats,) if self.prices.fine else ()), apart, before_reductions):
            parts = split(self.program, region)
            if len(parts) > 1:
                for part in parts:
                    yield from self._pieces(part, home, (*inside, region))
                return
        parts, again = (), frozenset[str]()
        if self.prices.fine:
            parts, again = between_passes(self.program, region, self.prices.lengths(region))
        self.again |= again
        if len(parts) > 1:
            yield from (Atom(part, home, (*inside, region)) for part in parts)
        else:
            yield Atom(region, home, inside)

    def _finer(self, region: Region) -> Iterator[tuple[Region, ...]]:
        """Yields ways to cut `region` further where it has no kernel."""
        cuts = (split(self.program, region) for split in (beside_matmuls, before_wider))
        yield from (parts for parts in cuts if len(parts) > 1)

    def _asked_for(self, uncut: Iterable[Atom]) -> Iterator[Region]:
        """Yields the regions of which `_with_kernels` asks whether they have kernels."""
        regions = dict.fromkeys(atom.stage for atom in uncut if isinstance(atom.stage, Region))
        yield from (region for region in regions if any(True for _ in self._finer(region)))

    def _with_kernels(self, atom: Atom) -> Iterator[Atom]:
        """Cuts the region of `atom` further where it has no kernel."""
        region = atom.stage
        if isinstance(region, Region) and self.prices.fine:
            parts = next((parts for parts in self._finer(region) if self.price(region) == inf), ())
            for part in parts:
                for piece in self._pieces(part, atom.home, (*atom.inside, region)):
                    yield from self._with_kernels(piece)
            if parts:
                return
        yield atom


def _readers_first(atoms: tuple[Atom, ...], write: str, old: Collection[str]) -> tuple[Atom, ...]:
    """Let the call `write` wait for the atoms that read one of the values `old`, and sort anew.

    Where one of them waits for the write itself, that cannot be in place, and all stay as they are.
    """
    calls = [i for i, atom in enumerate(atoms) if isinstance(atom.stage, TorchCall) and atom.stage.name == write]
    if not calls:
        return atoms
    place = calls[0]
    readers = [atom for i, atom in enumerate(atoms) if i != place and not set(old).isdisjoint(atom.stage.uses)]
    waiting = replace(atoms[place], after=tuple(name for atom in readers for name in atom.stage.results))
    found = (*atoms[:place], waiting, *atoms[place + 1 :])
    ordered = sorted_by(waits_of(found))
    return atoms if ordered is None else tuple(found[i] for i in ordered)


class _Graph:
    """The atoms of a graph in a row, and what connected convex parts of it cost."""

    def __init__(self, cuts: Cuts, atoms: Sequence[Atom]) -> None:
        self.cuts, self.atoms = cuts, atoms
        self.waits = Waits(tuple(subset_of(own) for own in waits_of(atoms)))
        wholes: dict[Region, set[int]] = {}
        for i, atom in enumerate(atoms):
            for region in atom.inside:
                wholes.setdefault(region, set()).add(i)
        # A write may wait for some atoms of a stage of the partition, and others of it for the write: that is no region then.
        convex = [r for r, parts in wholes.items() if self.waits.hull(subset_of(parts)) == subset_of(parts)]
        # For each atom, the regions that it is a part of, each with all the atoms that are.
        self.inside = [[(r, wholes[r]) for r in atom.inside if r in convex] for atom in atoms]
        self.made: dict[Subset, Region] = {}
        self.at_once = False  # whether selections are made side by side
        # Parts of a whole that read the same, and nothing of each other, are not connected, and are a region nevertheless: where
        # it has kernels, there is no other.
        grown = (part for parts in convex_parts(self.waits, self._possible) for part in parts)
        self.parts = list(dict.fromkeys((*grown, *(subset_of(wholes[region]) for region in convex))))

    def best(self) -> tuple[Task, ...]:
        """Returns the stages of the best cut, in no order. The regions of each stretch are told as soon as they are found, but
        where all of them are found at once.
        """
        prices = self.cuts.prices
        every = [(first, end, self._form(first, end)) for first, end in stretches(len(self.atoms), self.parts)]
        alike: dict[Hashable, Subset] = {}
        for first, end, form in every:
            alike.setdefault(form, subset_of(range(first, end)))
        looked_at = sum(alike.values())  # of stretches that are cut alike the first
        self.at_once = prices.foreseen(self._lone(looked_at))
        if self.at_once:
            self._foresee_joins(looked_at)
        found: list[Task] = []
        known: dict[Hashable, tuple[Subset, ...]] = {}
        for batch in (every,) if self.at_once else ([stretch] for stretch in every):
            stages: list[Task] = []
            for first, end, form in batch:
                if form not in known:
                    known[form] = self._best_between(first, end)
                stages += [self.stage(part << first) for part in known[form]]
            prices.settled([stage for stage in stages if isinstance(stage, Region)])
            found += stages
        return tuple(found)

    def _form(self, first: int, end: int) -> Hashable:
        """Returns what is equal for stretches that are cut alike: layers of a model that differ in names alone."""
        atoms, places = self.atoms[first:end], range(first, end)
        stages = [atom.stage for atom in atoms if isinstance(atom.stage, Region)]
        wholes = [[region for region, _ in self.inside[i]] for i in places]
        reaching = any(not parts.issubset(places) for i in places for _, parts in self.inside[i])
        if len(stages) < len(atoms) or reaching:
            return first, end
        program, local = self.cuts.program, self.cuts.program.local.union(self.cuts.again)
        whole = united(program, stages, self.cuts.again)
        number = {node.name: i for i, node in enumerate(whole.program.nodes)}
        nodes = tuple(tuple(number[n.name] for n in stage.program.nodes) for stage in stages)
        homes = list(dict.fromkeys(atom.home for atom in atoms))
        every = list(dict.fromkeys(region for own in wholes for region in own))
        return (
            self.cuts.prices.form(whole),
            nodes,
            tuple(homes.index(atom.home) for atom in atoms),
            tuple(tuple(map(every.index, own)) for own in wholes),
            tuple(node.name in local for node in whole.program.nodes),
        )

    def _lone(self, among: Subset) -> Iterator[Region]:
        """Yields the regions of single atoms `among` these, and those that they are parts of: the prices of atoms ask for both."""
        places = elements(among)
        yield from (stage for i in places if isinstance(stage := self.atoms[i].stage, Region))
        yield from dict.fromkeys(region for i in places for region, _ in self.inside[i])

    def _thinkable(self, among: Subset) -> Iterator[tuple[Subset, Region]]:
        """Yields the regions of several atoms `among` these that are likely to be asked for, each once: those that leave out one
        atom of the row at most, that have one doubtful join at most, and that may take clearly less than their atoms one by one,
        which are priced.
        """
        for part in self.parts:
            if part & ~among:
                continue
            own = elements(part)
            stage = self.stage(part)
            near = part.bit_length() - own[0] - len(own) <= 1
            if len(own) < 2 or not near or not isinstance(stage, Region) or self.cuts.joins(stage.program)[0] > 1:
                continue
            if self._bound(part) < _PROMISING * sum(self.price(1 << atom) for atom in own):
                yield part, stage

    def _foresee_joins(self, among: Subset) -> None:
        """Has kernels selected for likely regions of several atoms, the smallest first: what is found of these tells of others."""
        likely = sorted(self._thinkable(among), key=lambda each: each[0].bit_count())
        self.cuts.prices.foreseen(stage for _, stage in likely)
        for part, _ in likely:
            self.price(part)

    def _best_between(self, first: int, end: int) -> tuple[Subset, ...]:
        """Returns the parts of the best cut of one stretch of the row, counted from its first atom."""
        inner = subset_of(range(first, end))
        waits = Waits(tuple((before & inner) >> first for before in self.waits.before[first:end]))
        bounds = {part >> first: self._bound(part) for part in self.parts if not part & ~inner}
        ahead = _Ahead(self, first) if self.at_once else None
        found, _ = cheapest(waits, bounds, lambda part: self.price(part << first), ahead)
        return found

    def _possible(self, part: Subset) -> bool:
        """Tells whether several atoms may be one region; if not, then no more of them are looked at either."""
        atoms = [self.atoms[i] for i in elements(part)]
        stages = [atom.stage for atom in atoms if isinstance(atom.stage, Region) and not atom.stage.looks]
        if len(stages) < len(atoms):
            return False
        made = {name for stage in stages for name in stage.results}
        if any(n.source in made for stage in stages for n in stage.program.nodes if isinstance(n, Lookup)):
            return False  # what is looked up in is in memory before
        if len({atom.home for atom in atoms}) == 1:
            return True
        nodes = sum(len(stage.program.nodes) for stage in stages)
        matmuls = sum(isinstance(n, Contraction) for stage in stages for n in stage.program.nodes)
        return nodes <= _MOST_NODES and matmuls <= _MOST_CONTRACTIONS

    def _region(self, part: Subset) -> Region:
        if part not in self.made:
            stages = [self.atoms[i].stage for i in elements(part)]
            self.made[part] = united(self.cuts.program, [s for s in stages if isinstance(s, Region)], self.cuts.again)
        return self.made[part]

    def stage(self, part: Subset) -> Task:
        """Returns the operations of a part."""
        stage = self.atoms[elements(part)[0]].stage
        return stage if isinstance(stage, TorchCall) else self._region(part)

    def _bound(self, part: Subset) -> float:
        stage = self.stage(part)
        found = 0.0 if isinstance(stage, TorchCall) else self.cuts.bound(stage)
        return min(found, _NONE) if part.bit_count() == 1 else found

    def price(self, part: Subset) -> float:
        """Returns the seconds of a part, as they count here; `inf` where it may not be one."""
        stage, own = self.stage(part), elements(part)
        if isinstance(stage, TorchCall):
            return 0.0
        cut = dict.fromkeys(region for i in own for region, parts in self.inside[i] if not parts.issubset(own))
        whole = [region for region in cut if self.cuts.price(region) < inf]
        if whole and not self.cuts.prices.fine and not all(map(self.cuts.idle, whole)):
            return inf
        found = self.cuts.price(stage)
        if self.cuts.prices.fine:
            found /= 1 - _CLEARLY if whole else 1
        elif any(self.cuts.idle(region) for region in self._within(own)):
            found *= (1 + _LOSS) ** self.cuts.joins(stage.program)[1]
        return min(found, _NONE) if len(own) == 1 else found

    def _within(self, own: Collection[int]) -> Iterable[Region]:
        """Returns the regions that some of the atoms `own` are, and others are beside, where they have kernels."""
        found = dict.fromkeys(r for i in own for r, parts in self.inside[i] if parts < set(own))
        return (region for region in found if self.cuts.price(region) < inf)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Prices of the parts of one stretch of `graph`, counted from its `first` atom, found side by side."""

    graph: _Graph
    first: int

    def at_hand(self, part: Subset) -> bool:
        stage = self.graph.stage(part << self.first)
        return isinstance(stage, TorchCall) or self.graph.cuts.is_priced(stage)

    def foreseen(self, parts: Sequence[Subset]) -> None:
        stages = (self.graph.stage(part << self.first) for part in parts)
        self.graph.cuts.prices.foreseen((stage for stage in stages if isinstance(stage, Region)), doubtful=True)
