"""Programs, cases and results for tests of the judge of emitted code."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from testkit.block import programs
from testkit.block.paper import each, row_sum
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.order import Order
from weft.tensor.program import Extent, Monoid, Ranking, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify.cases import Case, cases
from weft.verify.emitted import ErrorTally
from weft.verify.fitted import MANY, fitted
from weft.verify.regimes import layout_of
from weft.verify.torch_array import TorchArray


def softmax_of(m, n, of):
    """Nodes from `of`, [m, n], to "p"."""
    return (
        Reduction("top", (m,), F32, Monoid.max, Use(of, (m, n)), (n,)),
        each("d", (m, n), apply("sub", Arg(0), Arg(1)), Use(of, (m, n)), Use("top", (m,))),
        each("e", (m, n), apply("exp", Arg(0)), Use("d", (m, n))),
        row_sum("t", "e", m, n),
        each("p", (m, n), apply("div", Arg(0), Arg(1)), Use("e", (m, n)), Use("t", (m,))),
    )


def softmax():
    m, n = programs.axes("m", "n")
    return TensorProgram((programs.tensor("x", m, n),), softmax_of(m, n, "x"), ("p",))


def attention():
    m, n, k, d = programs.axes("m", "n", "k", "d")
    nodes = (
        programs.matmul("s", Use("q", (m, k)), Use("k", (n, k)), k),
        *softmax_of(m, n, "s"),
        programs.matmul("out", Use("p", (m, n)), Use("v", (n, d)), n),
    )
    inputs = programs.tensor("q", m, k), programs.tensor("k", n, k), programs.tensor("v", n, d)
    return TensorProgram(inputs, nodes, ("out",))


def normalised():
    """x / sqrt(sum of x * x)."""
    m, n = programs.axes("m", "n")
    nodes = (
        each("squares", (m, n), apply("mul", Arg(0), Arg(0)), Use("x", (m, n))),
        row_sum("t", "squares", m, n),
        each("r", (m,), apply("sqrt", Arg(0)), Use("t", (m,))),
        each("out", (m, n), apply("div", Arg(0), Arg(1)), Use("x", (m, n)), Use("r", (m,))),
    )
    return TensorProgram((programs.tensor("x", m, n),), nodes, ("out",))


def about_the_mean():
    """Makes 1 / (n * x - sum of x), which rounding decides where x is the same all along a row."""
    m, n = programs.axes("m", "n")
    nodes = (
        Extent("size", (), F32, n.space),
        row_sum("t", "x", m, n),
        each(
            "d",
            (m, n),
            apply("sub", apply("mul", Arg(0), Arg(1)), Arg(2)),
            Use("x", (m, n)),
            Use("size", ()),
            Use("t", (m,)),
        ),
        each("out", (m, n), apply("div", Lit(1.0), Arg(0)), Use("d", (m, n))),
    )
    return TensorProgram((programs.tensor("x", m, n),), nodes, ("out",))


def first_place():
    m, n = programs.axes("m", "n")
    node = Ranking("at", (m,), DType.int64, Use("x", (m, n)), n, None, Order(True, True), places=True)
    return TensorProgram((programs.tensor("x", m, n),), (node,), ("at",))


F32 = DType.float32
SOFTMAX, ATTENTION, NORM = softmax(), attention(), normalised()


HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where references are worked out in arrays of PyTorch's."""


class HeldTally(ErrorTally):
    """A tally whose references and results are arrays of PyTorch's, as where a GPU is judged."""

    def add(self, case: Case, results: Sequence[Array]) -> None:
        """Takes in the results of a case, which are numpy's."""
        held = tuple(TorchArray.of(np.asarray(v), HERE) for v in results)
        super().add(replace(case, device=HERE, known={}), held)


def sizes_of(program, size=30):
    sizes = fitted(program, {s.name: size for s in program.spaces() if s.fixed is None}, layout_of(program), MANY)
    assert sizes is not None
    return sizes


def right(case):
    """Returns what a right kernel gives that sums in an order of its own."""
    return tuple(v.astype(np.float64) if v.dtype.kind == "f" else v for v in case.in_order(9))


def verdict(program, results=right, draws=1) -> str | None:
    tally = ErrorTally(program)
    for case in cases(program, [], [sizes_of(program)], 0, draws):
        tally.add(case, results(case))
    return tally.verdict()


def one_case(program, change, results) -> str | None:
    """Returns what is said of the results of one case, whose inputs `change` makes."""
    case = next(iter(cases(program, [], [sizes_of(program)], 0)))
    inputs = {name: change(v) for name, v in case.inputs.items()}
    made = type(case)(program, case.sizes, inputs, case.layout, 0)
    tally = ErrorTally(program)
    tally.add(made, results(made))
    return tally.verdict()
