"""The callable that runs a plan: straight-line Python, written for it, from a graph's arguments to its outputs.

A kernel of a few microseconds must not wait for dictionaries and loops over steps. What is no longer read is let go at once, so
that its memory serves the next result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never, cast

import torch
from torch._ops import OpOverload
from torch.autograd import profiler
from torch.utils import _pytree as pytree

from weft.capture import (
    UNFLATTEN,
    Captured,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    OpaqueCall,
    Operand,
    RuntimeNumber,
    as_read,
    in_order,
    laid_out,
)
from weft.capture.memory import storage_of
from weft.plan.execute.instead import REFUSALS, Instead
from weft.plan.execute.lifetimes import lifetimes
from weft.plan.execute.memory import is_seen_since_laws, is_theirs, made_of_the_same, owner
from weft.plan.execute.profiled import Profiled
from weft.plan.execute.region_text import SCRATCH, RegionText, packed_threads
from weft.plan.execute.steps import CallStep, PlanStep, RegionStep, ViewStep
from weft.plan.execute.strided import ShownDims
from weft.run import forked
from weft.run.launch import called_by_name, tuple_of
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Opaque, TensorProgram

Runner: TypeAlias = Callable[..., Sequence[Any]]
"""Takes a graph's arguments, gives its outputs."""

_WROTE = "wrote = True"
"""A line of a runner after which the graph must not run again: an argument is not as it was."""

_FILE = "<runner of a plan>"
_VARIABLE = re.compile(r"\bv\d+\b")


def runner(
    captured: Captured,
    program: TensorProgram,
    steps: Sequence[PlanStep],
    arguments: int,
    writes: Mapping[int, int] | None = None,
    instead: Instead | None = None,
    once: Collection[str] = (),
) -> Runner:
    """Writes the function that runs `steps` on the graph's arguments, of which there are so many, and hands its results out.

    In the end it copies outputs of the program into arguments, as `writes` says: by argument, the output. `instead` runs calls
    that kernels refuse, until one of the calls `once` was made or copying began: the graph cannot run again then.
    """
    names = [f"a{i}" for i in range(arguments)]
    read = lifetimes(program.outputs, steps)
    text = _Text(names, _forms(captured, program, steps), program, packed_threads(steps), read)
    text.held = [text.constant(tensor) for tensor in captured.constants]
    for node, index in zip(program.inputs, captured.arguments, strict=True):
        form = _form(node.axes, node.dims or node.axes)
        text.values.held(node.name, text.given(index), node.axes, node.dtype.bytes, form, captured.fixed.get(index))
    for text.step, step in enumerate(steps):
        match step:
            case CallStep():
                text.lines += [_WROTE] if step.call.name in once else []
                text.call(step, program)
            case ViewStep():
                text.views(step)
            case RegionStep():
                text.region(step)
            case _:
                assert_never(step)
    text.lines += [_WROTE] if writes else []
    text.write({argument: text.output(program, output) for argument, output in (writes or {}).items()})
    text.lines.append(f"return [{', '.join(text.results(captured, program))}]")
    if text.scratch.size:
        kind = text.kind(torch.uint8)
        text.lines.insert(0, f"{SCRATCH} = allocate({(text.scratch.size,)}, (1,), dtype={kind}, device=cpu)")
    return text.function(instead)


@dataclass
class _Text(RegionText):
    """The function being written; `held` names the graph's own tensors."""

    held: list[str] = field(default_factory=list[str])

    def given(self, index: int) -> str:
        """Names an argument of the graph, or after these a tensor that the graph holds."""
        return [*self.arguments, *self.held][index]

    def call(self, step: CallStep, program: TensorProgram) -> None:
        """Writes a call into PyTorch; its result is made such as kernels read, or raises: tracing knows no more than a
        call's fake says.
        """
        if step.call.look:
            self.look(step.call, step.aliases, program)
            return
        own = {n.name: n for n in program.nodes if isinstance(n, Opaque) and n.call == step.call.name}
        args = [self.argument(each, step.aliases) for each in step.call.args]
        args += [f"{name}={self.argument(each, step.aliases)}" for name, each in step.call.kwargs.items()]
        made, results = self.values.variable(), step.call.results
        text = f"{self.constant(step.target)}({', '.join(args)})"
        self.lines.append(
            f"{made} = {text if _gives_one(step.call) else f'{self.constant(pytree.tree_leaves)}({text})'}"
        )
        for number, result in enumerate(results):
            if result is None:
                continue
            text, node = made if _gives_one(step.call) else f"{made}[{number}]", own.get(result.value)
            if node is not None and not result.flagged and node.dtype is not DType.unknown:
                kind = self.constant(getattr(torch, node.dtype.name))
                text = f"{self.constant(as_read)}({text}, {kind}, {self.constant(node.call)})"
            if node is not None:
                self.values.let(result.value, text, node.axes, node.dtype.bytes, form_of(result))

    def argument(self, leaf: Any, aliases: Mapping[str, str]) -> str:
        """Writes an argument of a call into PyTorch; values and numbers may be within tuples, lists and dictionaries."""
        match leaf:
            case Operand():
                return self.operand(leaf, aliases)
            case RuntimeNumber() if leaf.tensors:
                seen = [f"{self.constant(each)}: {self.operand(each, aliases)}" for each in leaf.tensors]
                return f"{self.constant(leaf.value)}({self.given_all()}, {{{', '.join(seen)}}}.__getitem__)"
            case RuntimeNumber():
                return self.values.number(f"{self.constant(leaf.value)}({self.given_all()})", key=leaf)
            case None | bool():
                return repr(leaf)
            case _:
                leaves, spec = pytree.tree_flatten(leaf)
                if len(leaves) == 1 and leaves[0] is leaf:
                    return self.constant(leaf)
                parts = f"[{', '.join(self.argument(each, aliases) for each in leaves)}]"
                if type(leaf) is list and not any(
                    isinstance(each, list | tuple | dict) for each in cast("list[Any]", leaf)
                ):
                    return parts
                return f"{self.constant(pytree.tree_unflatten)}({parts}, {self.constant(spec)})"

    def operand(self, operand: Operand, aliases: Mapping[str, str]) -> str:
        """Writes a value as a call into PyTorch takes it."""
        text = self.values.tensor(aliases.get(operand.value, operand.value), form_of(operand))
        if operand.layout is None:
            return text
        return f"{self.constant(laid_out)}({text}, {self.constant(operand.layout)}, {self.given_all()})"

    def look(self, call: OpaqueCall, aliases: Mapping[str, str], program: TensorProgram) -> None:
        """Says where a value lies in other dimensions, and writes PyTorch's view of it where only PyTorch knows."""
        (source,), (result,), (_, *rest) = call.reads, call.results, call.args
        assert result is not None, "who looks at a value wants to see it"
        source, node = aliases.get(source, source), program.values()[result.value]
        lies = self.values[source]
        made = lies.unflattened(rest[0], rest[1][1:]) if call.target is UNFLATTEN else lies.flattened(*rest)
        if made is not None:
            self.values.put(result.value, self.values.named(made))
            return
        given = ", ".join([self.values.tensor(source), *map(repr, rest)])
        self.values.let(result.value, f"{self.constant(call.target)}({given})", node.axes, node.dtype.bytes)

    def output(self, program: TensorProgram, index: int) -> str:
        """Writes an output of the program with the dimensions that the user sees."""
        return self.values.tensor(program.outputs[index], _form(*_output_axes(program, index)))

    def ordered(
        self, text: str, program: TensorProgram, index: int, order: tuple[int, ...] | None, *, anyhow: bool
    ) -> str:
        """Writes an output, `text`, whose dimensions shall lie in memory in this order.

        A value's axes lie there in theirs, but `anyhow` where PyTorch made it: a convolution's result follows its operands.
        """
        axes, dims = _output_axes(program, index)
        if order is None or (not anyhow and axes == tuple(axis for dim in order if (axis := dims[dim]) is not None)):
            return text
        return f"{self.constant(in_order)}({text}, {order})"

    def write(self, writes: Mapping[int, str]) -> None:
        """Writes the copies of values into arguments."""
        if writes:
            pairs = tuple_of([f"({self.given(argument)}, {value})" for argument, value in writes.items()])
            self.lines.append(f"{self.constant(_write)}({pairs})")

    def results(self, captured: Captured, program: TensorProgram) -> list[str]:
        """Lists what the graph returns."""
        values = program.values()
        found: list[str] = []
        taken: dict[str, int] = {}
        others = made_of_the_same(captured, program)
        for result in captured.results:
            match result:
                case FromProgram(index, order, layout):
                    text = self.output(program, index)
                    own = owner(captured, values, program.outputs[index])
                    apart = is_theirs(captured, program, index) or is_seen_since_laws(captured, program, index)
                    if apart or taken.setdefault(own, index) != index:
                        # Laws made one value of two: a change of one must not show in the other, and a view stays one.
                        text += ".clone()"
                    elif program.outputs[index] in others:
                        seen = tuple_of([self.values.tensor(name) for name in others[program.outputs[index]]])
                        text = f"{self.constant(_apart)}({text}, {seen})"
                    made = values[program.outputs[index]]
                    theirs = isinstance(made, Opaque) and not captured.calls[made.call].pinned
                    anyhow = theirs and not self.values.dense(made.name)
                    text = self.ordered(text, program, index, order, anyhow=anyhow)
                    if layout is not None:
                        given = f"{self.constant(layout)}, {self.given_all()}"
                        text = f"{self.constant(laid_out)}({text}, {given})"
                    found.append(text)
                case FromArgument(index):
                    found.append(self.given(index))
                case FromSizes(number, told):
                    pairs = [f"{self.constant(operand)}: {self.output(program, index)}" for operand, index in told]
                    seen = f"{{{', '.join(pairs)}}}.__getitem__"
                    found.append(f"{self.constant(number.value)}({self.given_all()}, {seen})")
                case FromNothing(value):
                    found.append(self.constant(value))
                case _:
                    assert_never(result)
        return found

    def function(self, instead: Instead | None) -> Runner:
        """Compiles what was written; each variable goes after the last line that has it."""
        last = {name: number for number, line in enumerate(self.lines) for name in _VARIABLE.findall(line)}
        text = [f"def run({', '.join(self.arguments)}):"]
        if len(self.threads) == 1:
            (threads,) = self.threads
            self.scope |= called_by_name(threads)
            text.append("    count = threads()" if callable(self.scope["threads"]) else "    count = threads")
        for number, line in enumerate(self.lines):
            text += [f"    {each}" for each in line.split("\n")]
            gone = sorted(name for name, place in last.items() if place == number < len(self.lines) - 1)
            text += [f"    del {', '.join(gone)}"] if gone else []
        if instead is not None:
            given = tuple_of(self.arguments)
            self.scope |= {
                "gone": instead.gone,
                "refused": instead.refused,
                "knows": instead.knows,
                "note": instead.note,
            }
            self.scope |= {"eager": instead.eager, "REFUSALS": REFUSALS, "mark": _mark_written}
            # What was made so far is let go of: PyTorch needs the memory.
            freed = " = ".join([*self.values.variables, "None"])
            refused = [f"        note(error, {given})"]
            if _WROTE in self.lines:
                refused = [
                    f"        note(error, {given}, raised=wrote)", "        if wrote:", "            mark(error, wrote)",
                    "            raise",
                ]  # fmt: skip
            text = [
                text[0], "    if gone or refused:", f"        if knows({given}):", f"            return eager(*{given})",
                "    wrote = False", "    try:", *(f"    {line}" for line in text[1:]),
                "    except REFUSALS as error:", *refused, f"    {freed}", f"    return eager(*{given})",
            ]  # fmt: skip
        elif _WROTE in self.lines:
            self.scope["mark"] = _mark_written
            text = [
                text[0], "    wrote = False", "    try:", *(f"    {line}" for line in text[1:]),
                "    except Exception as error:", "        mark(error, wrote)", "        raise",
            ]  # fmt: skip
        return self.compiled(text)

    def compiled(self, text: Sequence[str]) -> Runner:
        """Compiles the function, and beside it one that is recorded, for calls while PyTorch's profiler is on."""
        plain = compile("\n".join(text), _FILE, "exec")
        if not self.launches:
            exec(plain, self.scope)  # noqa: S102 - our own text
            return self.scope["run"]
        profiled = Profiled(plain, dict(self.scope), self.launches, on_gpu=not self.threads)
        asked = f"    if profiler._is_profiler_enabled: return profiled(*{tuple_of(self.arguments)})"
        self.scope |= {"profiler": profiler, "profiled": profiled}
        exec(compile("\n".join((text[0], asked, *text[1:])), _FILE, "exec"), self.scope)  # noqa: S102 - our own text
        if "threads" in self.scope:
            forked.at_most_one_thread_in_children(self.scope["run"])
        return self.scope["run"]


_WRITTEN = "weft_had_written"


def _mark_written(error: Exception, wrote: bool) -> None:
    if wrote:
        setattr(error, _WRITTEN, True)


def has_written(error: BaseException) -> bool:
    """Tells whether the run of a plan that ended with `error` had begun to write into an argument: the graph must not run again."""
    return getattr(error, _WRITTEN, False)


def _write(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for argument, value in pairs:
            argument.copy_(value)


def _output_axes(program: TensorProgram, index: int) -> tuple[tuple[Axis, ...], tuple[Axis | None, ...]]:
    """Returns the axes of an output's value, and its dimensions as the user sees them."""
    axes = program.values()[program.outputs[index]].axes
    return axes, program.output_dims[index] if program.output_dims else axes


def _apart(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns `tensor`, or a copy where it lies in the memory of one of `others`."""
    memory = storage_of(tensor)
    return tensor.clone() if any(storage_of(other) == memory for other in others) else tensor


def _form(axes: Sequence[Axis], dims: Sequence[Axis | None]) -> ShownDims:
    """Returns the form of a tensor with `dims` that shows a value with `axes`."""
    return tuple(None if axis is None else axes.index(axis) for axis in dims)


def form_of(operand: Operand) -> ShownDims:
    """Returns the form of a tensor that goes into a call or comes out of it."""
    order = iter(operand.order if operand.order is not None else range(sum(operand.kept)))
    return tuple(next(order) if kept else None for kept in operand.kept)


def _forms(captured: Captured, program: TensorProgram, steps: Iterable[PlanStep]) -> dict[str, ShownDims]:
    """Returns for values that go out, or that PyTorch reads, the form of the first tensor that is wanted."""
    found: dict[str, ShownDims] = {}
    for result in captured.results:
        if isinstance(result, FromProgram):
            found.setdefault(program.outputs[result.index], _form(*_output_axes(program, result.index)))
    for step in steps:
        if isinstance(step, CallStep) and not step.call.look:
            for leaf in pytree.tree_leaves((step.call.args, step.call.kwargs)):
                if isinstance(leaf, Operand):
                    found.setdefault(step.aliases.get(leaf.value, leaf.value), form_of(leaf))
    return found


def _gives_one(call: OpaqueCall) -> bool:
    """Tells whether a call gives just one tensor, and no list of them."""
    returns = cast("Any", call.target)._schema.returns if isinstance(call.target, OpOverload) else ()  # noqa: SLF001 - no public name
    return len(returns) == 1 and str(returns[0].type) == "Tensor"
