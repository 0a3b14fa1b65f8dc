"""Memory that a loop calls otherwise than the program does is counted as the program's."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

import weft


def test_an_argument_of_a_name_that_a_reduction_uses_is_priced():
    def padded(a2):  # sums call what they add up "a" and "a2"
        return pad(a2, (1, 0), value=-2.0).sum(1, keepdim=True)

    x = torch.randn(1, 2)
    with weft.options(measure="never", defects="raise"):
        program = weft.optimize(padded, (x,))
    torch.testing.assert_close(program(x), padded(x))
    assert len(program.kernels) == 1
