"""Runs a program made by the builder in fp64."""

from __future__ import annotations

import numpy as np

from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import (
    TensorProgram,
)
from weft.tensor.wellformed import well_formed


def run(program: TensorProgram, *arrays: np.ndarray) -> list[np.ndarray]:
    well_formed(program)
    domain = Fp64Domain()
    inputs = dict(zip((n.name for n in program.inputs), arrays, strict=True))
    return list(returned(program, evaluate(program, inputs, domain), domain))
