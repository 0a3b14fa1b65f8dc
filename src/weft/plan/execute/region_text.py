"""The text of a runner that runs regions.

Where kernels are C functions, the runner itself allocates what they write and packs what they are told. A launcher would have to be
given a tensor for each view, and a kernel of a few microseconds would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.errors import Location
from weft.plan.execute.lifetimes import Lifetimes
from weft.plan.execute.nothing import added_up, as_written
from weft.plan.execute.scratch import Scratch
from weft.plan.execute.sizes import SizeSource, found
from weft.plan.execute.steps import PlanStep, RegionStep, ViewStep
from weft.plan.execute.strided import ShownDims, Strided, ValueText, as_it_is, derived
from weft.run.launch import OutputSpec, PackedCall, call_lines, packing, tuple_of
from weft.tensor.axes import Space
from weft.tensor.laws import View
from weft.tensor.program import TensorProgram

_ALIGNED = 15
"""Bits of an address that are 0 in what kernels are given for results: a GPU's kernels count on it."""
SCRATCH = "scratch"
"""What a runner calls the memory of small results that only its kernels read."""


@dataclass
class RegionText:
    """What is written of a runner, but for PyTorch's calls and results.

    Attributes:
        arguments: of the runner.
        forms: those in which values are shown, where that is not in their own dimensions alone.
        program: the whole program.
        threads: how many the kernels take that can be called without their launchers; one entry where all take as many.
        scope: the constants.
        lines: of the function.
        launches: which of the constants launch kernels: what each is called, and the user's lines.
        lifetimes: how long the memory of each value is read.
        kinds: names of element types.
        scratch: where small ones of these lie.
        values: how each value of the program is written.
        step: the number of the one that is being written.
    """

    arguments: list[str]
    forms: Mapping[str, ShownDims]
    program: TensorProgram
    threads: frozenset[int | None]
    lifetimes: Lifetimes
    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: list[str] = field(default_factory=list[str])
    launches: dict[str, tuple[str, tuple[Location, ...]]] = field(
        default_factory=dict[str, "tuple[str, tuple[Location, ...]]"]
    )
    kinds: dict[torch.dtype, str] = field(default_factory=dict[torch.dtype, str])
    scratch: Scratch = field(default_factory=Scratch)
    values: ValueText = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        """Begins with no value."""
        self.values = ValueText(self.lines)

    def constant(self, value: Any) -> str:
        """Names an object."""
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def given_all(self) -> str:
        """Names the tuple of all arguments."""
        return self.values.number(tuple_of(self.arguments), key="arguments")

    def region(self, step: RegionStep) -> None:
        """Writes the launches of a region's kernels."""
        packed = _packed(step)
        if packed is not None and len(self.threads) <= 1:
            self.called(step, packed)
        else:
            self.launched(step)

    def called(self, step: RegionStep, packed: Sequence[PackedCall]) -> None:
        """Writes calls of a region's kernels that are told where values lie, and of which each result is allocated here."""
        own = {inner: self.values[outer] for inner, outer in step.reads}
        forms = {inner: self.forms[outer] for inner, outer in step.writes if outer in self.forms}
        full = self.full(step, {inner: lies.sizes for inner, lies in own.items()})
        for place, (kernel, call) in enumerate(zip(step.region.kernels, packed, strict=True)):
            signature, over = call.signature, {} if full else self.overwritten(step, place)
            reads = [own[name] for name in kernel.reads[: len(signature.inputs)]]
            passed = {name: self.size(step.sizes[name]) for name in signature.passed}
            sizes = {n: passed[n] if i is None else reads[i].sizes[d] for n, i, d in signature.sizes}
            for number, (name, spec) in enumerate(zip(kernel.writes, signature.outputs, strict=True)):
                if number not in signature.given:
                    form = forms.get(name)
                    there = self.whole(step, over.get(number), own, form)
                    own[name] = self.inside(step, name, spec, sizes) or self.allocated(spec, sizes, form, there)
            writes = [own[name] for name in kernel.writes]
            words = [*(each.address for each in (*reads, *writes)), *sizes.values()]
            words += [stride for each in reads for stride in each.strides]
            function, pack = self.constant(call.function), self.constant(packing(signature))
            self.launches[function] = kernel.name, step.places
            lines = call_lines(signature, [*words, "count"], function, pack)
            self.lines.append("\n".join([f"if {full}:", *(f"    {line}" for line in lines)] if full else lines))
        if full:
            taken = tuple_of([own[name].tensor for name in step.region.program.outputs])
            written = self.as_written(step, {inner: self.values.text(outer) for inner, outer in step.reads})
            self.lines.append(f"if not {full}: {self.constant(_fill)}({taken}, {written})")
        read = dict(step.reads)
        for inner, outer in step.writes:
            if inner in read:
                self.values.alias(outer, read[inner])
            else:
                form = None if own[inner].kind else forms.get(inner, as_it_is(len(own[inner].sizes)))
                self.values.put(outer, own[inner], form)

    def inside(self, step: RegionStep, name: str, spec: OutputSpec, sizes: Mapping[str, str]) -> Strided | None:
        """Finds a place for a kernel's result beside others in memory; None for one that is large, or that PyTorch sees."""
        outer = step.first_name(name)
        dims = _dims(spec, sizes)
        if (outer is not None and outer not in self.lifetimes.inside) or not all(map(str.isdigit, dims)):
            return None
        bytes_, last = spec.dtype.bytes, self.step if outer is None else self.lifetimes.last[outer]
        start = self.scratch.place(math.prod(map(int, dims)) * bytes_, self.step, last)
        if start is None:
            return None
        lies = self.values.dense_in(SCRATCH, dims, bytes_)
        return replace(lies, start=str(start // bytes_), kind=self.kind(getattr(torch, spec.dtype.name)))

    def overwritten(self, step: RegionStep, place: int) -> dict[int, str]:
        """Finds outputs of a region's kernel, by number, that may be the memory of an operand which nothing reads any more."""
        kernel, outer = step.region.kernels[place], dict(step.reads)

        def memory(name: str) -> tuple[bool, str]:
            return name in outer, self.lifetimes.memory(outer[name]) if name in outer else name

        later = [name for each in step.region.kernels[place + 1 :] for name in each.reads]
        still = {memory(name) for name in (*later, *step.region.program.outputs)}
        read, found = [memory(name) for name in kernel.reads], dict[int, str]()
        for output, operand in kernel.over if kernel.launch is kernel.made.launch else ():
            known, value = read[operand]
            if known and (value not in self.lifetimes.own or self.lifetimes.last[value] != self.step):
                continue
            if read.count(read[operand]) == 1 and read[operand] not in still:
                found.setdefault(output, kernel.reads[operand])
        return found

    def whole(
        self, step: RegionStep, operand: str | None, own: Mapping[str, Strided], form: ShownDims | None
    ) -> str | None:
        """Names the tensor that an operand is, where that shows it in a form, and nothing else."""
        if operand is None or own[operand].kind or own[operand].start != "0":
            return None
        outer = dict(step.reads).get(operand)
        form = as_it_is(len(own[operand].sizes)) if form is None else form
        if outer is None:
            return own[operand].memory if form == as_it_is(len(own[operand].sizes)) else None
        return own[operand].memory if self.values.is_shown(outer, own[operand].memory, form) else None

    def allocated(
        self, spec: OutputSpec, sizes: Mapping[str, str], form: ShownDims | None, over: str | None
    ) -> Strided:
        """Writes the allocation of a kernel's result, a tensor in a form; `over`: one that it may be if that lies as it would."""
        kind = self.kind(getattr(torch, spec.dtype.name))
        there = None if over is None else (self.constant(_free), over)
        return self.values.allocated(_dims(spec, sizes), kind, spec.dtype.bytes, form, there)

    def kind(self, dtype: torch.dtype) -> str:
        """Names an element type."""
        if dtype not in self.kinds:
            self.kinds[dtype] = self.constant(dtype)
        return self.kinds[dtype]

    def launched(self, step: RegionStep) -> None:
        """Writes launches of a region's kernels that take tensors and give tensors."""
        own = {inner: self.values.tensor(outer) for inner, outer in step.reads}
        seen = step.reads if added_up(step.region.program) else ()
        given, full = dict(own), self.full(step, {inner: self.values[outer].sizes for inner, outer in seen})
        for place, kernel in enumerate(step.region.kernels):
            passed = [self.size(step.sizes[name]) for name in kernel.sizes]
            over = [f"over={self.constant(_free)}({own[each]})" for each in self.overwritten(step, place).values()]
            arguments = ", ".join([*(own[name] for name in kernel.reads), *passed, *over])
            for name in kernel.writes:
                own[name] = own[name] if name in kernel.reads else self.values.variable()
            taken = tuple_of([own[name] for name in kernel.writes])
            otherwise = f" if {full} else {(None,) * len(kernel.writes)}" if full else ""
            launch = self.constant(kernel.launch)
            self.launches[launch] = kernel.name, step.places
            self.lines.append(f"{taken} = {launch}({arguments}){otherwise}")
        if full:
            taken = tuple_of([own[name] for name in step.region.program.outputs])
            self.lines.append(f"{taken} = {taken} if {full} else {self.as_written(step, given)}")
        nodes = self.program.values()
        for inner, outer in step.writes:
            self.values.held(outer, own[inner], nodes[outer].axes, nodes[outer].dtype.bytes)

    def full(self, step: RegionStep, own: Mapping[str, Sequence[str]]) -> str:
        """Names what says whether loops that add up have something to add up; empty where they always have.

        `own`: sizes of each value that the region reads.
        """
        sizes: list[str] = []
        for space in added_up(step.region.program):
            inputs = step.region.program.inputs
            place = next(((n.name, d) for n in inputs for d, a in enumerate(n.axes) if a.space == space), None)
            if place is not None:
                sizes.append(own[place[0]][place[1]])
            elif space.name in step.sizes:
                sizes.append(self.size(step.sizes[space.name]))
        open_sizes = dict.fromkeys(size for size in sizes if not size.isdigit() or size == "0")
        return self.values.number(" and ".join(open_sizes)) if open_sizes else ""

    def as_written(self, step: RegionStep, given: Mapping[str, str]) -> str:
        """Writes the results of a region as its program computes them, node by node."""
        program = step.region.program
        values = ", ".join(f"{self.constant(n.name)}: {given[n.name]}" for n in program.inputs)
        sizes = ", ".join(f"{self.constant(name)}: {self.size(place)}" for name, place in step.sizes.items())
        return f"{self.constant(as_written)}({self.constant(program)}, {{{values}}}, {{{sizes}}})"

    def views(self, step: ViewStep) -> None:
        """Says where views of values lie, and writes those that must be made."""
        shown = {n.name for n in step.program.inputs} - {v.name for v in step.made}
        for view in step.made:
            sizes = [self.extent(axis.space, step.program, shown) for axis in view.axes]
            lies, source = self.values.view(view, sizes), self.values[view.source]
            if lies is not None:
                self.values.put(view.name, lies)
                continue
            tensor = self.values.tensor(view.source)
            text = f"{self.constant(_viewed)}({self.constant(view)}, {tensor}, {tuple_of(sizes)})"
            self.values.let(view.name, text, view.axes, source.itemsize)

    def extent(self, space: Space, program: TensorProgram, shown: Collection[str]) -> str:
        """Writes the size of one of the spaces of `program`, of whose values those are there."""
        return str(space.fixed) if space.fixed is not None else self.size(found(space, program, shown))

    def size(self, place: SizeSource) -> str:
        """Writes a size, read off a tensor at each call."""
        if place.number is None:
            text = self.values[place.value].sizes[place.dim]
        else:
            given = f"{self.constant(place.number.value)}({self.given_all()})"
            text = self.values.number(given, key=place.number)
        for rule in place.rules:
            text = derived(rule, self.values.number(text))
        return self.values.number(text)


def _dims(spec: OutputSpec, sizes: Mapping[str, str]) -> list[str]:
    return [str(d) if isinstance(d, int) else sizes[d] for d in spec.dims]


def packed_threads(steps: Iterable[PlanStep]) -> frozenset[int | None]:
    """Lists how many threads the kernels of regions take of which all can be called without their launchers."""
    regions = (step for step in steps if isinstance(step, RegionStep))
    return frozenset(call.threads for step in regions for call in _packed(step) or ())


def _packed(step: RegionStep) -> list[PackedCall] | None:
    """Lists what calls a region's kernels without their launchers; None where one of them cannot be called so."""
    calls = [k.made.packed if k.launch is k.made.launch else None for k in step.region.kernels]
    found = [call for call in calls if call is not None]
    return found if len(found) == len(calls) else None


def _free(tensor: torch.Tensor, strides: tuple[int, ...] | None = None) -> torch.Tensor | None:
    """Returns a tensor of the run's own that a result may be written over; None for one that lies otherwise than the result would,
    with `strides`, or contiguous, or is a part of more memory, which would be kept for as long as the result is.
    """
    alike = tensor.is_contiguous() if strides is None else tensor.stride() == strides
    alike = alike and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alike and not tensor.data_ptr() & _ALIGNED and not tensor.requires_grad else None


def _fill(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _viewed(view: View, source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Makes the tensor that `view` describes."""
    if not source.numel():
        # Of a tensor without elements there is no first one to show; nothing reads what is said to be it.
        return source.new_zeros(tuple(shape))
    return _flipped(view, source, shape)


def _flipped(view: View, source: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Makes the tensor that `view` describes. PyTorch has no negative strides: a dimension that runs backwards is
    flipped, a copy.
    """
    strides = view.strides(source.stride())
    if min(strides, default=0) >= 0:
        return source.as_strided(shape, strides, source.storage_offset() + view.offset(source.shape, source.stride()))
    return _flipped(view.turned(), source.flip(view.backwards), shape)
