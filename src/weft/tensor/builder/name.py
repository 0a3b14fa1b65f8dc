"""The last step of building: a name for every class of spaces, and for every axis after it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from weft.tensor.axes import Axis, Space
from weft.tensor.builder.unify import Sliced, Spaces
from weft.tensor.derived import Derived
from weft.tensor.program import Extent, Input, Node, TensorProgram, axes_of
from weft.tensor.rename import with_axes

_LETTERS = "MKNDLPQRST"


def named(program: TensorProgram, spaces: Spaces) -> tuple[TensorProgram, dict[str, Space]]:
    """Returns `program` over resolved spaces, M, K, N, D .. as they appear, with axes m, m1 .., k ..; and the spaces by root."""
    every = (*program.inputs, *program.nodes)
    naming = _Naming(spaces)
    for node in every:
        naming.spaces_of(node)
    # The axes that operations and outputs run over are named before those that only inputs have.
    for node in program.nodes:
        for axis in axes_of(node):
            naming.axis(axis)
    dims = tuple(tuple(None if d is None else naming.axis(d) for d in each) for each in program.output_dims)
    inputs = tuple(naming.input(n) for n in program.inputs)
    nodes = tuple(naming.node(n) for n in program.nodes)
    return TensorProgram(inputs, nodes, program.outputs, dims, naming.rules()), naming.spaces


class _Naming:
    """Names given so far. Spaces go by the root of their class."""

    def __init__(self, spaces: Spaces) -> None:
        self.derived: list[Derived] = []
        self._spaces = spaces
        self._named: dict[str, Space] = {}
        self._axes: dict[Axis, Axis] = {}
        self._counts: dict[Space, int] = {}
        self._waiting: set[str] = set()
        self._circular: list[tuple[Space, Sliced]] = []

    def spaces_of(self, node: Node) -> None:
        """Names the spaces of `node`."""
        for axis in axes_of(node):
            self._space(axis.space)
        if isinstance(node, Extent):
            self._space(node.space)

    @property
    def spaces(self) -> dict[str, Space]:
        """The named spaces by root."""
        return dict(self._named)

    def axis(self, axis: Axis) -> Axis:
        """Returns the axis with its name for the whole program."""
        if axis not in self._axes:
            space = self._space(axis.space)
            number = self._counts[space] = self._counts.get(space, -1) + 1
            self._axes[axis] = axis_of(space, number)
        return self._axes[axis]

    def node(self, node: Node) -> Node:
        """Returns `node` over named axes."""
        if isinstance(node, Extent):
            return replace(node, space=self._space(node.space))
        return with_axes(node, self.axis)

    def input(self, node: Input) -> Input:
        """Returns `node` over named axes; an axis that only this input has takes the first name that is free in it.

        So the columns of x and the rows of the weight that it is multiplied with print alike.
        """
        taken = {self._axes[a] for a in node.axes if a in self._axes}
        names = dict(self._axes)
        for own in node.axes:
            if own not in names:
                space, number = self._space(own.space), 0
                while axis_of(space, number) in taken:
                    number += 1
                names[own] = axis_of(space, number)
                taken.add(names[own])
        dims = tuple(None if d is None else names[d] for d in node.dims)
        return replace(node, axes=tuple(names[a] for a in node.axes), dims=dims)

    def _space(self, space: Space) -> Space:
        root = self._spaces.root(space)
        if root in self._named:
            return self._named[root]
        self._waiting.add(root)
        rules, circular = list[Sliced](), list[Sliced]()
        for rule in self._spaces.sliced(space):
            waits = self._waiting.isdisjoint(self._spaces.root(each) for each in (rule.source, *rule.others))
            (rules if waits else circular).append(rule)
        sliced = [(s, self._space(s.source), tuple(map(self._space, s.others))) for s in rules]
        self._waiting.remove(root)
        fixed = self._spaces.hint(space) if self._spaces.fixed(space) else None
        made = Space(space_name(len(self._named)), fixed, self._spaces.hint(space))
        self._named[root] = made
        self.derived += [
            Derived(made, of, s.start, s.stop, s.step, s.times, s.plus, others) for s, of, others in sliced
        ]
        self._circular += [(made, rule) for rule in circular]
        return made

    def rules(self) -> tuple[Derived, ...]:
        """Returns the rules, of which none is followed in a circle.

        A slice of what is a multiple of the slice would be such a circle (a list put together of what was made of its halves). It
        mostly says nothing new, since the multiple tells its part. Where it does not, the slice's rule counts, not the multiple's:
        what it is a slice of was there first.
        """
        slices = [
            Derived(made, self._named[self._spaces.root(s.source)], s.start, s.stop, s.step)
            for made, s in self._circular
            if (s.times, s.plus, s.others) == (1, 0, ()) and self._spaces.root(s.source) in self._named
        ]
        new = [rule for rule in slices if rule.space not in _told_by(rule.source, self.derived)]
        if not new:
            return tuple(self.derived)
        every, kept = [*self.derived, *new], dict[int, Derived]()
        sources: dict[Space, set[Space]] = {}
        for number, rule in sorted(enumerate(every), key=lambda each: not _is_slice(each[1])):
            if rule.space not in _all_sources(rule.sources, sources):
                sources.setdefault(rule.space, set()).update(rule.sources)
                kept[number] = rule
        return tuple(kept[number] for number in sorted(kept))


def _is_slice(rule: Derived) -> bool:
    return (rule.times, rule.plus, rule.others) == (1, 0, ())


def _told_by(space: Space, rules: Sequence[Derived]) -> set[Space]:
    """Returns the spaces whose sizes follow from that of `space`, by `rules` read both ways."""
    turned = [rule.backwards for rule in rules]
    waiting = [*rules, *(rule for rule in turned if rule is not None)]
    told = {space}
    while applied := [r for r in waiting if told.issuperset(s for s in r.sources if s.fixed is None)]:
        told.update(rule.space for rule in applied)
        waiting = [rule for rule in waiting if rule.space not in told]
    return told


def _all_sources(spaces: Iterable[Space], sources: Mapping[Space, Collection[Space]]) -> set[Space]:
    """Returns `spaces`, and all that their sizes follow from."""
    found, waiting = set[Space](), list(spaces)
    while waiting:
        space = waiting.pop()
        if space not in found:
            found.add(space)
            waiting += sources.get(space, ())
    return found


def space_name(number: int) -> str:
    """Names the space that is first seen after so many others: M, K, N, D .., X1, X2 .."""
    spare = number - len(_LETTERS) + 1
    return _LETTERS[number] if spare <= 0 else f"X{spare}"


def axis_of(space: Space, number: int) -> Axis:
    """Makes the axis of `space` that is first seen after so many others: m, m1, m2 .., of X1 x1, x1_1, x1_2 .."""
    parted = "_" if space.name[-1].isdigit() else ""  # the axis x11 is of the space X11
    return Axis(space.name.lower() + (f"{parted}{number}" if number else ""), space)
