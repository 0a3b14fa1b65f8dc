"""What a kernel looks like, what it is called with, and what it does at its limits."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testkit.block import programs
from testkit.block.handmade import begun_with
from testkit.emit import special
from testkit.emit.harness import compiled, dims_of, units
from testkit.schedules import fused
from weft.block.program import BlockProgram, Dot, Graph, Map
from weft.block.walk import maps
from weft.emit.cpp import INCLUDE_DIR, emit, list_dims, size_names
from weft.errors import InvalidProgramError, Location
from weft.run.build import KernelSource, build
from weft.run.cache import CacheFolder
from weft.run.launch import InputSpec, KernelSignature, OutputSpec, SizeSpec
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram

GRID, LOOP, WHOLE, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.whole, LevelPlace.split
LINEAR = {"m": [(GRID, 64)], "n": [(GRID, 32)], "k": [(LOOP, 16)]}


def dots(graph: Graph) -> set[str]:
    found = {n.name for n in graph.nodes if isinstance(n, Dot)}
    return found.union(*(dots(n.body) for n in graph.nodes if isinstance(n, Map)))


def placed(
    program: TensorProgram, levels: dict[str, list[tuple[LevelPlace, int]]], *, staged: bool = True, peel: bool = False
) -> BlockProgram:
    """`program`, fused, with the levels of each loop named by its first letter; products are staged."""
    block = fused(program)
    loops = tuple(
        (m.name, LoopSchedule(tuple(Level(*x) for x in levels[m.name[0]]), peel=peel and m.state is not None))
        for m in maps(block.graph)
    )
    panels = frozenset(dots(block.graph)) if staged else frozenset[str]()
    return apply(block, Schedule(loops, panels=panels))


def text_of(program: BlockProgram) -> str:
    return "\n".join(unit.text() for unit in units(program, "kernel"))


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def test_a_linear_layer_is_one_loop_with_one_epilogue() -> None:
    text = text_of(placed(programs.linear_relu(), LINEAR))
    assert count(r'extern "C"', text) == 1
    assert count(r"#pragma omp parallel", text) == 1
    assert count(r"scratch\.take<", text) == 3, "the accumulator, its levels and the panel"
    assert count(r"weft::dot\w*\(", text) == 1
    assert count(r"weft::stage_panel\(", text) == 1
    after = text[text.index("weft::dot") :]
    assert count(r"#pragma omp simd", after) == 1
    assert count(r"\bmin_index\b|\bfor \(", after) == 2, "rows, columns"
    assert "omp simd" not in text[text.index("for (i64 k") : text.index("weft::dot")], (
        "nothing is zeroed block by block"
    )


def test_every_intermediate_of_a_chain_stays_in_registers() -> None:
    text = text_of(placed(special.several(), {"m": [(LOOP, 64)], "n": [(LOOP, 32)], "k": [(LOOP, 16)]}))
    squares = re.search(r"const float (\w+) = (\w+) \* \2;", text)
    assert squares is not None
    assert f"{squares[1]}[" not in text
    assert count(rf"const float {squares[2]} = \w+\[", text) == 1, "what is read twice is loaded once"


def test_a_chain_over_two_axes_is_one_nest_with_a_sum_inside(tmp_path: Path) -> None:
    text = text_of(placed(programs.row_sum_of_squares(), {"m": [(GRID, 8)], "n": [(LOOP, 8)], "k": [(WHOLE, 0)]}))
    after = text[text.index("weft::dot") :]
    assert count(r"= weft::sum_of_lanes\(", after) == 1
    assert count(r"scratch\.take<", text) == 4, "row sums, their levels, product, panel"


def test_a_segment_is_a_grid_of_its_own_and_a_merge() -> None:
    text = text_of(placed(programs.linear_relu(), {**LINEAR, "k": [(SPLIT, 3), (LOOP, 16)]}))
    assert count(r'extern "C"', text) == 2
    assert count(r"#pragma omp parallel", text) == 2


def test_a_kernel_says_how_much_work_it_is() -> None:
    assert "weft::team(threads, m_blocks * n_blocks, 1.0 * K * M * N)" in text_of(
        placed(programs.linear_relu(), LINEAR)
    )
    gated = text_of(placed(programs.gated(), {"m": [(GRID, 8)], "n": [(LOOP, 8)], "k": [(LOOP, 8)]}))
    assert count(r"weft::team\(threads, m_blocks, 1\.0 \* K \* M \* N\)", gated) == 1, "both products have these sizes"


def test_words_come_in_the_stated_order() -> None:
    program = placed(programs.linear_relu(), LINEAR)
    (kernel,) = kernels(program)
    assert (kernel.reads, kernel.writes) == (("x", "w", "b"), ("out",))
    assert size_names(program, kernel) == ("M", "K", "N")
    text = emit(program, kernel, "kernel", dims_of(program))
    found = re.findall(r"const (?:i64|int) (\w+) = (?:\(int\))?words\[(\d+)\]", text)
    assert found == [(name, str(i)) for i, name in enumerate(
        ["M", "K", "N", "x_s0", "x_s1", "w_s0", "w_s1", "b_s0", "threads"], 4)]  # fmt: skip


def test_a_dimension_of_size_one_has_a_stride_that_is_not_read() -> None:
    program = placed(programs.linear_relu(), LINEAR)
    (unit,) = units(program, "kernel")
    rows, columns = unit.dims["out"]
    dims = {**unit.dims, "b": (None, *unit.dims["b"]), "out": (rows, None, columns)}
    text = replace(unit, dims=dims).text()
    assert "b_s1 = words[12]" in text
    assert "words[11]" not in text
    assert "threads = (int)words[13]" in text


def test_the_users_lines_stand_in_the_code() -> None:
    tensors = programs.linear_relu()
    where = Location("model.py", 7, "relu(x @ w + b)  // \\")
    nodes = tuple(replace(n, location=where) for n in tensors.nodes)
    text = text_of(placed(replace(tensors, nodes=nodes), LINEAR))
    assert count(r"// model\.py:7: relu\(x @ w \+ b\)  ?// ?\n", text) == 2, "the product, the epilogue"


def test_names_that_are_no_identifiers() -> None:
    tensors = programs.linear_relu()
    names = {"x": "int", "w": "a.b c", "b": "1st"}
    inputs = tuple(replace(i, name=names[i.name]) for i in tensors.inputs)
    nodes = tuple(_with_values(n, names) for n in tensors.nodes)
    text = text_of(placed(TensorProgram(inputs, nodes, tensors.outputs), LINEAR))
    for name in ("int_1", "a_b_c", "v1st"):
        assert f"const float* const {name} =" in text


def _with_values(node, names):
    """A node that reads other names."""
    renamed = {}
    for field in ("left", "right", "arg"):
        if hasattr(node, field):
            use = getattr(node, field)
            renamed[field] = replace(use, value=names.get(use.value, use.value))
    if hasattr(node, "args"):
        renamed["args"] = tuple(replace(u, value=names.get(u.value, u.value)) for u in node.args)
    return replace(node, **renamed)


@pytest.mark.parametrize("levels", [[(LOOP, 16)], [(WHOLE, 0)], [(LOOP, 32), (LOOP, 8)]], ids=str)
@pytest.mark.parametrize("peel", [False, True])
def test_empty_tensors(levels: list[tuple[LevelPlace, int]], peel: bool, target: str, tmp_path: Path) -> None:
    program = placed(programs.linear_relu(), {**LINEAR, "k": levels}, peel=peel and levels[0][0] is LOOP)
    (kernel,) = compiled([program], tmp_path, quickly=True, target=target)
    for m, k, n in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (3, 1, 4)):
        x, w, b = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        (found,) = kernel({"x": x, "w": w, "b": b}, {"M": m, "K": k, "N": n})
        torch.testing.assert_close(found, torch.relu(x @ w + b))


def test_nan_and_infinity_come_out_where_eager_has_them(target: str, tmp_path: Path) -> None:
    levels = {"m": [(GRID, 4)], "n": [(LOOP, 4)], "k": [(LOOP, 4)]}
    linear, soft = placed(programs.linear_relu(), LINEAR), placed(special.softmax(), {**levels, "m": [(LOOP, 4)]})
    x, w, b = torch.randn(9, 5), torch.randn(5, 7), torch.randn(7)
    x[1, 2], x[4, 0], b[3] = float("nan"), float("inf"), float("-inf")
    first, second = compiled([linear, soft], tmp_path, quickly=True, target=target)
    sizes = {"M": 9, "K": 5, "N": 7}
    torch.testing.assert_close(first({"x": x, "w": w, "b": b}, sizes)[0], torch.relu(x @ w + b), equal_nan=True)
    torch.testing.assert_close(second({"x": x, "w": w}, sizes)[0], torch.softmax(x @ w, 1), equal_nan=True)


def test_wrong_dimensions_are_refused() -> None:
    program = placed(programs.linear_relu(), LINEAR)
    (kernel,) = kernels(program)
    dims = dims_of(program)
    with pytest.raises(InvalidProgramError):
        emit(program, kernel, "kernel", {**dims, "out": dims["x"]})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_long_sums_of_operands_of_any_layout(dtype: torch.dtype, target: str, tmp_path: Path) -> None:
    tensors = programs.linear_relu(DType[str(dtype).removeprefix("torch.")])
    levels = {**LINEAR, "k": [(LOOP, 600)]}
    kernels_ = compiled([placed(tensors, levels, staged=s) for s in (True, False)], tmp_path, target=target)
    x, w, b = torch.randn(70, 601).to(dtype), torch.randn(601, 33).to(dtype), torch.randn(33).to(dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    wanted = torch.relu(x.to(wide) @ w.to(wide) + b.to(wide))
    for kernel in kernels_:
        for left in (x, x.t().contiguous().t()):
            for right in (w, w.t().contiguous().t()):
                (found,) = kernel({"x": left, "w": right, "b": b}, {"M": 70, "K": 601, "N": 33})
                assert (found.to(wide) - wanted).abs().max() <= 16 * torch.finfo(dtype).eps * wanted.max()


def test_lists_between_launches_keep_items_together() -> None:
    program = placed(programs.linear_relu(), {**LINEAR, "k": [(SPLIT, 3), (LOOP, 16)]})
    first, second = kernels(program)
    (parts,) = first.writes
    assert parts in second.reads
    assert [a.space.name for a in dims_of(program)[parts] if a is not None] == ["KS", "M", "N"]
    assert list_dims(program.inputs[0][1]) == program.inputs[0][1].lists


def test_the_whole_way_through_run(tmp_path: Path) -> None:
    program = placed(programs.linear_relu(DType.bfloat16), {**LINEAR, "k": [(LOOP, 512)]})
    (kernel,) = kernels(program)
    signature = KernelSignature(
        "linear",
        tuple(InputSpec(n, len(k.lists), k.dtype) for n, k in program.inputs),
        (SizeSpec("M", 0, 0), SizeSpec("K", 0, 1), SizeSpec("N", 1, 1)),
        (OutputSpec(("M", "N"), DType.bfloat16),),
    )
    assert tuple(s.name for s in signature.sizes) == size_names(program, kernel)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    made = build(
        {"program": "linear"},
        lambda: KernelSource(emit(program, kernel, "linear", dims_of(program)), signature, (INCLUDE_DIR,)),
        CacheFolder(folder),
    )
    x, w, b = (torch.randn(*s, dtype=torch.bfloat16) for s in ((130, 1000), (1000, 70), (70,)))
    (found,) = made.launch(x, w.t().contiguous().t(), b)
    torch.testing.assert_close(found.float(), torch.relu(x.float() @ w.float() + b.float()), rtol=2e-2, atol=0.3)


@pytest.mark.parametrize(("start", "text"), [(0.0, "0.0f"), (-0.0, "-0.0f"), (math.nan, "WEFT_NAN"), (1.5, "1.5f")])
def test_sums_begin_with_the_number_that_the_program_says(start: float, text: str) -> None:
    """A matmul whose sums begin with 0 overwrites what was there, and needs it only where it adds nothing; -0.0 is not that 0."""
    levels = {"m": [(GRID, 64)], "n": [(LOOP, 16)], "k": [(LOOP, 16)]}
    printed = text_of(begun_with(placed(programs.row_sum_of_squares(), levels), start))
    begun = re.findall(r"^ +s\w*\[.*\] = (-?\d.*|WEFT_NAN);", printed, re.MULTILINE)
    again = 1 if text == "0.0f" else 2  # after so many iterations, their sum is moved on
    assert begun == [text, text] + again * [text], "rows, products"
    assert ("if (K <= 0)" in printed) is (text == "0.0f")
