"""Arithmetic modulo primes: exact products, and numbers as residues."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from weft.tensor import modular
from weft.tensor import modular as primes
from weft.tensor.field_arithmetic import SQUARE, FieldArithmetic

CHAIN = primes.of_seed(11)


def test_roots_of_unity_depend_on_the_seed_and_have_the_order_of_the_prime_before() -> None:
    for before, p in pairwise(CHAIN):
        assert SQUARE % p != 1
        roots = set()
        for seed in range(8):
            low, _ = FieldArithmetic(seed, CHAIN)._exponential(p)
            omega = int(low[1])
            assert omega != 1
            assert pow(omega, before, p) == 1
            roots.add(omega)
        assert len(roots) == 8


@pytest.mark.parametrize("p", CHAIN)
@pytest.mark.parametrize("shape", [(1, 3, 5, 4), (2, 7, 300, 3), (1, 2, 0, 3), (3, 0, 2, 1)])
def test_matmul_is_exact(p: int, shape: tuple[int, int, int, int], monkeypatch: Any) -> None:
    batch, m, k, n = shape
    rng = np.random.default_rng(k)
    for low in (0, p - 3):
        a = rng.integers(low, p, (batch, m, k))
        b = rng.integers(low, p, (batch, k, n))
        exact = (a.astype(object) @ b.astype(object) % p) if k else np.zeros((batch, m, n), object)
        assert np.array_equal(modular.matmul(a, b, p), exact.astype(np.int64))
        monkeypatch.setattr(modular, "_EXACT_TERMS", 37)
        assert np.array_equal(modular.matmul(a, b, p), exact.astype(np.int64))
        monkeypatch.undo()


def test_matmul_is_exact_at_its_limit() -> None:
    """The longest sum of the largest products that one float64 product takes."""
    p, k = CHAIN[-1], modular._EXACT_TERMS
    assert k * 0xFFFF**2 < 2**53
    assert 2 * k * 0x7FFF * 0xFFFF < 2**53
    a = np.full((1, 1, k), p - 1)
    halves = np.full((1, 1, k), (0x7FFE << 16) + 0xFFFF)
    assert int(modular.matmul(a, a.reshape(1, k, 1), p)[0, 0, 0]) == k % p
    exact = k * (int(halves[0, 0, 0]) ** 2) % p
    assert int(modular.matmul(halves, halves.reshape(1, k, 1), p)[0, 0, 0]) == exact


@pytest.mark.parametrize("p", CHAIN)
def test_scalars_are_pythons(p: int) -> None:
    rng = np.random.default_rng(3)
    x = np.append(rng.integers(1, p, 20), [1, p - 1])
    assert np.array_equal(x * modular.inverse(x, p) % p, np.ones_like(x))
    assert modular.inverse(np.asarray(0), p) == 0
    n = rng.integers(0, 2**31 - 1, 22)
    assert [int(v) for v in modular.power(x, n, p)] == [pow(int(b), int(e), p) for b, e in zip(x, n, strict=True)]
    for size in range(7):
        factors = rng.integers(0, p, (2, size))
        assert [int(v) for v in modular.product(factors, p)] == [int(np.prod(r.astype(object)) % p) for r in factors]
    table = modular.exponential_tables(3, p)
    assert [int(v) for v in modular.exponential(table, n, p)] == [pow(3, int(e), p) for e in n]
