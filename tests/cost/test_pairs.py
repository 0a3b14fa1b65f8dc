"""The campaign that compares predicted with measured times (`benchmarks/pairs.py`): made, timed and judged at small sizes."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from testkit.block.programs import linear_relu
from testkit.schedules import fused
from weft.cost import Machine
from weft.cost.machine import Processor
from weft.errors import UnsupportedError
from weft.lab.fuzz.random_schedules import random_schedule
from weft.run.gpu import Assembled, KernelClass
from weft.run.gpu.driver import LoadedBinary
from weft.run.gpu.launch import Runtime, make_gpu_launcher
from weft.run.launch import Launcher
from weft.schedule import Schedule
from weft.tensor.dtypes import DType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TARGETS = ["cuda:90", "cpu"]
MEASURED = Machine.of(Processor(2.6e9, 64, frozenset(), (32 << 10, 1 << 20, 32 << 20), frozenset({DType.bfloat16})), 2)
"""The processor that pairs_cpu.json was measured on."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process, and those that it starts, import the tool."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    root = BENCHMARKS.parent
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}:{BENCHMARKS}")


def module(name: str) -> Any:
    return import_module(name)


@pytest.mark.parametrize("target", TARGETS)
def test_pairs_are_made_timed_and_predicted_again(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    main, made, file = module("pairs").main, tmp_path / "made", tmp_path / "times.json"
    assert main(["make", str(made), "--target", target, "--each", "2", "--small", "--only", "variance"]) == 0
    assert main(["time", str(made), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [each["drawn"] for each in found["pairs"]] in (["best", "rest"], ["rest", "best"])
    assert all(each["seconds"] > 0 and each["error_norm"] < 1e-5 for each in found["pairs"])
    again = module("pairs_judge").again(found)
    assert again["pairs"] == found["pairs"]
    assert main(["judge", str(file), "--model", "now"]) == 0
    assert "variance" in capsys.readouterr().out


@pytest.fixture
def archive(tmp_path: Path) -> Any:
    """Two pairs of LayerNorm + matmul, compiled for a GPU that is not here."""
    made, name = module("pairs_made"), "LayerNorm + matmul"
    target = module("pairs").Target.parse("cuda:90")
    work, path = module("pairs_workloads").workloads(target)[name], tmp_path / "one.tar.xz"
    made.make(work, target, 2, 0, path, name=name, small=True)
    return made.unpack(path)


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    def get_device(self) -> int:
        return 0


def test_binaries_are_loaded_for_the_calls_that_they_were_compiled_for(archive: Any) -> None:
    session = module("pairs_time").PairSession(archive, "cpu")
    loaded: list[bytes] = []

    def load(assembled: Assembled, device: int) -> LoadedBinary:
        loaded.append(assembled.binary)
        return LoadedBinary(1, 32, 0, 264)

    def allocate(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype).as_subclass(OnGpu)

    def launcher(digest: str) -> Launcher:
        kernel = archive.kernel(digest)

        def only(kind: KernelClass, better: Callable[[], None]) -> Assembled:
            del better
            [assembled] = kernel.assembled
            assert kind == assembled.kind  # another class would be compiled where pairs are timed
            return assembled

        return make_gpu_launcher(kernel.signature, only, lambda: runtime)

    runtime = Runtime(lambda: 0, lambda _: 0, contextlib.nullcontext, allocate, lambda *_: 0, load, lambda *_: None)
    session.inputs = {name: value.as_subclass(OnGpu) for name, value in session.inputs.items()}
    for pair in archive.pairs:
        (result,) = session.run([(launch, launcher(launch.kernel)) for launch in pair.launches], pair.results)
        assert tuple(result.shape) == (16, 48)
    assert len(loaded) == sum(len(pair.launches) for pair in archive.pairs)
    assert all(binary.startswith(b"\x7fELF") for binary in loaded)


def test_a_wrong_result_fails_its_pair(archive: Any) -> None:
    timing = module("pairs_time")
    session = timing.PairSession(archive, "cpu")
    with torch.no_grad():
        right = session.workload.fn(*session.operands)
        assert session.check([right]) < 0.01
        beyond = right.clone()
        beyond[-1, -1] = math.nan
        shifted = right.clone()
        shifted[-1] += 1.0
        for wrong in (beyond, shifted, torch.zeros_like(right)):
            with pytest.raises(timing.WrongError):
                session.check([wrong])


def test_half_of_a_draw_is_from_the_likeliest_tenth() -> None:
    space, target = module("pairs_space"), module("pairs").Target.parse("cuda:90")
    work = module("pairs_workloads").workloads(target)["softmax"]
    own = space.PairSpace(module("pairs_workloads").problem(work, work.sizes(small=True), target), target)
    every = own.all(10, 0)
    assert [pair.predicted for pair in every] == sorted(pair.predicted for pair in every)
    assert not any(pair.random for pair in every)
    best, rest = own.draw(every, 4, 0)
    assert len(best) == len(every) // 10
    assert max(pair.predicted for pair in best) <= min(pair.predicted for pair in rest)
    assert sorted(map(id, (pair.candidate for pair in (*best, *rest)))) == sorted(id(pair.candidate) for pair in every)
    assert [len(drawn) for drawn in own.draw(every[:6], 4, 0)] == [2, 4]
    more = own.all(len(every) + 1, 0)
    assert len(more) > len(every)
    assert sum(pair.random for pair in more) == len(more) - len(every)


def test_schedules_go_through_json() -> None:
    space, rng = module("pairs_space"), random.Random(0)
    program = fused(linear_relu())
    drawn = [random_schedule(program, rng) for _ in range(50)]
    drawn.append(Schedule(drawn[0].loops, merging=(("m", 2),), together=4, warps=8, stages=3, merging_warps=1))
    assert any(loop.peel for each in drawn for _, loop in each.loops)
    assert any(each.panels for each in drawn)
    for each in drawn:
        assert space.read(json.loads(json.dumps(space.written(each)))) == each
    with pytest.raises(ValueError, match="no level"):
        space.read({**space.written(drawn[0]), "loops": {"m": "grid x"}})


def test_ranks_are_compared_with_ties() -> None:
    judge = module("pairs_judge")
    rising, tied = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 2.0, 3.0]
    assert judge.spearman(rising, [10.0, 20.0, 30.0, 35.0]) == pytest.approx(1.0)
    assert judge.spearman(rising, rising[::-1]) == pytest.approx(-1.0)
    assert judge.spearman(rising, tied) == pytest.approx(0.9486833)
    assert judge.kendall(rising, tied) == pytest.approx(5 / math.sqrt(5 * 6))
    assert judge.kendall(rising, [1.0, 3.0, 2.0, 4.0]) == pytest.approx(4 / 6)
    assert judge.kendall(rising, [1.0] * 4) == judge.spearman(rising, [1.0] * 4) == 0.0


def test_what_the_first_eight_lose_is_their_best_beside_the_best() -> None:
    judge = module("pairs_judge")
    predicted = [float(n) for n in range(20)]
    measured = [2.0] * 20
    measured[7], measured[8] = 1.5, 1.0
    assert judge.regret(predicted, measured) == pytest.approx(0.5)
    measured[3] = 1.0
    assert judge.regret(predicted, measured) == 0.0


def test_a_workload_is_corrected_by_what_was_fitted_to_the_others() -> None:
    judge, rng = module("pairs_judge"), random.Random(3)
    cost = {"bytes_read": 100, "bytes_written": 10, "flops": 1000, "unique_bytes": 50}

    def pair(name: str) -> dict[str, Any]:
        floor, predicted = rng.uniform(0.1, 0.9), rng.uniform(1.0, 1.2)
        breakdown = [{**cost, "floor_seconds": floor * predicted, "predicted_seconds": predicted}]
        slope = -2.0 if name == "odd" else 2.0
        seconds = predicted * math.exp(slope * floor)
        return {"workload": name, "breakdown": breakdown, "predicted": predicted, "seconds": seconds}

    def scores(*names: str) -> dict[str, Any]:
        pairs = [pair(name) for name in names for _ in range(40)] + [{"workload": "a", "error": "wrong"}]
        return {row.name: row for row in judge.judged({"pairs": pairs})}

    alike = scores("a", "b")
    assert all(row.corrected.spearman > 0.95 > row.plain.spearman for row in alike.values())
    assert [(row.pairs, row.failed) for row in alike.values()] == [(40, 1), (40, 0)]
    odd = scores("a", "odd")["odd"]
    assert odd.corrected.spearman < -0.8 < odd.plain.spearman
    assert "median" in judge.table(list(alike.values()))


def test_what_does_not_compile_gives_way_to_the_next_in_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module("pairs_made")
    every = [SimpleNamespace(number=n, drawn="", candidate=object(), predicted=float(n)) for n in range(10)]
    ranked = [SimpleNamespace(**{**vars(each), "drawn": "best" if each.number < 2 else "rest"}) for each in every]
    making = made.Making(SimpleNamespace(draw=lambda *_: (ranked[1::-1], ranked[:1:-1])))

    def compiled(pair: Any) -> Any:
        if pair.number in (0, 1, 3):
            raise UnsupportedError(f"{pair.number} is too large")
        return pair

    monkeypatch.setattr(made, "replace", lambda pair, drawn: SimpleNamespace(**{**vars(pair), "drawn": drawn}))
    monkeypatch.setattr(making, "made", compiled)
    monkeypatch.setattr(making, "line", lambda pair, _: (pair.number, pair.drawn))
    assert making.drawn(every, 4, 0) == [(2, "best"), (4, "best"), (9, "rest"), (8, "rest")]
    assert making.failed.total() == 3


def test_times_of_a_cpu_are_ratios_to_what_ran_beside_them() -> None:
    rows = [
        {"taken": 4.0, "beside": 2.0},
        {"taken": 1.0, "beside": 1.0},
        {"taken": 6.0, "beside": 3.0},
        {"error": "x"},
    ]
    vars(module("pairs"))["_without_drift"](rows)
    assert [row.get("seconds") for row in rows] == [4.0, 2.0, 4.0, None]


def test_pairs_beside_which_the_reference_took_long_are_timed_again() -> None:
    rows = {
        0: {"beside": 2.0},
        1: {"beside": 3.3},
        2: {"beside": 2.1},
        3: {"error": "x"},
        4: {"beside": 2.9},
        5: {"beside": 1.0},
    }
    assert vars(module("pairs"))["_disturbed"](rows) == [1]
    assert vars(module("pairs"))["_disturbed"]({}) == []


# Of the times in benchmarks/results: the rank correlation, at least, and the regret, at most. On the H200 reductions across warps
# decide the columns, what is read from memory a second time the softmax, divisions by numbers the attention, spilled registers the
# matmul. On a CPU the direction of the innermost loop decides the columns, the ways to multiply blocks the matmuls.
RANKED = {
    ("h200", "roots of columns"): (0.65, 0.03),
    ("h200", "softmax"): (0.63, 0.02),
    ("h200", "attention"): (0.90, 0.05),
    ("h200", "linear, relu"): (0.88, 0.01),
    ("cpu", "roots of columns"): (0.75, 0.05),
    ("cpu", "linear, relu"): (0.88, 0.05),
    ("cpu", "linear, relu, bf16"): (0.90, 0.05),
}


@pytest.mark.parametrize(("machine", "name"), RANKED)
def test_the_model_ranks_what_was_measured(machine: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", lambda cores=None: MEASURED)
    found = json.loads((BENCHMARKS / "results" / f"pairs_{machine}.json").read_text())
    own = {key: [each for each in found[key] if each["workload"] == name] for key in ("workloads", "pairs")}
    (row,) = module("pairs_judge").judged(module("pairs_judge").again({**found, **own}))
    least, most = RANKED[machine, name]
    assert row.plain.spearman >= least
    assert row.plain.regret <= most
