"""A backend that keeps what was captured and runs it in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weft.capture import (
    Captured,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    capture,
)
from weft.tensor import Fp64Domain, evaluate, returned, well_formed
from weft.tensor.program import Opaque


class Collector:
    """A backend. `graphs` has what was captured, in order."""

    def __init__(self) -> None:
        self.graphs: list[Captured] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        captured = capture(gm, example_inputs)
        self.graphs.append(captured)
        if captured.program is None:
            return gm.forward
        well_formed(captured.program)
        return lambda *arguments: run(captured, arguments)

    @property
    def only(self) -> Captured:
        """The one graph."""
        (captured,) = self.graphs
        return captured

    def run(self, function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Any:
        """Runs `function` through this backend, without gradients."""
        torch.compiler.reset()
        self.graphs.clear()
        with torch.no_grad():
            return torch.compile(function, backend=self, dynamic=dynamic)(*inputs)

    def compare(self, function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Captured:
        """Runs it, holds it against eager in fp64, and returns the one graph."""
        found = self.run(function, *inputs, dynamic=dynamic)
        wide = [i.double() if isinstance(i, torch.Tensor) and i.is_floating_point() else i for i in inputs]
        module = function.double() if isinstance(function, torch.nn.Module) else function
        with torch.no_grad():
            wanted = module(*wide)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, check_dtype=False)
        return self.only


def run(captured: Captured, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The graph's results, computed by the evaluator of tensor programs in fp64."""
    program, domain = captured.program, Fp64Domain()
    assert program is not None
    defined = program.values()
    values: dict[str, torch.Tensor] = {}

    def opaque(node: Opaque, used: tuple[np.ndarray, ...]) -> np.ndarray:
        if node.name not in values:
            call = captured.calls[node.call]
            known = {n: torch.from_numpy(np.array(v, order="C")) for n, v in zip(node.uses, used, strict=True)}
            # What is drawn, and how many elements the same bits are, depends on the element type.
            if call.random or call.target is torch.ops.aten.view.dtype:
                known = {n: v.to(getattr(torch, defined[n].dtype.name)) for n, v in known.items()}
            values.update(call.run(known, arguments))
        return values[node.name].numpy()

    inputs = {}
    arguments = (*arguments, *captured.constants)
    for node, index in zip(program.inputs, captured.arguments, strict=True):
        tensor = arguments[index].detach()
        wide = tensor.double() if tensor.is_floating_point() else tensor
        inputs[node.name] = wide.numpy()
    told = {space.name: int(number.value(arguments)) for space, number in captured.sizes.items() if not number.tensors}
    outputs = returned(program, evaluate(program, inputs, domain, opaque, sizes=told), domain)
    for argument, index in captured.writes:
        arguments[argument].copy_(torch.from_numpy(np.array(outputs[index])))
    results: list[Any] = []
    for result in captured.results:
        match result:
            case FromProgram(index):
                results.append(torch.from_numpy(np.array(outputs[index])))
            case FromArgument(index):
                results.append(arguments[index])
            case FromSizes(number):
                results.append(number.value(arguments))
            case FromNothing(value):
                results.append(value)
    return tuple(results)
