"""Functions in PyTorch as the tensor programs that the analysis of chains is given."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.capture import capture
from weft.cascade import Found, folds, sums_outside
from weft.tensor.laws import decays_below_maxima, normalize, sizes_in_place
from weft.tensor.program import TensorProgram


def captured(function: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], *args: torch.Tensor) -> TensorProgram:
    """The tensor program of `function`, after the laws."""
    found: list[TensorProgram] = []

    def backend(gm, example_inputs):
        program = capture(gm, example_inputs).program
        assert program is not None
        found.append(program)
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*args)
    (program,) = found
    return normalize(program)


def prepared(program: TensorProgram) -> TensorProgram:
    """`program` as the plan prepares it for the analysis."""
    return sizes_in_place(decays_below_maxima(sums_outside(program)))


def analysed(function: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], *args: torch.Tensor) -> Found:
    """The chains of `function`."""
    return folds(prepared(captured(function, *args)))
