"""Numbers of fp64 whose sums of products are more exact than any kernel's: what results in fp64 are held against."""

from __future__ import annotations

from weft.tensor.domain import Array
from weft.tensor.fp64 import Fp64Domain

_SHORT = 32
"""So many products are added by one matrix product; its steps may all round alike."""


class ExactDomain(Fp64Domain):
    """Multiply matrices in parts of few terms, and add these in pairs.

    A matrix product of the library's adds one product after another: for 65,537 equal ones it is off by hundreds of units in the
    last place, where a kernel that adds in blocks is off by some ten, and would be called wrong. Sums are numpy's, in pairs.
    """

    def _matrices(self, left: Array, right: Array) -> Array:
        """Multiply, adding parts as a binary counter carries."""
        sums: list[tuple[int, Array]] = []
        for begin in range(0, max(left.shape[-1], 1), _SHORT):
            end, size = begin + _SHORT, 1
            part = super()._matrices(left[..., begin:end], right[..., begin:end, :])
            while sums and sums[-1][0] == size:
                part, size = sums.pop()[1] + part, 2 * size
            sums.append((size, part))
        found = sums.pop()[1]
        while sums:
            found = sums.pop()[1] + found
        return found
