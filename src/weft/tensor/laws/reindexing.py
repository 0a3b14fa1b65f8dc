"""The law of reindexing: operations that only move elements are moved to where these are read from memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias, assert_never

from weft.tensor.axes import Affine, Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    reads,
    uses,
)
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Arg, Lit, Scalar, apply


@tensor_pass()
def inline_reindexing(program: TensorProgram) -> TensorProgram:
    """Removes reindexings, except views of inputs and those that cannot be moved up to one.

        a[m, k] = exp(x[m, k])             v[m, k] = x[m + 8, k]
        b[k, m] = a[m + 8, k]       ==>    a[m, k] = exp(v[m, k])
        c[k, m] = b[k, m] + y[m]           c[k, m] = a[m, k] + y[m]

    A permutation or expansion disappears into the axes of the uses; what slices, flips or fixes an
    index is pushed through elementwise operations, casts, contractions and reductions (their
    results' axes) to inputs; of an iota it is arithmetic.
    Condition: the index is affine, up to the last index of the source's own dimension; where two
    reindexings compose to something else, or the source is opaque, the reindexing stays. So does one of
    what is returned and made of a matmul's result: it is in memory, and what it is made of may be all
    that the program does. So does one of what is made of a matmul's result and only read in split dimensions, in parts too: one
    matmul makes all of it. And so does one that splits a dimension of what is made of a matmul's result,
    or is read otherwise as well: it is a view of memory that is there anyway. And so do those of a value
    that is read at more than `MOST_PLACES` places, also by way of others that are reindexed in their turn:
    a tree of steps that each read two slices of the one before would be written out leaf by leaf.
    Conditioning: none, each element is computed as before; other elements that are read both with
    and without a reindexing are computed twice.
    """
    crowded = frozenset[str]()
    while True:
        inlining = _Inlining(program, crowded)
        made = inlining.run()
        if inlining.crowded == crowded:
            return remove_dead(made)
        crowded = inlining.crowded  # again, since places of these were made before they were known to be so many


# A value that is read at more places is stored, and these are views of it: each would be operations of its own, to be compiled.
# A padded window of three by three, as pooling has, counts 18: each element, and whether it is inside.
MOST_PLACES = 20

_Place: TypeAlias = tuple[str, tuple[Affine, ...]]
"""A value, and an index into each of its axes."""


@dataclass
class _Inlining(Draft):
    """The new program so far; `pending` are the old reindexings.

    What an old reindexing `stands_for` is a use over the axes that it had; `known`: what is at some place; `looked` are places that
    are read in memory in any case; `split` tells of values whether `is_only_split`. What was made to be some
    place of a value has that value for its `origin`, of which there are so many `places`; `crowded` are values with too many.
    """

    crowded: frozenset[str] = frozenset()
    pending: dict[str, Reindex] = field(default_factory=dict[str, Reindex])
    stands_for: dict[str, Use] = field(default_factory=dict[str, Use])
    known: dict[_Place, Use] = field(default_factory=dict[_Place, Use])
    looked: set[_Place] = field(default_factory=set[_Place])
    split: dict[str, bool] = field(default_factory=dict[str, bool])
    whole: dict[str, str] = field(default_factory=dict[str, str])
    origin: dict[str, str] = field(default_factory=dict[str, str])
    places: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        """Finds what is returned and made of a matmul's result."""
        super().__post_init__()
        made = set[str]()
        for node in self.program.nodes:
            if isinstance(node, Contraction) or (not isinstance(node, Opaque) and not made.isdisjoint(uses(node))):
                made.add(node.name)
        self.returned = made.intersection(self.program.outputs)
        self.made_of_matmuls = made

    def held(self, value: str, index: Sequence[Affine]) -> bool:
        """Tells whether `value[index...]` is read where `value` lies in memory, not computed there."""
        if value in self.pending:
            return False
        if (value, tuple(index)) in self.looked:
            return True
        if value in self.returned or self.origin.get(value, value) in self.crowded:
            return True
        return any(len(i.terms) > 1 for i in index) and self.lies_in_memory(value)

    def lies_in_memory(self, value: str) -> bool:
        """Tells whether `value` is better read from memory in split dimensions than computed in these: then all its elements
        would be computed once more, or a matmul would run over more axes.
        """
        if self.origin.get(value, value) in self.made_of_matmuls or value in self.program.outputs:
            return True
        readers = self.program.readers.get(value, ())
        ways = {_digits(node) if isinstance(node, Reindex) else node.name for node in readers}
        return len(ways) > 1 and value not in self.program.numbers

    def is_only_split(self, value: str) -> bool:
        """Tells whether `value` is read by reindexings alone that split a dimension, or are read so themselves, and all of it is:
        then it is better made whole, by one matmul in place of several.
        """
        if value not in self.split:
            readers = self.program.readers.get(value, ())
            whole = _elements(self.program.values()[value]) <= sum(map(_elements, readers))
            self.split[value] = whole and value not in self.program.outputs and all(map(self.splits, readers))
        return self.split[value]

    def splits(self, node: Node) -> bool:
        """Tells whether `node` is a reindexing that splits a dimension, or that such ones alone read."""
        return isinstance(node, Reindex) and (
            any(len(i.terms) > 1 for i in node.index) or self.is_only_split(node.name)
        )

    def run(self) -> TensorProgram:
        """Applies the whole law, but for removing the nodes that are dead afterwards."""
        for node in self.program.nodes:
            match node:
                case Reindex():
                    if node.source in self.made_of_matmuls and self.is_only_split(node.source):
                        self.looked.add((node.source, node.index))
                    self.stands_for[node.name] = self.at(node.source, node.index)
                    self.pending[node.name] = node
                case Opaque():
                    self.append(replace(node, uses=tuple(self.forced(u) for u in node.uses)))
                case Lookup():
                    self.append(self.looked_up(node, {a: Affine.of(a) for a in node.axes}))
                case _:
                    self.append(self.covered(node, self.read))
        outputs = tuple(self.forced(name) for name in self.program.outputs)
        return replace(self.program, nodes=tuple(self.nodes), outputs=outputs)

    def read(self, use: Use) -> Use:
        """Returns `use`, or where it reads a reindexing, what that stands for."""
        return self.at(use.value, tuple(Affine.of(a) for a in use.axes))

    def at(self, value: str, index: tuple[Affine, ...]) -> Use:
        """Returns a use of the value `value[index...]`, made if need be: operands first, without recursion into them."""
        if value in self.pending:
            outer = dict(zip(self.pending[value].axes, index, strict=True))
            inner = self.stands_for[value]
            value, index = inner.value, tuple(outer[a] for a in inner.axes)
        waiting = [(value, index)]
        while waiting:
            asked = waiting[-1]
            missing = [] if self.found(*asked) else [n for n in self.needs(*asked) if not self.found(*n)]
            waiting += missing
            if not missing:
                waiting.pop()
                self.known[asked] = self.found(*asked) or self.moved(*asked)
        return self.known[value, index]

    def found(self, value: str, index: tuple[Affine, ...]) -> Use | None:
        """Returns `value[index...]`, where that needs no new node."""
        plain = [a for a in (i.axis for i in index) if a is not None]
        same = [a.space for a in plain] == [a.space for a in self.values[value].axes]
        return Use(value, tuple(plain)) if same and _distinct(plain) else self.known.get((value, index))

    def needs(self, value: str, index: tuple[Affine, ...]) -> list[_Place]:
        """Lists the places that `moved` reads."""
        if isinstance(self.values[value], Ranking | Scan) or self.held(value, index):
            return []
        node, bound = _over_index(self.values[value], index)
        places = [(use.value, tuple(bound[a] for a in use.axes)) for use in reads(node)]
        return places if not isinstance(node, Lookup) else [(node.source, self.looked_at(node, bound)[0]), *places]

    def moved(self, value: str, index: tuple[Affine, ...]) -> Use:
        """Makes a node that computes `value[index...]`, and returns a use of it."""
        node, bound = _over_index(self.values[value], index)
        axes, name = _axes_of(index), self.fresh(value)
        if self.held(value, index):
            return self.append(Reindex(name, axes, node.dtype, value, index))
        match node:
            case Lookup():
                return self.at_a_place(value, replace(self.looked_up(node, bound), name=name, axes=axes))
            case Elementwise() | Cast() | Contraction() | Reduction():
                made = self.covered(node, lambda use: self.at(use.value, tuple(bound[a] for a in use.axes)), bound)
                return self.at_a_place(value, replace(made, name=self.fresh(value)))
            case Iota():
                return self.counted(node, index[0])
            case Reindex():
                source = self.values[node.source].axes
                composed = tuple(
                    self.composed(i, bound, axis.space) for i, axis in zip(node.index, source, strict=True)
                )
                if None not in composed:
                    return self.at(node.source, tuple(i for i in composed if i is not None))
                return self.append(Reindex(name, axes, node.dtype, value, index))
            case Input() | Opaque() | Ranking() | Scan():  # of a ranking, or a scan, only the whole is computed
                return self.append(Reindex(name, axes, node.dtype, value, index))
            case Constant() | Extent():
                return Use(value, ())
            case _:
                assert_never(node)

    def at_a_place(self, value: str, node: Node) -> Use:
        """Adds `node`, which is `value` at some place, and returns a use of it."""
        origin = self.origin[node.name] = self.origin.get(value, value)
        self.places[origin] += 1
        if self.places[origin] > MOST_PLACES and origin not in self.program.numbers:
            self.crowded |= {origin}
        return self.append(node)

    def covered(self, node: Node, change: Callable[[Use], Use], bound: Mapping[Axis, Affine] | None = None) -> Node:
        """Returns `node` with its uses changed; a sum still reads along every axis that it did."""

        def whole(use: Use) -> Use:
            new = change(use)
            if not isinstance(node, Contraction | Reduction):
                return new
            wanted = _axes_of([Affine.of(a) if bound is None else bound[a] for a in use.axes])
            return new if set(wanted) <= set(new.axes) else Use(self.copy(new, wanted), wanted)

        return with_uses(node, whole)

    def looked_up(self, node: Lookup, bound: Mapping[Axis, Affine]) -> Lookup:
        """Returns `node` with its indices over the new axes: where it goes along its source other than by an axis, the source is
        reindexed, so that a view of an input is looked up in.
        """
        index, values = self.looked_at(node, bound)
        source, wanted = self.at(node.source, index), _axes_of(index)
        if set(source.axes) != set(wanted) or not _distinct(source.axes):  # expanded, or a diagonal
            source = Use(self.copy(source, wanted), wanted)
        uses = {a: self.at(u.value, tuple(bound[b] for b in u.axes)) for a, u in values.items()}
        return replace(node, source=source.value, index=tuple(uses.get(a, a) for a in source.axes))

    def looked_at(self, node: Lookup, bound: Mapping[Axis, Affine]) -> tuple[tuple[Affine, ...], dict[Axis, Use]]:
        """Returns the part of its source that `node` looks up in, and the values that say where, by axes made for them."""
        values: dict[Axis, Use] = {}
        found: list[Affine] = []
        for dim, (index, axis) in enumerate(zip(node.index, self.values[node.source].axes, strict=True)):
            if isinstance(index, Axis):
                found.append(bound[index])
                continue
            own = Axis(f"{node.name}.{dim}", axis.space)
            values[own] = index
            found.append(Affine.of(own))
        return tuple(found), values

    def copy(self, use: Use, axes: tuple[Axis, ...], name: str = "") -> str:
        """Adds an operation that repeats `use` over `axes`, and returns its name."""
        dtype = self.values[use.value].dtype
        made = Elementwise(name or self.fresh(use.value), axes, dtype, Arg(0), (use,))
        return self.append(made).value

    def forced(self, name: str) -> str:
        """Returns the value that is the reindexing `name`, for readers that have no axes to bind."""
        if name not in self.pending:
            return name
        if name not in self.whole:
            old = self.pending[name]
            use = self.stands_for[name]
            node = self.values[use.value]
            same = node.axes == use.axes == old.axes and not isinstance(node, Input | Reindex)
            # A name that is pending is never looked up among the values: the copy may take it.
            self.whole[name] = use.value if same else self.copy(use, old.axes, name)
        return self.whole[name]

    def counted(self, node: Iota, index: Affine) -> Use:
        """Computes `index` as arithmetic on iotas over its own axes."""
        uses = [self.append(Iota(self.fresh(node.name), (a,), node.dtype)) for a, _ in index.terms]
        parts: list[Scalar] = [
            Arg(i) if c == 1 else apply("mul", Arg(i), Lit(c)) for i, (_, c) in enumerate(index.terms)
        ]
        if index.from_end:
            size = Extent(self.fresh(node.name), (), node.dtype, node.axes[0].space)
            parts.append(Arg(len(uses)))
            uses.append(self.append(size))
        offset = index.offset - (1 if index.from_end else 0)
        if offset or not parts:
            parts.append(Lit(offset))
        expr = parts[0]
        for part in parts[1:]:
            expr = apply("add", expr, part)
        axes = tuple(a for a, _ in index.terms)
        name = self.fresh(node.name)
        return self.append(Elementwise(name, axes, node.dtype, expr, tuple(uses)))

    def composed(self, inner: Affine, outer: Mapping[Axis, Affine], source: Space) -> Affine | None:
        """Returns `inner` where its axes are at `outer`; None where no index of `source` says that."""
        terms: dict[Axis, int] = {}
        offset, ends = inner.offset, int(inner.from_end)
        for axis, coefficient in inner.terms:
            index = outer[axis]
            offset += coefficient * index.offset
            for own, step in index.terms:
                terms[own] = terms.get(own, 0) + coefficient * step
            if index.from_end:
                last = _last(axis.space, source, self.program.derived)
                if last is None:
                    return None
                ends += coefficient * last[0]
                offset += coefficient * last[1]
        if ends not in (0, 1):
            return None
        return Affine(tuple((a, c) for a, c in terms.items() if c), offset, bool(ends))


def _elements(node: Node) -> int:
    """Returns how many elements a value has in the example, as far as that says."""
    return prod(a.space.fixed or a.space.example or 1 for a in node.axes)


def _last(space: Space, source: Space, derived: Iterable[Derived]) -> tuple[int, int] | None:
    """Returns (a, b): the last index of `space` is a times that of `source`, plus b, for any sizes."""
    if space == source:
        return 1, 0
    if space.fixed is not None:
        return 0, space.fixed - 1
    for rule in derived:
        runs_to_end = rule.stop is None and rule.step == rule.times == 1 and (rule.start or 0) >= 0
        runs_to_end = runs_to_end and not rule.plus and not rule.others
        if rule.space == space and rule.source == source and runs_to_end:
            return 1, -(rule.start or 0)
    return None


def _digits(node: Reindex) -> tuple[tuple[tuple[int, ...], int, bool], ...]:
    """Returns what is equal for reindexings that split alike, whatever their axes are called."""
    return tuple((tuple(c for _, c in i.terms), i.offset, i.from_end) for i in node.index)


def _axes_of(index: Iterable[Affine]) -> tuple[Axis, ...]:
    return tuple(dict.fromkeys(a for i in index for a, _ in i.terms))


def _over_index(node: Node, index: tuple[Affine, ...]) -> tuple[Node, dict[Axis, Affine]]:
    """Returns `node` with the axes of `index`, its uses as they were, and the place of its old axes over the new ones."""
    axes, bound = _axes_of(index), dict(zip(node.axes, index, strict=True))
    match node:
        case Contraction() | Reduction():
            over = _renamed(node.over, axes)
            bound |= {o: Affine.of(n) for o, n in zip(node.over, over, strict=True)}
            return replace(node, axes=axes, over=over), bound
        case Elementwise() | Cast() | Lookup():
            return replace(node, axes=axes), bound
        case _:
            return node, bound


def _distinct(axes: Sequence[Axis]) -> bool:
    return len(set(axes)) == len(axes)


def _renamed(over: Iterable[Axis], axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Returns axes over the same spaces as `over` that are not among `axes`."""
    taken = set(axes)
    made: list[Axis] = []
    for axis in over:
        name, number = axis.name, 0
        while axis in taken:
            number += 1
            axis = Axis(f"{name}.{number}", axis.space)  # noqa: PLW2901
        taken.add(axis)
        made.append(axis)
    return tuple(made)
