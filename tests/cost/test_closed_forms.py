"""Transfers and memory in closed form, and their optimum, against the formulas of FlashAttention on a Napkin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import weft
from testkit.block import paper, programs
from testkit.cost.closed import (
    GRID,
    LOOP,
    SEGMENTS,
    WHOLE,
    A,
    B,
    C,
    D,
    Q,
    X,
    attention,
    matmul,
    only,
    placed,
    product,
)
from testkit.emit.triton_cases import paper as fused_example
from testkit.schedules import fused
from weft.block import lower
from weft.block.copies import canonical
from weft.block.walk import maps
from weft.cascade import chains
from weft.cost import ClosedForm, by_kernel, closed_form, traffic
from weft.cost.gpu_work import work_of
from weft.cost.optimum import MEMORY, Expr, TransferLevel, best_cluster, optimum, sp
from weft.errors import UnsupportedError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg
from weft.tensor.scalar import apply as apply_scalar


def test_matmul() -> None:
    """Figure 18: a b c (1/g_a + 1/g_c) + a c, and 2 a b c / sqrt(M) + a c where the result fills the memory."""
    found = only(matmul())
    rows, columns = found.groups
    assert sp.simplify(found.transfers - (A * B * C * (1 / rows + 1 / columns) + A * C)) == 0
    best = found.optimum()
    assert sp.simplify(best.values - (2 * A * B * C / sp.sqrt(MEMORY) + A * C)) == 0
    assert best.groups == {str(rows): sp.sqrt(MEMORY), str(columns): sp.sqrt(MEMORY)}


def test_a_square_matmul_is_cubic_from_half_the_root_of_the_memory() -> None:
    """Section 3.1."""
    n = sp.Symbol("n", positive=True)
    square, cubic = only(matmul()).optimum().values.subs(dict.fromkeys((A, B, C), n)).as_independent(MEMORY)
    assert sp.solve(sp.Eq(square, cubic), n) == [sp.sqrt(MEMORY) / 2]


def test_attention() -> None:
    """Figure 19: 2 q d + 2 q x d / g; equation 4 with the output held, and with queries and output (Table 2)."""
    found = attention()
    (group,) = found.groups
    assert sp.simplify(found.transfers - (2 * Q * D + 2 * Q * X * D / group)) == 0
    output, queries = found.stated[:2]
    held = {h.name: h.values for h in found.held}
    assert held[output] == held[queries] == group * D
    assert sp.simplify(found.optimum(output).values - (2 * Q * D + 2 * Q * X * D**2 / MEMORY)) == 0
    assert sp.simplify(found.optimum(output, queries).values - (2 * Q * D + 4 * Q * X * D**2 / MEMORY)) == 0
    # With the sum of each row, all that lasts.
    assert sp.simplify(found.optimum().values - (2 * Q * D + 2 * Q * X * D * (2 * D + 1) / MEMORY)) == 0


def test_the_gpu_model_counts_loads_where_the_closed_form_does() -> None:
    """Queries, which no block of keys changes, once for a thread block; where their width goes by blocks, with the keys."""
    sizes = {"M": 64, "N": 64, "D": 32, "L": 16}
    for width, once in (((WHOLE, 0), {"q"}), ((LOOP, 8), set[str]())):
        applied = placed(fused_example("attention"), m=(GRID, 16), n=(LOOP, 8), d=width)
        (part,) = kernels(applied)
        (counted,) = by_kernel(applied, sizes)
        assert {load.name for load in work_of(applied, part, counted, sizes).body.loads} == once
        loaded = closed_form(part).loaded["q"]
        assert loaded.has(sp.Symbol("N", positive=True)) is not bool(once)


@pytest.mark.parametrize(("name", "factor"), [("attention", 4), ("matmul", 2 ** sp.Rational(3, 2))])
def test_half_the_bytes(name: str, factor: Expr) -> None:
    """Section 4.3: leading terms fall by more than 2, since more values fit."""
    best = attention().optimum() if name == "attention" else only(matmul()).optimum()
    leading = replace(best, powers=best.powers[1:])
    assert sp.simplify(leading.bytes(4) / leading.bytes(2)) == factor


@pytest.mark.parametrize(("heads", "keys"), [(8, 8), (8, 2)])
def test_heads(heads: int, keys: int) -> None:
    """Figures 20 and 21: PyTorch's attention, as it is captured and fused for a GPU, moves as much for each head as one alone."""
    b, q, x, d = 2, 4096, 4608, 64
    tensors = [torch.randn(b, n, rows, d, dtype=torch.bfloat16) for n, rows in ((heads, q), (keys, x), (keys, x))]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=heads != keys)

    (kernel,) = weft.optimize(attend, tuple(tensors), target="cuda:90", effort="none", judge="off").kernels
    found = only(kernel.block_program)
    shapes = {5: (b, keys, heads // keys, q, d), 4: (b, keys, x, d)}
    numbers: dict[Expr, int] = {}
    for name, kind in kernel.block_program.inputs:
        shape = (b, heads, q, d) if name == "q" else shapes[len(kind.lists)]
        numbers |= {sp.Symbol(a.space.name, positive=True): n for a, n in zip(kind.lists, shape, strict=True)}
    (group,) = found.groups
    expected = b * heads * (2 * q * d + 2 * q * x * d / group)
    assert sp.simplify(found.transfers.subs(numbers) - expected) == 0
    best = found.optimum(*found.stated[:2]).values.subs(numbers)
    assert sp.simplify(best - b * heads * (2 * q * d + 4 * q * x * d**2 / MEMORY)) == 0


@pytest.mark.parametrize("blocks", [(16, 16, 8), (32, 8, 16)])
def test_closed_forms_are_what_is_counted_where_blocks_divide(blocks: tuple[int, int, int]) -> None:
    """By `weft.cost.traffic`, and so by the interpreter."""
    program = matmul(*blocks)
    found, sizes = only(program), {"A": 64, "B": 128, "C": 96}
    counted = traffic(program, sizes)
    numbers = {sp.Symbol(name, positive=True): n for name, n in sizes.items()}
    numbers |= {sp.Symbol(name, positive=True): n for name, n in zip(("g_a", "g_c"), blocks, strict=False)}
    width = DType.float32.bytes
    assert {n: e.subs(numbers) * width for n, e in found.loaded.items()} == counted.loaded
    assert {n: e.subs(numbers) * width for n, e in found.stored.items()} == counted.stored


def test_what_a_loop_reads_again_is_counted_once() -> None:
    """Queries are loaded before the loop over keys; the interpreter, which has no such place, loads them for each block of keys."""
    program, blocks = placed(fused_example("attention"), m=(GRID, 16), n=(LOOP, 8)), 8
    found, sizes = only(program), {"M": 64, "N": 8 * blocks, "D": 32, "L": 48}
    numbers = {sp.Symbol(name, positive=True): n for name, n in (*sizes.items(), ("g_m", 16))}
    counted = traffic(program, sizes)
    loaded = {n: e.subs(numbers) * DType.float32.bytes for n, e in found.loaded.items()}
    assert loaded | {"q": blocks * loaded["q"]} == counted.loaded
    assert {n: e.subs(numbers) * DType.float32.bytes for n, e in found.stored.items()} == counted.stored


def test_a_list_between_loops_is_held_for_a_block_of_rows() -> None:
    program = fused(softmax())
    found = only(
        placed(program, **{m.name: (GRID, 16) if m.name[0] == "m" else (LOOP, 8) for m in maps(program.graph)})
    )
    (kept,) = (h for h in found.held if h.what == "a list between loops")
    assert kept.values == sp.Symbol("g_m", positive=True) * sp.Symbol("N", positive=True)


def test_a_list_of_what_blocks_add_up_to_has_one_item_for_each_block() -> None:
    """Attention before fusion, in blocks: matmuls and the sum of a row leave a block's result in a list, which a loop then adds up.

    By `weft.cost.traffic`, and so by the interpreter, which count what is stored there each time that the list is made.
    """
    program = canonical(lower(paper.attention()))
    blocks = {m.name: (GRID, 16) if m.name[0] == "m" else (LOOP, 8) for m in maps(program.graph)}
    applied = placed(program, **blocks)
    sizes = {"M": 32, "N": 64, "D": 16, "L": 24}
    numbers = {sp.Symbol(name, positive=True): n for name, n in sizes.items()}
    numbers |= {sp.Symbol(f"{'g' if p is GRID else 's'}_{m}", positive=True): n for m, (p, n) in blocks.items()}
    held = [h for part in kernels(applied) for h in closed_form(part).held if h.what == "a list between loops"]
    values = [h.values.subs(numbers) for h in held]
    assert values == [16 * 8 * (16 // 8), 16 * (64 // 8), 16 * 8 * (64 // 8)]  # over d, over n, over n
    stored, made = traffic(applied, sizes).stored, (2 * 8, 2, 2 * 3)  # by block of m and n, of m, of m and l
    assert [stored[h.name] for h in held] == [v * n * 4 for v, n in zip(values, made, strict=True)]
    assert all(h.lasting for h in held)


def test_a_list_of_one_block_lasts_for_nothing() -> None:
    """Each loop covers its space at once: there are no blocks to last for."""
    applied = placed(canonical(lower(paper.attention())), m=(GRID, 16))
    forms = [closed_form(part) for part in kernels(applied)]
    assert [form.memory() for form in forms] == [0] * len(forms)
    assert any(h.what == "a list between loops" for form in forms for h in form.held)


def test_levels_add_up() -> None:
    """Equation 2; theorem 2: a cache has what its children hold; theorem 3: linked children have it without a cache."""
    best = attention().optimum()
    device, shared = (
        TransferLevel("L2", sp.Integer(10**7), sp.Rational(1, 10)),
        TransferLevel("shared memory", sp.Integer(10**5), sp.Integer(1)),
    )
    assert best.weighted([device, shared]) == best.at(10**7) / 10 + best.at(10**5)
    assert device.cached(132, shared) == TransferLevel("L2", sp.Integer(132 * 10**5), sp.Rational(1, 10))
    linked, own = shared.crossed(2, sp.Rational(2, 3))
    assert (linked.values, linked.weight) == (2 * 10**5, sp.Rational(1, 3))
    assert (own.values, own.weight) == (10**5, sp.Rational(2, 3))
    saved = (1 - sp.Rational(2, 3)) * (best.at(10**5) - best.at(2 * 10**5))
    assert sp.simplify(best.gained(shared, 2, sp.Rational(2, 3)) - saved) == 0


def test_the_size_of_a_cluster() -> None:
    """Section A.2.3: transfers within clusters of 2 at 3.27 TB/s, of 4 at 2.65, beside 2.04 from memory: clusters of 2 gain more
    for attention, those of 4 for a matmul, whose transfers fall more slowly with memory.
    """
    per_value = {2: 2 / 3.27e12, 4: 2 / 2.65e12}
    child = TransferLevel("shared memory", sp.Integer(227 * 1024 // 2), sp.Float(2 / 2.04e12))
    for best, beta, wanted in ((attention().optimum(), 1, 2), (only(matmul()).optimum(), 0.5, 4)):
        assert best_cluster(best, child, per_value) == wanted
        gains = {n: (1 / 2.04 - 1 / rate) * (1 - n**-beta) for n, rate in ((2, 3.27), (4, 2.65))}
        assert max(gains, key=lambda n: gains[n]) == wanted
    # Were four as fast as two, they would gain more.
    assert best_cluster(attention().optimum(), child, dict.fromkeys((2, 4), 2 / 3.27e12)) == 4


def test_what_has_no_closed_form_says_so() -> None:
    g, h = sp.symbols("g h", positive=True)
    with pytest.raises(UnsupportedError, match="no product of powers"):
        optimum(A / g, g + g**2, [g])
    with pytest.raises(UnsupportedError, match="how the sizes compare"):
        optimum(A / g + B / g**2, g, [g])
    with pytest.raises(UnsupportedError, match="without end"):
        optimum(A * g + B * h, g * h, [g, h])
    split = {"a": Level(GRID, 16), "c": Level(GRID, 16)}
    program = fused(product())
    loops = ((m.name, LoopSchedule((split[m.name],) if m.name in split else SEGMENTS)) for m in maps(program.graph))
    with pytest.raises(UnsupportedError, match="a part of its space"):
        closed_form(kernels(apply(program, Schedule(tuple(loops))))[0])


def test_a_causal_loop_goes_half_the_way() -> None:
    """And half a block more, where it meets the diagonal; queries are loaded before each of the two loops that it is in."""
    n, d = 512, 64
    q = torch.randn(1, 2, n, d, dtype=torch.bfloat16)

    def causal(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    (kernel,) = weft.optimize(causal, (q,), target="cuda:90", effort="none", judge="off").kernels
    found = only(kernel.block_program)
    (group,) = found.groups
    (kind,) = (kind for _, kind in kernel.block_program.inputs)
    numbers = {sp.Symbol(a.space.name, positive=True): size for a, size in zip(kind.lists, q.shape[1:], strict=True)}
    keys = (n + group) / 2
    assert sp.simplify(found.transfers.subs(numbers) - 2 * (3 * n * d + 2 * d * keys * n / group)) == 0


def test_an_edge_that_blocks_leave_is_nothing() -> None:
    """Blocks divide axes here, so that a peeled loop is one that is not."""
    program = fused(programs.linear_relu())
    levels = {"m": (GRID, 16), "n": (GRID, 16), "k": (LOOP, 8)}
    forms: list[Expr] = []
    for peel in (False, True):
        loops = (
            (m.name, LoopSchedule((Level(*levels[m.name]),), peel=peel and m.name == "k")) for m in maps(program.graph)
        )
        forms.append(only(apply(program, Schedule(tuple(loops)))).transfers)
    assert forms[0] == forms[1]


def softmax() -> TensorProgram:
    """Return the softmax of rows alone."""
    rows, columns = programs.axes("m", "n")
    every = (rows, columns)
    exponential = Elementwise("e", every, DType.float32, apply_scalar("exp", Arg(0)), (Use("x", every),))
    total = Reduction("t", (rows,), DType.float32, Monoid.sum, Use("e", every), (columns,))
    divided = apply_scalar("div", Arg(0), Arg(1))
    share = Elementwise("p", every, DType.float32, divided, (Use("e", every), Use("t", (rows,))))
    return TensorProgram((programs.tensor("x", *every),), (exponential, total, share), ("p",))


def test_softmax_alone_is_not_streamed() -> None:
    """Section A.4: what is held grows with the row, in blocks or not. The cascade analysis finds no chain either."""
    program = fused(softmax())

    def form(level: tuple[LevelPlace, int]) -> ClosedForm:
        return only(placed(program, **{m.name: (GRID, 16) if m.name[0] == "m" else level for m in maps(program.graph)}))

    for level in ((WHOLE, 0), (LOOP, 8)):  # exponentials wait for the sum of their row
        found = form(level)
        assert list(found.unstreamed) == ["N"]
        assert found.unstreamed["N"].endswith("held, and grows with it")
        rows, columns = (sp.Symbol(name, positive=True) for name in "MN")
        assert sp.simplify(found.transfers - 2 * rows * columns) == 0
    assert chains(softmax()).found.folds == ()


def test_softmax_and_a_contraction_are_streamed() -> None:
    """Theorem 1 and section A.4: along keys, since the contraction's result does not grow; the queries' and the result's widths are
    held whole. The cascade analysis finds the chain of the sum and the contraction.
    """
    found = attention()
    assert "N" not in found.unstreamed
    assert set(found.unstreamed) == {"D", "L"}
    assert chains(paper.attention()).found.folds
    assert only(matmul()).unstreamed == {}
