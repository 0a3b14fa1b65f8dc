"""Calls into PyTorch that only look at elements cost nothing and are no fallbacks; those that copy are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft


class Block(nn.Module):
    """A transformer's: attention over heads, an MLP, LayerNorm before each."""

    def __init__(self, together):
        super().__init__()
        self.before, self.between = nn.LayerNorm(64), nn.LayerNorm(64)
        self.project = nn.ModuleList([nn.Linear(64, 192)] if together else [nn.Linear(64, 64) for _ in range(3)])
        self.out, self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        batch, length, width = x.shape
        made = [project(self.before(x)) for project in self.project]
        q, k, v = made if len(made) == 3 else made[0].chunk(3, -1)
        q, k, v = (each.view(batch, length, 4, 16).transpose(1, 2) for each in (q, k, v))
        heads = torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("together", [False, True])
def test_a_transformer_block_has_no_fallbacks(together):
    torch.manual_seed(0)
    torch.compiler.reset()
    block, x = Block(together), torch.randn(2, 16, 64)
    before = weft.stats().fallbacks
    program = weft.optimize(block, (x,))
    with torch.no_grad():
        torch.testing.assert_close(program(x), block(x))
    assert program.fallbacks == ()
    assert weft.stats().fallbacks == before
    assert "views that PyTorch makes, without a copy" not in dict(program.explain().sections)


def split_keys(x, w, k, v):
    """Heads of keys and values, which are views of arguments, are on regions of their own, without kernels."""
    q, k, v = (each.view(2, 16, 4, 16).transpose(1, 2) for each in (x @ w, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 16, 64)


def test_a_report_counts_no_regions_that_are_only_views():
    program = weft.optimize(
        split_keys, (*(torch.randn(shape) for shape in ((2, 16, 64), (64, 64))), *torch.randn(2, 2, 16, 64))
    )
    assert [len(region.kernels) for region in program.plans[0].regions].count(0) > 0
    sections = dict(program.explain().sections)
    assert sections["summary"].startswith("2 kernels for 2 regions on ")
    named = [line for line in sections["summary"].splitlines() if line.startswith("region ")]
    assert [line.partition(" (")[0] for line in named] == ["region 1", "region 2"]
    assert all(line.partition("): ")[2] for line in named)
    assert "candidates of region 2" in sections
    assert "candidates of region 3" not in sections
    views = [line for line in sections["fusion scheme"].splitlines() if "(k_0)" in line or "(v_0)" in line]
    assert len(views) == 2
    assert all(line.endswith("which is not launched: a view of memory that is there") for line in views)


def turned(x):
    return torch.exp(x.reshape(-1))


def sliced(x):
    return torch.exp((x * 2)[:, 1:].reshape(-1))


def beside(x):
    return torch.exp(x.t().reshape(8, 3))  # neither of 4 and 3 divides the other


@pytest.mark.parametrize(("fn", "x"), [(turned, torch.randn(6, 4).t()), (sliced, torch.randn(4, 6))])
def test_a_reshape_that_copies_in_eager_is_written_by_the_kernel_that_reads_it(fn, x):
    torch.compiler.reset()
    program = weft.optimize(fn, (x,))
    torch.testing.assert_close(program(x), fn(x))
    assert program.fallbacks == ()
    assert len(program.kernels) == 1


def test_where_shapes_share_no_digits_a_kernel_copies_what_eager_copies():
    torch.compiler.reset()
    x = torch.randn(4, 6)
    program = weft.optimize(beside, (x,))
    torch.testing.assert_close(program(x), beside(x))
    assert program.fallbacks == ()
    assert len(program.kernels) == 2


@pytest.mark.parametrize(
    "fn", [lambda x: (x.T, x * 2), lambda x: (x[1:], x.view(-1), x + 1), lambda x: torch.exp(x.view(2, 2, 6))]
)
def test_views_that_go_out_are_none(fn):
    torch.compiler.reset()
    x = torch.randn(4, 6)
    program = weft.optimize(fn, (x,))
    torch.testing.assert_close(program(x), fn(x))
    assert program.fallbacks == ()
