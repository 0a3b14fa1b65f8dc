"""Kernels on trial before they serve: the binary that is to run, on hard inputs at small sizes, beside eager and fp64.

On a CPU it runs in a child process, on memory with guards, so that a crash, an endless loop or a write beside a tensor is a verdict
like any other. On a GPU it runs here, behind a marker in the cache: where the process does not survive it, the next one knows. The
verdict is kept in the cache for the kernels' keys, as their binaries are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from weft.errors import CompilerError, TargetError, UnsupportedError, WeftError, WrongKernelError
from weft.options import Options
from weft.plan.bench import Judged, run
from weft.plan.judging_sizes import Sizes, as_its_numbers_say, sizes_for, sizes_that_are_numbers
from weft.plan.region import CompiledRegion
from weft.run.build import Binary
from weft.run.cache import CacheFolder
from weft.run.gpu.interpreted import is_asked_for
from weft.run.key import cache_key, source_hash
from weft.verify.emitted import Tally, cases, has_meaning, points

# Draws of each regime before results are called wrong: the error rule takes its maxima over several.
_DRAWS = 4


def demand(judged: Judged, region: CompiledRegion, options: Options) -> None:
    """Has the kernels of `region` judged, now or from what the cache knows.

    Raises:
        WrongKernelError: they give wrong results, crash, or do not end.
    """
    if options.judge == "off" or not region.kernels or not _can_run(judged, region):
        return
    folder = CacheFolder(options.cache_dir)
    keys = " ".join(k.key for k in region.kernels)
    parts = {"weft": source_hash(), "judged": keys, "program": str(judged.written)}
    parts |= {"sizes": str(sizes_that_are_numbers(judged))}
    if judged.device is not None:
        parts["gpu"] = torch.cuda.get_device_name(judged.device)
    key = cache_key(parts)
    with folder.alone(key):
        entry = None if options.judge == "always" else folder.lookup(key, counted=False)
        wrong = None if entry is None else _known(entry.meta)
        if wrong is None:
            if judged.device is not None:
                with suppress(OSError):  # no room: a crash is not remembered
                    folder.store(key, {}, {"running": _this_process()}, parts=parts)
            try:
                wrong = _now(judged, region, options.seed)
            except BaseException:  # interrupted, or a defect of the judge's: the marker must not speak of the kernel
                folder.remove(key)
                raise
            if wrong is None:  # no memory to judge in: another process may have it
                folder.remove(key)
                return
            with suppress(OSError):  # no room: the next process judges them again
                folder.store(key, {}, {"wrong": wrong}, parts=parts)
    if wrong:
        names = ", ".join(k.name for k in region.kernels)
        raise WrongKernelError(f"the code of {names} is wrong on hard inputs: {wrong}")


def _can_run(judged: Judged, region: CompiledRegion) -> bool:
    on_a_cpu = isinstance(region.kernels[0].made, Binary)
    meant = region.approximation is None and has_meaning(judged.written)
    return meant and (on_a_cpu or judged.device is not None or is_asked_for())


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


def _known(meta: Mapping[str, object]) -> str | None:
    """Reads what was found before; None where nothing was. A process that is gone since it began has not survived it."""
    wrong, running = meta.get("wrong"), meta.get("running")
    if isinstance(wrong, str):
        return wrong
    if not isinstance(running, str):
        return None
    host, number, began = (*running.split(" "), "", "")[:3]
    if host != socket.gethostname() or not number.isdigit():
        return None
    now = _began(int(number))
    alive = now == began if now and began else _is_alive(int(number))
    return None if alive else "the process that ran it did not survive it"


def _now(judged: Judged, region: CompiledRegion, seed: int) -> str | None:
    """Judges now, and says in words what is wrong; empty where nothing is; None where there is no memory."""
    try:
        return wrong_of(judged, region, seed) or ""
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    except (UnsupportedError, CompilerError, TargetError):
        if judged.device is None:
            raise
        return ""  # not of these sizes: nothing was compiled for them
    except WeftError as error:  # no refusal of the region's, but a defect of the judge's
        raise AssertionError(f"the judge failed: {error.what}") from error
    except RuntimeError as error:
        if judged.device is None:
            raise
        return f"the GPU's driver says: {str(error).partition(chr(10))[0]}"


def wrong_of(judged: Judged, region: CompiledRegion, seed: int) -> str | None:
    """Says in words what is wrong with the kernels; None where nothing is, or they cannot be judged here.

    Raises:
        OutOfMemoryError: a GPU has no room even for small sizes.
    """
    far, near = sizes_for(judged, region)
    if not near:
        return None
    try:
        wrong = _tried(judged, region, seed, far, near, 1) and _tried(judged, region, seed, far, near, _DRAWS)
        if wrong and wrong.startswith("output"):
            told = as_its_numbers_say(judged, near)
            if told:
                wrong = _tried(judged, region, seed, as_its_numbers_say(judged, far), told, _DRAWS)
    except torch.OutOfMemoryError:
        if not far:
            raise
        least = min(near, key=lambda sizes: points(judged.written, sizes))
        return _tried(judged, region, seed, [], [least], 1)
    return wrong


def _tried(
    judged: Judged, region: CompiledRegion, seed: int, far: list[Sizes], near: list[Sizes], draws: int
) -> str | None:
    tally = Tally(judged.written)
    return run(judged, region, list(cases(judged.written, far, near, seed, draws)), tally) or tally.verdict()
