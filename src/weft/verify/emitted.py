"""The judge of emitted code: whether results on hard inputs are as close to fp64 as eager's, regime by regime.

What the check over finite fields cannot see: range, rounding, layout, strides, flags, and the emitters themselves. `cases` makes
inputs at small sizes; whoever can run the kernels (`weft.plan.judge.judging`) runs them there; `Tally` holds the results against
the program in fp64 and against the program as eager rounds it, and gives the error rule's answer for each regime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.tensor.axes import Space
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, stays_inside
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.program import Contraction, Node, Opaque, Reduction, TensorProgram, axes_of
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
    least_normal,
)
from weft.verify.regimes import REGIMES, ROWS, Layout, drawn, labels, layout_of, reduced_spaces

# Operations that the reference of a case may have: for cases of all regimes, a millisecond; for one whose sizes reach beyond every
# block; and where the program's own sizes leave no smaller ones.
MANY, FAR, AT_MOST = 1 << 17, 1 << 20, 1 << 24
# So many multiplications and additions of a product cost as much as one other operation.
_OF_A_PRODUCT = 8
# Numbers within so many times of the largest may overflow in a sum of as many.
_TERMS = 4096.0
# A size that is made smaller is no smaller than this.
_LEAST = 5
# How many orders of summing, beside numpy's, and how many runs that round at random results are held against that are outside the
# rule; and how many times what those runs are off by a kernel may be off.
_ORDERS, _ROUNDINGS, _ROOM = 2, 4, 4.0
# How many runs that round so many times as coarsely, at the most: an integer that rounding decides lies among theirs. Of two shares
# that are as good as equal either may be the greater, and a GPU's exponentials and quotients are off by two units.
_COARSE = 64
# Where those runs are off by more than this share of the largest result, it has no right digit, and rounding at its worst is the
# measure.
_NOISE = 0.125


@dataclass(frozen=True, eq=False)
class Case:
    """One call of the kernels.

    Attributes:
        program: what they must compute.
        sizes: by name of the space.
        inputs: by name: float64 arrays of numbers that the types hold, int64, bool.
        layout: where rows are.
        regime: of inputs without rows, and of the first row of others.
    """

    program: TensorProgram
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    layout: Layout
    regime: int
    known: dict[tuple[str, int], tuple[Array, ...]] = field(default_factory=dict[tuple[str, int], "tuple[Array, ...]"])

    @cached_property
    def exact(self) -> tuple[Array, ...]:
        """The results in fp64."""
        return _evaluated(self.program, self.inputs, self.sizes, Fp64Domain())

    @cached_property
    def eager(self) -> tuple[Array, ...]:
        """The results as eager rounds them."""
        return self.in_order(0)

    @cached_property
    def unmasked(self) -> tuple[Array, ...]:
        """The results in fp64 where 0 times anything is 0."""
        return _evaluated(self.program, self.inputs, self.sizes, MaskedDomain())

    @cached_property
    def of_poles(self) -> tuple[Array, ...]:
        """Gives the infinity that a result may be where quotients by 0 decide that it is no number; else NaN."""
        made = _evaluated(self.program, self.inputs, self.sizes, PoleDomain())
        return tuple(np.where(np.abs(v) >= PoleDomain.LARGE**0.5, np.copysign(np.inf, v), np.nan) for v in made)

    @cached_property
    def flushed(self) -> tuple[Array, ...]:
        """The results in fp64 where numbers below the normal ones are 0, as units for products of 16 bits take them."""
        kinds = {n.name: n.dtype for n in self.program.inputs}
        inputs = {
            name: np.where(np.abs(v) < least_normal(kinds[name]), 0.0, v) if kinds[name].is_float else v
            for name, v in self.inputs.items()
        }
        return _evaluated(self.program, inputs, self.sizes, FlushedDomain())

    def in_order(self, order: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results as eager rounds them, with sums in another order."""

        domain = (MaskedEagerDomain if masked else EagerDomain)(order)
        key = "masked, in order" if masked else "order", order
        return self._once(key, lambda: eagerly(self.program, self.inputs, self.sizes, domain))

    @cached_property
    def accidental(self) -> tuple[Array, ...]:
        """Returns for each element whether an accident of roundings or of the order of sums decides whether it is a number."""

        def made(poison: float) -> tuple[Array, ...]:
            domain = AccidentalDomain(most_terms(self.program, self.sizes), poison)
            return _evaluated(self.program, self.inputs, self.sizes, domain, domain.begin)

        pairs = zip(made(np.nan), made(0.0), self.exact, strict=True)
        return tuple(
            (np.isnan(with_nan) & ~np.isnan(with_0)) | (np.isfinite(exact) & ~np.isfinite(with_nan))
            if with_nan.dtype.kind == "f"
            else np.zeros(with_nan.shape, np.bool_)
            for with_nan, with_0, exact in pairs
        )

    def rounded(self, number: int, *, masked: bool = False) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random."""

        def made() -> tuple[Array, ...]:
            return self._off((MaskedRandomlyRoundedDomain if masked else RandomlyRoundedDomain)(number))

        return self._once(("masked and rounded" if masked else "rounded", number), made)

    def coarsely_rounded(self, number: int) -> tuple[Array, ...]:
        """Returns the results where each operation rounds at random, by as much as those of a GPU that are the least exact."""
        return self._off(RandomlyRoundedDomain(number, _ROOM))

    @cached_property
    def rounded_alike(self) -> tuple[Array, ...]:
        """The results where all operations round in one direction."""
        return self._off(AlikeRoundedDomain())

    def _off(self, domain: RandomlyRoundedDomain) -> tuple[Array, ...]:
        kinds = {n.name: n.dtype for n in self.program.inputs}
        given = {name: domain.given(v, kinds[name]) for name, v in self.inputs.items()}
        return _evaluated(self.program, given, self.sizes, domain, domain.begin)

    def _once(self, key: tuple[str, int], made: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
        if key not in self.known:
            self.known[key] = made()
        return self.known[key]

    def groups(self, output: int) -> Array:
        """Returns for each element of an output a number that stands for the regimes of the rows that it is computed from."""
        return self._once(("groups", output), lambda: (self._groups(output),))[0]

    def _groups(self, output: int) -> Array:
        axes = self.program.values()[self.program.outputs[output]].axes
        shape = tuple(a.space.size(self.sizes) for a in axes)
        found = np.full(shape, self.regime if len(self.layout.rows) < len(self.inputs) else 0)
        for place, space in enumerate(self.layout.slots):
            dim = next((d for d, a in enumerate(axes) if a.space.name == space), None)
            if dim is not None:
                own = labels(shape[dim], self.regime) + 1
                found = found + own.reshape([-1 if d == dim else 1 for d in range(len(shape))]) * _BASE ** (place + 1)
        return found


_BASE = len(REGIMES) + 1


def _said(group: int) -> str:
    """Names the regimes of a group in words."""
    places: list[int] = []
    while group:
        group, last = divmod(group, _BASE)
        places.append(last)
    own = [REGIMES[n - 1].name for n in places[1:] if n]
    rest = [REGIMES[places[0]].name] if places and (places[0] or not own) else []
    return " beside ".join(dict.fromkeys(own + rest)) or REGIMES[0].name


def _evaluated(
    program: TensorProgram,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int],
    domain: Fp64Domain,
    watch: Callable[[Node], None] | None = None,
) -> tuple[Array, ...]:
    with np.errstate(all="ignore"):
        return evaluate(program, inputs, domain, sizes=dict(sizes), watch=watch)


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
    layout: Layout | None = None,
) -> Iterator[Case]:
    """Yields inputs of all regimes.

    Args:
        program: without opaque operations.
        far: choices of sizes of all its spaces that take long: one case each.
        near: others; used in turn, each at least once. Inputs without rows are of each regime once.
        seed: of the numbers.
        draws: of each regime of inputs without rows.
        layout: of the inputs' rows; `layout_of(program)` by default.

    Returns:
        the cases, in a fixed order.
    """
    layout = layout or layout_of(program)
    reduced = reduced_spaces(program)
    single = any(n.name not in layout.rows for n in program.inputs)
    count = len(REGIMES) * draws if single else len(near) * draws
    wanted = [(sizes, 0) for sizes in far]
    wanted += [(near[n % len(near)], n % len(REGIMES)) for n in range(max(count, len(near)) if near else 0)]
    for number, (sizes, regime) in enumerate(wanted):
        rng = np.random.default_rng((seed, number))
        inputs = {
            n.name: drawn(n, sizes, layout, regime, rng, reduced, first=n is program.inputs[0]) for n in program.inputs
        }
        yield Case(program, sizes, inputs, layout, regime)


@dataclass(eq=False)
class Tally:
    """What was found so far.

    Attributes:
        program: what the kernels must compute.
        wrong: what no rounding explains, in words, in the order found.
    """

    program: TensorProgram
    wrong: list[str] = field(default_factory=list[str])
    _maxima: dict[int, Array] = field(default_factory=dict[int, Array])
    """Of each output, for each group: the error, eager's, and the largest result."""
    _cases: list[tuple[Case, tuple[Array, ...]]] = field(default_factory=list["tuple[Case, tuple[Array, ...]]"])

    def add(self, case: Case, results: Sequence[Array]) -> None:
        """Takes in the results of a case: float64, int64 or bool."""
        self._cases.append((case, tuple(results)))
        for output, found in enumerate(results):
            shape = case.exact[output].shape
            if found.shape != shape:
                self.wrong.append(f"output {output} has shape {found.shape}, not {shape}")
            elif found.dtype.kind == "f":
                self._floats(case, output, found)
            else:
                self._exact(case, output, found)

    def verdict(self) -> str | None:
        """Says what is wrong, in words; None where every regime keeps the rule."""
        if self.wrong:
            return self.wrong[0]
        return next(filter(None, (self._unexplained(output, found) for output, found in self._maxima.items())), None)

    def _unexplained(self, output: int, maxima: Array) -> str | None:
        """Says which regime of an output does not keep the rule, in words; None where roundings explain all.

        What eager may lose is worked out step by step, until it explains what a kernel is off by: mostly the first steps do.
        """
        most, moved = maxima.copy(), np.zeros(maxima.shape[1])
        bad = most[0] > self._bound(output, most)
        for number in range(1, _ORDERS + 1):
            for case in self._of(output, bad):
                _raise(most[1], case, output, np.abs(_minus(case.in_order(number)[output], case.exact[output])))
                bad &= most[0] > self._bound(output, most)
        bound = self._bound(output, most)
        for number in range(_ROUNDINGS):
            for case in self._of(output, bad):
                _raise(moved, case, output, np.abs(_minus(case.rounded(number)[output], case.exact[output])))
                bad &= most[0] > bound + _ROOM * moved
        sure = self._where_sure(output, bad)
        bad &= sure > bound + _ROOM * moved
        noise, worst = moved > _NOISE * most[2], np.zeros_like(moved)
        for case in self._of(output, bad & noise):
            _raise(worst, case, output, np.abs(_minus(case.rounded_alike[output], case.exact[output])))
            bad &= ~noise | (sure > worst)
        if not bad.any():
            return None
        group = int(np.argmax(bad))
        error, own = sure[group], most[1, group]
        return f"output {output}, {_said(group)}: error {error:.3g}, eager's {own:.3g}, bound {bound[group]:.3g}"

    def _floats(self, case: Case, output: int, found: Array) -> None:
        exact, eager = case.exact[output], case.eager[output]
        groups = case.groups(output)
        exact = _in_range(exact, eager, self._dtype(output))
        counted = np.isfinite(exact) & np.isfinite(eager)
        lost = counted & ~np.isfinite(found)
        if lost.any():  # near the end of the range a sum may leave it where its quotients do not
            lost &= ~_same_class(found, case.flushed[output]) & (
                np.abs(exact) < -self._dtype(output).accumulator.lowest / _TERMS
            )
        odd = self._odd(case, output, found, exact)
        if lost.any():
            lost &= ~case.accidental[output]
        for number in range(_ROUNDINGS) if lost.any() else ():
            lost &= ~_same_class(found, case.rounded(number)[output])
        for mask in (lost, odd):
            if mask.any():
                place = tuple(int(i) for i in np.argwhere(mask)[0])
                self.wrong.append(
                    f"output {output}, {_said(int(groups[place]))}: {found[place]} where eager gives {eager[place]}"
                )
                return
        counted &= np.isfinite(found)
        maxima = self._maxima.setdefault(output, np.zeros((3, _BASE ** (1 + len(case.layout.slots)))))
        inside = groups[counted]
        for place, values in enumerate((_minus(found, exact), _minus(eager, exact), exact)):
            np.maximum.at(maxima[place], inside, np.abs(values[counted]))

    def _odd(self, case: Case, output: int, found: Array, exact: Array) -> Array:
        """Tells where eager has no number, and a result is not one that a right kernel may give there.

        Such is the same, or a right number, since a kernel may have more range. An infinity may be a NaN: a state that is corrected
        subtracts infinities. What a mask excludes does not count; what rounding decides, the sign of a zero among it, is nobody's
        promise, nor whether a sum of large terms leaves the range on its way.
        """
        eager = case.eager[output]

        def ranged(values: Array) -> Array:
            return _in_range(values, eager, self._dtype(output))

        odd = ~np.isfinite(exact) & ~np.isfinite(eager)
        odd &= ~np.isnan(found) & ~_same_class(found, exact) & ~_same_class(found, eager)
        if not odd.any():
            return odd
        unmasked = ranged(case.unmasked[output])
        odd &= ~_near(found, unmasked, self._eps(output)) & ~_same_class(found, ranged(case.flushed[output]))
        if odd.any():
            odd &= (~case.accidental[output] | np.isfinite(found)) & (found != case.of_poles[output])
        for number in range(_ROUNDINGS) if odd.any() else ():
            other = ranged(case.rounded(number)[output])
            odd &= ~(_same_class(found, other) | np.isfinite(other))
            if (np.isinf(other) & np.isinf(exact) & (other != exact)).any():
                odd &= ~np.isinf(found)
        if odd.any():
            results = [case.rounded(n, masked=True) for n in range(_ROUNDINGS)]
            results += [case.in_order(n, masked=True) for n in range(_ORDERS + 1)]
            others = np.stack([ranged(each[output]) for each in results])
            with np.errstate(all="ignore"):
                room = _ROOM * np.abs(others - unmasked).max(0)
                odd &= ~(np.abs(found - unmasked) <= room) & ~_same_class(found, others).any(0)
        return odd

    def _exact(self, case: Case, output: int, found: Array) -> None:
        exact, eager = case.exact[output], case.eager[output]
        wrong = (found != exact) & (found != eager)
        if not wrong.any():
            return
        for number in range(1, _ORDERS + 1):
            wrong &= found != case.in_order(number)[output]
        wrong &= found != case.flushed[output]
        for number in range(_ROUNDINGS):
            wrong &= case.rounded(number)[output] == exact  # what rounding decides is nobody's promise
        if wrong.any():
            wrong &= ~self._between_roundings(case, output, found)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            group = int(case.groups(output)[place])
            self.wrong.append(f"output {output}, {_said(group)}: {found[place]} where {exact[place]} is right")

    def _between_roundings(self, case: Case, output: int, found: Array) -> Array:
        """Tells which integers lie among those of runs that are rounded coarsely: a number at the edge between two others is one of
        the two, and of elements as good as equal the first may be at any of several places.
        """
        low, high = (
            np.minimum(case.exact[output], case.eager[output]),
            np.maximum(case.exact[output], case.eager[output]),
        )
        for number in range(max(_ROUNDINGS, min(_COARSE, AT_MOST // points(self.program, case.sizes)))):
            made = case.coarsely_rounded(number)[output]
            low, high = np.minimum(low, made), np.maximum(high, made)
            if ((low <= found) & (found <= high)).all():
                break
        return (low <= found) & (found <= high)

    def _where_sure(self, output: int, bad: Array) -> Array:
        """Measures the errors of groups that are `bad` where no rounding decides that there is no number.

        What a mask excludes need not count: where eager makes a number of a NaN (nan_to_num), it may be made of a number.
        """
        most = np.zeros(len(bad))
        for case, results in self._cases:
            if bad[case.groups(output)].any():
                eager, found = case.eager[output], results[output]
                sure = np.all([np.isfinite(case.rounded(number)[output]) for number in range(_ROUNDINGS)], axis=0)
                references = (
                    _in_range(each[output], eager, self._dtype(output)) for each in (case.exact, case.unmasked)
                )
                off = np.fmin(*(np.abs(_minus(found, each)) for each in references))
                _raise(most, case, output, np.where(sure & np.isfinite(eager), off, np.nan))
        return most

    def _of(self, output: int, bad: Array) -> Iterator[Case]:
        """Yields the cases that have rows of groups that are `bad`, as long as there are such groups; short ones first."""
        for case, _ in sorted(self._cases, key=lambda each: points(self.program, each[0].sizes)):
            if bad[case.groups(output)].any():
                yield case

    def _eps(self, output: int) -> float:
        return self._dtype(output).eps

    def _dtype(self, output: int) -> DType:
        return self.program.values()[self.program.outputs[output]].dtype

    def _bound(self, output: int, most: Array) -> Array:
        """Returns the error rule's bound; below the normal numbers, which some machines make 0, nothing counts."""
        dtype = self._dtype(output)
        return 2.0 * most[1] + 2.0 * dtype.eps * most[2] + least_normal(dtype)


def _in_range(exact: Array, eager: Array, dtype: DType) -> Array:
    """Returns `exact`, infinite where it is more than twice the largest number of its type and eager's is that infinity."""
    beyond = np.isinf(rounded(exact / 2, dtype)) & np.isinf(eager) & (np.sign(exact) == np.sign(eager))
    return np.where(beyond, eager, exact)


def _minus(one: Array, other: Array) -> Array:
    with np.errstate(all="ignore"):
        return one.astype(np.float64) - other


def _raise(most: Array, case: Case, output: int, values: Array) -> None:
    """Raises the maximum of each group to the greatest of its `values` that are numbers."""
    counted = np.isfinite(values)
    np.maximum.at(most, case.groups(output)[counted], values[counted])


def _same_class(one: Array, other: Array) -> Array:
    """Tells where both are NaN, or the same infinity."""
    return (np.isnan(one) & np.isnan(other)) | ((one == other) & np.isinf(one))


def _near(found: Array, exact: Array, eps: float) -> Array:
    """Tells where `found` is the finite number `exact`, or nearly, or the same infinity."""
    with np.errstate(all="ignore"):
        scale = float(np.max(np.abs(exact), where=np.isfinite(exact), initial=0.0))
        return (np.abs(found - exact) <= 16 * eps * scale) | _same_class(found, exact)


def fitted(
    program: TensorProgram,
    wanted: Mapping[str, int],
    layout: Layout,
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
        most: so many operations.
        whole: spaces that keep the size wanted, whatever becomes of the others; then rows need not be of all regimes.
        allowed: gives the size of a space, by name, to take in place of one that is wanted.
        at_most: so many operations where nothing that is allowed takes fewer.
    """
    chosen = {name: size for name, size in wanted.items() if name not in program.following}
    least = {name: min(size, _LEAST) for name, size in chosen.items()}
    for name in layout.slots:
        if name in chosen:
            # So many more, not so many: a number that blocks divide would leave no rest.
            chosen[name] += ROWS * len(REGIMES) if chosen[name] < ROWS * len(REGIMES) else 0
            least[name] = len(REGIMES) if not whole else _LEAST
    if (
        not layout.slots
    ):  # of integers alone: three blocks of each loop and a rest, so that each must begin where the last one ended
        chosen |= {name: 2 * size + 3 for name, size in chosen.items() if name not in reduced_spaces(program)}
    chosen = {name: allowed(name, size) for name, size in chosen.items()}
    least |= {name: chosen[name] for name in whole if name in chosen}
    sizes, summed, runs = _taken(program, chosen), reduced_spaces(program), _runs(program)

    def smaller(name: str) -> int | None:
        tried = (allowed(name, max(least[name], n)) for n in (chosen[name] * 2 // 3, chosen[name] // 2))
        return next((n for n in tried if n < chosen[name]), None)

    while sizes is not None and _points(runs, sizes) > most:
        room = {name: fewer for name in chosen if chosen[name] > least[name] and (fewer := smaller(name))}
        if not room:
            return sizes if _points(runs, sizes) <= at_most else None
        name = max(room.keys() & set(layout.slots) or room.keys() - summed or room, key=chosen.__getitem__)
        taken = _taken(program, chosen | {name: room[name]})
        if taken is None:  # what follows from it would have no elements
            least[name] = chosen[name]
        else:
            sizes, chosen[name] = taken, room[name]
    return sizes


def _taken(program: TensorProgram, chosen: Mapping[str, int]) -> dict[str, int] | None:
    """Returns the sizes of all spaces; None where `program` does not take them."""
    sizes = program.sizes(chosen)
    if not all(s.name in sizes for s in program.spaces()) or any(size < 1 for size in sizes.values()):
        return None
    return sizes if program.consistent(sizes) and stays_inside(program, sizes) else None


def has_meaning(program: TensorProgram) -> bool:
    """Tells whether all of `program` can be evaluated."""
    return not any(isinstance(n, Opaque) or n.dtype.is_foreign for n in (*program.inputs, *program.nodes))
