"""The law of windows: what is read at computed places is read where it lies in memory, and computed from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import TypeAlias

from weft.tensor.axes import Axis
from weft.tensor.domain import ZERO
from weft.tensor.dtypes import DType
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    TensorProgram,
    Use,
    reads,
    uses,
)
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_OFTEN = 4
"""Elements of a result for each one of what is read, at most: what lies beside it is computed, too, and not used."""


@tensor_pass()
def windows_at_sources(program: TensorProgram) -> TensorProgram:
    """Moves masked lookups to what their source is computed of, as far as only indices say where.

        a[i] = exp(x[i])                         b[i] = where(0 <= i - 8 < n, exp(v[i]), 0)
        b[i] = a[i - 8] where inside    ==>      v[i] = x[i - 8] where inside

    Condition: the source is elementwise; it is not returned, nor read by a call, a matmul, a reduction or a ranking, for which it
    lies in memory; the result has few more elements than it.
    Conditioning: none, each element is computed as before.
    """
    windows = _Windows(program)
    return windows.made_by(windows.add)


_Place: TypeAlias = Axis | Use
"""Where a dimension is read: at the element that an axis goes along, or where a value says."""


@dataclass
class _Windows(Draft):
    """The new program so far; `known`: what is at some places of a value; `order`: the axes of the lookup that is moved."""

    known: dict[tuple[str, tuple[_Place, ...]], Use] = field(default_factory=dict[tuple[str, tuple[_Place, ...]], Use])
    order: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        """Finds what lies in memory anyway, and what numbers alone decide."""
        super().__post_init__()
        whole = (n for n in self.program.nodes if isinstance(n, Opaque | Contraction | Reduction | Ranking))
        self.in_memory = {*self.program.outputs, *(name for node in whole for name in uses(node))}
        self.numbers = set(self.program.numbers)

    def add(self, node: Node) -> None:
        """Appends a node; a lookup that moves, as what is computed of its source's operands."""
        if not isinstance(node, Lookup) or not self.moves(node):
            self.append(node)
            return
        own, self.order = self.values[node.source].axes, node.axes
        inner = self.at(Use(node.source, own), dict(zip(own, node.index, strict=True)))
        args, inside = [inner], list[Scalar]()
        for index, axis in zip(node.index, own, strict=True):
            if isinstance(index, Use):
                size = self.append(Extent(self.fresh(node.name), (), DType.int64, axis.space))
                number = len(args)
                args += [index, size]
                inside += [apply("ge", Arg(number), Lit(0)), apply("lt", Arg(number), Arg(number + 1))]
        every = reduce(lambda one, other: apply("logical_and", one, other), inside)
        expr = apply("where", every, Arg(0), ZERO[node.dtype.kind])
        self.append(Elementwise(node.name, node.axes, node.dtype, expr, tuple(args), node.location))

    def moves(self, node: Lookup) -> bool:
        """Tells whether what `node` reads is better computed where it is read."""
        source = self.values[node.source]
        many = prod(a.space.fixed or a.space.example or 1 for a in node.axes)
        few = prod(a.space.fixed or a.space.example or 1 for a in source.axes)
        wraps = source.dtype.kind == "int" and source.dtype is not DType.int64
        return self.is_window(node) and self.is_computed(source) and many <= _OFTEN * few and not wraps

    def is_window(self, node: Lookup) -> bool:
        """Tells whether `node` is a masked lookup where indices alone say."""
        return node.masked and self.numbers.issuperset(u.value for u in reads(node))

    def is_computed(self, node: Node) -> bool:
        """Tells whether `node` is computed wherever it is read."""
        match node:
            case Iota() | Constant() | Extent():
                return True
            case Elementwise() | Cast():
                return node.name not in self.in_memory or node.name in self.numbers
            case Lookup():
                return node.name not in self.in_memory and self.is_window(node)
            case _:
                return False

    def at(self, use: Use, bound: Mapping[Axis, _Place]) -> Use:
        """Returns what `use` reads where its axes are at `bound`, which are places inside."""
        places = tuple(bound.get(a, a) for a in use.axes)
        key = use.value, places
        if key not in self.known:
            self.known[key] = self.made(self.values[use.value], places)
        return self.known[key]

    def made(self, node: Node, places: tuple[_Place, ...]) -> Use:
        """Makes what gives `node` at `places`, if need be."""
        axes = tuple(a for a in places if isinstance(a, Axis))
        if len(axes) == len(places):
            return Use(node.name, axes)
        inner = dict(zip(node.axes, places, strict=True))
        match node:
            case Iota():
                (index,) = (p for p in places if isinstance(p, Use))
                if node.dtype is DType.int64:
                    return index
                return self.append(Cast(self.fresh(node.name), index.axes, node.dtype, index, semantic=True))
            case Elementwise() | Cast() if self.is_computed(node):
                new = with_uses(node, lambda use: self.at(use, inner))
                return self.append(replace(new, name=self.fresh(node.name), axes=self.axes(places)))
            case Lookup() if self.is_computed(node):
                index = tuple(inner.get(i, i) if isinstance(i, Axis) else self.at(i, inner) for i in node.index)
                return self.looked_up(self.values[node.source], index)
            case _:
                return self.looked_up(node, places)

    def looked_up(self, source: Node, places: tuple[_Place, ...]) -> Use:
        """Makes the lookup of `source`, which is in memory, at `places`."""
        index: list[_Place] = []
        for place in places:  # one that goes along two dimensions does so along one of them only
            if isinstance(place, Axis) and place in index:
                place = self.append(Iota(self.fresh(source.name), (place,), DType.int64))  # noqa: PLW2901
            index.append(place)
        return self.append(
            Lookup(self.fresh(source.name), self.axes(places), source.dtype, source.name, tuple(index), masked=True)
        )

    def append(self, node: Node) -> Use:
        """Appends the next node, and notes whether indices alone decide it."""
        if isinstance(node, Iota | Extent) or (
            isinstance(node, Elementwise | Cast) and not node.dtype.is_float and self.numbers.issuperset(uses(node))
        ):
            self.numbers.add(node.name)
        return super().append(node)

    def axes(self, places: Sequence[_Place]) -> tuple[Axis, ...]:
        """Returns the axes of what is at `places`, in the order in which the lookup has them: that of memory."""
        found = dict.fromkeys(a for place in places for a in ((place,) if isinstance(place, Axis) else place.axes))
        return (*(a for a in self.order if a in found), *(a for a in found if a not in self.order))
