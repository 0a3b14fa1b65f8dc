"""The C++ compiler: finding it, its flags, running it."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from weft.errors import CompilerError
from weft.options import current
from weft.run.scratch import compile_folder

COMPILE_SECONDS = 300.0
"""A compiler that takes longer than this is stopped; a kernel takes about one second."""

_CANDIDATES = ("c++", "g++", "clang++")
_INSTALL = "install one (Debian, Ubuntu: `apt install g++`; Fedora: `dnf install gcc-c++`), or name one in WEFT_CXX"
_HEAD_LINES, _TAIL_LINES = 30, 10


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler's command: the program's absolute path, then arguments that always follow it.

    More than one word where CXX wraps or sets up the compiler, as in `ccache g++` or `g++ -m64`.
    """

    command: tuple[str, ...]

    @property
    def is_gcc(self) -> bool:
        """Tell by the names of its programs whether it is GCC; False where these do not say: running it takes each warm start
        milliseconds.
        """
        found = (shutil.which(word) for word in self.command)
        names = (Path(program).resolve().name for program in found if program is not None)
        return platform.system() == "Linux" and any(re.match(r"(.*-)?g\+\+", name) for name in names)

    def __str__(self) -> str:
        return shlex.join(self.command)


def find_compiler() -> Compiler:
    """Finds the compiler that the option `compiler` (WEFT_CXX, then CXX) names, else one on PATH.

    One that was named is used or is an error, never silently replaced.

    Raises:
        CompilerError: there is none, or not the one that was named.
    """
    return _find_compiler(current().compiler, os.environ.get("PATH", os.defpath))


@functools.lru_cache(maxsize=8)
def _find_compiler(named: str | None, search_path: str) -> Compiler:
    if named:
        words = _split(named)
        program = shutil.which(words[0], path=search_path)
        if program is None:
            raise CompilerError(
                f"the C++ compiler {words[0]!r}, which WEFT_CXX, CXX or the option compiler names, "
                "does not exist or is not executable",
                todo=f"correct or unset that name; if there is no compiler, {_INSTALL}",
            )
        return Compiler((str(Path(program).absolute()), *words[1:]))
    for name in _CANDIDATES:
        program = shutil.which(name, path=search_path)
        if program is not None:
            return Compiler((str(Path(program).absolute()),))
    raise CompilerError(f"there is no C++ compiler: none of {', '.join(_CANDIDATES)} is on PATH", todo=_INSTALL)


def _split(named: str) -> list[str]:
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise CompilerError(
            f"the name of the compiler, {named!r}, cannot be read: {error}",
            todo="quote it as for a shell, for instance `ccache g++`",
        ) from error
    if not words:
        raise CompilerError("the name of the compiler is blank", todo=f"unset it, or {_INSTALL}")
    return words


LEVEL = "-O2"
"""How much the compiler optimises."""

_SPARED = ("-fno-gcse", "-fira-region=one")
"""Tell GCC to leave out what takes a fifth of its time and makes kernels no faster (docs/measurements/cpu.md)."""


def flags() -> tuple[str, ...]:
    """Lists all flags, in the order they follow the source; the one place that states them.

    NaN and inf keep their meaning and sums their order (no -ffast-math), and x * x - x * x is 0 as
    in eager (no contraction); only errno and floating-point traps, which no kernel reads, are given
    up. Of what -O3 does beyond -O2, whole short loops unrolled and vectors by cost are all that kernels gain by: the rest takes
    the compiler a quarter of its time (docs/measurements/cpu.md). GCC before 12 makes no vectors at -O2 unless it is told to. Clang
    passes over these flags as they are, but refuses -fvect-cost-model=dynamic, which GCC takes for the same; what it would refuse
    is for GCC alone. The OpenMP runtime is PyTorch's own: a second one in the process would start a second set of threads.
    """
    return (
        *_flags_of_objects(),
        "-shared",
        "-Wl,--as-needed",
        *(f"-Wl,-rpath,{path.parent}" for path in _openmp()),
        *map(str, _openmp()),
    )


def _flags_of_objects() -> tuple[str, ...]:
    """Lists the flags that do not concern linking."""
    gcc = False
    with suppress(CompilerError):  # whoever compiles finds out that there is none
        gcc = find_compiler().is_gcc
    return (
        *("-std=c++17", LEVEL, "-ftree-vectorize", "-fpeel-loops", "-fvect-cost-model", "-funswitch-loops"),
        *(_SPARED if gcc else ()),
        "-march=native",
        "-fopenmp",
        *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
        *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
        *(("-DWEFT_PLAIN_DOT",) if current().brgemm == "off" else ()),
        *("-fPIC", "-fvisibility-inlines-hidden"),
    )


@functools.cache
def _openmp() -> tuple[Path, ...]:
    """Finds PyTorch's OpenMP runtime; none where -fopenmp finds the one it uses."""
    package = Path(torch.__path__[0])
    # Wheels carry the runtime in one of these, sometimes under a name of their own; a PyTorch built
    # on this machine uses the system's, and then so does -fopenmp.
    folders = (package / "lib", package.parent / "torch.libs")
    return tuple(path for folder in folders for path in sorted(folder.glob("libgomp*.so*")))[:1]


def compile_shared_library(
    source: str,
    include_dirs: Sequence[Path] = (),
    objects: Mapping[str, bytes] = MappingProxyType({}),
    *,
    seconds: float = COMPILE_SECONDS,
) -> bytes:
    """Compiles C++ text into a shared library and gives the library's bytes.

    Args:
        source: the whole translation unit.
        include_dirs: folders in which `#include "..."` is looked for.
        objects: what `compile_object` gave, to be linked; each by the macro that tells the source that it is there.
        seconds: the time after which the compiler and all that it started are stopped.

    Raises:
        CompilerError: no compiler, no room for its files, too slow, or it refused the source; has
            the command and the compiler's output.
    """
    files = {"kernel.cpp": source.encode(), **{f"{name}.o": found for name, found in objects.items()}}
    told = [f"-D{name}" for name in objects]
    # The source stands before the libraries: a linker that drops what is not needed reads in order.
    return _compiled([*told, "-o", "kernel.so", *files, *flags()], files, "kernel.so", include_dirs, seconds)


def compile_object(source: str, include_dirs: Sequence[Path] = ()) -> bytes:
    """Compiles C++ text into an object that libraries are linked with, and gives its bytes; raises as `compile_shared_library`."""
    files = {"part.cpp": source.encode()}
    given = ["-c", "-o", "part.o", *files, *_flags_of_objects()]
    return _compiled(given, files, "part.o", include_dirs, COMPILE_SECONDS)


def _compiled(
    arguments: Sequence[str], files: Mapping[str, bytes], made: str, include_dirs: Sequence[Path], seconds: float
) -> bytes:
    """Runs the compiler in a folder that holds `files`, and reads the file `made`."""
    command = [*find_compiler().command, *(f"-I{path}" for path in include_dirs), *arguments]
    try:
        with compile_folder() as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
            _run(command, folder, seconds)
            return (folder / made).read_bytes()
    except OSError as error:
        raise CompilerError(
            f"the compiler's files could not be written, read or run: {error}",
            command=shlex.join(command),
            todo="free space in the folder for temporary files, or name another one in TMPDIR",
        ) from error


def compiler_works() -> bool:
    """Tells whether the compiler compiles a minimal program: if it does, a kernel that it rejects is at fault."""
    try:
        _probe(find_compiler(), flags())
    except CompilerError:
        return False
    return True


@functools.lru_cache(maxsize=8)
def _probe(compiler: Compiler, own_flags: tuple[str, ...]) -> None:
    del compiler, own_flags  # what the answer depends on
    compile_shared_library('extern "C" void weft_probe() {}\n')


_running: set[subprocess.Popen[bytes]] = set()
_stopped = threading.Event()


def stop_compilers() -> None:
    """Stops all compilers that run, for good: where this process ends and does not wait for them."""
    _stopped.set()
    for process in tuple(_running):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


AFTER_KILLED = (
    "nothing: PyTorch runs it, and the next process compiles it; if this happens again, see that memory is left, "
    "since the system kills processes where there is none"
)
_CHILD_KILLED = b"Killed signal terminated program"
"""What GCC says where not it but the program that does its work was killed."""


def _run(command: Sequence[str], folder: Path, seconds: float) -> None:
    # English messages; intermediate files beside the source, where there is room.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # no session: Linux gives each session its share of the processors, whatever the nice value
    )
    _running.add(process)
    try:
        if _stopped.is_set():
            raise CompilerError("this process is about to end", command=shlex.join(command))
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise CompilerError(
            f"the compiler had not finished after {seconds:g} s and was stopped",
            command=shlex.join(command),
            todo="check whether the machine is overloaded, or name another compiler in WEFT_CXX",
        ) from error
    finally:
        # On any way out, an interrupt too: the driver's own children (cc1plus, ld) go with it.
        _running.discard(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP) or _CHILD_KILLED in output:
        raise CompilerError("the compiler was killed while it worked", command=shlex.join(command), todo=AFTER_KILLED)
    if process.returncode != 0:
        raise CompilerError(
            f"the compiler refused a kernel (exit status {process.returncode})",
            command=shlex.join(command),
            output=shorten(output.decode(errors="replace")),
            todo="if the compiler is older than C++17, name a newer one in WEFT_CXX; otherwise "
            "report this with the kernel's source",
        )


def shorten(output: str) -> str:
    """Keeps the first lines, which show the first error, and the last ones, which show errors of the linker."""
    lines = output.splitlines()
    left_out = len(lines) - _HEAD_LINES - _TAIL_LINES
    if left_out <= 0:
        return "\n".join(lines)
    return "\n".join([*lines[:_HEAD_LINES], f"... {left_out} lines left out ...", *lines[-_TAIL_LINES:]])
