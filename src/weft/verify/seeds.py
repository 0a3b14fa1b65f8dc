"""Inputs that are likely to tell two functions apart.

Random numbers show nearly every difference in algebra and no other: not what happens at one number, where two elements are equal,
where something is not finite, or beyond a bound. So inputs are drawn from pools: the numbers that stand in the functions, what
solves simple equations with them, the numbers on both sides of those, special values, and the ends of each type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]

_PLAIN = (0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 3.0)
_SCALES = (1e-30, 1e-10, 1e-3, 30.0, 1e3, 1e6, 1e15, 1e30)
_MOST_NUMBERS, _MOST_IN_POOL = 12, 160
_MIXED, _SINGLE = 16, 6
_LARGE_INTEGERS = (2**15, 2**16 + 1, 2**24 + 1, 2**31, 3037000500, 2**40, 2**53 + 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that stand in functions, without bools, infinities and NaN."""

    values: tuple[float | int, ...]

    @staticmethod
    def of(found: Sequence[float | int]) -> Numbers:
        """Keeps each number once, those nearest to 1 in magnitude first."""
        finite = {v for v in found if math.isfinite(v)}
        return Numbers(tuple(sorted(finite, key=lambda v: (abs(math.log(abs(v))) if v else 0.0, v))))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that may bound an index, the largest first."""
        whole = {int(abs(v)) for v in self.values if v == int(v)}
        return tuple(sorted((v for v in whole if v >= 2), reverse=True))


def draws(given: Tensors, numbers: Numbers, seed: int) -> Iterator[Tensors]:
    """Yields inputs of the shapes and types of `given`, those first that separate most pairs.

    Args:
        given: an example, which is the first of them.
        numbers: what stands in the functions.
        seed: of all that is random.
    """
    rng = torch.Generator().manual_seed(seed)
    pools = [_pool(x, numbers) for x in given]
    yield given
    yield tuple(_random(x, rng) for x in given)
    yield from _filled(given, pools, rng)
    yield from _mixed(given, pools, rng)
    yield from _tied(given, rng)
    yield from _scaled(given, rng)
    yield from _single(given, rng)


def few_draws(given: Tensors, seed: int) -> Iterator[Tensors]:
    """Yields some that show what depends on sizes: random, all ones, rising and falling along every dimension."""
    rng = torch.Generator().manual_seed(seed)
    yield tuple(_random(x, rng) for x in given)
    yield tuple(torch.ones_like(x) for x in given)
    yield tuple(_rising(x) for x in given)
    yield tuple(_rising(x).flip(tuple(range(x.ndim))) for x in given)


def _random(like: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    if like.dtype.is_floating_point:
        return torch.randn(like.shape, generator=rng, dtype=torch.float64).to(like.dtype)
    if like.dtype is torch.bool:
        return torch.rand(like.shape, generator=rng) < 0.5
    if like.numel():  # indices stay indices
        places = torch.randint(0, like.numel(), like.shape, generator=rng)
        return like.reshape(-1)[places]
    return like.clone()


def _rising(like: torch.Tensor) -> torch.Tensor:
    if like.dtype is torch.bool:
        return torch.arange(like.numel()).reshape(like.shape) > 0
    most = like.numel() if like.dtype.is_floating_point else min(like.numel(), torch.iinfo(like.dtype).max)
    count = torch.arange(like.numel()).reshape(like.shape)
    return (count % (most or 1)).to(like.dtype)


def _filled(given: Tensors, pools: Sequence[torch.Tensor], rng: torch.Generator) -> Iterator[Tensors]:
    """Yields one number everywhere, in every input; the first numbers of the pool in one input, the others random."""
    for number in range(max(map(len, pools), default=0)):
        yield tuple(_full(x, pool, number) for x, pool in zip(given, pools, strict=True))
    if len(given) == 1:
        return
    for place, pool in enumerate(pools):
        for number in range(min(len(pool), 2 * len(_PLAIN))):
            yield tuple(_full(x, pool, number) if at == place else _random(x, rng) for at, x in enumerate(given))
    # What two inputs must be for a product or a sum of them to be a number.
    for _ in range(_MIXED):
        places = [int(torch.randint(0, max(len(pool), 1), (), generator=rng)) for pool in pools]
        yield tuple(map(_full, given, pools, places))


def _full(like: torch.Tensor, pool: torch.Tensor, number: int) -> torch.Tensor:
    return pool[number % len(pool)].expand(like.shape).clone() if len(pool) else like.clone()


def _mixed(given: Tensors, pools: Sequence[torch.Tensor], rng: torch.Generator) -> Iterator[Tensors]:
    """Yields elements each any number of its pool; every other time about half of them only, and of the finite ones."""
    for turn in range(_MIXED):
        made: list[torch.Tensor] = []
        for x, whole in zip(given, pools, strict=True):
            pool = whole[torch.isfinite(whole)] if turn % 2 and whole.dtype.is_floating_point else whole
            if not len(pool):
                made.append(x.clone())
                continue
            picked = pool[torch.randint(0, len(pool), x.shape, generator=rng)]
            keep = torch.rand(x.shape, generator=rng) < (0.5 if turn % 2 else 0.0)
            made.append(torch.where(keep, _random(x, rng), picked))
        yield tuple(made)


def _tied(given: Tensors, rng: torch.Generator) -> Iterator[Tensors]:
    """Yields few different numbers; equal inputs of one shape; rows that rise, fall, or are constant."""
    for few in (2, 3, 9):
        yield tuple(
            torch.randint(0, min(few, 2) if x.dtype is torch.bool else few, x.shape, generator=rng).to(x.dtype)
            for x in given
        )
    same: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    yield tuple(same.setdefault((x.shape, x.dtype), _random(x, rng)) for x in given)
    yield tuple(_rising(x) for x in given)
    yield tuple(_rising(x).flip(tuple(range(x.ndim))) for x in given)
    yield tuple(_random(x, rng)[..., :1].expand(x.shape).clone() if x.ndim else _random(x, rng) for x in given)
    small = range(-6, 7)
    yield tuple(
        torch.randint(small.start, small.stop, x.shape, generator=rng).to(x.dtype)
        if x.dtype not in (torch.bool, torch.uint8)
        else _random(x, rng)
        for x in given
    )


def _scaled(given: Tensors, rng: torch.Generator) -> Iterator[Tensors]:
    """Yields floats of other magnitudes, of both signs and of one."""
    if not any(x.dtype.is_floating_point for x in given):
        return
    for scale, sign in itertools.product(_SCALES, (False, True)):
        made = (_random(x, rng) for x in given)
        yield tuple(((x.abs() if sign else x) * scale).to(x.dtype) if x.dtype.is_floating_point else x for x in made)


def _single(given: Tensors, rng: torch.Generator) -> Iterator[Tensors]:
    """Yields inputs with one special element, or with one that differs from all the rest."""
    for place, x in enumerate(given):
        if not x.numel():
            continue
        specials = (*[math.nan] * _SINGLE, math.inf, -math.inf, 0.0) if x.dtype.is_floating_point else ()
        spots = torch.randperm(x.numel(), generator=rng)
        for number, special in enumerate(specials):
            made = [_random(y, rng) for y in given]
            made[place].view(-1)[spots[number % x.numel()]] = special
            yield tuple(made)
        for most in (False, True):
            made = [_random(y, rng) for y in given]
            flat = torch.full_like(x, most).view(-1)
            flat[int(torch.randint(0, x.numel(), (), generator=rng))] = not most
            made[place] = flat.view(x.shape)
            yield tuple(made)


# The pools.


def _pool(like: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Returns the numbers that elements of `like` may be, each once."""
    if like.dtype is torch.bool:
        return torch.tensor([True, False])
    if like.dtype.is_complex:
        return like.new_empty(0)
    if not like.dtype.is_floating_point:
        return _integers(like, numbers)
    info = torch.finfo(like.dtype)
    specials = (math.nan, math.inf, -math.inf, -0.0, info.max, -info.max, info.tiny, info.smallest_normal / 4)
    near: list[float] = []
    for value in _solutions(numbers, like.shape):
        centre = torch.tensor(value, dtype=torch.float64).to(like.dtype)
        if torch.isfinite(centre):
            sides = (
                []
                if like.dtype.itemsize == 1
                else [
                    float(torch.nextafter(centre, torch.tensor(side, dtype=like.dtype)))
                    for side in (-math.inf, math.inf)
                ]
            )
            near += [float(centre), *sides]
    beyond = [v * s for v in numbers.values[:_MOST_NUMBERS] for s in (2.0, -2.0, 1.125, -1.125)]
    every = [*_PLAIN, *specials, *beyond, *near]
    return torch.tensor(list(_unique(every))[:_MOST_IN_POOL], dtype=torch.float64).to(like.dtype)


def _unique(values: Sequence[float]) -> Iterator[float]:
    met: set[str] = set()
    for value in values:
        if repr(value) not in met:  # -0.0 and NaN are numbers of their own
            met.add(repr(value))
            yield value


def _integers(like: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    info = torch.iinfo(like.dtype)
    whole = [round(v) for v in _solutions(numbers, like.shape) if abs(v) < 2**63]
    near = [v + d for v in whole for d in (0, 1, -1)]
    every = (0, 1, -1, 2, 3, info.min, info.max, info.max // 3, *near, *_LARGE_INTEGERS)
    fit = [v for v in dict.fromkeys(every) if info.min <= v <= info.max]
    return torch.tensor(fit[:_MOST_IN_POOL], dtype=like.dtype)


def _solutions(numbers: Numbers, shape: Sequence[int]) -> tuple[float, ...]:
    """Returns the numbers, and x for equations like a * x = b, x * x = b and exp(x) = b, or a row of x whose sum is b."""
    known = [float(v) for v in numbers.values if abs(v) < 1e308][:_MOST_NUMBERS]
    found = [sign * v for v in known for sign in (1.0, -1.0)]
    found += [math.copysign(math.sqrt(abs(v)), v) for v in known]
    found += [math.log(abs(v)) for v in known if v]
    found += [v / size for v in known for size in dict.fromkeys(shape) if size > 1]
    for a, b in itertools.permutations(known, 2):
        found += [b - a, *([b / a] if a else [])]
    found += [a + b for a, b in itertools.combinations(known, 2)]
    return tuple(dict.fromkeys(v for v in found if math.isfinite(v)))
