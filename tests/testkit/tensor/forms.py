"""What tests of laws ask of a program: what it computes, and which nodes it is made of."""

from __future__ import annotations

from typing import Any

from weft.tensor.domain import Domain
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.program import Cast, TensorProgram
from weft.tensor.scalar import Arg, apply
from weft.tensor.wellformed import well_formed

ADD = apply("add", Arg(0), Arg(1))
EXP = apply("exp", Arg(0))


def run(program: TensorProgram, inputs: dict[str, Any], domain: Domain[Any]) -> list[Any]:
    """Evaluates a program, which must be well formed, and returns its outputs."""
    well_formed(program)
    return list(returned(program, evaluate(program, inputs, domain), domain))


def kinds(program: TensorProgram) -> list[str]:
    """Names the kinds of a program's nodes, in order."""
    return [type(n).__name__ for n in program.nodes]


def casts(program: TensorProgram) -> list[tuple[str, bool]]:
    """Lists the casts of a program: the type of each, and whether it is semantic."""
    return [(n.dtype.name, n.semantic) for n in program.nodes if isinstance(n, Cast)]
