"""Regions of one graph, selected for and built once for each form; and which calls of the graph a region came from."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weft.capture import Captured
from weft.cost import Machine, least_seconds, total
from weft.errors import Location, ScheduleError, UnsupportedError, WeftError
from weft.garbage import uncollected
from weft.options import current
from weft.phases import phase
from weft.pipeline import REGION
from weft.plan.choose.cuts import Cuts
from weft.plan.choose.region import CompiledRegion, build_region, start_region
from weft.plan.choose.select import select
from weft.plan.judge.judging import demand
from weft.plan.partition.laws_check import laws_refuted
from weft.plan.partition.partition import Cut, Region, Task
from weft.plan.progress import PieceWeighed, tell
from weft.plan.targets import toolchain
from weft.plan.targets.bench import Judged
from weft.plan.targets.candidates import Example, Refusal, Selection
from weft.plan.targets.kept import keep, parts_of, recalled
from weft.plan.targets.packed import unplaced
from weft.run.key import cache_key
from weft.target import CPU, Target
from weft.tensor.forms import Form, Forms
from weft.tensor.laws import View, part, views
from weft.tensor.passes import Rewritten, Setting, Step
from weft.tensor.program import Contraction, Input, Node, Opaque, TensorProgram, uses

_SUFFIX = re.compile(r"[._]\d+$")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A region as it is compiled.

    Attributes:
        region: as it was cut.
        centred: its program, differences to means taken about an element.
        program: that with names of its own, every reindexing a view made before.
        viewed: the same program, its values called as in the whole one.
        made: the views.
        example: sizes and layouts to compile for.
        form: the same for regions that are one program up to names, at the same example.
        steps: from the graph's program to `program`.
    """

    region: Region
    centred: TensorProgram
    program: TensorProgram
    viewed: TensorProgram
    made: tuple[View, ...]
    example: Example
    form: Form
    steps: tuple[Step, ...]


@dataclass
class Regions:
    """What is known of the regions of a graph.

    A model repeats its layers: regions that are one program up to names have one selection and one set of kernels.

    Attributes:
        layouts: for each input of the graph, its dimension of stride 1, if any.
        target: where the kernels run.
        device: the GPU on which they may be timed; None where the target is not here.
        constant: the spaces of the graph that are as long at each call as in the example, by name.
    """

    layouts: Mapping[str, int | None]
    target: Target = CPU
    device: torch.device | None = None
    constant: frozenset[str] = frozenset()
    _forms: Forms = field(default_factory=Forms)
    _prepared: dict[Region, Prepared] = field(default_factory=dict[Region, Prepared])
    _alike: dict[Form, Prepared] = field(default_factory=dict[Form, Prepared])
    _selected: dict[Form, Selection | WeftError] = field(default_factory=dict[Form, "Selection | WeftError"])
    _begun: dict[Form, list[object]] = field(default_factory=dict[Form, list[object]])
    _built: dict[Form, CompiledRegion] = field(default_factory=dict[Form, CompiledRegion])

    @phase("cuts")
    def stages(self, written: TensorProgram, program: TensorProgram) -> tuple[Task, ...]:
        """Returns the stages of `program`, which the laws made of `written`: as another process cut them, or cut now.

        Raises:
            RefutedError: the laws changed what is computed.
            VerificationError: it could not be checked that they did not.
        """
        plain, brought = unplaced(program)
        parts = _parts_of("cuts", plain, self.example(program)) | {"written": repr(unplaced(written)[0])}
        found = None if current().verify == "always" else recalled(parts, Cut, brought)
        if found is not None:
            for stage in found[0].stages:
                if isinstance(stage, Region):
                    self.settled(stage)
            return found[0].stages
        with uncollected():
            refuted = laws_refuted(written, program)
            if refuted is not None:
                raise refuted
            stages = Cuts(program, self).stages()
        keep(parts, Cut(stages), brought)
        return stages

    def begin(self, layouts: Mapping[str, int | None], constant: frozenset[str]) -> None:
        """Goes on with another graph of the same function: an equal region of it may have other layouts, and is prepared anew."""
        self.layouts, self.constant = layouts, constant
        self._prepared.clear()
        self._alike.clear()

    def example(self, program: TensorProgram) -> Example:
        """Describes sizes and layouts of the graph's example, for all of it or a part; its own values lie densely."""
        innermost = {n.name: self.layouts.get(n.name, _last(n)) for n in program.inputs}
        return Example(_sizes(program), innermost, self._threads, self.target)

    def prepared(self, region: Region) -> Prepared:
        """Prepares `region` for being compiled."""
        found = self._prepared.get(region)
        if found is None:
            found = self._prepared[region] = self._prepare(region)
        return found

    def selection(self, region: Region) -> Selection:
        """Selects the candidate for `region`, or for one like it; raises WeftError where there is none."""
        given = tuple(n.name in self.layouts for n in region.program.inputs)
        as_cut = form_of(region.program, self.example(region.program), self._forms), given
        prepared = self._alike.get(as_cut)
        if prepared is None:
            prepared = self._alike[as_cut] = self.prepared(region)
        found = self._selected.get(prepared.form)
        if found is None:
            try:
                found = _selected_before(prepared)
            except WeftError as error:
                found = error
            self._selected[prepared.form] = found
            tell(PieceWeighed())
        if isinstance(found, WeftError):
            raise found
        return found

    def settled(self, region: Region) -> None:
        """Begins to build the kernels of `region`, which the graph is cut into: compilers work while the rest is chosen."""
        with suppress(Exception):  # `built` says what is wrong
            prepared, selection = self.prepared(region), self.selection(region)
            if prepared.form not in self._built and prepared.form not in self._begun:
                _keep_for(prepared, selection)
                self._begun[prepared.form] = start_region(selection)

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

    def least(self, region: Region) -> float:
        """Bounds the seconds that the model predicts no kernels of `region` to improve on, without launches."""
        cached = toolchain(self.target).inputs_in_caches
        return least_seconds(region.program, _sizes(region.program), self._machine, cached=cached)

    def built(self, region: Region) -> CompiledRegion:
        """Builds the kernels of `region`. Names are those of the first region of this form.

        Raises:
            VerificationError: the law of centres changed what is computed (RefutedError), or that could not be checked.
            Others as `build_region`.
        """
        prepared = self.prepared(region)
        if prepared.form not in self._built:
            changed = prepared.centred is not region.program
            refuted = laws_refuted(region.program, prepared.centred) if changed else None
            if refuted is not None:
                raise refuted
            self._built[prepared.form] = build_region(
                self.selection(region),
                self.device,
                functools.partial(demand, self._judged(prepared)),
            )
            self._begun.pop(prepared.form, None)
        return self._built[prepared.form]

    def _judged(self, prepared: Prepared) -> Judged:
        """Returns what the kernels of a region are judged by."""
        spaces = zip(prepared.program.spaces(), prepared.viewed.spaces(), strict=True)
        return Judged(
            prepared.region.program,
            prepared.centred,
            prepared.made,
            {own.name: its.name for own, its in spaces},
            prepared.example.sizes,
            prepared.example.innermost,
            self.constant,
            self.device,
        )

    def _prepare(self, region: Region) -> Prepared:
        law, *rest = REGION
        setting, own = Setting(inputs=tuple(self.layouts)), region.program
        cut = Step(part.name, None, (tuple(n.name for n in own.nodes), own.outputs))
        centred = Rewritten(own, (cut,)).under((law,), setting)
        viewed, made = views(centred.program)
        program = centred.under(rest, setting)
        of_views = {v.name for v in made}
        innermost = {
            node.name: None if old.name in of_views else self.layouts.get(old.name, _last(node))
            for node, old in zip(program.program.inputs, viewed.inputs, strict=True)
        }
        example = replace(self.example(program.program), innermost=innermost)
        form = form_of(program.program, example, self._forms)
        return Prepared(region, centred.program, program.program, viewed, made, example, form, program.steps)

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


# A graph is traced for its first sizes, then for all, and planned once more with the library's matmuls.
_MOST_REMEMBERED = 256
_remembered: dict[tuple[str, tuple[Any, ...]], Selection | Refusal] = {}


def _selected_before(prepared: Prepared) -> Selection:
    """Selects for a region what was chosen for the same program at sizes of these magnitudes, or chooses now.

    In another trace of this process, or in another process, which left it in the cache.
    """
    program, example = prepared.program, prepared.example
    plain, brought = unplaced(program)
    parts = _parts_of("selection", plain, example)
    key = cache_key(parts), brought
    found = _remembered.pop(key, None)
    if found is None:
        found = _kept(parts, prepared, brought) or _selected_now(parts, program, example, brought)
    _remember(key, found)
    if isinstance(found, Refusal):
        raise found.error()
    return _at(found, _named_as(example, program, found.program))


def _remember(key: tuple[str, tuple[Any, ...]], found: Selection | Refusal) -> None:
    """Remembers what was found, in this process; the last ones stay."""
    _remembered[key] = found
    while len(_remembered) > _MOST_REMEMBERED:
        _remembered.pop(next(iter(_remembered)), None)


def _parts_of(what: str, program: TensorProgram, example: Example) -> dict[str, str]:
    chain = toolchain(example.target)
    return parts_of(what, program, example, chain.environment(), chain.machine(example.threads))


def _at(selection: Selection, example: Example) -> Selection:
    """Returns the selection for another example of its class, with the cost there."""
    if example == selection.example:
        return selection
    chosen = selection.chosen
    cost = total(toolchain(example.target).costs(example, chosen.applied, chosen.schedule))
    return replace(selection, example=example, chosen=replace(chosen, cost=cost))


def _keep_for(prepared: Prepared, selection: Selection) -> None:
    """Keeps what was selected for another region of this form: another process may meet this one first."""
    plain, brought = unplaced(prepared.program)
    parts = _parts_of("selection", plain, prepared.example)
    key = cache_key(parts), brought
    if key not in _remembered:
        _remember(key, selection)
        keep(parts, _to_keep(selection), unplaced(selection.program)[1])


def _to_keep(selection: Selection) -> Selection:
    """Leaves out what is for the tuner alone: it is found anew where it tunes anew."""
    return replace(selection, others=None if selection.others else ())


def _named_as(example: Example, program: TensorProgram, other: TensorProgram) -> Example:
    """Returns the example of `program` for `other`, which differs from it in names alone."""
    if program == other:
        return example
    spaces = zip(program.spaces(), other.spaces(), strict=True)
    inputs = zip(program.inputs, other.inputs, strict=True)
    return replace(
        example,
        sizes={its.name: example.sizes[own.name] for own, its in spaces},
        innermost={its.name: example.innermost.get(own.name) for own, its in inputs},
    )


def _kept(parts: Mapping[str, str], prepared: Prepared, brought: Sequence[Any]) -> Selection | Refusal | None:
    """Reads what another process chose for the program, or for one that differs in names alone; None where there is nothing."""
    program = prepared.program
    found = recalled(parts, object, brought)
    match found:
        case (Selection() as selection, _) if selection.program == program:
            return replace(selection, program=program)
        case (Selection() as selection, _) if _is_of_form(selection.program, prepared):
            return selection
        case (Refusal() as refusal, _):
            return refusal
        case _:
            return None


def _selected_now(
    parts: Mapping[str, str], program: TensorProgram, example: Example, brought: Sequence[Any]
) -> Selection | Refusal:
    """Chooses for `program` now, and keeps the choice for other processes."""
    with uncollected():
        try:
            found = select(program, example)
        except (UnsupportedError, ScheduleError) as error:
            found = Refusal.of(error)
        keep(parts, found if isinstance(found, Refusal) else _to_keep(found), brought)
    return found


def form_of(program: TensorProgram, example: Example, forms: Forms | None = None) -> Form:
    """Returns what is equal for programs and examples that differ in names alone: of values, axes and spaces, and users' lines."""
    form, spaces = (forms or Forms()).of(program)
    sizes = tuple(example.sizes[s.name] for s in spaces)
    innermost = tuple(example.innermost.get(n.name) for n in program.inputs)
    return form, sizes, innermost, example.threads, example.target


def _is_of_form(program: TensorProgram, prepared: Prepared) -> bool:
    """Tells whether `program` differs from a region's in names alone."""
    own = prepared.program
    if len(program.spaces()) != len(own.spaces()) or len(program.inputs) != len(own.inputs):
        return False
    return form_of(program, _named_as(prepared.example, own, program)) == prepared.form


def calls_of(captured: Captured, region: Region, error: Exception) -> frozenset[int]:
    """Finds the ATen calls, by number, that PyTorch must run so that `region`, which failed with `error`, goes.

    Those on the line that the error names, where it names one of the region's; else all that a node of the region comes from;
    where laws have left no node with a name that capture gave, all that the region's values depend on.
    """
    assert captured.program is not None
    written = captured.program.values()
    roots = [_root(n.name, written) for n in region.program.nodes]
    own = frozenset(captured.made_by[r] for r in roots if r in captured.made_by)
    where = error.where if isinstance(error, WeftError) and isinstance(error.where, Location) else None
    named = frozenset(
        captured.made_by[r] for r in roots if r in captured.made_by and getattr(written[r], "location", None) == where
    )
    left = {captured.made_by[n.name] for n in written.values() if isinstance(n, Opaque) and n.name in captured.made_by}
    for found in (named if where is not None else own, own):
        if found - left:
            return found - left
    waiting, seen = list(roots), set[str]()
    while waiting:
        name = waiting.pop()
        if name in written and name not in seen:
            seen.add(name)
            waiting += uses(written[name])
    return frozenset(captured.made_by[n] for n in seen if n in captured.made_by) - left


def lone_matmuls(captured: Captured, region: Region) -> frozenset[int]:
    """Finds the ATen calls, by number, that the matmuls of `region` come from, if none of its matmuls reads another
    one's result.

    What a library does as well. A matmul of a matmul's result gains from the fusion that made the region.
    """
    assert captured.program is not None
    written = captured.program.values()
    made_of = set[str]()  # values that depend on a matmul of the region
    matmuls: list[str] = []
    for node in region.program.nodes:
        depends = not made_of.isdisjoint(uses(node))
        if isinstance(node, Contraction):
            if depends:
                return frozenset()
            matmuls.append(_root(node.name, written))
        if depends or isinstance(node, Contraction):
            made_of.add(node.name)
    return frozenset(captured.made_by[name] for name in matmuls if name in captured.made_by)


def call_of(captured: Captured, name: str) -> int | None:
    """Finds the number of the ATen call that `name`, a value of the program after the laws, is a part of; None: no call
    is known.
    """
    assert captured.program is not None
    return captured.made_by.get(_root(name, captured.program.values()))


def _root(name: str, written: Mapping[str, Node]) -> str:
    """Finds the value of the program as written that a law made `name` of: laws add a number to a name."""
    while name not in written:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return name
        name = shorter
    return name
