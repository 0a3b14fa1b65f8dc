"""Sizes at which kernels are judged: small, but enough for every loop; on a GPU those that the example's binary serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weft.emit.triton import WholeConstant
from weft.errors import UnsupportedError
from weft.plan.bench import Judged, dense
from weft.plan.region import CompiledRegion
from weft.run.gpu import GpuBinary
from weft.run.gpu.interpreted import is_asked_for
from weft.tensor.evaluate import stays_inside
from weft.verify.emitted import AT_MOST, FAR, MANY, fitted, points
from weft.verify.inputs import literals
from weft.verify.regimes import layout_of, reduced_spaces
from weft.verify.sizes import band_sizes, edge_sizes, of_blocks

Sizes = dict[str, int]

# Triton's interpreter takes milliseconds for each program of a grid.
_MANY_INTERPRETED = 1 << 13
# Triton compiles for sizes and strides that are divisible by so many, and for others.
_DIVISIBLE = 16


def sizes_for(judged: Judged, region: CompiledRegion) -> tuple[list[Sizes], list[Sizes]]:
    """Chooses sizes by name of the spaces of the written program: those that reach beyond every block, and small ones.

    Both are empty where the example's binary serves no sizes that are small enough.
    """
    if not isinstance(region.kernels[0].made, GpuBinary) or is_asked_for():
        return _Choice(judged, region, None).found
    for congruent in (False, True):
        found = _Choice(judged, region, _Serving(judged, region, congruent=congruent)).found
        if found[1]:
            return found
    return [], []


def as_its_numbers_say(judged: Judged, every: list[Sizes]) -> list[Sizes]:
    """Returns the sizes `every`, but the example's where a number of the program is made of one; none where no number is.

    A graph that was traced for one size divides a sum by that number, and means nothing in particular at other sizes.
    """
    program, made = judged.written, sizes_that_are_numbers(judged)
    given = {rule.space.name for rule in program.derived}
    free = [{name: n for name, n in (sizes | made).items() if name not in given} for sizes in every] if made else []
    chosen = [program.sizes(each) for each in free]
    return [
        sizes
        for sizes in chosen
        if program.consistent(sizes) and stays_inside(program, sizes) and points(program, sizes) <= AT_MOST
    ]


def sizes_that_are_numbers(judged: Judged) -> Sizes:
    """Returns the sizes that a number of the program may be made of, by name of the space.

    Only of spaces that have this size at each call: at others the kernels must be right, whatever numbers look like.
    """
    example = _example(judged)
    numbers = {abs(float(v)) for v in literals(judged.written)}
    return {
        name: n
        for name, n in example.items()
        if n > 1 and name in judged.constant and numbers & {n, n - 1.0, 1.0 / n, n**-0.5, n**0.5}
    }


def _example(judged: Judged) -> Sizes:
    return {judged.names[name]: size for name, size in judged.example.items() if name in judged.names}


class _Choice:
    """The sizes chosen for a region: `found` has those that reach beyond every block, then small ones."""

    def __init__(self, judged: Judged, region: CompiledRegion, serving: _Serving | None) -> None:
        self._judged, self._serving = judged, serving
        self._layout = layout_of(judged.written)
        self.found: tuple[list[Sizes], list[Sizes]] = ([], [])
        applied = region.kernels[0].block_program
        interpreted = serving is None and isinstance(region.kernels[0].made, GpuBinary)
        near, far = (_MANY_INTERPRETED, MANY) if interpreted else (MANY, FAR)
        for chosen in edge_sizes(applied):
            own, first = self._named(chosen), not self.found[0]
            self._add(1, self._fit(near, own))
            if first:
                self._add(0, self._fit(far, own))
                self._whole(region, own, 2 * min(near, far))

    def _whole(self, region: CompiledRegion, own: Sizes, limit: int) -> None:
        """Adds sizes at which what was cut short of a block is whole once, beside less of the others."""
        applied, summed = region.kernels[0].block_program, reduced_spaces(self._judged.written)
        stages = max(kernel.schedule.stages for kernel in region.kernels)
        if stages > 1:  # iterations overlap only where there are more of them than stages
            blocks = {name: size + 1 for name, size in self._named(of_blocks(applied, stages + 1)).items()}
            self._reach(limit, own, blocks)
        for one, two in zip(band_sizes(applied, 1), band_sizes(applied, 2), strict=True):
            sizes = [self._named(each) for each in (two, one)]
            self._add(0, next(filter(None, (self._fit(limit, own | wanted, wanted) for wanted in sizes)), None))
        for name, size in own.items():
            # A second block of one row more may lie anywhere in the first one's; a third one shows where it begins. The
            # second block of a sum is long enough to hold the maximum.
            self._reach(limit, own, {name: size + size // 2 if name in summed else 2 * size + 3})

    def _reach(self, limit: int, own: Sizes, wanted: Sizes) -> None:
        """Adds sizes that reach those `wanted`, where none does."""
        if not any(all(sizes[name] >= n for name, n in wanted.items()) for each in self.found for sizes in each):
            self._add(0, self._fit(limit, own | wanted, wanted))

    def _named(self, sizes: Mapping[str, int]) -> Sizes:
        names = self._judged.names
        return {names[name]: size for name, size in sizes.items() if name in names}

    def _add(self, place: int, sizes: Sizes | None) -> None:
        if sizes is not None and sizes not in (*self.found[0], *self.found[1]):
            self.found[place].append(sizes)

    def _fit(self, limit: int, own: Sizes, whole: Collection[str] = ()) -> Sizes | None:
        written, serving = self._judged.written, self._serving
        if serving is None:
            return fitted(written, own, self._layout, limit, whole)
        sizes = fitted(written, own, self._layout, limit, whole, serving.at_least)
        fits = sizes is not None and points(written, sizes) <= AT_MOST and serving.serves(sizes)
        return sizes if fits else None


class _Serving:
    """Tells at which sizes the binary serves that calls like the example use, so that nothing is compiled to be judged."""

    def __init__(self, judged: Judged, region: CompiledRegion, *, congruent: bool) -> None:
        """`congruent` keeps what is left of a size when divided by 16, and with that whether any stride is divisible."""
        self._judged, self._first = judged, region.kernels[0].made
        self._example, self._congruent = _example(judged), congruent
        self._constants = [
            c
            for kernel in region.kernels
            if isinstance(kernel.made, GpuBinary)
            for c in kernel.made.signature.constants
            if c.space in judged.names
        ]

    def at_least(self, name: str, size: int) -> int:
        """Returns the least size of a space from `size` on that the binary may serve; the example's where there is none near."""
        example = self._example.get(name)
        if example is None:
            return size
        own = [c for c in self._constants if self._judged.names[c.space] == name]
        values = [c.of({c.space: example}) for c in own]
        # Blocks have powers of two of elements: that size is one.
        widest = max([_DIVISIBLE, *(c.tile for c in own if isinstance(c, WholeConstant)), *values])
        for least in (size, *(value // 2 + 1 for value in values)):
            for n in range(max(least, min(example, 2)), max(least, 2) + 2 * widest):
                if self._is_like(n, example) and [c.of({c.space: n}) for c in own] == values:
                    return n
        return example

    def _is_like(self, size: int, example: int) -> bool:
        if self._congruent:
            return size % _DIVISIBLE == example % _DIVISIBLE
        return (size % _DIVISIBLE == 0) == (example % _DIVISIBLE == 0)

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Tells whether calls of these sizes are of a class that was compiled for."""
        made = self._first
        assert isinstance(made, GpuBinary)
        own = {name: sizes[its] for name, its in self._judged.names.items()}
        shapes = [[n if isinstance(n, int) else own[n] for n in shape] for shape in made.signature.shapes]
        names = [each.name for each in made.signature.kernel.inputs]
        strides = [dense(shape, self._judged.innermost.get(name)) for shape, name in zip(shapes, names, strict=True)]
        try:
            kind = made.class_for(own, strides)
        except UnsupportedError:
            return False
        return kind in {each.kind for each in made.assembled}
