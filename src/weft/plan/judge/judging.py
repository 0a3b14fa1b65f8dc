"""Judging kernels before they serve: the final binary runs on hard inputs at small sizes, beside eager and fp64.

On a CPU it runs in a child process, on memory with guards, so that a crash, an endless loop or a write beside a tensor is a verdict
like any other. On a GPU it runs here, behind a marker in the cache: where the process does not survive it, the next one knows. The
verdict is kept in the cache for the kernels' keys, as their binaries are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch

from weft.errors import CompilerError, TargetError, UnsupportedError, WeftError, WrongKernelError
from weft.options import current
from weft.phases import phase
from weft.plan.judge.bench import run
from weft.plan.judge.sizes import Chosen, as_its_numbers_say, sizes_for, sizes_that_are_numbers
from weft.plan.targets import toolchain
from weft.plan.targets.bench import Judged
from weft.plan.targets.compiled import CompiledRegion
from weft.run.cache import CacheFolder
from weft.run.key import cache_key, source_hash
from weft.tensor.forms import Forms
from weft.verify.cases import cases, has_meaning, long_cases
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import points

# Draws of each regime, and so many before results are called wrong: the error rule takes its maxima over several.
_FEW, _DRAWS = 1, 4


@dataclass(frozen=True, slots=True)
class _Found:
    """What judging kernels has found: what is wrong, or why they were not judged; both empty where they are right."""

    wrong: str = ""
    unjudged: str = ""

    def __str__(self) -> str:
        return f"not judged: {self.unjudged}" if self.unjudged else "right on hard inputs"


class _UnjudgedError(Exception):
    """The kernels cannot be judged, for the reason given."""


@phase("judge")
def demand(judged: Judged, region: CompiledRegion) -> str:
    """Has the kernels of `region` judged, now or from what the cache knows, and says so: right, or why they were not judged.

    Raises:
        WrongKernelError: they give wrong results, crash, or do not end.
    """
    options = current()
    hindered = 'judge="off"' if options.judge == "off" else _hindered(judged, region)
    if hindered:
        return str(_Found(unjudged=hindered))
    folder = CacheFolder()
    keys = " ".join(k.key for k in region.kernels)
    parts = {"weft": source_hash(), "judged": keys} | _without_names(judged)
    if judged.device is not None:
        parts["gpu"] = torch.cuda.get_device_name(judged.device)
    key = cache_key(parts)
    with folder.alone(key):
        entry = None if options.judge == "always" else folder.lookup(key, counted=False)
        found = None if entry is None else _known(entry.meta)
        if found is None:
            if judged.device is not None:
                with suppress(OSError):  # no room: a crash is not remembered
                    folder.store(key, {}, {"running": _this_process()}, parts=parts)
            try:
                found = _now(judged, region, options.seed)
            except BaseException:  # interrupted, or a defect of the judge's: the marker must not speak of the kernel
                folder.remove(key)
                raise
            if found is None:  # another process may have the memory
                folder.remove(key)
                return str(_Found(unjudged="there was not enough memory to test it"))
            with suppress(OSError):  # no room: the next process judges them again
                folder.store(key, {}, {"wrong": found.wrong, "unjudged": found.unjudged}, parts=parts)
    if found.wrong:
        names = ", ".join(k.name for k in region.kernels)
        raise WrongKernelError(f"the code of {names} is wrong on hard inputs: {found.wrong}")
    return str(found)


def _without_names(judged: Judged) -> dict[str, str]:
    """Says what kernels are held against: another layer, or graph, calls values and spaces otherwise.

    Which of the sizes are the same at each call is no part of it, so that one verdict is for both of a function's graphs.
    """
    form, spaces = Forms().of(judged.written)
    sizes = sizes_that_are_numbers(judged)
    return {"program": repr(form), "sizes": str([sizes.get(space.name) for space in spaces])}


def _hindered(judged: Judged, region: CompiledRegion) -> str:
    """Says why the kernels cannot be judged here; empty where they can."""
    if not region.kernels:
        return "there are no kernels"
    if region.approximation is not None:
        return "it rounds at a running scale"
    if not has_meaning(judged.written):
        return "PyTorch runs a part of it"
    return toolchain(region.kernels[0].target).unjudged(judged.device)


def _this_process() -> str:
    return f"{socket.gethostname()} {os.getpid()} {_began(os.getpid())}"


def _began(number: int) -> str:
    """Tells when a process began: its number may be another's later, as in a container that is started again. Empty if unknown."""
    with suppress(OSError, IndexError):  # no such process, or no /proc
        return Path("/proc", str(number), "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return ""


def _is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def _known(meta: Mapping[str, object]) -> _Found | None:
    """Reads what was found before; None where nothing was. A process that is gone since it began has not survived it."""
    wrong, unjudged, running = (meta.get(name) for name in ("wrong", "unjudged", "running"))
    if isinstance(wrong, str) and isinstance(unjudged, str):
        return _Found(wrong, unjudged)
    if not isinstance(running, str):
        return None
    host, number, began = (*running.split(" "), "", "")[:3]
    if host != socket.gethostname() or not number.isdigit():
        return None
    now = _began(int(number))
    alive = now == began if now and began else _is_alive(int(number))
    return None if alive else _Found("the process that tested it crashed or was killed")


def _now(judged: Judged, region: CompiledRegion, seed: int) -> _Found | None:
    """Judges now; None where there is no memory."""
    try:
        return _Found(wrong_of(judged, region, seed) or "")
    except _UnjudgedError as error:
        return _Found(unjudged=str(error))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    except (UnsupportedError, CompilerError, TargetError):
        if judged.device is None:
            raise
        return _Found(unjudged="nothing was compiled for sizes as small as the judge's")
    except WeftError as error:  # no refusal of the region's, but a defect of the judge's
        raise AssertionError(f"the judge failed: {error.what}") from error
    except RuntimeError as error:
        if judged.device is None:
            raise
        return _Found(f"the GPU's driver says: {str(error).partition(chr(10))[0]}")


def wrong_of(judged: Judged, region: CompiledRegion, seed: int) -> str | None:
    """Says in words what is wrong with the kernels; None where nothing is.

    Raises:
        _UnjudgedError: no sizes are small enough.
        OutOfMemoryError: a GPU has no room even for small sizes.
    """
    chosen = sizes_for(judged, region)
    if not chosen.near:
        raise _UnjudgedError("all sizes that it serves are too large to test")
    try:
        wrong = _tried(judged, region, seed, chosen, _FEW, _DRAWS)
        if wrong and not wrong.startswith("output"):  # what crashed or took too long must do so again
            wrong = _tried(judged, region, seed, chosen, _DRAWS)
        if wrong and wrong.startswith("output"):
            told = as_its_numbers_say(judged, chosen.near)
            if told:
                told = replace(chosen, far=as_its_numbers_say(judged, chosen.far), near=told, long=[])
                wrong = _tried(judged, region, seed, told, _DRAWS)
    except torch.OutOfMemoryError:
        if not chosen.far:
            raise
        least = min(chosen.near, key=lambda sizes: points(judged.written, sizes))
        return _tried(judged, region, seed, replace(chosen, far=[], near=[least], long=[]), _FEW)
    return wrong


def _tried(judged: Judged, region: CompiledRegion, seed: int, chosen: Chosen, *draws: int) -> str | None:
    # A fault of the kernels comes again. What a GPU has no room for may be the references alone, whose frames the error holds.
    try:
        return _held_against(judged, region, seed, chosen, draws, judged.device)
    except RuntimeError:
        if judged.device is None:
            raise
    torch.cuda.empty_cache()
    return _held_against(judged, region, seed, chosen, draws, None)


def _held_against(
    judged: Judged,
    region: CompiledRegion,
    seed: int,
    chosen: Chosen,
    draws: Sequence[int],
    device: torch.device | None,
) -> str | None:
    """Holds the kernels' results against references that are worked out on `device`, small ones and without it all by numpy.

    draws: how many are taken at first, and how many in all if results are wrong with these. The first ones are not made again.
    """
    tally, after = ErrorTally(judged.written), 0
    wrong: str | None = None
    for more in draws:
        every = cases(judged.written, chosen.far, chosen.near, seed, more, chosen.layout, device, after)
        if not after:
            every = chain(every, long_cases(judged.written, chosen.long, seed, chosen.layout, device))
        first = next(every, None)
        if first is None and not after:
            raise _UnjudgedError("no small inputs have indices that are there")
        failed = run(judged, region, every if first is None else chain((first,), every), tally)
        if failed is None and not tally:
            raise _UnjudgedError("all sizes that it serves are too large to test")
        wrong, after = failed or tally.verdict(), more
        if failed or wrong is None or tally.wrong:  # with what no rounding explains, no further draw is any
            break
    return wrong
