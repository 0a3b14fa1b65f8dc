"""A third target, from a folder of its own and a line in the list: the whole way from PyTorch to kernels that are judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import weft
from testkit.numpy_target import NumPy
from weft.errors import ProgramFileError, TargetError, WrongKernelError
from weft.plan import targets


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "TOOLCHAINS", [*targets.TOOLCHAINS, NumPy])


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.layer_norm(x, (x.shape[-1],)) @ w)


def first(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.topk(x, 3, -1))


def cases() -> Iterator[tuple[Callable[..., object], tuple[torch.Tensor, ...]]]:
    yield attention, tuple(torch.randn(2, 3, 40, 16) for _ in range(3))
    yield layer, (torch.randn(30, 40), torch.randn(40, 50))
    yield first, (torch.randn(9, 50),)


@pytest.mark.parametrize("number", range(3))
def test_functions_run_as_kernels_of_the_target(number: int) -> None:
    function, inputs = list(cases())[number]
    program = weft.optimize(function, inputs, target="numpy", judge="always", defects="raise")
    assert program.fallbacks == ()
    assert {str(kernel.target) for kernel in program.kernels} == {"numpy"}
    assert all("import numpy" in kernel.source for kernel in program.kernels)
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}
    found, wanted = program(*inputs), function(*inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_wrong_kernel_of_the_target_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = NumPy.build.__globals__["emit"]
    monkeypatch.setitem(
        NumPy.build.__globals__, "emit", lambda *a: emit(*a).replace('row("maximum")', 'row("minimum")')
    )
    inputs = torch.randn(30, 40), torch.randn(40, 50)
    with pytest.raises(WrongKernelError, match="wrong on hard inputs"):
        weft.optimize(layer, inputs, target="numpy", judge="always", defects="raise")


def test_what_the_target_does_not_say_has_a_default(tmp_path: Path) -> None:
    program = weft.optimize(layer, (torch.randn(8, 8), torch.randn(8, 8)), target="numpy")
    with pytest.raises(ProgramFileError, match="kernels for numpy cannot be saved"):
        program.save(tmp_path / "layer.weft")
    with pytest.raises(TargetError, match="names no known architecture"):
        weft.optimize(layer, (torch.randn(8, 8), torch.randn(8, 8)), target="numpy:2")
    with pytest.raises(TargetError) as caught:
        weft.optimize(layer, (torch.randn(8, 8), torch.randn(8, 8)), target="numpi")
    assert 'did you mean "numpy"?' in caught.value.todo


def test_nothing_outside_of_a_targets_own_folders_asks_which_it_is() -> None:
    package, asks = (
        Path(weft.__file__).parent,
        re.compile(r"\bis_gpu\b|[tT]arget\.kind\b|\bTarget\(\"|== CPU\b|!= CPU\b"),
    )
    own = ("plan/targets/", "emit/cpp/", "emit/triton/", "run/gpu/", "cost/gpus.py", "target.py")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    }
    assert {name for name in found if not name.startswith(own)} == set()
