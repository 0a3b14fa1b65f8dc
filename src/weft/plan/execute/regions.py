"""Regions of one graph, selected for and built once for each form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from weft.cost import Machine, least_seconds
from weft.defects import note
from weft.errors import WeftError
from weft.garbage import uncollected
from weft.masks import Sparsity
from weft.options import current
from weft.phases import phase
from weft.pipeline import REGION
from weft.plan.choose.checked import VerdictsAhead
from weft.plan.choose.cuts import Cuts
from weft.plan.choose.refused import following
from weft.plan.choose.region import CompiledRegion, build_region, start_region
from weft.plan.execute.laws import AfterLaws
from weft.plan.execute.selections import (
    Prepared,
    all_closely,
    form_of,
    keep_for,
    key_parts,
    named_as,
    select_side_by_side,
    selected_before,
)
from weft.plan.judge.judging import demand
from weft.plan.partition.laws_check import laws_refuted
from weft.plan.partition.partition import Cut, Region, Task, linear, partition
from weft.plan.partition.schemes import Scheme, as_launched, cut_by, operators, scheme_of
from weft.plan.progress import PieceWeighed, tell
from weft.plan.targets import launch_specs, toolchain
from weft.plan.targets.bench import Judged
from weft.plan.targets.candidates import Candidate, Example, Leading, Selection
from weft.plan.targets.kept import keep, recalled
from weft.plan.targets.lying import Lying, dense
from weft.plan.targets.packed import unplaced
from weft.run.spread import are_side_by_side
from weft.target import CPU, Target
from weft.tensor.forms import Form, Forms
from weft.tensor.laws import View, in_one_memory, part, views
from weft.tensor.passes import Rewritten, Setting, Step
from weft.tensor.program import Input, TensorProgram
from weft.verify.fitted import with_own_rules


@dataclass
class Regions:
    """What is known of the regions of a graph.

    A model repeats its layers: regions that are one program up to names have one selection and one set of kernels.

    Attributes:
        layouts: for each input of the graph, its dimension of stride 1, if any.
        target: where the kernels run.
        device: the GPU on which they may be timed; None where the target is not here.
        constant: the spaces of the graph that are as long at each call as in the example, by name.
        writes: the calls of the graph that can write in place, by name, and the values that may be that memory before.
        scheme: says where graphs are cut; None: they are cut where that is predicted to be fastest.
        masks: the classes of those inputs of the graph that are masks, by name, where the example's elements are at hand.
        lying: how the inputs of the graph lie in memory at the example, by name, as far as that is known.
        builds: whether kernels are built; else they are only chosen.
        varying: the spaces of the graph that may have other lengths at other calls, by name.
    """

    layouts: Mapping[str, int | None]
    target: Target = CPU
    device: torch.device | None = None
    constant: frozenset[str] = frozenset()
    writes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    scheme: Scheme | None = None
    masks: Mapping[str, Sparsity] = field(default_factory=dict[str, Sparsity])
    lying: Mapping[str, Lying] = field(default_factory=dict[str, Lying])
    builds: bool = True
    varying: frozenset[str] = frozenset()
    _forms: Forms = field(default_factory=Forms)
    _prepared: dict[Region, Prepared] = field(default_factory=dict[Region, Prepared])
    _alike: dict[Form, Prepared] = field(default_factory=dict[Form, Prepared])
    _selected: dict[Form, Selection | WeftError] = field(default_factory=dict[Form, "Selection | WeftError"])
    _foreseen: set[Form] = field(default_factory=set[Form])
    _begun: dict[Form, list[object]] = field(default_factory=dict[Form, list[object]])
    _built: dict[Form, CompiledRegion] = field(default_factory=dict[Form, CompiledRegion])
    _called: set[tuple[Form, tuple[tuple[str, Lying], ...]]] = field(
        default_factory=set[tuple[Form, "tuple[tuple[str, Lying], ...]"]]
    )
    _handed: dict[str, Lying] = field(default_factory=dict[str, Lying])
    _leading: dict[Form, Leading] = field(default_factory=dict[Form, "Leading"])
    _verdicts: VerdictsAhead | None = None
    _waiting: list[Callable[[], object]] = field(default_factory=list["Callable[[], object]"])
    _later: list[Callable[[], object]] = field(default_factory=list["Callable[[], object]"])

    @phase("cuts")
    def stages(self, written: TensorProgram, made: AfterLaws) -> tuple[Task, ...]:
        """Returns the stages of what the laws made of `written`: as another process cut them, or cut now.

        Raises:
            SchemeError: the scheme is for another program, or not possible.
            RefutedError: the laws changed what is computed.
            VerificationError: it could not be checked that they did not.
        """
        program, lawful = made.program, made.lawful
        if self.scheme is not None:
            stages = cut_by(self.scheme, program)
            refuted = laws_refuted(written, lawful)
            if refuted is not None:
                raise refuted
            self.settled([stage for stage in stages if isinstance(stage, Region)])
            return stages
        plain, brought = unplaced(program)
        parts = key_parts("cuts", plain, self.example(program)) | {"written": repr(unplaced(written)[0])}
        parts["writes"] = repr(sorted(self.writes.items()))
        found = None if current().verify == "always" else recalled(parts, Cut, brought)
        if found is not None:
            for stage in found[0].stages:
                if isinstance(stage, Region):
                    self.settled([stage])
            return found[0].stages
        if self.builds:
            toolchain(self.target).warm()
        with uncollected():
            refuted = laws_refuted(written, lawful)
            if refuted is not None:
                raise refuted
            try:
                stages = Cuts(program, self, writes=self.writes).stages()
            except Exception as error:  # noqa: BLE001 - a defect of choosing loses no kernel: what cannot be cut is taken as it is
                note(error)
                return as_launched(program, linear(partition(program)))
        keep(parts, Cut(stages), brought)
        return stages

    def scheme_of(self, program: TensorProgram, stages: Sequence[Task], left: Sequence[int]) -> str:
        """Writes the scheme that cuts `program` into `stages`, with the calls that were `left` to PyTorch."""
        return scheme_of(program, stages, left, self._forms).text(len(operators(program)))

    def begin(
        self,
        layouts: Mapping[str, int | None],
        constant: frozenset[str],
        writes: Mapping[str, tuple[str, ...]],
        masks: Mapping[str, Sparsity],
        lying: Mapping[str, Lying],
        varying: frozenset[str] = frozenset(),
    ) -> None:
        """Goes on with another graph of the same function: an equal region of it may have other layouts, and is prepared anew."""
        self.layouts, self.constant, self.writes, self.masks, self.lying = layouts, constant, writes, masks, lying
        self.varying = varying
        self._prepared.clear()
        self._alike.clear()
        self._handed.clear()

    def example(self, program: TensorProgram) -> Example:
        """Describes sizes and layouts of the graph's example, for all of it or a part; its own values lie densely."""
        innermost = {n.name: self.layouts.get(n.name, _last(n)) for n in program.inputs}
        masks = {n.name: self.masks[n.name] for n in program.inputs if n.name in self.masks}
        return Example(_sizes(program), innermost, self._threads, self.target, masks)

    def prepared(self, region: Region) -> Prepared:
        """Prepares `region` for being compiled."""
        found = self._prepared.get(region)
        if found is None:
            found = self._prepared[region] = self._prepare(region)
        return found

    def selection(self, region: Region) -> Selection:
        """Selects the candidate for `region`, or for one like it; raises WeftError where there is none."""
        prepared = self._like(region)
        found = self._selected.get(prepared.form)
        if found is None:
            try:
                found = selected_before(prepared)
            except WeftError as error:
                found = error
            self._selected[prepared.form] = found
            tell(PieceWeighed())
        if isinstance(found, WeftError):
            raise found
        return found

    def foreseen(self, regions: Iterable[Region], *, doubtful: bool = False) -> bool:
        """Selects for regions most of which will be asked for, side by side, where there are processors for that; returns
        whether there are.

        doubtful: few of them are expected to be chosen.
        """
        if not are_side_by_side():
            return False
        new: dict[Form, tuple[Region, Prepared]] = {}
        for region in regions:
            with suppress(WeftError):
                prepared = self._like(region)
                if prepared.form not in self._selected:
                    new.setdefault(prepared.form, (region, prepared))
        self._foreseen.update(new)
        after = following([region for region, _ in new.values()])
        select_side_by_side([prepared for _, prepared in new.values()], after, doubtful=doubtful)
        return True

    def at_hand(self, region: Region) -> bool:
        """Tells whether kernels for `region`, or for one like it, were selected or foreseen."""
        try:
            form = self._like(region).form
        except WeftError:  # there are none
            return True
        return form in self._selected or form in self._foreseen

    def settled(self, regions: Sequence[Region]) -> None:
        """Begins to build the kernels of `regions`, which the graph is cut into: compilers work while the rest is chosen."""
        new: dict[Form, tuple[Prepared, Selection]] = {}
        for region in regions:
            with suppress(Exception):  # `built` says what is wrong
                prepared, selection = self.prepared(region), self.selection(region)
                if prepared.form not in self._built and prepared.form not in self._begun:
                    new.setdefault(prepared.form, (prepared, selection))
        those = list(new.values())
        for number, selection in all_closely(those):
            prepared, _ = those[number]
            with suppress(Exception):
                self._selected[prepared.form] = selection
                keep_for(prepared, selection)
                if self.builds:
                    self._begun[prepared.form] = start_region(selection, self.device)

    def to_choose(self, cut: Sequence[Region]) -> Regions:
        """Returns what is known of the graph, to choose for another cut of it, or for the same graph with other calls in PyTorch.

        No kernels are built by that, and what they both have of `cut`, the regions of this one, is not looked at closely again.
        """
        known = self.layouts, self.target, None, self.constant, self.writes, None, self.masks, self.lying
        found = Regions(*known, builds=False, _forms=self._forms)
        found._threads = self._threads  # whoever chooses in a child has one
        for region in cut:
            with suppress(WeftError):
                found._begun[self._like(region).form] = []
        return found

    def go_on(self) -> None:
        """Goes on with what was begun, for each region until its compilers have more to do, before any region is waited for.

        Then verdicts of the likeliest candidates are begun.
        """
        chain = toolchain(self.target)
        likely: list[tuple[TensorProgram, Candidate]] = []
        for form, ahead in self._begun.items():
            with suppress(Exception):  # `built` says what is wrong
                leading, selection = chain.go_on(ahead), self._selected[form]
                if leading is not None and isinstance(selection, Selection):
                    self._leading[form] = leading
                    likely.append((selection.program, leading.candidate))
        if likely and are_side_by_side() and current().verify != "always":
            try:
                self._verdicts = VerdictsAhead(likely)
            except (OSError, RuntimeError):  # no further process or thread to be had
                self._verdicts = None

    def leading_seconds(self, region: Region) -> float | None:
        """Returns what the fastest kernels of `region` took so far; None where none were timed."""
        with suppress(WeftError):
            found = self._leading.get(self._like(region).form)
            return None if found is None else found.seconds
        return None

    @property
    def launch_seconds(self) -> float:
        """Seconds of one kernel's launch, beyond its work."""
        return self._machine.launch_seconds

    @property
    def fine(self) -> bool:
        """True where kernels may end between a matmul and what makes its operands."""
        return toolchain(self.target).fine

    def lengths(self, region: Region) -> Mapping[str, int]:
        """Returns the elements of each space of `region`, by name, at the example."""
        return _sizes(region.program)

    def least(self, region: Region, reached: float = 1.0) -> float:
        """Bounds the seconds that the model predicts no kernels of `region` to improve on, as `weft.cost.least_seconds`."""
        cached = toolchain(self.target).inputs_in_caches
        return least_seconds(region.program, _sizes(region.program), self._machine, cached=cached, reached=reached)

    def built(self, region: Region) -> CompiledRegion:
        """Builds the kernels of `region`. Names are those of the first region of this form.

        Raises:
            VerificationError: the law of centres changed what is computed (RefutedError), or that could not be checked.
            Others as `build_region`.
        """
        prepared = self.prepared(region)
        if prepared.form not in self._built:
            changed = prepared.centred is not prepared.stored
            refuted = laws_refuted(prepared.stored, prepared.centred) if changed else None
            if refuted is not None:
                raise refuted
            self._built[prepared.form] = build_region(
                self.selection(region),
                self.device,
                functools.partial(self._demand, prepared),
                self._begun.get(prepared.form, ()),
                self._verdicts,
                functools.partial(selected_before, prepared),
            )
            self._begun.pop(prepared.form, None)
        made = self._built[prepared.form]
        self._begin_calls(prepared, made)
        return made

    @phase("compiler")
    def finish(self) -> None:
        """Waits until all that calls like the example need is there; then begins what calls of other lengths need."""
        for wait in self._waiting:
            with suppress(WeftError):  # the call says it
                wait()
        self._waiting.clear()
        for begin in self._later:
            begin()
        self._later.clear()

    def _begin_calls(self, prepared: Prepared, made: CompiledRegion) -> None:
        """Begins to compile what the calls of a region need beside what its kernels were built for: it may share these with others,
        whose inputs lie otherwise, and regions before it may hand it views of what they were given.
        """
        lying = self._lying(prepared.viewed, prepared.made)
        self._handed |= {name: lying[name] for name in prepared.viewed.outputs if name in lying}
        own = dict(zip((n.name for n in prepared.program.inputs), lying.values(), strict=True))
        example = named_as(replace(prepared.example, lying=own), prepared.program, made.program)
        lies = prepared.form, tuple(example.lying.items())
        if not made.kernels or lies in self._called:
            return
        self._called.add(lies)
        first = made.kernels[0]
        specs = launch_specs(made.program, first.block_program, first.schedule, example)
        chain, kernels = toolchain(self.target), [kernel.made for kernel in made.kernels]
        self._waiting += chain.begun_for(specs, kernels)
        spaces = zip(made.program.spaces(), prepared.viewed.spaces(), strict=True)
        varying = {own.name for own, its in spaces if its.name in self.varying}
        if varying and self.device is not None:
            self._later.append(functools.partial(chain.begin_any_length, specs, kernels, varying))

    def _demand(self, prepared: Prepared, made: CompiledRegion) -> str:
        """Has kernels judged. They may have been chosen for an equal region, which calls its inputs otherwise."""
        lying = named_as(prepared.example, prepared.program, made.program).lying
        return demand(replace(self._judged(prepared), lying=lying), made)

    def _judged(self, prepared: Prepared) -> Judged:
        """Returns what the kernels of a region are judged by."""
        spaces = zip(prepared.program.spaces(), prepared.viewed.spaces(), strict=True)
        return Judged(
            with_own_rules(prepared.stored),
            prepared.centred,
            prepared.made,
            {own.name: its.name for own, its in spaces},
            prepared.example.sizes,
            prepared.example.lying,
            self.constant,
            self.device,
        )

    def form(self, region: Region) -> Form:
        """Returns what is equal for regions that differ in names alone, at examples that do, and are given the same inputs."""
        given = tuple(n.name in self.layouts for n in region.program.inputs)
        return form_of(region.program, self.example(region.program), self._forms), given

    def _like(self, region: Region) -> Prepared:
        """Returns the first region that differs from `region` in names alone, prepared."""
        as_cut = self.form(region)
        prepared = self._alike.get(as_cut)
        if prepared is None:
            prepared = self._alike[as_cut] = self.prepared(region)
        return prepared

    def _prepare(self, region: Region) -> Prepared:
        between, centre, *rest = REGION
        setting, own = Setting(inputs=tuple(self.layouts)), region.program
        cut = Step(part.name, None, (tuple(n.name for n in own.nodes), own.outputs))
        stored = Rewritten(own, (cut,)).under((between,), setting)
        centred = stored.under((centre,), setting)
        viewed, made = views(centred.program)
        program = centred.under(rest, setting)
        of_views = {v.name for v in made}
        innermost = {
            node.name: None if old.name in of_views else self.layouts.get(old.name, _last(node))
            for node, old in zip(program.program.inputs, viewed.inputs, strict=True)
        }
        masks = {
            node.name: self.masks[old.name]
            for node, old in zip(program.program.inputs, viewed.inputs, strict=True)
            if old.name in self.masks
        }
        lies = self._lying(viewed, made)
        lying = dict(zip((n.name for n in program.program.inputs), lies.values(), strict=True))
        example = replace(self.example(program.program), innermost=innermost, masks=masks, lying=lying)
        form = form_of(program.program, example, self._forms)
        same = in_one_memory(own)
        left = [name for name in own.outputs if name not in same]
        results = tuple((left.index(same.get(name, name)), name) for name in own.outputs)
        programs = stored.program, centred.program, program.program, viewed
        return Prepared(region, *programs, made, example, form, program.steps, results)

    def _lying(self, program: TensorProgram, made: Sequence[View]) -> dict[str, Lying]:
        """Tells how the inputs of a region's program, of which some were made views, lie at the example.

        What other kernels leave is dense. Of one that different elements share places in, as windows do, no other can be made that
        is like it and has elements of its own to be judged on: it is taken to be dense too.
        """
        sizes, found = _sizes(program), dict[str, Lying]()
        shapes = {n.name: [a.space.size(sizes) for a in n.axes] for n in program.inputs}
        of_views = {view.name: view for view in made}
        for node in program.inputs:
            shape, view = shapes[node.name], of_views.get(node.name)
            lies = self.lying.get(node.name) or self._handed.get(node.name)
            if view is not None:
                lies = found[view.source].viewed(view, shapes[view.source], node.dtype.bytes)
            if lies is None or lies.repeats(shape):
                lies = Lying(dense(shape), 0 if lies is None else lies.start)
            found[node.name] = lies
        return found

    @functools.cached_property
    def _machine(self) -> Machine:
        return toolchain(self.target).machine(self._threads)

    @functools.cached_property
    def _threads(self) -> int:
        return current().threads or torch.get_num_threads()


def _last(node: Input) -> int | None:
    """Number the last dimension, in which a dense tensor has the stride 1; None where it has none."""
    return len(node.axes) - 1 if node.axes else None


def _sizes(program: TensorProgram) -> dict[str, int]:
    """Returns the size of each space by name; a space without an example is taken for a large one."""
    return {s.name: s.example or 1024 for s in program.spaces()}
