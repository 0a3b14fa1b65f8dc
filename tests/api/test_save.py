"""Programs in files: what runs elsewhere without a compiler, what is refused and why."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # no public name

import weft
from testkit.processes.running import ran
from weft.api import calling, save
from weft.api.held import bytes_of, tensor_of
from weft.errors import ProgramFileError, ShapeError, TargetError
from weft.target import Target

ELSEWHERE = """
import sys, torch, weft
assert weft.stats().compiles == 0
given, wanted, rows, twice = torch.load(sys.argv[2])
program = weft.load(sys.argv[1] + "/layer.weft")
found = program(*given)
assert found["x"] is given[0]["x"] and found["n"] == 3
torch.testing.assert_close({**found, "x": 0}, {**wanted, "x": 0}, rtol=0, atol=0)
assert given[1].eq(5).all()
program = weft.load(sys.argv[1] + "/rows.weft")
torch.testing.assert_close(program(rows), twice)
assert weft.stats().compiles == 0
"""


class Layer(torch.nn.Module):
    """A product with parameters, a call that is left to PyTorch, a write into an argument, a result as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(24, 40)

    def forward(self, tensors: dict[str, torch.Tensor], counts: torch.Tensor, times: float) -> dict[str, Any]:
        x = tensors["x"]
        counts.fill_(5)
        return {"y": torch.relu(self.linear(x)) * times, "sorted": torch.sort(x, -1)[0] + 1, "x": x, "n": 3}


def exponentials(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs `layer.weft` and, for a GPU, `rows.weft`."""
    folder = tmp_path_factory.mktemp("saved")
    given = ({"x": torch.randn(20, 24)}, torch.zeros(3), 2.0)
    layer = Layer()
    program = weft.optimize(layer, given)
    assert {f.operation for f in program.fallbacks} >= {"aten.sort"}
    assert program.save(folder / "layer.weft") == folder / "layer.weft"
    rows = torch.randn(8, 24)
    weft.optimize(exponentials, (rows,), target="cuda:90").save(folder / "rows.weft")
    with torch.no_grad():
        wanted = program(*given)
    torch.save((given, wanted, rows, exponentials(rows)), folder / "tensors.pt")
    return folder


def test_a_program_runs_elsewhere_without_a_compiler(saved: Path, tmp_path: Path) -> None:
    own = {"WEFT_CXX": "/no/compiler", "WEFT_CACHE_DIR": str(tmp_path / "cache"), "TRITON_INTERPRET": "1"}
    ran(["-c", ELSEWHERE, str(saved), str(saved / "tensors.pt")], os.environ | own)


def test_what_is_loaded_can_be_asked_and_saved_again(saved: Path, tmp_path: Path) -> None:
    program = weft.load(saved / "layer.weft")
    again = weft.load(program.save(tmp_path / "again.weft"))
    for one in (program, again):
        kernel = one.kernels[0]
        assert "extern" in kernel.source
        assert kernel.cost.flops > 0
        assert kernel.verdict.equal
        assert "contract over" in str(one.explain())
        assert {f.operation for f in one.fallbacks} >= {"aten.sort"}
        assert len(one.trace) == len(program.trace)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, c, t: (({"x": x[:10]}, c, t)), r"shape \(10, 24\).*shape \(20, 24\)"),
        (lambda x, c, t: (({"x": x.double()}, c, t)), r"torch.float64.*torch.float32"),
        (lambda x, c, t: (({"x": x.t().contiguous().t()}, c, t)), r"strides \(1, 20\)"),
        (lambda x, c, t: (({"x": x.to("meta")}, c, t)), "on meta"),
        (lambda x, c, t: (({"x": x}, c, 3.0)), r"value=3.0.*value=2.0"),
        (lambda x, c, t: (({"x": x}, c, 2)), r"value=2\).*value=2.0"),
        (lambda x, c, t: (({"z": x}, c, t)), "structure"),
        (lambda x, c, t: (({"x": None}, c, t)), "None"),
    ],
)
def test_other_arguments_are_refused(saved: Path, change: Any, said: str) -> None:
    program = weft.load(saved / "layer.weft")
    with pytest.raises(ShapeError, match=said):
        program(*change(torch.randn(20, 24), torch.zeros(3), 2.0))


def test_damaged_files_are_refused(saved: Path, tmp_path: Path) -> None:
    whole, path = (saved / "layer.weft").read_bytes(), tmp_path / "damaged.weft"
    middle = len(whole) // 2
    damaged = [
        whole[:middle],
        whole[: len(whole) - 9],
        b"",
        b"no archive",
        whole[:middle] + b"\xff\x00" + whole[middle + 2 :],
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ProgramFileError, match="damaged"):
            weft.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(ProgramFileError, match="not a program that weft saved"):
        weft.load(path)
    with pytest.raises(FileNotFoundError):
        weft.load(tmp_path / "not there")


def with_manifest(path: Path, to: Path, **changes: object) -> Path:
    """A copy of the file with another manifest."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, json.dumps(json.loads(content) | changes) if name == save._MANIFEST else content)
    return to


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"format": 0}, ProgramFileError, "format 0"),
        ({"source": "f" * 64, "weft": "9.9"}, ProgramFileError, "weft 9.9"),
        ({"torch": "1.0"}, ProgramFileError, "PyTorch 1.0"),
        ({"features": ["avx9000"]}, TargetError, "avx9000"),
        ({"target": "tpu"}, TargetError, "tpu"),
    ],
)
def test_files_for_other_machines_are_refused(
    saved: Path, tmp_path: Path, changes: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        weft.load(with_manifest(saved / "layer.weft", tmp_path / "other.weft", **changes))


def test_programs_for_gpus_need_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TargetError, match="this machine has no GPU"):
        weft.load(saved / "rows.weft")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr("weft.plan.targets.triton.toolchain.of_device", lambda _: Target("cuda", "80"))
    with pytest.raises(TargetError, match="cuda:1 is cuda:80"):
        weft.load(saved / "rows.weft")
    monkeypatch.setattr("weft.plan.targets.triton.toolchain.of_device", lambda _: Target("cuda", "90"))
    kernel = weft.load(saved / "rows.weft").kernels[0]
    assert kernel.binary
    assert ".entry" in str(kernel.assembly)
    with pytest.raises(TargetError, match="not for cpu"):
        weft.load(saved / "rows.weft", "cpu")


@pytest.mark.parametrize(("device", "place"), [(None, 1), ("cuda", 1), ("cuda:0", 0), (torch.device("cuda", 1), 1)])
def test_a_program_is_for_the_gpu_that_it_was_loaded_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch, device: str | torch.device | None, place: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr("weft.plan.targets.triton.toolchain.of_device", lambda _: Target("cuda", "90"))
    found = save.read(saved / "rows.weft", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # later it makes no difference
    called: list[torch.device] = []

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        called.append(x.device)
        return [x]

    call = found.calling.calls(run, found.constants)
    monkeypatch.setattr(calling, "_TENSORS", (FakeTensor,))
    with FakeTensorMode():
        call(torch.empty(8, 24, device=torch.device("cuda", place)))
        for other in (torch.device("cuda", 1 - place), torch.device("cpu")):
            with pytest.raises(ShapeError, match=rf"on {other}, but .* on cuda:{place}"):
                call(torch.empty(8, 24, device=other))
    assert called == [torch.device("cuda", place)]


BASE = torch.arange(96, dtype=torch.float32).reshape(12, 8)


@pytest.mark.parametrize(
    ("held", "elements"),
    [
        (BASE[:, :1].expand(12, 8), 12),
        (BASE[0, 0].expand(12, 8), 1),
        (BASE.t()[:, 1:9].t()[:, :8], 64),
        (BASE.reshape(8, 12).t(), 96),
        (BASE[2:8:2, 1:5], 12),
        (BASE[:, 3], 12),
        (BASE[3, 4], 1),
        (BASE[:0], 0),
        (BASE[0, :1].expand(0), 0),
        (BASE.as_strided((12, 8), (1, 1), 5), 19),
        (BASE.as_strided((4, 8, 3), (3, 0, 2), 1), 14),
        (BASE > 4, 96),
        (torch.randn(1 << 16)[5:8], 3),
        (torch.randn(3, dtype=torch.complex64).conj(), 3),
    ],
    ids=lambda value: f"{tuple(value.shape)}, {value.stride()}" if isinstance(value, torch.Tensor) else str(value),
)
def test_tensors_that_are_held_lie_as_they_lay(held: torch.Tensor, elements: int) -> None:
    content = bytes_of(held)
    described = held.shape, held.stride(), held.dtype
    assert len(content) == elements * held.element_size()
    found = tensor_of(content, *described, torch.device("cpu"))
    assert (found.shape, found.stride(), found.dtype) == (held.shape, held.stride(), held.dtype)
    assert torch.equal(found, held)
    assert tensor_of(content, *described, torch.device("meta")).stride() == held.stride()


def test_a_function_that_holds_a_view(tmp_path: Path) -> None:
    row, rows = torch.randn(32, 1).expand(32, 8), torch.randn(8, 40)[:, 4:36].t()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + row) * rows

    x = torch.randn(32, 8)
    program = weft.load(weft.optimize(function, (x,)).save(tmp_path / "held.weft"))
    torch.testing.assert_close(program(x), function(x))


class Counting(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.exp() + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    x = x.exp() + 1
    torch._dynamo.graph_break()
    return x.sin() + 1


def named(x: torch.Tensor, kind: object) -> torch.Tensor:
    return x.exp() + 1


def viewed_as_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.full((8, 2), 2j).real + x.exp() + 1


@pytest.mark.parametrize(
    ("function", "more", "said"),
    [
        (Counting(), (), "changes Python objects"),
        (broken, (), "2 graphs"),
        (named, (object(),), "an argument is a object"),
        (torch.linalg.inv, (), "PyTorch runs all of this program: .*inv"),
        (viewed_as_complex, (), r"aten.full.* cannot be saved: a builtins.complex"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, function: Any, more: tuple[Any, ...], said: str) -> None:
    program = weft.optimize(function, (torch.eye(8)[:, : 2 if function is viewed_as_complex else 8], *more))
    with pytest.raises(ProgramFileError, match=said):
        program.save(tmp_path / "refused.weft")
    assert list(tmp_path.iterdir()) == []


def test_the_same_tensor_twice_stays_the_same(tmp_path: Path) -> None:
    x, y = torch.randn(8), torch.randn(8)
    program = weft.load(weft.optimize(lambda a, b: a.exp() + b, (x, x)).save(tmp_path / "twice.weft"))
    torch.testing.assert_close(program(y, y), y.exp() + y)
    with pytest.raises(ShapeError, match="the same tensor"):
        program(x, y)
