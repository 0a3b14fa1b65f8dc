"""Sizes at which kernels are judged: small, but enough for every loop; on a GPU those that the example's binary serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from weft.emit.triton import WholeConstant
from weft.errors import UnsupportedError
from weft.plan.bench import Judged, dense
from weft.plan.region import CompiledRegion
from weft.run.gpu import GpuBinary
from weft.run.gpu.interpreted import is_asked_for
from weft.run.gpu.signature import Constant
from weft.tensor.evaluate import stays_inside
from weft.verify.emitted import AT_MOST, FAR, MANY, fitted, points
from weft.verify.inputs import literals
from weft.verify.regimes import REGIMES, Layout, layout_of, reduced_spaces
from weft.verify.sizes import band_sizes, edge_sizes, of_blocks

Sizes = dict[str, int]

# Triton's interpreter takes milliseconds for each program of a grid.
_MANY_INTERPRETED = 1 << 13
# Operations at the sizes of a binary's class, which are large where its blocks are.
_MOST_OF_A_BINARY = 1 << 26
# Triton compiles for sizes and strides that are divisible by so many, and for others.
_DIVISIBLE = 16


@dataclass(frozen=True, slots=True)
class Chosen:
    """Sizes by name of the spaces of the written program; none where the example's binary serves none that are small enough.

    Attributes:
        layout: of the inputs' rows.
        far: sizes that reach beyond every block.
        near: small ones.
    """

    layout: Layout
    far: list[Sizes] = field(default_factory=list[Sizes])
    near: list[Sizes] = field(default_factory=list[Sizes])


def sizes_for(judged: Judged, region: CompiledRegion) -> Chosen:
    """Chooses the sizes at which a region is judged."""
    if not isinstance(region.kernels[0].made, GpuBinary) or is_asked_for():
        return _Choice(judged, region, None).found
    found = Chosen(layout_of(judged.written))
    for congruent in (False, True):
        found = _Choice(judged, region, _Serving(judged, region, congruent=congruent)).found
        if found.near:
            break
    return found


def as_its_numbers_say(judged: Judged, every: list[Sizes]) -> list[Sizes]:
    """Returns the sizes `every`, but the example's where a number of the program is made of one; none where no number is.

    A graph that was traced for one size divides a sum by that number, and means nothing in particular at other sizes.
    """
    program, made = judged.written, sizes_that_are_numbers(judged)
    free = [{k: n for k, n in (each | made).items() if k not in program.following} for each in every] if made else []
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
    """The sizes `found` for a region."""

    def __init__(self, judged: Judged, region: CompiledRegion, serving: _Serving | None) -> None:
        self._judged, self._serving = judged, serving
        # Rows lie where there must be many in any case.
        names = [s.name for s in judged.written.spaces()]
        roomy = [] if serving is None else [name for name in names if serving.at_least(name, 1) >= len(REGIMES)]
        self.found = Chosen(layout_of(judged.written, roomy=roomy))
        applied = region.kernels[0].block_program
        interpreted = serving is None and isinstance(region.kernels[0].made, GpuBinary)
        near, far = (_MANY_INTERPRETED, MANY) if interpreted else (MANY, FAR)
        for chosen in edge_sizes(applied):
            own, first = self._named(chosen), not self.found.far
            self._add(self.found.near, self._fit(near, own))
            if first:
                self._add(self.found.far, self._fit(far, own))
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
            self._add(
                self.found.far, next(filter(None, (self._fit(limit, own | wanted, wanted) for wanted in sizes)), None)
            )
        for name, size in own.items():
            # A second block of one row more may lie anywhere in the first one's; a third one shows where it begins. The
            # second block of a sum is long enough to hold the maximum.
            self._reach(limit, own, {name: size + size // 2 if name in summed else 2 * size + 3})

    def _reach(self, limit: int, own: Sizes, wanted: Sizes) -> None:
        """Adds sizes that reach those `wanted`, where none does."""
        every = (*self.found.far, *self.found.near)
        if not any(all(sizes[name] >= n for name, n in wanted.items()) for sizes in every):
            self._add(self.found.far, self._fit(limit, own | wanted, wanted))

    def _named(self, sizes: Mapping[str, int]) -> Sizes:
        names = self._judged.names
        return {names[name]: size for name, size in sizes.items() if name in names}

    def _add(self, to: list[Sizes], sizes: Sizes | None) -> None:
        if sizes is not None and sizes not in (*self.found.far, *self.found.near):
            to.append(sizes)

    def _fit(self, limit: int, own: Sizes, whole: Collection[str] = ()) -> Sizes | None:
        written, serving = self._judged.written, self._serving
        if serving is None:
            return fitted(written, own, self.found.layout, limit, whole)
        sizes = fitted(written, own, self.found.layout, limit, whole, serving.at_least, _MOST_OF_A_BINARY)
        fits = sizes is not None and points(written, sizes) <= _MOST_OF_A_BINARY and serving.serves(sizes)
        return sizes if fits else None


class _Serving:
    """Tells at which sizes the binary serves that calls like the example use, so that nothing is compiled to be judged."""

    def __init__(self, judged: Judged, region: CompiledRegion, *, congruent: bool) -> None:
        """`congruent` keeps what is left of a size when divided by 16, and with that whether any stride is divisible."""
        self._judged, self._first = judged, region.kernels[0].made
        self._example, self._congruent = _example(judged), congruent
        self._constants: dict[str, list[Constant]] = {}
        for kernel in region.kernels:
            if isinstance(kernel.made, GpuBinary):
                for c in kernel.made.signature.constants:
                    if c.space in judged.names:
                        self._constants.setdefault(judged.names[c.space], []).append(c)
        self._known: dict[tuple[str, int], bool] = {}

    def at_least(self, name: str, size: int) -> int:
        """Returns the least size of a space from `size` on that the binary may serve; the example's where there is none near."""
        example = self._example.get(name)
        if example is None:
            return size
        own = [(c, self._example[each]) for each in self._with(name) for c in self._constants.get(each, ())]
        values = [c.of({c.space: its}) for c, its in own]
        # Blocks have powers of two of elements: that size is one.
        widest = max([_DIVISIBLE, *(c.tile for c, _ in own if isinstance(c, WholeConstant)), *values])
        for least in (size, *(value // 2 + 1 for value in values)):
            for n in range(max(least, min(example, 2)), max(least, 2) + 2 * widest):
                if self._takes(name, n):
                    return n
        return example

    def _with(self, name: str) -> list[str]:
        """Lists the space and those whose sizes follow from its own, as far as the example has them."""
        found = [name]
        for rule in self._judged.written.derived:
            if rule.source.name in found and rule.space.name in self._example:
                found.append(rule.space.name)
        return found

    def _takes(self, name: str, size: int) -> bool:
        """Tells whether the binary serves this size of a space, and what follows from it."""
        if (name, size) not in self._known:
            sizes = self._judged.written.sizes({name: size})
            self._known[name, size] = all(self._is_like(sizes[each], each) for each in self._with(name))
        return self._known[name, size]

    def _is_like(self, size: int, name: str) -> bool:
        example, own = self._example[name], self._constants.get(name, ())
        if size < min(example, 2) or any(c.of({c.space: size}) != c.of({c.space: example}) for c in own):
            return False
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
        return any(each.kind.serves(kind) for each in made.assembled)
