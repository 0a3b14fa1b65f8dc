"""The primes of a check: chains that are drawn anew for each verdict, so that no program can be written with them in mind.

A chain of n primes ends between 2^30 and 2^31, and each of its primes is twice the one before and 1 more: so each divides the next
less 1, and exponents may live modulo the one and powers modulo the other. How many chains there are says how likely a prime is to
be one of the few that a given pair of programs is wrong modulo (`FAMILY`).
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod

from weft.tensor import modular

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
    return chain(LONGEST, random.Random(modular.key(seed, "primes")))


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
