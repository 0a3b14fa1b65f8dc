"""The process that compiles for another one: graphs come in, plans go out, one after the other, at a low priority.

It ends when the other process does: a thread watches the pipe, and who the parent is.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import select
import signal
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from weft.api.backend import compile_graph, in_pytorch, keep_plan, planned_before
from weft.api.background.graphs import Received, TensorForm, tensors_of, unpacked_graph
from weft.api.background.messages import ClassRequest, GraphRequest, Reply, Request, RequestFailure, Said, difference
from weft.api.background.plans import packed_plan
from weft.api.kept_plans import KeptGraph
from weft.api.known import remember, served
from weft.api.losses import say_what_is_lost
from weft.api.net import say
from weft.capture import Captured, capture
from weft.defects import noticed
from weft.errors import UnsupportedError, WrongKernelError
from weft.plan import Plan, Runner, Trial, changing_sizes, faster, gpu_of, home
from weft.plan.execute.instead import heard
from weft.plan.measure.measured import Choice
from weft.plan.targets import toolchain
from weft.run import artifacts, stats
from weft.run.build import end_compilers
from weft.run.compiler import stop_compilers

_MISSING = (
    re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'"),
    re.compile(r"The underlying op of '(\w+\.\w+)' has no overload name '(\w+)'"),
)
"""What PyTorch says of an operator that no library has registered, and of an overload."""
_CUDA: Any = torch.cuda  # not fully known to type checkers
_LENGTH = 8
_MOST_GRAPHS = 64
"""Graphs that are kept to be timed for other sizes."""
_MOST_BYTES = 3 << 30
"""Bytes of memory after which the process ends, to be started anew for the next request."""
_MOST_OF_ARGUMENTS = 2 << 30
"""Bytes of arguments, whose elements are made here, up to which kernels are timed; and at most a quarter of the free memory."""
_END_SECONDS = 2.0


@dataclass(eq=False)
class _Graph:
    """A graph that was compiled here.

    Attributes:
        received: it.
        plan: what was made of it.
        eager: runs it in PyTorch.
        run: runs it in weft, on trial or not.
        sent: the names of the plans that the other process has.
    """

    received: Received
    plan: Plan
    eager: Runner
    run: Runner
    sent: set[str] = field(default_factory=set[str])

    def answer(self, arguments: Sequence[Any]) -> Reply:
        """Choose for arguments of one size class."""
        choice, built = self._choice(arguments), False
        plans: dict[Any, bytes] = {}
        if choice in ("weft", "library"):
            made = self.run.library if choice == "library" and isinstance(self.run, Trial) else self.plan
            assert made is not None
            built = _build_for(made, arguments)
            if choice not in self.sent:
                plans[choice] = packed_plan(made, self.received.gm, whole=self.received.whole)
                self.sent.add(choice)
        return Reply(None if choice == "PyTorch" else choice, isinstance(self.run, Trial), plans, built=built)

    def _choice(self, arguments: Sequence[Any]) -> Choice:
        if self.run is self.eager:
            return "PyTorch"
        if not isinstance(self.run, Trial) or not _fits(arguments):
            return "weft"
        with torch.no_grad():
            _fill(arguments)
            try:
                self.eager(*arguments)
            except Exception:  # noqa: BLE001 - what it needs of its arguments' content is not known here
                return "weft"
            try:
                chosen = self.run.choose(arguments).run
            except WrongKernelError as error:
                say(self.received.gm, arguments, error)
                return "PyTorch"
        return "PyTorch" if chosen is self.eager else "weft" if chosen is self.plan.run else "library"


def _build_for(made: Plan, arguments: Sequence[Any]) -> bool:
    """Have all binaries built that such a call needs, where that depends on the call: by making it. Tells whether it ran."""
    if gpu_of(arguments) is None:
        return True
    with torch.no_grad(), heard() as refused:
        _fill(arguments)
        try:
            made.run(*arguments)
        except Exception as error:  # on random numbers: what fails here may go there
            if _has_lost_the_gpu(error):
                raise
            return False
    return not refused


def _has_lost_the_gpu(error: Exception) -> bool:
    """Tell whether nothing more runs on the GPU in this process: an earlier kernel has failed."""
    return (
        isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError) and "CUDA error" in str(error)
    )


def _fits(arguments: Sequence[Any]) -> bool:
    """Tell whether there is memory to time kernels with these arguments; on a GPU they are there already."""
    if gpu_of(arguments) is not None:
        return True
    size = sum(a.numel() * a.element_size() for a in arguments if isinstance(a, torch.Tensor))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return size <= min(_MOST_OF_ARGUMENTS, free // 4)


@contextmanager
def _on_gpu(forms: Sequence[Any]) -> Generator[None]:
    """Work on the GPU of these arguments, if one has them, with half of its free memory at most, and give that back afterwards."""
    devices = (torch.device(each.device) for each in forms if isinstance(each, TensorForm))
    device = next((each for each in devices if each.type == "cuda"), None)
    if device is None:
        yield
        return
    from weft.run.gpu import exact_binaries  # where there is no GPU, none of it is imported

    with exact_binaries(), _CUDA.device(device):
        free, total = _CUDA.mem_get_info()
        _CUDA.set_per_process_memory_fraction((_CUDA.memory_reserved() + free // 2) / total)
        try:
            yield
        finally:
            _CUDA.empty_cache()


def _fill(arguments: Sequence[Any]) -> None:
    """Write elements: small ones about 0 into matrices, others about 1; 0 for integers, which are indices into anything."""
    for number, each in enumerate(arguments):
        if not isinstance(each, torch.Tensor) or not each.numel():
            continue
        if each.dtype.is_floating_point:
            generator = torch.Generator(each.device).manual_seed(number)
            drawn = torch.randn(each.shape, generator=generator, device=each.device)
            each.copy_(drawn * each.shape[-1] ** -0.5 if each.ndim > 1 else 1.0 + 0.1 * drawn)
        elif each.dtype is torch.bool:
            each.fill_(True)
        elif each.is_complex():
            each.fill_(1.0)
        else:
            each.zero_()


class Server:
    """Answers requests."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[int, _Graph] = OrderedDict()

    def answer(self, request: Request) -> Reply:
        """Reply a request; whatever fails is said in the answer."""
        before, used = stats.snapshot(), len(artifacts.recorded())
        failure, answer, lost = None, Reply(), False
        with request.ambience.in_force(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with _on_gpu(request.arguments):
                    match request:
                        case GraphRequest():
                            answer = self._compiled(request)
                        case ClassRequest():
                            answer = self._measured(request)
            except Exception as error:  # noqa: BLE001 - whatever fails, PyTorch runs there, and it is said there
                failure, lost = RequestFailure.of(error), _has_lost_the_gpu(error)
        if failure is not None and _CUDA.is_initialized():
            gc.collect()  # what failed was held by the frames of its error
            _CUDA.empty_cache()
        told = tuple(Said(w.category, str(w.message), w.filename, w.lineno) for w in said if _is_for_users(w))
        counted = difference(before, stats.snapshot())
        return replace(
            answer, failure=failure, said=told, counted=counted, entries=artifacts.recorded()[used:], is_last=lost
        )

    def _compiled(self, request: GraphRequest) -> Reply:
        for number in self._graphs.keys() - request.alive:
            del self._graphs[number]
        received, arguments = _received(request.graph), tensors_of(request.arguments)
        with noticed() as defects:
            with _as_known() if request.kernels else nullcontext():
                graph = self._planned(request, received, arguments, defects)
            if isinstance(graph, Reply):
                return graph
            conditions = received.conditions()
            answer = replace(graph.answer(arguments), conditions=conditions)
        if defects and not request.kernels:
            say(received.gm, arguments, defects[0])
        while len(self._graphs) > _MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return answer

    def _planned(
        self, request: GraphRequest, received: Received, arguments: Sequence[Any], defects: Sequence[Exception]
    ) -> _Graph | Reply:
        """Plan a graph, or recall its plan; or answer with another one whose kernels serve, where none were made for this one."""
        gm = received.gm
        eager = in_pytorch(gm)
        kept = KeptGraph.of(gm, arguments) if received.whole else None
        made, captured = planned_before(kept, eager), None
        if made is None:
            captured = capture(gm, arguments, doubles=toolchain(home(arguments)).doubles, guarded=True)
            known = self._served(captured) if received.whole and not request.kernels else None
            if known is not None:
                return replace(known, conditions=received.conditions())
            made = compile_graph(gm, arguments, captured=captured)
            keep_plan(kept, captured, made, defects)
        run = faster(made, eager, changing_sizes(gm), kept)
        if captured is not None:
            remember(captured, made, run)
        if not defects:
            say_what_is_lost(gm, made, arguments)
        graph = self._graphs[request.number] = _Graph(received, made, eager, run)
        if request.kernels == tuple(kernel.key for kernel in made.kernels) and gpu_of(arguments) is None:
            graph.sent.add("weft")  # on a GPU they would compile for other calls there
        return graph

    def _served(self, captured: Captured) -> Reply | None:
        """Answer with a graph whose kernels serve for this one too; None where there is none.

        Not for graphs that hold large tensors: these are zeros here, so that two of them that differ look the same.
        """
        known = served(captured)
        if known is None:
            return None
        run, places, kernels = known
        number = next((n for n, graph in self._graphs.items() if graph.run is run), None)
        if number is None:
            return None
        stats.count("kernels", kernels)
        return Reply(known=(number, places))

    def _measured(self, request: ClassRequest) -> Reply:
        graph = self._graphs.get(request.number)
        if graph is None:
            raise UnsupportedError("the process that compiled this graph is gone")
        self._graphs.move_to_end(request.number)
        return graph.answer(tensors_of(request.arguments))


def _received(graph: bytes) -> Received:
    """Read a graph; raises UnsupportedError where it calls an operator that this process does not have."""
    try:
        return unpacked_graph(graph)
    except AttributeError as error:
        missing = next((found for each in _MISSING if (found := each.search(str(error)))), None)
        if missing is None:
            raise
        namespace, name = missing.groups()
        what = f"torch.ops.{namespace}.{name} is known to your process alone, and weft compiles in another one"
        todo = 'nothing: PyTorch runs this graph; or set compile="blocking", so that your process compiles it'
        raise UnsupportedError(what, todo=todo) from error


@contextmanager
def _as_known() -> Generator[None]:
    """Keep quiet about a plan, and do not count it, which the other process has made too."""
    before = stats.snapshot()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        counted = difference(before, stats.snapshot())
        for name in ("kernels", "fallbacks"):
            stats.count(name, -counted.get(name, 0))


def _is_for_users(warning: warnings.WarningMessage) -> bool:
    return issubclass(warning.category, RuntimeWarning | UserWarning)


def main() -> None:
    """Serve the process that started this one, until it ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what is printed here is no answer
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_watch, args=(requests.fileno(), os.getppid()), daemon=True).start()
    try:
        _serve(requests, answers)
    finally:
        end_compilers()


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    server = Server()
    while (request := _read(requests)) is not None:
        answer = server.answer(request)
        answer = replace(answer, is_last=answer.is_last or _resident() > _MOST_BYTES)
        data = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            answers.write(len(data).to_bytes(_LENGTH, "little"))
            answers.write(data)
            answers.flush()
        except OSError:
            return


def _end(number: int, frame: Any) -> None:
    """End as at the end of a program, so that temporary files are removed; once."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _read(stream: BinaryIO) -> Request | None:
    """Read a request; None at the end."""
    head = stream.read(_LENGTH)
    length = int.from_bytes(head, "little")
    data = stream.read(length)
    return pickle.loads(data) if len(head) == _LENGTH and len(data) == length else None  # noqa: S301 - of the parent's


def _resident() -> int:
    """Return the bytes of memory that this process has for itself: a GPU's libraries are gigabytes of files."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _watch(fd: int, parent: int) -> None:
    """End this process, and what it started, once the other one has closed its end of the pipe, or is no longer the parent."""
    poll = select.poll()
    poll.register(fd, 0)  # that it is closed is reported anyhow
    while not poll.poll(1000) and os.getppid() == parent:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    stop_compilers()
    os.killpg(0, signal.SIGKILL)
