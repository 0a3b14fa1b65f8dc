"""The judge of emitted code: whether results on hard inputs are as close to fp64 as eager's, regime by regime.

What the check over finite fields cannot see: range, rounding, layout, strides, flags, and the emitters themselves. The inputs come
from `weft.verify.cases`; whoever can run the kernels (`weft.plan.judge.judging`) runs them there; `ErrorTally` holds the results
against the program in fp64 and against the program as eager rounds it, and gives the error rule's answer for each regime.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.program import TensorProgram
from weft.verify.cases import BASE, ROOM, Case, said
from weft.verify.fitted import AT_MOST, points
from weft.verify.totals import has_totals

# Numbers within so many times of the largest may overflow in a sum of as many.
_TERMS = 4096.0
# How many orders of summing, beside numpy's, and how many runs that round at random results are held against that are outside the
# rule.
_ORDERS, _ROUNDINGS = 2, 4
# How many runs that round so many times as coarsely, at the most: an integer that rounding decides lies among theirs. Of two shares
# that are as good as equal either may be the greater, and a GPU's exponentials and quotients are off by two units.
_COARSE = 64
# Of a group of few elements so many results that are rounded at random are looked at before it is wrong, in at most so many runs,
# which have so many operations together: a second or two.
_DRAWN, _MOST_ROUNDINGS, _MORE = 256, 64, 1 << 26
# Where those runs are off by more than this share of the largest result, it has no right digit, and rounding at its worst is the
# measure.
_NOISE = 0.125
# Operations of the cases whose arrays are kept: some hundred MiB.
_HELD = 1 << 22


@dataclass(eq=False)
class ErrorTally:
    """What was found so far.

    Attributes:
        program: what the kernels must compute.
        wrong: what no rounding explains, in words, in the order found.
    """

    program: TensorProgram
    wrong: list[str] = field(default_factory=list[str])
    _maxima: dict[int, Array] = field(default_factory=dict[int, Array])
    """Of each output, for each group: the error, eager's, and the largest result."""
    _cases: list[Case] = field(default_factory=list[Case])
    _results: dict[Case, tuple[Array, ...]] = field(default_factory=dict["Case", "tuple[Array, ...]"])
    """Of those cases that alone would be wrong: no other one decides."""
    _held: int = 0

    def __bool__(self) -> bool:
        """Tells whether there were cases."""
        return bool(self._cases)

    def add(self, case: Case, results: Sequence[Array]) -> None:
        """Takes in the results of a case: float64, int64 or bool. Of a large case, or one of many, the arrays are given up."""
        self._cases.append(case)
        if self._compare(case, results):
            self._results[case] = tuple(results)
        self._forget(case)

    def _forget(self, case: Case) -> None:
        """Gives up the arrays of a case that is large, or one of many."""
        self._held += points(self.program, case.sizes)
        if self._held > _HELD:
            case.forget()

    def _compare(self, case: Case, results: Sequence[Array]) -> bool:
        """Compares results with a case's; tells whether this case alone leaves something to explain."""
        open_ = False
        for output, found in enumerate(results):
            shape = case.exact[output].shape
            if found.shape != shape:
                self.wrong.append(f"output {output} has shape {found.shape}, not {shape}")
            elif found.dtype.kind == "f":
                open_ |= self._floats(case, output, found)
            else:
                self._exact(case, output, found)
        return open_

    def verdict(self) -> str | None:
        """Says what is wrong, in words; None where every regime keeps the rule."""
        if self.wrong:
            return self.wrong[0]
        return next(filter(None, (self._unexplained(output, found) for output, found in self._maxima.items())), None)

    def _unexplained(self, output: int, maxima: Array) -> str | None:
        """Says which regime of an output does not keep the rule, in words; None where roundings explain all.

        What eager may lose is worked out step by step, until it explains what a kernel is off by: mostly the first steps do. Which
        comes first changes no verdict, since each allows for more; a sum in another order takes a call for each of its terms.
        """
        most, moved = maxima.copy(), np.zeros(maxima.shape[1])
        bad = most[0] > self._bound(output, most)
        for case in self._of(output, bad, _rounded):
            for found in _rounded(case):
                _raise(moved, case, output, np.abs(_minus(found[output], case.exact[output])))
            bad &= most[0] > self._bound(output, most) + ROOM * moved
        for case in self._of(output, bad, _in_orders):
            for found in _in_orders(case):
                _raise(most[1], case, output, np.abs(_minus(found[output], case.exact[output])))
            bad &= most[0] > self._bound(output, most) + ROOM * moved
        bound = self._bound(output, most)
        sure = self._where_sure(output, bad)
        bad &= sure > bound + ROOM * moved
        noise, worst = moved > _NOISE * most[2], np.zeros_like(moved)
        for case in self._of(output, bad & noise, lambda case: case.rounded_alike):
            _raise(worst, case, output, np.abs(_minus(case.rounded_alike[output], case.exact[output])))
            bad &= ~noise | (sure > worst)
        bad &= self._beyond_more_runs(output, bad, sure - bound, moved)
        if not bad.any():
            return None
        group = int(np.argmax(bad))
        error, own = sure[group], most[1, group]
        return f"output {output}, {said(group)}: error {error:.3g}, eager's {own:.3g}, bound {bound[group]:.3g}"

    def _beyond_more_runs(self, output: int, bad: Array, over: Array, moved: Array) -> Array:
        """Tells which groups are off by more than `over` in further runs that round at random too, and raises `moved` by these.

        Four runs of a group of a thousand elements are thousands of draws; of one element they are four. Where noise decides
        between the ends of a tanh, all four are at the same one in one group of eight.
        """
        axes = self.program.values()[self.program.outputs[output]].axes
        few, bad = np.zeros_like(over), bad.copy()
        for case in self._cases if bad.any() else ():
            groups = case.groups(output)
            np.add.at(few, groups, math.prod(a.space.size(case.sizes) for a in axes) / groups.size)
        left = _MORE
        for number in range(_ROUNDINGS, _MOST_ROUNDINGS):
            asked = bad & (few * number < _DRAWN)
            for case in self._of(output, asked, lambda _: None):
                left -= points(self.program, case.sizes)
                if left < 0:
                    return bad & (over > ROOM * moved)
                _raise(moved, case, output, np.abs(_minus(case.rounded(number)[output], case.exact[output])))
            bad &= over > ROOM * moved
        return bad

    def _floats(self, case: Case, output: int, found: Array) -> bool:
        exact, eager = case.exact[output], case.eager[output]
        exact = _in_range(exact, eager, self._dtype(output))
        sure, numbers, of_kernel = np.isfinite(exact), np.isfinite(eager), np.isfinite(found)
        counted = sure & numbers
        lost = counted & ~of_kernel
        # Where neither reference is a number, the kernel's NaN is as good as any, and so is the infinity of either of them.
        odd = ~(sure | numbers) & ~np.isnan(found) & (found != exact) & (found != eager)
        if (lost | odd).any() and self._is_wrong_class(
            case, output, found, exact, (lost, odd)
        ):  # on a GPU, one question
            return False
        counted = counted & of_kernel
        maxima = self._maxima.setdefault(output, np.zeros((3, BASE ** (1 + len(case.layout.slots)))))
        own = np.zeros_like(maxima)
        values = np.stack([np.abs(v) for v in (_minus(found, exact), _minus(eager, exact), exact)])
        _raise_each(own, case, output, values, counted)
        np.maximum(maxima, own, out=maxima)
        return bool((own[0] > self._bound(output, maxima)).any())

    def _is_wrong_class(
        self, case: Case, output: int, found: Array, exact: Array, suspected: tuple[Array, Array]
    ) -> bool:
        """Tells whether a number is lost, or an element odd that is none in eager, that nothing explains; and says so.

        Args:
            case, output, found: whose results.
            exact: the reference, within the range of the output's type.
            suspected: elements that are a number in both references alone, and such as `_odd` looks at.
        """
        eager, (lost, odd) = case.eager[output], suspected
        if lost.any():  # near the end of the range a sum may leave it where its quotients do not
            lost = (
                lost
                & ~_same_class(found, case.flushed[output])
                & (np.abs(exact) < -self._dtype(output).accumulator.lowest / _TERMS)
            )
        if lost.any():
            lost = lost & ~case.accidental[output]
        if lost.any():
            lost = self._lost_in_all_runs(case, output, found, lost)
        left = lost if lost.any() else self._odd(case, output, found, exact, odd)
        if not left.any():
            return False
        place = tuple(int(i) for i in np.argwhere(left)[0])
        regimes = said(_group_at(case, output, place))
        self.wrong.append(f"output {output}, {regimes}: {found[place]} where eager gives {eager[place]}")
        return True

    def _lost_in_all_runs(self, case: Case, output: int, found: Array, lost: Array) -> Array:
        """Tells which numbers are lost that no run that rounds at random loses, or has beyond the range of the output's type.

        Of few, more runs are asked, as where numbers are off (`_beyond_more_runs`).
        """
        dtype, cost = self._dtype(output), points(self.program, case.sizes)
        with np.errstate(over="ignore"):  # beyond it a number is rounded to infinity; of fp64 that is infinite itself
            largest = np.ldexp(1.0 - dtype.eps / 4, dtype.exponents[1])
        for number in range(_MOST_ROUNDINGS):
            count = int(np.count_nonzero(lost))
            if not count or (number >= _ROUNDINGS and (count * number >= _DRAWN or cost * number > _MORE)):
                break
            other = case.rounded(number)[output]
            beyond = np.isinf(found) & (np.abs(other) > largest) & ((other > 0) == (found > 0))
            lost = lost & ~(_same_class(found, other) | beyond)
        return lost

    def _odd(self, case: Case, output: int, found: Array, exact: Array, odd: Array) -> Array:
        """Tells which of elements that are `odd` stay so: eager has no number, and a right kernel may not give such a result there.

        Such is the same, or a right number, since a kernel may have more range. An infinity may be a NaN: a state that is corrected
        subtracts infinities. What a mask excludes does not count; what rounding decides, the sign of a zero among it, is nobody's
        promise, nor whether a sum of large terms leaves the range on its way.
        """
        eager = case.eager[output]

        def ranged(values: Array) -> Array:
            return _in_range(values, eager, self._dtype(output))

        if not odd.any():
            return odd
        unmasked = ranged(case.unmasked[output])
        near = _near(found, unmasked, self._dtype(output), _alike(case, output))
        odd = odd & ~near & ~_same_class(found, ranged(case.flushed[output]))
        if odd.any():
            odd &= (~case.accidental[output] | np.isfinite(found)) & (found != case.of_poles[output])
        for number in range(_ROUNDINGS) if odd.any() else ():
            other = ranged(case.rounded(number)[output])
            odd &= ~(_same_class(found, other) | np.isfinite(other))
            if (np.isinf(other) & np.isinf(exact) & (other != exact)).any():
                odd &= ~np.isinf(found)
        for way in (0, 1, -1) if odd.any() else ():
            other = ranged(case.nudged(way)[output])
            odd &= ~(_same_class(found, other) | (np.isfinite(found) & np.isfinite(other)))
        room = np.zeros_like(found)
        for made, count in ((case.rounded, _ROUNDINGS), (case.in_order, _ORDERS + 1)):
            for number in range(count):
                if not odd.any():
                    return odd
                other = ranged(made(number, masked=True)[output])
                with np.errstate(all="ignore"):
                    room = np.maximum(room, ROOM * np.abs(other - unmasked))  # no room beside what is no number
                    odd &= ~(np.abs(found - unmasked) <= room) & ~_same_class(found, other)
        return odd & ~self._has_more_range(case, output, found, odd) if odd.any() else odd

    def _has_more_range(self, case: Case, output: int, found: Array, odd: Array) -> Array:
        """Tells which results are right in a range that neither eager nor fp64 has: a kernel that takes a maximum off its exponents
        has it where `exp(s) / exp(s).sum()` leaves theirs. Where `has_totals` does not hold, it may be wrong where eager is right.
        """
        wide = case.wide() if has_totals(self.program) else None
        if wide is None:
            return np.zeros_like(odd)
        right = _near(found, wide[output], self._dtype(output), _alike(case, output))
        room = np.zeros_like(found)
        for number in range(1, _ROUNDINGS + 1):
            if not (odd & ~right).any():
                break
            other = case.wide(number)
            if other is None:
                break
            with np.errstate(all="ignore"):
                room = np.fmax(room, ROOM * np.abs(other[output] - wide[output]))
                right = right | (np.abs(found - wide[output]) <= room)
        return right

    def _exact(self, case: Case, output: int, found: Array) -> None:
        exact, eager = case.exact[output], case.eager[output]
        wrong = (found != exact) & (found != eager)
        if not wrong.any():
            return
        wrong &= found != case.flushed[output]
        for number in range(_ROUNDINGS) if wrong.any() else ():
            wrong &= case.rounded(number)[output] == exact  # what rounding decides is nobody's promise
        for number in range(1, _ORDERS + 1) if wrong.any() else ():
            wrong &= found != case.in_order(number)[output]
        if wrong.any():
            wrong &= ~self._between_roundings(case, output, found)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            regimes = said(_group_at(case, output, place))
            self.wrong.append(f"output {output}, {regimes}: {found[place]} where {exact[place]} is right")

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
        for case, results in self._results.items():  # of the others no error is above the bound
            if bad[case.groups(output)].any():
                eager, found = case.eager[output], results[output]
                sure = np.isfinite(eager)
                for number in range(_ROUNDINGS):
                    sure = sure & np.isfinite(case.rounded(number)[output])
                references = (
                    _in_range(each[output], eager, self._dtype(output)) for each in (case.exact, case.unmasked)
                )
                off = np.fmin(*(np.abs(_minus(found, each)) for each in references))
                _raise(most, case, output, np.where(sure, off, np.nan))
                self._forget(case)
        return most

    def _of(self, output: int, bad: Array, asked: Callable[[Case], object]) -> Iterator[Case]:
        """Yields the cases that have rows of groups that are `bad`, as long as there are such groups; short ones first.

        What is `asked` of them is worked out for some after the first at once: each takes seconds where blocks are large, but on
        a GPU, which is given one after another anyhow.
        """
        own = [case for case in self._cases if bad[case.groups(output)].any()]
        own.sort(key=lambda case: points(self.program, case.sizes))
        workers, begin = os.cpu_count() or 1, 0
        while begin < len(own):
            some = own[begin : begin + (workers if begin else 1)]
            begin += len(some)
            some = [case for case in some if bad[case.groups(output)].any()]
            if len(some) > 1 and some[-1].device is None:
                with ThreadPoolExecutor(len(some)) as pool:
                    list(pool.map(asked, some))
            for case in some:
                if bad[case.groups(output)].any():
                    yield case
                self._forget(case)

    def _dtype(self, output: int) -> DType:
        return self.program.values()[self.program.outputs[output]].dtype

    def _bound(self, output: int, most: Array) -> Array:
        """Returns the error rule's bound; below the normal numbers, which some machines make 0, nothing counts."""
        dtype = self._dtype(output)
        return 2.0 * most[1] + 2.0 * dtype.eps * most[2] + dtype.least_normal


def _in_orders(case: Case) -> list[tuple[Array, ...]]:
    """Returns the results as eager rounds them, in orders of summing beside numpy's: chains of all terms, as no long sum may be."""
    return [case.in_order(number) for number in range(1, _ORDERS + 1)] if not case.long else []


def _rounded(case: Case) -> list[tuple[Array, ...]]:
    """Returns the results of runs that round at random."""
    return [case.rounded(number) for number in range(_ROUNDINGS)]


def _in_range(exact: Array, eager: Array, dtype: DType) -> Array:
    """Returns `exact`, infinite where it is more than twice the largest number of its type and eager's is that infinity."""
    infinite = np.isinf(eager)
    if not infinite.any():
        return exact
    beyond = np.isinf(rounded(exact / 2, dtype)) & infinite & ((exact > 0) == (eager > 0))
    return np.where(beyond, eager, exact)


def _minus(one: Array, other: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.subtract(one, other, dtype=np.float64)


def _raise(most: Array, case: Case, output: int, values: Array, counted: Array | None = None) -> None:
    """Raises the maximum of each group to the greatest of its `values`, none below 0, that count: else those that are numbers."""
    where = np.isfinite(values) if counted is None else counted
    greatest = np.max(values, axis=_alike(case, output), keepdims=True, where=where, initial=0.0)
    np.maximum.at(most, case.placed_groups(output), greatest)


def _raise_each(most: Array, case: Case, output: int, values: Array, counted: Array) -> None:
    """Raises rows of maxima as `_raise` does one of them, each by one of `values`: on a GPU, all of them come back at once."""
    alike = tuple(d + 1 for d in _alike(case, output))
    greatest = np.max(values, axis=alike, keepdims=True, where=counted, initial=0.0)
    np.maximum.at(most, cast("Array", (slice(None), case.placed_groups(output))), greatest)


def _alike(case: Case, output: int) -> tuple[int, ...]:
    """Returns the dimensions of an output that go along its rows: all other elements at one place of the rest are of its row."""
    return tuple(d for d, size in enumerate(case.groups(output).shape) if size == 1)


def _group_at(case: Case, output: int, place: tuple[int, ...]) -> int:
    """Returns the group of one element."""
    groups = case.groups(output)
    return int(groups[tuple(min(i, size - 1) for i, size in zip(place, groups.shape, strict=True))])


def _same_class(one: Array, other: Array) -> Array:
    """Tells where both are NaN, or the same infinity."""
    return (np.isnan(one) & np.isnan(other)) | ((one == other) & np.isinf(one))


def _near(found: Array, exact: Array, dtype: DType, along: tuple[int, ...]) -> Array:
    """Tells where `found` is the finite number `exact`, but for a few units of the largest in its row, or the same infinity.

    Args:
        found, exact: results.
        dtype: their type.
        along: the dimensions that go along a row.
    """
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(exact), axis=along, keepdims=True, where=np.isfinite(exact), initial=0.0)
        return (np.abs(found - exact) <= 16 * dtype.eps * scale + dtype.least_normal) | _same_class(found, exact)
