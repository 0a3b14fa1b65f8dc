"""The first lines of a report: what runs where, how long it is predicted to take, and whether it was found right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weft.errors import Location
from weft.plan import CompiledRegion, Plan, measured_before
from weft.plan.execute.steps import RegionStep
from weft.plan.partition.schemes import Scheme, decode, operators, told
from weft.tensor.program import Opaque

_MOST = 6
"""Regions, and fallbacks, that a summary names one by one."""


def computing(plan: Plan) -> list[CompiledRegion]:
    """Return the regions that have kernels, which a report numbers from 1; the others are only views of memory that is there."""
    return [region for region in plan.regions if region.kernels]


def summary(plan: Plan) -> Iterator[str]:
    """Yield about ten lines on `plan`."""
    count, found = len(plan.kernels), computing(plan)
    regions = f" for {len(found)} regions" if len(found) > 1 else ""
    target = f" on {plan.kernels[0].target}" if plan.kernels else ""
    yield f"{count} {'kernel' if count == 1 else 'kernels'}{regions}{target}; {_left(plan)}"
    for number, region in enumerate(found[:_MOST], 1):
        yield from _region(number, region)
    if len(found) > _MOST:
        yield f"and {len(found) - _MOST} more regions"
    if count:
        predicted = sum(k.cost.predicted_seconds for k in plan.kernels)
        moved = sum(k.cost.bytes_read + k.cost.bytes_written for k in plan.kernels)
        yield f"all kernels: predicted {predicted * 1e3:.3g} ms, {moved:,} bytes moved"
    if plan.scheme:
        yield f"fusion scheme: {plan.scheme}"
    measured = measured_before(plan)
    if measured is not None:
        yield f"measured: {measured}"
    for fallback in plan.fallbacks[:_MOST]:
        yield f"left to PyTorch: {fallback}"
    if len(plan.fallbacks) > _MOST:
        yield f"and {len(plan.fallbacks) - _MOST} more operations"


def _left(plan: Plan) -> str:
    count = len(plan.fallbacks)
    if not count:
        return "nothing is left to PyTorch"
    return f"{count} {'operation is' if count == 1 else 'operations are'} left to PyTorch"


def _region(number: int, region: CompiledRegion) -> Iterator[str]:
    """Say of a region what its lines, kernels and verdict are."""
    lines = _lines(region)
    yield f"region {number}{f' ({lines})' if lines else ''}: {', '.join(k.name for k in region.kernels)}"
    verdicts = list(dict.fromkeys(f"verdict {str(k.verdict).partition(':')[0]}; {k.judged}" for k in region.kernels))
    seconds = sum(k.cost.predicted_seconds for k in region.kernels)
    yield f"  predicted {seconds * 1e3:.3g} ms; {'; '.join(verdicts)}"


def _lines(region: CompiledRegion) -> str:
    """Name the user's lines that a region computes: `layers.py: 12, 14`."""
    found: dict[str, set[int]] = {}
    for place in _locations(region):
        found.setdefault(Path(place.file).name, set()).add(place.line)
    return "; ".join(f"{file}: {', '.join(map(str, sorted(numbers)))}" for file, numbers in found.items())


def _locations(region: CompiledRegion) -> Iterator[Location]:
    for node in region.program.nodes:
        place = getattr(node, "location", None)
        if isinstance(place, Location):
            yield place


def written_lines(plan: Plan) -> list[str]:
    """List the user's lines in order, each with the regions that compute something of it."""
    found: dict[Location, list[int]] = {}
    for number, region in enumerate(computing(plan), 1):
        for place in _locations(region):
            numbers = found.setdefault(place, [])
            if number not in numbers:
                numbers.append(number)
    for fallback in plan.fallbacks:
        if fallback.location is not None:
            found.setdefault(fallback.location, [])
    ordered = sorted(found.items(), key=lambda pair: (pair[0].file, pair[0].line))
    names = {place: ", ".join(f"region {n}" for n in numbers) or "PyTorch" for place, numbers in ordered}
    return [f"{place}  ->  {names[place]}" for place in names]


def scheme_lines(plan: Plan) -> list[str]:
    """Say what the fusion scheme of `plan` is, and list its operators with their bits and the kernels that they are in."""
    assert plan.program is not None
    row = operators(plan.program)
    scheme = Scheme.read(plan.scheme)
    count = len(row)
    idle = [step for step in plan.steps if isinstance(step, RegionStep) and not step.region.kernels]
    views = {name for step in idle for _, name in step.writes}
    found = [
        f'{plan.scheme}: the option scheme="{plan.scheme}" gives the same kernels again, and weft does not choose between others',
        "operators in order; where one kernel ends and the next begins, the first bit changes",
    ]
    for place, kernel in enumerate(decode(scheme, count)):
        bits = "".join(str(word >> (count - 1 - place) & 1) for word in scheme.words)
        where = "made by each kernel that reads it" if kernel is None else f"kernel {kernel + 1}"
        if any(isinstance(node, Opaque) for node in row[place]):
            where = "PyTorch"
        elif any(node.name in views for node in row[place]):
            where = f"{where}, which is not launched: a view of memory that is there"
        found.append(f"{bits}  {told(row, place)}: {where}")
    if scheme.left:
        found.append(f"calls of the graph that are left to PyTorch, by number: {', '.join(map(str, scheme.left))}")
    return found
