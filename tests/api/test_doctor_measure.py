"""`weft doctor --measure` writes this machine as a chip."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from weft.cli.main import main
from weft.cost import CHIPS, chip, read_chip
from weft.cost.machine import Processor
from weft.errors import CompilerError, TargetError
from weft.lab.machine import cpu, figures, gpu
from weft.lab.machine.figures import Rate, Repeat, published_as
from weft.lab.machine.report import table, unsteady
from weft.tensor.dtypes import DType


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures the GPU")
def test_this_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_SIDES", (64, 128))
    path = tmp_path / "here.json"
    result = CliRunner().invoke(main, ["doctor", "--measure", str(path), "--seconds", "0.5"])
    assert result.exit_code == 0, result.output
    found, processor = read_chip(path), Processor.here()
    assert (found.multiprocessors, found.hertz) == (torch.get_num_threads(), processor.hertz)
    assert [level.name for level in found.levels if level.name != "L3"] == ["registers", "L1", "L2", "memory"]
    assert [found.level(name).bytes for name in ("L1", "L2")] == list(processor.caches[:2])
    assert all(1e7 < level.bytes_per_second < 1e16 for level in found.levels[1:])
    assert {DType.float32, DType.float64} <= found.vector.keys()
    assert found.special == 0
    assert found.matrix.keys() <= processor.tiles
    for line in ("memory, reads of", "float32 (vectors), multiplications", f"written to {path}"):
        assert line in result.output
    written = json.loads(path.read_text())
    assert written["levels"][1]["bytes_per_second"].keys() == {"how", "unit", "by", "median", "spread"}
    assert written["hertz"]["how"] == "system"


def test_work_is_counted_once_for_each_thread_and_pass() -> None:
    """A kernel that takes 1 ms a pass on two threads: rates follow from it alone."""

    def kernel(words: bytes) -> None:
        taken, repeats, threads, passes, *_ = torch.frombuffer(bytearray(words), dtype=torch.int64).tolist()
        assert (repeats, threads) == (1, 2)
        cpu.ctypes.c_double.from_address(taken).value = passes * 1e-3

    for repeat, rate in ((cpu._multiplied(kernel, 2, 3e6, 0.1), 3e9), (cpu._read(kernel, 2, 10000, 0.1), 2 * 8192e3)):
        assert repeat.work / repeat.run() == pytest.approx(rate)
        assert 0.05 <= repeat.run() <= 0.2


def test_work_is_counted_once_for_each_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 1 ms: so does one in a repeat of many."""
    monkeypatch.setattr(cpu, "_SIDES", (64, 64))
    monkeypatch.setattr(cpu, "_seconds", lambda multiply, matrix: 1e-3)
    monkeypatch.setattr(gpu, "_seconds", lambda call, count: count * 1e-3)
    on_cpu, on_gpu = cpu._matmul(DType.bfloat16, 0.0105), gpu._repeat(lambda: None, 2 * 64**3, 0.0105, "a matmul")
    for repeat in (on_cpu, on_gpu):
        assert repeat is not None
        assert repeat.run() == pytest.approx(10e-3)
        assert repeat.work / repeat.run() == pytest.approx(2 * 64**3 / 1e-3)


def test_figures_take_turns_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ran = 0.0, list[str]()

    def repeat(name: str, seconds: float) -> Repeat:
        def run() -> float:
            nonlocal now
            now += seconds
            ran.append(name)
            return seconds

        return Repeat(6.0, name, run)

    monkeypatch.setattr(figures.time, "perf_counter", lambda: now)
    steps = {"a": lambda aim: repeat("a", 1.0), "b": lambda aim: repeat("b", 2.0), "none": lambda aim: None}
    rates = figures.measured(steps, 15.5)
    assert {path: (rate.median, rate.spread) for path, rate in rates.items()} == {"a": (6.0, 0.0), "b": (3.0, 0.0)}
    assert "".join(ran) == "abba" * 2 + "ab"
    ran.clear()
    figures.measured(steps, 0.5)
    assert len(ran) == 2 * figures.FEWEST


def test_loops_that_cannot_be_loaded_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, name: str) -> None:
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(cpu, "load", refuse)
    with pytest.raises(CompilerError, match=r"(?s)could not be loaded: failed to map.*TMPDIR"):
        cpu._kernels()


def test_buffers_lie_in_their_level() -> None:
    """Half of L1 and L2; of L3 what all L2s together cannot hold; memory beyond all caches."""
    sizes = cpu._level_sizes(Processor(2e9, 64, frozenset(), (48 << 10, 2 << 20, 105 << 20)), 56)
    assert sizes["L1"] == (48 << 10, 56, 24 << 10)
    assert sizes["L2"] == (2 << 20, 56, 1 << 20)
    assert sizes["L3"][2] >= 3 << 20
    assert sizes["memory"][2] * 56 >= 105 << 20
    assert "L3" not in cpu._level_sizes(Processor(2e9, 64, frozenset(), (32 << 10, 1 << 20, 0)), 2)


def test_rates_have_a_median_and_the_middle_halfs_spread() -> None:
    rate = Rate.of(12.0, [1, 2, 3, 4, 6], "a clock")
    assert rate.median == 4.0
    assert rate.spread == pytest.approx((6 - 3) / 4)


def test_only_the_chip_itself_is_known_by_name() -> None:
    assert published_as("NVIDIA H100 80GB HBM3") is CHIPS["H100 SXM"]
    assert published_as("Intel(R) Xeon(R) Platinum 8480+") is CHIPS["Xeon Platinum 8480+"]
    for other in ("NVIDIA A100-SXM4-40GB", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 D", "AMD EPYC"):
        assert published_as(other) is None


def properties(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        multi_processor_count=66,
        total_memory=1 << 20,
        L2_cache_size=1 << 16,
        shared_memory_per_multiprocessor=228 << 10,
        max_threads_per_multi_processor=2048,
        warp_size=32,
    )


@pytest.mark.parametrize("eighths", [True, False])
def test_a_gpu(eighths: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in the GPU's place: what is measured, what the system says, and what is published."""

    def scaled(left, right, *scales, **options) -> torch.Tensor:
        if not eighths:
            raise RuntimeError("no matmul of 8-bit floats")
        return left.to(options["out_dtype"]) @ right.to(options["out_dtype"])

    def seconds(call, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - begin

    monkeypatch.setattr(gpu, "_seconds", seconds)
    monkeypatch.setattr(gpu, "_SIDE", 32)
    monkeypatch.setattr(gpu, "scaled_mm", scaled)
    found = gpu.measure_gpu(0.2, torch.device("cpu"), properties("NVIDIA H100 80GB HBM3"))
    known, written = chip("H100 SXM"), json.loads(json.dumps(found.to_json()))
    assert found.chip.multiprocessors == found.chip.level("registers").instances == 66
    assert (found.chip.hertz, found.chip.vector) == (known.hertz, known.vector)
    assert found.chip.level("L2").bytes == 1 << 16
    assert found.chip.level("L2").bytes_per_second == found.rates["levels.L2.bytes_per_second"].median
    assert found.chip.matrix[DType.int8] == known.matrix[DType.int8]
    types = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8")
    hows = {name: written["matrix"][name]["flops"]["how"] for name in types}
    assert [name for name, how in hows.items() if how == "measured"] == list(types[: 4 if eighths else 3])
    assert written["levels"][2]["bytes"]["how"] == "system"
    assert torch.get_float32_matmul_precision() == "highest"
    ratios = list(table(found).columns[-1].cells)
    assert len(ratios) == len(found.rates) == (6 if eighths else 5)
    assert all(ratios)
    assert set(unsteady(found)) <= {
        "L2",
        "device memory",
        *(f"{n} (matrix units)" for n in types),
    }


def test_an_unknown_gpu_cannot_be_completed() -> None:
    with pytest.raises(TargetError, match="no published figures of NVIDIA Z1"):
        gpu.measure_gpu(0.1, torch.device("cpu"), properties("NVIDIA Z1"))
