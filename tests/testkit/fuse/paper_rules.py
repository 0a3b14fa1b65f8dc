"""Block programs on which the paper's rules are tried one at a time."""

from __future__ import annotations

from dataclasses import replace

from testkit.block import paper
from testkit.block.paper import each, row_sum
from testkit.block.programs import ADD, MUL, axes, matmul, tensor
from weft.block.check import check
from weft.block.lower import lower
from weft.block.program import BlockProgram, Map
from weft.fuse import Site
from weft.fuse.fuse_consecutive_maps import fuse_consecutive_maps
from weft.fuse.fuse_sibling_maps import fuse_sibling_maps
from weft.fuse.rule import Rule, apply_at
from weft.tensor.program import Input, Node, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

M, K, N, P = axes("m", "k", "n", "p")


EXP = apply("exp", Arg(0))


X, C, S = tensor("x", M, K), tensor("c", M), tensor("s")


W, V = tensor("w", N, K), tensor("v", P, K)


PRODUCT = matmul("z", Use("y", (M, K)), Use("w", (N, K)), K)


def rowwise(expr=MUL) -> Node:
    """y = x * c or x + c, row by row."""
    return each("y", (M, K), expr, Use("x", (M, K)), Use("c", (M,)))


def tensors(*nodes: Node, inputs: tuple[Input, ...] = (X, C, W), outputs: tuple[str, ...] = ("z",)) -> TensorProgram:
    return TensorProgram(inputs, nodes, outputs)


def two_readers(expr=MUL) -> TensorProgram:
    """Two products of the same rows."""
    other = matmul("z2", Use("y", (M, K)), Use("v", (P, K)), K)
    return tensors(rowwise(expr), PRODUCT, other, inputs=(X, C, W, V), outputs=("z", "z2"))


def three_readers() -> TensorProgram:
    """Three products of the same scaled rows, two with one matrix."""
    others = (matmul("z2", Use("y", (M, K)), Use("v", (P, K)), K), replace(PRODUCT, name="z3"))
    return tensors(rowwise(), PRODUCT, *others, inputs=(X, C, W, V), outputs=("z", "z2", "z3"))


def scaled_and_shifted() -> TensorProgram:
    """((x + c) * c) @ w."""
    shifted = each("u", (M, K), ADD, Use("x", (M, K)), Use("c", (M,)))
    return tensors(shifted, each("y", (M, K), MUL, Use("u", (M, K)), Use("c", (M,))), PRODUCT)


def scaled_by_a_number() -> TensorProgram:
    """(x * s) @ w, where s is one number that is computed."""
    number = each("d", (), EXP, Use("s", ()))
    scaled = each("y", (M, K), MUL, Use("x", (M, K)), Use("d", ()))
    return tensors(number, scaled, PRODUCT, inputs=(X, S, W))


def shared_parent() -> TensorProgram:
    """normalised by its own sum and multiplied: the two maps that meet read a value that is made in their graph."""
    e = each("e", (M, K), EXP, Use("x", (M, K)))
    total = row_sum("t", "e", M, K)
    y = each("y", (M, K), ADD, Use("e", (M, K)), Use("t", (M,)))
    return tensors(e, total, y, PRODUCT, inputs=(X, W))


MADE = {
    **paper.EXAMPLES,
    **{f.__name__: f for f in (two_readers, three_readers, scaled_and_shifted, scaled_by_a_number, shared_parent)},
    "two_shifted": lambda: two_readers(ADD),
    "scaled": lambda: tensors(rowwise(), PRODUCT),
    "shifted": lambda: tensors(rowwise(ADD), PRODUCT),
}


def after(program: BlockProgram, rules: tuple[Rule, ...] = (fuse_consecutive_maps, fuse_sibling_maps)) -> BlockProgram:
    """`program` with `rules` applied at the top level, and nowhere else."""
    while (found := next((r for rule in rules if (r := rule.rewrite(Site(program))) is not None), None)) is not None:
        program = apply_at(program, (), found)
    check(program)
    return program


def inner(program: TensorProgram) -> Site:
    """The graph in the one map over M that `program` becomes at first."""
    fused = after(lower(program))
    (node,) = fused.graph.nodes
    assert isinstance(node, Map)
    return Site(fused, (node.name,))
