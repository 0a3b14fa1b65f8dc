"""Triton kernels that keep rows in registers, rank them, and go on after a first iteration."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit.block import programs
from testkit.block.rankings import FIRST, ranking
from testkit.emit import special, triton_rows
from testkit.emit.harness import dims_of, units
from testkit.emit.triton_cases import GRID, LOOP, WHOLE, levels, placed
from testkit.emit.triton_programs import load
from testkit.emit.triton_rows import cases, fading, read_inside, read_twice
from testkit.processes.running import ran
from testkit.schedules import fused
from weft.block.program import BlockProgram, Map
from weft.block.walk import maps
from weft.emit.triton import BlockConstant, TritonKernel, emit
from weft.errors import UnsupportedError
from weft.schedule import LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

CASES = cases()
TARGETS = {"sm_80": ("cuda", 80), "sm_90": ("cuda", 90), "sm_100": ("cuda", 100), "gfx942": ("hip", "gfx942")}
BY_8 = levels((GRID, 8))


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float | str]]:
    """The output of `triton_rows`."""
    command = ["-W", "ignore", "-m", triton_rows.__name__, str(tmp_path_factory.mktemp("interpreted"))]
    done = ran(command, os.environ | {"TRITON_INTERPRET": "1"})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_the_program_says(name: str, interpreted: dict[str, dict[str, float | str]]) -> None:
    error = interpreted["cases"][name]
    assert isinstance(error, float)
    assert error <= 1.0


def test_rankings_are_those_of_the_interpreter_to_the_last_bit(interpreted: dict[str, dict[str, float | str]]) -> None:
    found = interpreted["rankings"]
    assert len(found) > 20
    assert not {name: what for name, what in found.items() if what}


def test_reductions_have_nan_and_infinity_where_pytorch_has_them(
    interpreted: dict[str, dict[str, float | str]],
) -> None:
    found = interpreted["reductions"]
    assert len(found) == 8
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", TARGETS)
def test_rankings_compile_for_gpus_that_are_not_here(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    sizes = {"M": 64, "N": 128, "K": 64}
    in_blocks = placed(fused(ranking(8)), m=BY_8, r=levels(WHOLE), n=levels((LOOP, 32)))
    found = [in_blocks, CASES["routing"].program]
    if target == "sm_90":
        found.append(placed(fused(ranking(3, FIRST, DType.int64)), m=BY_8, r=levels(WHOLE), n=levels((LOOP, 32))))
    for program in found:
        for made in load(program, dims_of(program), tmp_path).compile_for(*TARGETS[target], sizes):
            assert ".visible .entry" in made.assembly or ".amdhsa_kernel" in made.assembly


@pytest.mark.parametrize("made_by", [read_twice, fading, read_inside])
def test_sums_of_whole_blocks_in_a_loop_compile(
    made_by: Callable[[], BlockProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton has threads add up apart, and asks of the loop what a program need not give: see `reduced_apart`."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    program = placed(made_by(), m=levels((GRID, 16)), k=levels((LOOP, 512)))
    (made,) = load(program, dims_of(program), tmp_path).compile_for("cuda", 90, {"M": 64, "K": 4096})
    assert made.assembly


def test_only_sums_that_go_on_as_sums_are_left_to_threads() -> None:
    """Hides from Triton sums that go on as something else, and those that the iterations read."""
    names = ("read_twice", "fading", "read_inside")
    once, always, inside = (_only(CASES[name].program).text.split("for ", 1)[1] for name in names)
    assert re.search(r"\n    s = weft_kept\(s\)\n", once)
    assert re.search(r"\n        s = weft_kept\(\w+\)\n", always)
    assert re.search(r"\n        s, s1 = weft_kept\(\w+\), ", inside)


def test_a_row_is_loaded_once_and_stays() -> None:
    """softmax(x @ w): the row of scores goes from loop to loop in registers."""
    text = _only(CASES["softmax"].program).text
    assert (text.count("tl.load("), text.count("tl.store("), text.count("tl.dot("), text.count("for ")) == (2, 1, 1, 1)


def test_lists_have_the_lanes_of_products_wherever_they_are_read() -> None:
    """The columns of a product have at least 16 lanes, and so have all loops over the whole of them."""
    kernel = _only(CASES["softmax_one_program"].program)
    blocks = [c for c in kernel.constants if isinstance(c, BlockConstant)]
    assert [(c.space, c.of({"M": 5, "N": 5})) for c in blocks] == [("M", 16), ("N", 16)]


def test_one_reduction_gives_value_and_place() -> None:
    text = _only(CASES["routing"].program).text
    assert text.count("weft_first(") == 2, "its definition, and a call"
    assert "weft_first_whole" not in text


def test_lists_that_loops_go_over_block_by_block_are_refused() -> None:
    softmax = fused(special.softmax())
    with pytest.raises(UnsupportedError, match=r"list 't\d*' would have to stay in a Triton kernel between two loops"):
        _only(placed(softmax, m=BY_8, n=levels((LOOP, 8)), k=levels(WHOLE)))
    layers = fused(programs.two_layers())
    with pytest.raises(UnsupportedError, match=r"would have to stay in .* where loop '.*' goes over it block by block"):
        _only(apply(layers, Schedule(tuple((m.name, _whole_but_the_last(m)) for m in maps(layers.graph)))))


def _whole_but_the_last(node: Map) -> LoopSchedule:
    return levels((LOOP, 16)) if node.name == "n1" else levels(WHOLE)


def _only(program: BlockProgram) -> TritonKernel:
    (unit,) = units(program, "kernel")
    return emit(program, unit.kernel, unit.name, unit.dims)
