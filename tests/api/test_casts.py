"""Floats cast to integers that do not hold them: what eager's conversion makes of them, also on the way back to a float."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft

_BEYOND = (
    9.2e14,
    3e9,
    -3e9,
    1e30,
    math.nan,
    300.5,
    -300.5,
    200,
    70000,
    2.0**31,
    5e9,
    -(2.0**31),
    1e19,
    math.inf,
    -math.inf,
    -0.5,
)
_INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
_USES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "as a float": lambda x: x.float() * 2,
    "as a double": lambda x: x.double() + 1,
    "after a product": lambda x: (x * 3).float() * 0.5,
}


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", _INTEGERS)
def test_what_an_integer_type_does_not_hold_is_its_least_number(
    dtype: torch.dtype, source: torch.dtype, use: str
) -> None:
    """A compiler may take a conversion to an integer and back for a truncation: of 9e14, an infinity or NaN it is none."""

    def cast(x: Tensor) -> Tensor:
        return _USES[use](x.to(dtype))

    x = torch.tensor(_BEYOND * 3).to(source)
    program = weft.optimize(cast, (x,))
    assert not program.fallbacks
    torch.testing.assert_close(program(x), cast(x), rtol=0, atol=0)
