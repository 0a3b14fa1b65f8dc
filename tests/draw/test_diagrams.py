"""Neural circuit diagrams: what is written under their columns is the closed form of the kernel; texts do not lie on each other."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

import weft
from testkit.block import paper
from testkit.schedules import fused
from weft.block import lower
from weft.block.copies import canonical
from weft.block.program import BlockProgram, Graph
from weft.block.walk import maps
from weft.cost import closed_form
from weft.cost.closed import size_of
from weft.cost.optimum import Expr, sp
from weft.draw import Diagram, at_whole, diagram, diagrams, svg
from weft.draw.columns import every
from weft.draw.form import Colour, StepKind, spelled
from weft.errors import UnsupportedError
from weft.lab.examples import ExampleFunction
from weft.lab.workloads.cpu import SUITE
from weft.pipeline import replayed
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apart, apply, kernels
from weft.tensor.program import TensorProgram

BY_TITLE = {example.title: example for example in SUITE}


def optimized(example: ExampleFunction, target: str) -> weft.Program:
    function = example.make(example.quick)
    inputs = example.inputs(example.quick, torch.float32, 0)
    return weft.optimize(function, inputs, target=target, effort="none", judge="off")


def regions(program: weft.Program) -> list[Any]:
    return [region for plan in program.plans for region in plan.regions if region.kernels]


def unfused(region: Any) -> BlockProgram:
    """Return the program that the region's rewriting began with."""
    changes = replayed(region.program, region.trace)
    found = (c.after for c in changes if isinstance(c.before, TensorProgram) and isinstance(c.after, BlockProgram))
    return next(found)


def labelled(found: Diagram) -> Expr:
    """Add up what changes level, from nothing but the labels of wires on chip: of the one run that the labels describe."""
    moved = [s for s in every(found.columns.flow.elements) if s.kind in (StepKind.load, StepKind.store)]
    on_chip = [next(i for i in (*s.inputs, *s.outputs) if i.level is Colour.chip) for s in moved]
    return sp.Add(*(item.values for item in on_chip))


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
@pytest.mark.parametrize("title", list(BY_TITLE))
@pytest.mark.one_in(7)
def test_columns_add_up_to_the_closed_form(title: str, target: str) -> None:
    for region in regions(optimized(BY_TITLE[title], target)):
        program = region.kernels[0].block_program
        for part, found in zip(kernels(program), diagrams(program), strict=True):
            why_not = ""
            try:
                form = closed_form(part)
            except UnsupportedError as error:
                form, why_not = None, error.what
            if form is None:
                assert (found.transfers, found.memory, found.why_not) == (None, None, why_not)
                continue
            assert sp.simplify(found.transfers - form.transfers) == 0
            assert sp.simplify(found.memory - form.memory()) == 0


@pytest.mark.parametrize("title", list(BY_TITLE))
@pytest.mark.one_in(7)
def test_columns_before_fusion_add_up_to_the_closed_forms_of_operations(title: str) -> None:
    """And those are what the report says."""
    program = optimized(BY_TITLE[title], "cpu")
    said = [text for name, text in program.explain().sections if name.startswith("block program before fusion")]
    for region, text in zip([r for plan in program.plans for r in plan.regions], said, strict=True):
        found = diagram(unfused(region))
        if not region.kernels:
            assert text.endswith("\ntransfers: none: it computes nothing")
            continue
        forms = [closed_form(part) for part in apart(at_whole(unfused(region)))]
        assert sp.simplify(found.transfers - sp.Add(*(form.transfers for form in forms))) == 0
        assert sp.simplify(found.memory - sp.Max(0, *(form.memory() for form in forms))) == 0
        assert f"\ntransfers: {found.transfers} values" in text
        assert text.endswith("held from block to block: nothing") == (found.memory == 0)


def test_of_several_launches_in_blocks_the_most_is_held() -> None:
    program = canonical(lower(paper.attention()))
    levels = [
        (m.name, Level(*((LevelPlace.grid, 16) if m.name[0] == "m" else (LevelPlace.loop, 8))))
        for m in maps(program.graph)
    ]
    placed = apply(program, Schedule(tuple((name, LoopSchedule((level,))) for name, level in levels)))
    found, forms = diagram(placed), [closed_form(part) for part in apart(placed)]
    assert sp.simplify(found.transfers - sp.Add(*(form.transfers for form in forms))) == 0
    assert found.memory == sp.Max(*(form.memory() for form in forms))
    assert len({form.memory() for form in forms}) > 2


@pytest.mark.parametrize("title", ["attention", "LayerNorm + matmul", "RMSNorm + SwiGLU", "top-k"])
def test_before_fusion_each_operation_moves_what_it_reads_and_makes(title: str) -> None:
    """By the labels of the wires alone."""
    (region, *_) = regions(optimized(BY_TITLE[title], "cpu"))
    found = diagram(unfused(region))
    placed = at_whole(unfused(region))
    groups = [size_of(m.axis.space) for m in maps(Graph((), kernels(placed)[0].nodes, ())) if m.unit]
    assert sp.simplify(found.transfers - sp.Mul(labelled(found), *groups)) == 0


def attention() -> Diagram:
    (region,) = regions(optimized(BY_TITLE["attention"], "cpu"))
    (found,) = diagrams(region.kernels[0].block_program, "attention")
    return found


def test_data_and_functions_alternate() -> None:
    columns = attention().columns
    assert len(columns.data) == len(columns.functions) + 1
    for i, function in enumerate(columns.functions):
        assert function.steps
        for step in function.steps:
            assert set(step.inputs) <= set(columns.data[i].items)
            assert set(step.outputs) <= set(columns.data[i + 1].items)


def test_a_loop_is_a_bracket_with_its_state() -> None:
    found = attention()
    (outer,) = (b for b in found.columns.brackets if b.depth == 0)
    assert outer.label == "for each of D/s_d blocks of d, carrying s, s1, s2"  # keys
    inner = [b for b in found.columns.brackets if b.depth == 1]
    assert all(outer.first <= b.first <= b.last <= outer.last for b in inner)
    # The result leaves after it.
    stores = [i for i, c in enumerate(found.columns.functions) if any(s.kind is StepKind.store for s in c.steps)]
    assert all(i > outer.last for i in stores)


@pytest.mark.parametrize(
    "title", ["attention", "attention, causal by mask", "LayerNorm + matmul", "RMSNorm + SwiGLU", "top-k"]
)
def test_texts_and_boxes_are_apart(title: str) -> None:
    for region in regions(optimized(BY_TITLE[title], "cpu")):
        for found in (diagram(unfused(region)), *diagrams(region.kernels[0].block_program)):
            boxes = [(text.text, text.box) for text in found.texts]
            for (one, a), (other, b) in combinations(boxes, 2):
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, f"{one!r} lies on {other!r}"
            for _, (left, top, right, bottom) in boxes:
                assert 0 <= left <= right <= found.width
                assert 0 <= top <= bottom <= found.height
            functions = [b for b in found.boxes if b.role == "function"]
            for a, b in combinations(functions, 2):
                beside = a.x + a.width <= b.x or b.x + b.width <= a.x
                assert beside or a.y + a.height <= b.y or b.y + b.height <= a.y


def test_every_wire_is_whole() -> None:
    """From one column of data to the next there is a line, or the item ends in a function that reads it."""
    found = attention()
    for i, (before, after) in enumerate(pairwise(found.columns.data)):
        read = {item for step in found.columns.functions[i].steps for item in step.inputs}
        made = {item for step in found.columns.functions[i].steps for item in step.outputs}
        assert set(before.items) <= set(after.items) | read
        assert set(after.items) <= set(before.items) | made


def test_a_picture_is_text_that_scales_and_says_what_it_shows() -> None:
    picture = svg(attention())
    root = ET.fromstring(picture)
    names = {"s": "http://www.w3.org/2000/svg"}
    assert root.attrib["viewBox"].startswith("0 0 ")
    assert root.attrib["role"] == "img"
    assert root.findtext("s:title", namespaces=names) == "attention"
    assert "load q" in (root.findtext("s:desc", namespaces=names) or "")
    assert "prefers-color-scheme" in picture
    assert {p.attrib["class"] for p in root.findall("s:path", names)} >= {"chip", "device"}


def test_queries_are_loaded_before_the_loop_over_keys() -> None:
    """Figure 19: once for each block of queries; keys in the loop, by blocks."""
    program = fused(paper.attention())
    own = {"m": Level(LevelPlace.grid, 16), "n": Level(LevelPlace.loop, 8)}
    levels = ((m.name, LoopSchedule((own.get(m.name, Level(LevelPlace.whole)),))) for m in maps(program.graph))
    placed = apply(program, Schedule(tuple(levels)))
    (part,), (found,) = kernels(placed), diagrams(placed)
    assert sp.simplify(found.transfers - closed_form(part).transfers) == 0
    assert sp.simplify(found.memory - closed_form(part).memory()) == 0
    (loop,) = found.columns.brackets
    loads = {
        step.inputs[0].name: (i, step) for i, c in enumerate(found.columns.functions) for step in c.steps if step.moved
    }
    column, queries = loads["q"]
    assert column < loop.first
    assert [spelled(w.size) for w in queries.outputs[0].wires] == ["g_m", "D"]
    column, keys = loads["kt"]
    assert loop.first <= column <= loop.last
    assert "s_n" in [spelled(w.size) for w in keys.outputs[0].wires]


def test_where_no_closed_form_is_known_it_says_why() -> None:
    found = [
        d
        for region in regions(optimized(BY_TITLE["attention, causal by mask"], "cpu"))
        for d in diagrams(region.kernels[0].block_program)
    ]
    assert any("a part of its space" in d.why_not for d in found)
    for each in found:
        assert bool(each.why_not) == any(t.text.startswith("H and M are not known") for t in each.texts)
