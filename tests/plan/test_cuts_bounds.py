"""Regions that are not priced: those that cannot take less than their atoms, and matmuls of matmuls that reach little."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from testkit.block import programs
from testkit.plan.covers import Invented
from weft.cost import gpu, least_seconds
from weft.plan.choose.cuts import _CROWDED, Cuts
from weft.plan.choose.joins import crowded
from weft.plan.choose.select import select
from weft.plan.partition.partition import Region
from weft.plan.targets.candidates import Example
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Node, TensorProgram, Use


def matmuls(count: int) -> TensorProgram:
    """Matmuls of a row of matrices, one after the other."""
    m, wide = Axis("m", Space("M")), Axis("n0", Space("N0"))
    inputs, nodes, last = [programs.tensor("x", m, wide)], list[Node](), "x"
    for i in range(count):
        into = Axis(f"n{i + 1}", Space(f"N{i + 1}"))
        inputs.append(programs.tensor(f"w{i}", wide, into))
        nodes.append(programs.matmul(f"product{i}", Use(last, (m, wide)), Use(f"w{i}", (wide, into)), wide))
        last, wide = f"product{i}", into
    return TensorProgram(tuple(inputs), tuple(nodes), (last,))


def test_where_all_is_selected_at_once_what_cannot_take_less_than_its_atoms_is_not():
    asked: list[frozenset[str]] = []
    lone, cheap = [frozenset({f"product{i}"}) for i in range(4)], frozenset({"product0", "product1"})

    class Known(Invented):
        def at_hand(self, region: Region) -> bool:
            return True

        def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
            asked.extend(frozenset(n.name for n in region.program.nodes) for region in regions)
            return True

        def _seconds(self, region: Region) -> tuple[float, float]:
            own = frozenset(n.name for n in region.program.nodes)
            seconds = 0.5 if own == cheap else 1.0 if own in lone else 3.0
            return seconds, seconds

    stages = Cuts(matmuls(4), Known(random.Random(1), fine=True, launch_seconds=0.0)).stages()
    assert len(stages) == 3
    assert asked == [*lone, cheap]


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ({"M": 64, "K": 768, "N": 3072, "P": 768}, 1.0),
        ({"M": 1, "K": 768, "N": 3072, "P": 768}, 1.0),
        ({"M": 8192, "K": 256, "N": 1024, "P": 512}, 1.0),
        ({"M": 8192, "K": 256, "N": 1024, "P": 256}, 0.0),  # one block of columns
        ({"M": 8192, "K": 1024, "N": 16, "P": 1024}, 1.0),  # bound by what they read and write
    ],
)
def test_where_matmuls_of_matmuls_are_predicted_to_reach_little(sizes, share) -> None:
    program = programs.two_layers(DType.bfloat16)
    assert crowded(program, sizes) == share
    if share:
        found = select(program, Example(sizes, {}, 1, Target("cuda", "90")))
        machine = gpu(Target("cuda", "90")).machine()
        assert found.work_seconds > least_seconds(program, sizes, machine, cached=False, reached=_CROWDED)
