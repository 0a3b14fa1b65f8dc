"""What PyTorch's profiler shows of weft's kernels: the user's functions and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from weft.errors import Location
from weft.plan.execute.profiled import function_at, named

HERE = Path(__file__).name


def line_of(text: str) -> int:
    """The number of the first line of this file that has `text`."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def recorded(call: Callable[[], Any]) -> Counter[str]:
    """Counts how often each of weft's kernels ran while the profiler was on."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        call()
    return Counter({e.key: e.count for e in found.key_averages() if e.key.startswith("weft_")})


class Net(torch.nn.Module):
    """Two kernels, with a call of PyTorch's between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)  # the first kernel
        return scaled(torch.sort(y, 0).values.exp())  # the second kernel


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3  # of the second kernel, too


def test_kernels_have_the_names_of_the_users_functions_and_lines() -> None:
    net, x = Net(), torch.randn(6, 7)
    program = weft.optimize(net, (x,))
    first = f"Net.forward ({HERE}:{line_of('# the first')})"
    second = f"Net.forward ({HERE}:{line_of('# the second')}), scaled ({HERE}:{line_of('# of the second')})"
    names = [f"{kernel.name}: {said}" for kernel, said in zip(program.kernels, (first, second), strict=True)]
    result: list[torch.Tensor] = []
    assert recorded(lambda: result.append(program(x))) == Counter(names)
    torch.testing.assert_close(result[0], net(x))
    compiled = torch.compile(net, backend="weft", options={"measure": "never"})
    compiled(x)
    for _ in range(2):
        assert recorded(lambda: [compiled(x) for _ in range(3)]) == Counter(names * 3)
    assert not recorded(lambda: net(x))


def test_equal_kernels_of_other_functions_have_other_names() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 5

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 5

    def both(x: torch.Tensor) -> torch.Tensor:
        return one(torch.sort(other(x), 0).values)

    x = torch.randn(5, 6)
    program = weft.optimize(both, (x,))
    (first,), (second,) = (region.kernels for region in program.plans[0].regions)
    assert first is second, "they are one kernel, built once"
    names = sorted(recorded(lambda: program(x)))
    around = "test_equal_kernels_of_other_functions_have_other_names"
    assert [name.partition(" (")[0] for name in names] == [
        f"{first.name}: {around}.{function}" for function in ("one", "other")
    ]


def test_a_graph_that_writes_into_its_arguments_is_recorded_and_writes_once() -> None:
    def count(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x * y).sum(-1)

    x, y = torch.zeros(4, 5), torch.ones(4, 5)
    program = weft.optimize(count, (x.clone(), y))
    assert recorded(lambda: program(x, y))
    torch.testing.assert_close(x, torch.ones(4, 5))


def test_functions_are_found_by_their_lines() -> None:
    assert function_at(Location(__file__, line_of("y = torch.softmax"))) == "Net.forward"
    assert function_at(Location(__file__, line_of("return torch.tanh"))) == (
        "test_equal_kernels_of_other_functions_have_other_names.one"
    )
    assert function_at(Location(__file__, 1)) == "<module>"
    assert function_at(Location("<stdin>", 3)) == "<module>"


def test_a_name_is_no_page() -> None:
    assert named("weft_m_0", ()) == "weft_m_0"
    places = [Location(__file__, number) for number in range(1, 9)]
    assert named("weft_m_0", places) == f"weft_m_0: <module> ({HERE}:1, 2, 3, 4, ...)"
    apart = [Location(f"{name}.py", 1) for name in "abcde"]
    assert named("k", apart).endswith("<module> (d.py:1), ...")
