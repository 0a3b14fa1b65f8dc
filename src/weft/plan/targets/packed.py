"""Frozen data as text and back: block programs, schedules and what was chosen among them, for the cache and for files.

The text is JSON: a list of rows, each made of numbers, strings and earlier rows, so that what is shared is written once and shared
again. Only the forms that are named here can be in it: reading builds these and runs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from weft.block import program as block
from weft.block import ranges
from weft.cascade import Approximation
from weft.cost import Cost
from weft.errors import Location
from weft.fuse import Step
from weft.plan.partition.partition import Cut, Region, TorchCall
from weft.plan.targets.candidates import Candidate, Considered, Example, Refusal, Selection
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule
from weft.target import Target
from weft.tensor import axes, program, scalar
from weft.tensor.axes import Space
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram

T = TypeVar("T")

# What stands first in a row that is no dataclass: a tuple, a list, a set, a mapping, a member of an enumeration, what the reader
# brings, an atom.
_TUPLE, _LIST, _SET, _MAPPING, _MEMBER, _BROUGHT, _ATOM = "t", "l", "s", "m", "e", "@", "a"


@dataclass(frozen=True, slots=True)
class Atom:
    """A form that stands for another: of values of `kind`, `write` gives what is packed in their place, and `read` takes it."""

    kind: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _forms_of(module: Any) -> list[type]:
    """Lists the dataclasses and enumerations that a module defines."""
    every: list[Any] = list(module.__dict__.values())
    found: list[type] = [e for e in every if isinstance(e, type) and e.__module__ == module.__name__]
    return [form for form in found if is_dataclass(form) or issubclass(form, Enum)]


_FORMS: tuple[type, ...] = (
    *(form for module in (axes, scalar, program, block, ranges) for form in _forms_of(module)),
    *(DType, Location, Target, Level, LevelPlace, LoopSchedule, Schedule, Step, Cost, Approximation),
    *(Region, TorchCall, Cut, Candidate, Considered, Example, Refusal, Selection),
)


def name_of(form: type) -> str:
    """Names a form as the text does."""
    return f"{form.__module__}.{form.__qualname__}"


FORMS: Mapping[str, type | Atom] = {name_of(form): form for form in _FORMS}
"""What the cache's entries are made of."""


def packed(value: Any, forms: Mapping[str, type | Atom] = FORMS, brought: Sequence[Any] = ()) -> bytes:
    """Writes `value` as text.

    Args:
        value: of `forms`, tuples, frozen sets, mappings, numbers, strings and None.
        forms: by name.
        brought: what a reader will have of its own, written as its number in this list.

    Raises:
        TypeError: something of another form is in it.
    """
    writer = _Writer(forms, {each: number for number, each in enumerate(brought)})
    root = writer.item(value)
    text = {"forms": list(writer.named), "rows": writer.rows, "root": root}
    return json.dumps(text, separators=(",", ":")).encode()


def unpacked(data: bytes, kind: type[T], forms: Mapping[str, type | Atom] = FORMS, brought: Sequence[Any] = ()) -> T:
    """Reads what `packed` wrote, which must be a `kind`; what was written as a number is that of `brought`.

    Raises:
        LookupError, TypeError, ValueError: it is something else.
    """
    text = cast("dict[str, Any]", json.loads(data))
    known = cast("list[Any]", [forms[name] for name in text["forms"]])
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


class _Writer:
    """Writes values as rows, each once: `rows[n]` is written `[n]` in later rows."""

    def __init__(self, forms: Mapping[str, type | Atom], brought: Mapping[Any, int]) -> None:
        self.names = {form: name for name, form in forms.items()}
        self.atoms = [form for form in forms.values() if isinstance(form, Atom)]
        self.brought = brought
        self.rows: list[list[Any]] = []
        self.named: dict[str, int] = {}
        self._by_id: dict[int, tuple[list[int], Any]] = {}  # with the value, so that no other one gets its id
        self._by_text: dict[str, list[int]] = {}

    def item(self, value: Any) -> Any:
        """Returns `value` as it is written in a row."""
        if value is None or value.__class__ in (bool, int, float, str):
            return value
        known = self._by_id.get(id(value))
        if known is not None:
            return known[0]
        row = self._row(value)
        text = repr(row)  # as text, 1 is neither 1.0 nor True
        place = self._by_text.get(text)
        if place is None:
            place = self._by_text[text] = [len(self.rows)]
            self.rows.append(row)
        self._by_id[id(value)] = place, value
        return place

    def _row(self, value: Any) -> list[Any]:
        if value.__class__ in (Location, Space) and value in self.brought:
            return [_BROUGHT, self.brought[value]]
        if isinstance(value, Enum):
            return [_MEMBER, self._number(type(value)), value.name]
        if value.__class__ is tuple:
            return [_TUPLE, *map(self.item, value)]
        if value.__class__ is list:
            return [_LIST, *map(self.item, value)]
        atom = next((each for each in self.atoms if isinstance(value, each.kind)), None)
        if atom is not None:
            return [_ATOM, self._number(atom), self.item(atom.write(value))]
        if isinstance(value, frozenset):
            return [_SET, *sorted(map(self.item, cast("frozenset[Any]", value)), key=str)]
        if isinstance(value, Mapping):
            return [_MAPPING, *(self.item(each) for pair in cast("Any", value).items() for each in pair)]
        number = self._number(value.__class__)
        return [number, *(self.item(getattr(value, each.name)) for each in fields(value) if each.init)]

    def _number(self, form: type | Atom) -> int:
        name = self.names.get(form)
        if name is None:
            assert isinstance(form, type)
            raise TypeError(f"a {name_of(form)} has no form in text")
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
    rules = [space for rule in program.derived for space in (rule.space, rule.source)]
    return replace(program, nodes=nodes), (*numbers, *dict.fromkeys((*program.spaces(), *rules)))
