"""Places in a program: every field of every frozen dataclass in it, found and replaced without knowing what it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from weft.block.program import BlockProgram

Step = str | int
UNREAD = frozenset({"name", "location", "merge", "axes", "pad", "place", "layout", "unit", "level", "demands"})
"""Fields that decide no result of a placed program: names, where loops run, what a target asks of them, how copies lie, what
`apply` has already read.
"""


@dataclass(frozen=True)
class Spot:
    """One value in a program.

    Attributes:
        path: how to get there from the program: names of fields and numbers in tuples.
        value: what is there.
        around: what holds it, the program first; tuples are left out.
    """

    path: tuple[Step, ...]
    value: Any
    around: tuple[Any, ...]

    @property
    def field(self) -> str:
        """Name of the innermost field that the value is in."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")

    def __str__(self) -> str:
        owner = type(self.around[-1]).__name__ if self.around else ""
        return f"{owner}.{self.field} at {'/'.join(map(str, self.path))}"


def spots(program: BlockProgram) -> Iterator[Spot]:
    """Yields everything in `program` that may decide a result, outermost first."""
    yield from _inside(program, (), ())


def _inside(value: Any, path: tuple[Step, ...], around: tuple[Any, ...]) -> Iterator[Spot]:
    yield Spot(path, value, around)
    if isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _inside(each, (*path, number), around)
    elif is_dataclass(value) and not isinstance(value, type) and type(value).__name__ not in ("Axis", "Space"):
        for each in fields(value):
            if each.name not in UNREAD and each.init:
                yield from _inside(getattr(value, each.name), (*path, each.name), (*around, value))


def put(holder: Any, path: tuple[Step, ...], value: Any) -> Any:
    """Returns `holder` with `value` at `path`."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return tuple(put(each, rest, value) if number == step else each for number, each in enumerate(holder))
    return replace(holder, **{step: put(getattr(holder, step), rest, value)})
