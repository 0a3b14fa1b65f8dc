"""Frozen data as text and back: block programs, schedules and what was chosen among them, for the cache and for files.

The text is JSON: a list of rows, each made of numbers, strings and earlier rows, so that what is shared is written once and shared
again. Only the forms that are named here can be in it: reading builds these, imports their modules, and runs nothing else.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar, cast

from weft.errors import Location
from weft.tensor.axes import Space
from weft.tensor.program import TensorProgram

T = TypeVar("T")

# What stands first in a row that is no dataclass: a tuple, a list, a set, a mapping, a member of an enumeration, what the reader
# brings, an atom.
_TUPLE, _LIST, _SET, _MAPPING, _MEMBER, _BROUGHT, _ATOM = "t", "l", "s", "m", "e", "@", "a"


@dataclass(frozen=True, slots=True)
class PackedAs:
    """A form that stands for another: of values of `kind`, `write` gives what is packed in their place, and `read` takes it."""

    kind: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TextForms:
    """The forms that a text may have in it. Reading imports the modules of those that it has.

    Attributes:
        modules: names of modules, of which each dataclass and enumeration is such a form.
        classes: more of them, "module.Class".
        own: forms by other names, and those that stand for others.
    """

    modules: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    own: Mapping[str, type | PackedAs] = field(default_factory=dict[str, "type | PackedAs"])

    def __or__(self, own: Mapping[str, type | PackedAs]) -> TextForms:
        """Return these forms and more, by their own names."""
        return replace(self, own={**self.own, **own})

    def named(self, name: str) -> type | PackedAs:
        """Return the form called `name`.

        Raises:
            LookupError: there is none.
        """
        found = self.own.get(name)
        if found is None:
            module, _, called = name.rpartition(".")
            if module in self.modules or name in self.classes:
                found = vars(importlib.import_module(module))[called]
        if found is None or not (isinstance(found, PackedAs) or self.name(found) == name):
            raise LookupError(f"no form is called {name!r}")
        return found

    def name(self, form: type | PackedAs) -> str | None:
        """Return what `form` is called in text; None where it has no form there."""
        for name, each in self.own.items():
            if each is form:
                return name
        if not isinstance(form, type) or not (is_dataclass(form) or issubclass(form, Enum)):
            return None
        name = f"{form.__module__}.{form.__qualname__}"
        return name if form.__module__ in self.modules or name in self.classes else None


FORMS = TextForms(
    modules=frozenset(
        (
            *(f"weft.tensor.{name}" for name in ("axes", "derived", "scalar", "merge", "order", "program")),
            *(f"weft.block.{name}" for name in ("program", "edges", "guard", "indices", "linear")),
            *(f"weft.block.{name}" for name in ("places", "ranges", "spans", "subscripts")),
        )
    ),
    classes=frozenset(
        (
            *("weft.tensor.dtypes.DType", "weft.errors.Location", "weft.target.Target", "weft.tensor.passes.Step"),
            *(f"weft.schedule.schedule.{name}" for name in ("Level", "LevelPlace", "LoopSchedule", "Schedule")),
            *("weft.cost.kernel_cost.Cost", "weft.cascade.approximation.Approximation", "weft.masks.sparsity.Sparsity"),
            *(f"weft.plan.partition.partition.{name}" for name in ("Region", "TorchCall", "Cut")),
            *(f"weft.plan.targets.candidates.{name}" for name in ("Candidate", "Example", "Refusal")),
            *(
                "weft.plan.targets.candidates.Selection",
                "weft.plan.targets.compiled.Considered",
                "weft.plan.targets.lying.Lying",
            ),
        )
    ),
)
"""What the cache's entries are made of."""


def packed(value: Any, forms: TextForms = FORMS, brought: Sequence[Any] = ()) -> bytes:
    """Writes `value` as text.

    Args:
        value: of `forms`, tuples, frozen sets, mappings, numbers, strings and None.
        forms: what else may be in it.
        brought: what a reader will have of its own, written as its number in this list.

    Raises:
        TypeError: something of another form is in it.
    """
    writer = _Writer(forms, {each: number for number, each in enumerate(brought)})
    root = writer.item(value)
    text = {"forms": list(writer.named), "rows": writer.rows, "root": root}
    return json.dumps(text, separators=(",", ":")).encode()


def unpacked(data: bytes, kind: type[T], forms: TextForms = FORMS, brought: Sequence[Any] = ()) -> T:
    """Reads what `packed` wrote, which must be a `kind`; what was written as a number is that of `brought`.

    Raises:
        LookupError, TypeError, ValueError: it is something else.
    """
    text = cast("dict[str, Any]", json.loads(data))
    known = cast("list[Any]", [forms.named(name) for name in text["forms"]])
    made: list[Any] = []
    for tag, *rest in text["rows"]:
        items = [made[item[0]] if item.__class__ is list else item for item in rest]
        if tag.__class__ is int:
            made.append(known[tag](*items))
        elif tag == _TUPLE:
            made.append(tuple(items))
        elif tag == _MEMBER:
            made.append(known[items[0]][items[1]])
        elif tag == _BROUGHT:
            made.append(brought[items[0]])
        elif tag == _MAPPING:
            made.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif tag == _SET:
            made.append(frozenset(items))
        elif tag == _LIST:
            made.append(items)
        elif tag == _ATOM:
            made.append(known[items[0]].read(items[1]))
        else:
            raise ValueError(f"no row begins with {tag!r}")
    found = made[text["root"][0]]
    if not isinstance(found, kind):
        raise TypeError(f"a {type(found).__name__} where a {kind.__name__} was to be")
    return found


_Ref: TypeAlias = tuple[int]
"""An earlier row, by its place."""
_NUMBERS = frozenset((bool, int, float))
_PLAIN = frozenset((type(None), str, *_NUMBERS))
_BRINGABLE = (Location, Space)


class _Places:
    """Where values were written, each by which object it is: equal ones, as (1,) and (True,), may be written otherwise.

    It holds the objects, so that no other one takes the number that Python knows one by.
    """

    def __init__(self) -> None:
        self._of: dict[int, _Ref] = {}
        self._held: list[Any] = []

    def get(self, value: Any) -> _Ref | None:
        return self._of.get(id(value))

    def put(self, value: Any, place: _Ref) -> None:
        self._held.append(value)
        self._of[id(value)] = place


class _Writer:
    """Writes values as rows, each once: `rows[n]` is written `[n]` in later rows."""

    def __init__(self, forms: TextForms, brought: Mapping[Any, int]) -> None:
        self.forms = forms
        self.atoms = [form for form in forms.own.values() if isinstance(form, PackedAs)]
        self.brought = brought
        self.rows: list[tuple[Any, ...]] = []
        self.named: dict[str, int] = {}
        self._places = _Places()
        self._by_row: dict[tuple[Any, ...] | str, _Ref] = {}
        self._ways: dict[type, Callable[[Any], tuple[Any, ...]]] = {tuple: lambda value: (_TUPLE, *self._items(value))}

    def item(self, value: Any) -> Any:
        """Returns `value` as it is written in a row."""
        if value.__class__ in _PLAIN:
            return value
        known = self._places.get(value)
        if known is not None:
            return known
        row = self._row(value)
        key = row if _NUMBERS.isdisjoint(map(type, row[1:])) else repr(row)  # as text, 1 is neither 1.0 nor True
        place = self._by_row.get(key)
        if place is None:
            place = self._by_row[key] = (len(self.rows),)
            self.rows.append(row)
        self._places.put(value, place)
        return place

    def _items(self, values: Iterable[Any]) -> list[Any]:
        """Returns `item` of each of `values`, most of which are plain or known."""
        found: list[Any] = []
        for value in values:
            if value.__class__ in _PLAIN:
                found.append(value)
            else:
                known = self._places.get(value)
                found.append(self.item(value) if known is None else known)
        return found

    def _row(self, value: Any) -> tuple[Any, ...]:
        form = value.__class__
        if form in _BRINGABLE and value in self.brought:
            return _BROUGHT, self.brought[value]
        way = self._ways.get(form)
        if way is None:
            way = self._ways[form] = self._way_of(form)
        return way(value)

    def _way_of(self, form: type) -> Callable[[Any], tuple[Any, ...]]:
        """Finds how values of a form are written, which is found once."""
        items = self._items
        if issubclass(form, Enum):
            number = self._number(form)
            return lambda value: (_MEMBER, number, value.name)
        if form is list:
            return lambda value: (_LIST, *items(value))
        atom = next((each for each in self.atoms if issubclass(form, each.kind)), None)
        if atom is not None:
            number, write = self._number(atom), atom.write
            return lambda value: (_ATOM, number, self.item(write(value)))
        if issubclass(form, frozenset):
            return lambda value: (_SET, *sorted(items(value), key=str))
        if issubclass(form, Mapping):
            return lambda value: (_MAPPING, *items(each for pair in value.items() for each in pair))
        number = self._number(cast("type[Any]", form))
        names = [each.name for each in fields(cast("Any", form)) if each.init]
        return lambda value: (number, *items([getattr(value, name) for name in names]))

    def _number(self, form: type | PackedAs) -> int:
        name = self.forms.name(form)
        if name is None:
            assert isinstance(form, type)
            raise TypeError(f"a {form.__module__}.{form.__qualname__} has no form in text")
        return self.named.setdefault(name, len(self.named))


def unplaced(program: TensorProgram) -> tuple[TensorProgram, tuple[Location | Space, ...]]:
    """Replaces each line of the user's in `program` by a number; returned with these lines, and its spaces, which say
    the example's sizes.

    The same program wherever its text stands in a file, and whatever it is called with: who reads what was packed for it brings
    lines and spaces of its own.
    """
    numbers: dict[Location, int] = {}

    def numbered(node: Any) -> Any:
        where = getattr(node, "location", None)
        if where is None:
            return node
        return replace(node, location=Location("", numbers.setdefault(where, len(numbers))))

    nodes = tuple(map(numbered, program.nodes))
    rules = [space for rule in program.derived for space in (rule.space, *rule.sources)]
    return replace(program, nodes=nodes), (*numbers, *dict.fromkeys((*program.spaces(), *rules)))
