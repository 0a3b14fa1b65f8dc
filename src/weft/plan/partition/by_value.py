"""Whether two programs agree, found value by value: what equal layers have in common is compared once.

A value that both programs have under one name is compared as a function of values that agree already. Where that holds for all
outputs, the programs agree: each step holds for all operands, those that the programs compute among them. The other way round it
says nothing, since programs may agree though a value of one name is another in each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.tensor.axes import Axis, Space
from weft.tensor.derived import Derived, about
from weft.tensor.forms import Form, Forms
from weft.tensor.program import Input, Node, TensorProgram, uses

Agree: TypeAlias = Callable[[TensorProgram, TensorProgram], bool]
_Dims: TypeAlias = tuple[tuple[Axis | None, ...], ...]

# Programs of so few operations are as quickly compared as they are.
_FEW = 48
# How many operations a value is looked at with, and how many values may want more before this is given up.
_MOST, _MOST_WIDE = 128, 8


def agree_by_value(before: TensorProgram, after: TensorProgram, agree: Agree) -> bool:
    """Tell whether `before` and `after` are found to agree value by value; False says nothing.

    Args:
        before, after: inputs of one name are one tensor; the second has none that the first lacks, or False is told.
        agree: compares two programs, parts of these; called once for pairs that differ in names alone.
    """
    own, its = ({n.name: n for n in p.inputs} for p in (before, after))
    few = len(before.nodes) <= _FEW or len(before.outputs) != len(after.outputs)
    if few or any(own.get(name) != each for name, each in its.items()):
        return False
    found = _ByValue(before, after, agree)
    for node in before.nodes:
        found.look_at(node)
    return all(map(found.return_the_same, range(len(before.outputs))))


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations of a program in order, and the values that they read."""

    nodes: tuple[Node, ...]
    reads: frozenset[str]


@dataclass
class _ByValue:
    """What is known of two programs.

    Attributes:
        known: values, by the one name that they have in both programs, that agree.
        free: those that may take any value where others are compared as functions of them: floats and inputs, since integers and
            conditions that are computed rarely take any.
        found: the outcome for pairs of parts, by form.
    """

    before: TensorProgram
    after: TensorProgram
    agree: Agree
    known: set[str] = field(default_factory=set[str])
    free: set[str] = field(default_factory=set[str])
    found: dict[Form, bool] = field(default_factory=dict[Form, bool])

    def __post_init__(self) -> None:
        programs = self.before, self.after
        self._forms, self._left, self._wide = Forms(), 2 * sum(len(p.nodes) for p in programs), 0
        self._values: tuple[Mapping[str, Node], ...] = tuple(p.values() for p in programs)
        self._places = tuple({name: i for i, name in enumerate(values)} for values in self._values)
        self._inputs = frozenset(n.name for p in programs for n in p.inputs)
        self.known |= self._inputs
        self.free |= self._inputs

    def look_at(self, node: Node) -> None:
        """Find out whether a value of the first program agrees with that of its name in the second, if there is one."""
        other = self._values[1].get(node.name)
        if other is None or other.dtype is not node.dtype:
            return
        if [a.space for a in other.axes] != [a.space for a in node.axes]:
            return
        same = node == other and self.known.issuperset(uses(node))
        if same or self._agree((node.name, node.name), ((), ())):
            self.known.add(node.name)
            if node.dtype.is_float:
                self.free.add(node.name)

    def return_the_same(self, number: int) -> bool:
        """Tell whether both are known to return the same there."""
        one, other = self.before.outputs[number], self.after.outputs[number]
        dims = self.before.output_dims[number : number + 1], self.after.output_dims[number : number + 1]
        if (
            one == other
            and one in self.known
            and _places(self._values[0][one], dims[0]) == _places(self._values[1][one], dims[1])
        ):
            return True
        return self._agree((one, other), dims)

    def _agree(self, names: tuple[str, str], dims: tuple[_Dims, _Dims]) -> bool:
        """Compare a value of the first with one of the second, as functions of those that are free."""
        parts = self._parts(names) if self._wide < _MOST_WIDE else None
        if parts is None:
            self._wide += 1
            return False
        read = parts[0].reads | parts[1].reads
        first, second = (self._program(i, parts[i], read, names[i], dims[i]) for i in (0, 1))
        form, spaces = self._forms.of(first, second)
        key = (
            form,
            tuple(s.example for s in spaces),
            _numbered(first.derived, spaces),
            _numbered(second.derived, spaces),
        )
        if key not in self.found:
            self._left -= len(first.nodes) + len(second.nodes)
            self.found[key] = self._left >= 0 and self.agree(first, second)
        return self.found[key]

    def _parts(self, names: tuple[str, str]) -> tuple[_Part, _Part] | None:
        """Return what the two values are made with of free ones: if that can be, of the same ones; None where it is too much."""
        bound, found = set[str](), None
        while True:
            first, second = (self._part(i, names[i], bound) for i in (0, 1))
            if first is None or second is None:
                return found
            odd = (first.reads ^ second.reads) - self._inputs
            if not odd:
                return first, second
            found = found or (first, second)
            bound.add(max(odd, key=self._places[0].__getitem__))

    def _part(self, which: int, name: str, bound: Collection[str]) -> _Part | None:
        """Return what makes `name` of the free values but those that are `bound`; None where it is too much."""
        values, place = self._values[which], self._places[which]
        made, reads, waiting = set[str](), set[str](), [name]
        while waiting and len(made) <= _MOST:
            each = waiting.pop()
            if isinstance(values[each], Input):
                reads.add(each)
            elif each not in made:
                made.add(each)
                own = set(uses(values[each]))
                free = (own & self.free) - set(bound)
                reads |= free
                waiting += own - free
        if len(made) > _MOST:
            return None
        return _Part(tuple(values[v] for v in sorted(made, key=place.__getitem__)), frozenset(reads))

    def _program(self, which: int, part: _Part, reads: Collection[str], name: str, dims: _Dims) -> TensorProgram:
        values, place = self._values[which], self._places[which]
        inputs = tuple(
            Input(v, values[v].axes, values[v].dtype) for v in sorted(set(reads) & place.keys(), key=place.__getitem__)
        )
        made = TensorProgram(inputs, part.nodes, (name,), dims)
        whole = (self.before, self.after)[which]
        return (
            replace(made, derived=about(made.spaces(), whole.derived, whole.rules_by_space)) if whole.derived else made
        )


def _places(node: Node, dims: _Dims) -> list[list[int | None]]:
    """Return which axis of `node` each dimension is; None for those of size 1."""
    return [[None if d is None else node.axes.index(d) for d in each] for each in dims]


def _numbered(rules: Sequence[Derived], spaces: Sequence[Space]) -> Form:
    """Return the rules with numbers for `spaces`, and for others in the order in which rules name them, with their sizes."""
    number = {space: i for i, space in enumerate(spaces)}
    for rule in rules:
        for space in (rule.space, *rule.sources):
            number.setdefault(space, len(number))
    others = tuple((space.fixed, space.example) for space in list(number)[len(spaces) :])
    numbered = tuple(
        (*(number[s] for s in (r.space, *r.sources)), r.start, r.stop, r.step, r.times, r.plus) for r in rules
    )
    return others, numbered
