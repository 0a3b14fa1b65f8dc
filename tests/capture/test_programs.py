"""Captured programs mean what eager means, and say it as weft wants to hear it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def relu_linear(x, w, b):
    return torch.relu(x @ w + b)


def gated(x, w, v):
    return F.silu(x @ w) * (x @ v)


def square_sum(x, w):
    return ((x @ w) ** 2).sum(-1)


class Mlp(nn.Module):
    def __init__(self, k: int, hidden: int, n: int) -> None:
        super().__init__()
        self.up = nn.Linear(k, hidden)
        self.down = nn.Linear(hidden, n)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


RELU_LINEAR = """\
x: float32[m:M, k:K] = input
w: float32[k:K, n:N] = input
b: float32[n:N] = input
t0: float32[m:M, n:N] = contract over k of x[m, k] * w[k, n]
t1: float32[m:M, n:N] = (t0[m, n] + b[n])
t2: float32[m:M, n:N] = maximum(t1[m, n], 0)
return t2"""

GATED = """\
x: float32[m:M, k:K] = input
w: float32[k:K, n:N] = input
v: float32[k:K, n1:N] = input
t0: float32[m:M, n:N] = contract over k of x[m, k] * w[k, n]
t1: float32[m:M, n:N] = (t0[m, n] / (1.0 + exp((-t0[m, n]))))
t2: float32[m:M, n1:N] = contract over k of x[m, k] * v[k, n1]
t3: float32[m:M, n:N] = (t1[m, n] * t2[m, n])
return t3"""

SQUARE_SUM = """\
x: float32[m:M, k:K] = input
w: float32[k:K, n:N] = input
t0: float32[m:M, n:N] = contract over k of x[m, k] * w[k, n]
t1: float32[m:M, n:N] = (t0[m, n] * t0[m, n])
t2: float32[m:M] = sum over n of t1[m, n]
return t2"""

MLP = """\
up_weight: float32[m:M, k:K] = input
up_bias: float32[m:M] = input
x: float32[n:N, k:K] = input
down_weight: float32[d:D, m:M] = input
down_bias: float32[d:D] = input
t0: float32[n:N, m:M] = contract over k of x[n, k] * up_weight[m, k]
t1: float32[n:N, m:M] = (t0[n, m] + up_bias[m])
t2: float32[n:N, m:M] = maximum(t1[n, m], 0)
t3: float32[n:N, d:D] = contract over m of t2[n, m] * down_weight[d, m]
t4: float32[n:N, d:D] = (t3[n, d] + down_bias[d])
return t4"""

CASES = {
    "relu_linear": (relu_linear, lambda m, k, n: ((m, k), (k, n), (n,)), RELU_LINEAR),
    "gated": (gated, lambda m, k, n: ((m, k), (k, n), (k, n)), GATED),
    "square_sum": (square_sum, lambda m, k, n: ((m, k), (k, n)), SQUARE_SUM),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_program_is_the_same_for_any_sizes(weft, name, dynamic):
    function, shapes, text = CASES[name]
    inputs = [torch.randn(shape) for shape in shapes(5, 7, 3)]
    captured = weft.compare(function, *inputs, dynamic=dynamic)
    assert str(captured.program) == text
    assert captured.fallbacks == ()


@pytest.mark.parametrize("dynamic", [False, True])
def test_module(weft, dynamic):
    captured = weft.compare(Mlp(6, 8, 4), torch.randn(5, 6), dynamic=dynamic)
    assert str(captured.program) == MLP
    assert captured.fallbacks == ()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 7, 3), (5, 1, 3), (5, 7, 1), (1, 1, 1), (4, 4, 4)])
@pytest.mark.parametrize("name", CASES)
def test_unit_and_equal_sizes(weft, name, sizes, dynamic):
    function, shapes, text = CASES[name]
    inputs = [torch.randn(shape) for shape in shapes(*sizes)]
    captured = weft.compare(function, *inputs, dynamic=dynamic)
    assert captured.fallbacks == ()
    # Equal sizes are not the same space; a size of 1 has no axis.
    assert (str(captured.program) == text) == (1 not in sizes)


@pytest.mark.parametrize("name", CASES)
def test_strides_do_not_matter(weft, name):
    function, shapes, text = CASES[name]
    inputs = [torch.randn(shape[::-1]).t() for shape in shapes(5, 7, 3)]
    assert str(weft.compare(function, *inputs).program) == text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_says_where_eager_rounds(weft, name, dtype):
    function, shapes, _ = CASES[name]
    captured = weft.compare(function, *(torch.randn(s).to(dtype) for s in shapes(5, 7, 3)))
    casts = [line for line in str(captured.program).splitlines() if "precision cast" in line]
    assert len(casts) >= 2
    assert "semantic" not in str(captured.program)
    assert captured.fallbacks == ()


def test_one_graph_serves_other_sizes(weft):
    torch.compiler.reset()
    compiled = torch.compile(relu_linear, backend=weft, dynamic=True)
    with torch.no_grad():
        for m in (2, 5, 9):
            x, w, b = torch.randn(m, 6), torch.randn(6, 4), torch.randn(4)
            torch.testing.assert_close(compiled(x, w, b), relu_linear(x, w, b), check_dtype=False)
    assert len(weft.graphs) == 1


def test_product_with_itself_has_two_axes_over_one_space(weft):
    captured = weft.compare(lambda x: x @ x.T, torch.randn(4, 6))
    (node,) = captured.program.nodes
    first, second = node.axes
    assert first != second
    assert first.space == second.space


def test_softmax_is_what_the_user_would_have_typed(weft):
    def by_hand(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    x = torch.randn(4, 6)
    typed = str(weft.compare(by_hand, x).program)
    assert str(weft.compare(lambda x: torch.softmax(x, -1), x).program) == typed
    assert typed.count("max over k") == 1


FUNCTIONS = {
    "addmm": lambda x, y: torch.addmm(y, x, x.t() @ x, beta=0.5, alpha=2),
    "alpha": lambda x, y: torch.add(x, y, alpha=3) - torch.sub(y, x, alpha=2),
    "arange": lambda x, y: x + torch.arange(6) * y,
    "arange_step": lambda x, y: x + torch.arange(1, 13, 2, dtype=torch.float32),
    "bmm": lambda x, y: torch.bmm(x.view(1, 4, 6), y.t().unsqueeze(0)),
    "baddbmm": lambda x, y: torch.baddbmm(x[None, :, :4], x[None], y.t()[None], beta=2),
    "clamp": lambda x, y: x.clamp(-0.5, 0.5) + y.clamp(min=0) + x.clamp_max(0.1),
    "compare": lambda x, y: (x > 0.3) & (y <= x) | ~(x != y),
    "dropout": lambda x, y: F.dropout(x, 0.5, training=False) + y,
    "expand": lambda x, y: x[:1].expand(4, 6) * y + y[:, :1].expand_as(x),
    "flip": lambda x, y: x.flip(0) + y.flip((0, 1)),
    "full": lambda x, y: torch.full((4, 6), 2.5) * x + torch.ones_like(y) - torch.zeros(6),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "layer_norm": lambda x, y: F.layer_norm(x, (6,), y[0], y[1]),
    "leaky": lambda x, y: F.leaky_relu(x, 0.2) + F.elu(y) + F.softplus(x) + F.hardswish(y),
    "log_softmax": lambda x, y: F.log_softmax(x, 0) + y,
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -1.0),
    "matmul3": lambda x, y: torch.matmul(x.view(4, 1, 6), y.t()),
    "max": lambda x, y: x.max(dim=1).values + y.min(dim=1)[0] + torch.max(x, y).amin(1),
    "mean": lambda x, y: x.mean() + y.mean(0) + x.mean((0, 1)),
    "mv": lambda x, y: torch.mv(x, y[0]) + torch.dot(x[0], y[1]) + F.linear(x, y[2]),
    "number": lambda x, y: 2 - x / 4 + 1 / (y * y + 1) + 3**x,
    "permute": lambda x, y: x.permute(1, 0) @ y + x.transpose(0, 1) @ y + x.mT @ y,
    "power": lambda x, y: x**3 + (y / 2) ** 4 + y.abs() ** 0.5 + (x * x + 1) ** -1.5 + (y * y + 1) ** -2,
    "prod": lambda x, y: x.prod(1) + y.prod(),
    "rms_norm": lambda x, y: F.rms_norm(x, (6,), y[0], 1e-5),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2) + torch.addcmul(x, x, y, value=0.5),
    "scalar": lambda x, y: x * y.sum() + torch.scalar_tensor(2.0),
    "select": lambda x, y: x[1] + y[-1] + x[:, 2].sum(),
    "slice": lambda x, y: x[1:3] @ y[::2, :].t() + x[-2:, 1:3] @ y[:2, 4:].t(),
    "squeeze": lambda x, y: x.sum(0, keepdim=True).squeeze(0) + y.reshape(4, 1, 6).squeeze(1),
    "tanh": lambda x, y: torch.tanh(x) + torch.sigmoid(y) + torch.erf(x) + torch.exp(y),
    "to": lambda x, y: (x > 0).to(torch.float32) + (y * 3).to(torch.int32).float(),
    "where": lambda x, y: torch.where(x > y, x, 0.0) + torch.where(y > 0, y, x),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_means_what_eager_means(weft, name, dynamic):
    captured = weft.compare(FUNCTIONS[name], torch.randn(4, 6), torch.randn(4, 6), dynamic=dynamic)
    assert captured.refused is None
    assert captured.fallbacks == ()


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "log_softmax", "gelu", "mean"])
def test_composites_round_once(weft, name):
    """In bf16 a composite computes in float32, so no cast to bf16 lies between its parts."""
    inputs = [torch.randn(4, 6).bfloat16() for _ in range(2)]
    assert weft.compare(FUNCTIONS[name], *inputs).fallbacks == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.shape[0] + x.shape[1],
        lambda x: x + torch.zeros(x.shape[0], x.shape[1]) + torch.arange(x.shape[1]),
        lambda x: x.sum(0).expand(x.shape[0], -1) * x,
        lambda x: x.view(x.shape[0], 1, x.shape[1]).mean(1),
        lambda x: x[:, 1:] - x[:, :-1],
    ],
)
def test_symbolic_sizes(weft, function):
    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft, dynamic=True)
    with torch.no_grad():
        for shape in ((4, 6), (5, 3)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), function(x), check_dtype=False)
    assert weft.only.fallbacks == ()


def test_integers_and_masks(weft):
    def function(i, j, m):
        return i + j * 2, i / j, torch.where(m, i, 0), i.sum(0), m.sum(), i * m, i > 1.5, i.float() ** 2

    i, j = torch.randint(1, 9, (2, 4, 6)).unbind()
    captured = weft.compare(function, i, j.to(torch.int32), i > 4)
    assert captured.fallbacks == ()
    wanted = [str(t.dtype).removeprefix("torch.") for t in function(i, j.to(torch.int32), i > 4)]
    values = captured.program.values()
    assert [values[o].dtype.name for o in captured.program.outputs] == wanted


def test_integers_become_floats_before_they_meet_them(weft):
    # C would divide integers into integers.
    i = torch.randint(1, 9, (4, 6))
    text = str(weft.compare(lambda i, j, x: i / j * x, i, i + 1, torch.randn(4, 6)).program)
    assert text.count("= semantic cast of ") == 2


def test_open_slices_stay_open(weft):
    captured = weft.compare(lambda x: x[1:] * 2, torch.randn(4, 6), dynamic=True)
    (derived,) = captured.program.derived
    assert (derived.start, derived.stop, derived.step) == (1, None, 1)


def test_comparison_is_with_the_number_that_eager_sees(weft):
    # 0.7 is no bfloat16: eager compares with the nearest one, which is below it.
    x = torch.tensor([0.7, 0.7], dtype=torch.bfloat16)
    assert weft.run(lambda x: x >= 0.7, x).tolist() == (x >= 0.7).tolist() == [True, True]


NUMBERS_OF_SIZES = {
    "sqrt": lambda x: x / math.sqrt(x.shape[-1]),
    "power": lambda x: x * x.shape[-1] ** -0.5,
    "root": lambda x: x / x.shape[-1] ** 0.5,
    "cube": lambda x: x + float(x.shape[0]) ** 3,
    "quotient": lambda x: x + x.shape[0] / x.shape[1],
    "sum": lambda x: x * (1.5 * x.shape[0] + x.shape[1] * 0.25 - 3),
    "inverse": lambda x: x * (1.0 / math.sqrt(x.shape[1])),
}


@pytest.mark.parametrize("name", NUMBERS_OF_SIZES)
def test_numbers_that_python_computes_from_sizes_are_sizes(weft, name):
    captured = weft.compare(NUMBERS_OF_SIZES[name], torch.randn(5, 7), dynamic=True)
    assert captured.fallbacks == ()
    assert "extent" in str(captured.program)


def test_other_functions_of_sizes_are_left_to_pytorch(weft):
    (fallback,) = weft.compare(lambda x: x * float(x.shape[-1] // 2), torch.randn(5, 7), dynamic=True).fallbacks
    assert "computed from sizes" in fallback.reason
