"""weft.optimize: ahead of time, for a function and example inputs."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from weft.api.backend import compile_graph, in_pytorch, replayed
from weft.api.calling import learned
from weft.api.compiled import dynamo_compile, eagerly, translating, without_log_inside
from weft.api.given import callable_of, demand_fits, inputs_of
from weft.api.net import defect, safe, say
from weft.api.program import Program, Saved
from weft.api.recompiles import OWN
from weft.api.targets import elsewhere, target_for
from weft.api.tracing import changes_objects
from weft.capture import FromSizes
from weft.defects import noticed
from weft.errors import Location, ProgramFileError, UnsupportedError, WeftError, named
from weft.options import options as in_force
from weft.plan import Plan, Runner, default_stance, home, warn
from weft.plan.targets import toolchain
from weft.target import Target
from weft.tracer import TorchDynamoException, config

Inputs = Sequence[Any] | torch.Tensor


@named("weft.optimize")
def optimize(
    fn: Callable[..., Any], example_inputs: Inputs, target: str | torch.device | None = None, **options: Any
) -> Program:
    """Compile `fn` now, for inference, at the shapes of `example_inputs`; runs it once on them.

    Args:
        fn: a function or module.
        example_inputs: its positional arguments (a single tensor stands for one argument).
        target: None, where the inputs live; "cpu"; "cuda" for the GPU that is here; or one by its architecture, "cuda:90",
            "hip:gfx942", which need not be here: its kernels have source and assembled binary, and do not run.
        options: fields of `weft.options`, for this call.

    Raises:
        ArgumentError: `fn` cannot be called, or is a module's class; or `example_inputs` are no arguments.
        TargetError: the target does not exist, or the inputs live elsewhere; or what was compiled for another machine is called.
        CompilerError: there is no working C++ compiler.
        ShapeError: eager refuses these inputs too.
        DefectError: weft itself failed where nothing can stand in.
        UnsupportedError: eager runs these inputs, but PyTorch cannot trace the function with them; or `fn` is TorchScript.
        UnknownOptionError: an option that does not exist.
    """
    fn = callable_of(fn, "the first argument of weft.optimize", "weft.optimize({}, inputs)")
    inputs = inputs_of(example_inputs, "weft.optimize(fn")
    demand_fits(fn, inputs, "weft.optimize")
    with in_force(**options):
        place = target_for(target, inputs)
        here = toolchain(place).runs_on(home(inputs))
        graphs = _Graphs(place, options, here=here)

        def collect(gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            return graphs.collect(gm, example)

        call = dynamo_compile(own_code(fn), collect)
        # Dynamo knows the sizes of all calls of this line in the process, and makes symbols of those that differed. The plan is for
        # these inputs alone, so that it is the same whatever was traced before.
        with default_stance(), torch.no_grad(), cast("Any", config).patch(automatic_dynamic_shapes=False):
            try:
                result = call(*inputs)
            except TorchDynamoException as error:
                eagerly(fn, inputs, {})
                raise _untraceable(error) from error
        if graphs.failures:
            raise graphs.failures[0]
        graphs.done = True
        called = _calling(inputs, graphs.noted, result, graphs.beyond)
        return Program(graphs.plans, translating(call, fn) if here else elsewhere(place), called)


without_log_inside(optimize)


@dataclass(eq=False)
class _Graphs:
    """The graphs of a function, as Dynamo hands them over at its first call, and at later ones with other shapes.

    Attributes:
        target: what kernels are for.
        options: of the call of `optimize`.
        here: kernels can run on the inputs.
        done: the first call is over.
        plans: of the graphs.
        failures: why there are none of others.
        noted: arguments and results of each graph at the first call.
        beyond: what the function does beside its graph.
    """

    target: Target
    options: Mapping[str, Any]
    here: bool
    done: bool = False
    plans: list[Plan] = field(default_factory=list[Plan])
    failures: list[WeftError] = field(default_factory=list[WeftError])
    noted: list[tuple[Sequence[Any], Sequence[Any]]] = field(default_factory=list[tuple[Sequence[Any], Sequence[Any]]])
    beyond: list[str] = field(default_factory=list[str])

    def collect(self, gm: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        """Plan a graph, and return what runs it. An exception must not cross Dynamo, which would wrap it beyond recognition."""
        eager = in_pytorch(gm)
        with in_force(**self.options), noticed() as defects:
            try:
                plan = compile_graph(gm, example, self.target, tried=False)
                self.plans.append(plan)
                run = replayed(plan, plan.run, example, gm) if self.here else eager
            except Exception as error:  # noqa: BLE001 - at the end it is raised as weft's own, or PyTorch runs a later call
                if self.done:
                    warn("this graph", error) if isinstance(error, WeftError) else say(gm, example, error)
                self.failures.append(error if isinstance(error, WeftError) else defect(gm, example, error))
                return safe(eager, gm, eager)
            if defects:
                say(gm, example, defects[0])
        run = safe(run, gm, eager)
        if self.done:
            return run
        self.beyond.extend(_beyond(plan))
        return self.noting(run)

    def noting(self, run: Runner) -> Runner:
        """Return `run`; its first call, which is here, is noted."""

        def call(*arguments: Any) -> Sequence[Any]:
            results = run(*arguments)
            if not self.done:
                self.noted.append((arguments, results))
            return results

        return call


def _beyond(plan: Plan) -> Iterator[str]:
    """Yield what the function that Dynamo is tracing now, whose graph this is, does beside its graph as a file has it."""
    if any(isinstance(each, FromSizes) and each.told for each in plan.captured.results):
        yield "the function returns a Python number that it reads from a tensor, so it may change from call to call"
    if changes_objects():
        yield "the function changes Python objects, which running its graph alone would not do"


def _calling(
    inputs: Sequence[Any], noted: list[tuple[Sequence[Any], Sequence[Any]]], result: Any, beyond: Sequence[str]
) -> Saved | ProgramFileError:
    """Learn how the one graph of a function is called, from the call that was noted; or say why it cannot be saved."""
    calls = list(noted)
    noted.clear()
    if len(calls) != 1:
        return ProgramFileError(
            f"the function is {len(calls)} graphs with Python code between them"
            if calls
            else "the function computes nothing",
            todo="save the parts that are one graph each: TORCH_LOGS=graph_breaks says where the graph breaks",
        )
    if beyond:
        return ProgramFileError(
            beyond[0], todo="return tensors, and the arguments that the function changes; do everything else outside"
        )
    try:
        return learned(inputs, *calls[0], result)
    except ProgramFileError as error:
        return error


_ON_FAKES = re.compile(r"failed to run FX node with fake tensors: .*: got \w+\(['\"](.+)['\"]\)")
"""What an operation says of arguments that it refuses, among what Dynamo says about the call."""


def _untraceable(error: TorchDynamoException) -> UnsupportedError:
    """Make the error for what PyTorch's tracing refuses although eager runs it (an operand on another device that eager
    ignores).
    """
    own = [f for f in getattr(error, "real_stack", None) or () if not f.filename.startswith(OWN)]
    where = Location(own[-1].filename, own[-1].lineno or 0, own[-1].line or "") if own else None
    lines = [line.strip() for line in str(getattr(error, "msg", error)).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Hint:", "Developer debug", "For more details"))]
    text = " ".join(said).replace(" Explanation:", ":")
    refused = _ON_FAKES.search(text)
    return UnsupportedError(
        f"PyTorch cannot trace this: {text if refused is None else refused[1]}",
        where=where,
        todo="rewrite that line so that PyTorch can trace it, or use weft.compile, which runs such a function in eager mode",
    )


def own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a plain function with a code object of its own: Dynamo's limits count per code object."""
    if not isinstance(fn, types.FunctionType):
        return fn
    copy = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__ = fn.__kwdefaults__
    return copy
