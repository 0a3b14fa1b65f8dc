"""Triton kernels: what they compute in Triton's interpreter, that they compile for GPUs that are not here, what they look like."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

from testkit.block import programs
from testkit.block.handmade import begun_with
from testkit.emit import triton_cases
from testkit.emit.harness import dims_of
from testkit.emit.triton_cases import GRID, LOOP, WHOLE, Case, cases, levels, placed
from testkit.emit.triton_programs import TritonProgram, load
from testkit.processes.running import ran
from testkit.schedules import fused
from weft.block.program import Fill
from weft.block.ranges import Part
from weft.block.walk import maps
from weft.cost import by_kernel
from weft.cost.gpu_work import work_of
from weft.emit.triton import BlockConstant, GridLoop, TritonKernel, WholeConstant, demand_legal, emit, prelude
from weft.emit.triton.scalar import NOTHING_EXACT, Text, expression
from weft.errors import InvalidProgramError, UnsupportedError
from weft.schedule import LevelPlace, LoopSchedule, kernels
from weft.target import Target
from weft.tensor import optable
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Convert, Lit, apply

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

CASES = cases()
# Bytes of shared memory that one program may have.
TARGETS = {"sm_90": ("cuda", 90, 227 * 1024), "gfx942": ("hip", "gfx942", 64 * 1024)}
COMPILED = (
    "linear_relu", "linear_relu_peeled", "linear_relu_split", "linear_relu_bf16", "attention", "attention_grid", "layernorm",
    "rmsnorm", "rmsnorm_whole", "softmax_state", "softmax_state_segments", "online_attention", "masked", "triangle_whole",
    "shared_heads", "linear_relu_two_grids", "lookup", "lookup_elements", "lookup_multiplied",
)  # fmt: skip


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float | str]:
    """By case, its error in units of rounding, or why it has none."""
    command = ["-W", "ignore", "-m", triton_cases.__name__, str(tmp_path_factory.mktemp("interpreted"))]
    done = ran(command, os.environ | {"TRITON_INTERPRET": "1"})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_the_program_says(name: str, interpreted: dict[str, float | str]) -> None:
    error = interpreted[name]
    assert isinstance(error, float), error
    assert error <= 1.0


def test_random_schedules_compute_the_same_or_are_refused_for_a_list(interpreted: dict[str, float | str]) -> None:
    found = {n: e for n, e in interpreted.items() if re.search(r"_\d+$", n)}
    ran = {n: e for n, e in found.items() if isinstance(e, float)}
    assert len(found) == triton_cases.RANDOM
    assert len(ran) > triton_cases.RANDOM // 2
    assert max(ran.values()) <= 1.0, ran
    assert all("would have to stay" in e for e in found.values() if isinstance(e, str)), found


@pytest.mark.parametrize("row", optable.PRIMITIVES, ids=lambda r: r.name)
def test_operations_mean_what_the_table_says(row: optable.Row, interpreted: dict[str, float | str]) -> None:
    error = interpreted[f"operation {row.name}"]
    assert isinstance(error, float)
    assert error <= (16.0 if row.name == "pow" else 4.0)


def test_floats_of_8_bits_are_rounded_as_weft_says(interpreted: dict[str, float | str]) -> None:
    wrong = {name: count for name, count in interpreted.items() if name.startswith("conversion ")}
    assert len(wrong) == 12
    assert not any(wrong.values()), wrong


def test_numbers_are_rounded_to_integers_as_pytorch_does(interpreted: dict[str, float | str]) -> None:
    """Halves to even up to where there are none, 2**23; a sign stays, that of 0 too."""
    assert not {name: got for name, got in interpreted.items() if name.startswith("rounding ")}


def test_quotients_of_one_divisor_are_rounded_once(interpreted: dict[str, float | str]) -> None:
    """The quotients are of all exponents, of divisors beside powers of two, 0, infinities and NaN; tiny and huge ones
    are nearly right.
    """
    assert not {name: got for name, got in interpreted.items() if name.startswith("quotient ")}


def test_bools_in_memory_choose_as_in_pytorch(interpreted: dict[str, float | str]) -> None:
    assert not {name: got for name, got in interpreted.items() if name.startswith("choice ")}


def test_quotients_that_are_rounded_to_few_numbers_are_eagers() -> None:
    assert "weft_to_e4m3(weft_quotient(x3, 0.01))" in _only(CASES["quantised"]).text
    assert "div_rn" not in _only(CASES["online_attention"]).text


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
@pytest.mark.parametrize("name", ["linear_bytes", "linear_e5m2", "quantised"])
def test_products_of_8_bits_compile(name: str, target: str, tmp_path: Path) -> None:
    case, where = CASES[name], Target.parse(target)
    if target == "cuda:80" and name != "linear_bytes":
        with pytest.raises(UnsupportedError, match="cuda:80 has no float8_e4m3fn"):
            _loaded(case, tmp_path, where)
        return
    arch = where.arch if where.kind == "hip" else int(where.arch)
    for made in _loaded(case, tmp_path, where).compile_for(where.kind, arch, case.sizes):
        assert made.assembly


@pytest.mark.parametrize(
    ("case", "unit"),
    [
        ((DType.int8, DType.int8, DType.int32), "s32.s8.s8"),
        ((DType.float8_e4m3fn, DType.float8_e4m3fn, DType.float8_e4m3fn), "f32.e4m3.e4m3"),
    ],
    ids=["int8", "e4m3"],
)
def test_matrix_units_multiply_numbers_of_8_bits(case: tuple[DType, ...], unit: str, tmp_path: Path) -> None:
    tile = levels((GRID, 128))
    program = placed(fused(triton_cases.narrow_product(*case)), m=tile, n=tile, k=levels((LOOP, 128)))
    sizes = {"M": 512, "N": 512, "K": 512}
    (made,) = _loaded(Case(program, sizes), tmp_path, Target("cuda", "90")).compile_for("cuda", 90, sizes)
    assert f"wgmma.mma_async.sync.aligned.m64n128k32.{unit}" in made.assembly
    if unit.startswith("f32"):
        # Four products in a row, for each half of the rows, are 128 elements in depth: then they are added up in float32.
        assert made.assembly.count("wgmma.mma_async") == 2 * 4
        assert made.assembly.count("add.f32") == 128 * 128 // 128
        assert "cvt.rn.satfinite.e4m3x2.f32" in made.assembly


@pytest.mark.parametrize(("tf32", "fused_adds", "adds"), [(False, True, True), (True, False, False)])
def test_float32_products_are_short_chains_or_tf32(tf32: bool, fused_adds: bool, adds: bool, tmp_path: Path) -> None:
    case = CASES["linear_relu"]
    sizes = {"M": 64, "N": 64, "K": 64}
    loaded = load(case.program, dims_of(case.program), tmp_path, tf32=tf32)
    (made,) = loaded.compile_for("cuda", 90, sizes)
    # relu(x @ w + b) has one addition for each element after the loop, and one in it for each block.
    bias = 32 * 32 // 128
    assert ("fma.rn.f32" in made.assembly) is fused_adds
    assert made.assembly.count("add.f32") == (2 * bias if adds else bias)
    assert bool(re.search(r"mma[.\w]*tf32", made.assembly)) is tf32


@pytest.mark.parametrize(
    ("case", "apart"),
    [
        ((DType.float32, DType.float32, DType.float32), True),
        ((DType.int8, DType.int8, DType.int32), True),
        ((DType.bfloat16, DType.bfloat16, DType.float32), False),
    ],
    ids=["float32", "int8", "bfloat16"],
)
def test_the_model_counts_an_addition_where_the_kernel_has_one(case: tuple[DType, ...], apart: bool) -> None:
    tile = levels((GRID, 32))
    program = placed(fused(triton_cases.narrow_product(*case)), m=tile, n=tile, k=levels((LOOP, 32)))
    (part,), sizes = kernels(program), {"M": 64, "N": 64, "K": 64}
    text = emit(program, part, "f", dims_of(program)).text
    (loop,) = (r for r in work_of(program, part, by_kernel(program, sizes)[0], sizes).body.all() if r.loop)
    assert (", acc=" not in text) is apart
    assert ((32 * 32, 1.0) in loop.vectors) is apart


DECAY = apply("decay", apply("div", apply("mul", apply("sub", Arg(0), Arg(1)), Lit(0.25)), Lit(-2.0)))


def test_powers_of_e_below_one_may_be_one_instruction_and_a_product() -> None:
    made = expression(DECAY, (Text("x", "float"), Text("y", "float")), str, exact=NOTHING_EXACT)
    assert made.text == f"tl.exp2((x - y) * ({-0.125 * math.log2(math.e)!r}))"


def test_powers_of_e_below_the_normal_numbers_are_numbers(tmp_path: Path) -> None:
    """Their logarithms are in eager; where memory takes the time, the instructions are free."""
    (m,) = programs.axes("m")
    uses = (Use("x", (m,)), Use("y", (m,)))
    both = (programs.tensor("x", m), programs.tensor("y", m))
    made = TensorProgram(both, (Elementwise("z", (m,), DType.float32, DECAY, uses),), ("z",))
    case = Case(placed(fused(made), m=levels((GRID, 128))), {"M": 128})
    (compiled,) = _loaded(case, tmp_path).compile_for("cuda", 90, case.sizes)
    assert "ex2.approx.f32" in compiled.assembly
    assert "ex2.approx.ftz.f32" not in compiled.assembly


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_gpus_that_are_not_here(name: str, target: str, tmp_path: Path) -> None:
    backend, arch, limit = TARGETS[target]
    case = CASES[name]
    for made in _loaded(case, tmp_path).compile_for(backend, arch, case.sizes):
        assert 0 <= made.shared <= limit
        assert ".visible .entry" in made.assembly or ".amdhsa_kernel" in made.assembly


@pytest.mark.parametrize("target", TARGETS)
def test_strides_of_one_are_constants_to_the_compiler(target: str, tmp_path: Path) -> None:
    backend, arch, _ = TARGETS[target]
    case = CASES["attention"]
    (made,) = _loaded(case, tmp_path).compile_for(backend, arch, dict.fromkeys(case.sizes, 1))
    assert made.assembly


def test_the_prelude_has_what_the_table_calls() -> None:
    called = {name for row in optable.PRIMITIVES for name in re.findall(r"\b(weft_\w+)\(", row.triton)}
    assert called
    assert called <= set(prelude.NAMES)
    for name in called:
        assert f"def {name}(" in "\n".join(prelude.functions(f"{name}(x)"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_compiles(target: str, tmp_path: Path) -> None:
    backend, arch, _ = TARGETS[target]
    case = triton_cases.operations()
    (made,) = _loaded(case, tmp_path).compile_for(backend, arch, case.sizes)
    assert made.assembly


@pytest.mark.parametrize(("target", "unit"), [("sm_90", "wgmma.mma_async"), ("gfx942", "v_mfma_f32")])
def test_matrix_units_multiply_in_bfloat16(target: str, unit: str, tmp_path: Path) -> None:
    backend, arch, limit = TARGETS[target]
    linear = fused(programs.linear_relu(DType.bfloat16))
    program = placed(linear, m=levels((GRID, 128)), n=levels((GRID, 128)), k=levels((LOOP, 32)))
    sizes = {"M": 512, "N": 1024, "K": 1024}
    (made,) = _loaded(Case(program, sizes), tmp_path).compile_for(backend, arch, sizes, {"num_stages": 2})
    assert unit in made.assembly
    assert made.shared <= limit


def test_a_linear_layer_is_one_loop_with_one_epilogue() -> None:
    kernel = _only(CASES["linear_relu"])
    text = kernel.text
    assert re.search(
        r"def kernel_0\(x, w, b, out, M, K, N, x_s0, x_s1, w_s0, w_s1, b_s0, (WHOLE_[mnk]: tl.constexpr(, )?){3}\):",
        text,
    )
    assert (kernel.reads, kernel.writes, kernel.sizes) == (("x", "w", "b"), ("out",), ("M", "K", "N"))
    assert kernel.grid == (GridLoop("M", 32), GridLoop("N", 32))
    assert (text.count("tl.dot("), text.count("tl.load("), text.count("tl.store("), text.count("for ")) == (1, 3, 1, 1)
    assert "tl.where" not in text, "what is loaded beyond the edge is the zero that products need"
    assert text.index("tl.load(b") > text.index("tl.dot("), "an item is loaded where it is read first"


def test_blocks_that_cover_a_space_are_constants_of_the_launch() -> None:
    kernel = _only(CASES["attention"])
    blocks = [c for c in kernel.constants if isinstance(c, BlockConstant)]
    assert [(c.space, c.of({"L": 24, "D": 1})) for c in blocks] == [("L", 32), ("D", 16)]
    assert re.search(r"BLOCK_l: tl.constexpr, .*BLOCK_d: tl.constexpr", kernel.text)


def test_a_constant_says_that_blocks_are_whole() -> None:
    found = {c.name: (c.space, c.tile) for c in _only(CASES["linear_relu"]).constants if isinstance(c, WholeConstant)}
    assert found == {"WHOLE_m": ("M", 32), "WHOLE_n": ("N", 32), "WHOLE_k": ("K", 16)}
    within = _launches(CASES["linear_relu_within"])[0].constants
    (rows,) = (c for c in within if isinstance(c, WholeConstant) and c.space == "M")
    assert (rows.tile, rows.of({"M": 80}), rows.of({"M": 72})) == (16, 1, 0)
    covering = {c.space: c for c in _only(CASES["attention"]).constants if isinstance(c, WholeConstant)}
    assert [covering["L"].of({"L": n}) for n in (24, 32)] == [0, 1]
    assert [covering["D"].of({"D": n}) for n in (8, 16)] == [0, 1], "products take no fewer than 16"
    fixed = {n: _only(_copy(n, n)).text for n in (48, 50)}
    assert ["_ok" in text for text in fixed.values()] == [False, True], "nothing is left to ask of a size that is known"


@pytest.mark.parametrize(
    ("rows", "columns", "far"), [(None, 4096, True), (2**20, 4096, True), (2**18, 4096, False), (64, 48, False)]
)
def test_offsets_of_results_have_64_bits_where_the_program_does_not_say_that_31_do(
    rows: int | None, columns: int, far: bool, tmp_path: Path
) -> None:
    """A row's length may be a number of the program: then its product with a row's number is no longer one of two sizes."""
    case = _copy(rows, columns)
    text = _only(case).text
    assert ("y_by_m = tl.cast(4096, tl.int64)" in text) is far
    assert (f"{columns} * m" in text) is not far
    (made,) = _loaded(case, tmp_path).compile_for("cuda", 90, {"m": rows or 64, "n": columns})
    # A row is 16384 bytes.
    assert bool(re.search(r"mad\.wide\.[us]32\s[^;]*, 16384, ", made.assembly)) is far


@pytest.mark.parametrize(("rows", "masked"), [(512, False), (500, True)])
def test_whole_blocks_are_read_without_masks(rows: int, masked: bool, tmp_path: Path) -> None:
    case, sizes = CASES["linear_relu_bf16"], {"M": rows, "N": 512, "K": 512}
    (made,) = _loaded(case, tmp_path).compile_for("cuda", 80, sizes)
    loads = re.findall(r"(@%p\d+ )?(?:ld\.global|st\.global|cp\.async\.c)[^\n]*", made.assembly)
    assert loads
    assert any(loads) is masked


def test_whole_blocks_of_a_peeled_loop_have_no_mask() -> None:
    linear = fused(programs.linear_relu())
    program = placed(linear, m=levels((GRID, 32)), n=levels((GRID, 32)), k=levels((LOOP, 16), peel=True))
    _, full, edge = re.split(r"    for k", _only(Case(program, {})).text)
    assert "mask=m_ok[:, None], other=0.0" in full
    assert "mask=m_ok[:, None] & k1_ok[None, :], other=0.0" in edge


def test_a_whole_block_with_more_lanes_than_elements_is_filled() -> None:
    program = CASES["linear_relu_peeled"].program
    (full, *_) = [m for m in maps(program.graph) if m.state is not None]
    assert full.range.part is Part.full
    assert not any(isinstance(n, Fill) for n in full.body.nodes), "the program sees no edge here"
    assert re.search(r"k_ok = k_i < 8\n", _only(CASES["linear_relu_peeled"]).text)


def test_components_that_depend_on_each_other_change_together() -> None:
    text = _only(CASES["turning"]).text
    assert re.search(r"\n +(s\w*), (s\w*) = weft_kept\(s\w*\), \1\n", text)


def test_largest_elements_keep_nan() -> None:
    text = _only(CASES["softmax_state"]).text
    assert "tl.reduce(" in text
    assert re.search(r"def weft_reduce_max\(left, right\):\n +return .*propagate_nan=tl.PropagateNan.ALL", text)


@pytest.mark.parametrize(("start", "text"), [(0.0, "0.0"), (-0.0, "(-0.0)"), (math.nan, "float('nan')"), (1.5, "1.5")])
def test_sums_begin_with_the_number_that_the_program_says(start: float, text: str) -> None:
    loop = levels((LOOP, 16))
    program = begun_with(placed(fused(programs.row_sum_of_squares()), m=levels((GRID, 32)), n=loop, k=loop), start)
    begun = re.findall(r"s\w* = tl.full\(\(.*?\), (.*), tl.float32\)\n", _only(Case(program, {})).text)
    assert begun == [text, text], "rows, products"


def test_a_list_between_two_loops_of_a_kernel_is_refused() -> None:
    block = fused(programs.two_layers())
    program = placed(block, m=levels((GRID, 32)), k=levels((LOOP, 16)), n=levels((LOOP, 16)), p=levels(WHOLE))
    with pytest.raises(UnsupportedError, match=r"list 't.*' would have to stay in a Triton kernel"):
        _only(Case(program, {}))


def test_what_triton_kernels_do_not_do_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="float32, not in float64"):
        _only(Case(_linear(DType.float64), {}))
    tile = levels((GRID, 32))
    for dtype in (DType.int64, DType.uint8):
        product = fused(triton_cases.narrow_product(dtype, DType.int8, DType.int32))
        with pytest.raises(UnsupportedError, match=f"matmul of blocks of {dtype} and int8: .* int8 by int8"):
            _only(Case(placed(product, m=tile, n=tile, k=levels((LOOP, 16))), {}))
    with pytest.raises(UnsupportedError, match=r"cuda:80 has no float8_e4m3fn: .* 8\.9"):
        _only(CASES["linear_e4m3"], Target("cuda", "80"))


def test_a_tensor_has_the_axes_of_its_list() -> None:
    program = _linear(DType.float32)
    dims = dims_of(program)
    with pytest.raises(InvalidProgramError, match="for a list of"):
        emit(program, kernels(program)[0], "kernel", {**dims, "out": dims["out"][:1]})


def test_a_dimension_of_size_one_has_a_stride_that_is_not_read() -> None:
    program = _linear(DType.float32)
    dims = dims_of(program)
    kernel = emit(program, kernels(program)[0], "kernel", {**dims, "b": (None, *dims["b"])})
    assert "* b_s1" in kernel.text
    assert kernel.text.count("b_s0") == 1


def _linear(dtype: DType):
    tile = levels((GRID, 32))
    return placed(fused(programs.linear_relu(dtype)), m=tile, n=tile, k=levels((LOOP, 16)))


def _only(case: Case, target: Target | None = None) -> TritonKernel:
    (nodes,) = kernels(case.program)
    return emit(case.program, nodes, "kernel_0", dims_of(case.program), target)


def _launches(case: Case) -> list[TritonKernel]:
    return [emit(case.program, nodes, "kernel", dims_of(case.program)) for nodes in kernels(case.program)]


@pytest.mark.parametrize("place", [GRID, LOOP, WHOLE])
def test_a_block_has_no_more_lanes_than_its_space_needs(place: LevelPlace) -> None:
    """Wherever its loop runs, in the kernel as in the model: 16 for 12 elements, and for 32 as many, all of them there."""
    for rows, lanes, masked in ((12, 16, True), (32, 32, False)):
        program = _copy(rows, 16, levels(place if place is WHOLE else (place, 64))).program
        text = emit(program, kernels(program)[0], "f", dims_of(program)).text
        assert f"m_i = tl.arange(0, {lanes})" in text
        assert ("m_ok" in text) is masked
        assert work_of(program, kernels(program)[0], by_kernel(program, {})[0], {}).largest == lanes * 16


def _copy(rows: int | None, columns: int, own: LoopSchedule | None = None) -> Case:
    """y = x of so many rows, None for a size of the run, and columns."""
    m, n = (Axis(name, Space(name, size)) for name, size in (("m", rows), ("n", columns)))
    made = Elementwise("y", (m, n), DType.float32, Arg(0), (Use("x", (m, n)),))
    program = fused(TensorProgram((programs.tensor("x", m, n),), (made,), ("y",)))
    return Case(placed(program, m=own or levels((GRID, 16)), n=levels((GRID, 16))), {"m": 64} if rows is None else {})


def _loaded(case: Case, folder: Path, target: Target | None = None) -> TritonProgram:
    return load(case.program, dims_of(case.program), folder, target=target)


def test_float64_inside_an_expression_is_refused_before_it_is_printed() -> None:
    (m,) = programs.axes("m")
    wide = Convert(DType.float32, Apply("exp", (Convert(DType.float64, Arg(0)),)))
    node = Elementwise("y", (m,), DType.float32, wide, (Use("x", (m,)),))
    program = placed(fused(TensorProgram((programs.tensor("x", m),), (node,), ("y",))), m=levels((GRID, 32)))
    with pytest.raises(UnsupportedError, match="not in float64"):
        demand_legal(program, kernels(program)[0])


def test_what_begins_before_other_kernels_have_ended_waits_for_them_first() -> None:
    """Without the wait a kernel would read what the one before it has not written yet; no interpreter shows that."""
    case = CASES["linear_relu"]
    made = _only(case, Target("cuda", "90"))
    text = made.text
    assert made.early
    body = text[text.index("def kernel_0(") :]
    assert "tl.load" in body
    assert "weft_after_others()" in body[: body.index("tl.load")]
    helper = text[text.index("def weft_after_others(") : text.index("def kernel_0(")]
    assert "gdc_launch_dependents()" in helper
    assert "gdc_wait()" in helper
    older = _only(case, Target("cuda", "80"))
    assert not older.early
    assert "gdc" not in older.text
