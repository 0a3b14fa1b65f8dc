"""The rows of `weft bench --first-calls`: what is called, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.errors import CommandError
from weft.lab.workloads import cpu, gpu, models


@dataclass(frozen=True, slots=True)
class FirstRow:
    """A row: a function of the benchmark in one element type, or a model.

    Attributes:
        title, dtype: its name.
        make: makes the function, its arguments and its keyword arguments, for a device.
        family: of a model; empty for a function.
        layers: of a model.
        missing: why it cannot be made here; empty where it can.
    """

    title: str
    dtype: str
    make: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(repr=False)
    family: str = ""
    layers: int = 0
    missing: str = ""

    @property
    def name(self) -> str:
        """Title and element type."""
        return f"{self.title} {self.dtype}"


def subjects(device: str) -> list[FirstRow]:
    """List the rows for `device`: "cpu" or "cuda"."""
    functions = (
        [_function(e, dtype) for e in cpu.SUITE for dtype in e.dtypes]
        if device == "cpu"
        else [_function(row.example, row.dtype) for row in gpu.ROWS if row.group]
    )
    return [*functions, *map(_model, models.MODELS)]


def chosen(only: Sequence[str], device: str) -> list[FirstRow]:
    """Choose the rows whose name contains one of `only`; all where that is empty. Raises CommandError where there is none."""
    every = subjects(device)
    found = [s for s in every if not only or any(text.lower() in s.name.lower() for text in only)]
    if not found:
        names = ", ".join(dict.fromkeys(s.title for s in every))
        raise CommandError(f"no row's name contains {' or '.join(only)}", where="--only", todo=f"there are: {names}")
    return found


def _function(example: cpu.ExampleFunction, dtype: torch.dtype) -> FirstRow:
    def make(device: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        function = example.make(example.full)
        if isinstance(function, torch.nn.Module):
            function = function.to(device, dtype).eval()
        return function, example.inputs(example.full, dtype, 0, device), {}

    return FirstRow(example.title, _short(dtype), make)


def _model(model: models.SmallModel) -> FirstRow:
    def make(device: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        given = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in model.inputs().items()}
        return model.made().to(device), (), given

    missing = "" if models.here() else models.MISSING
    return FirstRow(model.title, _short(torch.float32), make, model.family, model.layers, missing)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))
