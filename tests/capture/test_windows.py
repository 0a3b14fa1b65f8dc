"""Padding and rolling: an element is read at a place that follows from its number, or is none."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import weft

WINDOWS = {
    "zeros": (lambda x: functional.pad(x, (2, 1)).exp(), (3, 4)),
    "zeros on two sides": (lambda x: functional.pad(x, (2, 1, 0, 3)) * 2, (3, 4)),
    "a number": (lambda x: functional.pad(x, (2, 1), value=1.5) * 2, (3, 4)),
    "a number on two sides": (lambda x: functional.pad(x, (2, 1, 1, 0), value=-3.0) * 2, (3, 4)),
    "the least": (lambda x: functional.pad(x, (2, 1), value=float("-inf")).softmax(-1), (3, 4)),
    "before": (lambda x: functional.pad(x, (3, 0)).cumsum(-1)[:, 1:] * 2, (3, 4)),
    "cut off": (lambda x: functional.pad(x, (-1, 2)) * 2, (3, 4)),
    "cut off at the end": (lambda x: functional.pad(x, (1, -2), value=2.0) * 2, (3, 5)),
    "only cut off": (lambda x: functional.pad(x, (-1, -1)) * 2, (3, 5)),
    "of one element": (lambda x: functional.pad(x, (2, 1), value=2.0) * 2, (3, 1)),
    "of computed": (lambda x: functional.pad(x.exp() + 1, (2, 1)).sum(-1), (3, 4)),
    "of padded": (lambda x: functional.pad(functional.pad(x, (2, 1)).cos(), (1, 2), value=3.0) * 2, (3, 4)),
    "of a product": (lambda x: functional.pad(x @ x.mT, (2, 1)).softmax(-1), (3, 4)),
    "reflected": (lambda x: functional.pad(x, (2, 1), mode="reflect") * 2, (2, 3, 4)),
    "reflected in planes": (lambda x: functional.pad(x, (2, 1, 1, 0), mode="reflect") * 2, (2, 3, 4, 5)),
    "repeated": (lambda x: functional.pad(x, (2, 5), mode="replicate") * 2, (2, 3, 4)),
    "around": (lambda x: functional.pad(x, (2, 4), mode="circular") * 2, (2, 3, 4)),
    "rolled": (lambda x: torch.roll(x, 1, 0) * 2, (5, 4)),
    "rolled both ways": (lambda x: torch.roll(x, (2, -3), (0, 1)) * 2, (5, 7)),
    "rolled far": (lambda x: torch.roll(x, 12, -1) * 2, (5, 7)),
    "rolled back": (lambda x: torch.roll(torch.roll(x, 2, 1).exp(), -2, 1) * 2, (5, 7)),
    "shifted windows": (
        lambda x: torch.roll(x, (-1, -1), (1, 2)).view(2, 2, 2, 2, 2, 3).transpose(2, 3).reshape(8, 4, 3).softmax(1),
        (2, 4, 4, 3),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_read_where_they_are(weft, name, dynamic):
    function, *shapes = WINDOWS[name]
    captured = weft.compare(function, *(torch.randn(shape) for shape in shapes), dynamic=dynamic)
    left = {f.operation for f in captured.fallbacks}
    assert left <= {"aten.cumsum", "aten.reshape", "aten.view"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_types(weft, dtype):
    x = torch.randint(0, 2, (3, 4)).to(dtype)
    captured = weft.compare(lambda x: (functional.pad(x, (1, 2), value=1), torch.roll(x, 1, 1)), x)
    assert captured.fallbacks == ()


def test_what_is_beside_nan_is_padding(weft):
    x = torch.tensor([[torch.nan, torch.inf, -0.0]])
    found = weft.run(lambda x: functional.pad(x, (1, 1)) * 1.0, x)
    torch.testing.assert_close(found, functional.pad(x, (1, 1)), equal_nan=True, check_dtype=False)


def test_what_stays_pytorchs(weft):
    assert [f.operation for f in weft.compare(lambda x: torch.roll(x, 3) * 2, torch.randn(3, 4)).fallbacks] == [
        "aten.roll"
    ]


@pytest.mark.parametrize(("dim", "size"), [(-1, 4), (1, 3), (0, 2), (-1, 1)])
def test_windows_side_by_side_are_a_reshape(dim: int, size: int) -> None:
    """Also where some elements at the end are in none."""
    x = torch.randn(5, 7, 9)
    program = weft.optimize(lambda t: torch.tanh(t).unfold(dim, size, size).sum(-1), (x,))
    assert not program.fallbacks
    torch.testing.assert_close(program(x), torch.tanh(x.unfold(dim, size, size)).sum(-1))


def test_a_call_that_is_compiled_for_other_arguments_says_so() -> None:
    (left,) = weft.optimize(lambda t: torch.tanh((t * 2).unfold(-1, 3, 1)), (torch.randn(5, 9),)).fallbacks
    assert left.reason == "weft compiles aten.unfold for some arguments, not for these"
