"""Peeled loops as a plan has them: a schedule that fits, a verdict, and kernels that share an output."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from testkit.block import paper
from testkit.fuse import peelable
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.ranges import Remainder
from weft.block.walk import maps
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.plan.choose import region
from weft.plan.choose.checked import CheckedCandidate
from weft.plan.targets import launch_specs, toolchain
from weft.plan.targets.choose import choose
from weft.schedule import apply, tied
from weft.verify import verify

EXAMPLES = {**paper.EXAMPLES, "one_query": peelable.one_query, "batch": peelable.batch}
ALTERNATIVES = {
    f"{name}_{a.beside}": (make, canonical(a.program))
    for name, make in EXAMPLES.items()
    for a in fuse(lower(make())).alternatives
}


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("name", ALTERNATIVES)
def test_the_chosen_schedule_fits(name: str, safe: bool) -> None:
    _, program = ALTERNATIVES[name]
    program = canonical(make_safe(program).program) if safe else program
    for size in (7, 130, 5000):
        schedule = choose(program, dict.fromkeys("BMNKDL", size), {n: 1 for n, _ in program.inputs}, 2)
        applied = apply(program, schedule)
        tiles = {m.axis: m.tile for m in maps(applied.graph)}
        assert all(tiles[m.axis] == tiles[m.range.after] for m in maps(applied.graph) if isinstance(m.range, Remainder))
        assert all(tiles[a] == tiles[b] for a, b in tied(applied))


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_it_is_verified(name: str) -> None:
    make, program = ALTERNATIVES[name]
    schedule = choose(program, dict.fromkeys("BMNKDL", 64), {n: 1 for n, _ in program.inputs}, 2)
    assert verify(make(), apply(program, schedule))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 600])
def test_two_kernels_write_one_tensor(size: int) -> None:
    make, program = ALTERNATIVES["one_query_1"]
    sizes = {"D": 16, "N": 100, "L": 600}
    schedule = choose(program, sizes, {n: 1 for n, _ in program.inputs}, 2)
    applied = apply(program, schedule)
    checked = CheckedCandidate(make(), applied)
    example = region.Example(sizes, {n: 1 for n, _ in program.inputs}, 2)
    chain = toolchain(example.target)
    costs = partial(chain.costs, example, applied, schedule)
    specs = launch_specs(make(), applied, schedule, example)
    built = [region._kernel(chain, spec, costs, checked) for spec in specs]
    assert built[1].writes == applied.graph.outputs
    assert set(built[1].writes) < set(built[0].writes)
    values = {"q": torch.randn(16) / 4, "kt": torch.randn(100, 16), "vt": torch.randn(size, 100)}
    expected = values["vt"] @ torch.softmax(values["kt"] @ values["q"], 0)
    memory: list[int] = []
    for kernel in built:
        values.update(zip(kernel.writes, kernel.launch(*[values[n] for n in kernel.reads]), strict=True))
        memory.append(values[program.graph.outputs[0]].data_ptr())
    torch.testing.assert_close(values[program.graph.outputs[0]], expected)
    assert memory[0] == memory[1]
