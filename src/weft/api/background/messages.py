"""What this process and the one that compiles say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weft.errors import Location, UnsupportedError, WeftError
from weft.run.stats import Counter, Stats

if TYPE_CHECKING:
    from weft.api.background.ambience import Ambience
    from weft.capture import ArgumentPlace, RuntimeNumber
    from weft.plan.measure.measured import Choice


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """Asks for kernels for a graph.

    Attributes:
        number: of the graph.
        graph: as `packed_graph` wrote it.
        arguments: as `forms_of` describes them.
        ambience: settings of the call.
        alive: the graphs that may still be called, by number.
        kernels: keys of those that the process that asks has made for the graph, and runs until it knows what is fastest;
            empty where PyTorch runs it.
    """

    number: int
    graph: bytes = field(repr=False)
    arguments: tuple[Any, ...]
    ambience: Ambience = field(repr=False)
    alive: frozenset[int] = frozenset()
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassRequest:
    """Asks what is fastest for arguments of another size class; attributes as of `GraphRequest`."""

    number: int
    arguments: tuple[Any, ...]
    ambience: Ambience = field(repr=False)


Request: TypeAlias = GraphRequest | ClassRequest


@dataclass(frozen=True, slots=True)
class Said:
    """A warning to be given in the other process."""

    category: type[Warning]
    message: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request came to nothing.

    Attributes:
        what: in words, with the compiler's output where there is some.
        where: the user's line that it is about; None where it is about none, or that is not known.
        todo: what to do; empty where there is nothing better to say than that PyTorch runs the graph.
    """

    what: str
    where: Location | str | None = None
    todo: str = ""

    @staticmethod
    def of(error: Exception) -> RequestFailure:
        """Describe an error that was raised in the background, where none of the user's code is on the stack."""
        if not isinstance(error, WeftError):
            return RequestFailure(f"{type(error).__name__}: {error}")
        what = "\n".join([f"{type(error).__name__}: {error.what}", *error.details()])
        where = None if isinstance(error.where, Location) and not error.where.code else error.where  # of `python -c`
        return RequestFailure(what, where, "" if error.todo == UnsupportedError.advice else error.todo)


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        choice: which of `plans`, now or earlier, runs; None where nothing does, so that PyTorch does.
        tried: whether the choice was made by timing, so that for other sizes another one may be right.
        plans: those that were not sent before, as `packed_plan` wrote them.
        known: another graph, by number, that serves for this one, and where the arguments that it takes are among this one's.
        conditions: what must be true of a call's sizes, beside what PyTorch checks; PyTorch runs other calls.
        built: whether a call like the one that was asked about has all binaries that it needs, in the cache.
        failure: why it came to nothing; the user is told.
        said: warnings.
        counted: what was counted meanwhile, for `weft.stats()`.
        entries: keys of the cache entries that were used or written since the last reply.
        is_last: whether the process ends now, since it has taken much memory; another one is to be started.
    """

    choice: Choice | None = None
    tried: bool = False
    plans: Mapping[Literal["weft", "library"], bytes] = field(
        default_factory=dict[Literal["weft", "library"], bytes], repr=False
    )
    known: tuple[int, tuple[ArgumentPlace, ...]] | None = None
    conditions: tuple[RuntimeNumber, ...] = ()
    built: bool = True
    failure: RequestFailure | None = None
    said: tuple[Said, ...] = ()
    counted: Mapping[Counter, int] = field(default_factory=dict[Counter, int])
    entries: tuple[str, ...] = ()
    is_last: bool = False


def difference(before: Stats, after: Stats) -> dict[Counter, int]:
    """Return what was counted between two moments."""
    names: list[Any] = [each.name for each in fields(Stats)]
    return {name: now - then for name in names if (now := getattr(after, name)) != (then := getattr(before, name))}
