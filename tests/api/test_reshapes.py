"""Reshapes end to end: kernels that read through them, at any size; memory is shared, or not, as in eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from testkit.api.judged import judged


class Attention(nn.Module):
    """Attention whose heads are written as models write them."""

    def __init__(self, spelling):
        super().__init__()
        self.project, self.out, self.spelling = nn.Linear(64, 192), nn.Linear(64, 64), spelling

    def forward(self, x):
        batch, length, width = x.shape
        rows = self.project(x.reshape(-1, width)) if self.spelling == "rows" else self.project(x)
        q, k, v = (each.reshape(batch, length, 4, 16).transpose(1, 2) for each in rows.chunk(3, -1))
        heads = torch.softmax(q @ k.mT / 4, -1) @ v
        match self.spelling:
            case "reshape":
                merged = heads.transpose(1, 2).reshape(batch, length, -1)
            case "contiguous":
                merged = heads.transpose(1, 2).contiguous().view(batch, length, width)
            case "flatten":
                merged = heads.transpose(1, 2).flatten(2)
            case _:
                merged = heads.permute(0, 2, 1, 3).reshape(-1, width)
        return self.out(merged).view(batch, length, width)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("spelling", ["reshape", "contiguous", "flatten", "rows"])
def test_heads_cost_no_call_and_no_copy(spelling):
    torch.manual_seed(0)
    torch.compiler.reset()
    module = Attention(spelling)
    draws = [(torch.randn(2, 24, 64),) for _ in range(4)]
    with torch.no_grad():
        program = weft.optimize(module, draws[0])
        judgement = judged(module, program, draws)
    assert judgement.ok, str(judgement)
    assert program.fallbacks == ()
    assert not any(plan.captured.views for plan in program.plans)
    assert len(program.kernels) <= 3


def test_one_set_of_kernels_serves_other_sizes():
    torch.manual_seed(0)
    torch.compiler.reset()
    module = Attention("rows")
    compiled = weft.compile(module, dynamic=True)
    with torch.no_grad():
        for batch, length in ((2, 24), (3, 17), (5, 2), (1, 9), (4, 1)):
            x = torch.randn(batch, length, 64)
            weft.judge(compiled(x), module(x), module.double()(x.double())).check()
            module.float()


@pytest.mark.parametrize("rows", [6, 4, 1, 0])
def test_no_rows_and_one(rows):
    compiled = weft.compile(lambda x: torch.exp(x.view(-1, 2, 4)).flatten(1).sum(1), dynamic=True)
    for count in (3, rows):
        x = torch.randn(count, 8)
        torch.testing.assert_close(compiled(x), x.exp().sum(1))


VIEWS = {
    "view": lambda x: x.view(2, 3, 2, 4),
    "reshape": lambda x: x.reshape(6, 2, 4),
    "flatten": torch.flatten,
    "unflatten": lambda x: x.unflatten(1, (4, 2)),
    "of a part": lambda x: x[1:5].view(2, 2, 8),
    "of what is turned": lambda x: x.t().unflatten(0, (2, 4)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_input_that_goes_out_is_its_memory(name):
    torch.compiler.reset()
    x = torch.randn(6, 8)
    view, sums = weft.compile(lambda x: (VIEWS[name](x), VIEWS[name](x).exp().sum(-1)))(x)
    torch.testing.assert_close(sums, VIEWS[name](x).exp().sum(-1))
    assert (view.shape, view.stride()) == (VIEWS[name](x).shape, VIEWS[name](x).stride())
    view.fill_(3.0)
    assert torch.equal(VIEWS[name](x), torch.full_like(view, 3.0))


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_through_a_view_is_there_afterwards(name):
    torch.compiler.reset()
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    wanted = x.clone()

    def write(x, y):
        VIEWS[name](x).mul_(VIEWS[name](y).exp())
        return x.sum(0)

    found = weft.compile(write)(x, y)
    torch.testing.assert_close(found, write(wanted, y))
    torch.testing.assert_close(x, wanted)


def test_what_eager_copies_is_apart():
    torch.compiler.reset()
    x = torch.randn(6, 8)
    before = x.clone()
    one, other = weft.compile(lambda x: (x.t().reshape(-1), (x + 1).t().reshape(2, 4, 6)))(x)
    wanted = (x + 1).t().reshape(2, 4, 6)
    torch.testing.assert_close(other, wanted)
    assert (one.stride(), other.stride()) == ((1,), wanted.stride())
    one.zero_()
    other.zero_()
    assert torch.equal(x, before)


def test_results_of_one_memory_share_it_and_others_do_not():
    torch.compiler.reset()
    x = torch.randn(6, 8)

    def function(x):
        y = x.exp()
        return y, y.view(6, 2, 4), y.reshape(-1) * 2, y.t().reshape(48)

    y, view, twice, copied = weft.compile(function)(x)
    for found, wanted in zip((y, view, twice, copied), function(x), strict=True):
        torch.testing.assert_close(found, wanted)
    view.zero_()
    assert not y.any()
    assert twice.all()
    assert copied.all()


def name_of(value):
    """Tell the same in each process of a test run."""
    return getattr(value, "__name__", str(value))


def in_one_kernel(function, draws):
    """Return the program of a function that one kernel computes, right by all draws."""
    program = weft.optimize(function, draws[0])
    judgement = judged(function, program, draws)
    assert judgement.ok, str(judgement)
    assert program.fallbacks == ()
    (kernel,) = program.kernels
    assert kernel.verdict.equal is True
    return program


def halves(x, cos, sin):
    n = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., n:], x[..., :n]), -1) * sin


def pairs(x, cos, sin):
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


@pytest.mark.parametrize(
    ("turn", "dtype"), [(halves, torch.float32), (halves, torch.bfloat16), (pairs, torch.float32)], ids=name_of
)
def test_turned_pairs_are_one_kernel(turn, dtype):
    torch.manual_seed(0)
    torch.compiler.reset()
    draws = [(torch.randn(2, 3, 24, 32), torch.randn(24, 32), torch.randn(24, 32)) for _ in range(4)]
    draws = [tuple(t.to(dtype) for t in draw) for draw in draws]
    in_one_kernel(turn, draws)


def test_turned_pairs_of_a_projection_need_no_call():
    torch.manual_seed(0)
    torch.compiler.reset()
    weight = torch.randn(64, 64)

    def attend(x, cos, sin):
        q, k = ((x @ weight).view(2, 24, 2, 32).transpose(1, 2) for _ in range(2))
        return torch.softmax(halves(q, cos, sin) @ halves(k, cos, sin).mT / 6, -1)

    draws = [(torch.randn(2, 24, 64) / 8, torch.randn(24, 32), torch.randn(24, 32)) for _ in range(4)]
    program = weft.optimize(attend, draws[0])
    found = [(program(*draw), attend(*draw)) for draw in draws]
    for ours, theirs in found:
        torch.testing.assert_close(ours, theirs)
    assert program.fallbacks == ()


def patches(x):
    """Cut pictures into patches of 4 by 4."""
    b, c, h, w = x.shape
    return x.sigmoid().reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, 16 * c)


def pictures(x):
    """Put patches of 4 by 4 together again."""
    return x.sigmoid().reshape(-1, 2, 3, 4, 4, 3).permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, 8, 12)


@pytest.mark.parametrize(("function", "shape"), [(patches, (5, 3, 8, 12)), (pictures, (5, 6, 48))], ids=name_of)
def test_what_a_reshape_copies_is_made_where_eager_puts_it(function, shape):
    """Two dimensions are split, and merged otherwise: one kernel reads and writes each element once."""
    torch.compiler.reset()
    draws = [(torch.randn(shape),) for _ in range(4)]
    program = in_one_kernel(function, draws)
    assert program(*draws[0]).stride() == function(*draws[0]).stride()


def test_pytorch_reads_two_dimensions_that_are_split():
    torch.compiler.reset()

    def function(x):
        y = x.exp()
        return y.reshape(-1, 2, 3, 4, 4, 3).sort(3).values, y

    x = torch.randn(5, 6, 48)
    program = weft.optimize(function, (x,))
    for found, wanted in zip(program(x), function(x), strict=True):
        torch.testing.assert_close(found, wanted)
    assert len(program.kernels) == 1
