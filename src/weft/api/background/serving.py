"""What stands for a graph that another process works on: PyTorch, or what was compiled first, until the answer is here, then what
it says.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from torch import fx

from weft.api.background.ambience import Ambience
from weft.api.background.graphs import TensorForm, forms_of
from weft.api.background.messages import ClassRequest, GraphRequest, Reply, RequestFailure
from weft.api.background.plans import unpacked_plan
from weft.api.background.requests import QUEUE, Pending
from weft.api.known import called_with
from weft.capture import RuntimeNumber
from weft.errors import CacheFolderError, CompilerError, UnsupportedError, WeftError
from weft.options import again
from weft.plan import Plan, Runner, may_compile, nearest, warn
from weft.run import stats
from weft.run.cache import CacheFolder

_numbers = count()
_alive: dict[int, weakref.ref[DeferredGraph]] = {}
_MOST_CLASSES = 256
_ASK_AGAIN = 5.0
"""Seconds after which binaries are asked for again that the other process has made, if calls do not find them."""


@dataclass(eq=False, repr=False)
class DeferredGraph:
    """The callable that stands for a graph.

    Until there is an answer PyTorch runs, or the plan of `first`; then one assignment, of `run`, makes all later calls run what
    was chosen. Sizes of another magnitude run at once, as those of the nearest class do, while the other process finds out what is
    fastest for them.

    Attributes:
        gm: the graph.
        eager: runs it in PyTorch.
        graph: as it is sent to the other process; empty once it is answered.
        arguments: what they look like.
        ambience: settings of the call that asked.
        changing: which arguments are tensors whose sizes change from call to call.
        first: what was compiled in the call that asked, or before, where there is something.
        compiled: runs that where the other process cannot find out what is fastest: on trial, so that a call does.
        run: None until there is an answer.
        owner: the process that asked.
        asked: what the calls of this graph asked for.
    """

    gm: fx.GraphModule
    eager: Runner
    graph: bytes
    arguments: tuple[Any, ...]
    ambience: Ambience
    changing: tuple[int, ...]
    first: Plan | None = None
    compiled: Runner | None = None
    run: Runner | None = None
    owner: int = field(default_factory=os.getpid)
    asked: list[Pending] = field(default_factory=list[Pending])
    _plans: dict[str, Runner] = field(default_factory=dict[str, Runner])
    _classes: dict[tuple[int, ...], Runner] = field(default_factory=dict[tuple[int, ...], Runner])
    _lacked: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.number = next(_numbers)
        if self.first is not None:
            self._plans["weft"] = self.first.run
        on_gpu = any(isinstance(each, TensorForm) and each.device.startswith("cuda") for each in self.arguments)
        self._sent = self.graph if on_gpu else b""
        mine = _alive[self.number] = weakref.ref(self)
        self._lacking = partial(_ask_for_binaries, mine)  # what kernels hold holds no graph
        self._ask()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Runs the graph, and returns its results."""
        run = self.run
        if run is not None:
            return run(*arguments)
        if self.owner != os.getpid():
            self.owner = os.getpid()  # a child of the process that asked: it asks for itself
            self._ask()
        if self.first is not None:
            stats.count("untimed")
            return self.first.run(*arguments)
        stats.count("meanwhile")
        return self.eager(*arguments)

    def _ask(self) -> None:
        mine = weakref.ref(self)

        def request() -> GraphRequest:
            own = mine()
            assert own is not None
            kernels = () if own.first is None else tuple(k.key for k in own.first.kernels)
            return GraphRequest(own.number, own.graph, own.arguments, own.ambience, _numbers_alive(), kernels)

        self._put(request, len(self.graph), lambda own, answer: own._install(answer, own._class_of_example()))  # noqa: SLF001

    def _put(
        self,
        request: Callable[[], GraphRequest | ClassRequest],
        size: int,
        install: Callable[[DeferredGraph, Reply], bool],
    ) -> None:
        """Has the other process asked; nothing waits for this graph that holds it."""
        mine = weakref.ref(self)

        def installed(answer: Reply) -> bool:
            own = mine()
            return own is not None and install(own, answer)

        self.asked[:] = [each for each in self.asked if not each.done.is_set()]
        pending = Pending(request, installed, lambda: mine() is not None, size, is_first=self.run is None)
        self.asked.append(pending)
        QUEUE.put(pending)

    def _class_of_example(self) -> tuple[int, ...]:
        return tuple([math.prod(self.arguments[i].shape).bit_length() for i in self.changing])

    def _install(self, answer: Reply, sizes: tuple[int, ...]) -> bool:
        """Makes calls run what was chosen for the class `sizes`; tells whether the request came to something."""
        if answer.failure is not None and self.first is not None:
            self.graph, self.run = b"", self.compiled  # as if nothing had been asked: calls time what they have
            return False
        run = self._found(answer)
        self._classes[sizes] = run
        if self.run is None:
            steady = self._by_class if self.changing and answer.tried else run
            if answer.conditions and steady != self.eager:
                steady = self._where(answer.conditions, steady)
            self.graph = b""
            self.run = self._telling(answer, steady) if answer.said or answer.failure is not None else steady
        self._record(answer)
        return answer.failure is None

    def _record(self, answer: Reply) -> None:
        """Looks up what the other process took from the cache and put there, so that PyTorch's artifacts of this one have it."""
        with suppress(CacheFolderError), again(self.ambience.options):  # it serves all the same
            folder = CacheFolder()
            for key in answer.entries:
                folder.lookup(key, counted=False)

    def _found(self, answer: Reply) -> Runner:
        with again(self.ambience.options):
            for name, data in answer.plans.items():
                self._plans[name] = unpacked_plan(data, self.gm, self.eager, self._lacking).run
        if answer.known is not None:
            number, places = answer.known
            other = _alive[number]()
            if other is None:
                raise LookupError("the graph whose kernels serve for this one is gone")
            return called_with(other, places)
        return self.eager if answer.choice is None else self._plans.get(answer.choice, self.eager)

    def _where(self, conditions: Sequence[RuntimeNumber], steady: Runner) -> Runner:
        """Runs PyTorch for calls whose sizes do not meet the conditions."""

        def call(*arguments: Any) -> Sequence[Any]:
            run = steady if all(each.value(arguments) for each in conditions) else self.eager
            return run(*arguments)

        return call

    def _telling(self, answer: Reply, steady: Runner) -> Runner:
        """Gives warnings at the next call, in the user's own thread."""
        lock = threading.Lock()

        def call(*arguments: Any) -> Sequence[Any]:
            first, self.run = lock.acquire(blocking=False), steady
            if first:
                for each in answer.said:
                    warnings.warn_explicit(each.message, each.category, each.file, each.line)
                if answer.failure is not None:
                    warn("this graph", _error(answer.failure))
            return steady(*arguments)

        return call

    def _by_class(self, *arguments: Any) -> Sequence[Any]:
        """Runs what is fastest for sizes of this magnitude, or is for others as long as that is not known."""
        sizes = tuple([arguments[i].numel().bit_length() for i in self.changing])
        run = self._classes.get(sizes)
        if run is None:
            run = nearest(self._classes, sizes) or self.eager
            if may_compile() and len(self._classes) < _MOST_CLASSES and self._classes.setdefault(sizes, run) is run:
                self._ask_for_class(sizes, arguments)
        return run(*arguments)

    def ask_for_binaries(self, arguments: Sequence[Any], lacking: str) -> None:
        """Asks once for the binaries that calls like this one lack, of which `lacking` is one; PyTorch runs them meanwhile."""
        stats.count("meanwhile")
        asked = time.monotonic() < self._lacked.get(lacking, -math.inf)
        if asked or len(self._lacked) > _MOST_CLASSES or not may_compile():
            return
        self._lacked[lacking] = math.inf
        request = ClassRequest(self.number, forms_of(arguments), Ambience.here(self.ambience.options))
        self._put(lambda: request, 0, lambda own, answer: own._built(answer, lacking, request))  # noqa: SLF001

    def _built(self, answer: Reply, lacking: str, request: ClassRequest | None) -> bool:
        """Takes note that binaries are in the cache, where kernels find them; where they cannot be made, PyTorch runs such calls
        for good. The process that had the graph may have ended: another one is sent it.
        """
        if answer.failure is None:
            self._found(answer)  # there may be a plan that was not sent before
            self._record(answer)
            self._lacked[lacking] = time.monotonic() + _ASK_AGAIN if answer.built else math.inf
        elif request is not None:
            sent = self.number, self._sent, request.arguments, request.ambience
            anew = GraphRequest(*sent, _numbers_alive())
            self._put(lambda: anew, len(self._sent), lambda own, answer: own._built(answer, lacking, None))  # noqa: SLF001
        return answer.failure is None

    def _ask_for_class(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> None:
        request = ClassRequest(self.number, forms_of(arguments), Ambience.here(self.ambience.options))
        self._put(lambda: request, 0, lambda own, answer: own._measured(answer, sizes))  # noqa: SLF001

    def _measured(self, answer: Reply, sizes: tuple[int, ...]) -> bool:
        """Makes calls of this class run what was found to be fastest; where nothing was found, what ran goes on."""
        if answer.failure is not None:
            return False
        self._classes[sizes] = self._found(answer)
        self._record(answer)
        return True


def _ask_for_binaries(graph: weakref.ref[DeferredGraph], arguments: Sequence[Any], lacking: str) -> None:
    own = graph()
    if own is not None:
        own.ask_for_binaries(arguments, lacking)


def _numbers_alive() -> frozenset[int]:
    """Returns the graphs that may still be called, and forgets the others."""
    found = tuple(_alive.items())  # at once: other threads add to it
    for number, each in found:
        if each() is None:
            _alive.pop(number, None)
    return frozenset(_alive)


def _error(failure: RequestFailure) -> WeftError:
    """Make the error to warn of: of the line that the failure is about, or else of the machine, which is said once."""
    kind = CompilerError if failure.where is None else UnsupportedError
    todo = 'nothing: PyTorch runs it, and the next process compiles it; or set compile="blocking" to see what fails'
    return kind(f"compiling in the background failed: {failure.what}", where=failure.where, todo=failure.todo or todo)
