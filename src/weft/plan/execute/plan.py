"""Making the plan of a whole captured graph: its regions are cut, and their kernels chosen and built."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.capture import Captured, Fallback, RuntimeNumber, without_units
from weft.defects import note, reason_of
from weft.errors import CacheFolderError, CompilerError, Location, SchemeError, UnknownOptionError
from weft.plan.execute.at_once import left_at_once
from weft.plan.execute.calls import calls_of, lone_matmuls
from weft.plan.execute.foresight import constant_sizes, foreseen, nothing_foreseen
from weft.plan.execute.instead import Instead
from weft.plan.execute.laws import after_laws
from weft.plan.execute.library import for_the_library, left_to_the_library
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.made import Plan, running, size_class
from weft.plan.execute.regions import Prepared, Regions
from weft.plan.execute.runner import Runner
from weft.plan.execute.schemed import as_asked
from weft.plan.execute.sizes import found, tells
from weft.plan.execute.sparsity import classes_of
from weft.plan.execute.steps import CallStep, PlanStep, RegionStep, ViewStep, kept_dims
from weft.plan.execute.writes import with_writes_in_place, written_over
from weft.plan.partition.partition import Region, Task, TorchCall
from weft.plan.partition.schemes import Scheme, operators, told
from weft.plan.progress import RegionDone, RegionStarted, shown, tell
from weft.plan.targets import toolchain
from weft.plan.targets.compiled import CompiledRegion
from weft.plan.targets.graphs import capturing
from weft.plan.targets.home import gpu_of, home
from weft.plan.targets.lying import Lying
from weft.run.compiler import compiler_works
from weft.target import Target
from weft.tensor.axes import Space
from weft.tensor.program import Opaque, TensorProgram


def plan(
    captured: Captured, arguments: Sequence[Any], eager: Runner, target: Target | None = None, *, tried: bool = True
) -> Plan:
    """Compile `captured`.

    Args:
        captured: what `capture` gave.
        arguments: example arguments of the graph, for sizes and strides.
        eager: runs the graph in PyTorch.
        target: of the kernels; None: where the arguments live.
        tried: whether a trial against PyTorch follows, which may ask for the plan with the library's matmuls.

    Raises:
        CompilerError: there is no working compiler.
        TargetError: weft has no kernels for where the arguments live, or runs none there.
        SchemeError: the option `scheme` is for other graphs, or asks for kernels that cannot be.
        Everything else that weft cannot do runs in PyTorch, with its reason.
    """
    if captured.program is None:
        refused = (captured.refused,) if captured.refused is not None else ()
        return _in_pytorch(captured, tuple(dict.fromkeys((*captured.fallbacks, *refused))), eager)
    place = home(arguments)
    if target is None:
        toolchain(place).demand_running()
    target = target or place
    device = gpu_of(arguments) if target == place else None
    times = LibraryTimes(captured.recording, device)
    with shown():
        chooses = Regions({}, target, device, builds=False)
        own = functools.partial(_own_scheme, captured, arguments, chooses, times, tried=tried)
        captured, scheme = as_asked(captured, target, own)
        known = Regions({}, target, device, scheme=scheme)
        while True:
            made = _attempt(captured, arguments, eager, known, times, tried=tried)
            if isinstance(made, Plan):
                return replace(made, size_class=size_class(arguments), device=gpu_of(arguments))
            assert captured.leaving is not None
            captured = captured.leaving(made)


def _after_their_sizes(
    stages: Sequence[Task], program: TensorProgram, numbers: Mapping[Space, RuntimeNumber], in_place: Collection[str]
) -> list[Task]:
    """Move regions of `stages` behind the calls whose results alone tell how long their loops are, if no write is in between."""
    ordered = list(stages)
    for stage in [stage for stage in stages if isinstance(stage, Region)]:
        place = ordered.index(stage)
        there = {n.name for n in program.inputs}.union(*(each.results for each in ordered[:place]))
        untold = {s for s in stage.program.spaces() if s.fixed is None and not tells(s, program, there, numbers)}
        behind = place
        for number, passed in enumerate(ordered[place + 1 :] if untold else (), place + 1):
            written = isinstance(passed, TorchCall) and passed.name in in_place
            if written or not set(stage.results).isdisjoint(passed.uses):
                break
            there.update(passed.results)
            told = {space for space in untold if tells(space, program, there, numbers)}
            behind, untold = (number, untold - told) if told else (behind, untold)
        ordered[place : behind + 1] = [*ordered[place + 1 : behind + 1], stage]
    return ordered


def _attempt(
    captured: Captured, arguments: Sequence[Any], eager: Runner, known: Regions, times: LibraryTimes, *, tried: bool
) -> Plan | Mapping[int, str]:
    """Make the plan, or return the calls that PyTorch is to run in another attempt, by number, and why: a region failed, or the
    library is faster.

    `times`: of the library; `tried`: whether a trial follows.
    """
    assert captured.program is not None
    made = after_laws(captured, known.target)
    program: TensorProgram = made.program
    trace = list(made.steps)
    _begin(known, captured, program, _inputs(captured, program, arguments))
    if tried and (calls := left_at_once(captured, program, len(arguments), known, times)):
        return calls
    steps: list[PlanStep] = []
    regions: list[CompiledRegion] = []
    failed: dict[int, str] = {}
    cut: list[Region] = []
    try:
        stages = known.stages(captured.program, made)
        scheme = known.scheme_of(program, stages, captured.left)
        stages, in_place = with_writes_in_place(captured, program, stages)
        known.go_on()
        ahead = foreseen(captured, program, len(arguments), stages, known, times) if tried else nothing_foreseen
        there = {n.name for n in program.inputs}
        number, count = 0, sum(isinstance(stage, Region) for stage in stages)
        for stage in _after_their_sizes(stages, program, captured.sizes, in_place):
            if isinstance(stage, TorchCall):
                aliases = _aliases(captured.program, program, stage.name)
                steps.append(CallStep(captured.calls[stage.name], aliases, stage.name in in_place))
            else:
                number += 1
                tell(RegionStarted(number, count))
                try:
                    region = known.built(stage)
                    steps += _region_steps(known.prepared(stage), region, program, there, captured.sizes)
                    regions.append(region)
                    trace += (*known.prepared(stage).steps, *region.trace)
                    cut.append(stage)
                except Exception as error:  # noqa: BLE001 - whatever it is, this region alone goes to PyTorch
                    note(error)
                    failed |= _left_to_pytorch(captured, program, stage, error, known.scheme)
                tell(RegionDone(number, count))
            there.update(stage.results)
        known.finish()
        if failed:
            return failed
        instead = Instead(eager) if toolchain(known.target).may_refuse else None
        run = running(captured, program, steps, len(arguments), in_place, eager, instead)
    except (CompilerError, CacheFolderError, UnknownOptionError):
        raise
    except Exception as error:  # noqa: BLE001 - a defect of weft's must not stop what eager can run; it is reported
        note(error)
        return _in_pytorch(captured, (*captured.fallbacks, Fallback("graph", reason_of(error))), eager)
    with_library = _other_plan(captured, program, cut, regions, known, times, ahead)
    captured = replace(captured, leaving=None, recording=None)  # they hold the whole recording
    rest = tuple(regions), captured.fallbacks, run, with_library, in_place, tuple(steps), len(arguments)
    return Plan(captured, program, *rest, trace=tuple(trace), scheme=scheme)


def _own_scheme(
    captured: Captured, arguments: Sequence[Any], known: Regions, times: LibraryTimes, *, tried: bool
) -> str:
    """Choose the scheme that a plan without the option has, if all of its kernels can be built; arguments as of `_attempt`."""
    while True:
        assert captured.program is not None
        made = after_laws(captured, known.target)
        _begin(known, captured, made.program, _inputs(captured, made.program, arguments))
        calls = left_at_once(captured, made.program, len(arguments), known, times) if tried else None
        if not calls:
            return known.scheme_of(made.program, known.stages(captured.program, made), captured.left)
        assert captured.leaving is not None
        captured = captured.leaving(calls)


def _begin(known: Regions, captured: Captured, program: TensorProgram, inputs: Mapping[str, torch.Tensor]) -> None:
    """Tell what is known of the regions of a graph what it is called with."""
    layouts = {name: _layout(t) for name, t in inputs.items()}
    masks = {} if capturing() else classes_of(inputs)
    constant = constant_sizes(captured)
    lying = {name: lies for name, t in inputs.items() if (lies := Lying.of(t)) is not None}
    varying = frozenset(space.name for space, number in captured.sizes.items() if number.symbols)
    known.begin(layouts, constant, written_over(captured, program), masks, lying, varying)


def _other_plan(
    captured: Captured,
    program: TensorProgram,
    cut: Sequence[Region],
    built: Sequence[CompiledRegion],
    known: Regions,
    times: LibraryTimes,
    ahead: Callable[[], Sequence[int] | None],
) -> Callable[[], Captured | None] | None:
    """Return what captures the graph again for the plan with the library's matmuls; None where it has none for the library.

    Args:
        captured, program: the graph as written, and after the laws.
        cut, built: its regions, and what became of each.
        known: of them.
        times: of the library.
        ahead: waits for what a child found.
    """
    if known.scheme is not None or not any(lone_matmuls(captured, region) for region in cut):
        return None
    fresh = Regions(known.layouts, known.target, constant=known.constant, masks=known.masks, lying=known.lying)
    seconds = [region.measured_seconds for region in built]
    worth_it = functools.partial(for_the_library, captured, program, cut, fresh, times, seconds)
    return functools.partial(_with_library, captured, worth_it, ahead)


def _with_library(
    captured: Captured, worth_it: Callable[[], Sequence[int]], ahead: Callable[[], Sequence[int] | None]
) -> Captured | None:
    """Capture the graph again with the matmuls left to PyTorch's library that are worth a trial; None where none are.

    Those that a child found `ahead`, which has chosen for that graph; else those that are found now to be `worth_it`.
    """
    calls = ahead()
    return left_to_the_library(captured, worth_it() if calls is None else calls)


def _refused(scheme: Scheme, program: TensorProgram, region: Region, error: Exception) -> SchemeError:
    """Say that a kernel which `scheme` asks for cannot be, for the reason `error`."""
    row, own = operators(program), {n.name for n in region.program.nodes}
    places = [i for i, operator in enumerate(row) if operator[0].name in own]
    said = ", ".join(told(row, i) for i in places)
    where = next((p for i in places if (p := getattr(row[i][0], "location", None)) is not None), None)
    return SchemeError(
        f"the fusion scheme {scheme.text(len(row))} asks for a kernel that weft cannot make: {said}: {reason_of(error)}",
        where=where,
        todo="end a kernel somewhere between these operators: give those before and those after it different bits",
    )


def _left_to_pytorch(
    captured: Captured, program: TensorProgram, region: Region, error: Exception, scheme: Scheme | None
) -> dict[int, str]:
    """Return the calls to leave to PyTorch since `region` of `program` failed, and why.

    Raises:
        CompilerError, CacheFolderError, UnknownOptionError: it is not the region's fault.
        SchemeError: a `scheme` asks for it.
        Exception: `error` itself, where there is no call to leave.
    """
    theirs = isinstance(error, CompilerError) and (error.kernel or (error.command and compiler_works()))
    if isinstance(error, CompilerError | CacheFolderError | UnknownOptionError) and not theirs:
        raise error
    if scheme is not None:
        raise _refused(scheme, program, region, error) from error
    calls = calls_of(captured, region, error)
    if not calls or captured.leaving is None:
        raise error
    return dict.fromkeys(calls, reason_of(error))


def _region_steps(
    prepared: Prepared,
    region: CompiledRegion,
    program: TensorProgram,
    values: Collection[str],
    numbers: Mapping[Space, RuntimeNumber],
) -> list[PlanStep]:
    """List the steps that run `region`, built for this region or another one of its form.

    Args:
        prepared, region: the region and what was built.
        program: the whole one.
        values: names of its values that are there before the region runs.
        numbers: spaces whose sizes the graph's arguments give.

    Raises:
        UnsupportedError: a kernel needs a size that none of these shows.
    """
    reads = zip(region.program.inputs, prepared.viewed.inputs, strict=True)
    writes = ((region.program.outputs[place], name) for place, name in prepared.results)
    spaces = zip(region.program.spaces(), prepared.viewed.spaces(), strict=True)
    passed = {name for kernel in region.kernels for name in kernel.sizes}
    sizes = {own.name: found(its, program, values, numbers) for own, its in spaces if own.name in passed}
    every = (getattr(node, "location", None) for node in prepared.region.program.nodes)
    places = tuple(dict.fromkeys(place for place in every if isinstance(place, Location)))
    step = RegionStep(region, tuple((own.name, its.name) for own, its in reads), tuple(writes), sizes, places)
    return [ViewStep(prepared.viewed, prepared.made), step] if prepared.made else [step]


def _in_pytorch(captured: Captured, fallbacks: tuple[Fallback, ...], eager: Runner) -> Plan:
    return Plan(captured, captured.program, (), fallbacks, eager)


def _inputs(captured: Captured, program: TensorProgram, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of the program's inputs, as its values are held: without dimensions of size 1."""
    given = (*arguments, *captured.constants)
    return {
        node.name: without_units(given[index], kept_dims(node))
        for node, index in zip(program.inputs, captured.arguments, strict=True)
    }


def _aliases(captured: TensorProgram, program: TensorProgram, call: str) -> dict[str, str]:
    """Return the new names of the values that the call `call` reads: laws merge equal values and rename."""
    old, new = (next(n for n in p.nodes if isinstance(n, Opaque) and n.call == call) for p in (captured, program))
    return {a: b for a, b in zip(old.uses, new.uses, strict=True) if a != b}


def _layout(tensor: torch.Tensor) -> int | None:
    """Return the dimension of `tensor` that has stride 1: the last such; None where there is none."""
    if tensor.layout != torch.strided:
        return None
    return next((d for d in reversed(range(tensor.ndim)) if tensor.stride(d) == 1), None)
