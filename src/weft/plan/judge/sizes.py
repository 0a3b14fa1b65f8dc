"""Sizes at which kernels are judged: small, but enough for every loop; on a GPU those that the example's binary serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.plan.targets import toolchain
from weft.plan.targets.bench import Judged, Serving
from weft.plan.targets.compiled import CompiledRegion
from weft.tensor.evaluate import stays_inside
from weft.tensor.program import Reindex, TensorProgram
from weft.verify.fitted import AT_MOST, fitted, points
from weft.verify.inputs import literals
from weft.verify.regimes import REGIMES, RowLayout, added_spaces, layout_of, reduced_spaces
from weft.verify.sizes import edge_sizes, of_blocks, span_sizes

Sizes = dict[str, int]

# Operations at the sizes of a binary's class, which are large where its blocks are.
_MOST_OF_A_BINARY = 1 << 28
# Terms of a sum that is long, of which the most is taken that few enough operations leave room for.
_LONG = (65537, 32771, 16411, 8209, 4099)
# How many operations that may be.
_MOST_LONG = 1 << 20


@dataclass(frozen=True, slots=True)
class Chosen:
    """Sizes by name of the spaces of the written program; none where the example's binary serves none that are small enough.

    Attributes:
        layout: of the inputs' rows.
        far: sizes that reach beyond every block.
        near: small ones.
        long: those at which a sum is long.
    """

    layout: RowLayout
    far: list[Sizes] = field(default_factory=list[Sizes])
    near: list[Sizes] = field(default_factory=list[Sizes])
    long: list[Sizes] = field(default_factory=list[Sizes])


def sizes_for(judged: Judged, region: CompiledRegion) -> Chosen:
    """Chooses the sizes at which a region is judged."""
    chain, made = toolchain(region.kernels[0].target), [kernel.made for kernel in region.kernels]
    found = Chosen(layout_of(judged.written))
    for congruent in (False, True):
        serving = chain.serving(judged, made, congruent=congruent)
        found = _Choice(judged, region, serving, chain.points()).found
        if found.near or serving is None:
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
    example = judged.sizes
    numbers = {abs(float(v)) for v in literals(judged.written)}
    return {
        name: n
        for name, n in example.items()
        if n > 1 and name in judged.constant and numbers & {n, n - 1.0, 1.0 / n, n**-0.5, n**0.5}
    }


def _tied(program: TensorProgram) -> set[str]:
    """Names the spaces whose sizes slices and splits bind: to others, or to be so large that what they show is there."""
    values, found = program.values(), {space.name for rule in program.derived for space in (rule.source, rule.space)}
    for node in (n for n in program.nodes if isinstance(n, Reindex)):
        pairs = zip(node.index, values[node.source].axes, strict=True)
        found |= {axis.space.name for index, axis in pairs if index.axis is None}
    return found - program.following


class _Choice:
    """The sizes `found` for a region."""

    def __init__(self, judged: Judged, region: CompiledRegion, serving: Serving | None, most: tuple[int, int]) -> None:
        self._judged, self._serving = judged, serving
        # Rows lie where there must be many in any case.
        names = [s.name for s in judged.written.spaces()]
        roomy = [] if serving is None else [name for name in names if serving.at_least(name, 1) >= len(REGIMES)]
        self.found = Chosen(layout_of(judged.written, roomy=roomy))
        example = judged.sizes
        self._tied = {name: example[name] for name in _tied(judged.written) if name in example}
        applied = region.kernels[0].block_program
        near, far = most
        every = [self._named(chosen) for chosen in edge_sizes(applied)]
        for own in every:
            first = not self.found.far
            self._add(self.found.near, self._fit(near, own))
            if first:
                self._add(self.found.far, self._fit(far, own))
                self._whole(region, own, 2 * min(near, far))
        if serving is None:
            self._long(applied, every[0])

    def _long(self, applied: BlockProgram, own: Sizes) -> None:
        """Adds sizes at which a sum along a space of no fixed size is long: of several the one whose blocks are smallest."""
        judged, tiles = self._judged, dict[str, int]()
        for node in maps(applied.graph):
            name = judged.names.get(node.axis.space.name)
            if name is not None and node.state is not None and node.tile is not None:
                tiles[name] = min(node.tile, tiles.get(name, node.tile))
        free = added_spaces(judged.written) - judged.constant - judged.written.following
        for name in sorted(free & tiles.keys(), key=tiles.__getitem__)[:1]:
            tried = (self._fit(_MOST_LONG, own | {name: size}, [name]) for size in _LONG)
            cheap = (sizes for sizes in tried if sizes is not None and points(judged.written, sizes) <= _MOST_LONG)
            self._add(self.found.long, next(cheap, None))

    def _whole(self, region: CompiledRegion, own: Sizes, limit: int) -> None:
        """Adds sizes at which what was cut short of a block is whole once, beside less of the others."""
        applied, summed = region.kernels[0].block_program, reduced_spaces(self._judged.written)
        stages = max(kernel.schedule.stages for kernel in region.kernels)
        if stages > 1:  # iterations overlap only where there are more of them than stages
            blocks = {name: size + 1 for name, size in self._named(of_blocks(applied, stages + 1)).items()}
            self._reach(limit, own, blocks)
        for one, two in zip(span_sizes(applied, 1), span_sizes(applied, 2), strict=True):
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
        """Chooses sizes near those of loops, `own`; if they do not fit, what slices and splits bind is as in the example, or less
        where they leave it."""
        found = self._fitted(limit, own, whole)
        if found is not None or not self._tied:
            return found
        tied = {name: size for name, size in self._tied.items() if name not in whole}
        return self._fitted(limit, own, whole, tied) or self._fitted(limit, own | self._tied, {*whole, *self._tied})

    def _fitted(self, limit: int, own: Sizes, whole: Collection[str], tied: Sizes | None = None) -> Sizes | None:
        written, serving, layout = self._judged.written, self._serving, self.found.layout
        if serving is None:
            return fitted(written, own, layout, limit, whole, tied=tied)
        sizes = fitted(written, own, layout, limit, whole, serving.at_least, _MOST_OF_A_BINARY, tied)
        fits = sizes is not None and points(written, sizes) <= _MOST_OF_A_BINARY and serving.serves(sizes)
        return sizes if fits else None
