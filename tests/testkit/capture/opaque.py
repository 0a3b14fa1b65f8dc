"""Operations of another library, of which weft knows nothing: each does what an ordinary operation does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("weft_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    """Half of each element."""
    return x / 2


@custom_op("weft_tests::both", mutates_args=())
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sines, and the sums of the rows."""
    return torch.sin(x), x.sum(-1, keepdim=True)


@custom_op("weft_tests::listed", mutates_args=())
def listed(x: Tensor) -> list[Tensor]:
    """Two of it."""
    return [x + 1, x - 1]


@custom_op("weft_tests::raise_by", mutates_args=("x",))
def raise_by(x: Tensor, by: Tensor) -> None:
    """Adds to it in place."""
    x.add_(by)


@custom_op("weft_tests::swing", mutates_args=("x", "y"))
def swing(x: Tensor, by: float, y: Tensor) -> Tensor:
    """Changes two tensors, and gives their sum."""
    x.mul_(by)
    y.sub_(by)
    return x + y


@custom_op("weft_tests::strides_of", mutates_args=())
def strides_of(x: Tensor) -> Tensor:
    """The strides of what it is handed."""
    return torch.tensor(x.stride())


@custom_op("weft_tests::write_and_give_strides", mutates_args=("x",))
def write_and_give_strides(x: Tensor) -> Tensor:
    """Adds 1 in place, and gives the strides of what it is handed."""
    x.add_(1)
    return torch.tensor(x.stride())


@strides_of.register_fake
@write_and_give_strides.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.ndim, dtype=torch.int64)


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@both.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1))


@listed.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


@raise_by.register_fake
def _(x: Tensor, by: Tensor) -> None:
    pass


@swing.register_fake
def _(x: Tensor, by: float, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def _two(x: Tensor) -> Tensor:
    sines, sums = both(x)
    return sines + sums


def _list(x: Tensor) -> Tensor:
    first, second = listed(x)
    return first * second


def _in_place(x: Tensor) -> Tensor:
    y = x * 1
    raise_by(y, x)
    return y


def _a_part_in_place(x: Tensor) -> Tensor:
    y = x * 1
    raise_by(y[1:3], x[:2])
    return y


def _two_in_place(x: Tensor) -> Tensor:
    y, z = x * 1, x + 1
    return swing(y, 0.5, z[:, :]) + y * z


def a_view(x: Tensor) -> Tensor:
    """Returns something that is read by strides."""
    return torch.as_strided(x, x.shape, x.stride()) + torch.as_strided(x[1:], (1, 1), (1, 1), 3)


def _out(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype)
    torch.sin(x, out=y)
    return y


def _several_lists(x: Tensor) -> Tensor:
    x, y = x * 1, x + 1
    torch.ops.aten._foreach_add_.Scalar([x, y], 1.0)
    return x * y


def _branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


OPAQUE = (halved, _two, _list, _in_place, _a_part_in_place, _two_in_place, a_view, _out, _several_lists, _branches)
"""Functions of a matrix, each with an operation that weft does not know."""
UNKNOWN = frozenset(
    {
        *(f"weft_tests.{name}" for name in ("halved", "both", "listed", "raise_by", "swing")),
        *("aten.as_strided", "aten.empty", "aten.sin", "aten._foreach_add_", "cond"),
    }
)
"""The names of those operations."""
