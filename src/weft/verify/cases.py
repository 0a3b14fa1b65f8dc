"""Inputs at small sizes for kernels that are judged: cases of all regimes, and the sizes that are cheap enough to run.

A `Case` knows the results that its program has on its inputs: in fp64, as eager rounds them, and as others may round them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from weft.tensor.arrays import is_numpys
from weft.tensor.axes import Space
from weft.tensor.domain import Array
from weft.tensor.evaluate import evaluate, stays_inside
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Contraction, Lookup, Node, Opaque, Reduction, TensorProgram, axes_of
from weft.verify.eager import (
    AccidentalDomain,
    AlikeRoundedDomain,
    EagerDomain,
    FlushedDomain,
    MaskedDomain,
    MaskedEagerDomain,
    MaskedRandomlyRoundedDomain,
    PoleDomain,
    RandomlyRoundedDomain,
    eagerly,
)
from weft.verify.inputs import deciding, indices_below, reached, reads_inside
from weft.verify.regimes import REGIMES, ROWS, RowLayout, drawn, labels, layout_of, reduced_spaces
from weft.verify.torch_array import TorchArray

# Operations that the reference of a case may have: for cases of all regimes, a millisecond; for one whose sizes reach beyond every
# block; and where the program's own sizes leave no smaller ones.
MANY, FAR, AT_MOST = 1 << 17, 1 << 20, 1 << 24
# So many multiplications and additions of a product cost as much as one other operation.
_OF_A_PRODUCT = 8
# A reference of so many operations is worked out on the GPU that runs the kernels: below them its launches take longer.
ON_DEVICE = 1 << 18
# How many times what runs that round at random are off by a kernel may be off.
ROOM = 4.0
# A size that is made smaller is no smaller than the first; where all that is left takes more operations than the second, than the
# third, or 1: a reference of many operations takes seconds, and the regimes that rows have no room for come in other cases.
_LEAST, _SLOW, _FEWEST = 5, 1 << 21, 2
# So often sizes are doubled that others follow from.
_GROWN = 8


@dataclass(frozen=True, eq=False)
class Case:
    """One call of the kernels.

    Attributes:
        program: what they must compute.
        sizes: by name of the space.
        inputs: by name: float64 arrays of numbers that the types hold, int64, bool.
        layout: where rows are.
        regime: of inputs without rows, and of the first row of others.
        device: where its references are worked out, in arrays of PyTorch's; None: by numpy.
    """

    program: TensorProgram
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    layout: RowLayout
    regime: int
    device: torch.device | None = None
    known: dict[tuple[str, int], tuple[Array, ...]] = field(default_factory=dict[tuple[str, int], "tuple[Array, ...]"])

    @cached_property
    def placed(self) -> Mapping[str, Array]:
        """The inputs where references are worked out."""
        return {name: self._place(v) for name, v in self.inputs.items()}

    def _place(self, values: Array) -> Array:
        return TorchArray.of(values, self.device) if self.device is not None and is_numpys(values) else values

    @cached_property
    def exact(self) -> tuple[Array, ...]:
        """The results in fp64."""
        return self._evaluated(Fp64Domain())

    @cached_property
    def eager(self) -> tuple[Array, ...]:
        """The results as eager rounds them."""
        return self.in_order(0)

    @cached_property
    def unmasked(self) -> tuple[Array, ...]:
        """The results in fp64 where 0 times anything is 0."""
        return self._evaluated(MaskedDomain())

    @cached_property
    def of_poles(self) -> tuple[Array, ...]:
        """Gives the infinity that a result may be where quotients by 0 decide that it is no number; else NaN."""
        made = self._evaluated(PoleDomain())
        return tuple(np.where(np.abs(v) >= PoleDomain.LARGE**0.5, np.copysign(np.inf, v), np.nan) for v in made)

    @cached_property
    def flushed(self) -> tuple[Array, ...]:
        """The results in fp64 where numbers below the normal ones are 0, as units for products of 16 bits take them."""
        kinds = {n.name: n.dtype for n in self.program.inputs}
        inputs = {
            name: np.where(np.abs(v) < kinds[name].least_normal, 0.0, v) if kinds[name].is_float else v
            for name, v in self.placed.items()
        }
        return self._evaluated(FlushedDomain(), inputs)

    def in_order(self, order: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results as eager rounds them, with sums in another order."""

        domain = (MaskedEagerDomain if masked else EagerDomain)(order)
        key = "masked, in order" if masked else "order", order
        domain.place = self._place
        return self._once(key, lambda: eagerly(self.program, self.placed, self.sizes, domain))

    @cached_property
    def accidental(self) -> tuple[Array, ...]:
        """Returns for each element whether an accident of roundings or of the order of sums decides whether it is a number."""

        def made(poison: float) -> tuple[Array, ...]:
            domain = AccidentalDomain(most_terms(self.program, self.sizes), poison)
            return self._evaluated(domain, watch=domain.begin)

        pairs = zip(made(np.nan), made(0.0), self.exact, strict=True)
        return tuple(
            (np.isnan(with_nan) & ~np.isnan(with_0)) | (np.isfinite(exact) & ~np.isfinite(with_nan))
            if with_nan.dtype.kind == "f"
            else np.zeros_like(with_nan, dtype=np.bool_)
            for with_nan, with_0, exact in pairs
        )

    def rounded(self, number: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random."""

        def made() -> tuple[Array, ...]:
            return self._off((MaskedRandomlyRoundedDomain if masked else RandomlyRoundedDomain)(number))

        return self._once(("masked and rounded" if masked else "rounded", number), made)

    def coarsely_rounded(self, number: int) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random, by as much as those of a GPU that are the least exact."""
        return self._off(RandomlyRoundedDomain(number, ROOM))

    @cached_property
    def rounded_alike(self) -> tuple[Array, ...]:
        """The results where all operations round in one direction."""
        return self._off(AlikeRoundedDomain())

    def _off(self, domain: RandomlyRoundedDomain) -> tuple[Array, ...]:
        kinds = {n.name: n.dtype for n in self.program.inputs}
        given = {name: domain.given(v, kinds[name]) for name, v in self.placed.items()}
        return self._evaluated(domain, given, domain.begin)

    def _evaluated(
        self,
        domain: Fp64Domain,
        inputs: Mapping[str, Array] | None = None,
        watch: Callable[[Node], None] | None = None,
    ) -> tuple[Array, ...]:
        """Evaluates the program on its inputs, or on others that are placed as they are."""
        domain.place = self._place
        with np.errstate(all="ignore"):
            given = self.placed if inputs is None else inputs
            return evaluate(self.program, given, domain, sizes=dict(self.sizes), watch=watch)

    def _once(self, key: tuple[str, int], made: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
        if key not in self.known:
            self.known[key] = made()
        return self.known[key]

    def groups(self, output: int) -> Array:
        """Returns for each element of an output a number that stands for the regimes of the rows that it is computed from; with one
        element along axes that have no rows.
        """
        return self._once(("groups", output), lambda: (self._groups(output),))[0]

    def placed_groups(self, output: int) -> Array:
        """Returns the same where references are worked out."""
        return self._once(("placed groups", output), lambda: (self._place(self.groups(output)),))[0]

    def _groups(self, output: int) -> Array:
        axes = self.program.values()[self.program.outputs[output]].axes
        shape = tuple(a.space.size(self.sizes) for a in axes)
        found = np.full((1,) * len(shape), self.regime if len(self.layout.rows) < len(self.inputs) else 0)
        for place, space in enumerate(self.layout.slots):
            dim = next((d for d, a in enumerate(axes) if a.space.name == space), None)
            if dim is not None:
                own = labels(shape[dim], self.regime) + 1
                found = found + own.reshape([-1 if d == dim else 1 for d in range(len(shape))]) * BASE ** (place + 1)
        return found


BASE = len(REGIMES) + 1
"""The number of a group has a digit to this base for the inputs without rows, and one for each slot of rows."""


def said(group: int) -> str:
    """Names the regimes of a group in words."""
    places: list[int] = []
    while group:
        group, last = divmod(group, BASE)
        places.append(last)
    own = [REGIMES[n - 1].name for n in places[1:] if n]
    rest = [REGIMES[places[0]].name] if places and (places[0] or not own) else []
    return " beside ".join(dict.fromkeys(own + rest)) or REGIMES[0].name


def most_terms(program: TensorProgram, sizes: Mapping[str, int]) -> int:
    """Returns how many terms the longest sum of the program has at `sizes`."""
    sums = (n.over for n in program.nodes if isinstance(n, Contraction | Reduction))
    return max((math.prod(a.space.size(sizes) for a in over) for over in sums), default=1)


def points(program: TensorProgram, sizes: Mapping[str, int]) -> int:
    """Estimates how many operations the program takes at `sizes`, one for each element of an input among them."""
    return _points(_runs(program), sizes)


def _points(runs: Sequence[tuple[tuple[Space, ...], int]], sizes: Mapping[str, int]) -> int:
    return sum(math.prod([space.size(sizes) for space in over]) // shared for over, shared in runs)


def _runs(program: TensorProgram) -> list[tuple[tuple[Space, ...], int]]:
    """Lists the spaces that each node runs over, and how many of its operations count as one."""
    nodes = (*program.inputs, *program.nodes)
    return [(tuple(a.space for a in axes_of(n)), _OF_A_PRODUCT if isinstance(n, Contraction) else 1) for n in nodes]


def cases(
    program: TensorProgram,
    far: Sequence[Mapping[str, int]],
    near: Sequence[Mapping[str, int]],
    seed: int,
    draws: int = 1,
    layout: RowLayout | None = None,
    device: torch.device | None = None,
) -> Iterator[Case]:
    """Yields inputs of all regimes.

    Args:
        program: without opaque operations.
        far: choices of sizes of all its spaces that take long: one case each.
        near: others; used in turn, each at least once. Inputs without rows are of each regime once.
        seed: of the numbers.
        draws: of each regime of inputs without rows.
        layout: of the inputs' rows; `layout_of(program)` by default.
        device: where references of many operations are worked out, if not by numpy.

    Returns:
        the cases, in a fixed order.
    """
    layout = layout or layout_of(program)
    reduced, looks_up = reduced_spaces(program), any(isinstance(n, Lookup) for n in program.nodes)
    single = any(n.name not in layout.rows for n in program.inputs)
    count = len(REGIMES) * draws if single else len(near) * draws
    wanted = [(sizes, 0) for sizes in far]
    wanted += [(near[n % len(near)], n % len(REGIMES)) for n in range(max(count, len(near)) if near else 0)]

    def made(number: int) -> Case | None:
        sizes, regime = wanted[number]
        rng = np.random.default_rng((seed, number))
        inputs = {
            n.name: drawn(n, sizes, layout, regime, rng, reduced, first=n is program.inputs[0]) for n in program.inputs
        }
        if looks_up and not _with_indices(program, inputs, sizes, rng):
            return None  # no call: eager raises an error
        large = points(program, sizes) >= ON_DEVICE
        return Case(program, sizes, inputs, layout, regime, device if large else None)

    if device is None:
        yield from filter(None, map(made, range(len(wanted))))
    else:  # sizes of a binary's class are large, and their numbers take as long to draw as all that follows
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            yield from filter(None, pool.map(made, range(len(wanted))))


def _with_indices(
    program: TensorProgram,
    inputs: dict[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> bool:
    """Puts indices that are there among `inputs`, whose integers decide where the program reads; False where none were found.

    An index may be computed of them: then smaller ones may do. One that is made of sizes alone is there, or none is.
    """
    indexing = deciding((program,))
    for part in (1, 2, 4, 1 << 20):
        for name, spaces in indexing.items():
            lengths = [max(1, space.size(sizes) // part) for space in spaces]
            inputs[name] = indices_below(lengths, inputs[name].shape, rng)
        if reads_inside(program, inputs, sizes):
            return True
    return False


def fitted(
    program: TensorProgram,
    wanted: Mapping[str, int],
    layout: RowLayout,
    most: int,
    whole: Collection[str] = (),
    allowed: Callable[[str, int], int] = lambda _, size: size,
    at_most: int = AT_MOST,
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
    """
    chosen = {name: size for name, size in wanted.items() if name not in program.following}
    least = {name: min(size, _LEAST) for name, size in chosen.items()}
    for name in layout.slots:
        if name in chosen and name not in whole:
            # So many more, not so many: a number that blocks divide would leave no rest.
            chosen[name] += ROWS * len(REGIMES) if chosen[name] < ROWS * len(REGIMES) else 0
            least[name] = len(REGIMES) if not whole else _LEAST
    if (
        not layout.slots
    ):  # of integers alone: three blocks of each loop and a rest, so that each must begin where the last one ended
        free = chosen.keys() - reduced_spaces(program) - set(whole)
        chosen |= {name: 2 * chosen[name] + 3 for name in free}
    chosen = _grown(program, {name: allowed(name, size) for name, size in chosen.items()}, allowed)
    least |= {name: chosen[name] for name in whole if name in chosen}
    sizes, summed, runs, slow = _taken(program, chosen), reduced_spaces(program), _runs(program), False

    def smaller(name: str) -> int | None:
        tried = (allowed(name, max(least[name], n)) for n in (chosen[name] * 2 // 3, chosen[name] // 2))
        return next((n for n in tried if n < chosen[name]), None)

    while sizes is not None and _points(runs, sizes) > most:
        room = {name: fewer for name in chosen if chosen[name] > least[name] and (fewer := smaller(name))}
        if not room and _points(runs, sizes) > _SLOW and not slow:
            slow = True
            fewest = 1 if whole else _FEWEST
            least |= {name: min(least[name], fewest) for name in least if name not in whole}
            continue
        if not room:
            return _roomy(program, chosen, sizes, allowed) if _points(runs, sizes) <= at_most else None
        name = max(room.keys() & set(layout.slots) or room.keys() - summed or room, key=chosen.__getitem__)
        taken = _taken(program, chosen | {name: room[name]})
        if taken is None:  # what follows from it would have no elements
            least[name] = chosen[name]
        else:
            sizes, chosen[name] = taken, room[name]
    return None if sizes is None else _roomy(program, chosen, sizes, allowed)


def _roomy(
    program: TensorProgram, chosen: Mapping[str, int], sizes: dict[str, int], allowed: Callable[[str, int], int]
) -> dict[str, int]:
    """Returns `sizes`, which follow from those `chosen`, with what is looked up in as long as indices made of sizes reach."""
    short = {name: allowed(name, n) for name, n in reached(program, sizes).items() if n > chosen.get(name, n)}
    return (_taken(program, {**chosen, **short}) or sizes) if short else sizes


def _grown(program: TensorProgram, chosen: Mapping[str, int], allowed: Callable[[str, int], int]) -> dict[str, int]:
    """Returns the sizes `chosen`, those that others follow from greater where these would have no elements else."""
    sizes = dict(chosen)
    sources = {source.name for rule in program.derived for source in rule.sources} & sizes.keys()
    for _ in range(_GROWN if sources else 0):
        if _taken(program, sizes) is not None:
            return sizes
        sizes |= {name: allowed(name, 2 * sizes[name] + 1) for name in sources}
    return dict(chosen)


def _taken(program: TensorProgram, chosen: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the sizes of all spaces; None where `program` does not take them."""
    sizes = program.sizes(chosen)
    if not all(s.name in sizes for s in program.spaces()) or any(size < 1 for size in sizes.values()):
        return None
    return sizes if program.consistent(sizes) and stays_inside(program, sizes) else None


def has_meaning(program: TensorProgram) -> bool:
    """Tells whether all of `program` can be evaluated."""
    return not any(isinstance(n, Opaque) or n.dtype.is_foreign for n in (*program.inputs, *program.nodes))
