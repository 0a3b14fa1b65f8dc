"""The example that a region is compiled for, its candidates, and the one that was selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from weft.block.program import BlockProgram
from weft.block.room import Room, room_of
from weft.block.walk import maps
from weft.cascade import Approximation
from weft.cost import Cost
from weft.errors import Location, ScheduleError, UnsupportedError
from weft.masks import Sparsity
from weft.plan.targets.compiled import Considered
from weft.plan.targets.lying import Lying, dense
from weft.plan.targets.matmuls import off_the_grid
from weft.schedule import Schedule, kernels
from weft.target import CPU, Target
from weft.tensor.passes import Step
from weft.tensor.program import TensorProgram

_LONG = 128
_SLACK = 16


def magnitude(size: int) -> int:
    """Returns the class of a size, for what is chosen: the power of two that it fits into; -1 of 0.

    A long one may be a sixteenth longer. Lengths that grow begin at powers of two: after a prompt of 4096 words there are 4097.
    """
    if not size:
        return -1
    slack = size // _SLACK if size >= _LONG else 0
    return (size - 1 - slack).bit_length()


def rooms(applied: BlockProgram, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns for each space, by name, that blocks of a program with places have room for as a whole, the power of two that it fits
    into. Of a size that needs more room, another program may be the better one, and this one may not fit.
    """
    placed = [node for node in maps(applied.graph) if node.place is not None]
    every = {node.axis: node for node in placed}
    names = {room.space.name for node in placed if isinstance(room := room_of(node, every), Room)}
    return {name: (sizes[name] - 1).bit_length() for name in names & sizes.keys()}


@dataclass(frozen=True, slots=True)
class Example:
    """What is known of the tensors that a region will be called with.

    Attributes:
        sizes: by space name; only their magnitude is used.
        innermost: for each input, its dimension of stride 1 at the example, if any.
        threads: of the grid, on a CPU.
        target: where the kernels run.
        masks: the classes of inputs that are masks, by name, where the example's elements are at hand.
        lying: how inputs lie in memory, by name; others are dense, with the dimension of `innermost` their last. It chooses
            nothing, and says which binaries of what is chosen the example's call needs.
    """

    sizes: Mapping[str, int]
    innermost: Mapping[str, int | None]
    threads: int
    target: Target = CPU
    masks: Mapping[str, Sparsity] = field(default_factory=dict[str, Sparsity])
    lying: Mapping[str, Lying] = field(default_factory=dict[str, Lying])

    def lies(self, name: str, shape: Sequence[int]) -> Lying:
        """Tells how an input of this shape lies."""
        return self.lying.get(name) or Lying(dense(shape, self.innermost.get(name)))

    @property
    def kind(self) -> str:
        """The example's class as text: magnitudes of sizes, and the rest. What is chosen for one example serves all of a class."""
        magnitudes = {name: magnitude(size) for name, size in self.sizes.items()}
        layouts = sorted(self.innermost.items())
        masks = (
            f", masks {sorted((name, each.true, each.false) for name, each in self.masks.items())}"
            if self.masks
            else ""
        )
        return f"sizes of about 2**{sorted(magnitudes.items())}, innermost {layouts}, threads {self.threads}{masks}"


@dataclass(frozen=True, slots=True)
class Way:
    """A fused program with places.

    Attributes:
        schedule, applied: what was chosen, and the program with it.
        cost: of all its kernels, at the example's sizes.
    """

    schedule: Schedule
    applied: BlockProgram
    cost: Cost


class Ways(Protocol):
    """The ways of one fused program at an example."""

    def few(self) -> list[Way]:
        """Schedule the program in a few ways.

        Raises:
            UnsupportedError, ScheduleError: there is none.
        """
        ...

    def many(self) -> list[Way]:
        """Schedule it in many ways, for a tuner to time; raises as `few`."""
        ...

    def given(self, schedule: Schedule) -> Way:
        """Schedule it in a given way; raises as `few`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A way to compute a region.

    Attributes:
        origin: where it comes from, for the report.
        fused: its block program, numerically safe, without places.
        trace: the rewrites that led there.
        schedule, applied: its schedule, and the program with places.
        cost: of all its kernels at the example's sizes.
        approximation: what a field can check of it, where it rounds at running scales; None where it is the program itself.
    """

    origin: str
    fused: BlockProgram
    trace: tuple[Step, ...]
    schedule: Schedule
    applied: BlockProgram
    cost: Cost
    approximation: Approximation | None = None

    @property
    def name(self) -> str:
        """Tell it from others of its region: by where it comes from, and its schedule."""
        return f"{self.origin}: {self.schedule}".replace("\n", "; ")

    @property
    def off_the_grid(self) -> bool:
        """Tell whether one thread does all of a launch that has a matmul."""
        return off_the_grid(self.applied)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a region has no candidate: what `select` raised, `kind` by name."""

    kind: Literal["UnsupportedError", "ScheduleError"]
    what: str
    where: Location | str | None
    todo: str

    @staticmethod
    def of(error: UnsupportedError | ScheduleError) -> Refusal:
        """Keep what `error` says."""
        kind = "ScheduleError" if isinstance(error, ScheduleError) else "UnsupportedError"
        return Refusal(kind, error.what, error.where, error.todo)

    def error(self) -> UnsupportedError | ScheduleError:
        """Make an error that says the same."""
        kind = ScheduleError if self.kind == "ScheduleError" else UnsupportedError
        found = kind(self.what, where=self.where, todo=self.todo)
        found.where = self.where  # None is no line, not that of whoever asks
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """The candidate of a region that was the fastest so far, and the seconds that it took."""

    candidate: Candidate
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The candidate to build, of a region `program` at `example`.

    `written` is the one that keeps every rounding, where that is another: it is built where no field can check the chosen one.
    `others` are more for the target's tuner to time, the likeliest first; None where they are not known, or were not kept.
    `launch_seconds` is what one launch is predicted to take beyond its work.
    `close`: more schedules of the likeliest programs were looked at, where the target times them. Until then `chosen` is the best
    of a few, which is enough to cut a graph by, and `look_closely` looks at them; None where the selection was not made just now.
    `measured_seconds`: what `chosen` was measured to take where the target is; None where it was not timed.
    `settled`: whether another process would choose the same; not where something kept this one from timing all that it should.
    """

    program: TensorProgram
    example: Example
    chosen: Candidate
    considered: tuple[Considered, ...]
    written: Candidate | None = None
    others: tuple[Candidate, ...] | None = ()
    launch_seconds: float = 0.0
    close: bool = True
    look_closely: Callable[[], Selection] | None = field(default=None, compare=False, repr=False)
    measured_seconds: float | None = None
    settled: bool = True

    @property
    def work_seconds(self) -> float:
        """Predicted seconds without the cost of launches, which differs most from machine to machine."""
        return self.chosen.cost.predicted_seconds - len(kernels(self.chosen.applied)) * self.launch_seconds
