"""Where one kernel ends and the next begins."""

from __future__ import annotations

import torch

from testkit.block import programs
from testkit.plan.captured import captured
from weft.plan.partition.halves import before_repeats, before_wider
from weft.plan.partition.partition import Region, TorchCall, partition
from weft.plan.partition.stages import depths
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Opaque,
    Ranking,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Lit, apply

M, F32 = Axis("m", Space("M")), DType.float32
HALVE = apply("div", Arg(0), Arg(1))


def test_a_product_of_a_product_starts_a_region():
    first, second = partition(programs.two_layers())
    assert isinstance(first, Region)
    assert isinstance(second, Region)
    assert first.program.outputs == ("hidden",)
    assert "hidden" in [n.name for n in second.program.inputs]


def test_the_product_of_each_layer_waits_for_its_mask():
    """Numbers what follows such a product later, and so the mask of the next layer."""

    def function(x, w):
        for _ in range(3):
            chosen = torch.argsort(x.sum(-1)) > 2
            x = torch.where(chosen[:, None], x @ w, 0.0) @ w
        return x

    program, _ = captured(function, (torch.randn(6, 5), torch.randn(5, 5)))
    stage = depths(program)
    products = [n for n in program.nodes if isinstance(n, Contraction)]
    masked = {p.name: r for p in products for r in program.readers.get(p.name, ()) if isinstance(r, Elementwise)}
    assert len(masked) == 3
    assert all(stage[product] == stage[reader.name] for product, reader in masked.items())


def test_connected_products_stay_together():
    (only,) = partition(programs.gated())
    assert isinstance(only, Region)


def test_what_pytorch_runs_stands_alone_and_sizes_are_made_where_they_are_read():
    x = Input("x", (M,), F32)
    size = Extent("n", (), F32, M.space)
    use = lambda name: (Use(name, (M,)), Use("n", ()))  # noqa: E731
    program = TensorProgram(
        (x,),
        (
            size,
            Elementwise("a", (M,), F32, HALVE, use("x")),
            Opaque("b", (M,), F32, "aten.sort", "sort_1", ("a",), "not in the table"),
            Elementwise("c", (M,), F32, HALVE, use("b")),
        ),
        ("c",),
    )
    before, call, after = partition(program)
    assert isinstance(before, Region)
    assert isinstance(call, TorchCall)
    assert isinstance(after, Region)
    assert (call.uses, call.results) == (("a",), ("b",))
    assert size in before.program.nodes
    assert size in after.program.nodes
    assert [n.name for n in after.program.inputs] == ["b"]


def test_what_indices_and_sizes_decide_is_made_where_it_is_read_and_a_table_once():
    every = Use("i", (M,))
    program = TensorProgram(
        (Input("x", (M,), F32),),
        (
            Extent("n", (), F32, M.space),
            Iota("i", (M,), DType.int64),
            Elementwise("twice", (), F32, apply("add", Arg(0), Arg(0)), (Use("n", ()),)),
            Elementwise("mask", (M,), DType.bool, apply("lt", Arg(0), Lit(3)), (every,)),
            Cast("float", (M,), F32, every, True),
            Elementwise("sines", (M,), F32, apply("sin", Arg(0)), (Use("float", (M,)),)),
            Opaque("b", (M,), F32, "aten.sort", "sort_1", ("x",), "not in the table"),
            Elementwise("c", (M,), F32, HALVE, (Use("b", (M,)), Use("twice", ()))),
            Elementwise(
                "d",
                (M,),
                F32,
                apply("where", Arg(0), Arg(1), Arg(2)),
                tuple(Use(name, (M,)) for name in ("mask", "c", "sines")),
            ),
        ),
        ("d", "mask"),
    )
    stages = [s for s in partition(program) if isinstance(s, Region)]
    outputs = {s.results: [n.name for n in s.program.nodes] for s in stages}
    assert outputs["d",] == ["n", "i", "twice", "mask", "c", "d"]
    assert outputs["mask",] == ["i", "mask"]
    (table,) = (s for s in stages if "sines" in s.results)
    assert {s.uses for s in stages if s.results == ("d",)} == {("b", "sines")}
    assert table.uses == ()


def test_numbers_alone_have_no_widest_values() -> None:
    (k,) = programs.axes("k")
    program = TensorProgram((programs.tensor("x", k),), (Extent("n", (), DType.float32, k.space),), ("n",))
    (region,) = partition(program)
    assert isinstance(region, Region)
    assert before_wider(program, region) == (region,)


def modulated(x, c, w, v):
    """A norm whose scale and shift are made of a condition, in two matmuls, one row a sample; and a gate beside it."""
    scale, shift = c @ w, c @ v
    return torch.layer_norm(x, (x.shape[-1],)) * (1 + scale[:, None]) + shift[:, None], scale.sigmoid()


def test_what_repeats_matmuls_of_fewer_axes_is_cut_from_them_with_what_only_it_reads():
    given = torch.randn(3, 7, 5), torch.randn(3, 4), torch.randn(4, 5), torch.randn(4, 5)
    program, _ = captured(modulated, given)
    (whole,) = partition(program)
    assert isinstance(whole, Region)
    first, second = before_repeats(program, whole)
    kinds = [{type(n).__name__ for n in part.program.nodes} for part in (first, second)]
    assert "Contraction" in kinds[0]
    assert "Reduction" not in kinds[0]
    assert "Contraction" not in kinds[1]
    assert "Reduction" in kinds[1]  # the norm: no matmul's result reads it
    assert len(first.results) == 3  # scale, shift and the gate, each of a row for a sample
    assert second.results == (program.outputs[0],)


def test_what_repeats_a_matmul_in_several_ways_is_cut_into_connected_parts():
    def function(x, y, w):
        made = x @ w
        return made[:, None] * y, made.exp()[:, None] - y

    program, _ = captured(function, (torch.randn(3, 4), torch.randn(3, 7, 4), torch.randn(4, 4)))
    (whole,) = partition(program)
    assert isinstance(whole, Region)
    first, *others = before_repeats(program, whole)
    assert any(isinstance(n, Contraction) for n in first.program.nodes)
    assert [part.results for part in others] == [(name,) for name in program.outputs]


def test_matmuls_whose_results_are_not_repeated_stay_with_what_follows():
    for function in (lambda x, w: torch.softmax(x @ w, -1), lambda x, w: x + 1, lambda x, w: (x @ w) * x.sum(-1, True)):
        program, _ = captured(function, (torch.randn(3, 4), torch.randn(4, 4)))
        (whole,) = partition(program)
        assert isinstance(whole, Region)
        assert before_repeats(program, whole) == (whole,)


def test_both_results_of_a_ranking_stay_together():
    """Also of a matmul's result: its places are an axis of their own, along which nothing is repeated."""

    def router(x, w):
        values, places = torch.topk(x @ w, 2, -1)
        return torch.softmax(values, -1), places

    def beside(x, w, y):
        values, places = torch.topk(y, 3, -1)
        return (x @ w)[:, None] * values.sum(-1, True), places

    for function, given in ((router, (8, 4)), (beside, (4, 4))):
        inputs = torch.randn(5, 6), torch.randn(6, given[0]), torch.randn(5, 7, 4)
        program, _ = captured(function, inputs[: function.__code__.co_argcount])
        for stage in partition(program):
            parts = before_repeats(program, stage) if isinstance(stage, Region) else ()
            ranking = [n.name for n in program.nodes if isinstance(n, Ranking)]
            assert all({*ranking} & {n.name for n in p.program.nodes} in ({*ranking}, set()) for p in parts)


def test_what_a_reduction_makes_of_a_matmul_is_not_repeated_along_the_axis_that_the_matmul_has():
    program, _ = captured(
        lambda x, w, g: (x @ w) * ((x @ w).square().mean(-1, keepdim=True).rsqrt() * g),
        (torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)),
    )
    (whole,) = partition(program)
    assert isinstance(whole, Region)
    assert before_repeats(program, whole) == (whole,)
