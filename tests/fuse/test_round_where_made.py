"""A rounding that every reader of a list does is done where the list is made."""

from __future__ import annotations

import torch

import weft
from testkit.block.programs import F32, axes, tensor
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Pointwise, Stacked
from weft.block.walk import maps
from weft.fuse.round_where_made import round_where_made
from weft.pipeline import RULES_IN_PLANS, fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Contraction, Elementwise, TensorProgram, Use
from weft.tensor.scalar import Arg
from weft.tensor.scalar import apply as applied
from weft.verify import verify

BF16 = DType.bfloat16


def prepared(*, also_read: bool = False) -> TensorProgram:
    """bfloat16(tanh(x)) @ w, whose left operand is made once for all columns; and tanh(x) itself where `also_read`."""
    m, k, n = axes("m", "k", "n")
    nodes = (
        Elementwise("t", (m, k), F32, applied("tanh", Arg(0)), (Use("x", (m, k)),)),
        Cast("r", (m, k), BF16, Use("t", (m, k)), semantic=False),
        Contraction("out", (m, n), F32, Use("r", (m, k)), Use("w", (k, n)), (k,)),
    )
    outputs = ("out", "t") if also_read else ("out",)
    return TensorProgram((tensor("x", m, k), tensor("w", k, n, dtype=BF16)), nodes, outputs)


def block_of(program: TensorProgram) -> BlockProgram:
    return canonical(fuse(lower(program), RULES_IN_PLANS, ()).last)


def stacked_types(program: BlockProgram) -> list[str]:
    return [line.strip() for line in listing(program).splitlines() if "bfloat16" in line or "store" in line]


def test_the_list_is_made_rounded_and_computes_the_same():
    program = prepared()
    before = block_of(program)
    after = round_where_made(before)
    check(after)
    assert after != before
    made = next(
        m for m in maps(after.graph) if any(isinstance(n, Pointwise) and n.expr != Arg(0) for n in m.body.nodes)
    )
    (out,) = [o for o in made.outputs if isinstance(o, Stacked)]
    rounding = next(n for n in made.body.nodes if n.name == out.inner)
    assert isinstance(rounding, Pointwise)
    assert (rounding.expr, rounding.dtype) == (Arg(0), BF16)
    readers = [m for m in maps(after.graph) if m is not made]
    assert not any(isinstance(n, Pointwise) and n.expr == Arg(0) for m in readers for n in m.body.nodes)
    named = canonical(after)
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 2),))) for m in maps(named.graph))
    assert verify(program, apply(named, Schedule(loops)))


def test_a_list_that_something_reads_as_it_is_stays():
    before = block_of(prepared(also_read=True))
    assert round_where_made(before) == before


def test_a_list_of_lists_stays():
    """The outer map of a nest stacks lists already: it has no items to round."""
    m, n, p = axes("m", "n", "p")
    program = TensorProgram(
        (tensor("x", n, m), tensor("y", p, m), tensor("z", p, dtype=BF16)),
        (
            Contraction("t", (p, n), F32, Use("y", (p, m)), Use("x", (n, m)), (m,)),
            Cast("r", (p, n), BF16, Use("t", (p, n)), semantic=False),
            Contraction("out", (n,), F32, Use("r", (p, n)), Use("z", (p,)), (p,)),
        ),
        ("out",),
    )
    for block in (lower(program), block_of(program)):
        check(round_where_made(block))


def test_twice_is_once():
    once = round_where_made(block_of(prepared()))
    assert round_where_made(once) == once


def test_a_norm_before_a_product_in_bfloat16_is_right():
    def norm(x, w):
        return torch.nn.functional.layer_norm(x, x.shape[-1:]) @ w

    inputs = (torch.randn(70, 65).bfloat16(), torch.randn(65, 40).bfloat16())
    program = weft.optimize(norm, inputs)
    exact = norm(*(t.double() for t in inputs))
    assert weft.judge(program(*inputs), norm(*inputs), exact).ok
    assert not program.fallbacks


def test_a_rounding_that_repeats_elements_stays():
    """Pictures in 16 bits that are made larger: the store of each element for its neighbours is the rounding itself."""
    x = torch.randn(2, 4, 6, 7, dtype=torch.bfloat16)
    for factor in (2, 4):

        def larger(x: torch.Tensor, factor: int = factor) -> torch.Tensor:
            return torch.nn.functional.interpolate(x * 1.7, scale_factor=factor)

        program = weft.optimize(larger, (x,))
        assert program.kernels
        assert "refuted" not in str(program.explain())
        assert torch.equal(program(x), larger(x))
