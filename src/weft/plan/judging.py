"""Kernels on trial before they serve: the binary that is to run, on hard inputs at small sizes, beside eager and fp64.

On a CPU it runs in a child process, on memory with guards, so that a crash, an endless loop or a write beside a tensor is a verdict
like any other. On a GPU it runs here, behind a marker in the cache: where the process does not survive it, the next one knows. The
verdict is kept in the cache for the kernels' keys, as their binaries are.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress

import torch

from weft.block.program import BlockProgram
from weft.errors import CompilerError, TargetError, UnsupportedError, WeftError, WrongKernelError
from weft.options import Options
from weft.plan.bench import Judged, dense, run
from weft.plan.region import CompiledRegion
from weft.run.build import Binary
from weft.run.cache import CacheFolder
from weft.run.gpu import GpuBinary
from weft.run.gpu.interpreted import is_asked_for
from weft.run.key import cache_key, source_hash
from weft.tensor.evaluate import stays_inside
from weft.verify.emitted import AT_MOST, FAR, MANY, Tally, cases, fitted, has_meaning, points
from weft.verify.inputs import literals
from weft.verify.regimes import layout_of, reduced_spaces
from weft.verify.sizes import band_sizes, edge_sizes

# Draws of each regime before results are called wrong: the error rule takes its maxima over several.
_DRAWS = 4
# Triton's interpreter takes milliseconds for each program of a grid.
_MANY_INTERPRETED = 1 << 13
_DIVISIBLE = 16
"""What Triton compiles for: sizes that are divisible by so many, and others."""


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
    parts |= {"sizes": str(_sizes_that_are_numbers(judged))}
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
    return f"{socket.gethostname()} {os.getpid()}"


def _known(meta: Mapping[str, object]) -> str | None:
    """Reads what was found before; None where nothing was. A process that is gone since it began has not survived it."""
    wrong, running = meta.get("wrong"), meta.get("running")
    if isinstance(wrong, str):
        return wrong
    if not isinstance(running, str):
        return None
    host, _, number = running.rpartition(" ")
    if host != socket.gethostname() or not number.isdigit() or int(number) == os.getpid():
        return None
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return "the process that ran it did not survive it"
    except OSError:  # another user's
        pass
    return None


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
    far, near = _sizes(judged, region.kernels[0].block_program, region)
    if not near:
        return None
    try:
        wrong = _tried(judged, region, seed, far, near, 1) and _tried(judged, region, seed, far, near, _DRAWS)
        if wrong and wrong.startswith("output"):
            told = _as_its_numbers_say(judged, near)
            if told:
                wrong = _tried(judged, region, seed, _as_its_numbers_say(judged, far), told, _DRAWS)
    except torch.OutOfMemoryError:
        if not far:
            raise
        least = min(near, key=lambda sizes: points(judged.written, sizes))
        return _tried(judged, region, seed, [], [least], 1)
    return wrong


def _tried(
    judged: Judged, region: CompiledRegion, seed: int, far: list[dict[str, int]], near: list[dict[str, int]], draws: int
) -> str | None:
    tally = Tally(judged.written)
    return run(judged, region, list(cases(judged.written, far, near, seed, draws)), tally) or tally.verdict()


def _as_its_numbers_say(judged: Judged, every: list[dict[str, int]]) -> list[dict[str, int]]:
    """Returns the sizes `every`, but the example's where a number of the program is made of one; none where no number is.

    A graph that was traced for one size divides a sum by that number, and means nothing in particular at other sizes.
    """
    program, made = judged.written, _sizes_that_are_numbers(judged)
    given = {rule.space.name for rule in program.derived}
    free = [{name: n for name, n in (sizes | made).items() if name not in given} for sizes in every] if made else []
    chosen = [program.sizes(each) for each in free]
    return [
        sizes
        for sizes in chosen
        if program.consistent(sizes) and stays_inside(program, sizes) and points(program, sizes) <= AT_MOST
    ]


def _sizes_that_are_numbers(judged: Judged) -> dict[str, int]:
    """Returns the sizes that a number of the program may be made of, by name of the space.

    Only of spaces that have this size at each call: at others the kernels must be right, whatever numbers look like.
    """
    example = {judged.names[name]: size for name, size in judged.example.items() if name in judged.names}
    numbers = {abs(float(v)) for v in literals(judged.written)}
    return {
        name: n
        for name, n in example.items()
        if n > 1 and name in judged.constant and numbers & {n, n - 1.0, 1.0 / n, n**-0.5, n**0.5}
    }


def _sizes(
    judged: Judged, applied: BlockProgram, region: CompiledRegion
) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Chooses sizes by name of the spaces of the written program: those that reach beyond every block, and small ones."""
    layout, summed = layout_of(judged.written), reduced_spaces(judged.written)
    compiled = not isinstance(region.kernels[0].made, Binary) and not is_asked_for()
    interpreted = is_asked_for() and not isinstance(region.kernels[0].made, Binary)
    most = ((1, _MANY_INTERPRETED), (0, MANY)) if interpreted else ((1, MANY), (0, FAR))
    found: tuple[list[dict[str, int]], list[dict[str, int]]] = ([], [])
    for chosen in edge_sizes(applied):
        own = {judged.names[name]: size for name, size in chosen.items() if name in judged.names}

        def fit(limit: int, own: Mapping[str, int] = own, whole: Collection[str] = ()) -> dict[str, int] | None:
            sizes = fitted(judged.written, own, layout, limit, whole)
            return _of_the_example_s_class(judged, region, sizes) if sizes is not None and compiled else sizes

        def add(place: int, sizes: dict[str, int] | None) -> None:
            if sizes is not None and sizes not in (*found[0], *found[1]):
                found[place].append(sizes)

        first = not found[0]
        for place, limit in most if first else most[:1]:
            add(place, fit(limit))
        if first:  # what was cut short of a block is whole once, beside less of the others
            limit = 2 * min(limit for _, limit in most)
            for one, two in zip(band_sizes(applied, 1), band_sizes(applied, 2), strict=True):
                sizes = [
                    {judged.names[n]: size for n, size in each.items() if n in judged.names} for each in (two, one)
                ]
                add(0, next(filter(None, (fit(limit, own | wanted, wanted) for wanted in sizes)), None))
            for name, size in own.items():
                # A second block of one row more may lie anywhere in the first one's; a third one shows where it begins. The
                # second block of a sum is long enough to hold the maximum.
                enough = size + size // 2 if name in summed else 2 * size + 3
                if all(sizes[name] < enough for sizes in (*found[0], *found[1])):
                    add(0, fit(limit, own | {name: enough}, (name,)))
    return found


def _of_the_example_s_class(judged: Judged, region: CompiledRegion, sizes: dict[str, int]) -> dict[str, int] | None:
    """Returns sizes near `sizes` for which the binary is there that calls like the example use; None where there are none."""
    example = {judged.names[name]: size for name, size in judged.example.items() if name in judged.names}
    kept = {
        judged.names[c.space]
        for k in region.kernels
        if isinstance(k.made, GpuBinary)
        for c in k.made.signature.constants
        if c.space in judged.names
    }

    def like(name: str, size: int) -> int:
        if name in kept or name not in example:
            return example.get(name, size)
        if example[name] % _DIVISIBLE == 0:
            return -(-size // _DIVISIBLE) * _DIVISIBLE
        return size + 1 if size % _DIVISIBLE == 0 else max(size, 2)

    given = {rule.space.name for rule in judged.written.derived}
    chosen = judged.written.sizes({name: like(name, size) for name, size in sizes.items() if name not in given})
    fits = judged.written.consistent(chosen) and min(chosen.values(), default=1) > 0
    if not fits or points(judged.written, chosen) > AT_MOST:
        return None
    own = {name: chosen[its] for name, its in judged.names.items()}
    return chosen if all(_has_binary(judged, k.made, own) for k in region.kernels[:1]) else None


def _has_binary(judged: Judged, made: Binary | GpuBinary, sizes: Mapping[str, int]) -> bool:
    """Tells whether calls of these sizes are of a class that was compiled for."""
    assert isinstance(made, GpuBinary)
    shapes = [[n if isinstance(n, int) else sizes[n] for n in shape] for shape in made.signature.shapes]
    names = [each.name for each in made.signature.kernel.inputs]
    strides = [dense(shape, judged.innermost.get(name)) for shape, name in zip(shapes, names, strict=True)]
    try:
        kind = made.class_for(sizes, strides)
    except UnsupportedError:
        return False
    return kind in {each.kind for each in made.assembled}
