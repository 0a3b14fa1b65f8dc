"""Fusion schemes: codes of cuts, read back, on random graphs; and what they may not say."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from testkit.block import programs
from testkit.block.programs import matmul
from testkit.block.rankings import ranking
from testkit.plan.schemes import any_scheme
from weft.errors import SchemeError
from weft.lab.fuzz.random_programs import random_program
from weft.pipeline import normalize
from weft.plan.partition.partition import Region, Task, partition
from weft.plan.partition.schemes import Scheme, as_launched, cut_by, decode, encode, operators, scheme_of, tag_of
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Elementwise,
    Iota,
    Lookup,
    Monoid,
    Node,
    Opaque,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, apply

F32 = programs.F32
ROUNDS = 150


def elementwise(name: str, op: str, axes: Sequence[Axis], *reads: str) -> Elementwise:
    arguments = [Arg(i) for i in range(len(reads))]
    return Elementwise(name, tuple(axes), F32, apply(op, *arguments), tuple(Use(r, tuple(axes)) for r in reads))


def row(*nodes: Node, outputs: Sequence[str] = ()) -> TensorProgram:
    m = Axis("m", Space("M"))
    return TensorProgram((programs.tensor("x", m),), nodes, tuple(outputs) or (nodes[-1].name,))


def test_the_code_of_the_paper() -> None:
    """STOF, section 4.3: operators #2 to #14 in four kernels, [#2-#6], [#7-#9], [#10-#12] and [#13, #14]."""
    kernels = [0] * 5 + [1] * 3 + [2] * 3 + [3] * 2
    scheme = encode(kernels)
    assert f"{scheme.words[0]:013b}" == "0000011100011"
    assert scheme.text(13) == "0x00e3"
    assert decode(Scheme.read("0x00e3"), 13) == tuple(kernels)
    assert decode(Scheme.read("0xE3"), 13) == tuple(kernels)
    assert decode(Scheme.read("0x1f1c"), 13) == tuple(kernels), "levels change; which is first says nothing"


def test_kernels_whose_stretches_overlap_are_on_rows_of_their_own() -> None:
    scheme = encode([0, 1, 0, 2, 1, 3])
    assert len(scheme.words) == 2
    assert decode(scheme, 6) == (0, 1, 0, 2, 1, 3)
    assert encode([0, None, 0, 1]).again == 0b0100


def random_kernels(rng: random.Random) -> list[int | None]:
    """Numbers of kernels in the order of their first operators, mostly in stretches, and some that are made again."""
    found: list[int | None] = []
    for _ in range(rng.randint(1, 40)):
        kernels = [k for k in found if k is not None]
        new = max(kernels, default=-1) + 1
        last = kernels[-1] if kernels else new
        found.append(rng.choice((None, new, last, last, last, rng.randint(0, new))))
    return found


def test_any_cut_has_a_code_that_reads_back() -> None:
    rng = random.Random(0)
    rows = set[int]()
    for _ in range(1000):
        kernels = random_kernels(rng)
        scheme = encode(kernels)
        assert decode(Scheme.read(scheme.text(len(kernels))), len(kernels)) == tuple(kernels)
        rows.add(len(scheme.words))
    assert {1, 2, 3} <= rows


def in_order(program: TensorProgram, stages: Sequence[Task]) -> Iterator[str]:
    """The names of what `stages` make, each where all that it reads is there; what is local is made by whoever wants it."""
    there = {n.name for n in program.inputs}
    for stage in stages:
        assert there.issuperset(stage.uses)
        there.update(stage.results)
        if isinstance(stage, Region):
            assert set(stage.program.outputs) == set(stage.results)
            names = [n.name for n in stage.program.nodes]
            yield from (name for name in names if name not in program.local or name in stage.results)
        else:
            yield from stage.results
    assert there.issuperset(program.outputs)


def test_schemes_of_random_graphs_cut_them_and_are_those_of_the_cuts() -> None:
    rng = random.Random(1)
    cuts = refused = 0
    for _ in range(ROUNDS):
        program = normalize(random_program(rng))
        every = operators(program)
        stages = as_launched(program, partition(program))
        assert cut_by(scheme_of(program, stages), program) == stages
        for _ in range(10):
            given = any_scheme(rng, len(every))
            try:
                cut = cut_by(given, program)
            except SchemeError:
                refused += 1
                continue
            cuts += 1
            made = list(in_order(program, cut))
            assert {n.name for operator in every for n in operator} == set(made)
            scheme = scheme_of(program, cut)
            text = scheme.text(len(every))
            assert cut_by(Scheme.read(text), program) == cut
            assert scheme_of(program, cut_by(scheme, program)) == scheme
            again = sum(scheme.again >> i & 1 for i in range(len(every)))
            if not again:
                assert len(made) == len(set(made)), "each is made once"
    assert cuts > ROUNDS
    assert refused > ROUNDS


def test_the_tag_is_of_the_program_but_not_of_its_names() -> None:
    m, n = Axis("m", Space("M")), Axis("i", Space("Rows"))
    one = row(elementwise("a", "exp", (m,), "x"), elementwise("b", "neg", (m,), "a"))
    other = TensorProgram(
        (programs.tensor("y", n),),
        (elementwise("c", "exp", (n,), "y"), elementwise("d", "neg", (n,), "c")),
        ("d",),
    )
    assert tag_of(one) == tag_of(other)
    third = row(elementwise("a", "exp", (m,), "x"), elementwise("b", "sin", (m,), "a"))
    assert tag_of(third) != tag_of(one)
    scheme = scheme_of(one, partition(one))
    with pytest.raises(SchemeError, match=f"is for another graph than this one, {tag_of(third)}"):
        cut_by(scheme, third)


def test_more_bits_than_operators_are_an_error() -> None:
    m = Axis("m", Space("M"))
    with pytest.raises(SchemeError, match="has 5 bits, and the graph 2 operators"):
        cut_by(Scheme.read("0x10"), row(elementwise("a", "exp", (m,), "x"), elementwise("b", "neg", (m,), "a")))


def test_kernels_that_wait_for_each_other_are_an_error_that_names_them() -> None:
    m = Axis("m", Space("M"))
    program = row(
        elementwise("a", "exp", (m,), "x"),
        elementwise("b", "neg", (m,), "a"),
        elementwise("c", "add", (m,), "a", "b"),
    )
    with pytest.raises(SchemeError, match=r"wait for each other: #\d \(.*\) reads #\d") as caught:
        cut_by(encode([0, 1, 0]), program)
    assert "what to do: put these operators in one kernel, or in more" in str(caught.value)


def test_a_call_into_pytorch_shares_no_kernel() -> None:
    m = Axis("m", Space("M"))
    call = Opaque("b", (m,), F32, "aten.cumsum", "call", ("a",), "not in the table")
    program = row(elementwise("a", "exp", (m,), "x"), call, elementwise("c", "neg", (m,), "b"))
    with pytest.raises(SchemeError, match=r"PyTorch runs #2 \(b\)"):
        cut_by(encode([0, 0, 1]), program)
    assert len(cut_by(encode([0, 1, 2]), program)) == 3


def test_what_is_looked_up_in_is_in_memory_before() -> None:
    m, n = Axis("m", Space("M")), Axis("n", Space("N"))
    program = TensorProgram(
        (programs.tensor("x", m), programs.tensor("at", n)),
        (elementwise("a", "exp", (m,), "x"), Lookup("b", (n,), F32, "a", (Use("at", (n,)),))),
        ("b",),
    )
    with pytest.raises(SchemeError, match=r"#2 \(b\) reads places of what #1 \(a\) makes"):
        cut_by(encode([0, 0]), program)
    assert len(cut_by(encode([0, 1]), program)) == 2


def test_what_is_made_again_is_elementwise_and_inside() -> None:
    m, n = Axis("m", Space("M")), Axis("n", Space("N"))
    nodes = (
        elementwise("a", "exp", (m, n), "x"),
        Reduction("s", (m,), F32, Monoid.sum, Use("a", (m, n)), (n,)),
        Elementwise("d", (m, n), F32, apply("div", Arg(0), Arg(1)), (Use("a", (m, n)), Use("s", (m,)))),
    )
    program = TensorProgram((programs.tensor("x", m, n),), nodes, ("d",))
    stages = cut_by(encode([None, 0, 1]), program)
    assert [{v.name for v in s.program.nodes} for s in stages if isinstance(s, Region)] == [{"a", "s"}, {"a", "d"}]
    assert [s.results for s in stages] == [("s",), ("d",)]
    assert scheme_of(program, stages).again == 0b100
    for kernels, name in (([0, None, 1], "#2"), ([0, 1, None], "#3")):
        with pytest.raises(SchemeError, match=f"{name} .* is to be made by each kernel"):
            cut_by(encode(kernels), program)


def test_both_results_of_a_ranking_are_one_operator() -> None:
    program = ranking(3)
    assert [len(operator) for operator in operators(program)] == [2]
    ((stage,),) = [cut_by(Scheme.read("0x0"), program)]
    assert stage.results == ("v", "p")


def test_what_is_made_of_numbers_and_returned_has_a_kernel_by_itself() -> None:
    m = Axis("m", Space("M"))
    program = row(
        Iota("i", (m,), DType.int64),
        Elementwise("a", (m,), F32, apply("add", Arg(0), Arg(1)), (Use("x", (m,)), Use("i", (m,)))),
        outputs=("i", "a"),
    )
    assert [operator[0].name for operator in operators(program)] == ["i", "a"]
    with pytest.raises(SchemeError, match=r"#1 \(i\) is made of numbers alone"):
        cut_by(encode([0, 0]), program)
    assert [stage.results for stage in cut_by(encode([0, 1]), program)] == [("i",), ("a",)]


def test_two_layers_of_matmuls_cut_by_hand() -> None:
    m, k, n, o = programs.axes("m", "k", "n", "o")
    nodes = (
        matmul("h", Use("x", (m, k)), Use("w", (k, n)), k),
        elementwise("r", "exp", (m, n), "h"),
        matmul("y", Use("r", (m, n)), Use("v", (n, o)), n),
    )
    inputs = (programs.tensor("x", m, k), programs.tensor("w", k, n), programs.tensor("v", n, o))
    program = TensorProgram(inputs, nodes, ("y",))
    for text, count in (("0x0", 1), ("0x1", 2), ("0x3", 2), ("0x2", 3), ("0x5", 3)):
        assert len(cut_by(Scheme.read(text), program)) == count
