"""What `pairs.py` compares schedules of: a dozen functions for a GPU and a dozen for a CPU, each captured as one region.

Sizes fill an H200, or keep two cores of a CPU busy for milliseconds. A function is always one region here, also where weft would
cut it in two: what is compared are fused programs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch._dynamo import config

from weft.api.compiled import dynamo_compile
from weft.api.optimize import own_code
from weft.capture import Captured, FromProgram, capture, without_units
from weft.lab.examples import EXAMPLES, ExampleFunction, Sizes
from weft.lab.workloads import cpu, gpu
from weft.lab.workloads.gpu import Workload
from weft.lab.workloads.reductions import matrix
from weft.pipeline import GRAPH
from weft.plan.execute.regions import Prepared, Regions
from weft.plan.execute.steps import kept_dims
from weft.plan.partition.partition import Region, partition, united
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Example
from weft.target import CPU, Target
from weft.tensor.passes import Rewritten
from weft.tensor.program import TensorProgram


def roots_of_columns(x: torch.Tensor) -> torch.Tensor:
    """Computes what each column is multiplied with to have a mean square of 1."""
    return x.square().mean(0).rsqrt()


def _no_flops(_: Sizes) -> float:
    return 0.0


_GPU = {row.name: row for row in gpu.ROWS}
_CPU = {example.title: example for example in cpu.SUITE}
_ROOTS = ExampleFunction("root mean squares of columns", lambda _: roots_of_columns, matrix, (65536, 2048), (80, 24))


def _of(example: ExampleFunction, full: Sizes = (), dtype: torch.dtype = torch.float32) -> Workload:
    """Makes a workload whose whole result is judged."""
    return Workload(replace(example, full=full or example.full, dtypes=(dtype,)), "", _no_flops)


def _row(name: str, full: Sizes = (), dtype: torch.dtype = torch.bfloat16, judged: Sizes = ()) -> Workload:
    """Makes a workload of a row of the GPU's benchmark; of few rows all are judged."""
    row = _GPU[name]
    return replace(row, example=_of(row.example, full, dtype).example, judged=judged)


_HALF, _BF16 = torch.float16, torch.bfloat16
_ON_GPU = {
    "attention": _row("FA-full-4096", judged=(1, 4)),
    "attention, causal": _row("FA-causal-4096", dtype=_HALF, judged=(1, 4)),
    "attention, short": _row("H3", judged=(8,)),
    "attention, decode": _row("MHA-inc-b8", judged=(1,)),
    "LayerNorm + matmul": _row("LN-mm-large", (4096, 1024, 1024)),
    "RMSNorm + SwiGLU": _row("RMS-SwiGLU-narrow", (4096, 512, 1408)),
    "linear, relu": _of(EXAMPLES[0], (4096, 4096, 4096), _BF16),
    "linear, relu, fp32": _of(EXAMPLES[0], (4096, 1024, 4096)),
    "softmax": _of(_CPU["softmax"], (4096, 32000)),
    "variance": _row("V8", dtype=torch.float32),
    "entropy of a softmax": _of(_CPU["entropy of a softmax"], (8192, 32000), _BF16),
    "roots of columns": _of(_ROOTS),
}
_ON_CPU = {
    "attention": _of(_CPU["attention"]),
    "attention, causal": _of(_CPU["attention, causal by mask"]),
    "attention, bf16": _of(_CPU["attention, BERT (H1)"], dtype=_BF16),
    "attention, decode": _of(_CPU["attention, decode (H9)"]),
    "LayerNorm + matmul": _of(_CPU["LayerNorm + matmul"]),
    "RMSNorm + SwiGLU": _of(_CPU["RMSNorm + SwiGLU"]),
    "linear, relu": _of(EXAMPLES[0]),
    "linear, relu, bf16": _of(EXAMPLES[0], dtype=_BF16),
    "softmax": _of(_CPU["softmax"]),
    "variance": _of(_CPU["variance (V5)"]),
    "entropy of a softmax": _of(_CPU["entropy of a softmax"], dtype=_BF16),
    "roots of columns": _of(_ROOTS, (8192, 1024)),
}


def workloads(target: Target) -> dict[str, Workload]:
    """Returns the workloads for a CPU or a GPU, by name."""
    return _ON_CPU if target == CPU else _ON_GPU


@dataclass(frozen=True, slots=True)
class OperandView:
    """An input of a region, which a dense copy is made of: `torch.as_strided(operands[operand], shape, strides, offset)`."""

    name: str
    operand: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Problem:
    """A workload as a region.

    Attributes:
        program, example: what is scheduled.
        inputs: where the inputs of `program` lie in the workload's operands.
        outputs: the number of the program's output that each result of the function is.
    """

    program: TensorProgram
    example: Example
    inputs: tuple[OperandView, ...]
    outputs: tuple[int, ...]


class _CapturedError(BaseException):
    """A graph is captured; nothing catches it on the way, so that the function does not run."""


def problem(workload: Workload, sizes: Sizes, target: Target) -> Problem:
    """Captures `workload` at `sizes`, for `target`.

    Raises:
        ValueError: it is no single region of tensors that lie densely.
    """
    operands = tuple(
        torch.empty(each.shape, dtype=torch.int64 if each.below else each.kept or workload.dtype)
        for each in workload.example.operands(sizes)
    )
    captured = _captured(workload.example.make(sizes), operands)
    if captured.program is None:
        raise ValueError(f"{workload.name} is not captured: {captured.refused}")
    orders = tuple((r.index, r.order) for r in captured.results if isinstance(r, FromProgram) and r.order is not None)
    setting = replace(toolchain(target).setting(), orders=orders)
    program = Rewritten(captured.program).under(GRAPH, setting).program
    stages = partition(program)
    regions = [stage for stage in stages if isinstance(stage, Region)]
    if len(regions) < len(stages):
        raise ValueError(f"PyTorch runs a part of {workload.name}")
    layouts = {n.name: len(n.axes) - 1 if n.axes else None for n in program.inputs}
    region = united(program, regions)
    prepared = Regions(layouts, target).prepared(region)
    names = tuple(inspect.signature(workload.fn).parameters)
    return Problem(
        prepared.program,
        prepared.example,
        tuple(_inputs(program, prepared, names, operands)),
        tuple(_outputs(captured, program, region)),
    )


def _captured(fn: Callable[..., Any], operands: Sequence[torch.Tensor]) -> Captured:
    found: list[Captured] = []

    def backend(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        found.append(capture(gm, example))
        raise _CapturedError

    with torch.no_grad(), cast("Any", config).patch(automatic_dynamic_shapes=False):
        try:
            dynamo_compile(own_code(fn), backend)(*operands)
        except _CapturedError:
            return found[0]
    raise ValueError("there is nothing to compile")


def _inputs(
    program: TensorProgram, prepared: Prepared, names: Sequence[str], operands: Sequence[torch.Tensor]
) -> list[OperandView]:
    """Finds the inputs of a region of `program` in the operands, which have these names."""
    made = {view.name: view for view in prepared.made}
    held = {n.name: without_units(operands[names.index(n.name)], kept_dims(n)) for n in program.inputs}
    found: list[OperandView] = []
    for old, new in zip(prepared.viewed.inputs, prepared.program.inputs, strict=True):
        view = made.get(old.name)
        name = old.name if view is None else view.source
        shape = tuple(axis.space.size(prepared.example.sizes) for axis in new.axes)
        strides, offset = held[name].stride(), 0
        if view is not None:
            strides, offset = view.strides(strides), view.offset(held[name].shape, strides)
        if any(stride < 0 for stride in strides):
            raise ValueError(f"input {new.name} runs backwards")
        found.append(OperandView(new.name, names.index(name), shape, strides, offset))
    return found


def _outputs(captured: Captured, program: TensorProgram, region: Region) -> list[int]:
    """Finds the results of the function among the outputs of its region."""
    found: list[int] = []
    for result in captured.results:
        if not isinstance(result, FromProgram) or result.layout is not None:
            raise ValueError(f"a result is no dense tensor that the region makes: {result}")
        axes = program.values()[program.outputs[result.index]].axes
        dims = program.output_dims[result.index] if program.output_dims else axes
        if tuple(axis for axis in dims if axis is not None) != axes:
            raise ValueError("a result has its dimensions in another order than the program")
        found.append(region.program.outputs.index(program.outputs[result.index]))
    return found
