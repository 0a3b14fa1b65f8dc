"""Four functions, thirty shapes, two dtypes, two layouts: one kernel, no fallback, right by the error rule.

A share of them; with WALK_ALL=1 in the environment all. The grid has one thread: of two, each could have a part of a sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from testkit.api.judged import judged
from testkit.walk import share

SIZES = (1, 7, 130, 1000)
# Every size in every place, and some that no block size divides or that none exceeds.
SHAPES = (
    *itertools.islice(itertools.product(SIZES, SIZES, SIZES), 0, None, 3),
    (512, 64, 128), (33, 65, 17), (2, 3, 5), (64, 512, 256), (129, 1, 1), (1, 513, 1), (16, 48, 1), (257, 31, 63),
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16)
NAMES = ("relu_linear", "gated", "sum_of_squares", "layers")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def walked(name: str, dtype: torch.dtype) -> list[tuple[tuple[int, int, int], bool]]:
    """The shapes and layouts to try: other ones for each function and type."""
    return share(itertools.product(SHAPES, (False, True)), 16, 2 * NAMES.index(name) + DTYPES.index(dtype))


def relu_linear(x, w, b):
    return torch.relu(x @ w + b)


def gated(x, w, v):
    return F.silu(x @ w) * (x @ v)


def sum_of_squares(x, w):
    return ((x @ w) ** 2).sum(-1)


class Layers(nn.Module):
    def __init__(self, inner: int, hidden: int, outer: int):
        super().__init__()
        self.first = nn.Linear(inner, hidden)
        self.second = nn.Linear(hidden, outer)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def tensor(*shape: int, dtype: torch.dtype, transposed: bool, scale: float = 1.0) -> torch.Tensor:
    made = torch.randn(*(shape[::-1] if transposed else shape)) * scale
    return (made.T if transposed else made).to(dtype)


def inputs(name: str, shape: tuple[int, int, int], dtype: torch.dtype, transposed: bool) -> tuple[torch.Tensor, ...]:
    m, k, n = shape
    x = tensor(m, k, dtype=dtype, transposed=transposed)
    w, v = (tensor(k, n, dtype=dtype, transposed=transposed, scale=k**-0.5) for _ in range(2))
    b = torch.randn(n).to(dtype)
    return {"relu_linear": (x, w, b), "gated": (x, w, v), "sum_of_squares": (x, w), "layers": (x,)}[name]


def test_there_are_thirty_shapes_with_the_sizes_that_hurt():
    assert len(SHAPES) >= 30
    assert set(SIZES) <= {size for shape in SHAPES for size in shape}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES[:3])
def test_functions_are_one_kernel_and_right(name, dtype):
    fn = {"relu_linear": relu_linear, "gated": gated, "sum_of_squares": sum_of_squares}[name]
    for shape, transposed in walked(name, dtype):
        draws = [inputs(name, shape, dtype, transposed) for _ in range(4)]
        program = weft.optimize(fn, draws[0])
        assert len(program.kernels) == 1, (shape, program.kernels)
        assert program.fallbacks == (), shape
        assert program.kernels[0].verdict.equal is True
        judgement = judged(fn, program, draws)
        assert judgement.ok, (shape, transposed, str(judgement))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_module_of_two_layers_is_at_most_two_kernels_and_right(dtype):
    for shape, transposed in walked("layers", dtype):
        m, k, n = shape
        module = Layers(k, n, 24).to(dtype).eval()
        draws = [(tensor(m, k, dtype=dtype, transposed=transposed),) for _ in range(4)]
        program = weft.optimize(module, draws[0])
        assert 1 <= len(program.kernels) <= 2
        assert program.fallbacks == ()
        judgement = judged(module, program, draws)
        assert judgement.ok, (shape, transposed, str(judgement))
