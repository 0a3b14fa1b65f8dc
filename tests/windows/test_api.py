"""What users call: rolls of any length, caches that grow."""

from __future__ import annotations

import torch

import weft


def test_a_roll_of_rows_at_any_length() -> None:
    torch.compiler.reset()
    function = weft.compile(lambda x: torch.roll(x, 3, 0) * 2)
    with torch.no_grad():
        for length in (5, 7, 2, 9):
            x = torch.randn(length, 4)
            torch.testing.assert_close(function(x), torch.roll(x, 3, 0) * 2)


def test_a_cache_that_grows_compiles_two_binaries_a_kernel() -> None:
    def step(keys, values, q, k, v):
        keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
        return torch.softmax(q @ keys.mT / 4, -1) @ values, keys, values

    torch.compiler.reset()
    before = weft.stats().binaries_emitted
    compiled = weft.compile(step)
    mine = theirs = (torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16))
    with torch.no_grad():
        for _ in range(50):
            new = [torch.randn(1, 2, 1, 16) for _ in range(3)]
            found, *mine = compiled(*mine, *new)
            wanted, *theirs = step(*theirs, *new)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(mine, theirs)
    assert weft.stats().binaries_emitted - before <= 2 * 4


def test_a_run_goes_on_only_while_what_an_index_is_chosen_by_does() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        joined, number = torch.cat((a, b)), torch.arange(101)
        return torch.where(torch.where(number == 3, number + 100, number) < 50, joined, 0.0)

    given = torch.randn(40), torch.randn(61)
    program = weft.optimize(function, given, judge="off")
    assert program.kernels
    assert torch.equal(program(*given), function(*given))
