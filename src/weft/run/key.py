"""Cache keys: everything a binary depends on, as named texts, hashed.

The parts that a program brings (its text, schedule, dtypes, layouts, target) come from the caller;
`environment_parts` adds what this machine and this weft bring. A warm start computes a key, so each
part must be cheap: no process is started and no other machine's cache is ever trusted by accident.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from weft.options import current
from weft.run.compiler import Compiler, find_compiler, flags

_PACKAGE = Path(__file__).resolve().parent.parent
_SOURCES = frozenset({".py", ".h"})
# What `-march=native` and `-mtune=native` look at, by the names x86 and Arm kernels give them.
_CPU_FIELDS = frozenset(
    {
        *("vendor_id", "cpu family", "model", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
    }
)


# What the names of x86's instructions begin with; its other flags say nothing of what a compiler prints.
_INSTRUCTIONS = (
    "sse",
    "ssse",
    "avx",
    "amx",
    "fma",
    "f16c",
    "bmi",
    "popcnt",
    "abm",
    "movbe",
    "adx",
    "vaes",
    "gfni",
    "sha_",
)


def cache_key(parts: Mapping[str, str]) -> str:
    """Returns 64 hex digits: SHA-256 over the canonical JSON (sorted names, ASCII) of `parts`."""
    text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def environment_parts() -> dict[str, str]:
    """Returns the parts of a key that are the same for every kernel of this process's weft.

    Raises CompilerError where there is no compiler: its identity is part of every key.
    """
    return {
        "weft": source_hash(),
        "torch": torch.__version__,
        "machine": cpu_identity(),
        "compiler": toolchain_identity(find_compiler()),
        "flags": " ".join(flags()),
        "options": current().key(),
    }


@functools.cache
def source_hash(package: Path = _PACKAGE) -> str:
    """Returns SHA-256 over the names and bytes of the package's .py and .h files: 64 hex digits.

    By content, not by version or date, so that an edited checkout never meets its old binaries.
    """
    digest = hashlib.sha256()
    found = sorted(path for path in package.rglob("*.*") if path.suffix in _SOURCES)
    for path in found:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@functools.cache
def toolchain_identity(compiler: Compiler) -> str:
    """Tells which compiler this is, without running it: each program of its command by path, date, size.

    Asking the compiler for its version takes milliseconds of every warm start; a package manager
    that replaces a compiler changes the date or size of its driver. Wrappers (`ccache g++`) count.
    """
    words: list[str] = []
    for word in compiler.command:
        program = shutil.which(word)
        if program is None:
            words.append(word)
            continue
        path = Path(program).resolve()
        found = path.stat()
        words.append(f"{word}={path}:{found.st_mtime_ns}:{found.st_size}")
    return " ".join(words)


@functools.cache
def cpu_identity() -> str:
    """Returns the machine and a hash of its CPU's features, so that unlike machines may share a cache."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            features = _first_cpu(lines)
    except OSError:
        features = platform.processor()
    digest = hashlib.sha256(features.encode()).hexdigest()
    return f"{platform.system()} {platform.machine()} {digest}"


@functools.cache
def cpu_features() -> frozenset[str]:
    """Returns the instructions that this CPU has beyond the least, by the names of x86 and Arm kernels; empty if unknown."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            fields = dict(line.split(":", 1) for line in _first_cpu(lines).splitlines())
    except OSError:
        return frozenset()
    words = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    return frozenset(word for word in words if "Features" in fields or word.startswith(_INSTRUCTIONS))


def _first_cpu(lines: Iterable[str]) -> str:
    """Reads the fields of the first CPU only: the file is long and slow on machines with many."""
    kept: list[str] = []
    for line in lines:
        if not line.strip():
            break
        name, _, value = line.partition(":")
        if name.strip() in _CPU_FIELDS:
            kept.append(f"{name.strip()}:{value.strip()}")
    return "\n".join(kept)
