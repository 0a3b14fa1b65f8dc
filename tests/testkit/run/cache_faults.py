"""Faults for the cache, and the campaign that makes many of them: `PYTHONPATH=src:tests python -m testkit.run.cache_faults --help`.

Each function makes one kind of fault many times and gives how many it made; an AssertionError says what went wrong. What is
asked each time is the cache's whole promise: the kernel's result is right, or the error is the one that the design names; what
is in the folder afterwards is whole or is taken for missing; and the next process that asks is served.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache as once
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from testkit.run.affine import AFFINE, AFFINE_TEXT
from testkit.run.children import child, in_mounts, mount_small
from weft.errors import CompilerError
from weft.options import options
from weft.run import build as build_module
from weft.run import manifest, stats
from weft.run.build import Binary, KernelSource, build
from weft.run.cache import CacheFolder, Entry
from weft.run.compiler import compile_shared_library

SOURCE = KernelSource(AFFINE_TEXT, AFFINE, meta={"schedule": "grid(m)"})
# --- Kernels without waiting for a compiler: the same library, made distinct by bytes that follow it


@once
def library() -> bytes:
    """The library of SOURCE."""
    return compile_shared_library(AFFINE_TEXT)


def variant(number: int) -> bytes:
    """A library that works as SOURCE's does, and whose bytes are its own."""
    return library() + number.to_bytes(4, "little") * (1 + number % 7 * 4000)


def parts(number: int) -> dict[str, str]:
    return {"program": f"affine {number}", "target": "cpu"}


def made(folder: CacheFolder, number: int, *, compiled: bool = False) -> Binary:
    """The kernel of this number, built or from the cache; `compiled`: by the compiler, which takes a second."""
    with options(threads=1):  # a forked child has none of its parent's threads
        if compiled:
            return build(parts(number), lambda: SOURCE, folder)
        with mock.patch.object(build_module, "compile_shared_library", return_value=variant(number)):
            return build(parts(number), lambda: SOURCE, folder)


def is_right(binary: Binary) -> bool:
    a, b, c = torch.randn(5, 3), torch.randn(3, 5), torch.randn(3)
    return torch.equal(binary.launch(a, b, c)[0], a * b.T + c)


def check(folder: Path, number: int, *, compiled: bool = False) -> bool:
    """Asks as a process would that comes afterwards: right at once, and from the cache the second time; whether at once from it."""
    first, second = (made(CacheFolder(folder), number, compiled=compiled) for _ in range(2))
    assert is_right(first)
    assert is_right(second)
    assert second.from_cache
    return first.from_cache


def leftovers(folder: Path) -> list[str]:
    """Files that are no part of a whole entry."""
    found: list[str] = []
    for key, entry in CacheFolder(folder).examine():
        named = {p.name for p in entry.files.values()} | {manifest.NAME} if isinstance(entry, Entry) else set[str]()
        found += [f"{key[:8]}/{p.name}" for p in (folder / key).iterdir() if p.name not in named]
    return found + [p.name for p in folder.iterdir() if p.name.endswith(".lock")]


# --- Children


def killed(folder: Path, times: int, seed: int, *, compiled: bool = False, most: float = 0.05) -> int:
    """A writer of many entries that is killed at a random moment, again and again."""
    rng = random.Random(seed)
    library()
    for turn in range(times):
        first = turn * 1000

        def write(first: int = first) -> None:
            for number in range(first, first + 1000):
                made(CacheFolder(folder), number, compiled=compiled)

        pid = os.fork()
        if pid == 0:
            try:
                write()
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.001, most))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        whole = sum(isinstance(entry, Entry) for _, entry in CacheFolder(folder).examine())
        torn = [why for _, why in CacheFolder(folder).examine() if isinstance(why, str)]
        assert all(why == f"{manifest.NAME}: No such file or directory" for why in torn), torn
        assert len(torn) <= 1
        assert all(check(folder, first + n, compiled=compiled) for n in range(whole)), "a whole entry was not used"
        check(folder, first + whole, compiled=compiled)  # the one that was being written
        _empty(folder)
    return times


def _empty(folder: Path) -> None:
    cache = CacheFolder(folder)
    for key, _ in list(cache.examine()):
        cache.remove(key)


def at_once(folder: Path, processes: int, kernels: int, *, locks: bool = True) -> int:
    """So many processes, which begin together on an empty cache; how often the compiler ran, all together."""
    begin = time.monotonic() + 0.5

    def work(turn: int) -> int:
        time.sleep(max(0.0, begin - time.monotonic()))
        before = stats.snapshot().compiles
        for number in range(kernels):
            assert is_right(made(CacheFolder(folder), (number + turn) % kernels, compiled=True))
        return stats.snapshot().compiles - before

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with mock.patch.object(fcntl, "flock", fcntl.flock if locks else refuse):
        compiles = sum(result() for result in [child(work, turn) for turn in range(processes)])
    assert len(list(CacheFolder(folder).entries())) == kernels
    assert all(check(folder, number, compiled=True) for number in range(kernels))
    if locks:
        assert leftovers(folder) == []
    return compiles


def wrong_bytes(rng: random.Random, content: bytes) -> Iterator[bytes]:
    """Yields what damage makes of a file."""
    yield b""
    yield content[:1]
    yield content[: rng.randrange(1, len(content))]
    yield content[:-1]
    yield content + b"\0"
    yield bytes(len(content))
    yield rng.randbytes(len(content))
    for _ in range(3):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def wrong_manifests(text: bytes) -> Iterator[bytes]:
    """Manifests that are JSON, with a checksum that holds wherever a checksum can hold, and say what weft never says."""
    body: dict[str, Any] = json.loads(text)
    del body["checksum"]
    yield from (b"null", b"3", b"[]", b"{}", b'"text"', b"[" * 100_000, b"{", b"\xff\xfe", b"1" * 5000)
    yield json.dumps({**body, "meta": {"weft": float("nan")}, "checksum": "0" * 64}).encode()
    for name in body:
        yield signed({k: v for k, v in body.items() if k != name})
        for wrong in (None, 3, [], "text", {"a": None}):
            if name != "meta" or not isinstance(wrong, dict):
                yield signed({**body, name: wrong})
    yield signed({**body, "key": "0" * 64})
    yield signed({**body, "format": 99})
    yield signed({**body, "meta": {}})
    yield signed({**body, "meta": {"signature": {"name": 3}, "meta": {}}})
    yield signed({**body, "files": {}})
    yield signed({**body, "files": {"../kernel.so": {"sha256": "0" * 64, "bytes": 3}}})


def signed(body: dict[str, Any]) -> bytes:
    checksum = manifest._checksum(body)
    return json.dumps({**body, "checksum": checksum}).encode()


def damaged(folder: Path, seed: int) -> int:
    """Every file of an entry, damaged in every way; then replaced by what is no file."""
    rng = random.Random(seed)
    check(folder, 2)  # another entry, whose files take the places of this one's
    other = next((folder / made(CacheFolder(folder), 2).key).glob("*.so"))
    faults = 0

    def after(damage: Callable[[Path], object], pattern: str) -> None:
        nonlocal faults
        faults += 1
        entry = folder / made(CacheFolder(folder), 1).key
        [victim] = entry.glob(pattern)
        victim.rename(entry / ".kept")  # this process has it open: damage must not reach what runs
        shutil.copyfile(entry / ".kept", victim)
        (entry / ".kept").unlink()
        damage(victim)
        assert not check(folder, 1), f"{victim.name}: what is damaged was used"

    for pattern in ("manifest.json", "*.so", "*.cpp"):
        check(folder, 1)
        content = next((folder / made(CacheFolder(folder), 1).key).glob(pattern)).read_bytes()
        for wrong in wrong_bytes(rng, content):
            after(lambda path, wrong=wrong: path.write_bytes(wrong), pattern)
        after(Path.unlink, pattern)
        after(lambda path: (path.unlink(), path.mkdir()), pattern)
        after(lambda path: (path.unlink(), os.mkfifo(path)), pattern)
        after(lambda path: (path.unlink(), path.symlink_to(other)), pattern)
        after(lambda path: path.write_bytes(other.read_bytes()), pattern)
        after(lambda path: path.chmod(0o666), pattern)
    entry = folder / made(CacheFolder(folder), 1).key
    for text in list(wrong_manifests((entry / manifest.NAME).read_bytes())):
        after(lambda path, text=text: path.write_bytes(text), manifest.NAME)
    return faults


@contextmanager
def failing(root: Path, number: int, code: int) -> Generator[list[str]]:
    """The call number `number` (from 0) that touches a file under `root` fails; gives the calls so far."""
    calls: list[str] = []

    def wrapped(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], str | Path) and Path(args[0]).is_relative_to(root):
                calls.append(name)
                if len(calls) == number + 1:
                    raise OSError(code, os.strerror(code), str(args[0]))
            return inner(*args, **kwargs)

        return call

    names = ("open", "mkdir", "replace", "unlink", "rmdir", "stat", "lstat", "listdir", "scandir", "utime")
    patches = [mock.patch.object(os, name, wrapped(name, getattr(os, name))) for name in names]
    for patch in patches:
        patch.start()
    try:
        yield calls
    finally:
        for patch in patches:
            patch.stop()


def failing_calls(
    base: Path, codes: tuple[int, ...] = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE)
) -> int:
    """Every call to the system that a cold build and a warm one make, failing in turn."""
    library()
    faults = 0
    for code in codes:
        for number in range(1000):
            folder = base / f"{code}-{number}"
            with failing(folder, number, code) as calls:
                assert is_right(made(CacheFolder(folder), 1))
                assert is_right(made(CacheFolder(folder), 1))
            if len(calls) <= number:
                break
            faults += 1
            check(folder, 1)
            shutil.rmtree(folder, ignore_errors=True)
    return faults


def cut_short(folder: Path) -> int:
    """No file may grow past a limit, which moves through all lengths that the files of an entry have; then it may."""

    def limited(most: int) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        try:
            assert is_right(made(CacheFolder(folder), 1))
        except CompilerError as error:
            return error.todo
        return "built"

    library()
    lengths = sorted({len(variant(1)), len(AFFINE_TEXT), 1500})
    limits = [0, *(length + step for length in lengths for step in (-1, 0)), 10**7]
    outcomes = [child(limited, most)() for most in limits]
    assert "has space" in outcomes[0]
    assert outcomes[-1] == "built"
    assert set(outcomes) == {outcomes[0], "built"}
    check(folder, 1)
    return len(limits)


def small_disk(folder: Path) -> int:
    """A disk of 4 KiB, one of 8, and so on, until an entry fits: a real file system that is full at each file in turn."""
    library()

    def attempt() -> bool:
        before = stats.snapshot().cache_write_failures
        right = is_right(made(CacheFolder(folder), 1))
        again = made(CacheFolder(folder), 1)
        assert right
        assert is_right(again)
        assert leftovers(folder) == [] or stats.snapshot().cache_write_failures > before
        return stats.snapshot().cache_write_failures == before

    for steps in range(1, 64):
        kept = in_mounts(lambda steps=steps: mount_small(folder, 4 * steps), attempt)
        if kept:
            assert steps > 2
            return steps
    raise AssertionError("the entry never fitted")


def removed_under_way(folder: Path, seconds: float) -> int:
    """One process builds, another removes the whole folder, again and again; how many kernels were built."""
    library()
    end = time.monotonic() + seconds

    def remove() -> int:
        times = 0
        while time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            times += 1
        return times

    removing, number = child(remove), 0
    while time.monotonic() < end:
        assert is_right(made(CacheFolder(folder), number % 5))
        number += 1
    assert removing() > 0
    check(folder, 1)
    return number


# --- Whole processes, as users have them

_USER = textwrap.dedent("""
    import sys, time, torch, weft
    def layer(x, w, b):
        return torch.relu(x @ w + b)
    time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
    x, w, b = torch.randn(64, 48), torch.randn(48, 32), torch.randn(32)
    fast = weft.compile(layer)
    found = fast(x, w, b)
    assert weft.judge(found, layer(x, w, b), layer(x.double(), w.double(), b.double()))
    print(weft.stats().compiles, weft.stats().cache_hits)
""")


def user(folder: Path, begin: float = 0.0, source: Path | None = None) -> subprocess.Popen[str]:
    """A new interpreter that compiles a layer and judges its result; prints compiles and cache hits."""
    path = [str(source)] * (source is not None) + [p for p in sys.path if p]
    environment = {
        **os.environ,
        "WEFT_CACHE_DIR": str(folder),
        "WEFT_MEASURE": "auto",
        "PYTHONPATH": os.pathsep.join(path),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(_USER)
    command = [sys.executable, file.name, str(begin)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def counted(process: subprocess.Popen[str]) -> tuple[int, int]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    compiles, hits = map(int, out.split())
    return compiles, hits


def users_at_once(folder: Path, processes: int) -> int:
    """So many interpreters at once on one empty cache: one of them compiles."""
    found = [counted(p) for p in [user(folder, time.time() + 6) for _ in range(processes)]]
    assert sum(compiles for compiles, _ in found) == 1, found
    assert all(compiles + hits == 1 for compiles, hits in found)
    assert counted(user(folder)) == (0, 1)
    return processes


def users_killed(folder: Path, times: int, seed: int) -> int:
    """Interpreters that are killed at any moment from their start to their end."""
    rng = random.Random(seed)
    for _ in range(times):
        process = user(folder)
        time.sleep(rng.uniform(0.5, 8))
        process.kill()
        process.communicate()
        assert [
            why for _, why in CacheFolder(folder).examine() if isinstance(why, str) and "No such file" not in why
        ] == []
        compiles, hits = counted(user(folder))
        assert compiles + hits == 1
        _empty(folder)
    return times


def two_versions(folder: Path, base: Path) -> int:
    """This weft and another one, whose source differs, in turn on one folder: each compiles once."""
    source = Path(build_module.__file__).parents[2]
    other = base / "other"
    shutil.copytree(source, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "weft" / "errors.py").open("a") as file:
        file.write("\n# another version\n")
    found = [counted(user(folder, source=path)) for path in (source, other, source, other)]
    assert found == [(1, 0), (1, 0), (0, 1), (0, 1)], found
    return 4


def main() -> None:
    """Every kind of fault, many times; prints how many of each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--times", type=int, default=200, help="kills of a writer; other faults in proportion")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    times, seed = chosen.times, chosen.seed
    base = Path(tempfile.mkdtemp(prefix="weft-faults-"))
    campaign: dict[str, Callable[[Path], int]] = {
        "writers killed": lambda f: killed(f, times, seed),
        "writers killed while compiling": lambda f: killed(f, max(3, times // 20), seed, compiled=True, most=3.0),
        "files damaged": lambda f: sum(damaged(f, seed + n) for n in range(max(1, times // 50))),
        "calls that failed": failing_calls,
        "files cut short": cut_short,
        "disks that were full": small_disk,
        "compiles of 8 processes at once on 3 kernels": lambda f: at_once(f, 8, 3),
        "the same without locks": lambda f: at_once(f, 8, 3, locks=False),
        "kernels built while the folder was removed": lambda f: removed_under_way(f, max(1.0, times / 20)),
        "interpreters at once": lambda f: users_at_once(f, 8),
        "interpreters killed": lambda f: users_killed(f, max(2, times // 20), seed),
        "runs of two versions on one folder": lambda f: two_versions(f, base),
    }
    for title, run in campaign.items():
        folder = base / title.replace(" ", "-")
        folder.mkdir(mode=0o700)
        begin = time.monotonic()
        try:
            print(f"{title}: {run(folder)} ({time.monotonic() - begin:.0f} s)", flush=True)
        except PermissionError as error:
            print(f"{title}: not here: {error}", flush=True)
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
