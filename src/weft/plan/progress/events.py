"""Events of compiling a graph, in the order in which things are done, and who hears of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class PieceWeighed:
    """Kernels were predicted for a piece of the graph; which pieces become regions is decided when enough were weighed."""


@dataclass(frozen=True, slots=True)
class RegionStarted:
    """Kernels of region `number`, from 1, `of` so many are built now."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class CandidateBuilt:
    """The kernels of the candidate called `name` are compiled, or found compiled; they are predicted to take so many seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CandidateTimed:
    """A candidate for the region was measured to take so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RegionDone:
    """The kernels of region `number`, from 1, `of` so many are chosen, or PyTorch runs it."""

    number: int
    of: int


ProgressEvent: TypeAlias = PieceWeighed | RegionStarted | CandidateBuilt | CandidateTimed | RegionDone
ProgressObserver: TypeAlias = Callable[[ProgressEvent], None]

_OBSERVER: ContextVar[ProgressObserver | None] = ContextVar("weft_progress", default=None)


def observer() -> ProgressObserver | None:
    """Return who hears of events here; a thread that is begun here asks for it before."""
    return _OBSERVER.get()


def tell(event: ProgressEvent) -> None:
    """Hand `event` to whoever follows here."""
    found = observer()
    if found is not None:
        found(event)


@contextmanager
def following(own: ProgressObserver) -> Generator[None]:
    """Hand all events to `own` meanwhile; it must be quick, and may be called from several threads."""
    token = _OBSERVER.set(own)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
