"""The same tensor program, written otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from weft.tensor.axes import Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.program import Extent, Input, Node, TensorProgram, uses
from weft.tensor.rename import with_axes, with_values


def rewritten(program: TensorProgram, rng: random.Random) -> TensorProgram:
    """`program` with its nodes in another order and everything but inputs renamed."""
    ready, rest, done = {n.name for n in program.inputs}, list(program.nodes), list[Node]()
    while rest:
        node = rng.choice([n for n in rest if ready.issuperset(uses(n))])
        rest.remove(node)
        ready.add(node.name)
        done.append(node)
    numbers = list(range(len(done)))
    rng.shuffle(numbers)
    names = {n.name: f"v{i}" for n, i in zip(done, numbers, strict=True)}
    other = replace(program, nodes=tuple(done))
    return renamed(other, lambda old: names.get(old, old), lambda s: Space(f"Q{s.name}", s.fixed, s.example))


def renamed(program: TensorProgram, name: Callable[[str], str], space: Callable[[Space], Space]) -> TensorProgram:
    """`program` with values and spaces renamed, and axes as their spaces are."""

    def axis(a: Axis) -> Axis:
        return Axis(f"q{a.name}", space(a.space))

    def node(n: Node) -> Node:
        new = replace(with_axes(with_values(n, name), axis), name=name(n.name))
        return replace(new, space=space(new.space)) if isinstance(new, Extent) else new

    return TensorProgram(
        tuple(n for n in map(node, program.inputs) if isinstance(n, Input)),
        tuple(map(node, program.nodes)),
        tuple(map(name, program.outputs)),
        tuple(tuple(None if a is None else axis(a) for a in dims) for dims in program.output_dims),
        tuple(Derived(space(d.space), space(d.source), d.start, d.stop, d.step, d.times) for d in program.derived),
    )
