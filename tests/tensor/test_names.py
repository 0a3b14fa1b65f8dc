"""Names of axes: different ones have different names, however many there are."""

from __future__ import annotations

import torch

import weft
from weft.tensor.axes import Space
from weft.tensor.builder.name import axis_of, space_name


def test_no_two_axes_have_one_name() -> None:
    names = [axis_of(Space(space_name(i)), n).name for i in range(150) for n in range(30)]
    assert len(set(names)) == len(names)


def test_views_of_a_program_with_many_sizes() -> None:
    """Has more than twenty sizes: the eleventh axis of one and the first of another were one to what makes the view."""

    def parts(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *rest, last = tensors
        made = [torch.relu(t) for t in rest]
        return *made, (last * 2).view(*last.shape[:2], -1, 2)[:, -3:].transpose(1, 2)

    given = (*(torch.randn(n) for n in range(3, 28)), torch.randn(4, 29, 62))
    program = weft.optimize(parts, given, dynamic=True)
    for found, wanted in zip(program(*given), parts(*given), strict=True):
        torch.testing.assert_close(found, wanted)
