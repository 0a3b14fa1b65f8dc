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
from weft.errors import TargetError
from weft.lab.machine import cpu, gpu
from weft.lab.machine.figures import Rate, published_as
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
    for line in ("memory, reads of", "float32 (vectors), multiplications", f"written to {path}"):
        assert line in result.output
    written = json.loads(path.read_text())
    assert written["levels"][1]["bytes_per_second"].keys() == {"how", "by", "median", "spread"}
    assert written["hertz"]["how"] == "system"


def test_work_is_counted_once_for_each_thread_and_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes 1 ms a pass on two threads: rates follow from it alone."""

    def kernel(words: bytes) -> None:
        taken, repeats, threads, passes, *_ = torch.frombuffer(bytearray(words), dtype=torch.int64).tolist()
        assert threads == 2
        (cpu.ctypes.c_double * repeats).from_address(taken)[:] = [passes * 1e-3] * repeats

    assert cpu._multiplied(kernel, 2, 3e6, 0.5).median == pytest.approx(3e9)
    assert cpu._read(kernel, 2, 10000, 0.5).median == pytest.approx(2 * 8192 / 1e-3)


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


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in the GPU's place: what is measured, what the system says, and what is published."""

    def seconds(call, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - begin

    monkeypatch.setattr(gpu, "_seconds", seconds)
    monkeypatch.setattr(gpu, "_SIDE", 32)
    found = gpu.measure_gpu(0.2, torch.device("cpu"), properties("NVIDIA H100 80GB HBM3"))
    known, written = chip("H100 SXM"), json.loads(json.dumps(found.to_json()))
    assert found.chip.multiprocessors == found.chip.level("registers").instances == 66
    assert (found.chip.hertz, found.chip.vector) == (known.hertz, known.vector)
    assert found.chip.level("L2").bytes == 1 << 16
    assert found.chip.level("L2").bytes_per_second == found.rates["levels.L2.bytes_per_second"].median
    assert found.chip.matrix[DType.int8] == known.matrix[DType.int8]
    hows = [written["matrix"][name]["flops"]["how"] for name in ("bfloat16", "float16", "float32", "int8")]
    assert hows == ["measured", "measured", "measured", "published"]
    assert written["levels"][2]["bytes"]["how"] == "system"
    assert torch.get_float32_matmul_precision() == "highest"
    ratios = list(table(found).columns[-1].cells)
    assert len(ratios) == len(found.rates) == 5
    assert all(ratios)
    assert set(unsteady(found)) <= {
        "L2",
        "device memory",
        *(f"{n} (matrix units)" for n in ("bfloat16", "float16", "float32")),
    }


def test_an_unknown_gpu_cannot_be_completed() -> None:
    with pytest.raises(TargetError, match="no published figures of NVIDIA Z1"):
        gpu.measure_gpu(0.1, torch.device("cpu"), properties("NVIDIA Z1"))
