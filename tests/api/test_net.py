"""What fails in weft itself: PyTorch runs instead, one warning says so and names a file that shows the failure."""

from __future__ import annotations

import re
import runpy
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import weft
from weft.api import known as general
from weft.api import net
from weft.errors import DefectError, LeftToPyTorchWarning, Location, UnsupportedError
from weft.plan.execute import runner
from weft.plan.execute.instead import warn


@pytest.fixture(autouse=True)
def _in_use(monkeypatch):
    """Settings as users have them: the rest of the suite has defects raised."""
    monkeypatch.setenv("WEFT_DEFECTS", "warn")
    net._said.clear()


def work(x, w):
    return torch.relu(x @ w) + torch.sort(x @ w, 0).values


def planted(*_, **__):
    raise AssertionError("planted 7")


PLACES = {
    "a handler": ("weft.capture.translate.is_elementwise", None),
    "the recorder": ("weft.capture.graph.record", None),
    "the laws": ("weft.plan.execute.plan.after_laws", None),
    "the cut": ("weft.plan.execute.regions.Regions.stages", None),
    "a region": ("weft.plan.execute.regions.build_region", None),
    "the plan": ("weft.plan.plan", None),
    "the trial": ("weft.api.backend.faster", None),
    "the text that runs it": ("weft.plan.execute.made.runner", None),
    "the outline": ("weft.api.known.Outline.of", None),
    "what is lost": ("weft.api.losses.mostly_left", None),
}


@pytest.mark.parametrize("place", PLACES)
def test_whatever_fails_while_compiling_pytorch_runs(monkeypatch, place):
    x, w = torch.randn(40, 30), torch.randn(30, 20)
    monkeypatch.setattr("weft.api.backend.KeptGraph.of", lambda *_: None)  # an earlier case's plan may be there
    monkeypatch.setattr(PLACES[place][0], planted)
    with torch.no_grad(), pytest.warns(LeftToPyTorchWarning, match="AssertionError: planted 7") as said:
        torch.testing.assert_close(weft.compile(work)(x, w), work(x, w))
    assert len(said) == 1
    assert "test_net.py" in str(said[0].message)
    with torch.no_grad(), warnings.catch_warnings():  # of one cause once
        warnings.simplefilter("error")
        torch.compiler.reset()
        weft.compile(work)(x, w)


def test_the_file_shows_the_failure_again_and_runs_once_it_is_mended(monkeypatch, tmp_path, capsys):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 5))

        def forward(self, x, at):
            return torch.softmax(x[:, at:] @ self.weight, -1).sort(0).values * float("inf") + torch.tensor(
                [1.0, 2, 3, 4, 5]
            )

    x = torch.randn(4, 7).t().contiguous().t()
    with monkeypatch.context() as patch:
        patch.setattr("weft.plan.execute.plan.after_laws", planted)
        with torch.no_grad(), pytest.warns(LeftToPyTorchWarning, match="reproducer") as said:
            weft.compile(Layer())(x, 1)
        (path,) = re.findall(r"reproducer: (.+)", str(said[0].message))
        torch.compiler.reset()
        with pytest.raises(BackendCompilerFailed, match="planted"):
            runpy.run_path(path)
    torch.compiler.reset()
    capsys.readouterr()
    runpy.run_path(path)
    assert capsys.readouterr().out.count("tensor") == 2
    assert "planted 7" in Path(path).read_text()


@pytest.mark.parametrize("call", [weft.compile, lambda f: weft.optimize(f, (torch.randn(40, 30), torch.randn(30, 20)))])
def test_whatever_fails_in_a_call_pytorch_runs(monkeypatch, call):
    x, w = torch.randn(40, 30), torch.randn(30, 20)
    failing: list[int] = []
    real = runner.as_read

    def as_read(tensor, *more):
        return planted() if failing else real(tensor, *more)

    monkeypatch.setattr(runner, "as_read", as_read)
    with torch.no_grad():
        fast = call(work)
        fast(x, w)
        failing.append(1)
        with pytest.warns(LeftToPyTorchWarning, match="planted 7"):
            torch.testing.assert_close(fast(x, w), work(x, w))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(fast(x, w), work(x, w))


def test_what_has_written_does_not_run_again(monkeypatch):
    def function(cache, x):
        cache.add_(torch.relu(x))
        return torch.sort(cache, 0).values

    x, cache = torch.randn(5, 4), torch.zeros(5, 4)
    fast = weft.compile(function)
    fast(cache, x)
    held = cache.clone()
    real = runner._write

    def late(pairs):
        real(pairs)
        planted()

    monkeypatch.setattr(runner, "_write", late)
    torch.compiler.reset()
    with pytest.raises(AssertionError, match="planted"):
        weft.compile(function)(cache, x)
    torch.testing.assert_close(cache, held + torch.relu(x))


def test_errors_of_the_user_are_eagers():
    table, at = torch.randn(5, 4), torch.tensor([1, 9])

    def function(table, at):
        return torch.exp(F.embedding(at, table)) * 2

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        fast = weft.compile(function)
        fast(table, at % 5)
        with pytest.raises(IndexError, match="out of range"):
            fast(table, at)
        torch.testing.assert_close(fast(table, at % 5), function(table, at % 5))


def test_interrupts_pass(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.plan.execute.plan.after_laws", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weft.compile(work)(torch.randn(4, 3), torch.randn(3, 2))


def test_optimize_raises_errors_of_weft_alone(monkeypatch):
    monkeypatch.setattr("weft.plan.plan", planted)
    with pytest.raises(DefectError, match="planted 7") as raised:
        weft.optimize(work, (torch.randn(4, 3), torch.randn(3, 2)))
    assert Path(raised.value.reproducer).is_file()


def test_without_a_folder_there_is_no_file(monkeypatch):
    monkeypatch.setattr("weft.plan.execute.plan.after_laws", planted)
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    with torch.no_grad(), pytest.warns(LeftToPyTorchWarning, match="planted") as said:
        weft.compile(work)(torch.randn(4, 3), torch.randn(3, 2))
    assert "reproducer" not in str(said[0].message)


def test_names_of_the_users_variables_are_no_variables_of_ours():
    def function(a0, a1):
        v3 = torch.tanh(a1.movedim(-1, 0))
        v5 = a0.abs() % 8
        v4 = F.one_hot(v5)
        v6 = torch.stack((v3, v5), -1)
        v9 = a0.abs() % 8
        return v9, v6 * 3 + v4.shape[0]

    a0 = torch.randint(0, 2**63 - 1, (5,))
    a1 = torch.randint(0, 255, (5,), dtype=torch.uint8)
    for found, wanted in zip(weft.compile(function)(a0, a1), function(a0, a1), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_without_strides_at_first_and_at_later_calls():
    nested, plain = torch.nested.nested_tensor([torch.randn(3, 2), torch.randn(4, 2)]), torch.randn(3, 2)

    def doubled(d):
        return d["x"] * 2

    fast, of_parts = weft.compile(lambda a: a * 2), weft.compile(doubled)
    for each in (nested, plain, nested, plain):
        for found in (fast(each), of_parts({"x": each}), of_parts(d={"x": each})):
            assert found.is_nested == each.is_nested
            torch.testing.assert_close(found[1], each[1] * 2)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_call_that_gives_another_type_than_tracing_says():
    def function(a):
        return torch.quantize_per_tensor(torch.exp(a) * 2, 0.1, 3, torch.qint8).dequantize() * 2 + 1

    fast, x = weft.compile(function), torch.randn(6)
    with pytest.warns(LeftToPyTorchWarning, match="qint8"):
        torch.testing.assert_close(fast(x), function(x))
    torch.testing.assert_close(fast(x), function(x))


def test_a_comparison_with_other_graphs_that_fails_is_reported(monkeypatch):
    general._known.clear()
    fast = weft.compile(lambda x: torch.softmax(x, -1) + x.sum(0), measure="never")
    with torch.no_grad():
        for length in (5, 9):
            fast(torch.randn(length, 6))
        monkeypatch.setattr(general, "serves", planted)
        x = torch.randn(1, 6)
        with pytest.warns(LeftToPyTorchWarning, match="planted 7"):
            torch.testing.assert_close(fast(x), torch.softmax(x, -1) + x.sum(0))


def test_a_warning_is_shown_once_at_the_line_that_it_is_about():
    """Python shows a warning once for each line, by default; no line of weft's is any use to who reads it."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for line in (8, 8, 9):
            warn("this call", UnsupportedError("no kernel takes it", where=Location("model.py", line, "x + 1")))
        for _ in range(2):
            warn("this call", UnsupportedError("no kernel takes that"))
    assert [(w.filename, w.lineno) for w in shown[:2]] == [("model.py", 8), ("model.py", 9)]
    assert [w.filename for w in shown[2:]] == [__file__]
