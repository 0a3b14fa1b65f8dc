"""The checker: each condition has a program that violates it, and well-formed programs pass."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.block import programs
from testkit.masks.limited import band
from weft.block import operator_types
from weft.block.check import body_types, check, infer
from weft.block.copies import loop_names
from weft.block.linear import Linear
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Broadcast,
    Buffer,
    Collapse,
    Dot,
    Extent,
    Feed,
    Fill,
    Final,
    Graph,
    Grouped,
    Index,
    Iterate,
    Layout,
    Load,
    Map,
    Pointwise,
    Stacked,
    Stage,
    State,
    Store,
)
from weft.block.ranges import All, Before, Part, Segment, Spans, Within
from weft.block.scope import Scope
from weft.block.spans import Span
from weft.block.subscripts import Subscript
from weft.block.transfers import with_transfers
from weft.errors import InvalidProgramError
from weft.schedule.edges import peel
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, apply

F32 = DType.float32
M, N, K = (Axis(n, Space(n.upper())) for n in "mnk")
ADD = apply("add", Arg(0), Arg(1))


def _own(name: str, axis: Axis) -> Axis:
    return Axis(f"{name}.{axis.name}", axis.space)


def nest(
    nodes: tuple[BlockNode, ...],
    inputs: Mapping[str, tuple[Axis, ...]],
    loops: tuple[Axis, ...] = (M, N),
    out: str = "r",
) -> BlockProgram:
    """`nodes` in maps over `loops`; inputs are iterated where they have the axis."""
    names = tuple(inputs)

    def build(rest: tuple[Axis, ...]) -> Map:
        axis, *more = rest
        inner = (build(tuple(more)),) if more else nodes
        value = "list" if more else out
        feeds = tuple(Feed(n, n, Iterate(_own(n, axis)) if axis in inputs[n] else Broadcast()) for n in names)
        return Map(axis.name, axis, feeds, Graph(names, inner, (value,)), (Stacked("list", value),))

    types = [(n, tuple(_own(n, a) for a in inputs[n])) for n in names]
    top = Graph(names, (build(loops),), ("list",))
    return BlockProgram(tuple((n, BlockType(own, own, F32)) for n, own in types), top, (loops,))


def sum_of_rows() -> BlockProgram:
    """Map m around loop k, which sums each row: x.sum(1)."""
    state = State.of_monoid(Monoid.sum, "part", (M,), F32, "total")
    part = Collapse("part", Monoid.sum, "x", K)
    loop = Map(
        "k", K, (Feed("x", "x", Iterate(_own("x", K))),), Graph(("x",), (part,), ("part",)),
        (Final("r", "total"),), state,
    )  # fmt: skip
    return nest((loop,), {"x": (M, K)}, (M,))


def block_map(*args: tuple[Axis, ...]) -> BlockProgram:
    """a + b for operands over these axes, in maps m and n."""
    return nest((_add(),), dict(zip("ab", args, strict=True)))


def _add(*dims: Axis, name: str = "r") -> Pointwise:
    return Pointwise(name, ADD, ("a", "b"), dims or (M, N), F32)


def _dot(left: tuple[Axis, ...], right: tuple[Axis, ...], *dims: Axis) -> BlockProgram:
    product = Dot("r", "a", "b", K, dims or (M, N), F32)
    return nest((product,), {"a": left, "b": right}, (M, N, K))


def at(program: BlockProgram, name: str, change: Callable[[Map], Map]) -> BlockProgram:
    """`program` with its map called `name` changed."""

    def visit(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(changed(n) for n in graph.nodes))

    def changed(node: BlockNode) -> BlockNode:
        if not isinstance(node, Map):
            return node
        node = change(node) if node.name == name else node
        return replace(node, body=visit(node.body))

    return replace(program, graph=visit(program.graph))


def state(change: Callable[[State], State]) -> BlockProgram:
    """The sum of rows with its loop's state changed."""

    def changed(node: Map) -> Map:
        assert node.state is not None
        return replace(node, state=change(node.state))

    return at(sum_of_rows(), "k", changed)


def edit(name: str, /, **fields: object) -> BlockProgram:
    """The sum of rows with fields of a loop replaced."""
    return at(sum_of_rows(), name, lambda m: replace(m, **fields))


def placed(program: BlockProgram, **parts: Part) -> BlockProgram:
    """`program` with a place and a tile for the loops m and k."""
    for name in ("m", "k"):
        part = All(parts.get(name, Part.all))
        program = at(program, name, lambda m, p=part: replace(m, place=Place.loop, tile=8, range=p))
    return program


def filled(value: float) -> BlockProgram:
    """The sum of rows whose blocks hold `value` beyond their ends."""

    def fill(node: Map) -> Map:
        nodes = (Fill("f", "x", value), Collapse("part", Monoid.sum, "f", K))
        return replace(node, body=replace(node.body, nodes=nodes))

    return at(placed(sum_of_rows()), "k", fill)


def top(**fields: object) -> BlockProgram:
    """The sum of rows with fields of the program replaced."""
    return replace(sum_of_rows(), **fields)


def _graph(program: BlockProgram, **fields: object) -> BlockProgram:
    return replace(program, graph=replace(program.graph, **fields))


STORED = with_transfers(sum_of_rows())


def peeled() -> BlockProgram:
    """The sum of rows in blocks of 8, the last one by itself."""
    program = placed(sum_of_rows())
    return replace(program, graph=peel(program.graph, frozenset("k"), loop_names(program)))


PEELED = peeled()


def moved(form: type[Buffer | Load | Store], **changes: object) -> BlockProgram:
    """STORED, its only operator of this form changed."""

    def visit(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(changed(n) for n in graph.nodes))

    def changed(node: BlockNode) -> BlockNode:
        if isinstance(node, Map):
            return replace(node, body=visit(node.body))
        return replace(node, **changes) if isinstance(node, form) else node

    return replace(STORED, graph=visit(STORED.graph))


SUM = sum_of_rows()
BOTH = block_map((M, N), (M, N))
FOUR = Space("FOUR", 4)
GROUPS = Axis("g", FOUR)
ELSEWHERE = Axis("z", Space("Z"))
# (the condition, the node it names, a program that violates it)
MALFORMED: tuple[tuple[str, str, BlockProgram], ...] = (
    ("every map has a name of its own", "program", edit("m", name="k")),
    ("every map has an axis of its own", "program", edit("k", axis=M)),
    ("graph inputs are the program's", "program", _graph(SUM, inputs=("y",))),
    ("all loops have a place, or none has", "k", edit("m", place=Place.grid, tile=8)),
    ("a loop in a place has a tile, one over the whole has none", "m", edit("m", tile=8)),
    ("a block has an element at the least", "m", at(placed(SUM), "m", lambda m: replace(m, tile=0))),
    ("a loop over whole blocks goes block by block", "k",
     at(PEELED, "k", lambda m: replace(m, place=Place.whole, tile=None))),
    ("a unit loop goes by single elements", "m",
     at(placed(SUM), "m", lambda m: replace(m, unit=True))),
    ("output_axes match the outputs", "program", top(output_axes=())),
    ("an output is a list over exactly its axes", "list", top(output_axes=((M, K),))),
    ("every operand is defined before its use", "r", nest((_add(),), {"a": (M, N)})),
    ("every value is defined once", "r", nest((_add(), _add()), {"a": (M,), "b": (N,)})),
    ("every output of a graph is defined in it", "q",
     nest((_add(),), {"a": (M,), "b": ()}, out="q")),
    ("functional operators read items, not lists", "r", block_map((M, K), (M, N))),
    ("arguments have only the result's axes", "r", nest((_add(M),), {"a": (M, N), "b": (M,)})),
    ("the expression reads its arguments", "r",
     nest((Pointwise("r", Arg(1), ("a",), (M, N), F32),), {"a": (M, N)})),
    ("the collapsed axis is the argument's", "r",
     nest((Collapse("r", Monoid.sum, "a", N),), {"a": (M,)})),
    ("staging keeps the axes", "r", nest((Stage("r", "a", (M,), Layout.rows),), {"a": (M, N)})),
    ("both operands have the contracted axis", "r", _dot((M, K), (N,))),
    ("operands share no axis but the contracted one", "r", _dot((M, K), (M, K), M)),
    ("the result has the free axes of both", "r", _dot((M, K), (N, K), M)),
    ("padding along k holds 0.0", "part", placed(SUM)),
    ("padding along k holds 0.0", "part", filled(1.0)),
    ("an iterated input is a list over the axis", "m",
     edit("m", inputs=(Feed("x", "x", Iterate(M)),))),
    ("a map runs over the space of the list it iterates", "m", edit("m", axis=ELSEWHERE)),
    ("unit maps iterate lists of items without the axis", "m", edit("m", unit=True)),
    ("the inner names of a map's inputs are distinct", "m",
     edit("m", inputs=(Feed("x", "x", Iterate(_own("x", M))), Feed("x", "x", Broadcast())))),
    ("the body's inputs are what the map feeds", "m", edit("m", inputs=())),
    ("the body's outputs are what leaves it", "m", edit("m", outputs=())),
    ("a final output is a projection of the state", "k", edit("k", outputs=(Final("r", "part"),))),
    ("a final output is a projection of the state", "k", edit("k", state=None, outputs=(
        Stacked("s", "part"), Final("r", "total")))),
    ("update starts from the state", "k",
     state(lambda s: replace(s, update=replace(s.update, inputs=("other", "total_part"))))),
    ("update takes state and feeds", "k",
     state(lambda s: replace(s, update=replace(s.update, inputs=("total",))))),
    ("merge takes two states", "k",
     state(lambda s: replace(s, merge=replace(s.merge, inputs=("total_left",))))),
    ("finish starts from the state", "k",
     state(lambda s: replace(s, finish=Graph(("other",), (), ("other",))))),
    ("state does not have the axis of its own loop", "k",
     state(lambda _: State.of_monoid(Monoid.sum, "part", (M, K), F32, "total"))),
    ("a resumed state is a value of the body with the state's axes", "k",
     state(lambda s: replace(s, resume=("x",)))),
    ("a resumed state is a value of the body with the state's axes", "k",
     state(lambda s: replace(s, resume=("nowhere",)))),
    ("a loop resumes every component", "k", state(lambda s: replace(s, resume=()))),
    ("a state's components have different names", "k",
     state(lambda s: replace(s, components=s.components * 2))),
    ("a loop that carries state does not run on the grid", "k",
     at(filled(0.0), "k", lambda m: replace(m, place=Place.grid))),
    ("an accumulator has the result's axes", "r",
     nest((Collapse("s", Monoid.sum, "a", K), Dot("r", "a", "b", K, (M, N), F32, "s")),
          {"a": (M, K), "b": (N, K)}, (M, N, K))),
    ("an index is over the axis of a map around it", "r", nest((Index("r", K),), {"a": (M, N)})),
    ("an extent is of a block of a map around it", "r", nest((Extent("r", K.space, F32, K),), {"a": (M, N)})),
    ("items have axes of maps around them", "r",
     nest((Pointwise("r", Arg(0), ("a",), (M, K), F32),), {"a": (M, N)})),
    ("a list is stacked over all blocks of its axis", "n", at(BOTH, "n", lambda m: replace(
        m, axis=Axis("n2", M.space), range=band(M, high=0), inputs=tuple(
            replace(f, access=Broadcast()) for f in m.inputs), body=replace(
                m.body, nodes=(Index("r", M),))))),
    ("a state's graph gives every component", "k",
     state(lambda s: replace(s, update=replace(s.update, outputs=())))),
    ("a component keeps its axes", "k",
     state(lambda s: replace(s, components=(replace(s.components[0], dims=()),)))),
    ("a range refers to a map around it", "k", edit("k", range=Within(N))),
    ("a range refers to a map around it", "k", edit("k", range=band(N, high=0))),
    ("a range refers to a map over the same space", "k", edit("k", range=Within(M))),
    ("a range refers to a map around it", "k", edit("k", range=Before(N))),
    ("a range refers to a map over the same space", "k", edit("k", range=Before(M))),
    ("a segment is numbered by a map around it", "k", edit("k", range=Segment(GROUPS, 4))),
    ("the segments' map has one iteration a segment", "k", edit("k", range=Segment(M, 4))),
    ("a span has ends on both sides of which it is known what lies", "k", edit("k", range=Spans((Span((Linear.index(M),)),)))),
    ("a span has ends on both sides of which it is known what lies", "k", edit("k", range=Spans(()))),
    ("items have axes of the memory that they lie in", "list", moved(Buffer, dims=(N,))),
    ("an item is stored, not a list", "list", moved(Store, value="x1")),
    ("items are loaded from memory and stored there", "r", moved(Store, memory="r")),
    ("memory has a subscript for each axis", "x", moved(Load, at=(Subscript.of(M),))),
    ("subscripts are of blocks of maps around", "x", moved(Load, at=(Subscript.of(M), Subscript.of(N)))),
    ("an item's axes decide where it lies", "x", moved(Load, at=(Subscript.of(M), Subscript((), 3)))),
    ("an item lies as its elements are numbered", "x", moved(Load, at=(Subscript.of(M), Subscript.of(K, 2)))),
    ("a digit divides by a positive number", "x", moved(Load, at=(Subscript.of(M), Subscript.of(K, 0)))),
    ("memory has a subscript of its own space", "x", moved(Load, at=(Subscript.of(K), Subscript.of(M)))),
    ("an item has the axes of its memory's items", "x", moved(Load, dims=(M,))),
    ("only a loop with state is peeled", "m", edit("m", range=All(Part.full))),
    ("what whole blocks leave goes on from a loop over these", "k", edit("k", range=All(Part.edge))),
    ("what whole blocks leave goes on from a loop over these", "k1", at(PEELED, "k", lambda m: replace(m, tile=7))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "node", "program"), MALFORMED, ids=[c.replace(" ", "-") for c, _, _ in MALFORMED]
)
def test_a_violated_condition_is_named_with_its_node(condition, node, program):
    # Bodies are sealed again except where that is the point.
    with pytest.raises(InvalidProgramError) as caught:
        check(program)
    assert (caught.value.condition, caught.value.node) == (condition, node)
    assert condition in str(caught.value)


def _conditions() -> set[str]:
    """The conditions that the checker demands, read from its source; {} stands for what varies."""

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            return "".join(map(str, parts))
        assert isinstance(node, ast.Constant)
        return str(node.value)

    sources = [Path(inspect.getfile(each)).read_text() for each in (check, operator_types.item_type)]
    calls = [n for text in sources for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    place = {"demand": 2, "fail": 1}
    named = [c.args[place[c.func.id]] for c in calls if isinstance(c.func, ast.Name) and c.func.id in place]
    return {text(c) for c in named if not isinstance(c, ast.Name)}  # one hands it on


def test_every_condition_of_the_checker_is_violated_by_some_program():
    tried = {c for c, _, _ in MALFORMED} | {"padding along {} holds {}", "the index of a unit map is one number"}
    others = [
        (Path(__file__).parents[1] / name / "test_block.py").read_text()
        for name in ("lookups", "peeled", "rankings", "scans")
    ]
    of_masks = Path(__file__).parents[1] / "masks"
    others += [(of_masks / name).read_text() for name in ("test_guards.py", "test_full_blocks.py", "test_groups.py")]
    left = {c for c in _conditions() - tried if all(f'"{c}"' not in text for text in others)}
    # That the outputs of a body exist is said twice: they are just those that leave it, and defined.
    assert left <= {"a stacked output is a value of the body", "what leaves an iteration is a value of the body"}


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
def test_lowered_programs_are_well_formed(name, dtype):
    check(lower(programs.ALL[name](dtype)))


def _with_segments() -> BlockProgram:
    """The sum of rows in four segments: map g around m around k."""
    inner = at(SUM, "k", lambda m: replace(m, range=Segment(GROUPS, 4))).graph.nodes[0]
    assert isinstance(inner, Map)
    around = Map(
        "g", GROUPS, (Feed("x", "x", Broadcast()),), Graph(("x",), (inner,), ("list",)),
        (Stacked("parts", "list"),), unit=True,
    )  # fmt: skip
    return BlockProgram(SUM.inputs, Graph(("x",), (around,), ("parts",)), ((GROUPS, M),))


def _grouped() -> BlockProgram:
    """Heads q read the keys of group q // 2."""
    q, h = Axis("q", Space("Q")), Axis("h", Space("H"))
    loop = Map(
        "q", q, (Feed("x", "x", Grouped(h, 2)),),
        Graph(("x",), (Pointwise("r", Arg(0), ("x",), (), F32),), ("r",)),
        (Stacked("list", "r"),), unit=True,
    )  # fmt: skip
    return BlockProgram((("x", BlockType((h,), (), F32)),), Graph(("x",), (loop,), ("list",)), ((q,),))


WELL_FORMED = {
    "reduction": SUM,
    "sum of blocks": BOTH,
    "row and column": block_map((M,), (N,)),
    "product": _dot((M, K), (N, K)),
    "applied, zero beyond the ends": filled(0.0),
    "applied, whole blocks only": placed(SUM, k=Part.full),
    "segments": _with_segments(),
    "grouped": _grouped(),
    "whole": at(
        at(filled(0.0), "k", lambda m: replace(m, place=Place.whole, tile=None)),
        "m",
        lambda m: replace(m, place=Place.whole, tile=None),
    ),
}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_well_formed_programs_pass(name):
    check(WELL_FORMED[name])


def test_a_map_that_is_known_is_checked_again_in_other_surroundings():
    """Types are kept by map: what they depend on beside the map itself is compared."""
    program = nest((_add(),), {"a": (M,), "b": (N,)})
    check(program)
    outer = program.graph.nodes[0]
    assert isinstance(outer, Map)
    inner = outer.body.nodes[0]
    assert isinstance(inner, Map)
    given = body_types(outer, dict(program.inputs))
    alone = Graph(("a", "b"), (inner,), ())
    infer(alone, given, Scope({M: outer}, applied=False))
    with pytest.raises(InvalidProgramError, match="items have axes of maps around them"):
        infer(alone, given, Scope({}, applied=False))
    with pytest.raises(InvalidProgramError, match="an iterated input is a list over the axis"):
        infer(alone, {**given, "b": BlockType((), (), F32)}, Scope({M: outer}, applied=False))
    index = nest((Index("r", M, unit=False),), {}, (M, N))
    check(index)
    around = index.graph.nodes[0]
    assert isinstance(around, Map)
    changed = replace(index, graph=replace(index.graph, nodes=(replace(around, unit=True),)))
    with pytest.raises(InvalidProgramError, match="the index of a unit map"):
        check(changed)
