"""`with_transfers`: lists become memory, what an iteration reads of them loads, what it leaves stores."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.block import programs
from testkit.schedules import fused
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.program import Broadcast, Final, Join, Load, Once, Store
from weft.block.transfers import with_transfers
from weft.block.walk import every, maps, operands
from weft.tensor.fp64 import Fp64Domain

SIZES = {"M": 5, "K": 7, "N": 6, "P": 3, "B": 2}


@pytest.mark.parametrize("name", programs.ALL)
def test_no_map_iterates_or_stacks_any_more(name: str) -> None:
    """All that a map is fed is whole memory and items, and it hands out nothing that is stacked."""
    program = with_transfers(fused(programs.ALL[name]()))
    check(program)
    for node in maps(program.graph):
        assert all(isinstance(feed.access, Broadcast) for feed in node.inputs)
        assert all(isinstance(output, Final | Once) for output in node.outputs)
    nodes = list(every(program.graph.nodes))
    assert not any(isinstance(n, Join) for n in nodes)
    assert any(isinstance(n, Load) for n in nodes)
    assert any(isinstance(n, Store) for n in nodes)


@pytest.mark.parametrize("name", programs.ALL)
def test_what_is_computed_stays(name: str) -> None:
    before = fused(programs.ALL[name]())
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal([a.space.size(SIZES) for a in kind.lists]) for n, kind in before.inputs}
    wanted, _ = interpret(before, inputs, SIZES, Fp64Domain())
    found, _ = interpret(with_transfers(before), inputs, SIZES, Fp64Domain())
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", programs.ALL)
def test_a_load_stands_before_its_first_reader(name: str) -> None:
    """Nothing but other loads is between the two."""
    seen = 0
    for node in maps(with_transfers(fused(programs.ALL[name]())).graph):
        nodes = node.body.nodes
        for place, each in enumerate(nodes):
            first = next((i for i, n in enumerate(nodes) if isinstance(each, Load) and each.name in operands(n)), None)
            if first is not None:
                seen += 1
                assert all(isinstance(n, Load) for n in nodes[place:first])
    assert seen
