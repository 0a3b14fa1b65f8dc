"""The way through for GPUs: what is in the cache is neither emitted nor compiled, and Triton is not imported for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from testkit.run.gpu_kernels import SOURCE, TEXT, TWICE
from weft.errors import CompilerError, NotBuiltError, TargetError, UnsupportedError, WeftError
from weft.options import options
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.gpu import (
    Assembled,
    GpuBinary,
    GpuSource,
    Job,
    KernelClass,
    build,
    build_gpu,
    class_of,
    exact_binaries,
    recalled_gpu,
    restored_gpu,
    side_by_side,
    workers,
)
from weft.run.gpu.build import Classes, gpu_parts
from weft.run.gpu.classes import following
from weft.target import CPU, Target

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

H100, PARTS = Target("cuda", "90"), {"program": "twice"}
SIZES, STRIDES = {"M": 64, "N": 48}, [(48, 1), (1,)]

IN_ANOTHER_PROCESS = """
import json, os, sys
sys.modules["triton"] = None  # PyTorch's compiler looks for it, and finds none; weft must not miss it either
import torch
from testkit.run.gpu_kernels import SOURCE
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.gpu import build_gpu
from weft.target import Target

def emit():
    raise AssertionError("emitted although it was cached")

binary = build_gpu({"program": "twice"}, emit, Target("cuda", "90"), CacheFolder(sys.argv[1]))
assembled = binary.assemble_for({"M": 64, "N": 48}, [(48, 1), (1,)])
counts = stats.snapshot()
warm = [binary.from_cache, counts.compiles, counts.cache_hits, len(assembled.binary)]
del sys.modules["triton"]
os.environ["TRITON_INTERPRET"] = "1"
binary = build_gpu({"program": "twice"}, emit, Target("cuda", "90"), CacheFolder(sys.argv[1]))
errors = []
inputs = [(torch.randn(45, 37), torch.randn(37)), (torch.randn(3, 64).T, torch.randn(6)[::2])]
for x, b in [*inputs, (torch.randn(0, 5), torch.randn(5))]:
    (found,) = binary.launch(x, b)
    errors.append(float((found - (2 * x + b)).abs().sum()))
try:
    binary.launch(torch.randn(3, 0), torch.randn(0))
except Exception as error:
    errors.append(str(error))
import threading
wrong = []
def repeatedly(x, b):
    for _ in range(8):
        try:
            wrong.extend([] if torch.equal(binary.launch(x, b)[0], 2 * x + b) else ["another result"])
        except Exception as error:
            wrong.append(str(error))
threads = [threading.Thread(target=repeatedly, args=pair) for pair in inputs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
errors.append(wrong)
compiled = len(binary.assemble_for({"M": 1, "N": 48}, [(48, 1), (1,)]).binary)
print(json.dumps([warm, errors, compiled]))
"""


def never() -> GpuSource:
    raise AssertionError("emitted although it was cached")


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")


def counted(run: Callable[[], object]) -> tuple[int, int]:
    before = stats.snapshot()
    run()
    after = stats.snapshot()
    return after.compiles - before.compiles, after.cache_hits - before.cache_hits


def built(folder: CacheFolder, emit: Callable[[], GpuSource] = never, target: Target = H100) -> GpuBinary:
    return build_gpu(PARTS, emit, target, folder)


def test_a_miss_compiles_and_a_hit_does_not(folder: CacheFolder) -> None:
    cold = built(folder, lambda: SOURCE)
    assert counted(lambda: cold.assemble_for(SIZES, STRIDES)) == (1, 0)
    assert counted(lambda: cold.assemble_for({"M": 16, "N": 64}, [(64, 1), (1,)])) == (0, 0), "the same class"
    warm = built(folder)
    assert (cold.from_cache, warm.from_cache, cold.key) == (False, True, warm.key)
    assert counted(lambda: warm.assemble_for(SIZES, STRIDES)) == (0, 1)
    assert warm.assembled == cold.assembled
    assert (warm.text, warm.signature, warm.meta) == (TEXT, TWICE, SOURCE.meta)
    assert counted(lambda: warm.assemble_for(SIZES, STRIDES, starts=(4,) * len(STRIDES))) == (1, 0)
    assert len(warm.assembled) == 2


def test_a_text_that_is_not_kept_leaves_its_binary_alone(folder: CacheFolder) -> None:
    emitted: list[int] = []

    def emit() -> GpuSource:
        emitted.append(1)
        return SOURCE

    first = build_gpu(PARTS, emit, H100, folder, kept=False)
    first.assemble_for(SIZES, STRIDES)
    again = build_gpu(PARTS, emit, H100, folder, kept=False)
    assert counted(lambda: again.assemble_for(SIZES, STRIDES)) == (0, 1)
    assert not again.from_cache
    assert len(emitted) == 2
    assert recalled_gpu(first.key, H100) is None


def test_a_kernel_is_had_by_its_key(folder: CacheFolder) -> None:
    cold = built(folder, lambda: SOURCE)
    cold.assemble_for(SIZES, STRIDES)
    with options(cache_dir=str(folder.path)):
        warm = recalled_gpu(cold.key, H100)
        assert warm is not None
        assert (warm.text, warm.signature, warm.meta, warm.from_cache) == (TEXT, TWICE, SOURCE.meta, True)
        assert not warm.assembled
        assert counted(lambda: warm.assemble_for(SIZES, STRIDES)) == (0, 1)
        assert warm.assembled == cold.assembled
        assert recalled_gpu("0" * len(cold.key), H100) is None


def test_a_restored_kernel_may_wait_for_binaries_that_others_make(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = built(folder, lambda: SOURCE)
    first = maker.assemble_for(SIZES, STRIDES)
    odd = (4,) * len(STRIDES)
    with options(cache_dir=str(folder.path)):
        waiting = restored_gpu(SOURCE, H100, [first], maker.key, compiles=False)
    assert waiting.assemble_for(SIZES, STRIDES) == first

    def asks() -> int:
        with pytest.raises(NotBuiltError):
            waiting.assemble_for(SIZES, STRIDES, starts=odd)
        return len(looked)

    looked: list[str] = []
    lookup = CacheFolder.lookup
    monkeypatch.setattr(CacheFolder, "lookup", lambda *a, **k: looked.append(a[1]) or lookup(*a, **k))
    assert [asks(), asks()] == [1, 1], "not twice in a moment"
    made = maker.assemble_for(SIZES, STRIDES, starts=odd)
    monkeypatch.setattr(build, "_LOOK_AGAIN", 0.0)
    assert waiting.assemble_for(SIZES, STRIDES, starts=odd) == made


@pytest.mark.parametrize(
    ("answer", "error", "asked"),
    [
        ({"error": "OutOfResources", "message": "shared memory"}, UnsupportedError, (1, 1, 1, 2)),
        ({"error": "CompilationError", "message": "at 3:1"}, CompilerError, (1, 1, 1, 2)),
        (workers.WorkerError("had not finished after 20 s", ""), CompilerError, (1, 1, 2, 3)),
        ({"error": "ImportError", "message": "no module named triton"}, CompilerError, (1, 2, 3, 4)),
    ],
    ids=["too large", "refused", "too slow", "no Triton"],
)
def test_a_class_that_was_refused_is_not_compiled_again(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, answer: object, error: type[WeftError], asked: tuple[int, ...]
) -> None:
    """`asked`: how often Triton was, after a call of a class, the same, the same with more time, one of another class."""
    binary, times, calls = built(folder, lambda: SOURCE), [20.0, 20.0, 300.0, 20.0], list[int]()

    def ask(job: object, seconds: float) -> object:
        calls.append(1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(workers, "ask", ask)
    counts: list[int] = []
    for seconds, sizes in zip(times, (SIZES, SIZES, SIZES, {"M": 33, "N": 48}), strict=True):
        with pytest.raises(error) as caught:
            binary.assemble_for(sizes, STRIDES, seconds=seconds)
        assert len(caught.traceback) < 20
        counts.append(len(calls))
    assert tuple(counts) == asked


class Compiler:
    """Stands for Triton: notes what it compiles, and waits for `go` with what is compiled in a thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds, self.go, self.here = list[str](), threading.Event(), threading.current_thread()
        self.refused: str | None = None
        monkeypatch.setattr(build, "assemble", self.assemble)

    def assemble(self, job: Job, seconds: float = 0.0) -> Assembled:
        del seconds
        self.kinds.append(numbers_of(job.kind))
        if self.kinds[-1] == self.refused:
            raise CompilerError("Triton refused the kernel", kernel=job.name)
        if threading.current_thread() is not self.here:
            assert self.go.wait(10)
        return Assembled(job.name, job.kind, job.target, b"", "", 0, 128, ())


def numbers_of(kind: KernelClass) -> str:
    """Write what a class says of sizes and strides: of M, N and a row of `x`."""
    return " ".join(map(str, kind.arguments[3:6]))


def kind_of(m: int, n: int, start: int = 0) -> KernelClass:
    return class_of(TWICE, [start, 0, 0], {"M": m, "N": n}, [n, 1, 1])


def classes(folder: CacheFolder, **how: Any) -> Classes:
    return Classes(SOURCE, H100, folder, **how)


def changing(found: Classes, m: int = 33, n: int = 50) -> Classes:
    """Tells that M and N change, by a call."""
    places = following(TWICE, {"M": m, "N": n}, [n, 1, 1], {"M", "N"})
    found.begin_any_length(kind_of(m, n), places)
    return found


def test_a_call_takes_the_binary_for_any_length_while_its_own_is_made(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, found, better = Compiler(monkeypatch), classes(folder), threading.Event()
    first = found.called(kind_of(33, 50), better.set)
    changing(found)
    for _ in range(2):
        assert found.called(kind_of(64, 48), better.set) is first
    assert not better.is_set()
    triton.go.set()
    assert better.wait(10)
    assert found.called(kind_of(64, 48), better.set).kind == kind_of(64, 48)
    for m, n in ((33, 50), (64, 50), (33, 48)):
        assert found.called(kind_of(m, n), better.set) is first
    assert triton.kinds == ["i32 i32 i32", "i32:16 i32:16 i32:16"]


def test_kernels_whose_lengths_do_not_change_have_each_binary(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, found = Compiler(monkeypatch), classes(folder)
    for m, n, start in ((33, 50, 4), (64, 50, 0), (64, 48, 0)):
        kind = kind_of(m, n, start)
        assert found.called(kind, never_better).kind == kind
    assert len(triton.kinds) == 3


def test_addresses_and_blocks_that_were_not_met_have_a_binary_for_any_length(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, found = Compiler(monkeypatch), classes(folder)
    triton.go.set()
    found.called(kind_of(64, 48), never_better)
    changing(found, 64, 48)
    for kind in (kind_of(64, 50, start=4), kind_of(64, 100), kind_of(33, 96)):
        made = found.called(kind, never_better)
        assert made.kind.serves(kind)
        assert numbers_of(made.kind) == "i32 i32 i32"
    found.settle()
    assert set(triton.kinds) == {"i32:16 i32:16 i32:16", "i32 i32 i32"}
    assert len(found.met()) == 4


def test_a_call_waits_for_the_binary_for_any_length_that_is_being_made(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, found = Compiler(monkeypatch), classes(folder)
    found.called(kind_of(64, 48), never_better)
    changing(found, 64, 48)
    threading.Timer(0.1, triton.go.set).start()
    assert found.called(kind_of(64, 50), never_better).kind == kind_of(33, 50)
    assert triton.kinds == ["i32:16 i32:16 i32:16", "i32 i32 i32"]


def test_where_the_binary_for_any_length_is_refused_a_call_gets_its_own(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, found = Compiler(monkeypatch), classes(folder)
    triton.go.set()
    triton.refused = "i32 i32 i32"
    changing(found)
    for m, n in ((33, 48), (64, 48)):
        assert found.called(kind_of(m, n), never_better).kind == kind_of(m, n)


def test_what_is_begun_can_be_waited_for(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    triton, found, better = Compiler(monkeypatch), classes(folder), threading.Event()
    triton.go.set()
    changing(found)
    found.called(kind_of(64, 48), better.set)
    found.settle()
    assert better.wait(10)
    assert {numbers_of(each.kind) for each in found.met()} == {"i32 i32 i32", "i32:16 i32:16 i32:16"}


def test_who_compiles_for_others_makes_each_binary(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    triton, found = Compiler(monkeypatch), classes(folder)
    with exact_binaries():
        changing(found)
        for m, n in ((33, 50), (64, 50), (64, 48)):
            assert found.called(kind_of(m, n), never_better).kind == kind_of(m, n)
        triton.refused = "i32 i32:16 i32:16"
        with pytest.raises(CompilerError):  # another one that serves would be of no use to who asks
            found.called(kind_of(33, 48), never_better)
    assert len(triton.kinds) == 4


def test_who_compiles_nothing_asks_for_each_binary(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in PyTorch until others have made it: a binary that knows less would be kept for good."""
    Compiler(monkeypatch)
    own = classes(folder).of(kind_of(33, 50))
    waiting = changing(classes(folder, known=[own], compiles=False))
    assert waiting.called(kind_of(33, 50), never_better) is own
    with pytest.raises(NotBuiltError):
        waiting.called(kind_of(64, 48), never_better)


def test_without_triton_a_binary_that_serves_is_taken(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    Compiler(monkeypatch)
    own = classes(folder).of(kind_of(33, 50))
    loaded = classes(folder, known=[own])

    def gone(*_: object) -> Assembled:
        raise CompilerError("there is no Triton")

    monkeypatch.setattr(build, "assemble", gone)
    assert loaded.called(kind_of(64, 48), never_better) is own
    with pytest.raises(CompilerError):
        loaded.called(kind_of(33, 100), never_better)


def test_a_forked_child_waits_for_no_thread_of_its_parent(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    triton, found = Compiler(monkeypatch), changing(classes(folder))
    while not triton.kinds:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        triton.go.set()
        signal.alarm(20)
        os._exit(0 if found.called(kind_of(64, 50), never_better).kind == kind_of(33, 50) else 1)
    triton.go.set()  # who compiles holds the lock of a file, for which other processes wait
    assert os.waitpid(child, 0)[1] == 0


def never_better() -> None:
    """Hear of a better binary."""


def test_refused_classes_are_forgotten_the_oldest_first(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.run.gpu.build._MOST_FAILED", 1)
    binary, asked = built(folder, lambda: SOURCE), list[int]()
    refusal = {"error": "OutOfResources", "message": "shared memory"}
    monkeypatch.setattr(workers, "ask", lambda job, seconds: asked.append(job["arguments"][3][1]) or refusal)
    for m in (16, 33, 33, 16):
        with pytest.raises(UnsupportedError, match="shared memory"):
            binary.assemble_for({"M": m, "N": 48}, STRIDES)
    assert asked == [True, False, True]


def test_another_process_neither_compiles_nor_imports_triton_and_interprets_where_asked(folder: CacheFolder) -> None:
    size = len(built(folder, lambda: SOURCE).assemble_for(SIZES, STRIDES).binary)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(folder.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    warm, errors, compiled = json.loads(done.stdout.splitlines()[-1])
    assert warm == [True, 0, 1, size]
    assert errors[:3] == [0.0, 0.0, 0.0]
    assert "N without elements" in errors[3]
    assert errors[4] == [], "threads do not disturb each other"
    assert compiled > 0, "kernels are compiled, not interpreted, for a GPU, whatever runs them here"


def test_other_parts_options_or_targets_are_another_kernel(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = lambda: SOURCE  # noqa: E731
    keys = {built(folder, emit).key, built(folder, emit, Target("cuda", "80")).key}
    keys.add(build_gpu({**PARTS, "schedule": "x"}, emit, H100, folder).key)
    with options(seed=7):
        keys.add(built(folder, emit).key)
    with options(compiler="another"):
        before = len(gpu_parts(H100))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    keys.add(built(folder, emit).key)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert built(folder).from_cache
    assert len(keys) == before == 5
    assert not {"compiler", "flags", "torch"} & gpu_parts(H100).keys()


@pytest.mark.parametrize(
    "name",
    ["DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "AMDGCN_USE_BUFFER_OPS", "DISABLE_LLVM_OPT", "DISABLE_MMA_V5", "USE_IR_LOC"],
)
def test_variables_of_tritons_without_its_name_are_in_the_keys(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plain = built(folder, lambda: SOURCE)
    plain.assemble_for(SIZES, STRIDES)
    monkeypatch.setenv(name, "0")
    other = built(folder, lambda: SOURCE)
    assert other.key != plain.key
    monkeypatch.setattr("weft.run.gpu.build.assemble", lambda *_: pytest.fail("compiled"))
    with pytest.raises(pytest.fail.Exception, match="compiled"):
        other.assemble_for(SIZES, STRIDES)


def test_what_there_was_no_time_for_is_compiled_when_there_is(folder: CacheFolder) -> None:
    binary = built(folder, lambda: SOURCE)
    with pytest.raises(CompilerError, match="out of time"):
        binary.assemble_for(SIZES, STRIDES, seconds=-0.5)
    assert counted(lambda: binary.assemble_for(SIZES, STRIDES)) == (1, 0)


def test_what_is_no_gpu_and_parts_that_hide_the_environment(folder: CacheFolder) -> None:
    with pytest.raises(TargetError, match="cpu is no GPU"):
        built(folder, target=CPU)
    with pytest.raises(ValueError, match="triton"):
        build_gpu({"triton": "mine"}, never, H100, folder)


def test_a_damaged_entry_is_made_again(folder: CacheFolder) -> None:
    binary = built(folder, lambda: SOURCE)
    binary.assemble_for(SIZES, STRIDES)
    [cubin] = folder.path.glob("*/*.cubin")
    cubin.write_bytes(b"\x7fELF")
    assert counted(lambda: built(folder).assemble_for(SIZES, STRIDES)) == (1, 0)
    assert counted(lambda: built(folder).assemble_for(SIZES, STRIDES)) == (0, 1)
    [text] = (folder.path / binary.key).glob("*.py")
    text.write_text("import os")
    again = built(folder, lambda: SOURCE)
    assert (again.from_cache, again.text) == (False, TEXT)


def test_kernels_side_by_side(folder: CacheFolder) -> None:
    good = built(folder, lambda: SOURCE)
    bad = build_gpu({"program": "bad"}, lambda: replace(SOURCE, text="import nothing_like_this"), H100, folder)
    calls = [(good, 64), (good, 3), (good, 32), (bad, 64)]
    found = side_by_side([partial(each.assemble_for, {"M": m, "N": 48}, STRIDES) for each, m in calls], workers=2)
    assert [type(f) for f in found] == [Assembled, Assembled, Assembled, CompilerError]
    assert found[0] is found[2]
    assert isinstance(found[3], WeftError)
    assert set(good.assembled) == set(found[:2])
    assert counted(lambda: good.assemble_for(SIZES, STRIDES)) == (0, 0)


def test_a_kernel_for_amd_is_compiled_and_not_run(folder: CacheFolder) -> None:
    binary = built(folder, lambda: SOURCE, Target("hip", "gfx942"))
    assert "amdgcn" in binary.assemble_for(SIZES, STRIDES).assembly
    with pytest.raises(TargetError, match="does not run them"):
        binary.launch(torch.zeros(2, 2), torch.zeros(2))


def test_no_gpu_is_needed_until_a_call(folder: CacheFolder) -> None:
    with pytest.raises(TargetError, match="its inputs are on the CPU"):
        built(folder, lambda: SOURCE).launch(torch.zeros(2, 2), torch.zeros(2))
