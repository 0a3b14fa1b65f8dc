"""The row of a graph's stages: what is cheap to make stands beside what reads it, unless that keeps a chain of kernels apart."""

from __future__ import annotations

from testkit.block.paper import each
from testkit.block.programs import ADD, F32, axes, tensor
from weft.plan.partition.partition import TorchCall, linear, partition
from weft.tensor.program import Node, Opaque, TensorProgram, Use
from weft.tensor.scalar import Arg, apply

(M,) = axes("m")
EXP = apply("exp", Arg(0))


def call(name: str, *reads: str) -> Opaque:
    return Opaque(name, (M,), F32, f"aten.{name}", name, reads, "of the library")


def row(*nodes: Node) -> list[str]:
    program = TensorProgram((tensor("x", M), tensor("w", M), tensor("v", M)), nodes, (nodes[-1].name,))
    return [s.name if isinstance(s, TorchCall) else s.program.nodes[-1].name for s in linear(partition(program))]


def test_a_short_branch_stands_behind_the_call_that_its_reader_waits_for():
    """Norms behind convolutions: roots of variances."""
    nodes: list[Node] = []
    before = "x"
    for number, weight in enumerate(("w", "v")):
        root, made, norm = f"root{number}", f"made{number}", f"norm{number}"
        nodes += [each(root, (M,), EXP, Use(weight, (M,))), call(made, before)]
        nodes.append(each(norm, (M,), ADD, Use(made, (M,)), Use(root, (M,))))
        before = norm
    assert row(*nodes) == ["made0", "root0", "norm0", "made1", "root1", "norm1"]


def test_what_a_call_reads_beside_a_chain_is_made_when_it_is_next():
    """Weights that are copied for a convolution."""
    nodes = [
        *(each("long", (M,), EXP, Use("x", (M,))), call("first", "long"), each("more", (M,), EXP, Use("first", (M,)))),
        *(each("copy", (M,), EXP, Use("w", (M,))), call("second", "more", "copy")),
    ]
    assert row(*nodes) == ["long", "first", "more", "copy", "second"]
