"""Predicting how much of a graph's time PyTorch takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from weft.capture import Effect, Fallback, OpaqueCall, Operand, Piece
from weft.capture.sizes import in_example
from weft.cost import Machine
from weft.plan.execute.made import Plan
from weft.plan.execute.steps import CallStep
from weft.plan.targets import toolchain
from weft.tensor.dtypes import DType
from weft.tensor.program import Node, Opaque, TensorProgram

_INDICES = {"index", "indices"}
"""What PyTorch's operations call the integers that say where they write."""
_LAUNCHES = 10
"""Calls into PyTorch that take less than so many launches are not worth a word."""


def mostly_left(plan: Plan, arguments: Sequence[Any]) -> tuple[Fallback, ...]:
    """Lists what PyTorch runs of a graph that has kernels, the longest first, where that is predicted to take longer than these.

    Nothing is lost where a library runs an operation by design (convolutions, recurrent layers, sorting).

    Args:
        plan: with its kernels.
        arguments: example arguments of the graph.
    """
    program = plan.program
    reasons = {(f.operation, f.location): f for f in plan.fallbacks if not f.is_by_design}
    if program is None or not plan.kernels or not reasons:
        return ()
    machine = toolchain(plan.kernels[0].target).machine(torch.get_num_threads())
    values = program.values()
    found: dict[Fallback, float] = {}
    for step in plan.steps:
        if isinstance(step, CallStep) and (fallback := reasons.get(_named(step.call, program))) is not None:
            found[fallback] = found.get(fallback, 0.0) + _seconds(step, values, machine, arguments)
    lost = sum(found.values())
    if lost < _LAUNCHES * machine.launch_seconds or lost < sum(k.cost.predicted_seconds for k in plan.kernels):
        return ()
    return tuple(sorted(found, key=lambda fallback: -found[fallback]))


def _named(call: OpaqueCall, program: TensorProgram) -> tuple[str, Any]:
    """Returns what a fallback says of `call`: its operation and its line."""
    where = next((n.location for n in program.nodes if isinstance(n, Opaque) and n.call == call.name), None)
    return str(call.target.overloadpacket), where


def _seconds(step: CallStep, values: dict[str, Node], machine: Machine, arguments: Sequence[Any]) -> float:
    """Bounds the seconds of a call from below: its operands and results from and to memory, or its matmuls as PyTorch
    counts them.

    Tensors of types that weft does not know count for nothing, and so do matmuls of such.
    """
    call = step.call
    read = {name: values[step.aliases.get(name, name)] for name in call.reads}
    if (written := _written_by_indices(call)) is not None:
        return 2 * sum(_bytes(read[name]) for name in written) / machine.levels[-1].bytes_per_second
    operands = {name: node for name, node in read.items() if node.dtype is not DType.unknown}
    results = [values[r.value] for r in call.results if r is not None and r.value in values]
    tensors = {name: _without_data(node) for name, node in operands.items()}
    moved = sum(map(_bytes, (*operands.values(), *results)))
    rates = (machine.vector_flops, *(machine.matrix_rate(node.dtype) for node in operands.values()))
    matmuls = _matmuls(call, tensors, arguments) if len(operands) == len(read) else 0.0
    return max(moved / machine.levels[-1].bytes_per_second, matmuls / max(rates))


def _written_by_indices(call: OpaqueCall) -> tuple[str, ...] | None:
    """Names the operands of a call that writes where integers say into the memory of an argument; None for others.

    What it writes into is as long as before: a cache takes no time for what it has.
    """
    if not isinstance(call.target, Effect) or call.into is None or isinstance(call.target.op, Piece):
        return None
    arguments = call.target.op._schema.arguments  # noqa: SLF001 - no public name
    if _INDICES.isdisjoint(each.name for each in arguments):
        return None
    return tuple(each.value for each in tree_leaves(call.args[2:]) if isinstance(each, Operand))


def _bytes(node: Node) -> int:
    if node.dtype is DType.unknown:
        return 0
    tensor = _without_data(node)
    return tensor.numel() * tensor.element_size()


def _without_data(node: Node) -> torch.Tensor:
    sizes = [a.space.fixed if a.space.fixed is not None else a.space.example or 1 for a in node.axes]
    return torch.empty(sizes, dtype=getattr(torch, node.dtype.name), device="meta")


def _matmuls(call: OpaqueCall, tensors: dict[str, torch.Tensor], arguments: Sequence[Any]) -> float:
    """Counts the operations of the matmuls, convolutions and attention in a call; 0 where PyTorch cannot say without
    running it.
    """
    counter = FlopCounterMode(display=False)
    # Of sizes that change from call to call their numbers: asked of the symbols, Dynamo would compile for these numbers alone.
    numbers = [in_example(each) if isinstance(each, torch.SymInt) else each for each in arguments]
    try:
        with counter:
            call.run(tensors, numbers)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
        return 0.0  # an operation without a meta kernel, or whose result depends on what is in its operands
    return float(counter.get_total_flops())
