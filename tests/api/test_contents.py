"""Numbers that only the content of tensors tells (`item`, `nonzero`), traced as symbols: calls with them are PyTorch's, no more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo import config

import weft
from weft.api import backend
from weft.errors import ProgramFileError
from weft.plan import Plan


@pytest.fixture(autouse=True)
def _traced():
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield
    torch.compiler.reset()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made of the graphs."""
    made: list[Plan] = []
    compile_graph = backend.compile_graph

    def noted(*args, **kwargs):
        made.append(compile_graph(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(backend, "compile_graph", noted)
    return made


def first_rows(x: Tensor, mask: Tensor):
    n = mask.sum().item()
    return torch.softmax(x, -1), x[:n] * 2, n


def checked_rows(x: Tensor, mask: Tensor):
    n = int(mask.sum())
    torch._check(n <= x.shape[0])
    return torch.softmax(x[:n], -1), torch.arange(n) + 1, torch.zeros(n, 3) + x[0, 0], x * n


def found_rows(x: Tensor, mask: Tensor):
    places = mask.nonzero()
    return torch.exp(x[places[:, 0]]), places, places.shape[0] * 2, places * 3


def chosen_rows(x: Tensor, mask: Tensor):
    rows = x[mask]
    return rows.sum(-1), torch.softmax(rows, -1) @ x[: rows.shape[1]], rows.reshape(-1)


def scaled(x: Tensor, mask: Tensor):
    scale, some = x.abs().sum().item(), mask.any().item()
    return x * scale, torch.full_like(mask, some), torch.full_like(x, scale)


def written_between(x: Tensor, mask: Tensor):
    """The numbers are those of before."""
    count, total = int(mask.sum()), x.sum().item()
    x = x + 0
    mask = mask.logical_not()
    x.mul_(2)
    return x * total, mask, torch.ones(count, 2) * 3, count, total


def counted(x: Tensor, mask: Tensor):
    kept = mask.long()
    kept.add_(1)
    before = kept.sum().item()
    kept.mul_(2)
    return x * before, kept.sum().item(), before


def strides(tensor: Tensor) -> list[int]:
    """Those that say anything."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


FUNCTIONS = [first_rows, checked_rows, found_rows, chosen_rows, scaled, written_between, counted]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_only_what_needs_the_number_is_pytorchs(function, plans: list[Plan]) -> None:
    """For as many as there are: none, one, some, all."""
    fast = weft.compile(function, measure="never")
    for count in (5, 0, 1, 12):
        x, mask = torch.randn(12, 4), torch.arange(12) < count
        with torch.no_grad():
            found, wanted = fast(x.clone(), mask.clone()), function(x.clone(), mask.clone())
        for mine, eager in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
            assert not isinstance(eager, Tensor) or strides(mine) == strides(eager)
    assert all(plan.kernels and plan.captured.program is not None for plan in plans)
    asked = ("aten.softmax", "aten.exp", "aten.add", "aten.mul", "aten.sum")
    assert not [f for plan in plans for f in plan.fallbacks if f.operation in asked]


def test_what_is_demanded_of_a_number_is_so_at_each_call() -> None:
    def function(x: Tensor, mask: Tensor):
        n = mask.sum().item()
        torch._check(n != 3, lambda: "three is too many")
        return x * n

    fast = weft.compile(function, measure="never")
    x = torch.randn(12, 4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, torch.arange(12) < 5), x * 5)
        with pytest.raises(RuntimeError, match="three is too many"):
            fast(x, torch.arange(12) < 3)
        torch.testing.assert_close(fast(x, torch.arange(12) < 4), x * 4)


def test_a_call_that_gives_nothing_is_made() -> None:
    heard: list[float] = []

    @torch.library.custom_op("weft_tests::hear", mutates_args=())
    def hear(x: Tensor) -> None:
        heard.append(float(x.sum()))

    hear.register_fake(lambda x: None)

    def function(x: Tensor) -> Tensor:
        y = torch.exp(x)
        torch.ops.weft_tests.hear(y)
        torch.ops.aten._assert_async.msg((x < 2).all(), "too large")
        return y * 2

    fast = weft.compile(function, measure="never")
    with torch.no_grad():
        torch.testing.assert_close(fast(torch.zeros(4)), torch.full((4,), 2.0))
        assert heard == [4.0]
        fast(torch.zeros(4))
        assert heard == [4.0, 4.0]
        with pytest.raises(RuntimeError, match="too large"):
            fast(torch.full((4,), 3.0))


@pytest.mark.parametrize("function", [first_rows, found_rows], ids=lambda f: f.__name__)
def test_graphs_for_a_gpu_have_kernels(function) -> None:
    inputs = torch.randn(12, 4), torch.arange(12) < 5
    with torch.no_grad():
        program = weft.optimize(function, inputs, target="cuda:90", effort="none")
    assert program.kernels
    assert all(kernel.binary for kernel in program.kernels)


def test_a_saved_program_reads_the_number_too(tmp_path) -> None:
    x, mask = torch.randn(12, 4), torch.arange(12) < 5
    with torch.no_grad():
        program = weft.optimize(lambda x, mask: first_rows(x, mask)[:2], (x, mask))
        program.save(tmp_path / "rows.weft")
        loaded = weft.load(tmp_path / "rows.weft")
        for count in (5, 7):
            mask = torch.arange(12) < count
            for mine, eager in zip(loaded(x, mask), first_rows(x, mask), strict=False):
                torch.testing.assert_close(mine, eager)
        program = weft.optimize(first_rows, (x, mask))
        assert program(x, torch.arange(12) < 3)[2] == 3
        with pytest.raises(ProgramFileError, match="reads from a tensor"):
            program.save(tmp_path / "number.weft")


def test_random_numbers_that_nothing_reads_are_drawn() -> None:
    def function(x: Tensor) -> Tensor:
        torch.rand(5)
        return torch.rand(5) + x

    fast, drawn = weft.compile(function, measure="never"), []
    for each in (fast, function):
        torch.manual_seed(0)
        drawn.append(each(torch.zeros(5)))
    assert torch.equal(*drawn)
