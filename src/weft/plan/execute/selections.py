"""Selections for regions: made now, or found in this process or the cache; many at once where there are processors to spare.

Regions that differ in names alone have one. On a target that times schedules, a selection is made in two steps: a few schedules of
each program are enough to cut a graph by, and more are looked at of the regions that it is cut into.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from types import MappingProxyType
from typing import Any

from weft.cost import total
from weft.defects import noticed
from weft.errors import ScheduleError, UnsupportedError, WeftError
from weft.garbage import uncollected
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.partition.partition import Region
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Example, Refusal, Selection, rooms
from weft.plan.targets.kept import keep, parts_of, recalled
from weft.plan.targets.packed import unplaced
from weft.run.cache import CacheFolder
from weft.run.key import cache_key
from weft.run.spread import are_side_by_side, spread, spreading, workers
from weft.tensor.forms import Form, Forms
from weft.tensor.laws import View, called_by_place
from weft.tensor.passes import Step
from weft.tensor.program import Contraction, TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A region as it is compiled.

    Attributes:
        region: as it was cut.
        stored: its program, which reads and writes what other regions share in the types that it has in memory.
        centred: that with differences to means taken about an element.
        program: that with names of its own, every reindexing a view made before.
        viewed: the same program, its values called as in the whole one.
        made: the views.
        example: sizes and layouts to compile for.
        form: the same for regions that are one program up to names, at the same example.
        steps: from the graph's program to `program`.
        results: which output of the program, by place, is which value of the whole one; one may be several.
    """

    region: Region
    stored: TensorProgram
    centred: TensorProgram
    program: TensorProgram
    viewed: TensorProgram
    made: tuple[View, ...]
    example: Example
    form: Form
    steps: tuple[Step, ...]
    results: tuple[tuple[int, str], ...]


# A graph is traced for its first sizes, then for all, and planned once more with the library's matmuls.
_MOST_REMEMBERED = 512
_LAYER = re.compile(r"(?<=_)\d+(?=_)")
"""In the name of an input: of a layer, as `layers_3_weight` has it."""
_remembered: dict[tuple[str, tuple[Any, ...]], Selection | Refusal] = {}
_lock = threading.Lock()  # a thread may take what a child chose while this process chooses for another graph


def _in_a_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


@dataclass(frozen=True, slots=True)
class _Key:
    """What a region's selection is kept under.

    Attributes:
        parts: of the key in the cache.
        brought: lines and sizes of the program, which another region of the key may have others of.
    """

    parts: Mapping[str, str]
    brought: tuple[Any, ...]

    @property
    def remembered(self) -> tuple[str, tuple[Any, ...]]:
        """The key in this process."""
        return cache_key(self.parts), self.brought


_NOT_REFUSED: Mapping[str, str] = MappingProxyType({})


def _key_of(prepared: Prepared, refused: Mapping[str, str] = _NOT_REFUSED) -> _Key:
    what = f"selection without {sorted(refused)}" if refused else "selection"
    return _keyed(what, prepared.program, prepared.example)


def _keyed(what: str, program: TensorProgram, example: Example) -> _Key:
    """Returns the key of a choice for `program`, whatever its values and layers are numbered: another graph has other numbers.

    The rest of its inputs' names is part of the key, since kernels call what they read as the user does: of equal layers, as the
    first of them.
    """
    plain, brought = unplaced(called_by_place(program, functools.partial(_LAYER.sub, "#")))
    return _Key(key_parts(what, plain, named_as(example, program, plain)), brought)


def selected_before(prepared: Prepared, refused: Mapping[str, str] = _NOT_REFUSED) -> Selection:
    """Selects for a region what was chosen for the same program at sizes of these magnitudes, or chooses now.

    In another trace of this process, or in another process, which left it in the cache.

    Args:
        prepared: the region.
        refused: why candidates may not run, by origin; it is chosen among the others.

    Raises:
        UnsupportedError, ScheduleError: as `select`.
    """
    program, example, key = prepared.program, prepared.example, _key_of(prepared, refused)
    found = _known(prepared, key)
    if found is None:
        found = _selected_now(key, program, example, refused)
        _remember(key.remembered, found)
    if isinstance(found, Refusal):
        raise found.error()
    return _at(found, named_as(example, program, found.program))


def _known(prepared: Prepared, key: _Key) -> Selection | Refusal | None:
    """Finds what was chosen for a region before; None where nothing was."""
    found = _remembered.get(key.remembered) or _kept(key.parts, prepared, key.brought)
    if isinstance(found, Selection):
        own = named_as(prepared.example, prepared.program, found.program)
        room = [rooms(found.chosen.applied, each.sizes) for each in (found.example, own)]
        found = found if room[0] == room[1] else None
    if found is not None:
        _remember(key.remembered, found)
    return found


def _remember(key: tuple[str, tuple[Any, ...]], found: Selection | Refusal) -> None:
    """Remembers what was found, in this process; the last ones stay."""
    with _lock:
        _remembered.pop(key, None)
        _remembered[key] = found
        while len(_remembered) > _MOST_REMEMBERED:
            del _remembered[next(iter(_remembered))]


@dataclass(frozen=True, slots=True)
class RememberedSelection:
    """What was found for a region, under the key that this process remembers it by."""

    key: tuple[str, tuple[Any, ...]]
    found: Selection | Refusal


def remembered() -> frozenset[tuple[str, tuple[Any, ...]]]:
    """Returns the keys of all that this process remembers."""
    with _lock:
        return frozenset(_remembered)


def chosen_since(before: Collection[tuple[str, tuple[Any, ...]]]) -> list[RememberedSelection]:
    """Lists what was found since only the keys `before` were remembered, in a form that another process can take."""
    return [
        RememberedSelection(key, replace(found, look_closely=None) if isinstance(found, Selection) else found)
        for key, found in _remembered.items()
        if key not in before
    ]


def remember_all(found: Sequence[RememberedSelection]) -> None:
    """Remembers what another process found."""
    for each in found:
        if each.key not in _remembered:
            _remember(each.key, each.found)


def key_parts(what: str, program: TensorProgram, example: Example) -> dict[str, str]:
    """Lists the parts of the key of a choice in the cache."""
    chain = toolchain(example.target)
    return parts_of(what, program, example, chain.environment(), chain.machine(example.threads))


def _at(selection: Selection, example: Example) -> Selection:
    """Returns the selection for another example of its class, with the cost there."""
    if example == selection.example:
        return selection
    chosen, look = selection.chosen, selection.look_closely
    cost = total(toolchain(example.target).costs(example, chosen.applied, chosen.schedule))
    again = None if look is None else functools.partial(_at_closely, look, example)
    return replace(selection, example=example, chosen=replace(chosen, cost=cost), look_closely=again)


def _at_closely(look: Callable[[], Selection], example: Example) -> Selection:
    return _at(look(), example)


def keep_for(prepared: Prepared, selection: Selection) -> None:
    """Keeps what was selected for another region of this form: another process may meet this one first."""
    key = _key_of(prepared)
    if key.remembered not in _remembered:
        _remember(key.remembered, selection)
        keep(key.parts, _to_keep(selection), unplaced(selection.program)[1])


def all_closely(settled: Sequence[tuple[Prepared, Selection]]) -> Iterator[tuple[int, Selection]]:
    """Looks more closely at regions that the graph is cut into, where that was not done, and keeps what is found.

    Yields each with its number, those that were looked at first and others as they are found: compilers begin with the first while
    children look at others.
    """
    waiting = [n for n, (_, selection) in enumerate(settled) if not selection.close and selection.look_closely is None]
    waiting.sort(key=lambda number: _long(settled[number][0].program), reverse=True)
    tasks = [functools.partial(_closely_alone, *settled[number]) for number in waiting]
    at_once = tasks if len(tasks) > 1 and are_side_by_side() else []
    if at_once:
        toolchain(settled[0][1].example.target).load()
    left = dict(enumerate(settled))
    with spreading(at_once) as coming:
        for number in sorted(left.keys() - set(waiting)):
            prepared, selection = left.pop(number)
            yield number, selection if selection.close else _closely(prepared, selection)
        for place, (seen, key) in coming:
            del left[waiting[place]]
            _remember(key, seen)
            CacheFolder().lookup(key[0], counted=False)  # what a child keeps, this process has used
            yield waiting[place], seen
    for number, (prepared, selection) in left.items():
        yield number, _closely(prepared, selection)


def _closely(prepared: Prepared, selection: Selection) -> Selection:
    try:
        found = looked_at_closely(selection)
    except WeftError:  # whoever builds it finds the same
        return selection
    _remember(_keep_close(prepared, found), found)
    return found


def _keep_close(prepared: Prepared, found: Selection) -> tuple[str, tuple[Any, ...]]:
    """Keeps what was found for a region when more schedules were looked at; returns under which key this process remembers it."""
    key = _keyed("selection", found.program, named_as(prepared.example, prepared.program, found.program))
    keep(key.parts, _to_keep(found), key.brought)
    return key.remembered


def _to_keep(selection: Selection) -> Selection:
    """Leaves out what is for the tuner alone: it is found anew where it tunes anew."""
    return replace(selection, others=None if selection.others or not selection.close else (), look_closely=None)


def named_as(example: Example, program: TensorProgram, other: TensorProgram) -> Example:
    """Returns the example of `program` for `other`, which differs from it in names alone."""
    if program == other:
        return example
    spaces = zip(program.spaces(), other.spaces(), strict=True)
    inputs = tuple(zip(program.inputs, other.inputs, strict=True))
    return replace(
        example,
        sizes={its.name: example.sizes[own.name] for own, its in spaces},
        innermost={its.name: example.innermost.get(own.name) for own, its in inputs},
        masks={its.name: example.masks[own.name] for own, its in inputs if own.name in example.masks},
        lying={its.name: example.lying[own.name] for own, its in inputs if own.name in example.lying},
    )


def _kept(parts: Mapping[str, str], prepared: Prepared, brought: Sequence[Any]) -> Selection | Refusal | None:
    """Reads what another process chose for the program, or for one that differs in names alone; None where there is nothing."""
    program = prepared.program
    found = recalled(parts, object, brought)
    match found:
        case (Selection() as selection, _) if selection.program == program:
            return replace(selection, program=program)
        case (Selection() as selection, _) if _is_of_form(selection.program, prepared):
            return selection
        case (Refusal() as refusal, _):
            return refusal
        case _:
            return None


def _selected_now(
    key: _Key, program: TensorProgram, example: Example, refused: Mapping[str, str] = _NOT_REFUSED
) -> Selection | Refusal:
    """Chooses for `program` now, and keeps the choice for other processes."""
    with uncollected():
        try:
            found = select(program, example, refused=refused)
        except (UnsupportedError, ScheduleError) as error:
            found = Refusal.of(error)
        keep(key.parts, found if isinstance(found, Refusal) else _to_keep(found), key.brought)
    return found


def select_side_by_side(
    regions: Sequence[Prepared], after: Sequence[Collection[int]], *, doubtful: bool = False
) -> None:
    """Selects for those of `regions`, of different forms, for which nothing was selected before; others may fail and be left.

    Args:
        regions: what is selected for.
        after: for each region the others, by number, each of which refused says that it has no kernels: it is left then.
        doubtful: few of them are expected to be chosen.
    """
    keys = [_key_of(each) for each in regions]
    known = [_known(each, key) for each, key in zip(regions, keys, strict=True)]
    new = [n for n, found in enumerate(known) if found is None]
    # First those that hold no others, which tell of those that do; and what takes longest before what takes less.
    new.sort(key=lambda n: (bool(after[n]), -_long(regions[n].program)))
    # Of a few, each is likely to be looked at closely, which is done at once: the programs are at hand in the child.
    closely = len(new) <= workers() and not doubtful
    with mmap(-1, max(1, len(regions))) as refused:
        for n, found in enumerate(known):
            refused[n] = isinstance(found, Refusal)
        tasks = [
            functools.partial(_selected_unless, refused, n, after[n], regions[n], keys[n], closely=closely) for n in new
        ]
        if tasks:
            toolchain(regions[new[0]].example.target).load()
        made = spread(tasks)
    refusals = {n: found for n, found in enumerate(known) if isinstance(found, Refusal)}
    refusals |= {
        n: each[0]
        for n, each in zip(new, made, strict=True)
        if isinstance(each, tuple) and isinstance(each[0], Refusal)
    }
    for n, found in zip(new, made, strict=True):
        if isinstance(found, int):
            if found in refusals:  # none of this form has kernels: others hold others of the form that was refused
                _remember(keys[n].remembered, refusals[found])
        elif found is not None:
            selection, close = found
            if isinstance(selection, Selection) and close is not None:
                selection = replace(selection, look_closely=lambda close=close: close)
            _remember(keys[n].remembered, selection)
            CacheFolder().lookup(cache_key(keys[n].parts), counted=False)  # what a child keeps, this process has used


def _selected_unless(
    refused: mmap, number: int, after: Collection[int], prepared: Prepared, key: _Key, *, closely: bool
) -> tuple[Selection | Refusal, Selection | None] | int:
    """Chooses in a child as `_selected_alone`; where one of the regions `after` was refused meanwhile, returns its number instead.

    Args:
        refused: a byte for each region, which all children see: 1 where it was refused.
        number: of this region.
    """
    for each in after:
        if refused[each]:
            return each
    found = _selected_alone(prepared, key, closely=closely)
    refused[number] = isinstance(found[0], Refusal)
    return found


def _long(program: TensorProgram) -> int:
    """Orders programs by how long selecting for them takes, roughly: what is begun last should take least."""
    return len(program.nodes) * (1 + sum(isinstance(node, Contraction) for node in program.nodes))


def _selected_alone(prepared: Prepared, key: _Key, *, closely: bool) -> tuple[Selection | Refusal, Selection | None]:
    """Chooses for a region in a child of its own; raises where the parent must do it, since it has something to say.

    Returns:
        the choice, and where it is wanted and can be had, what is found when more schedules are looked at.
    """
    close: Selection | None = None
    with noticed() as defects:
        found = _selected_now(key, prepared.program, prepared.example)
        if closely and isinstance(found, Selection) and not found.close:
            close = looked_at_closely(found)
    if defects:
        raise defects[0]
    return found if isinstance(found, Refusal) else replace(found, look_closely=None), close


def _closely_alone(prepared: Prepared, selection: Selection) -> tuple[Selection, tuple[str, tuple[Any, ...]]]:
    """Looks closely in a child, and keeps what is found, which takes longer than to send it; raises as `_selected_alone`."""
    with noticed() as defects:
        found = looked_at_closely(selection)
    if defects:
        raise defects[0]
    return found, _keep_close(prepared, found)


def form_of(program: TensorProgram, example: Example, forms: Forms | None = None) -> Form:
    """Returns what is equal for programs and examples that differ in names alone: of values, axes and spaces, and users' lines."""
    form, spaces = (forms or Forms()).of(program)
    sizes = tuple(example.sizes[s.name] for s in spaces)
    innermost = tuple(example.innermost.get(n.name) for n in program.inputs)
    masks = tuple(example.masks.get(n.name) for n in program.inputs)
    return form, sizes, innermost, masks, example.threads, example.target


def _is_of_form(program: TensorProgram, prepared: Prepared) -> bool:
    """Tells whether `program` differs from a region's in names alone."""
    own = prepared.program
    if len(program.spaces()) != len(own.spaces()) or len(program.inputs) != len(own.inputs):
        return False
    return form_of(program, named_as(prepared.example, own, program)) == prepared.form
