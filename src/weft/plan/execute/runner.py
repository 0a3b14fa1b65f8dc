"""The callable that runs a plan: straight-line Python, written for it, from a graph's arguments to its outputs.

A kernel of a few microseconds must not wait for dictionaries and loops over steps. What is no longer read is let go at once, so
that its memory serves the next result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, assert_never

import torch
from torch.autograd import profiler

from weft.capture import (
    Captured,
    Effect,
    FromArgument,
    FromNothing,
    FromProgram,
    FromSizes,
    OpaqueCall,
    as_read,
    in_order,
    laid_out,
    with_dims,
)
from weft.capture.memory import storage_of
from weft.errors import Location
from weft.plan.choose.region import CompiledRegion
from weft.plan.execute.instead import REFUSALS, Instead
from weft.plan.execute.memory import is_seen_since_laws, is_theirs, made_of_the_same, owner
from weft.plan.execute.nothing import added_up, as_written
from weft.plan.execute.profiled import Profiled
from weft.plan.execute.sizes import SizeSource, found
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.laws import View
from weft.tensor.program import Input, Opaque, TensorProgram

Runner: TypeAlias = Callable[..., Sequence[Any]]
"""Takes a graph's arguments, gives its outputs."""

_WROTE = "wrote = True"
"""A line of a runner after which the graph must not run again: an argument is not as it was."""

_FILE = "<runner of a plan>"
_VARIABLE = re.compile(r"\bv\d+\b")


def kept_dims(node: Input) -> tuple[bool, ...]:
    """Tells for each dimension of the tensor whether it has an axis: a dimension of size 1 has none."""
    return tuple(axis is not None for axis in node.dims or node.axes)


@dataclass(frozen=True, slots=True, eq=False)
class CallStep:
    """A call into PyTorch; `aliases` says which value stands, after the laws, for each one that the call names.

    A write `in_place` changes its first argument itself.
    """

    call: OpaqueCall
    aliases: Mapping[str, str]
    in_place: bool = False

    @property
    def run(self) -> Callable[..., Mapping[str, torch.Tensor]]:
        """Takes values by name and the graph's arguments, gives results by name."""
        target = self.call.target
        if not isinstance(target, Effect):
            return self.call.run
        return replace(self.call, target=replace(target, in_place=self.in_place)).run


@dataclass(frozen=True, slots=True, eq=False)
class ViewStep:
    """The views that a region reads: the memory of its other inputs, no copy unless an index runs backwards."""

    program: TensorProgram
    made: tuple[View, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RegionStep:
    """The kernels of a region; `reads` and `writes`: what its values are called in it, and in the whole program.

    `sizes`: for each size that a kernel is passed, where it is found. `places`: the user's lines that it computes.
    """

    region: CompiledRegion
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    sizes: Mapping[str, SizeSource]
    places: tuple[Location, ...] = ()


PlanStep = CallStep | ViewStep | RegionStep


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
    text = _Text([f"a{i}" for i in range(arguments)])
    text.held = [text.constant(tensor) for tensor in captured.constants]
    for node, index in zip(program.inputs, captured.arguments, strict=True):
        kept, given = kept_dims(node), text.given(index)
        text.names[node.name] = given
        if not all(kept):
            text.let(node.name, f"{given}[{text.constant(tuple(slice(None) if keep else 0 for keep in kept))}]")
    for step in steps:
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
    return text.function(instead)


@dataclass
class _Text:
    """The function being written.

    `names` says how each value of the program is written, `scope` holds the constants, `held` names the graph's own tensors there.
    `launches` says which of the constants launch kernels: what each is called, and the user's lines.
    """

    arguments: list[str]
    held: list[str] = field(default_factory=list[str])
    names: dict[str, str] = field(default_factory=dict[str, str])
    lines: list[str] = field(default_factory=list[str])
    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    launches: dict[str, tuple[str, tuple[Location, ...]]] = field(
        default_factory=dict[str, "tuple[str, tuple[Location, ...]]"]
    )
    variables: int = 0

    def constant(self, value: Any) -> str:
        """Names an object."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def given(self, index: int) -> str:
        """Names an argument of the graph, or after these a tensor that the graph holds."""
        return [*self.arguments, *self.held][index]

    def variable(self) -> str:
        """Names a new variable."""
        self.variables += 1
        return f"v{self.variables}"

    def let(self, value: str, expression: str) -> None:
        """Computes a value of the program."""
        name = self.variable()
        self.lines.append(f"{name} = {expression}")
        self.names[value] = name

    def call(self, step: CallStep, program: TensorProgram) -> None:
        """Writes a call into PyTorch; its result is made such as kernels read, or raises: tracing knows no more than a
        call's fake says.
        """
        if step.call.look:
            self.look(step.call, step.aliases)
            return
        own = {n.name: n for n in program.nodes if isinstance(n, Opaque) and n.call == step.call.name}
        # Names of values are constants, never text: a user's own may read like a variable of the runner.
        given = ", ".join(
            f"{self.constant(value)}: {self.names[step.aliases.get(value, value)]}" for value in step.call.reads
        )
        made = self.variable()
        self.lines.append(f"{made} = {self.constant(step.run)}({{{given}}}, {_tuple(self.arguments)})")
        for result in step.call.results:
            if result is None:
                continue
            given, node = f"{made}[{self.constant(result.value)}]", own.get(result.value)
            if node is not None and not result.flagged and node.dtype is not DType.unknown:
                kind = self.constant(getattr(torch, node.dtype.name))
                given = f"{self.constant(as_read)}({given}, {kind}, {self.constant(node.call)})"
            self.let(result.value, given)

    def look(self, call: OpaqueCall, aliases: Mapping[str, str]) -> None:
        """Writes a view that PyTorch makes of a value's own axes."""
        (source,), (result,), (_, *rest) = call.reads, call.results, call.args
        assert result is not None, "who looks at a value wants to see it"
        given = [self.names[aliases.get(source, source)], *map(repr, rest)]
        self.let(result.value, f"{self.constant(call.target)}({', '.join(given)})")

    def region(self, step: RegionStep) -> None:
        """Writes the launches of a region's kernels."""
        own = {inner: self.names[outer] for inner, outer in step.reads}
        given, empty = dict(own), self.empty(step, own)
        for kernel in step.region.kernels:
            sizes = [self.size(step.sizes[name]) for name in kernel.sizes]
            for name in kernel.writes:
                own[name] = own[name] if name in kernel.reads else self.variable()
            passed = ", ".join([*(own[name] for name in kernel.reads), *sizes])
            taken = _tuple(own[name] for name in kernel.writes)
            otherwise = f" if full else {(None,) * len(kernel.writes)}" if empty else ""
            launch = self.constant(kernel.launch)
            self.launches[launch] = kernel.name, step.places
            self.lines.append(f"{taken} = {launch}({passed}){otherwise}")
        if empty:
            program = step.region.program
            taken = _tuple(own[name] for name in program.outputs)
            values = ", ".join(f"{self.constant(name)}: {given[name]}" for name in (n.name for n in program.inputs))
            sizes = ", ".join(f"{self.constant(name)}: {self.size(place)}" for name, place in step.sizes.items())
            written = f"{self.constant(as_written)}({self.constant(program)}, {{{values}}}, {{{sizes}}})"
            self.lines.append(f"{taken} = {taken} if full else {written}")
        self.names.update({outer: own[inner] for inner, outer in step.writes})

    def empty(self, step: RegionStep, own: Mapping[str, str]) -> bool:
        """Asks whether loops that add up have something to add up, which `full` then says; False where they always have."""
        sizes: list[str] = []
        for space in added_up(step.region.program):
            place = next(
                ((n.name, d) for n in step.region.program.inputs for d, a in enumerate(n.axes) if a.space == space),
                None,
            )
            if place is not None:
                sizes.append(f"{own[place[0]]}.shape[{place[1]}]")
            elif space.name in step.sizes:
                sizes.append(self.size(step.sizes[space.name]))
        if sizes:
            self.lines.append(f"full = {' and '.join(sizes)}")
        return bool(sizes)

    def views(self, step: ViewStep) -> None:
        """Writes strided tensors over the memory of their sources."""
        shown = {n.name for n in step.program.inputs} - {v.name for v in step.made}
        for view in step.made:
            sizes = [
                str(a.space.fixed) if a.space.fixed is not None else self.size(found(a.space, step.program, shown))
                for a in view.axes
            ]
            shape = _tuple(sizes)
            source = self.names[view.source]
            if any(c < 0 for index in view.index for _, c in index.terms):
                self.let(view.name, f"{self.constant(_flipped)}({self.constant(view)}, {source}, {shape})")
                continue
            strides = self.variable()
            self.lines.append(f"{strides} = {source}.stride()")
            steps: dict[Axis, list[str]] = {a: [] for a in view.axes}
            for dim, index in zip(view.dims, view.index, strict=True):
                for axis, coefficient in index.terms:
                    steps[axis].append(f"{coefficient} * {strides}[{dim}]")
            offsets = [
                f"{strides}[{dim}] * ({index.offset}{f' + {source}.shape[{dim}] - 1' if index.from_end else ''})"
                for dim, index in zip(view.dims, view.index, strict=True)
                if index.offset or index.from_end
            ]
            made = _tuple(" + ".join(terms) or "0" for terms in steps.values())
            start = " + ".join([f"{source}.storage_offset()", *offsets])
            # Of a tensor without elements there is no first one to show; nothing reads what is said to be it.
            none = (
                f" if {source}.numel() else {source}.new_zeros({shape})" if any(not i.terms for i in view.index) else ""
            )
            self.let(view.name, f"{source}.as_strided({shape}, {made}, {start}){none}")

    def size(self, place: SizeSource) -> str:
        """Writes a size, read off a tensor at each call."""
        if place.number is None:
            text = f"{self.names[place.value]}.shape[{place.dim}]"
        else:
            text = f"{self.constant(place.number.value)}({_tuple(self.arguments)})"
        for rule in place.rules:
            text = f"{self.constant(rule.size)}({text})"
        return text

    def output(self, program: TensorProgram, index: int) -> str:
        """Writes an output of the program with the dimensions that the user sees."""
        axes, dims = _output_axes(program, index)
        text = self.names[program.outputs[index]]
        return (
            text
            if dims == axes
            else f"{self.constant(with_dims)}({text}, {self.constant(axes)}, {self.constant(dims)})"
        )

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
            pairs = _tuple(f"({self.given(argument)}, {value})" for argument, value in writes.items())
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
                        seen = _tuple(self.names[name] for name in others[program.outputs[index]])
                        text = f"{self.constant(_apart)}({text}, {seen})"
                    made = values[program.outputs[index]]
                    anyhow = isinstance(made, Opaque) and not captured.calls[made.call].pinned
                    text = self.ordered(text, program, index, order, anyhow=anyhow)
                    if layout is not None:
                        given = f"{self.constant(layout)}, {_tuple(self.arguments)}"
                        text = f"{self.constant(laid_out)}({text}, {given})"
                    found.append(text)
                case FromArgument(index):
                    found.append(self.given(index))
                case FromSizes(number, told):
                    pairs = [f"{self.constant(operand)}: {self.output(program, index)}" for operand, index in told]
                    seen = f"{{{', '.join(pairs)}}}.__getitem__"
                    found.append(f"{self.constant(number.value)}({_tuple(self.arguments)}, {seen})")
                case FromNothing(value):
                    found.append(self.constant(value))
                case _:
                    assert_never(result)
        return found

    def function(self, instead: Instead | None) -> Runner:
        """Compiles what was written; each variable goes after the last line that has it."""
        last = {name: number for number, line in enumerate(self.lines) for name in _VARIABLE.findall(line)}
        text = [f"def run({', '.join(self.arguments)}):"]
        for number, line in enumerate(self.lines):
            text.append(f"    {line}")
            gone = sorted(name for name, place in last.items() if place == number < len(self.lines) - 1)
            text += [f"    del {', '.join(gone)}"] if gone else []
        if instead is not None:
            given = _tuple(self.arguments)
            self.scope |= {
                "gone": instead.gone,
                "refused": instead.refused,
                "knows": instead.knows,
                "note": instead.note,
            }
            self.scope |= {"eager": instead.eager, "REFUSALS": REFUSALS, "mark": _mark_written}
            # What was made so far is let go of: PyTorch needs the memory.
            freed = " = ".join([*(f"v{number + 1}" for number in range(self.variables)), "None"])
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
        profiled = Profiled(plain, dict(self.scope), self.launches)
        asked = f"    if profiler._is_profiler_enabled: return profiled(*{_tuple(self.arguments)})"
        self.scope |= {"profiler": profiler, "profiled": profiled}
        exec(compile("\n".join((text[0], asked, *text[1:])), _FILE, "exec"), self.scope)  # noqa: S102 - our own text
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


def _tuple(items: Iterable[str]) -> str:
    return f"({''.join(f'{item}, ' for item in items)})"


def _output_axes(program: TensorProgram, index: int) -> tuple[tuple[Axis, ...], tuple[Axis | None, ...]]:
    """Returns the axes of an output's value, and its dimensions as the user sees them."""
    axes = program.values()[program.outputs[index]].axes
    return axes, program.output_dims[index] if program.output_dims else axes


def _apart(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns `tensor`, or a copy where it lies in the memory of one of `others`."""
    memory = storage_of(tensor)
    return tensor.clone() if any(storage_of(other) == memory for other in others) else tensor


def _flipped(view: View, source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Makes the tensor that `view` describes. PyTorch has no negative strides: a dimension that runs backwards is
    flipped, a copy.
    """
    strides = view.strides(source.stride())
    if min(strides, default=0) >= 0:
        return source.as_strided(shape, strides, source.storage_offset() + view.offset(source.shape, source.stride()))
    return _flipped(view.turned(), source.flip(view.backwards), shape)
