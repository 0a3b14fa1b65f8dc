"""What a tuning chose, as it is kept in the cache: under which keys, and read again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.cost import estimate_gpu, gpu, total
from weft.options import current
from weft.plan.targets.candidates import Candidate, Example, Selection, rooms
from weft.plan.targets.compiled import Considered
from weft.plan.targets.kept import parts_of, recalled
from weft.plan.targets.packed import unplaced
from weft.plan.targets.triton.build import tf32_allowed
from weft.run.cache import Json
from weft.run.gpu.build import gpu_parts


def keys(selection: Selection, device: torch.device) -> tuple[dict[str, str], dict[str, str], tuple[Any, ...]]:
    """Returns the parts of the keys under which the fastest candidate is kept, of a whole tuning and of one that was cut short,
    and what a reader of the entry brings.
    """
    options, example = current(), selection.example
    plain, brought = unplaced(selection.program)
    tuning = {"tuned": options.effort, "gpu": torch.cuda.get_device_name(device), "tf32": str(tf32_allowed())}
    tuning |= {"judged": str(options.judge != "off")}
    parts = parts_of("schedule", plain, example, gpu_parts(example.target), gpu(example.target).machine()) | tuning
    return parts, parts | {"tune seconds": str(options.tune_seconds)}, brought


def tuned_before(selection: Selection, places: Sequence[Mapping[str, str]], brought: Sequence[Any]) -> Selection | None:
    """Returns `selection` with what a tuning chose that was kept in the first of these places that has one; None where none has."""
    example = selection.example
    known = next((found for parts in places if (found := recalled(parts, Candidate, brought)) is not None), None)
    considered = None if known is None else _considered(known[1])
    if known is None or considered is None:
        return None
    # At these sizes, not at those of then.
    own = known[0]
    if known[1].get("rooms") != rooms_at(own, example):
        return None
    costs = estimate_gpu(own.applied, example.sizes, example.target, own.schedule, example.innermost, example.masks)
    chosen = replace(own, cost=total(costs))
    seconds = measured_seconds(str(known[1].get("chosen", "")), considered)
    return replace(
        selection,
        chosen=chosen,
        others=(),
        considered=(*selection.considered, *considered),
        measured_seconds=seconds,
    )


def rooms_at(candidate: Candidate, example: Example) -> str:
    """Writes the room that blocks of a candidate have for whole spaces, at the example: for what the choice was made."""
    return str(sorted(rooms(candidate.applied, example.sizes).items()))


def measured_seconds(name: str, considered: Iterable[Considered]) -> float | None:
    """Finds what the candidate of this name was measured to take."""
    return next((each.seconds for each in considered if each.origin == name), None)


def _considered(meta: Mapping[str, Json]) -> list[Considered] | None:
    """Reads what was measured, as it was said beside the choice; None where it is something else."""
    lines = meta.get("considered")
    if not isinstance(lines, list):
        return None
    considered: list[Considered] = []
    for line in lines:
        match line:
            case [str() as origin, (float() | None) as seconds, str() as reason]:
                considered.append(Considered(origin, seconds, reason))
            case _:
                return None
    return considered
