"""Subscripts of every form, in every language and in the interpreter: coefficients, digits, offsets, several terms."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from testkit.emit.harness import compiled, dims_of
from testkit.emit.triton_programs import load
from testkit.processes.running import ran
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    BlockType,
    Broadcast,
    Buffer,
    Feed,
    Graph,
    Load,
    Map,
    Pointwise,
    Store,
    sealed,
)
from weft.block.subscripts import Digit, Subscript
from weft.errors import InvalidProgramError
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.scalar import Arg, Lit, apply

M, N, ROWS = (Axis(name, Space(name.upper())) for name in ("m", "n", "rows"))
COLUMNS = Axis("columns", N.space)
SIZES = {"M": 8, "N": 10, "ROWS": 12}
F32 = DType.float32


def term(axis: Axis, factor: int = 1, div: int = 1, mod: int | None = None) -> tuple[int, Digit]:
    return factor, Digit(axis, div, mod)


ALONG = Subscript.of(N)
PLACES = {
    "offsets": (Subscript((term(M),), 2), Subscript((term(N),))),
    "rows backwards": (Subscript((term(M, -1),), 11), ALONG),
    "pairs of rows in threes": (Subscript((term(M, 3, 2), term(M, mod=2))), ALONG),
    "digits of rows": (Subscript((term(M, div=2, mod=3),)), ALONG),
    "a row's digit along it": (Subscript((term(M, mod=100),)), Subscript((term(N), term(M, div=8)))),
}


def reading(at: tuple[Subscript, ...]) -> BlockProgram:
    """y[m, n] = x[at] + 1, in single rows and blocks of 4 columns."""
    nodes = (
        Load("t", "x", at, (N,), F32),
        Pointwise("u", apply("add", Arg(0), Lit(1.0)), ("t",), (N,), F32),
        Store("y", "u", (Subscript.of(M), ALONG)),
    )
    feeds = (Feed("x", "x", Broadcast()), Feed("y", "y", Broadcast()))
    inner = sealed(Map("n", N, feeds, Graph((), nodes, ()), (), place=Place.loop, tile=4))
    outer = sealed(Map("m", M, feeds, Graph((), (inner,), ()), (), unit=True, place=Place.grid, tile=1))
    graph = Graph(("x",), (Buffer("y", (M, N), (N,), F32), outer), ("y",))
    return BlockProgram((("x", BlockType((ROWS, COLUMNS), (COLUMNS,), F32)),), graph, ((M, N),))


def expected(at: tuple[Subscript, ...], x: torch.Tensor) -> np.ndarray:
    def number(subscript: Subscript, of: dict[Axis, int]) -> int:
        digits = ((f, of[d.axis] // d.div % (d.mod or 10**9)) for f, d in subscript.terms)
        return subscript.offset + sum(factor * digit for factor, digit in digits)

    made = [[x[tuple(number(s, {M: m, N: n}) for s in at)].item() + 1 for n in range(10)] for m in range(8)]
    return np.array(made)


@pytest.mark.parametrize("name", PLACES)
def test_an_item_lies_where_its_subscripts_say_in_every_language(name, tmp_path):
    at, x = PLACES[name], torch.randn(12, 20)[:, ::2]
    program, wanted = reading(at), expected(PLACES[name], x)
    check(program)
    interpreted = interpret(program, {"x": x.double().numpy()}, SIZES, Fp64Domain())[0][0]
    np.testing.assert_allclose(interpreted, wanted, atol=1e-5)
    for target in ("cpu", "numpy"):
        made = compiled([program], tmp_path, quickly=True, target=target)[0]({"x": x}, SIZES)[0]
        np.testing.assert_allclose(made.numpy(), wanted, atol=1e-5, err_msg=target)


def test_an_item_lies_where_its_subscripts_say_in_triton(tmp_path):
    said = ran([__file__, str(tmp_path)], os.environ | {"TRITON_INTERPRET": "1"})
    assert json.loads(said.stdout) == dict.fromkeys(PLACES, True)


def test_a_listing_says_what_is_divided_before_it_is_multiplied():
    text = listing(reading(PLACES["pairs of rows in threes"]))
    assert "3*(m/2)+m%2" in text


@pytest.mark.parametrize("terms", [(term(N, 2),), (term(N, -1),), (term(N, div=2),), (term(N), term(N))])
def test_along_an_item_elements_lie_as_they_are_numbered(terms):
    with pytest.raises(InvalidProgramError, match="an item lies as its elements are numbered"):
        check(reading((Subscript((term(M),), 1), Subscript(terms))))


def main(folder: Path) -> None:
    """Print of each place whether Triton's interpreter reads what it says."""
    found = dict[str, bool]()
    for name, at in PLACES.items():
        program, x = reading(at), torch.randn(12, 20)[:, ::2]
        made = load(program, dims_of(program), folder).prepare({"x": x}, SIZES, allocate=torch.empty)()[0]
        found[name] = bool(np.allclose(made.numpy(), expected(at, x), atol=1e-5))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
