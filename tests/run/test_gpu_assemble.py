"""Triton in processes of its own: what it makes, what fails, and that one failure is one job's."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from testkit.run.gpu_kernels import H100, JOB, KIND, TEXT
from weft.errors import CompilerError, TargetError, UnsupportedError
from weft.run import stats
from weft.run.gpu import Assembled, Job, assemble, side_by_side, workers
from weft.run.gpu.assemble import parameters_of
from weft.target import Target

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

WIDE = """
import triton
import triton.language as tl

@triton.jit
def wide(x, y, size, s0: tl.constexpr):
    i, j = tl.arange(0, 128), tl.arange(0, 128)
    total = tl.zeros((128, 128), tl.float32)
    for k in range(0, size, 128):
        a = tl.load(x + i[:, None] * 1024 + k + tl.arange(0, 128)[None, :])
        b = tl.load(x + (k + tl.arange(0, 128))[:, None] * 1024 + j[None, :])
        total = tl.dot(a, b, total)
    tl.store(y + i[:, None] * 128 + j[None, :], total)
"""

DESCRIBED = """
import triton
import triton.language as tl

@triton.jit
def described(x, y, size):
    a = tl.make_tensor_descriptor(x, [size, 64], [64, 1], [64, 64])
    b = tl.make_tensor_descriptor(y, [size, 64], [64, 1], [64, 64])
    b.store([tl.program_id(0) * 64, 0], a.load([tl.program_id(0) * 64, 0]))
"""


def test_a_binary_takes_what_its_class_says() -> None:
    made = assemble(JOB)
    own = [KIND.arguments[i].bytes for i in KIND.parameters]
    assert made.binary.startswith(b"\x7fELF")
    assert made.parameters == parameters_of(made.assembly, "twice") == (*own, 8, 8)
    assert (made.name, made.threads, made.scratch, made.kind, made.target) == ("twice", 128, 0, KIND, H100)
    assert "sm_90" in made.assembly
    assert Assembled.from_json(made.to_json(), made.binary, made.assembly) == made
    assert assemble(replace(JOB, warps=8)).threads == 256


def test_descriptors_of_tensors_need_memory_of_tritons_own() -> None:
    kind = replace(KIND, arguments=KIND.arguments[1:4])
    made = assemble(Job(DESCRIBED, "described", kind, H100))
    assert made.scratch > 0
    assert made.parameters == (8, 8, 4, 8, 8)


@pytest.mark.parametrize("target", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_gpus_that_are_not_here(target: str) -> None:
    made = assemble(replace(JOB, target=Target.parse(target)))
    assert made.binary.startswith(b"\x7fELF")
    assert made.threads == (256 if "hip" in target else 128)


def test_jobs_side_by_side_fail_alone() -> None:
    crash = "import os\nos.abort()\n"
    broken = TEXT.replace("tl.arange(0, BLOCK_n)", "tl.arange(0, BLOCK_n, 7, 8)")
    before = stats.snapshot()
    jobs = [JOB, replace(JOB, text=crash), replace(JOB, text=broken), replace(JOB, target=Target("cuda", "80")), JOB]
    first, crashed, refused, other, last = side_by_side([partial(assemble, job) for job in jobs], workers=2)
    assert isinstance(first, Assembled)
    assert first == last
    assert isinstance(other, Assembled)
    assert isinstance(crashed, CompilerError)
    assert "kernel twice for cuda:90, 4 warps, 1 stages: Triton crashed (exit status -6)" in crashed.what
    assert isinstance(refused, CompilerError)
    assert "Triton refused it" in refused.what
    assert "BLOCK_n, 7, 8" in refused.output
    after = stats.snapshot()
    assert (after.compiles - before.compiles, after.binaries_emitted - before.binaries_emitted) == (5, 3)


def test_without_time_nothing_is_compiled_and_with_little_it_is_said_to_have_been_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers.retire()
    with pytest.raises(CompilerError, match=r"had not finished after 0.01 s and was stopped"):
        assemble(JOB, 0.01)  # the process still imports Triton by then
    (worker,) = workers._serving
    assert assemble(JOB, 60.0).parameters
    assert workers._serving == [worker]  # which goes on importing, and serves the next
    monkeypatch.setattr(workers, "ask", lambda *_: pytest.fail("Triton is asked"))
    with pytest.raises(CompilerError, match="out of time"):
        assemble(JOB, -1.0)


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    """And what it has started, as Triton starts ptxas."""
    said = tmp_path / "number"
    text = f"import pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '100'])\npathlib.Path({str(said)!r})"
    slow = replace(JOB, text=f"{text}.write_text(str(child.pid))\ntime.sleep(100)\n")
    with pytest.raises(CompilerError, match=r"had not finished after 2 s and was stopped"):
        assemble(slow, seconds=2)
    state = Path("/proc") / said.read_text() / "stat"
    deadline = time.monotonic() + 5
    while state.exists() and ") Z " not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not state.exists() or ") Z " in state.read_text()


def test_too_much_shared_memory_is_refused() -> None:
    kind = replace(KIND, arguments=(*KIND.arguments[:2], KIND.arguments[3], KIND.arguments[-1]))
    with pytest.raises(UnsupportedError, match=r"needs \d+ bytes of shared memory, but cuda:90 has 232448"):
        assemble(Job(WIDE, "wide", kind, H100, 8, 3))


def test_what_triton_cannot_do_is_said() -> None:
    with pytest.raises(CompilerError, match="kernel twice for cuda:90, 3 warps"):
        assemble(replace(JOB, warps=3))
    with pytest.raises(TargetError, match="no kernels for hip:gfx900"):
        assemble(replace(JOB, target=Target("hip", "gfx900")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('no such library')", "no such library"),
        ("raise ModuleNotFoundError('No module named triton')", "No module named triton"),
        ("raise OSError('libcuda is gone')", "importing it failed with OSError: libcuda is gone"),
        ("__version__ = '3.5.1'", "Triton 3.5.1 is older than 3.6"),
    ],
)
def test_a_triton_that_cannot_be_used(other_triton: Path, text: str, said: str) -> None:
    other_triton.write_text(f"{text}\n")
    (other_triton.parent / "compiler.py").write_text("")
    with pytest.raises(CompilerError, match=said) as caught:
        assemble(JOB)
    assert "weft[gpu]" in caught.value.todo


def test_a_triton_that_passes_other_arguments_is_refused(other_triton: Path) -> None:
    other_triton.write_text(
        "__version__ = '3.9.0'\ndef jit(f):\n    f.arg_names = f.__code__.co_varnames[:9]\n    return f\n"
    )
    folder = other_triton.parent
    (folder / "language.py").write_text("constexpr = int\n")
    (folder / "backends").mkdir()
    (folder / "backends" / "__init__.py").write_text("")
    (folder / "backends" / "compiler.py").write_text(
        "class GPUTarget:\n    def __init__(self, *a):\n        self.warp_size = a[2]\n"
    )
    (folder / "compiler.py").write_text(
        "from types import SimpleNamespace as S\n"
        "def ASTSource(*a):\n    return a\n"
        "def compile(*a, **k):\n"
        "    ptx = '.visible .entry twice(\\n\\t.param .u64 .ptr .global .align 1 p0,\\n\\t.param .u32 p1\\n)'\n"
        "    said = S(name='twice', shared=0, num_warps=4, global_scratch_size=0)\n"
        "    return S(asm={'cubin': b'', 'ptx': ptx}, metadata=said)\n"
    )
    with pytest.raises(CompilerError, match=r"Triton 3.9.0 made a binary with parameters of \(8, 4\) bytes"):
        assemble(JOB)


def test_parameters_are_read_from_the_kernel_that_is_meant() -> None:
    first = ".visible .entry a(\n\t.param .u64 p\n)\n"
    text = f"{first}.visible .entry b(\n\t.param .align 8 .b64 p0,\n\t.param .u32 p1,\n\t.param .f32 p2\n)"
    assert (parameters_of(text, "a"), parameters_of(text, "b")) == ((8,), (8, 4, 4))
    with pytest.raises(ValueError, match="no kernel c"):
        parameters_of(text, "c")


def test_other_settings_of_triton_ask_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = assemble(JOB).assembly
    assert "fma.rn.f32" in fused
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert "fma.rn.f32" not in assemble(JOB).assembly
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION")
    made = assemble(JOB)
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert assemble(JOB).binary != made.binary
    monkeypatch.delenv("DISABLE_PTXAS_OPT")
    monkeypatch.setenv("PTXAS_OPTIONS", "--no-such-option")
    with pytest.raises(CompilerError, match="ptxas"):
        assemble(JOB)
    monkeypatch.delenv("PTXAS_OPTIONS")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert assemble(JOB).assembly == fused
