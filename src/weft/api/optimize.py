"""weft.optimize and weft.equivalent: ahead of time, for a function and example inputs."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from weft import verify
from weft.api.backend import compile_graph
from weft.api.compile import dynamo_compile, eagerly
from weft.api.program import Program
from weft.capture import Captured, capture
from weft.errors import TargetError
from weft.options import options as in_force
from weft.plan import Plan
from weft.tensor.laws import normalize
from weft.tensor.program import TensorProgram

Inputs = Sequence[Any] | torch.Tensor


def optimize(fn: Callable[..., Any], example_inputs: Inputs, target: str | None = None, **options: Any) -> Program:
    """Compile `fn` now, for inference, at the shapes of `example_inputs`; runs it once on them.

    Args:
        fn: a function or module.
        example_inputs: its positional arguments (a single tensor stands for one argument).
        target: None, where the inputs live, or "cpu".
        options: fields of `weft.options`, for this call.

    Raises:
        TargetError: the target does not exist, or weft cannot compile for it yet.
        CompilerError: there is no working C++ compiler.
        ShapeError: eager refuses these inputs too.
        UnknownOptionError: an option that does not exist.
    """
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    with in_force(**options):
        check_target(target, inputs)
        plans: list[Plan] = []
        failures: list[Exception] = []

        def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            # An exception must not cross Dynamo, which would wrap it beyond recognition.
            try:
                plans.append(compile_graph(gm, example))
            except Exception as error:  # noqa: BLE001 - raised again below, whatever it is
                failures.append(error)
                return gm.forward
            return plans[-1].run

        call = dynamo_compile(_own_code(fn), collect)
        with torch.no_grad():
            try:
                call(*inputs)
            except TorchDynamoException:
                eagerly(fn, inputs, {})
                raise
        if failures:
            raise failures[0]
        return Program(tuple(plans), call)


def equivalent(fn_a: Callable[..., Any], fn_b: Callable[..., Any], example_inputs: Inputs) -> verify.Verdict:
    """Whether two functions compute the same, as algebra: checked over finite fields, not run on numbers.

    Args:
        fn_a, fn_b: functions or modules with the same arguments.
        example_inputs: positional arguments for both.

    Returns:
        A verdict: equal, with the probability of error; refuted; or None, undecided, where either is not wholly captured.
    """
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    first, second = _whole_program(fn_a, inputs), _whole_program(fn_b, inputs)
    if isinstance(first, str):
        return verify.Verdict(None, 1.0, f"the first function is not captured whole: {first}")
    if isinstance(second, str):
        return verify.Verdict(None, 1.0, f"the second function is not captured whole: {second}")
    shapes = [x.shape for x in inputs if isinstance(x, torch.Tensor)]
    return verify.equivalent(first, second, _small_sizes(first, shapes))


def check_target(target: str | None, inputs: Sequence[Any]) -> None:
    """Raise TargetError unless `target` is one that weft can compile for, and the inputs' home where it is None."""
    kinds = ("cpu", "cuda", "hip")
    if target is not None and target.partition(":")[0] not in kinds:
        raise TargetError(f"there is no target {target!r}", todo='use target=None (where the inputs live) or "cpu"')
    if target not in (None, "cpu"):
        raise TargetError(f"weft has no code generator for {target!r} yet", todo='use target="cpu"')
    elsewhere = {str(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.device.type != "cpu"}
    if target == "cpu" and elsewhere:
        raise TargetError(
            f"the inputs are on {', '.join(sorted(elsewhere))}", todo="move them to the CPU, or use target=None"
        )


def _own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a plain function with a code object of its own: Dynamo's limits count per code object."""
    if not isinstance(fn, types.FunctionType):
        return fn
    copy = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy


def _whole_program(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> TensorProgram | str:
    """The one tensor program of `fn`, or why there is none."""
    graphs: list[tuple[Captured, list[int]]] = []

    def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        captured = capture(gm, example)
        tensors = [x.data_ptr() for x in inputs if isinstance(x, torch.Tensor)]
        order = [
            tensors.index(x.data_ptr()) if isinstance(x, torch.Tensor) and x.data_ptr() in tensors else -1
            for x in example
        ]
        graphs.append((captured, order))
        return gm.forward

    with torch.no_grad():
        dynamo_compile(_own_code(fn), collect)(*inputs)
    if len(graphs) != 1:
        return f"it makes {len(graphs)} graphs"
    captured, order = graphs[0]
    if captured.program is None or captured.fallbacks:
        return "; ".join(map(str, (*captured.fallbacks, *((captured.refused,) if captured.refused else ()))))
    placed = [order[index] for index in captured.arguments]
    if sorted(placed) != list(range(sum(isinstance(x, torch.Tensor) for x in inputs))):
        return "it does not read exactly its tensor arguments"
    by_argument = dict(zip(placed, captured.program.inputs, strict=True))
    program = normalize(captured.program)
    return TensorProgram(
        tuple(by_argument[i] for i in range(len(placed))), program.nodes, program.outputs, program.output_dims
    )


def _small_sizes(program: TensorProgram, shapes: Sequence[torch.Size]) -> tuple[dict[str, int], ...]:
    """Small sizes for the spaces of `program`: different where the examples' sizes differ, so that both programs take them."""
    examples = {
        axis.space.name: size
        for node, shape in zip(program.inputs, shapes, strict=True)
        for axis, size in zip(node.dims or node.axes, shape, strict=True)
        if axis is not None
    }
    classes = {size: i for i, size in enumerate(sorted(set(examples.values())))}
    return tuple({name: base + classes[size] for name, size in examples.items()} for base in (2, 5))
