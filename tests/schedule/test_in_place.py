"""Which results of a launch may lie where an operand does, as its loads and its store say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import weft
from weft.schedule import kernels, overwriting

X, Y, ROW = torch.randn(40, 24), torch.randn(40, 24), torch.randn(24)
PLACES = torch.randint(0, 40, (40,))


def elementwise(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return F.gelu(x + y) * row


def turned(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return x.T + y.T * row[0]


def mixed(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return x[:24, :24].T + y[:24, :24] * row


def twice(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return x + x.roll(1, 0) + y * row


def looked_up(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return F.embedding(PLACES, x) * 2 + y * row


def repeated(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return row.expand(40, 24) * 2


def norm(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return F.layer_norm(x + y, (24,), row)


def product(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return x @ y.T


def two(x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total * row, torch.exp(total)


def rounded(x: Tensor, y: Tensor, row: Tensor) -> Tensor:
    return (x + y * row).half()


@pytest.mark.parametrize(
    ("function", "over"),
    [
        (elementwise, [["x", "y"]]),
        (turned, [[]]),
        (mixed, [["y.0"]]),
        (twice, [["y"]]),
        (looked_up, [["y"]]),
        (repeated, [[]]),
        (norm, [[]]),
        (product, [[]]),
        (two, [[]]),
        (rounded, [["y", "x"]]),
    ],
)
def test_an_element_is_loaded_and_stored_by_one_iteration_alone(
    function: Callable[..., Any], over: list[list[str]]
) -> None:
    program = weft.optimize(function, (X, Y, ROW))
    (region,) = (region for plan in program.plans for region in plan.regions)
    parts = kernels(region.kernels[0].block_program)
    assert [[read for _, read in overwriting(part)] for part in parts] == over


def test_results_of_another_type_lie_elsewhere() -> None:
    (kernel,) = weft.optimize(rounded, (X, Y, ROW)).kernels
    assert kernel.over == ()
    (kernel,) = weft.optimize(elementwise, (X, Y, ROW)).kernels
    assert kernel.over == ((0, 0), (0, 1))
