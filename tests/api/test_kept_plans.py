"""Plans of whole graphs in the cache: found again for the same graph, and for no other one."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch._dynamo  # no public name

import weft
from weft import phases
from weft.api.kept_plans import KeptGraph
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing
from weft.run.cache import CacheFolder
from weft.target import Target


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


def captures() -> int:
    return phases.spent().get("capture", phases.Spent()).times


def first_call(f, *args, **options):
    """Calls `f` as a new process would, and tells whether it was captured."""
    torch._dynamo.reset()
    before = captures()
    with torch.no_grad():
        result = weft.compile(f, **options)(*args)
    return result, captures() > before


def scaled(factor, dim=-1):
    return lambda x: torch.softmax(x * factor, dim)  # one line, whatever is in the graph


softmax = scaled(3)


def normalised_product(x, w):
    return torch.softmax(x @ w, -1)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def entries(what: str):
    return [e for e in CacheFolder().entries() if e.parts.get("kept") == what]


def test_a_graph_is_captured_once(cache):
    x = torch.randn(8, 16)
    once, captured = first_call(softmax, x)
    again, captured_again = first_call(softmax, x.clone())
    assert captured
    assert not captured_again
    assert torch.equal(once, again)
    assert len(entries("a graph's plan")) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: (scaled(3.0), torch.randn(8, 16)),
        lambda: (scaled(4), torch.randn(8, 16)),
        lambda: (scaled(3, 0), torch.randn(8, 16)),
        lambda: (softmax, torch.randn(8, 17)),
        lambda: (softmax, torch.randn(8, 16, dtype=torch.float64)),
        lambda: (softmax, torch.randn(16, 8).T),
        lambda: (softmax, torch.randn(8, 17)[:, 1:]),
        lambda: (softmax, torch.randn(8, 1).expand(8, 16)),
    ],
)
def test_another_graph_is_another_entry(cache, other):
    f, x = other()
    first_call(softmax, torch.randn(8, 16))
    result, captured = first_call(f, x)
    assert captured
    torch.testing.assert_close(result, f(x))


@pytest.mark.parametrize("options", [{"threads": 1}, {"verify_trials": 3}, {"judge": "first"}, {"rounding": "running"}])
def test_other_options_are_another_entry(cache, options):
    x = torch.randn(8, 16)
    first_call(softmax, x)
    assert first_call(softmax, x, **options)[1]
    assert not first_call(softmax, x, **options)[1]


@pytest.mark.parametrize("options", [{"judge": "always"}, {"verify": "always"}])
def test_what_is_to_be_proved_each_time_is_planned_each_time(cache, options):
    x = torch.randn(8, 16)
    assert all(first_call(softmax, x, **options)[1] for _ in range(2))


@pytest.mark.parametrize("setting", [lambda: torch.autocast("cpu", torch.bfloat16), deterministic])
def test_settings_of_pytorch_are_a_part_of_the_key(cache, setting):
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    first_call(normalised_product, x, w)
    with setting():
        result, captured = first_call(normalised_product, x, w)
        assert captured
        assert result.dtype == normalised_product(x, w).dtype
    assert not first_call(normalised_product, x, w)[1]


def test_numbers_in_the_code_are_a_part_of_the_key(cache):
    def function(numbers):
        return lambda x: (x * torch.tensor(numbers)).sum(-1)

    x = torch.randn(8, 3)
    first_call(function([1.0, 2.0, 3.0]), x)
    for numbers, new in (([1.0, 2.0, 3.0], False), ([1.0, 2.0, 4.0], True)):
        result, captured = first_call(function(numbers), x)
        assert captured == new
        torch.testing.assert_close(result, function(numbers)(x))


def test_arguments_that_share_memory_are_another_graph(cache):
    def write(x, y):
        x.add_(y.sum(-1, keepdim=True))
        return x * 2

    memory = torch.randn(8, 16)
    first_call(write, memory.clone(), memory.clone())
    mine = memory.clone()
    result, _ = first_call(write, mine, mine)
    torch.testing.assert_close(result, write(*[memory.clone()] * 2))


def test_sizes_that_change_are_captured(cache):
    torch._dynamo.reset()
    with torch.no_grad():
        for _ in range(2):
            f = weft.compile(softmax)
            for length in (16, 24):
                x = torch.randn(8, length)
                torch.testing.assert_close(f(x), softmax(x))
            torch._dynamo.reset()
    assert len(entries("a graph's plan")) == 1  # that of the first length


def test_operations_of_others_are_captured(cache):
    with torch.library._scoped_library("kept", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: 2 * x, "CompositeExplicitAutograd")
        library.impl("doubled", torch.empty_like, "Meta")

        def f(x):
            return torch.softmax(torch.ops.kept.doubled(x), -1)

        assert all(first_call(f, torch.randn(8, 16))[1] for _ in range(2))
    assert not entries("a graph's plan")


@pytest.mark.parametrize("damage", ["text", "cut", "kernel"])
def test_a_damaged_entry_is_made_anew(cache, damage):
    x = torch.randn(8, 16)
    once, _ = first_call(softmax, x)
    (kept,) = entries("a graph's plan")
    (file,) = kept.files.values()
    match damage:
        case "text":
            CacheFolder().store(
                kept.key, {"chosen.json": b'{"forms": [], "rows": [["t", [7]]], "root": [0]}'}, parts=kept.parts
            )
        case "cut":
            file.write_bytes(file.read_bytes()[:-100])
        case _:
            for entry in CacheFolder().entries():
                if "kernel.so" in entry.files:
                    shutil.rmtree(entry.files["kernel.so"].parent)
    again, captured = first_call(softmax, x)
    assert captured
    assert torch.equal(once, again)
    assert not first_call(softmax, x)[1]


def as_measured(monkeypatch, takes):
    def measure(runs, given):
        del given
        return Timed(tuple(Timing(seconds) for seconds in takes[: len(runs)]))

    monkeypatch.setattr(trial, "measure", measure)


def test_the_plan_with_the_librarys_matmuls_is_kept_too(cache, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    as_measured(monkeypatch, (1.3, 1.0, 1.02))
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    before = weft.stats().library
    once, _ = first_call(normalised_product, x, w)
    assert len(entries("a graph's plan with the library's matmuls")) == 1
    again, captured = first_call(normalised_product, x, w)
    assert not captured
    assert weft.stats().library == before + 2
    assert torch.equal(once, again)


def test_a_plan_that_lacks_the_librarys_is_made_anew(cache, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    as_measured(monkeypatch, (1.3, 1.0, 1.02))
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    first_call(normalised_product, x, w)
    (kept,) = entries("a graph's plan with the library's matmuls")
    CacheFolder().remove(kept.key)
    assert first_call(normalised_product, x, w)[1]
    assert not first_call(normalised_product, x, w)[1]


def test_a_plan_for_a_gpu_is_had_again(cache, monkeypatch):
    """Without a GPU: its kernels come by their keys, and what is known of their times is asked for on the GPU that they ran on."""
    device, h200 = torch.device("cuda", 1), Target("cuda", "90")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"a GPU, {device}")
    arguments = torch.randn(32, 64, dtype=torch.bfloat16), torch.randn(64, 48, dtype=torch.bfloat16)
    graphs = []
    torch.compile(normalised_product, backend=lambda gm, _: graphs.append(gm) or gm.forward)(*arguments)
    with weft.options(effort="none"):
        (made,) = weft.optimize(normalised_product, arguments, target="cuda:90").plans
        kept = KeptGraph(graphs[0], h200, made.size_class, {"a": "graph"}, device)
        kept.keep(made)
        again = kept.plan(graphs[0].forward)
        assert again is not None
        assert again.device == device
        assert [k.key for k in again.kernels] == [k.key for k in made.kernels]
        assert [k.source for k in again.kernels] == [k.source for k in made.kernels]
        unsettled = tuple(replace(region, settled=False) for region in made.regions)
        other = KeptGraph(graphs[0], h200, made.size_class, {"another": "graph"}, device)
        other.keep(replace(made, regions=unsettled))
        assert other.plan(graphs[0].forward) is None
