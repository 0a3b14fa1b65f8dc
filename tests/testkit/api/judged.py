"""Runs a compiled function beside eager and fp64 under the error rule."""

from __future__ import annotations

import copy

import torch
from torch import nn

import weft


def judged(fn, compiled, draws):
    """The judgement over all draws together, against fp64."""
    wide = copy.deepcopy(fn).double() if isinstance(fn, nn.Module) else fn
    with torch.no_grad():
        found = [(compiled(*draw), fn(*draw), wide(*(t.double() for t in draw))) for draw in draws]
    return weft.judge(*(weft.Draws(side) for side in zip(*found, strict=True)))
