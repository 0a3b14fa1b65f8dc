"""Chains of primes: uniform over a documented family, quick to draw, never known beforehand."""

from __future__ import annotations

import random
import time
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from weft.tensor import modular as primes

sympy: Any = import_module("sympy")  # it ships no types


@pytest.mark.parametrize("count", primes.FAMILY)
def test_a_chain_is_of_primes_each_twice_the_one_before_and_one_more(count: int) -> None:
    found = {primes.chain(count) for _ in range(40)}
    assert len(found) >= 38, "they are drawn anew each time (of the smallest family 40 hold a pair once in 115 runs)"
    for chain in found:
        assert len(chain) == count
        assert primes.LEAST < chain[-1] < primes.BELOW
        assert all(map(sympy.isprime, chain))
        assert all(b == 2 * a + 1 for a, b in pairwise(chain))


def test_primes_are_told_from_other_numbers() -> None:
    rng = random.Random(0)
    pseudoprimes = [2047, 1373653, 25326001, 3215031751, 561, 1105, 2147483647, 2147483649, 1, 0, 2, 97, 9409]
    for number in (*range(3000), *pseudoprimes[:3], *pseudoprimes[4:], *(rng.randrange(1 << 31) for _ in range(3000))):
        assert primes.is_prime(number) == sympy.isprime(number), number


def sieved(low: int, count: int) -> np.ndarray:
    """For each number from `low` on whether it is a prime."""
    found = np.ones(count, np.bool_)
    for p in sympy.primerange(2, int((low + count) ** 0.5) + 1):
        found[-low % p :: p] = False
    return found


@pytest.mark.parametrize("count", primes.FAMILY)
def test_the_family_is_as_large_as_is_said(count: int) -> None:
    """In windows, as many chains as their share of the range lets expect: primes thin out by a few percent over it."""
    window, starts = 1 << 21, [primes.LEAST + i * (1 << 27) for i in range(8)]
    found = 0
    for start in starts:
        ends = np.ones(window >> (count - 1), np.bool_)  # of chains with numbers (start >> i) + k, 2 (...) + 1 ...
        for i in range(count):
            numbers = (start >> i) + np.arange(window >> i)
            own = numbers[(numbers + 1) % (1 << (count - 1 - i)) == 0]
            ends &= sieved(int(numbers[0]), len(numbers))[own - numbers[0]][: len(ends)]
        found += int(ends.sum())
    expected = primes.FAMILY[count] * window * len(starts) / (primes.BELOW - primes.LEAST)
    assert abs(found - expected) < 5 * expected**0.5 + 0.02 * count * expected


def test_drawing_takes_no_time() -> None:
    begin = time.perf_counter()
    for _ in range(50):
        primes.chain(3)
    assert (time.perf_counter() - begin) / 50 < 0.02, "a millisecond, on a machine that does something else too"


def test_a_seed_gives_a_chain_and_entropy_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert primes.of_seed(3) == primes.of_seed(3) != primes.of_seed(4)
    random.seed(0)
    one = primes.chain(1)
    random.seed(0)
    assert primes.chain(1) != one, "no seed that a program can set decides"


def test_primes_that_are_given_are_looked_at() -> None:
    chain = primes.of_seed(0)
    assert primes.chains((*chain, *chain), 3) == (chain, chain)
    for wrong, count in ((chain[:2], 3), (chain[::-1], 3), ((chain[0] + 2,), 1), ((2**30 + 1,), 1), (chain, 2)):
        with pytest.raises(ValueError, match="no chain"):
            primes.chains(wrong, count)
