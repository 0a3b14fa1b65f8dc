"""Signatures: only another program changes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.block.handmade import (
    SOFTMAX,
    K,
    M,
    everywhere,
    inputs,
    joint,
    loop,
    program,
    rows,
    softmax_state,
    swiglu,
)
from testkit.block.normal import normal_form, signature
from testkit.block.programs import ADD, F32
from weft.block.check import check
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, Collapse, Dot, Graph, Map, Pointwise, Stacked, State, sealed
from weft.block.ranges import All, Part
from weft.block.rename import rename_body, rename_program_axes, values_of
from weft.block.walk import maps, operands, results
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, apply, substitute


def shuffled(nodes: tuple[BlockNode, ...], given: set[str], rng: random.Random):
    """The nodes in another topological order."""
    rest, done, ready = list(nodes), list[BlockNode](), set(given)
    while rest:
        node = rng.choice([n for n in rest if ready.issuperset(operands(n))])
        rest.remove(node)
        done.append(node)
        ready.update(results(node))
    return tuple(done)


def flipped(node: BlockNode, rng: random.Random) -> BlockNode:
    """`node` with commutative operands swapped, and its arguments in another order."""
    match node:
        case Dot():
            return replace(node, left=node.right, right=node.left)
        case Pointwise():
            order = list(range(len(node.args)))
            rng.shuffle(order)
            expr = substitute(node.expr, lambda i: Arg(order.index(i)))
            if isinstance(expr, Apply) and expr.op in {"add", "mul", "maximum"}:
                expr = Apply(expr.op, expr.args[::-1])
            return replace(node, expr=expr, args=tuple(node.args[i] for i in order))
        case _:
            return node


def rewritten(of: BlockProgram, seed: int) -> BlockProgram:
    """`of` with everything changed that means nothing."""
    rng = random.Random(seed)

    def change(node: Map) -> Map:
        state = node.state
        if state is not None:
            count = len(state.components)
            order = rng.sample(range(count), count)
            old = [c.name for c in state.components]

            def pick(names: tuple[str, ...], first: int = 0) -> tuple[str, ...]:
                return tuple(names[first + i] for i in order)

            def graph(g: Graph, ins: tuple[str, ...], outs: tuple[str, ...]) -> Graph:
                nodes = tuple(flipped(n, rng) for n in g.nodes)
                return Graph(ins, shuffled(nodes, set(ins), rng), outs)

            u, m, f = state.update, state.merge, state.finish
            state = State(
                tuple(state.components[i] for i in order), state.feeds,
                graph(u, (*pick(u.inputs), *u.inputs[count:]), pick(u.outputs)),
                graph(m, (*pick(m.inputs), *pick(m.inputs, count)), pick(m.outputs)),
                graph(f, pick(tuple(old)), f.outputs), state.resume and pick(state.resume),
            )  # fmt: skip
        feeds = tuple(rng.sample(node.inputs, len(node.inputs)))
        nodes = shuffled(tuple(flipped(n, rng) for n in node.body.nodes), {f.inner for f in feeds}, rng)
        outputs = tuple(rng.sample(node.outputs, len(node.outputs)))
        body = replace(node.body, nodes=nodes)
        node = replace(node, inputs=feeds, body=body, outputs=outputs, state=state)
        node = sealed(replace(node, name=f"loop{rng.random()}"))
        return sealed(rename_body(node, {n: f"v{rng.random()}" for n in values_of(node.body)}))

    new = everywhere(of, change)
    new = replace(new, graph=replace(
        new.graph, nodes=shuffled(new.graph.nodes, set(new.graph.inputs), rng)))  # fmt: skip
    spaces = {a.space: Space(f"S{i}", a.space.fixed) for i, a in enumerate(_axes(new))}
    axes = {a: Axis(f"axis{i}", spaces[a.space]) for i, a in enumerate(_axes(new))}
    kinds = tuple(
        (n, replace(k, lists=tuple(axes[a] for a in k.lists), dims=tuple(axes[a] for a in k.dims)))
        for n, k in new.inputs
    )
    return replace(rename_program_axes(new, axes), inputs=kinds)


def _axes(of: BlockProgram) -> list[Axis]:
    lists = (a for _, kind in of.inputs for a in kind.lists)
    return list(dict.fromkeys([*lists, *(m.axis for m in maps(of.graph))]))


EXTREMES = (Collapse("h", Monoid.max, "x", K), Collapse("l", Monoid.min, "x", K))
SAMPLES = {
    **{name: lower(f()) for name, f in programs.ALL.items()},
    "swiglu": swiglu(),
    "extremes": rows(EXTREMES, joint(State.of_monoid(Monoid.max, "h", (M,), F32, "a"),
                                    State.of_monoid(Monoid.min, "l", (M,), F32, "b")), "b"),
    "softmax": rows(SOFTMAX, softmax_state(), "end"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", SAMPLES)
def test_a_signature_does_not_depend_on_how_a_program_is_written(name, seed):
    other = rewritten(SAMPLES[name], seed)
    check(other)
    assert signature(other) == signature(SAMPLES[name])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_normal_form_is_well_formed_and_its_own_normal_form(name):
    once = normal_form(SAMPLES[name])
    check(once)
    assert listing(normal_form(once)) == listing(once)


def test_a_rewriting_does_change_the_listing():
    # Otherwise the test above would say nothing.
    assert any(listing(rewritten(p, 1)) != listing(p) for p in SAMPLES.values())


def _changed(change: Callable[[BlockNode], BlockNode]) -> Callable[[BlockProgram], BlockProgram]:
    def visit(node: Map) -> Map:
        return replace(node, body=replace(node.body, nodes=tuple(map(change, node.body.nodes))))

    return lambda p: everywhere(p, visit)


DIFFERENT: dict[str, Callable[[BlockProgram], BlockProgram]] = {
    "another operation": _changed(
        lambda n: replace(n, expr=apply("sub", Arg(0), Arg(1)))
        if isinstance(n, Pointwise) and n.expr == ADD else n
    ),
    "another operand": _changed(
        lambda n: replace(n, args=(n.args[0], n.args[0]))
        if isinstance(n, Pointwise) and len(n.args) == 2 else n
    ),
    "turned rows": _changed(
        lambda n: replace(n, dims=n.dims[::-1])
        if isinstance(n, Pointwise) and len(n.args) == 2 else n
    ),
    "another range": lambda p: everywhere(
        p, lambda m: replace(m, range=All(Part.full)) if m.state is not None else m
    ),
    "a tile": lambda p: everywhere(p, lambda m: replace(m, place=Place.grid, tile=8)),
    "another constant": _changed(
        lambda n: replace(n, expr=apply("maximum", Arg(0), Lit(1.0)))
        if isinstance(n, Pointwise) and len(n.args) == 1 else n
    ),
    "another input": lambda p: replace(
        p, inputs=(p.inputs[1], p.inputs[0], p.inputs[2]),
        graph=replace(p.graph, inputs=(p.graph.inputs[1], p.graph.inputs[0], p.graph.inputs[2])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_signature_tells_programs_apart(what):
    given = SAMPLES["linear_relu"]
    assert signature(DIFFERENT[what](given)) != signature(given)


def test_operands_of_what_does_not_commute_keep_their_places():
    def difference(first: int, second: int) -> BlockProgram:
        given = inputs(x=(M,), y=(M,))
        node = Pointwise("r", apply("sub", Arg(first), Arg(second)), ("x", "y"), (M,), F32)
        return program(loop(M, given, (node,), (Stacked("out", "r"),)), over=(M,), given=given)

    assert signature(difference(0, 1)) != signature(difference(1, 0))
