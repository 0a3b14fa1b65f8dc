"""Attention under a mask given as a tensor."""

from __future__ import annotations

import math

import torch


def masked(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1) @ v
