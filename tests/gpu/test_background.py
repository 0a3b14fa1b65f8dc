"""Functions on a GPU that another process compiles and tunes: right at every call, and nothing is compiled in this process."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest
import torch
import torch._dynamo  # no public name

import weft
from weft import phases
from weft.api import backend
from weft.run.gpu import build

BF16 = torch.bfloat16
SECONDS = 200.0


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT * 0.125, -1) @ v


def operands(batch: int = 4, length: int = 256) -> list[torch.Tensor]:
    return [torch.randn(batch, length, 64, device="cuda").to(BF16) for _ in range(3)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


@pytest.fixture(autouse=True)
def _inference(tmp_path, monkeypatch) -> Generator[None]:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    with torch.no_grad():
        yield


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiling in this process."""

    def refuse(*_given: object, **_more: object) -> None:
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(backend, "compile_graph", refuse)
    monkeypatch.setattr(build, "assemble", refuse)


@pytest.mark.usefixtures("elsewhere")
def test_pytorch_runs_until_kernels_are_there() -> None:
    compiled, given, before = weft.compile(attention, compile="background", measure="never"), operands(), weft.stats()
    assert torch.equal(compiled(*given), attention(*given))
    assert weft.ready(compiled, SECONDS)
    now = weft.stats()
    assert (now.served - before.served, now.failed - before.failed, now.kernels > before.kernels) == (1, 0, True)
    for _ in range(3):
        given = operands()
        close(compiled(*given), attention(*given))
    assert weft.stats().meanwhile - before.meanwhile == 1


@pytest.mark.usefixtures("elsewhere")
def test_sizes_of_other_classes_run_in_pytorch_until_there_are_binaries_for_them() -> None:
    compiled, rng, before = weft.compile(attention, compile="background"), random.Random(0), weft.stats()
    for length in (64, 80):
        compiled(*operands(2, length))
        assert weft.ready(compiled, SECONDS)
    for number in range(60):
        given = operands(rng.randint(1, 8), rng.randint(1, 300))
        close(compiled(*given), attention(*given))
        if number % 20 == 19:
            assert weft.ready(compiled, SECONDS)
    asked, now = weft.stats().asked, weft.stats()
    assert now.failed == before.failed
    given = operands(5, 77)
    for _ in range(2):
        compiled(*given)
        assert weft.ready(compiled, SECONDS)
    meanwhile = weft.stats().meanwhile
    close(compiled(*given), attention(*given))
    assert weft.stats().meanwhile == meanwhile, "by now there are binaries for it"
    assert weft.stats().asked - asked <= 2


@pytest.mark.usefixtures("elsewhere")
def test_a_graph_may_be_captured_while_kernels_come() -> None:
    compiled, given = weft.compile(attention, compile="background", measure="never"), operands()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(*given)
    graphs = []
    while not graphs or not weft.ready(compiled, 0.0):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(*given)
        graphs.append((graph, result))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(*given)
    for old, new in zip(given, operands(), strict=True):
        old.copy_(new)
    for each, its in (*graphs[:1], *graphs[-1:], (graph, result)):
        each.replay()
        close(its, attention(*given))


def test_what_was_compiled_first_is_tuned_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EFFORT", "quick")
    compiled, given, before = weft.compile(attention, compile="first", measure="auto"), operands(), weft.stats()
    close(compiled(*given), attention(*given))
    assert weft.stats().untimed > before.untimed
    assert weft.ready(compiled, SECONDS)
    close(compiled(*given), attention(*given))
    now = weft.stats()
    assert (now.served - before.served, now.failed - before.failed) == (1, 0)
    torch._dynamo.reset()
    captures = phases.spent()["capture"].times
    again = weft.compile(attention, measure="auto")
    close(again(*given), attention(*given))
    assert phases.spent()["capture"].times == captures, "the plan that the other process made is kept"


@pytest.mark.parametrize("measure", ["never", "auto"])
def test_a_warm_process_captures_nothing(monkeypatch: pytest.MonkeyPatch, measure: str) -> None:
    monkeypatch.setenv("WEFT_EFFORT", "quick")
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda().to(BF16)
    x = torch.randn(64, 128, device="cuda").to(BF16)
    for number in range(2):
        torch._dynamo.reset()
        captures = phases.spent().get("capture", phases.Spent()).times
        close(weft.compile(model, measure=measure)(x), model(x))
        assert (phases.spent()["capture"].times > captures) == (number == 0)


def test_arguments_that_take_much_of_the_memory_are_compiled_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 16, 1 << 30))
    before, given = weft.stats(), operands()
    close(weft.compile(attention, compile="background")(*given), attention(*given))
    assert weft.stats().asked == before.asked
