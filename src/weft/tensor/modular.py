"""Arithmetic modulo primes of at most 31 bits, on int64 arrays of residues."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from math import gcd, prod

import numpy as np

from weft.tensor.domain import Array

# float64 sums of products of 16-bit halves stay exact below 2^53: 2^20 products of 2^32.
_EXACT_TERMS = 1 << 20
_LEAST_EXPONENT, _GREATEST_EXPONENT = -1140, 1030


def matmul(a: Array, b: Array, p: int) -> Array:
    """Computes the matrix product of (..., m, k) and (..., k, n) modulo p, by exact float64 products."""
    a, b = a % p, b % p
    total = np.zeros((), np.int64)
    for start in range(0, max(a.shape[-1], 1), _EXACT_TERMS):
        rows, columns = (
            a[..., start : start + _EXACT_TERMS],
            b[..., start : start + _EXACT_TERMS, :],
        )
        a1, a0 = (rows >> 16).astype(np.float64), (rows & 0xFFFF).astype(np.float64)
        b1, b0 = (columns >> 16).astype(np.float64), (columns & 0xFFFF).astype(np.float64)
        high = (a1 @ b1).astype(np.int64) % p
        middle = (a1 @ b0 + a0 @ b1).astype(np.int64) % p
        low = (a0 @ b0).astype(np.int64)
        total = (total + high * (2**32 % p) + middle * 2**16 + low) % p
    return total


_FEW = 32  # numbers that Python's own powers take less time for than sixty passes over an array


def power(base: Array, exponent: Array, p: int) -> Array:
    """Computes base ** exponent modulo p, for exponents of at least 0; 0 ** 0 is 1."""
    result = np.ones(np.broadcast_shapes(base.shape, exponent.shape), np.int64)
    square, rest = base % p, exponent
    while rest.any():
        result = np.where(rest & 1 == 1, result * square % p, result)
        square, rest = square * square % p, rest >> 1
    return result


def inverse(x: Array, p: int) -> Array:
    """Computes 1 / x modulo p; 0 for 0."""
    if x.size <= _FEW:
        return np.array([pow(int(each), p - 2, p) for each in x.flat], np.int64).reshape(x.shape)
    return power(x, np.asarray(p - 2), p)


def product(x: Array, p: int) -> Array:
    """Computes the product along the last axis, modulo p."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        folded = x[..., :half] * x[..., half : 2 * half] % p
        x = np.concatenate([folded, x[..., 2 * half :]], axis=-1)
    return x[..., 0] if x.shape[-1] else np.ones(x.shape[:-1], np.int64)


@lru_cache(maxsize=16)
def _powers_of_two(p: int) -> Array:
    return _powers(2, _GREATEST_EXPONENT - _LEAST_EXPONENT, p) * pow(2, _LEAST_EXPONENT, p) % p


def from_floats(values: Array, p: int) -> Array:
    """Returns finite floats, which are dyadic rationals n * 2ks, exactly, modulo p."""
    mantissa, exponent = np.frexp(values)
    n = (mantissa * 2.0**53).astype(np.int64)
    return n % p * _powers_of_two(p)[exponent.astype(np.int64) - 53 - _LEAST_EXPONENT] % p


def exponential_tables(omega: int, p: int) -> tuple[Array, Array]:
    """Returns the powers of `omega` modulo p at 0 .. 216 - 1, and at the multiples of 216 below 231."""

    return _powers(omega, 1 << 16, p), _powers(pow(omega, 1 << 16, p), 1 << 15, p)


def _powers(base: int, count: int, p: int) -> Array:
    """Computes base ** 0 .. base ** (count - 1), or as far as the next power of 2, modulo p."""
    table = np.ones(1, np.int64)
    while len(table) < count:
        table = np.concatenate([table, table * pow(base, len(table), p) % p])
    return table


def exponential(tables: tuple[Array, Array], x: Array, p: int) -> Array:
    """Computes omega ** x modulo p, for x of at most 31 bits, by two look-ups."""
    return tables[0][x & 0xFFFF] * tables[1][x >> 16] % p


def key(*parts: object) -> int:
    """Returns a 64-bit key that depends on all the parts' texts."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def mixed(state: Array, x: Array) -> Array:
    """Computes a 64-bit hash of (state, x), elementwise: the finaliser of splitmix64."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        z = state ^ (x.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


# The primes of a check: chains that are drawn anew for each verdict, so that no program can be written with them in mind.


LEAST, BELOW = 1 << 30, 1 << 31
"""The range of the last prime of every chain."""
FAMILY = {1: 50_697_537, 2: 1_634_069, 3: 89_426}
"""How many chains there are of one, two and three primes (counted by a sieve)."""
LONGEST = max(FAMILY)

_SMALL = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
_PRODUCT = prod(_SMALL)
_WITNESSES = (2, 3, 5, 7)  # enough below 3,215,031,751
# What the first prime of a chain is modulo 30, for no prime of it to be divisible by 2, 3 or 5.
_RESIDUES = {1: (1, 7, 11, 13, 17, 19, 23, 29), 2: (11, 23, 29), 3: (11, 29)}


def chain(count: int, source: random.Random | None = None) -> tuple[int, ...]:
    """Draws a chain of `count` primes, each as likely as any other; from the system's entropy unless a `source` is given."""
    source = source or random.Random(secrets.randbits(256))
    residues = _RESIDUES[count]
    # The last prime is 2^(count - 1) (first + 1) - 1.
    low, high = LEAST >> (count - 1), BELOW >> (count - 1)
    while True:
        first = 30 * source.randrange(low // 30, high // 30 + 1) + source.choice(residues)
        found = tuple(((first + 1) << i) - 1 for i in range(count))
        if gcd(prod(found), _PRODUCT) == 1 and LEAST < found[-1] < BELOW and all(map(is_prime, found)):
            return found


def chains(primes: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Cuts `primes` into chains of `count`.

    Raises:
        ValueError: they are no such chains.
    """
    found = tuple(tuple(primes[i : i + count]) for i in range(0, len(primes), count))
    for each in found:
        doubled = all(b == 2 * a + 1 for a, b in pairwise(each))
        if len(each) != count or not doubled or not all(map(is_prime, each)):
            raise ValueError(f"{each} is no chain of {count} primes, each twice the one before and 1 more")
    return found


@lru_cache(maxsize=256)
def of_seed(seed: int) -> tuple[int, ...]:
    """Returns three primes that follow from a seed: for checks whose result is no verdict."""
    return chain(LONGEST, random.Random(key(seed, "primes")))


def is_prime(number: int) -> bool:
    """Tells whether a number below 231 is a prime: Miller and Rabin's test, which with these witnesses never errs there."""
    if number < 2 or number in _SMALL:
        return number in _SMALL
    if gcd(number, _PRODUCT) > 1:
        return False
    twos = (number - 1 & 1 - number).bit_length() - 1
    return all(_passes(number, witness, twos) for witness in _WITNESSES)


def _passes(number: int, witness: int, twos: int) -> bool:
    power = pow(witness, (number - 1) >> twos, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
