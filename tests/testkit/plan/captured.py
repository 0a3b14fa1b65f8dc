"""Graphs of functions as they are planned: captured, and after the laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from testkit.capture.collector import Collector
from weft.pipeline import normalize
from weft.tensor.program import TensorProgram


class _Seen(Exception):
    """The graph was captured; it need not run."""


def captured(
    function: Callable[..., object], inputs: Sequence[torch.Tensor], *, dynamic: bool | None = False
) -> tuple[TensorProgram, Any]:
    """The program of `function` after the laws, and what was captured; `dynamic` as of `torch.compile`."""
    collector = Collector()

    def only_captured(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        collector(gm, example_inputs)

        def stop(*_: object) -> object:
            raise _Seen

        return stop

    torch.compiler.reset()
    with torch.no_grad(), pytest.raises(_Seen):
        torch.compile(function, backend=only_captured, dynamic=dynamic)(*inputs)
    program = collector.only.program
    assert program is not None
    return normalize(program), collector.only
