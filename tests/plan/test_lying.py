"""How tensors lie: strides of another size that are of one class with these, and tensors that lie as others do."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from weft.plan.execute import region_text
from weft.plan.targets.lying import DIVISIBLE, Lying, as_lies, dense, laid_out
from weft.tensor.axes import Affine, Axis, Space
from weft.tensor.laws import View


def classes(strides: tuple[int, ...]) -> list[tuple[bool, bool]]:
    """Tell for each stride what Triton compiles for."""
    return [(stride == 1, stride % DIVISIBLE == 0) for stride in strides]


def places(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.arange(reach).as_strided(shape, strides).flatten().tolist()


def test_strides_of_another_size_are_of_the_same_class() -> None:
    rng = random.Random(0)
    for _ in range(300):
        ndim = rng.randint(1, 4)
        shape = tuple(rng.choice((2, 3, 8, 16, 33)) for _ in range(ndim))
        whole = tuple(n * rng.choice((1, 1, 2, 3)) for n in shape)
        step = rng.choice((1, 1, 2, 16))
        order = rng.sample(range(ndim), ndim)
        strides = [0] * ndim
        for dim in order:
            strides[dim] = step
            step *= whole[dim]
        strides[rng.randrange(ndim)] *= rng.choice((0, 1, 1, 1))
        example = Lying(tuple(strides))
        assert not example.repeats(shape)
        other = tuple(rng.randint(2, 7) for _ in range(ndim))
        found = as_lies(other, example.strides)
        assert classes(found) == classes(example.strides), (shape, strides, other, found)
        assert len(set(places(other, found))) == torch.Size(other).numel(), (other, found)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1)])
def test_tensors_of_few_elements_lie_somewhere(shape: tuple[int, ...]) -> None:
    found = as_lies(shape, dense(shape))
    assert len(found) == len(shape)
    assert torch.equal(laid_out(torch.ones(shape), Lying(found, 4)), torch.ones(shape))


def test_windows_repeat_elements_and_expanded_tensors_do_not() -> None:
    x = torch.zeros(32)
    windows, rows, one = Lying.of(x.unfold(0, 4, 1)), Lying.of(x.expand(4, 32)), Lying.of(x[::3])
    assert windows is not None
    assert rows is not None
    assert one is not None
    assert windows.repeats((29, 4))
    assert not windows.repeats((29, 1))
    assert not rows.repeats((4, 32))
    assert not one.repeats((11,))
    assert Lying.of(torch.eye(3).to_sparse()) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_tensor_is_laid_out_as_another_one_lies(dtype: torch.dtype) -> None:
    x = torch.randn(6, 8, 10).to(dtype)
    for like in (x, x[:, ::2], x.permute(2, 0, 1), x[1:, 1:, 1:], x[:, :, 3], x[0, 0].expand(4, 10), x[:, :0]):
        lies = Lying.of(like)
        assert lies is not None
        made = (torch.rand(like.shape) * 9).to(dtype)
        found = laid_out(made, lies)
        assert Lying.of(found) == lies
        once = tuple(
            slice(0, 1) if not stride and size else slice(None)
            for stride, size in zip(lies.strides, like.shape, strict=True)
        )
        assert torch.equal(found, made[once].expand(like.shape))


def test_what_lies_so_already_is_not_copied() -> None:
    x = torch.randn(4, 6)
    assert laid_out(x, Lying((6, 1))) is x


def seen(view: View, x: torch.Tensor, shape: tuple[int, ...]) -> tuple[torch.Tensor, Lying]:
    """The view as a plan makes it, and how it is said to lie."""
    lies = Lying.of(x)
    assert lies is not None
    return region_text._flipped(view, x, shape), lies.viewed(view, x.shape, x.element_size())


M, N = (Axis(name, Space(name.upper())) for name in "mn")
VIEWS: dict[str, tuple[tuple[Axis, ...], tuple[Affine, ...], tuple[int, ...]]] = {
    "a column": ((M,), (Affine.of(M), Affine((), 3)), (6,)),
    "the last row": ((N,), (Affine((), 0, from_end=True), Affine.of(N)), (10,)),
    "turned": ((N, M), (Affine.of(M), Affine.of(N)), (10, 6)),
    "every second one from 1": ((M, N), (Affine.of(M), Affine(((N, 2),), 1)), (6, 5)),
    "backwards": ((M, N), (Affine.of(M), Affine(((N, -1),), 0, from_end=True)), (6, 10)),
    "a diagonal": ((M,), (Affine.of(M), Affine.of(M)), (6,)),
    "a part backwards": ((M, N), (Affine(((M, -1),), 4), Affine(((N, 1),), 2)), (5, 8)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_view_lies_as_the_plan_makes_it(name: str, dtype: Any) -> None:
    axes, index, shape = VIEWS[name]
    for x in (
        torch.zeros(6, 10, dtype=dtype),
        torch.zeros(10, 6, dtype=dtype).T,
        torch.zeros(61, dtype=dtype)[1:].view(6, 10),
    ):
        made, lies = seen(View("v", "x", axes, (0, 1), index), x, shape)
        assert Lying.of(made) == lies
