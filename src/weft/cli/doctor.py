"""`weft doctor`: what weft finds on this machine, a line each."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import click
import torch
from rich.text import Text

from weft import __version__
from weft.api.files import write_json
from weft.api.optimize import optimize
from weft.api.tracing import keeps_numbers
from weft.cli.command import NewFile, console, reporting
from weft.cost import gpu
from weft.emit.cpp import INCLUDE_DIR
from weft.errors import TargetError, UnknownOptionError, WeftError
from weft.lab.machine.report import measure_machine, table, unsteady
from weft.lab.measure import Standard, first_line, processor
from weft.options import Options, current, options, variable_of
from weft.plan.targets import toolchain
from weft.plan.targets.home import of_device
from weft.plan.targets.kernel import NOT_JUDGED
from weft.run import scratch
from weft.run.cache import CacheFolder, Entry, write_file
from weft.run.compiler import find_compiler, flags
from weft.run.key import source_hash
from weft.verify import Verdict

FindingState: TypeAlias = Literal["ok", "warn", "fail"]

_OLDEST_TORCH = (2, 11)
_WITH_TRITON = "pip install 'weft[gpu]'"
_BFLOAT16 = 15  # as PyTorch numbers its types
_VECTORS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
)
_MANY_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and what to do unless it is ok."""

    name: str
    state: FindingState
    found: str
    todo: str = ""


def findings() -> Iterator[Finding]:
    """Yield all findings, in order; a small kernel is compiled and run. Raises nothing: what fails is a finding."""
    yield from (_python(), _torch(), _weft(), _triton())
    try:
        current()
    except UnknownOptionError as error:  # everything below reads the options
        yield Finding("options", "fail", error.what, error.todo)
        return
    for name, look in _LOOKS:
        try:
            yield from look()
        except WeftError as error:
            yield Finding(name, "fail", error.what, error.todo)
        except Exception as error:  # noqa: BLE001 - one part that cannot be looked at must not hide the others
            yield Finding(name, "fail", f"{type(error).__name__}: {error}", "report this with the whole output")


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")


def _torch() -> Finding:
    found = f"{torch.__version__}, {torch.__path__[0]}"
    numbers = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if numbers < _OLDEST_TORCH:
        return Finding("torch", "fail", found, f"install PyTorch {'.'.join(map(str, _OLDEST_TORCH))} or newer")
    return Finding("torch", "ok", found)


def _weft() -> Finding:
    return Finding("weft", "ok", f"{__version__}, {Path(__file__).parents[1]}, source {source_hash()[:12]}")


def _triton() -> Finding:
    try:
        return Finding("triton", "ok", f"{version('triton')}; it compiles kernels for GPUs")
    except PackageNotFoundError:
        return Finding("triton", "ok", f"not installed; only kernels for GPUs need it ({_WITH_TRITON})")


def _compiler() -> Iterator[Finding]:
    compiler = find_compiler()
    said = first_line([*compiler.command, "--version"])
    if said is None:
        yield Finding("compiler", "fail", f"{compiler} does not run", "repair it, or name another one in WEFT_CXX")
    else:
        yield Finding("compiler", "ok", f"{compiler}: {said}")
    yield Finding("flags", "ok", " ".join(flags()))


def _cpu() -> Iterator[Finding]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    has = set(line[1].split()) if line else set[str]()
    vectors = [name for name in _VECTORS if name in has]
    capability = torch.backends.cpu.get_cpu_capability()
    found = f"{processor()}; {' '.join(vectors) or 'no vector units that weft knows of'}; PyTorch uses {capability}"
    if has and platform.machine() == "x86_64" and not {"avx2", "fma"} <= has:
        yield Finding("processor", "warn", found, "nothing: kernels work without AVX2, but are slow")
    else:
        yield Finding("processor", "ok", found)


def _threads() -> Iterator[Finding]:
    stated, usable = current().threads, len(os.sched_getaffinity(0))
    used = stated or torch.get_num_threads()
    source = f"the option threads says so; PyTorch uses {torch.get_num_threads()}" if stated else "as PyTorch"
    found = f"{used} ({source}); this process may run on {usable} of {os.cpu_count()} processors"
    if used > usable:
        yield Finding(
            "threads",
            "warn",
            found,
            f"set WEFT_THREADS or torch.set_num_threads to {usable} (more threads only wait for each other)",
        )
    else:
        yield Finding("threads", "ok", found)


def _brgemm() -> Iterator[Finding]:
    if current().brgemm == "off":
        yield Finding(
            "brgemm", "warn", "switched off by the option", "unset WEFT_BRGEMM: large matmuls are slower without it"
        )
        return
    library = ctypes.CDLL("libtorch_cpu.so", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    # The names are the ones that kernels look for.
    text = (INCLUDE_DIR / "prelude.h").read_text(encoding="utf-8")
    symbols = dict(re.findall(r'(\w+) = \(\w+\)dlsym\(torch, "(\w+)"\)', text))
    missing = sorted(kind for kind, symbol in symbols.items() if not hasattr(library, symbol))
    if missing or not symbols:
        todo = "nothing, but large matmuls are slower than PyTorch's: this PyTorch does not export what weft looks for"
        yield Finding("brgemm", "warn", f"PyTorch's blocked matmul does not support: {', '.join(missing)}", todo)
        return
    packs = getattr(library, symbols["could_pack"])
    packs.argtypes, packs.restype = [ctypes.c_int8], ctypes.c_bool
    units = (
        "bfloat16 on matrix units"
        if packs(_BFLOAT16)
        else "float32 only; bfloat16 on weft's own vector code (no matrix units)"
    )
    yield Finding("brgemm", "ok", f"PyTorch's blocked matmul: {units}")


def _cache() -> Iterator[Finding]:
    folder = CacheFolder()
    if not folder.persistent:
        todo = "name a folder in WEFT_CACHE_DIR: without one, every process compiles again"
        yield Finding("cache", "warn", "no folder: this user has no home folder", todo)
        return
    good, damaged = 0, 0
    for _, found in folder.examine():
        good, damaged = good + isinstance(found, Entry), damaged + isinstance(found, str)
    size = folder.size()
    text = f"{folder.path}: {good} {'entry' if good == 1 else 'entries'}, {size / 2**20:.1f} MiB"
    if damaged:
        text += f", {damaged} more that are damaged or unfinished, which are rebuilt when they are needed"
    try:
        probe = folder.path / f".probe.{os.getpid()}"
        write_file(probe, b"weft")
        probe.unlink()
    except OSError as error:
        todo = "make it writable or name another one in WEFT_CACHE_DIR: until then, every process compiles again"
        yield Finding("cache", "warn", f"{text}; it cannot be written to ({error.strerror})", todo)
        return
    if os.statvfs(folder.path).f_flag & os.ST_NOEXEC:
        todo = "name a folder in WEFT_CACHE_DIR whose file system allows execution: until then, every process compiles again"
        yield Finding("cache", "warn", f"{text}; its file system forbids execution", todo)
    elif size > _MANY_BYTES:
        yield Finding("cache", "warn", text, "run `weft cache clear --older-than 30d`")
    else:
        yield Finding("cache", "ok", f"{text}; writable by you alone")


def _temporary() -> Iterator[Finding]:
    try:
        yield Finding("temporary files", "ok", str(scratch.scratch_base()))
    except OSError as error:
        yield Finding(
            "temporary files", "fail", error.strerror or str(error), "free some space, or name another folder in TMPDIR"
        )


def _kernel() -> Iterator[Finding]:
    """Compile and run a kernel that no cache has seen, and the same from the cache."""

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w + b)

    def inputs(number: int) -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(number)
        return tuple(torch.randn(shape, generator=random) for shape in ((37, 19), (19, 23), (23,)))

    with tempfile.TemporaryDirectory(prefix="weft-doctor-") as name, options(cache_dir=name):
        program = optimize(layer, inputs(0))
        if not program.kernels:
            reasons = "; ".join(map(str, program.fallbacks))
            yield Finding("kernel, check", "fail", f"PyTorch runs it: {reasons}", "report this with the whole output")
            return
        again = optimize(layer, inputs(0))
        yield _checked(program.kernels[0].verdict)
        yield _judged(program.kernels[0].judged)
        judgement = Standard.of(layer, inputs).judge(program)
        yield Finding(
            "kernel, run",
            "ok" if judgement else "fail",
            f"relu(x @ w + b) in {len(program.kernels)} kernel: {judgement}",
            "" if judgement else "run `make test` in weft's checkout, and report this with the whole output",
        )
        if all(kernel.from_cache for kernel in again.kernels):
            yield Finding("kernel, again", "ok", "from the cache")
        else:
            todo = "check whether the folder for temporary files forbids execution (mount option noexec)"
            yield Finding("kernel, again", "warn", "compiled again: the cache did not return it", todo)


def _checked(verdict: Verdict) -> Finding:
    todo = "" if verdict.agrees else "report this with the whole output; what does not agree runs in PyTorch"
    return Finding("kernel, check", "ok" if verdict.agrees else "fail", str(verdict), todo)


def _judged(said: str) -> Finding:
    if said.startswith(NOT_JUDGED):
        return Finding(
            "kernel, judge", "warn", said, 'have kernels tested on hard inputs before they serve: judge="first"'
        )
    return Finding("kernel, judge", "ok", said)


def _options() -> Iterator[Finding]:
    for entry in fields(Options):
        value, variable = getattr(current(), entry.name), variable_of(entry.name)
        if os.environ.get(variable):
            source = variable
        elif entry.name == "compiler" and os.environ.get("CXX"):
            source = "CXX"
        else:
            source = "default"
        yield Finding(f"option {entry.name}", "ok", f"{value!r} ({source})")


def _gpu() -> Iterator[Finding]:
    if torch.cuda.is_available():
        yield from (_one_gpu(torch.device("cuda", i)) for i in range(torch.cuda.device_count()))
    elif Path("/dev/nvidiactl").exists():
        why = "this PyTorch is built without CUDA" if torch.version.cuda is None else "PyTorch cannot use it"
        yield Finding("GPU", "ok", f"there is one, but {why}; weft.compile makes kernels for the CPU")
    else:
        yield Finding(
            "GPU", "ok", "none; weft.compile makes kernels for the CPU, weft.optimize(target=...) for GPUs elsewhere"
        )


def _one_gpu(device: torch.device) -> Finding:
    target = of_device(device)
    name = f"{torch.cuda.get_device_name(device)}, {target}"
    try:
        gpu(target)
    except TargetError as error:
        return Finding("GPU", "warn", f"{name}: {error.what}", "nothing: PyTorch runs functions of tensors on this GPU")
    if find_spec("triton") is None:
        return Finding(
            "GPU", "warn", f"{name}: Triton is missing, so PyTorch runs functions of tensors on this GPU", _WITH_TRITON
        )
    if not toolchain(target).runs_on(target):
        return Finding(
            "GPU",
            "warn",
            f"{name}: weft compiles kernels for it, but does not run them",
            "nothing: PyTorch runs functions of tensors on this GPU",
        )
    return Finding("GPU", "ok", f"{name}: weft.compile makes Triton kernels for it")


def _tracing() -> Iterator[Finding]:
    if keeps_numbers():
        yield Finding("tracing", "ok", f"weft knows how PyTorch {torch.__version__} traces")
    else:
        yield Finding(
            "tracing",
            "warn",
            f"weft does not know how PyTorch {torch.__version__} traces numbers among several indices (`x[:, i]`)",
            "nothing: results are right, but a function that is called with many such numbers "
            "is compiled again for each of the first ones",
        )


_LOOKS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("compiler", _compiler),
    ("processor", _cpu),
    ("threads", _threads),
    ("brgemm", _brgemm),
    ("cache", _cache),
    ("temporary files", _temporary),
    ("kernel", _kernel),
    ("tracing", _tracing),
    ("options", _options),
    ("GPU", _gpu),
)


def _measure(path: Path, seconds: float, as_json: bool) -> None:
    found = measure_machine(seconds)
    write_json(path, found.to_json())
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    terminal = console()
    terminal.print(found.machine, table(found), f"written to {path}", sep="\n", markup=False)
    if busy := unsteady(found):
        todo = "measure again when nothing else runs, or longer (--seconds)"
        terminal.print(f"unsteady: {', '.join(busy)}\n      what to do: {todo}", markup=False)


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option(
    "--measure", type=NewFile(), metavar="FILE.json", help="Measure this machine instead, and write it as a chip."
)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=15, show_default=True, help="How long to measure.")
@reporting
def doctor(as_json: bool, measure: Path | None, seconds: float) -> None:
    """Check everything that weft needs or uses on this machine, compile, verify and run a small kernel, and say what to do.

    Exits with 1 if something fails.
    """
    if measure is not None:
        _measure(measure, seconds, as_json)
        return
    terminal, failed, seen = console(), False, list[dict[str, str]]()
    for finding in findings():
        failed |= finding.state == "fail"
        if as_json:
            seen.append(asdict(finding))
            continue
        terminal.print(
            Text(f"{finding.state:<5}", _COLOURS[finding.state]), f"{finding.name}: {finding.found}", markup=False
        )
        if finding.todo:
            terminal.print(f"      what to do: {finding.todo}", markup=False)
    if as_json:
        click.echo(json.dumps({"failed": failed, "findings": seen}, indent=1))
    if failed:
        raise SystemExit(1)
