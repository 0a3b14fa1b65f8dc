"""The judge of emitted code: how many runs that round at random results are held against before they are wrong."""

import numpy as np
import pytest

from testkit.block import programs
from testkit.block.paper import each
from testkit.verify import emitted
from testkit.verify.emitted import about_the_mean
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify.cases import Case, cases
from weft.verify.emitted import ErrorTally


@pytest.fixture(autouse=True, params=["numpy", "torch"])
def _references(request, monkeypatch):
    """Has references worked out in numpy's arrays, and in PyTorch's, where those of a GPU are."""
    if request.param == "torch":
        monkeypatch.setattr(f"{__name__}.ErrorTally", emitted.HeldTally)


def test_of_one_element_as_many_runs_are_looked_at_as_of_many():
    """The sign of what cancels is noise, and a tanh of it is 1 or -1: four runs agree by accident in one case of eight."""
    m, n = programs.axes("m", "n")
    about = about_the_mean()
    nodes = (
        *about.nodes[:-1],
        programs.matmul("left", Use("d", (m, n)), Use("y", (n,)), n),
        each("out", (m,), apply("tanh", apply("mul", Arg(0), Lit(1e30))), Use("left", (m,))),
    )
    program = TensorProgram((*about.inputs, programs.tensor("y", n)), nodes, ("out",))

    sizes = {space.name: 1 if space == m.space else 37 for space in program.spaces()}
    case = next(iter(cases(program, [], [sizes], 0)))

    def said(row):
        inputs = {"x": np.broadcast_to(row, (1, 37)).astype(np.float32), "y": np.linspace(-1, 2, 37)}
        made = type(case)(program, case.sizes, inputs, case.layout, 0)
        tally = ErrorTally(program)
        tally.add(made, (-np.sign(made.exact[0]),))
        return tally.verdict()

    assert [x for x in range(1, 81) if said(x / 10) is not None] == []
    assert said(np.arange(37)) is not None


@pytest.mark.parametrize(("rows", "found", "most"), [(1, 40.0, 63), (300, 40.0, 11), (3900, 40.0, 3)])
def test_so_many_runs_and_no_more(rows, found, most, monkeypatch):
    """Takes 64 runs of one element; of 23, as 300 rows of 13 regimes have, as many as come to 256 results."""
    asked, made = list[int](), Case.rounded

    def rounded(self, number, **keywords):
        asked.append(number)
        return made(self, number, **keywords)

    monkeypatch.setattr(Case, "rounded", rounded)
    (m,) = programs.axes("m")
    noise = apply(
        "tanh", apply("mul", apply("sub", apply("add", Arg(0), Lit(0.1)), apply("add", Lit(0.1), Arg(0))), Lit(1e30))
    )
    program = TensorProgram((programs.tensor("x", m),), (each("out", (m,), noise, Use("x", (m,))),), ("out",))
    case = next(iter(cases(program, [], [{"M": rows}], 0)))
    given = type(case)(program, case.sizes, {"x": np.full(rows, 0.7, np.float32)}, case.layout, 0)
    tally = ErrorTally(program)
    tally.add(given, (np.full(rows, found),))
    assert tally.verdict() is not None
    assert max(asked) == most


@pytest.mark.parametrize(("scale", "is_right"), [(1e8, True), (1e4, False)])
def test_what_noise_decides_may_be_beyond_the_range(scale, is_right):
    """Shows it of 16 bits: eager has a number there by accident, and so have four runs that round at random."""
    (m,) = programs.axes("m")

    def made(name, expr, *args):
        return Elementwise(name, (m,), DType.float16, expr, tuple(Use(arg, (m,)) for arg in args))

    nodes = (
        made("one", apply("add", Arg(0), Lit(0.3)), "x"),
        made("other", apply("sub", Arg(0), Lit(0.3)), "one"),
        made("noise", apply("sub", Arg(0), Arg(1)), "other", "x"),
        made("more", apply("mul", Arg(0), Lit(1e4)), "noise"),
        made("out", apply("mul", Arg(0), Lit(scale)), "more"),
    )
    program = TensorProgram((programs.tensor("x", m, dtype=DType.float16),), nodes, ("out",))
    case = next(iter(cases(program, [], [{"M": 1}], 0)))

    def said(x):
        given = type(case)(program, case.sizes, {"x": np.full(1, x, np.float16).astype(np.float64)}, case.layout, 0)
        tally = ErrorTally(program)
        tally.add(given, (np.full(1, np.inf),))
        return tally.verdict()

    found = [said(x / 64) is None for x in range(65, 81)]
    assert found == [is_right] * len(found)
