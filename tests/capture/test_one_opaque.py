"""Any one operation of a graph made one that weft does not know: the others stay weft's, and the result is right."""

from __future__ import annotations

import random

import pytest
import torch

import weft as public
from testkit.capture.opaque import OPAQUE, UNKNOWN, a_view

_ONE = (torch.exp, torch.tanh, torch.sigmoid, lambda x: torch.softmax(x, -1), lambda x: x - x.mean(0, keepdim=True))
_TWO = (
    torch.add,
    torch.mul,
    torch.maximum,
    lambda x, y: torch.softmax(x @ y.T, -1) @ x,
    lambda x, y: x.abs() + y.sum(0),
)


def drawn(seed, place, opaque):
    """A function of random operations on what was computed before, number `place` of which is `opaque`."""
    choice = random.Random(seed)
    steps = [(choice.random() < 0.5, choice.random(), choice.random(), choice.random()) for _ in range(6)]

    def function(x, y):
        made = [x, y]
        for number, (one, which, first, second) in enumerate(steps):
            a, b = (made[-1 - int(len(made) * part * part)] for part in (first, second))
            if number == place:
                made.append(opaque(a))
            elif one:
                made.append(_ONE[int(which * len(_ONE))](torch.tanh(a)))
            else:
                made.append(_TWO[int(which * len(_TWO))](torch.tanh(a), b))
        return made[-1], made[-2], made[place + 2]

    return function


# The evaluator of these tests hands on copies: what is read by strides is only tried with kernels.
_ANYWHERE = tuple(opaque for opaque in OPAQUE if opaque is not a_view)


@pytest.mark.parametrize("seed", range(len(_ANYWHERE) * 3))
def test_the_others_stay(weft, seed):
    torch.manual_seed(seed)
    opaque, place = _ANYWHERE[seed % len(_ANYWHERE)], seed % 6
    captured = weft.compare(drawn(seed, place, opaque), torch.randn(4, 6), torch.randn(4, 6))
    left = {fallback.operation for fallback in captured.fallbacks}
    assert left
    assert left <= UNKNOWN, captured.fallbacks


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(len(OPAQUE)))
def test_the_others_have_kernels(seed):
    torch.manual_seed(seed)
    function = drawn(seed, 3, OPAQUE[seed])
    given = torch.randn(4, 6), torch.randn(4, 6)
    program = public.optimize(function, given)
    assert {fallback.operation for fallback in program.fallbacks} <= UNKNOWN
    assert program.kernels
    torch.testing.assert_close(program(*given), function(*given), rtol=1e-4, atol=1e-4)
