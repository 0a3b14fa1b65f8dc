"""Numbers of fp64 whose sums of products are more exact than any kernel's: what results in fp64 are held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.tensor.domain import Array, contract_arrays
from weft.tensor.fp64 import Fp64Domain

_SHORT = 32
"""So many products are added by one matrix product; its steps may all round alike."""


class ExactDomain(Fp64Domain):
    """Contract in parts of few products, and add these in pairs.

    A matrix product of the library's adds one product after another: for 65,537 equal ones it is off by hundreds of units in the
    last place, where a kernel that adds in blocks is off by some ten, and would be called wrong. Sums are numpy's, in pairs.
    """

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Contract as the base class does; of floats, in parts."""
        if left.dtype.kind != "f" or right.dtype.kind != "f":
            return super().contract(left, left_axes, right, right_axes, out_axes)
        with np.errstate(all="ignore"):
            return contract_arrays(_in_parts, left, left_axes, right, right_axes, out_axes)


def _in_parts(left: Array, right: Array) -> Array:
    """Multiply matrices, [batch, m, k] and [batch, k, n], adding parts as a binary counter carries."""
    if left.shape[-1] <= _SHORT:
        return np.matmul(left, right)
    sums: list[tuple[int, Array]] = []
    for begin in range(0, left.shape[-1], _SHORT):
        part, size = np.matmul(left[..., begin : begin + _SHORT], right[..., begin : begin + _SHORT, :]), 1
        while sums and sums[-1][0] == size:
            part, size = sums.pop()[1] + part, 2 * size
        sums.append((size, part))
    found = sums.pop()[1]
    while sums:
        found = sums.pop()[1] + found
    return found
