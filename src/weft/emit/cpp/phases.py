"""In what order one level of a nest does its works: how many inner loops, and what each holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.emit.cpp.plan import Work, reads, users
from weft.emit.cpp.values import Lazy
from weft.tensor.axes import Axis


@dataclass(slots=True)
class Phases:
    """The works of one level by time: inner loop number t, from 1, then the statements of time t; stores come last.

    Attributes:
        buffered: values of an inner loop that a later one reads, with the axes inside this level that they have.
    """

    depth: int
    works: Sequence[Work]
    time: dict[Work, int] = field(default_factory=dict[Work, int])
    buffered: dict[Lazy, tuple[Axis, ...]] = field(default_factory=dict[Lazy, "tuple[Axis, ...]"])

    @property
    def last(self) -> int:
        """The last time."""
        return max(self.time.values(), default=0)

    @property
    def stores(self) -> list[Work]:
        """The stores of this level itself."""
        return [w for w in self.works if w.store is not None and not self._inside(w)]

    def statements(self, time: int) -> list[Work]:
        """Lists the work that this level itself computes at `time`."""
        return [w for w in self.works if w.lazy is not None and not self._inside(w) and self.time[w] == time]

    def loop(self, time: int) -> list[Work]:
        """Lists the work of the inner loop number `time`."""
        return [w for w in self.works if self._inside(w) and self.time[w] == time]

    def _inside(self, work: Work) -> bool:
        return len(work.order) > self.depth


def phases(works: Sequence[Work], depth: int) -> Phases:
    """Finds times for `works`, the body of loop number `depth`.

    A value is computed in the inner loop that reads it; where several do, in the first of them, and the others read a buffer.
    The result of a reduction over an inner loop is there only after that loop.
    """
    found = Phases(depth, works)
    time = found.time
    made = {w.lazy: w for w in works if w.lazy is not None}
    inside = {w: len(w.order) > depth for w in works}
    for work in works:
        time[work] = 1 if inside[work] else 0
        for value in work.reads:
            source = made.get(value) if isinstance(value, Lazy) else None
            if source is not None:
                after = inside[work] and len(_result(source)) <= depth
                time[work] = max(time[work], time[source] + (1 if after else 0))
    for work in works:
        if work.store is not None and inside[work]:
            target = work.store.target
            time[work] = max([time[work], *(time[w] for w in works if inside[w] and reads(w, target))])
    readers = users(works)
    for work in reversed(works):
        lazy = work.lazy
        if lazy is None or len(_result(work)) <= depth:
            continue
        times = {time[u] for u in readers.get(lazy, [])}
        if lazy.over is None and times:
            time[work] = min(times)
        if times - {time[work]}:
            found.buffered[lazy] = _result(work)[depth:]
    return found


def _result(work: Work) -> tuple[Axis, ...]:
    """Returns the axes of what `work` computes."""
    return tuple(a for a in work.order if a != work.collapsed)
