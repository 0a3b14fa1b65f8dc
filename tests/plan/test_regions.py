"""What is known of a region is not worked out again: in another trace of a graph, another plan of it, or another process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from testkit.block.programs import gated, linear_relu
from weft.block.walk import maps
from weft.errors import UnsupportedError
from weft.plan.choose.cuts import Cuts
from weft.plan.execute import regions
from weft.plan.execute import selections as module
from weft.plan.judge import judging
from weft.plan.partition.partition import Region, linear, partition
from weft.run import spread as spreading_module
from weft.run.cache import CacheFolder
from weft.target import Target


def chained(x, w, v):
    return torch.relu(torch.softmax(x @ w, -1) @ v) + 1


def reordered(x, w, v):
    return torch.relu(torch.softmax(x @ w, -2) @ v) + 1


@pytest.fixture
def selections(monkeypatch, tmp_path_factory):
    """The sizes of every selection that is made; no choice is remembered or kept from before, nor by another worker meanwhile."""
    made = []
    folder = tmp_path_factory.getbasetemp() / "choices"
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(folder))

    def counted(program, example, **given):
        assert not gc.isenabled()
        made.append(tuple(example.sizes.values()))
        return select(program, example, **given)

    select = module.select
    monkeypatch.setattr(module, "select", counted)
    for entry in CacheFolder().entries():
        if {"chosen", "kept"} & entry.parts.keys():
            CacheFolder().remove(entry.key)
    another_process()
    return made


def choices():
    """Lists the choices that are kept."""
    return [entry for entry in CacheFolder().entries() if "chosen" in entry.parts]


def another_process():
    """Forgets what this process remembers; the cache is as it is."""
    module._remembered.clear()
    torch._dynamo.reset()


def called(fast, function, rows, width=24):
    given = torch.randn(rows, width), torch.randn(width, 40), torch.randn(40, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(*given), function(*given))


def test_a_second_trace_selects_nothing_and_other_magnitudes_do(selections):
    fast = weft.compile(chained)
    called(fast, chained, 96)
    known = len(selections)
    assert known > 0
    called(fast, chained, 97)
    assert len(selections) == known
    assert gc.isenabled()
    torch._dynamo.reset()
    called(weft.compile(chained), chained, 700)
    assert len(selections) > known


class Layered(torch.nn.Module):
    """Layers whose weights a graph calls by number; each is a kernel, since PyTorch sorts between them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(layers))

    def forward(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Multiplies and takes a softmax in each layer, beginning with layer `first`."""
        for layer in self.layers[first:]:
            x = torch.softmax(layer(x), -1).sort(-1)[0]
        return x


def test_an_equal_layer_of_another_graph_is_neither_chosen_for_nor_judged_again(selections, monkeypatch, tmp_path):
    judged = []
    found_by = judging.wrong_of

    def wrong_of(*given):
        judged.append(given)
        return found_by(*given)

    monkeypatch.setattr(judging, "wrong_of", wrong_of)
    model, x = Layered(4), torch.randn(33, 24)
    fast = weft.compile(model, cache_dir=tmp_path, judge="first")
    with torch.no_grad():
        torch.testing.assert_close(fast(x, 0), model(x, 0))
        known = len(selections), len(judged)
        assert min(known) > 0
        for first in (1, 2):  # their first layers are other ones, called after another number
            torch.testing.assert_close(fast(x, first), model(x, first))
            assert (len(selections), len(judged)) == known


def test_costs_are_those_of_the_sizes_asked_for(selections):
    shapes = [((rows, 24), (24, 40), (40, 16)) for rows in (70, 128)]
    first, second = (weft.optimize(chained, [torch.randn(s) for s in each]) for each in shapes)
    assert len(set(selections)) == len(selections)
    assert sum(k.cost.flops for k in second.kernels) > 1.5 * sum(k.cost.flops for k in first.kernels)
    assert [k.key for k in first.kernels] == [k.key for k in second.kernels]


def test_another_program_and_other_options_are_selected_for(selections):
    called(weft.compile(chained), chained, 96)
    known = len(selections)
    torch._dynamo.reset()
    called(weft.compile(reordered), reordered, 96)
    other = len(selections)
    assert other > known
    torch._dynamo.reset()
    called(weft.compile(chained, threads=1, seed=7), chained, 96)
    assert len(selections) == other + known


def test_only_so_many_are_remembered(selections, monkeypatch):
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 1)
    for function in (chained, reordered):
        known = len(selections)
        torch._dynamo.reset()
        called(weft.compile(function), function, 96)
        assert len(selections) > known
        assert len(module._remembered) == 1


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
def test_selections_side_by_side_are_those_one_by_one(target, selections, monkeypatch, tmp_path):
    def sources(folder):
        another_process()
        del selections[:]
        with weft.options(cache_dir=folder):
            given = [torch.randn(s) for s in ((70, 24), (24, 40), (40, 16))]
            return [k.source for k in weft.optimize(chained, given, target).kernels], len(selections)

    one_by_one, here = sources(tmp_path / "one by one")
    monkeypatch.setattr(spreading_module, "processors", lambda: 4)
    found, left = sources(tmp_path / "side by side")
    assert found == one_by_one
    assert left == 0 < here
    monkeypatch.setattr(module, "spread", lambda tasks, *_: [None for _ in tasks])
    monkeypatch.setattr(module, "spreading", lambda *_: nullcontext(()))
    again, asked = sources(tmp_path / "children that die")
    assert again == one_by_one
    assert asked >= here


IMPORTED_BY_CHILDREN = """
import sys
import torch, weft
from weft.run import spread

spread.processors = lambda: 4
work = spread._work

def watched(*given):
    before = set(sys.modules)
    work(*given)
    print("child", *sorted(set(sys.modules) - before), flush=True)

spread._work = watched
weft.optimize(lambda x: torch.softmax(torch.relu(x) @ x, -1).sum(0), (torch.randn(64, 64),), target=sys.argv[1], compile="first")
"""


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
def test_children_import_nothing(target, tmp_path):
    """Children of each round are new: what the parent has not imported, each of them would."""
    environment = os.environ | {"WEFT_CACHE_DIR": str(tmp_path), "WEFT_JUDGE": "off"}
    command = [sys.executable, "-c", IMPORTED_BY_CHILDREN, target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    children = [line for line in done.stdout.splitlines() if line.startswith("child")]
    assert set(children) == {"child"}, children


def test_a_defect_in_a_child_is_noted_here(monkeypatch, tmp_path):
    def failing(*_, **__):
        raise ArithmeticError("planted")

    another_process()
    monkeypatch.setattr(spreading_module, "processors", lambda: 4)
    monkeypatch.setattr("weft.plan.choose.select.snapshots", failing)
    given = [torch.randn(s) for s in ((70, 24), (24, 40), (40, 16))]
    with (
        weft.options(cache_dir=tmp_path / "cache", defects="warn"),
        pytest.warns(weft.errors.LeftToPyTorchWarning, match="planted"),
    ):
        weft.optimize(chained, given)


def test_another_process_selects_nothing_whatever_its_sizes_in_the_class_and_its_lines(selections, monkeypatch):
    first = weft.optimize(chained, [torch.randn(s) for s in ((70, 24), (24, 40), (40, 16))])
    known = len(selections)
    assert known > 0
    another_process()
    monkeypatch.setattr(regions, "laws_refuted", lambda *_: pytest.fail("the laws were checked before"))
    moved = "\n" * 7 + "def chained(x, w, v):\n    return torch.relu(torch.softmax(x @ w, -1) @ v) + 1\n"
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(moved, "elsewhere.py", "exec"), scope)
    given = [torch.randn(s) for s in ((128, 24), (24, 40), (40, 16))]
    second = weft.optimize(scope["chained"], given)
    torch.testing.assert_close(second(*given), chained(*given))
    assert len(selections) == known
    assert [k.key for k in first.kernels] == [k.key for k in second.kernels]
    assert sum(k.cost.flops for k in second.kernels) > 1.5 * sum(k.cost.flops for k in first.kernels)
    assert str(first.trace) == str(second.trace)
    written = [n for r in second.plans[0].regions for n in r.program.nodes]
    inner = [n for k in second.kernels for m in maps(k.block_program.graph) for n in m.body.nodes]
    assert lines(written) == lines(inner) == {9}


def lines(nodes: Any) -> set[int]:
    """The user's lines that these come from."""
    return {where.line for where in (getattr(n, "location", None) for n in nodes) if where is not None}


def test_a_region_without_candidates_is_not_asked_about_again(selections, monkeypatch):
    def refusing(program, example, **given):
        selections.append(())
        raise UnsupportedError("no such loop", todo="nothing")

    monkeypatch.setattr(module, "select", refusing)
    given = torch.randn(64)
    for _ in range(2):
        another_process()
        program = weft.optimize(lambda x: torch.exp(x) + 3, (given,))
        assert [f.reason for f in program.fallbacks] == ["no such loop"] * 2
        assert len(selections) == 1


@pytest.mark.parametrize("damage", ["bytes", "content", "other program"])
def test_damaged_choices_are_made_anew(selections, damage):
    given = [torch.randn(s) for s in ((96, 24), (24, 40), (40, 16))]
    weft.optimize(chained, given)
    known = len(selections)
    folder = CacheFolder()
    chosen = choices()
    other = {e.parts["chosen"]: e.files["chosen.json"].read_bytes() for e in chosen}
    assert set(other) == {"selection", "cuts"}
    for entry in chosen:
        if damage == "bytes":
            path = entry.files["chosen.json"]
            path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
        else:
            text = b'{"forms":[],"rows":[["t"]],"root":[0]}' if damage == "content" else other["selection"]
            folder.store(entry.key, {"chosen.json": text}, entry.meta, parts=entry.parts)
    another_process()
    torch.testing.assert_close(weft.optimize(chained, given)(*given), chained(*given))
    kept = 0 if damage != "other program" else 1  # one is that of its own program
    assert len(selections) == 2 * known - kept
    another_process()
    weft.optimize(chained, given)
    assert len(selections) == 2 * known - kept


def test_an_equal_region_of_another_graph_is_prepared_for_its_own_layouts():
    """A function's graphs name their inputs alike, so that regions of two of them may be equal where tensors lie otherwise."""
    region, equal = Region(linear_relu()), Region(linear_relu())
    known = regions.Regions({"x": 1, "w": 1, "b": 0})
    rows = known.prepared(region)
    assert known.prepared(equal) is rows, "it is prepared once for a graph"
    known.begin({"x": 0, "w": 1, "b": 0}, frozenset(), {}, {}, {})
    columns = known.prepared(equal)
    assert (rows.example.innermost["x"], columns.example.innermost["x"]) == (1, 0)


def test_another_process_selects_nothing_for_equal_layers_whichever_it_meets_first(selections, monkeypatch):
    """The last of equal layers is priced first here, and its kernels have its names; the other process asks for the first."""

    def layers(x, w, v):
        first = torch.relu(torch.sort(x, 0).values @ w) * 2
        return torch.relu(torch.sort(first, 0).values @ v) * 2

    stages = Cuts.stages

    def backwards(cuts):
        every = list(linear(partition(cuts.program)))
        for stage in reversed([stage for stage in every if isinstance(stage, Region)]):
            cuts.prices.selection(stage)
        return stages(cuts)

    monkeypatch.setattr(Cuts, "stages", backwards)
    given = [torch.randn(s) for s in ((70, 24), (24, 24), (24, 24))]
    first = weft.optimize(layers, given)
    known = len(selections)
    another_process()
    second = weft.optimize(layers, given)
    assert len(selections) == known
    assert [k.key for k in first.kernels] == [k.key for k in second.kernels]
    assert all(k.from_cache for k in second.kernels)
    torch.testing.assert_close(second(*given), layers(*given))


@pytest.mark.parametrize("lost", [False, True])
def test_compilers_begin_before_all_regions_are_looked_at(monkeypatch, tmp_path, lost):
    """Children look at two regions closely; the second is done first, and the other one's child may be lost."""
    happened: list[str] = []

    @contextmanager
    def spreading(tasks: Any, *_: Any) -> Generator[Any]:
        def come() -> Iterator[tuple[int, Any]]:
            for number in (1,) if lost else (1, 0):
                happened.append(f"looked at {number}")
                yield number, tasks[number]()

        happened.append("forked")
        yield come()

    def started(selection: Any, device: Any) -> list[object]:
        assert selection.close
        happened.append(f"begun {selection.program.outputs[0]}")
        return []

    another_process()
    monkeypatch.setattr(module, "spreading", spreading)
    monkeypatch.setattr(module, "are_side_by_side", lambda: True)
    monkeypatch.setattr(regions, "start_region", started)
    programs = [gated(), linear_relu()]  # what takes longer is begun first
    known = regions.Regions({}, Target("cuda", "90"))
    with weft.options(cache_dir=str(tmp_path)):
        for each in map(Region, programs):
            form = known.prepared(each).form
            known._selected[form] = replace(known.selection(each), look_closely=None)
        known.settled([Region(each) for each in programs])
    first, second = (f"begun {known.prepared(Region(each)).program.outputs[0]}" for each in programs)
    expected = ["forked", "looked at 1", second, *([] if lost else ["looked at 0"]), first]
    assert happened == expected


def test_a_child_keeps_what_it_finds_in_a_closer_look(monkeypatch, tmp_path):
    """This process writes nothing of it, remembers it, and another one finds it in the cache."""
    written: list[object] = []
    keep = module.keep

    def noted(parts, value, *rest):
        written.append(value)  # of children this process sees nothing
        keep(parts, value, *rest)

    another_process()
    monkeypatch.setattr(module, "keep", noted)
    monkeypatch.setattr(spreading_module, "processors", lambda: 4)
    monkeypatch.setattr(regions, "start_region", lambda *_: [])
    several = [Region(gated()), Region(linear_relu())]
    with weft.options(cache_dir=str(tmp_path)):
        known = regions.Regions({}, Target("cuda", "90"))
        for each in several:
            form = known.prepared(each).form
            known._selected[form] = replace(known.selection(each), look_closely=None)
        del written[:]
        known.settled(several)
        assert not written
        assert all(known.selection(each).close for each in several)
        here = [module.selected_before(known.prepared(each)).chosen.schedule for each in several]
        another_process()
        fresh = regions.Regions({}, Target("cuda", "90"))
        assert [fresh.selection(each).chosen.schedule for each in several] == here
        assert all(fresh.selection(each).close for each in several)
