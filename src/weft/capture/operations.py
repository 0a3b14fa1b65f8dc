"""Operations of PyTorch's by name, and weft's own one, which is defined here: whoever looks one up has it."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload  # no public name

CHECK = "weft.in_range"
"""The call that raises eager's error for an index that does not exist, and gives the indices."""
_LIBRARY: Any = torch.library.Library("weft", "FRAGMENT")
_LIBRARY.define("in_range(Tensor(a) index, SymInt size, int dim, SymInt? ignored=None) -> Tensor(a)")


def _in_range(index: torch.Tensor, size: int, dim: int, ignored: int | None = None) -> torch.Tensor:
    """Returns `index`, all of it below `size` and not negative, but for what is `ignored`; eager's error where it is not.

    Raises:
        IndexError: of the classes of a loss, which alone have an `ignored` one.
        RuntimeError: of a gather along `dim`.
    """
    if index.numel() > 0:
        low, high = torch.aminmax(index)
        if low < 0 or high >= size:
            wrong = (index < 0) | (index >= size)
            outside = index[wrong if ignored is None else wrong & (index != ignored)]
            if len(outside) > 0 and ignored is not None:
                raise IndexError(f"Target {int(outside[0])} is out of bounds.")
            if len(outside) > 0:
                raise RuntimeError(f"index {int(outside[0])} is out of bounds for dimension {dim} with size {size}")
    return torch.ops.aten.alias.default(index)


def _in_range_of_fakes(index: torch.Tensor, size: int, dim: int, ignored: int | None = None) -> torch.Tensor:
    del size, dim, ignored
    return torch.ops.aten.alias.default(index)


_LIBRARY.impl("in_range", _in_range, "CPU")
_LIBRARY.impl("in_range", _in_range_of_fakes, "Meta")


def operation(name: str) -> OpOverload[..., Any]:
    """Returns the operation that `OpOverload.name` calls `name`, such as "aten::add.Tensor".

    Raises:
        AttributeError, RuntimeError: it is not registered in this process.
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
