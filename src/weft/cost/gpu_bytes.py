"""The bytes that one launch on a GPU moves between the device's memory and its second-level cache.

What is read for the first time comes from memory, in sectors of 32 bytes. What is read again comes from the cache if the cache
has room for all that is read and written in between: within a thread block, if all that run at once go over so much until then;
from thread block to thread block, if those whose numbers lie in between do. What thread blocks that run at once share is read
once. Each element that is written goes to memory once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from weft.block.ranges import Part
from weft.cost.gpu_regions import LoadedItem, LoopWork, ThreadBlockWork
from weft.cost.load_places import PartOfList
from weft.cost.traffic import Traffic
from weft.tensor.axes import Axis


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """What a launch moves.

    Attributes:
        reads: bytes that are read of each list, by name.
        written: bytes that are written.
    """

    reads: Mapping[str, int]
    written: int

    @property
    def read(self) -> int:
        """Bytes that are read."""
        return sum(self.reads.values())

    @property
    def total(self) -> int:
        """Bytes that are moved."""
        return self.read + self.written


def first_bytes(counted: Traffic) -> DeviceBytes:
    """Count what a launch moves if the cache has room for all of it: each element once. No schedule moves less."""
    reads = {name: min(counted.lists[name], size) for name, size in counted.loaded.items() if name in counted.shared}
    return DeviceBytes(reads, sum(size for name, size in counted.stored.items() if name in counted.shared))


def device_bytes(work: ThreadBlockWork, counted: Traffic, cache_bytes: float, running: int) -> DeviceBytes:
    """Predict what a launch moves between memory and the second-level cache, which is empty before it.

    Args:
        work: what a thread block does.
        counted: of the same launch.
        cache_bytes: of the second-level cache.
        running: thread blocks that run at once, at most.
    """
    first = first_bytes(counted)
    if sum(counted.lists[name] for name in first.reads) + first.written <= cache_bytes:
        return first
    walk = _Walk(work, counted, cache_bytes, min(running, work.thread_blocks), first.written)
    return DeviceBytes({name: walk.read(name, size) for name, size in first.reads.items()}, first.written)


def moved_bytes(work: ThreadBlockWork, counted: Traffic) -> tuple[dict[str, int], dict[str, float]]:
    """Count the bytes that thread blocks ask for, by list, and which share of their blocks' lanes these are.

    What is masked is not moved, and what no loop moves is loaded before it, once.
    """
    padded: defaultdict[str, int] = defaultdict(int)
    for region in work.body.all():
        for load in region.loads:
            padded[load.name] += int(load.bytes * region.runs * work.thread_blocks)
    moved = {name: min(size, counted.loaded.get(name, size)) for name, size in padded.items()}
    return moved, {name: size / max(1, padded[name]) for name, size in moved.items()}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A load of a thread block, in the region at the end of `path`, which begins with the thread block's own.

    Attributes:
        bytes: that one thread block asks for, in all.
    """

    item: LoadedItem
    path: tuple[LoopWork, ...]
    bytes: float

    @property
    def axes(self) -> Mapping[Axis, int]:
        return dict(self.item.at)

    def again(self, inside: int = 0) -> float:
        """Count how often it loads the same in loops of its path from number `inside` on."""
        axes = self.axes
        return prod(_count(loop) for loop in self.path[inside:] if loop.axis is not None and loop.axis not in axes)


class _Walk:
    """A launch, and how far apart it reads the same."""

    def __init__(self, work: ThreadBlockWork, counted: Traffic, cache_bytes: float, running: int, written: int) -> None:
        _, shares = moved_bytes(work, counted)
        self.lists, self.grid, self.cache_bytes = counted.lists, work.grid, cache_bytes
        self.running, self.writes = running, written / work.thread_blocks
        self.loads = [
            _Loaded(load, path, load.bytes * path[-1].runs * shares[load.name])
            for path in _paths((work.body,))
            if path[-1].runs
            for load in path[-1].loads
        ]
        self.thread_blocks = work.thread_blocks

    def read(self, name: str, once: int) -> int:
        """Count the bytes of a list that come from memory: at least `once`."""
        size = self.lists[name]
        loads = [load for load in self.loads if load.item.name == name]
        found = [(load, self.thread_blocks * load.bytes / self.kept(load)) for load in loads]
        sweeps = self.fits(self.touched(self.loads, self.running))
        plain, sectors = (
            _together(
                [(load, count * spread) for (load, count), spread in zip(found, spreads, strict=True)], sweeps=sweeps
            )
            for spreads in ([1.0] * len(found), [load.item.spread for load in loads])
        )
        # Neighbours of what is read lie in the same sectors, and are read at nearly the same time.
        wanted = max(plain, min(sectors, size))
        return round(max(wanted, once))

    def kept(self, load: _Loaded) -> float:
        """Return by which factor the cache makes what is read of memory less than what is loaded."""
        found, axes = 1.0, load.axes
        for number, loop in enumerate(load.path):
            if loop.axis is not None and loop.axis not in axes and self.fits(self.in_iteration(loop, number)):
                found *= _count(loop)
        inner = 1
        for axis, count in reversed(self.grid):
            same = min(axes.get(axis, count), count)
            if same > 1:
                fits = self.fits(self.touched(self.loads, max(inner, self.running)))
                found *= same if fits else min(same, max(1.0, self.running / inner))
            inner *= count
        return found

    def fits(self, size: float) -> bool:
        return size <= self.cache_bytes

    def in_iteration(self, loop: LoopWork, number: int) -> float:
        """Count the bytes that all running thread blocks touch in one iteration of `loop`, at that depth of its loads' paths."""
        inside = [load for load in self.loads if len(load.path) > number and load.path[number] is loop]
        return self.touched(inside, self.running, loop, number + 1)

    def touched(self, loads: Sequence[_Loaded], blocks: int, loop: LoopWork | None = None, inside: int = 0) -> float:
        """Count the bytes, each once, that thread blocks in a row touch: all of each, or one iteration of a loop."""
        runs = 1.0 if loop is None else loop.runs
        by_list: defaultdict[str, list[tuple[_Loaded, float]]] = defaultdict(list)
        for load in loads:
            size = load.bytes / runs / load.again(inside) * self.different(load, blocks)
            by_list[load.item.name].append((load, size))
        read = sum(min(self.lists[name], _together(each, sweeps=True)) for name, each in by_list.items())
        return read + (self.writes * blocks if loop is None else 0.0)

    def different(self, load: _Loaded, blocks: int) -> float:
        """Count how many of so many thread blocks in a row load something different."""
        found, inner, axes = 1.0, 1, load.axes
        for axis, count in reversed(self.grid):
            if axis in axes:
                found *= max(1.0, min(count, blocks / inner) / axes[axis])
            inner *= count
        return found


def _count(loop: LoopWork) -> float:
    """Count the iterations of a loop, each time that a thread block gets to it."""
    return max(1.0, loop.runs / max(1.0, loop.entries))


def _paths(path: tuple[LoopWork, ...]) -> list[tuple[LoopWork, ...]]:
    """List the regions inside the last of `path`, itself included, each with all those around it."""
    return [path, *(found for inner in path[-1].inner for found in _paths((*path, inner)))]


def _together(found: Sequence[tuple[_Loaded, float]], *, sweeps: bool) -> float:
    """Add up what loads of one list read; those that read the same, one after the other, count once if `sweeps`.

    Loops over different parts of a range read different elements.
    """
    same: defaultdict[tuple[PartOfList, Part], list[float]] = defaultdict(list)
    for load, size in found:
        same[load.item.reads, load.path[-1].part].append(size)
    return sum(max(sizes) if sweeps else sum(sizes) for sizes in same.values())
