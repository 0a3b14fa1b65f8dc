"""What users call: rolls of any length, caches that grow, shifted windows of attention."""

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


def test_shifted_windows_of_attention() -> None:
    def attend(x, w):
        x = torch.roll(x, (-1, -1), (1, 2))
        x = x.view(2, 2, 4, 2, 4, 16).transpose(2, 3).reshape(8, 16, 16)
        x = torch.softmax(x @ x.mT / 4, -1) @ x
        x = x.view(2, 2, 2, 4, 4, 16).transpose(2, 3).reshape(2, 8, 8, 16)
        return torch.roll(x, (1, 1), (1, 2)) + w

    given = torch.randn(2, 8, 8, 16), torch.randn(16)
    program = weft.optimize(attend, given)
    assert "aten.roll" not in [each.operation for each in program.fallbacks]
    torch.testing.assert_close(program(*given), attend(*given))
