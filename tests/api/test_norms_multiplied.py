"""Products of rows that were divided by their own sizes, whatever these are: what the sizes are of stays in range."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.verify.judge import Draws, reference

SCALES = (1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e18, 1e19, 1e30)


def by_hand(x, y):
    return (x / x.norm(dim=-1, keepdim=True)) @ (y * torch.rsqrt((y * y).sum(-1, keepdim=True))).mT


def twice_the_same(x, y):
    n = F.rms_norm(x, x.shape[-1:]) * 3
    return n @ n.mT


PRODUCTS = {
    "lengths": lambda x, y: F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT,
    "means of squares": lambda x, y: F.rms_norm(x, x.shape[-1:]) @ F.rms_norm(y, y.shape[-1:]).mT,
    "by hand": by_hand,
    "of a tensor with itself": twice_the_same,
    "one before, one after": lambda x, y: (x @ F.normalize(y, dim=-1).mT) / x.norm(dim=-1, keepdim=True),
    "one only": lambda x, y: F.normalize(x, dim=-1) @ x.mT,
    "columns": lambda x, y: F.normalize(x, dim=0).mT @ F.normalize(x.abs(), dim=0),
    "of all": lambda x, y: (x / x.norm()) @ (y / y.abs().amax()).mT,
    "scores": lambda x, y: torch.softmax(F.rms_norm(x, x.shape[-1:]) @ F.rms_norm(y, y.shape[-1:]).mT, -1) @ y.sign(),
    "with weights": lambda x, y: F.rms_norm(x, x.shape[-1:]) @ y.sign().mT,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("shapes", [((40, 24), (33, 24)), ((2, 7, 96), (2, 50, 96))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_of_any_size(name, dtype, shapes):
    fn = PRODUCTS[name]
    draws = [[torch.randn(s, generator=torch.Generator().manual_seed(i)).to(dtype) for s in shapes] for i in range(4)]
    program = weft.optimize(fn, tuple(draws[0]))
    assert program.kernels
    for scale in SCALES:
        given = [[(t.double() * scale).to(dtype) for t in draw] for draw in draws]
        found, eager = (Draws([f(*g) for g in given]) for f in (program, fn))
        judgement = weft.judge(found, eager, Draws([reference(fn, tuple(g)) for g in given]))
        assert judgement.ok, f"{scale}: {judgement}"
