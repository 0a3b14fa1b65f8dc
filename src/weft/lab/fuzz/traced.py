"""What PyTorch's own tracing makes of a function: its results where eager's are an accident, and how it says they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode  # no public name

Results: TypeAlias = tuple[torch.Tensor, ...]
Function: TypeAlias = Callable[..., Results]


def traced(function: Function, given: Sequence[torch.Tensor]) -> Results | None:
    """Gives the results of `function` and its arguments after it, traced and run call by call; None where PyTorch cannot.

    There each statement reads all that it reads before it writes, and an operation may have another form (one_hot).
    """
    try:
        results: Results = cast("Any", torch).compile(function, backend="aot_eager")(*given)
    except Exception:  # noqa: BLE001 - whatever PyTorch raises
        return None
    return *results, *given


def described(function: Function, given: Sequence[torch.Tensor]) -> Results | None:
    """Gives results without data, of whose strides PyTorch's shape functions may say another thing than its kernels (`angle`)."""
    mode: Any = FakeTensorMode()
    without = [mode.from_tensor(tensor) for tensor in given]
    try:
        with mode:
            return function(*without)
    except Exception:  # noqa: BLE001 - whatever PyTorch raises
        return None
