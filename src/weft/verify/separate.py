"""The search for an input that tells two functions apart.

Both are run in eager PyTorch, as they are, on inputs of `weft.verify.seeds`. Where their results differ, both programs are computed
in numbers as they are written (`weft.verify.written`): a difference counts where it is there too, is about as large, and is more
than rounding explains, that of the constants that only one function has included. Overflow alone does not count: over the real
numbers there is none. Nor does the order in which infinities meet, since a sum of infinities is NaN in one order of a product and
infinite in another: where an input is infinite, NaN beside anything else is no difference; where all are finite and something is
divided by 0, NaN beside an infinity is none.

What is found is made small (`weft.verify.smaller`) as long as it separates the two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weft.errors import WeftError
from weft.tensor.domain import Array
from weft.tensor.program import TensorProgram
from weft.verify.inputs import literals
from weft.verify.seeds import Numbers, Tensors, draws, few_draws
from weft.verify.smaller import smaller
from weft.verify.written import Computed, changed, computed, distance, rounded_constants, spread

Run = Callable[[Tensors], Sequence[Any]]

# How often results are computed with noise; how much more than the most noise does a difference must be; how many differences are
# held against noise before the rest are taken to be rounding, too.
_NOISY, _ROOM, _MOST_HELD = 4, 8.0, 24
# What fp64 may do to a result, as a share of it: before noise is asked, and beside it.
_QUICK, _LEAST = 2.0**-42, 2.0**-48
# A difference in eager is that of the numbers where it is this near to it, as a share.
_ALIKE = 0.5
# Without a program numbers are eager's own in fp64, where overflow cannot be told: inputs are moderate, differences plain.
_MODERATE, _PLAIN = 1e3, 1e-6
# Magnitudes at which eager's results are near to numbers, whatever is computed.
_ORDINARY = (1e-3, 8.0)
# As many elements as are tried where there are more.
_LITTLE = 2
# Sizes beyond a constant: so many constants, up to so large, tensors of so many elements, along so many kinds of dimension.
_MOST_CONSTANTS, _MOST_SIZE, _MOST_ELEMENTS, _MOST_SQUARE, _ALONE = 6, 1 << 16, 1 << 22, 1 << 24, 1 << 16

# Up to so many bounds, sums and products of two are tried, too.
_FEW_BOUNDS = 4

# Of larger examples a part is taken where both functions run on it, else so many inputs are tried.
_MOST_IN_EXAMPLE, _FEW_DRAWS = 1 << 14, 24

_REFUSALS = (
    RuntimeError,
    ValueError,
    IndexError,
    TypeError,
    KeyError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
)
_NOT_RUN = (WeftError, ValueError, IndexError, KeyError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two functions.

    Attributes:
        run: the function itself, in eager PyTorch, on tensors that it may write into: the things it returns.
        program: it as a tensor program, as it is written, its inputs named `names` of the search; None where it is not one.
    """

    run: Run
    program: TensorProgram | None


@dataclass(frozen=True, slots=True)
class Apart:
    """An input on which two functions differ.

    Attributes:
        inputs: the tensors.
        result: which of the things returned differs.
        at: where in it; None where it is no tensor, or of another shape or type.
        first, second: what each function gives there.
    """

    inputs: Tensors
    result: int
    at: tuple[int, ...] | None
    first: str
    second: str


@dataclass
class Search:
    """Looks for inputs that tell two functions apart, and keeps what it saw.

    Attributes:
        sides: the two functions.
        names: those of the inputs, in order.
        numbers: what stands in the functions.
        bounds: the numbers among them that bound indices.
        tried: how many inputs both were run on.
        passed: the most elements along a dimension, by the size that it has in the example.
        sizes: all numbers of elements along it that the functions were called with, whether they took them or not.
        random: a function gives other results on the same inputs.
        beyond: bounds beyond which no size was tried, since that takes too much memory.
        poles: where something is divided by 0, the functions give infinities of other signs.
        in_eager_alone: eager's results differ plainly on moderate inputs, in numbers they do not.
    """

    sides: tuple[Side, Side]
    names: Sequence[str]
    numbers: Numbers
    bounds: frozenset[int] = frozenset()
    seed: int = 0
    tried: int = 0
    passed: dict[int, int] = field(default_factory=dict[int, int])
    sizes: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    random: bool = False
    beyond: set[int] = field(default_factory=set[int])
    poles: bool = False
    in_eager_alone: str = ""
    _held: int = 0

    def __post_init__(self) -> None:
        programs = [s.program for s in self.sides if s.program is not None]
        constants = [rounded_constants(p) for p in programs]
        self._own = constants[0] ^ constants[1] if len(constants) == 2 else frozenset[float]()
        self._shapes: list[torch.Size] = []
        self._infinite = any(not math.isfinite(v) for p in programs for v in literals(p))

    def search(self, given: Tensors) -> Apart | None:
        """Finds an input that separates the functions, made small; None where none was found."""
        self._shapes = [x.shape for x in given]
        if self._is_random(given):
            self.random = True
            return None
        for inputs in self._candidates(self._modest(given)):
            found = self.apart(inputs)
            if found is not None:
                return self._made_small(found)
        return None

    def _made_small(self, found: Apart) -> Apart:
        """Finds the same kind of difference, in one element or of a whole result, on as small an input as possible."""

        def differs_so(inputs: Tensors) -> bool:
            made = self.apart(inputs)
            return made is not None and (made.at is None) == (found.at is None)

        return self.apart(smaller(found.inputs, differs_so)) or found

    def _modest(self, given: Tensors) -> Tensors:
        """Returns the example with fewer elements along its dimensions, if it has many and both functions take that."""
        if sum(x.numel() for x in given) <= _MOST_IN_EXAMPLE:
            return given
        kinds = sorted({size for x in given for size in x.shape})
        for least in (6, 16, 64):
            sizes = {size: min(size, least + place) for place, size in enumerate(kinds)}
            made = tuple(_resized(x, sizes) for x in given)
            if self._runs(made):
                return made
        return given

    def _candidates(self, given: Tensors) -> Iterator[Tensors]:
        if sum(x.numel() for x in given) <= _MOST_IN_EXAMPLE:
            yield from draws(given, self.numbers, self.seed)
        else:
            yield from itertools.islice(draws(given, self.numbers, self.seed), _FEW_DRAWS)
        for made in (*self._other_sizes(given), *self._beyond_constants(given)):
            for x, y in zip(given, made, strict=True):
                for old, new in zip(x.shape, y.shape, strict=True):
                    self.sizes.setdefault(old, set()).add(new)
            if self._runs(made):
                yield from few_draws(made, self.seed)
                for x, y in zip(given, made, strict=True):
                    for old, new in zip(x.shape, y.shape, strict=True):
                        self.passed[old] = max(self.passed.get(old, old), new)

    def _other_sizes(self, given: Tensors) -> Iterator[Tensors]:
        """Yields inputs with a little more along the dimensions of the example, and with little."""
        kinds = sorted({size for x in given for size in x.shape})
        for size in kinds:
            if size > _LITTLE:
                yield tuple(_resized(x, {size: _LITTLE}) for x in given)
        larger: tuple[Callable[[int], int], ...] = (lambda n: n + 1, lambda n: n + 5, lambda n: 2 * n)
        for of in larger:
            yield tuple(_resized(x, {size: of(size) for size in kinds}) for x in given)
            if len(kinds) > 1:
                for size in kinds:
                    yield tuple(_resized(x, {size: of(size)}) for x in given)

    def _beyond_constants(self, given: Tensors) -> Iterator[Tensors]:
        """Yields inputs longer than each constant along each dimension: all of one size together, where that is not too
        much, else alone.
        """
        large = sorted((c for c in self.bounds if c > _MOST_SIZE), reverse=True)
        self.beyond.update(large)
        constants = [*(c for c in self.numbers.sizes if c <= _MOST_SIZE)][:_MOST_CONSTANTS]
        pairs = itertools.permutations(sorted(self.bounds), 2) if len(self.bounds) <= _FEW_BOUNDS else ()
        together = {c for a, b in pairs for c in (a + b, a * (b + 1))}
        for constant in dict.fromkeys((*constants, *(c for c in (*self.bounds, *together) if 1 < c <= _MOST_SIZE))):
            wanted = constant + 3 - constant % 2  # an index beyond it, and one more
            for size in sorted({size for x in given for size in x.shape if size < wanted}):
                if self._is_small(given, lambda n, size=size, wanted=wanted: wanted if n == size else n):
                    yield tuple(_resized(x, {size: wanted}) for x in given)
                    continue
                alone = [
                    (i, d) for i, x in enumerate(given) for d, n in enumerate(x.shape) if n == size and wanted <= _ALONE
                ]
                if not alone and constant in self.bounds:
                    self.beyond.add(constant)
                for place, dim in alone:
                    yield tuple(_longer(x, dim, wanted) if i == place else x for i, x in enumerate(given))

    def _is_small(self, given: Tensors, size_of: Callable[[int], int]) -> bool:
        shapes = [[size_of(n) for n in x.shape] for x in given]
        most = max((n for shape in shapes for n in shape), default=1)
        along = max((sum(n == most for n in shape) for shape in shapes), default=1)
        return max(map(math.prod, shapes)) <= _MOST_ELEMENTS and most ** max(along, 2) <= _MOST_SQUARE

    def _runs(self, inputs: Tensors) -> bool:
        return all(self._results(side, inputs) is not None for side in self.sides)

    def _results(self, side: Side, inputs: Tensors) -> Sequence[Any] | None:
        """Runs the function; None where it refuses these inputs."""
        try:
            return side.run(tuple(x.clone() for x in inputs))
        except _REFUSALS:
            return None

    def _is_random(self, given: Tensors) -> bool:
        for side in self.sides:
            first, second = self._results(side, given), self._results(side, given)
            if first is None or second is None:
                continue
            if any(_eager_difference(a, b) is not None for a, b in zip(first, second, strict=True)):
                return True
        return False

    def apart(self, inputs: Tensors) -> Apart | None:
        """Tells where the functions differ on `inputs` by more than rounding explains; None where they do not, or refuse them."""
        results = [self._results(side, inputs) for side in self.sides]
        self.tried += 1
        if results[0] is None or results[1] is None:
            return None
        counts = [f"{len(found)} results" for found in results if found is not None]
        if counts[0] != counts[1]:
            return Apart(inputs, 0, None, *counts)
        for place, (one, other) in enumerate(zip(*results, strict=True)):
            different = _eager_difference(one, other)
            if different is None:
                continue
            if isinstance(different, tuple):
                return Apart(inputs, place, None, *different)
            found = self._confirmed(inputs, place, different, one, other)
            if found is not None:
                return Apart(inputs, place, found, _shown(one[found]), _shown(other[found]))
        return None

    def _confirmed(
        self, inputs: Tensors, place: int, different: Array, one: torch.Tensor, other: torch.Tensor
    ) -> tuple[int, ...] | None:
        """Finds an element where numbers differ as eager does."""
        exact = self._exact(inputs)
        if exact is None:
            return None
        of_first, of_second = (e.outputs[place] for e in exact)
        if of_first.shape != tuple(one.shape) or of_second.shape != tuple(other.shape):
            return None
        if exact[0].disturbed or exact[1].disturbed:
            return None
        mask = different & self._counts(inputs, of_first, of_second)
        if not mask.any():
            self._note(inputs, different, one, other)
            return None
        with np.errstate(all="ignore"):
            gap, own = _number(one) - _number(other), of_first.astype(np.float64) - of_second.astype(np.float64)
            alike = ~(np.abs(gap - own) > _ALIKE * np.abs(own)) | ~np.isfinite(own)
        mask &= alike
        if mask.any():
            mask &= self._beyond_noise(inputs, place, exact)
        return tuple(int(i) for i in np.argwhere(mask)[0]) if mask.any() else None

    def _exact(self, inputs: Tensors) -> tuple[Computed, Computed] | None:
        """Computes both in numbers; None where these are no inputs for the programs."""
        if not self._programs(inputs):
            return self._eager_in_fp64(inputs)
        values = dict(zip(self.names, map(_number_array, inputs), strict=True))
        try:
            first, second = (computed(_program(side), values) for side in self.sides)
        except _NOT_RUN:
            return None
        return first, second

    def _eager_in_fp64(self, inputs: Tensors) -> tuple[Computed, Computed] | None:
        """Computes what stands in for numbers where a function is no program: moderate inputs alone."""
        floats = [x for x in inputs if x.dtype.is_floating_point]
        if any(bool((x[torch.isfinite(x)].abs() > _MODERATE).any()) for x in floats):
            return None
        wide = tuple(x.double() if x.dtype.is_floating_point else x for x in inputs)
        results = [self._results(side, wide) for side in self.sides]
        if results[0] is None or results[1] is None:
            return None
        first, second = (
            Computed(tuple(_number_array(x) if isinstance(x, torch.Tensor) else np.asarray(0) for x in found), False)
            for found in results
            if found is not None
        )
        return first, second

    def _counts(self, inputs: Tensors, one: Array, other: Array) -> Array:
        """Tells where numbers differ, and not only in the order in which infinities met or by the quick bound on rounding."""
        if one.dtype.kind != "f" or other.dtype.kind != "f":
            return np.asarray(one != other)
        apart = np.where(self._alike_without_end(inputs, one, other), 0.0, distance(one, other))
        signs = np.isinf(one) & np.isinf(other) & (apart > 0)
        if signs.any() and not self._infinite and all(bool(torch.isfinite(x).all()) for x in inputs):
            self.poles = True
            apart = np.where(signs, 0.0, apart)
        scale = np.fmax(np.where(np.isfinite(one), np.abs(one), 0.0), np.where(np.isfinite(other), np.abs(other), 0.0))
        if not self._programs(inputs):
            return np.asarray(apart > _PLAIN * scale.max(initial=0.0))
        return np.asarray(apart > _QUICK * scale)

    def _alike_without_end(self, inputs: Tensors, one: Array, other: Array) -> Array:
        """Tells where NaN stands beside something else only since infinities met in another order."""
        floats = [x for x in inputs if x.dtype.is_floating_point]
        only_one = np.isnan(one) != np.isnan(other)
        if any(bool(torch.isinf(x).any()) for x in floats):
            return np.asarray(only_one)
        if any(bool(torch.isnan(x).any()) for x in floats):
            return np.zeros(one.shape, np.bool_)
        return np.asarray(only_one & (np.isinf(one) | np.isinf(other)))

    def _programs(self, inputs: Tensors) -> bool:
        """Tells whether programs stand for the functions here: at sizes beyond the example's a function may be another program."""
        sizes = (
            (n, own)
            for x, shape in zip(inputs, self._shapes, strict=True)
            for n, own in zip(x.shape, shape, strict=True)
        )
        return all(n <= own for n, own in sizes) and all(side.program is not None for side in self.sides)

    def _beyond_noise(self, inputs: Tensors, place: int, exact: tuple[Computed, Computed]) -> Array:
        """Tells where the numbers are further apart than rounding, of constants too, can take them."""
        one, other = (e.outputs[place] for e in exact)
        if not self._programs(inputs):
            return np.ones(one.shape, np.bool_)
        if self._held >= _MOST_HELD:
            return np.zeros(one.shape, np.bool_)
        self._held += 1
        rng = np.random.default_rng(self.seed)
        values = dict(zip(self.names, map(_number_array, inputs), strict=True))
        reach = np.zeros(one.shape)
        for side, base in zip(self.sides, exact, strict=True):
            noisy = [computed(changed(_program(side), self._own, rng), values, rng) for _ in range(_NOISY)]
            reach = reach + spread(noisy, base)[place]
        apart = distance(one, other)
        with np.errstate(all="ignore"):
            scale = np.where(np.isfinite(one), np.abs(one.astype(np.float64)), 0.0)
        beyond = np.asarray(apart > _ROOM * reach + _LEAST * scale) & ~np.isinf(reach)
        if beyond.any():
            self._held -= 1
        return beyond

    def _note(self, inputs: Tensors, different: Array, one: torch.Tensor, other: torch.Tensor) -> None:
        """Remembers that eager alone differs plainly on ordinary inputs: NaN beside a number, or by a hundredth."""
        floats = [x[x != 0].abs() for x in inputs if x.dtype.is_floating_point]
        if any(x.numel() and not _ORDINARY[0] <= float(x.min()) <= float(x.max()) <= _ORDINARY[1] for x in floats):
            return
        a, b = _number(one), _number(other)
        with np.errstate(all="ignore"):
            largest = np.abs(np.where(np.isfinite(a), a, 0.0)).max(initial=0.0)
            plain = different & ~(np.abs(a - b) <= 0.01 * max(largest, 1.0)) & ~self._alike_without_end(inputs, a, b)
        if plain.any() and not self.in_eager_alone:
            at = tuple(int(i) for i in np.argwhere(plain)[0])
            self.in_eager_alone = f"{_shown(one[at])} and {_shown(other[at])}"


def _program(side: Side) -> TensorProgram:
    assert side.program is not None
    return side.program


def _eager_difference(one: Any, other: Any) -> Array | tuple[str, str] | None:
    """Tells where two results differ by more than the last place; in words if they do not differ element by element."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        same = one is other or (type(one) is type(other) and not isinstance(one, torch.Tensor) and _same(one, other))
        return None if same else (repr(one), repr(other))
    if one.shape != other.shape:
        return f"shape {tuple(one.shape)}", f"shape {tuple(other.shape)}"
    if one.dtype != other.dtype:
        return str(one.dtype), str(other.dtype)
    if not one.dtype.is_floating_point:
        different = np.asarray((one != other).detach().cpu().numpy())
        return different if different.any() else None
    a, b = _number(one), _number(other)
    with np.errstate(all="ignore"):
        scale = np.fmax(np.abs(a), np.abs(b))
        far = ~(np.abs(a - b) <= torch.finfo(one.dtype).eps * scale) | ~np.isfinite(scale)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    different = np.asarray(far & ~same)
    return different if different.any() else None


def _same(one: Any, other: Any) -> bool:
    """Tells whether two results that are no tensors are the same: numbers up to rounding, NaN too, arrays element by element."""
    if isinstance(one, float | complex | np.ndarray):
        a, b = np.asarray(one, np.complex128), np.asarray(other, np.complex128)
        return a.shape == b.shape and bool(np.all(np.isclose(a, b, rtol=_PLAIN, equal_nan=True)))
    return bool(one == other)


def _number(x: torch.Tensor) -> Array:
    return np.asarray(x.detach().to(torch.float64).cpu().numpy())


def _number_array(x: torch.Tensor) -> Array:
    """Returns a tensor as the evaluator carries numbers."""
    kind = torch.float64 if x.dtype.is_floating_point else torch.bool if x.dtype is torch.bool else torch.int64
    return np.asarray(x.detach().to(kind).cpu().numpy())


def _resized(x: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """Makes a tensor like `x` of other sizes, its elements those of `x` again and again."""
    shape = [sizes.get(size, size) for size in x.shape]
    if not x.numel():
        return torch.zeros(shape, dtype=x.dtype)
    for dim, size in enumerate(shape):
        x = x.index_select(dim, torch.arange(size) % x.shape[dim])
    return x


def _longer(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Repeats `x` to so many elements along one dimension."""
    return x.index_select(dim, torch.arange(size) % x.shape[dim]) if x.shape[dim] else x


def _shown(x: torch.Tensor) -> str:
    return f"{x.item():.6g}" if x.dtype.is_floating_point else str(x.item())
