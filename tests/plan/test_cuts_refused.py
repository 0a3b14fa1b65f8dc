"""Regions that hold one without kernels, and hand all of its results on: they are not asked about."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from mmap import mmap
from pathlib import Path
from typing import Any, cast

import pytest

import weft
from testkit.block import programs
from testkit.plan.covers import Invented
from weft.errors import UnsupportedError
from weft.plan.choose.cuts import Cuts
from weft.plan.choose.refused import following
from weft.plan.execute import selections
from weft.plan.execute.regions import Regions
from weft.plan.partition.partition import Region, linear, partition, united
from weft.plan.targets.candidates import Example, Refusal, Selection
from weft.run import spread as spreading
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Node, TensorProgram, Use


def matmuls(*, all_are_results: bool, name: str = "p") -> TensorProgram:
    """Three matmuls, one after the other, of which all are results, or the last."""
    m, wide = Axis("m", Space("M")), Axis("n0", Space("N0"))
    inputs, nodes, last = [programs.tensor("x", m, wide)], list[Node](), "x"
    for i in range(3):
        into = Axis(f"n{i + 1}", Space(f"N{i + 1}"))
        inputs.append(programs.tensor(f"w{i}", wide, into))
        nodes.append(programs.matmul(f"{name}{i}", Use(last, (m, wide)), Use(f"w{i}", (wide, into)), wide))
        last, wide = f"{name}{i}", into
    every = tuple(node.name for node in nodes)
    return TensorProgram(tuple(inputs), tuple(nodes), every if all_are_results else (last,))


@dataclass
class Refusing(Invented):
    """Prices by which joining pays, but that the first two matmuls have no kernel; `defect`: since weft fails there."""

    defect: bool = False

    def at_hand(self, region: Region) -> bool:
        return True

    def selection(self, region: Region) -> Selection:
        if self.defect and self._seconds(region)[0] == inf:
            self.asked.append(frozenset(n.name for n in region.program.nodes))
            raise AssertionError("a defect")
        return super().selection(region)

    def _seconds(self, region: Region) -> tuple[float, float]:
        names = frozenset(n.name for n in region.program.nodes)
        return (inf if names == frozenset({"p0", "p1"}) else 1.0 + 0.1 * len(names)), 0.5


def asked(prices: Refusing, *, all_are_results: bool) -> list[str]:
    """Lists the regions of several matmuls that are asked about."""
    Cuts(matmuls(all_are_results=all_are_results), prices).stages()
    found = dict.fromkeys((*prices.asked, *prices.thought_of))
    return sorted("".join(sorted(names)) for names in found if len(names) > 1)


def test_what_hands_on_all_that_one_without_kernels_does_is_not_asked_about() -> None:
    prices = Refusing(random.Random(1), launch_seconds=0.0, fine=True, at_once=True)
    assert asked(prices, all_are_results=True) == ["p0p1", "p1p2"]


def test_but_what_has_its_results_inside_is() -> None:
    prices = Refusing(random.Random(1), launch_seconds=0.0, fine=True, at_once=True)
    assert "p0p1p2" in asked(prices, all_are_results=False)


def test_a_defect_says_nothing_of_others() -> None:
    prices = Refusing(random.Random(1), launch_seconds=0.0, fine=True, at_once=True, defect=True)
    with weft.options(defects="warn"):
        assert "p0p1p2" in asked(prices, all_are_results=True)


def regions(program: TensorProgram, *names: tuple[str, ...]) -> list[Region]:
    """Returns regions of `program` with the matmuls of these names."""
    lone = {stage.program.nodes[0].name: stage for stage in linear(partition(program)) if isinstance(stage, Region)}
    return [united(program, [lone[name] for name in each]) for each in names]


def test_what_follows_for_regions_that_hold_others() -> None:
    pair, last, triple = ("p0", "p1"), ("p1", "p2"), ("p0", "p1", "p2")
    # The last two read a matmul, which all three make: they may have whole rows of it.
    found = following(regions(matmuls(all_are_results=True), pair, last, triple))
    assert found == [frozenset(), frozenset(), frozenset({0})]
    # A result that stays inside need not be made as a whole.
    assert following(regions(matmuls(all_are_results=False), pair, triple)) == [frozenset(), frozenset()]


def test_children_leave_what_follows_from_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "_selected_alone", lambda number, *_, **__: (_REFUSED[number], None))
    with mmap(-1, 3) as refused:
        looked_at = [
            selections._selected_unless(refused, n, after, cast("Any", n), cast("Any", None), closely=False)
            for n, after in enumerate(((), (0,), (1,)))
        ]
    assert looked_at == [(_REFUSED[0], None), 0, (None, None)], "1 is left for the refusal of 0, and says nothing of 2"


_REFUSED = (Refusal("UnsupportedError", "does not fit", None, ""), None, None)


def test_what_follows_is_known_of_all_regions_of_the_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Layers differ in names: of another one's region nothing would follow, and this process would look for kernels itself."""
    asked: list[int] = []  # of this process; children have lists of their own

    def refusing(program: TensorProgram, _: Example, **_refused: object) -> Selection:
        asked.append(len(program.nodes))
        raise UnsupportedError("does not fit")

    monkeypatch.setattr(selections, "select", refusing)
    monkeypatch.setattr(spreading, "processors", lambda: 4)
    selections._remembered.clear()
    with weft.options(cache_dir=str(tmp_path)):
        known = Regions({}, Target("cuda", "90"))
        assert known.foreseen(regions(matmuls(all_are_results=True), ("p0", "p1"), ("p0", "p1", "p2")), doubtful=True)
        others = regions(matmuls(all_are_results=True, name="q"), ("q0", "q1"), ("q0", "q1", "q2"))
        for each in others:
            with pytest.raises(UnsupportedError, match="does not fit"):
                known.selection(each)
    assert not asked
