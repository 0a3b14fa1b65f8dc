"""The rows of `weft bench --first-calls`: what is called, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from weft.errors import CommandError
from weft.lab.whole.rows import ModelRow
from weft.lab.whole.rows import rows as whole_models
from weft.lab.workloads import cpu, gpu, models


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What is compiled, and how it is called.

    Attributes:
        function: a function or module.
        call: calls the function that it is given, that one or a compiled one; its number decides the arguments.
        calls: how many calls, numbered from 0, belong to the first one: two where a cache grows.
    """

    function: Callable[..., Any]
    call: Callable[[Callable[..., Any], int], Any]
    calls: int = 1


@dataclass(frozen=True, slots=True)
class FirstRow:
    """A row: a function of the benchmark in one element type, or a model.

    Attributes:
        title, dtype: its name.
        make: makes what is called, for a device.
        family: of a model; empty for a function.
        layers: of a model.
        missing: why it cannot be made here; empty where it can.
    """

    title: str
    dtype: str
    make: Callable[[str], FirstCall] = field(repr=False)
    family: str = ""
    layers: int = 0
    missing: str = ""

    @property
    def name(self) -> str:
        """Title and element type."""
        return f"{self.title} {self.dtype}"


READING = "files read"
"""The name of a row that is in no table: what compiles it has read the files that all compile with."""


def named(name: str, device: str) -> FirstRow:
    """Return the row of a name; raises StopIteration where there is none."""
    if name == READING:
        return FirstRow(
            READING, "", lambda where: FirstCall(torch.softmax, partial(_softmax, torch.randn(64, 64, device=where)))
        )
    return next(s for s in subjects(device) if s.name == name)


def _softmax(given: torch.Tensor, run: Callable[..., Any], _: int) -> torch.Tensor:
    return run(given, -1)


def subjects(device: str) -> list[FirstRow]:
    """List the rows for `device`: "cpu" or "cuda". A GPU's have the rows of `weft bench --models` among them."""
    small = map(_model, models.MODELS)
    if device == "cpu":
        return [*(_function(e, dtype) for e in cpu.SUITE for dtype in e.dtypes), *small]
    functions = (_function(row.example, row.dtype) for row in gpu.ROWS if row.group)
    return [*functions, *small, *map(_whole, whole_models(device))]


def chosen(only: Sequence[str], device: str) -> list[FirstRow]:
    """Choose the rows whose name contains one of `only`; all where that is empty. Raises CommandError where there is none."""
    every = subjects(device)
    found = [s for s in every if not only or any(text.lower() in s.name.lower() for text in only)]
    if not found:
        names = ", ".join(dict.fromkeys(s.title for s in every))
        raise CommandError(f"no row's name contains {' or '.join(only)}", where="--only", todo=f"there are: {names}")
    return found


def _function(example: cpu.ExampleFunction, dtype: torch.dtype) -> FirstRow:
    def make(device: str) -> FirstCall:
        function = example.make(example.full)
        if isinstance(function, torch.nn.Module):
            function = function.to(device, dtype).eval()
        arguments = example.inputs(example.full, dtype, 0, device)
        return FirstCall(function, lambda run, _: run(*arguments))

    return FirstRow(example.title, _short(dtype), make)


def _model(model: models.SmallModel) -> FirstRow:
    def make(device: str) -> FirstCall:
        given = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in model.inputs().items()}
        return FirstCall(model.made().to(device), lambda run, _: run(**given))

    return FirstRow(model.title, _short(torch.float32), make, model.family, model.layers, _missing())


def _whole(row: ModelRow) -> FirstRow:
    def make(device: str) -> FirstCall:
        here = replace(row, device=device)
        model, inputs = here.model(), list(map(here.inputs, range(row.first_calls)))
        return FirstCall(model, lambda run, number: here.caller(run, model)(inputs[number]), row.first_calls)

    return FirstRow(f"{row.call.title} {row.attention}", _short(row.dtype), make, missing=_missing())


def _missing() -> str:
    return "" if models.here() else models.MISSING


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))
