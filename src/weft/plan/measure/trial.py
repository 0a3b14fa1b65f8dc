"""The trial of a compiled graph against PyTorch at the first call of each size class; the faster one runs from then on.

There is one more candidate where weft's kernels do not win clearly: the same graph with those matmuls left to PyTorch's library
that are predicted to gain by it where the library is at its best (`weft.plan.execute.library`), and weft's kernels for what comes
between.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from weft.capture import apart
from weft.defects import note
from weft.errors import CacheFolderError, WrongKernelError
from weft.options import Options, again, current
from weft.phases import phase
from weft.plan.execute import tried
from weft.plan.execute.instead import warn
from weft.plan.execute.made import Plan, size_class
from weft.plan.execute.runner import Runner
from weft.plan.measure.clock import PYTORCH, Contender, Timed, first_calls, measure
from weft.plan.measure.first_call import wrong_results
from weft.plan.measure.measured import Choice, Measured
from weft.plan.measure.spare import Spare, spare
from weft.plan.measure.stance import may_compile, nearest
from weft.plan.targets import toolchain
from weft.plan.targets.graphs import capturing
from weft.plan.targets.home import gpu_of
from weft.plan.targets.kernel import counted
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.forked import threads_are_gone
from weft.run.key import cache_key


class LibraryKeeper(Protocol):
    """Keeps the plan of a graph in which the library runs matmuls, for other processes."""

    def library(self, eager: Runner) -> Plan | None:
        """Returns the plan that was kept; None where there is none."""
        ...

    def keep_library(self, made: Plan) -> None:
        """Keeps a plan."""
        ...


@dataclass(frozen=True, slots=True)
class Winner:
    """What runs from now on; `results`: of the call that it was chosen in, None where that is still to be made."""

    run: Runner
    results: Sequence[Any] | None = None


@dataclass(eq=False)
class Trial:
    """The callable that stands for a graph.

    The sizes' magnitudes make the class; where no size changes from call to call, there is one. What was measured is kept in the
    cache beside the kernels: another process of this machine measures nothing, and makes the same choice; but where the measurement
    is in doubt, it measures again, a few times. Where PyTorch's stance forbids compiling nothing is measured, and what was chosen
    for the nearest class runs.
    """

    plan: Plan
    eager: Runner
    environment: Mapping[str, str]
    changing: tuple[int, ...]
    """Which arguments are tensors whose sizes change from call to call."""
    options: Options = field(default_factory=current)
    """Those in force when the graph was compiled; the trial is made later."""
    chosen: dict[tuple[int, ...], Runner] = field(default_factory=dict[tuple[int, ...], Runner])
    library: Plan | None = None
    keeper: LibraryKeeper | None = None

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Runs the graph, and returns its results."""
        sizes = tuple([arguments[i].numel().bit_length() for i in self.changing])
        run = self.chosen.get(sizes)
        if run is not None:
            return run(*arguments)
        if capturing() or not apart(arguments, self.written):
            return self.plan.run(*arguments)
        if not may_compile():
            return (nearest(self.chosen, sizes) or self.plan.run)(*arguments)
        try:
            with again(self.options):
                found = self.choose(arguments)
        except (CacheFolderError, WrongKernelError):
            raise  # only the user can mend it; a defect, which whoever called this says
        except Exception as error:  # noqa: BLE001 - whatever failed in the trial, PyTorch runs the user's call
            results = self.eager(*arguments)  # which raises, if it is PyTorch that refuses these arguments
            stats.count("fallbacks")
            warn("this graph", error)
            self.chosen[sizes] = self.eager
            return results
        self.chosen[sizes] = found.run
        return found.run(*arguments) if found.results is None else found.results

    @property
    def written(self) -> tuple[int, ...]:
        """Which arguments the graph writes into."""
        return tuple(argument for argument, _ in self.plan.captured.writes)

    @phase("trial")
    def choose(self, arguments: Sequence[Any]) -> Winner:
        """Returns the faster of the two at `arguments`, measured now or before.

        Raises:
            CacheFolderError: the cache folder is not safe.
            Exception: PyTorch's side failed in the trial, or the trial itself did.
        """
        if threads_are_gone():
            return Winner(self.plan.run)  # PyTorch's side of the trial might wait for ever
        folder = CacheFolder()
        parts = self.parts(size_class(arguments), gpu_of(arguments))
        key = cache_key(parts)
        entry = folder.lookup(key, counted=False)
        measured = None if entry is None else Measured.read(entry.meta)
        made: Sequence[Contender] = ()
        if measured is None or measured.is_to_be_repeated:
            found = self.measured_in_memory(arguments, measured)
            if found is None:
                return Winner(self.plan.run)
            now, made = found
            measured = now if measured is None or not now.whole else measured.again(now)
            if now.whole:  # else what was refused may go in the next process
                with suppress(OSError):  # no room anywhere: measured again in the next process
                    folder.store(key, {}, measured.written(), parts=parts)
        if current().log != "none":
            sys.stderr.write(f"weft: {', '.join(counted(k.name for k in self.plan.kernels))}: {measured}\n")
        run = self.named(measured.chosen, arguments)
        return Winner(run, next((each.results for each in made if each.run is run and each.is_going), None))

    def named(self, choice: Choice, arguments: Sequence[Any]) -> Runner:
        """Returns what runs by `choice`, and counts it."""
        match choice:
            case "weft":
                if any(fallback.is_faster for fallback in self.plan.fallbacks):
                    stats.count("library")
                return self.plan.run
            case "PyTorch":
                stats.count("slower")
                return self.eager
            case "library":
                stats.count("library")
                made = self.with_library(arguments)
                return self.plan.run if made is None else made.run

    def measured_in_memory(
        self, arguments: Sequence[Any], before: Measured | None
    ) -> tuple[Measured, Sequence[Contender]] | None:
        """Times the candidates as `measured` does; None where the GPU's memory does not suffice for that: what is timed is held
        beside the user's.

        Nor does it where PyTorch ran in place of a candidate for want of memory.
        """
        with suppress(torch.OutOfMemoryError):
            return self.measured(spare(arguments, self.written), before)
        gc.collect()  # the frames of the error hold what was timed, and some hold the error
        torch.cuda.empty_cache()
        return None

    def measured(self, given: Spare, before: Measured | None = None) -> tuple[Measured, Sequence[Contender]]:
        """Times the candidates; again, where they were timed `before`: those that were timed then, and no others, so that
        a process with a warm cache compiles nothing.

        Returned with the candidates, which hold the results of their first calls where these are as good as the user's own.

        Raises:
            WrongKernelError: weft's kernels give other results than eager.
        """
        known = None if before is None else before.eager.seconds
        candidates = first_calls((self.plan.run, self.eager), given, known)
        if current().judge != "off" and all(
            each.error is None for each in candidates
        ):  # else whoever times them says so
            self.demand_right(candidates, given)
        if gpu_of(given.arguments) is not None or given.memory or _wants_gradients(given.arguments):
            for each in candidates:
                each.results = None
        found = None
        if before is None:
            found = self.timed(candidates, given)
            # So much faster that a library's matmuls change nothing.
            clearly = toolchain(self.plan.kernels[0].target).library_share
            settled = found.timings[0].seconds <= clearly * found.timings[PYTORCH].seconds
        else:
            settled = before.library is None
        made = None if settled else self.with_library(given.arguments)
        if made is not None:
            (library,) = first_calls((made.run,), given, known)
            library.results = None if candidates[PYTORCH].results is None else library.results
            candidates.append(library)
            found = None
        found = found or self.timed(candidates, given)
        cores = 0 if gpu_of(given.arguments) is not None else current().threads or torch.get_num_threads()
        measured = Measured(*found.timings, load=found.load, cores=cores)
        chosen = candidates[("weft", "PyTorch", "library").index(measured.chosen)]
        own = 0.0 if chosen.results is None else chosen.first  # the call that the user made
        return replace(measured, spent=max(0.0, found.spent - own)), candidates

    @phase("comparison")
    def demand_right(self, candidates: Sequence[Contender], given: Spare) -> None:
        """Raises WrongKernelError where the first candidate's results are not PyTorch's."""
        mine, theirs = (each.results or () for each in candidates)
        wrong = wrong_results(mine, theirs, self.eager, given)
        if wrong is not None:
            names = ", ".join(k.name for k in self.plan.kernels)
            raise WrongKernelError(f"the results of {names} are wrong: {wrong}")

    def timed(self, candidates: Sequence[Contender], given: Spare) -> Timed:
        """Times the candidates, and warns where weft's kernels failed."""
        found = measure(candidates, given)
        if found.failure is not None and len(candidates) == PYTORCH + 1:
            stats.count("fallbacks")
            warn("this graph", found.failure)
        return found

    def with_library(self, arguments: Sequence[Any]) -> Plan | None:
        """Returns the plan in which the library runs matmuls, made once; None where it cannot be, or none is worth it."""
        if self.library is None and self.keeper is not None:
            self.library = self.keeper.library(self.eager)
        if self.library is None and self.plan.with_library is not None:
            from weft.plan.execute.plan import plan  # a plan is seldom made at a trial

            try:
                captured = self.plan.with_library()
                if captured is None:
                    return None
                self.library = plan(captured, arguments, self.eager, tried=False)
                if self.keeper is not None and self.library.captured.lacking == captured.lacking:
                    self.keeper.keep_library(self.library)
            except Exception as error:  # noqa: BLE001 - what there is runs, whatever fails with the library's matmuls
                note(error)
                return None
        return self.library

    def parts(self, sizes: tuple[int, ...], device: torch.device | None) -> dict[str, str]:
        """Returns all that the choice depends on; `sizes`: their class; `device`: the GPU that runs, if one does."""
        return {**self.environment, **_parts(self.plan, sizes, device, compared=current().judge != "off")}


def _parts(plan: Plan, sizes: tuple[int, ...], device: torch.device | None, *, compared: bool) -> dict[str, str]:
    gpu = {} if device is None else {"gpu": torch.cuda.get_device_name(device)}
    return {
        **gpu,
        "trial": "weft against PyTorch",
        "kernels": " ".join(k.key for k in plan.kernels),
        "calls": " ".join(str(c.target) for c in plan.captured.calls.values()),
        "size class": str(sizes),
        "pytorch threads": str(torch.get_num_threads()),
        "compared": str(compared),  # the results too, not the times alone
        "scheme": current().scheme or "",  # with one there is no plan with the library's matmuls to compare with
    }


def _wants_gradients(arguments: Sequence[Any]) -> bool:
    """Tells whether a call's results may be asked for gradients, which those of a trial do not have."""
    return torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)


def measured_before(plan: Plan) -> Measured | None:
    """Recalls what a trial of the same kernels on arguments of these sizes found, in this process or another; None:
    there was none.
    """
    if not plan.kernels or not plan.size_class:
        return None
    environment, folder = _environment(plan), CacheFolder()
    for compared in (True, False):
        parts = environment | _parts(plan, plan.size_class, plan.device, compared=compared)
        entry = folder.lookup(cache_key(parts), counted=False)
        if entry is not None:
            return Measured.read(entry.meta)
    return None


def faster(plan: Plan, eager: Runner, changing: tuple[int, ...], keeper: LibraryKeeper | None = None) -> Runner:
    """Chooses what runs for a graph: `plan`, on trial against `eager` where that can be tried; `eager` where it has no kernel.

    A graph that draws random numbers is not tried, since each run draws others; nor is one that calls operations of other
    libraries, which may do more than return a result. Arguments that a graph writes into are copied for the trial.
    """
    if not plan.kernels:
        if any(fallback.is_faster for fallback in plan.fallbacks):
            stats.count("slower")
        return eager
    if current().measure == "never" or not repeatable(plan):
        return plan.run
    return Trial(plan, eager, _environment(plan), changing, keeper=keeper)


def _environment(plan: Plan) -> dict[str, str]:
    """Returns the parts of a trial's key that are the same for every graph; a GPU's kernels need no C++ compiler."""
    return toolchain(plan.kernels[0].target).environment() | {"torch": torch.__version__}


def repeatable(plan: Plan) -> bool:
    """Tells whether another run of `plan` on copies of its arguments does the same again (`tried.repeatable`)."""
    return tried.repeatable(plan.captured, plan.arguments)


def changing_sizes(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Lists the arguments of a graph of Dynamo's that are tensors whose sizes may be others at the next call."""
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [(i, e) for i, e in enumerate(examples) if isinstance(e, torch.Tensor)]
    return tuple(i for i, e in tensors if any(isinstance(size, torch.SymInt) for size in e.shape))
