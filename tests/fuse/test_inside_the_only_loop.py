"""Elementwise work beside a parallel loop: computed inside it, unless something else reads it or the loop carries a state."""

from __future__ import annotations

from dataclasses import replace

from testkit.block import handmade
from testkit.block.paper import each, row_sum
from testkit.block.programs import ADD, F32, MUL, axes, tensor
from testkit.fuse.same import assert_same
from weft.block.copies import canonical
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Map, Stacked, sealed
from weft.fuse.inside_the_only_loop import inside_the_only_loop
from weft.pipeline import fuse
from weft.schedule import grid_maps
from weft.tensor.program import Contraction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

H, M, N, D = axes("h", "m", "n", "d")
SIZES = {"H": 2, "M": 5, "N": 7, "D": 4}
BLOCKS = {"h": 1, "m": 2, "n": 3, "d": 2, "h1": 1, "m1": 2, "n1": 3}
SCORES = (H, M, N)


def biased() -> BlockProgram:
    """Scores of each head and what its slope gives, fused: a number of the head stands beside the loop over rows."""
    slopes = [tensor(name, H) for name in ("slope", "other")]
    program = TensorProgram((*slopes, tensor("q", H, M, D), tensor("k", H, N, D)), (
        each("minus", (H,), apply("neg", Arg(0)), Use("slope", (H,))),
        each("both", (H,), ADD, Use("minus", (H,)), Use("other", (H,))),
        Contraction("s", SCORES, F32, Use("q", (H, M, D)), Use("k", (H, N, D)), (D,)),
        each("once", SCORES, MUL, Use("s", SCORES), Use("both", (H,))),
        each("twice", SCORES, ADD, Use("once", SCORES), Use("minus", (H,))),
    ), ("twice",))  # fmt: skip
    return canonical(fuse(lower(program)).last)


def test_what_stands_beside_a_loop_goes_to_the_innermost_one() -> None:
    before = biased()
    assert len(list(grid_maps(before.graph))) == 1
    after = inside_the_only_loop(before)
    assert len(list(grid_maps(after.graph))) == 3
    assert_same(before, after, SIZES, BLOCKS)
    assert listing(canonical(after)).count("-") == listing(before).count("-")  # nothing is computed at two places
    assert inside_the_only_loop(after) == after


def test_what_leaves_the_outer_loop_stays() -> None:
    def handed_out(node: Map) -> Map:
        if not any(isinstance(n, Map) for n in node.body.nodes) or len(node.body.nodes) == 1:
            return node
        beside = next(n for n in node.body.nodes if not isinstance(n, Map))
        return sealed(replace(node, outputs=(*node.outputs, Stacked("left", beside.name))))

    before = handmade.everywhere(biased(), handed_out)
    assert before != biased()
    assert inside_the_only_loop(before) == before


def test_beside_a_loop_with_a_state_it_stays() -> None:
    program = TensorProgram((tensor("slope", H), tensor("x", H, M)), (
        each("minus", (H,), apply("neg", Arg(0)), Use("slope", (H,))),
        each("scaled", (H, M), MUL, Use("x", (H, M)), Use("minus", (H,))),
        row_sum("all", "scaled", H, M),
    ), ("all",))  # fmt: skip
    before = canonical(fuse(lower(program)).last)
    assert inside_the_only_loop(before) == before
