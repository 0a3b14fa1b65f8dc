"""Which matmuls PyTorch's library is tried for, by its times and by those of kernels."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import torch

from testkit.plan.captured import captured
from weft.lab.workloads import cpu as workloads
from weft.plan.choose.cuts import Cuts
from weft.plan.execute import library as library_module
from weft.plan.execute import library_times
from weft.plan.execute.calls import lone_matmuls
from weft.plan.execute.library import for_the_library, surely_for_the_library
from weft.plan.execute.library_times import LibraryTimes, _lying_as
from weft.plan.execute.regions import Regions
from weft.plan.partition.partition import Region, partition, taken_apart
from weft.target import Target
from weft.tensor.program import Contraction


def outer_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of a large product of small matrices: written out it takes longer than it takes to be made."""
    return torch.exp(x @ w).sum(-1)


@pytest.mark.parametrize(
    ("function", "shapes", "count"),
    [
        (workloads.layernorm_matmul, ((512, 1024), (1024, 1024)), 1),
        (lambda x, w: x @ w, ((512, 256), (256, 512)), 1),
        (outer_sums, ((4096, 4), (4, 4096)), 0),
        (lambda x, w: torch.softmax(x @ w, -1) @ w.T, ((64, 32), (32, 48)), 0),
    ],
    ids=["after a norm", "alone", "never written", "read by a product"],
)
def test_products_are_tried_in_the_library_where_its_best_would_be_faster(function, shapes, count) -> None:
    inputs = [torch.empty(shape) for shape in shapes]
    program, graph = captured(function, inputs)
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs})
    regions = [s for s in Cuts(program, known).stages() if isinstance(s, Region)]
    calls = for_the_library(graph, program, regions, known, LibraryTimes(), [None] * len(regions))
    assert len(calls) == count
    products = [n.name for n in graph.program.nodes if isinstance(n, Contraction)]
    assert set(calls) <= {graph.made_by[name] for name in products}


@dataclass
class Measured(LibraryTimes):
    """A library that takes so long for each call."""

    seconds: float = 0.0

    def of(self, number: int) -> float | None:
        return self.seconds


@pytest.mark.parametrize(
    ("library", "kernels", "count"), [(1e-3, 2e-3, 1), (2e-3, 1e-3, 0), (1e-9, None, 1), (1.0, None, 0)]
)
@pytest.mark.parametrize("function", [lambda x, w: torch.relu(x @ w), lambda x, w: x @ w], ids=["then more", "alone"])
def test_products_are_tried_in_the_library_where_it_was_measured_to_be_faster(
    function, library, kernels, count
) -> None:
    program, graph = captured(function, [torch.empty(512, 256), torch.empty(256, 512)])
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs})
    regions = [s for s in Cuts(program, known).stages() if isinstance(s, Region)]
    assert len(regions) == 1
    assert len(for_the_library(graph, program, regions, known, Measured(seconds=library), [kernels])) == count


@pytest.mark.parametrize(("saved", "count"), [(0.01, 0), (0.05, 1)])
def test_a_plan_that_saves_next_to_nothing_of_all_kernels_is_not_made(saved, count) -> None:
    """Take two regions, of which the one that multiplies nothing takes most of the time."""
    program, graph = captured(
        lambda x, w, y: (x @ w, torch.softmax(y, -1)),
        [torch.empty(512, 256), torch.empty(256, 512), torch.empty(64, 64)],
    )
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs})
    regions = [s for s in Cuts(program, known).stages() if isinstance(s, Region)]
    product, other = 2e-3, 8e-3
    seconds = [product if any(isinstance(n, Contraction) for n in r.program.nodes) else other for r in regions]
    assert sorted(seconds) == [product, other]
    library = Measured(seconds=product - saved * (product + other))
    assert len(for_the_library(graph, program, regions, known, library, seconds)) == count


@pytest.mark.parametrize(("launches", "count"), [(0.5, 0), (1.5, 1)])
def test_a_kernel_that_is_added_counts_with_its_launch(launches, count) -> None:
    """The library saves so many launches of its matmul's time, and the sums behind it would be a kernel of their own."""
    program, graph = captured(outer_sums, [torch.empty(4096, 512), torch.empty(512, 4096)])
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs}, Target("cuda", "90"))
    (region,) = (s for s in Cuts(program, known).stages() if isinstance(s, Region))
    product = next(n for n in program.nodes if isinstance(n, Contraction))
    rest = taken_apart(program, region, {n.name for n in region.program.nodes} - {product.name})
    assert len(rest) == 1
    after, kernels = known.selection(rest[0]), 1e-3
    library = Measured(seconds=kernels - after.work_seconds - launches * known.launch_seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_module, "_WORTH", 0.0)
        found = for_the_library(graph, program, [region], known, library, [kernels])
    assert len(found) == count


@pytest.mark.parametrize(("library", "count"), [(2e-3, 1), (4e-3, 0)])
def test_a_product_whose_parts_are_kernels_is_the_library_s_where_it_makes_all_of_them_sooner(library, count) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = torch.addmm(b, x, w).split(64, -1)
        return torch.relu(first), torch.sin(second), torch.cos(third)

    program, graph = captured(function, [torch.empty(128, 64), torch.empty(64, 192), torch.empty(192)])
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs}, Target("cuda", "90"))
    regions = [s for s in Cuts(program, known).stages() if isinstance(s, Region)]
    assert sum(any(isinstance(n, Contraction) for n in region.program.nodes) for region in regions) == 3
    found = for_the_library(graph, program, regions, known, Measured(seconds=library), [1e-3] * len(regions))
    assert len(found) == count


def on_a_gpu(function, *shapes: tuple[int, ...]):
    """The program of a function for a GPU, what was captured, what is known of its regions, and these, uncut."""
    program, graph = captured(function, [torch.empty(shape) for shape in shapes])
    known = Regions({i.name: len(i.axes) - 1 for i in program.inputs}, Target("cuda", "90"))
    return program, graph, known, [a.stage for a in Cuts(program, known).uncut() if isinstance(a.stage, Region)]


def taken_apart_seconds(program, region, known) -> tuple[float, float]:
    """Seconds predicted for one kernel of all of a region, and for what is beside its matmul alone, launches among them."""
    product = next(n for n in program.nodes if isinstance(n, Contraction))
    rest = taken_apart(program, region, {n.name for n in region.program.nodes} - {product.name})

    def seconds(part) -> float:
        return known.selection(part).chosen.cost.predicted_seconds

    return seconds(region), sum(map(seconds, rest))


@pytest.mark.parametrize("function", [lambda x, w: torch.relu(x @ w), lambda x, w: x @ w], ids=["then more", "alone"])
@pytest.mark.parametrize(("share", "count"), [(0.85, 1), (0.95, 0), (1.5, 0)])
def test_a_product_is_the_library_s_at_once_where_that_is_clearly_faster_than_any_kernel(function, share, count):
    """It and kernels for the rest take a share of what the model predicts for one kernel."""
    program, graph, known, (region,) = on_a_gpu(function, (2048, 1024), (1024, 1024))
    whole, rest = taken_apart_seconds(program, region, known)
    library = Measured(seconds=share * (whole - rest))
    assert len(surely_for_the_library(graph, program, [region], known, library)) == count


def test_nothing_is_the_library_s_at_once_that_was_not_timed():
    program, graph, known, regions = on_a_gpu(lambda x, w: x @ w, (2048, 1024), (1024, 1024))
    assert surely_for_the_library(graph, program, regions, known, LibraryTimes()) == []


def test_all_parts_of_a_product_are_the_library_s_at_once_or_none_is():
    """Take three kernels that share one matmul: the library makes all of them in less time than they take, or in more."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = (x @ w).split(512, -1)
        return torch.relu(first), torch.sin(second), torch.cos(third)

    program, graph, known, regions = on_a_gpu(function, (2048, 1024), (1024, 1536))
    products = [region for region in regions if any(isinstance(n, Contraction) for n in region.program.nodes)]
    assert len(products) == 3
    whole = sum(known.selection(region).chosen.cost.predicted_seconds for region in products)
    for share, count in ((0.3, 1), (2.0, 0)):
        assert len(surely_for_the_library(graph, program, regions, known, Measured(seconds=share * whole))) == count


def test_the_library_is_timed_on_operands_that_lie_as_the_example_s_do(monkeypatch) -> None:
    """Here no GPU takes the time: what would be timed is run, and what it is called with is looked at."""
    seen: list[tuple[torch.Tensor, ...]] = []

    def run(call, recording, device):
        generator = torch.Generator(device)
        seen.append(tuple(_lying_as(recording.fakes[slot.index], device, generator) for slot in call.reads()))
        return 1.0

    _, graph = captured(
        lambda x, w, v: (x @ w.T, x @ v.T, x @ v), [torch.empty(8, 6), torch.empty(6, 6), torch.empty(6, 6)]
    )
    monkeypatch.setattr(library_times, "_seconds", {})
    times = LibraryTimes(graph.recording, torch.device("cpu"))
    monkeypatch.setattr(times, "_measured", run)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    calls = sorted({graph.made_by[n.name] for n in graph.program.nodes if isinstance(n, Contraction)})
    assert [times.of(number) for number in calls] == [1.0, 1.0, 1.0]
    assert [tuple(t.stride() for t in each) for each in seen] == [
        ((6, 1), (1, 6)),
        ((6, 1), (6, 1)),
    ]  # the second is like the first
    assert LibraryTimes(None, torch.device("cpu")).of(calls[0]) is None
    # The same product in another graph is as fast: what is left to the library is the same there.
    _, other = captured(
        lambda x, w, y: (x @ w.T + y).relu(), [torch.empty(8, 6), torch.empty(6, 6), torch.empty(9, 8, 6)]
    )
    (call,) = {other.made_by[n.name] for n in other.program.nodes if isinstance(n, Contraction)}
    assert LibraryTimes(other.recording, torch.device("cpu"), measures=False).of(call) == 1.0
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "another")
    assert LibraryTimes(other.recording, torch.device("cpu"), measures=False).of(call) is None


def test_the_library_is_timed_at_the_example_where_sizes_change(monkeypatch) -> None:
    """A product of a cache that grows by a row is as fast as the same one in a graph for this length alone."""
    monkeypatch.setattr(library_times, "_seconds", {})
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    shapes: list[list[torch.Size]] = []

    def run(call, recording, device):
        generator = torch.Generator(device)
        shapes.append([_lying_as(recording.fakes[slot.index], device, generator).shape for slot in call.reads()])
        return 1.0

    def scores(q, k):
        return torch.relu(q @ k.T)

    found: list[float | None] = []
    for dynamic, measures in ((True, True), (False, False)):
        q, k = torch.empty(8, 6), torch.empty(33, 6)
        if dynamic:
            torch._dynamo.mark_dynamic(k, 0)
        _, graph = captured(scores, [q, k], dynamic=None)
        assert any(number.symbols for number in graph.sizes.values()) is dynamic
        (call,) = {graph.made_by[n.name] for n in graph.program.nodes if isinstance(n, Contraction)}
        times = LibraryTimes(graph.recording, torch.device("cpu"), measures=measures)
        monkeypatch.setattr(times, "_measured", run)
        found.append(times.of(call))
    assert found == [1.0, 1.0]
    assert shapes == [[(8, 6), (6, 33)]]


def test_the_library_is_not_timed_where_integers_say_what_is_multiplied(monkeypatch) -> None:
    """Gives no seconds: of groups that all end at row 0 no row is multiplied. The call is a candidate all the same."""

    def grouped(x, w, ends):
        return torch.nn.functional.grouped_mm(x, w, offs=ends)

    inputs = [torch.empty(16, 16).bfloat16(), torch.empty(4, 16, 48).bfloat16(), torch.empty(4, dtype=torch.int32)]
    program, graph = captured(grouped, inputs)
    times = LibraryTimes(graph.recording, torch.device("cpu"))
    monkeypatch.setattr(times, "_measured", lambda *_: 1.0)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    (region,) = (s for s in partition(program) if isinstance(s, Region))
    (call,) = lone_matmuls(graph, region)
    assert times.of(call) is None


def test_what_a_mask_is_made_of_is_made_before_those_who_read_the_mask() -> None:
    """Each kernel makes the mask for itself, of numbers of documents that are computed after the scores in the function."""

    def of_documents(q, k, ends):
        scores = q @ k.T
        document = (torch.arange(q.shape[0])[:, None] >= ends).sum(-1)
        return torch.softmax(scores.masked_fill(document[:, None] != document, float("-inf")), -1)

    inputs = [torch.empty(16, 8), torch.empty(16, 8), torch.empty(3, dtype=torch.int64)]
    program, _ = captured(of_documents, inputs)
    there = {each.name for each in program.inputs}
    for stage in partition(program):
        assert there.issuperset(stage.uses)
        there.update(stage.results)
