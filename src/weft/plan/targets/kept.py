"""Choices kept in the cache: another process that plans the same program does not choose again.

An entry's key covers the program, sizes by magnitude, layouts, target, options and all that weft's own choice depends on. An entry
says what it was made for, with the text of the program, and what it holds is taken only where it is whole and that is what is asked
for; else it is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from weft.cost import Machine
from weft.options import current
from weft.phases import phase
from weft.plan.targets.packed import FORMS, TextForms, packed, unpacked
from weft.run.cache import CacheFolder, Json
from weft.run.key import cache_key
from weft.tensor.program import TensorProgram

if TYPE_CHECKING:
    from weft.plan.targets.candidates import Example

T = TypeVar("T")

_FILE = "chosen.json"


def parts_of(
    what: str,
    program: TensorProgram,
    given: Example,
    environment: Mapping[str, str],
    machine: Machine,
) -> dict[str, str]:
    """List the parts of a choice's key.

    Args:
        what: kind of choice.
        program: it is for, its lines of the user's numbered (`packed.unplaced`).
        given: sizes and layouts.
        environment: what the target's binaries depend on (`Toolchain.environment`).
        machine: what the model takes it to be: caches and clock decide, and are no part of what binaries depend on.
    """
    own = {"chosen": what, "program": repr(program), "given": given.kind, "debug checks": str(current().debug_checks)}
    return {**environment, "model": repr(machine), **own}


@phase("keeping")
def recalled(
    parts: Mapping[str, str],
    kind: type[T],
    brought: Sequence[Any] = (),
    forms: TextForms = FORMS,
) -> tuple[T, Mapping[str, Json]] | None:
    """Read what was kept under a key made of `parts`, with what was said beside it; None where it is missing, damaged
    or for something else.

    `brought` is what `unplaced` gave for the program: lines and sizes may be others than in the process that kept it.
    """
    entry = CacheFolder().lookup(cache_key(parts), counted=False)
    if entry is None or entry.parts != parts:
        return None
    try:
        return unpacked(entry.files[_FILE].read_bytes(), kind, forms, brought), entry.meta
    except (OSError, LookupError, TypeError, ValueError, AttributeError):
        return None  # gone since the look, or another entry's content


@phase("keeping")
def keep(
    parts: Mapping[str, str],
    value: object,
    brought: Sequence[Any] = (),
    meta: Mapping[str, Json] | None = None,
    forms: TextForms = FORMS,
) -> None:
    """Keep `value` under a key that is made of `parts`; where there is no room anywhere, another process makes it anew."""
    with suppress(OSError):
        folder = CacheFolder()
        folder.store(cache_key(parts), {_FILE: packed(value, forms, brought)}, meta, parts=parts)
