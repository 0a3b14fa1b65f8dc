"""How values lie in memory, as the text of a runner says it.

A kernel on a CPU is told addresses, sizes and strides. A view, or a tensor without its dimensions of size 1, is those of another
tensor and a few sums: it is never made, unless PyTorch is to read it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.capture import FixedLayout
from weft.run.launch import contiguous, tuple_of
from weft.tensor.axes import Axis, Space
from weft.tensor.derived import Derived
from weft.tensor.laws import View


@dataclass(frozen=True, slots=True)
class Strided:
    """Where a value lies; all is Python text.

    Attributes:
        memory: the variable of a tensor in whose memory it lies.
        sizes, strides: of its dimensions, in elements.
        itemsize: bytes of an element.
        start: elements from the first of `memory` to its own first.
        dense: it is known to be contiguous.
        kind: its element type, where `memory` is one of bytes.
    """

    memory: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    itemsize: int
    start: str = "0"
    dense: bool = False
    kind: str = ""

    @property
    def address(self) -> str:
        """The address of its first element."""
        return plus(f"{self.memory}.data_ptr()", times(str(self.itemsize), self.start))

    @property
    def tensor(self) -> str:
        """A tensor that shows it."""
        memory = f"{self.memory}.view({self.kind})" if self.kind else self.memory
        start = self.start if self.kind else plus(f"{memory}.storage_offset()", self.start)
        return f"{memory}.as_strided({tuple_of(self.sizes)}, {tuple_of(self.strides)}, {start})"

    def flattened(self, first: int, last: int) -> Strided | None:
        """Return it with the dimensions from `first` to `last` as one; None where it is not known to be contiguous."""
        if not self.dense:
            return None
        sizes = *self.sizes[:first], times(*self.sizes[first : last + 1]), *self.sizes[last + 1 :]
        strides = *self.strides[:first], *self.strides[last:]
        return replace(self, sizes=sizes, strides=strides)

    def unflattened(self, dim: int, inner: Sequence[int]) -> Strided:
        """Return it with a dimension as one of the sizes that are left, and `inner`."""
        steps = [times(self.strides[dim], *map(str, inner[place:])) for place in range(len(inner) + 1)]
        sizes = *self.sizes[:dim], f"{self.sizes[dim]} // {math.prod(inner)}", *map(str, inner), *self.sizes[dim + 1 :]
        return replace(self, sizes=sizes, strides=(*self.strides[:dim], *steps, *self.strides[dim + 1 :]))


ShownDims: TypeAlias = tuple[int | None, ...]
"""How a tensor shows a value: for each dimension of the tensor which of the value's that is, None for one of size 1 of its own."""


def as_it_is(rank: int) -> ShownDims:
    """Return the form of a tensor with a value's own dimensions."""
    return tuple(range(rank))


@dataclass
class ValueText:
    """The values of a runner that is being written.

    Attributes:
        lines: of the runner; what is needed to find values is added.
    """

    lines: list[str]
    _tensors: dict[str, dict[ShownDims, str]] = field(default_factory=dict[str, "dict[ShownDims, str]"])
    _given: dict[str, tuple[tuple[Axis, ...], int]] = field(default_factory=dict[str, "tuple[tuple[Axis, ...], int]"])
    _fixed: dict[str, FixedLayout] = field(default_factory=dict[str, FixedLayout])
    _known: dict[str, Strided] = field(default_factory=dict[str, Strided])
    _lengths: dict[Space, str] = field(default_factory=dict[Space, str])
    _numbers: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    _variables: int = 0

    @property
    def variables(self) -> Sequence[str]:
        """All variables that hold tensors, beside the arguments."""
        return [f"v{number + 1}" for number in range(self._variables)]

    def variable(self) -> str:
        """Name a new variable that holds a tensor."""
        self._variables += 1
        return f"v{self._variables}"

    def number(self, text: str, key: Hashable = None) -> str:
        """Name the number that `text` computes, once in a run; `key`: what it is computed of, where the text does not say it."""
        if text.isidentifier() or text.isdigit():
            return text
        key = text if key is None else key
        if key not in self._numbers:
            self._numbers[key] = f"n{len(self._numbers)}"
            self.lines.append(f"{self._numbers[key]} = {text}")
        return self._numbers[key]

    def named(self, lies: Strided) -> Strided:
        """Return `lies` with sizes and strides that are names or numbers."""
        return replace(lies, sizes=tuple(map(self.number, lies.sizes)), strides=tuple(map(self.number, lies.strides)))

    def let(self, value: str, text: str, axes: Sequence[Axis], itemsize: int, form: ShownDims | None = None) -> None:
        """Compute a tensor that shows a value. Arguments as of `held`."""
        variable = self.variable()
        self.lines.append(f"{variable} = {text}")
        self.held(value, variable, axes, itemsize, form)

    def held(
        self,
        value: str,
        variable: str,
        axes: Sequence[Axis],
        itemsize: int,
        form: ShownDims | None = None,
        fixed: FixedLayout | None = None,
    ) -> None:
        """Say that a variable holds a tensor which is not weft's: how it lies is asked for when it is run, unless that is `fixed`.

        Args:
            value, axes: the value, and its dimensions.
            variable: of the tensor.
            itemsize: bytes of an element.
            form: the tensor's; None: the value's own dimensions.
            fixed: how the tensor lies at each call.
        """
        self._forget(value)
        self._tensors[value] = {as_it_is(len(axes)) if form is None else form: variable}
        if fixed is not None:
            self._fixed[value] = fixed
        self._given[value] = tuple(axes), itemsize

    def put(self, value: str, lies: Strided, form: ShownDims | None = None) -> None:
        """Say where a value lies; `form`: that of the tensor whose memory it is, where that shows the value and nothing else."""
        self._forget(value)
        self._known[value] = lies
        self._tensors[value] = {} if form is None else {form: lies.memory}

    def _forget(self, value: str) -> None:
        """Drop what was said of a value: a later region may call another view of a value the same."""
        for said in (self._given, self._fixed, self._known):
            said.pop(value, None)

    def alias(self, value: str, other: str) -> None:
        """Say that a value is another one, in the same memory."""
        self._tensors[value] = self._tensors[other]
        if other in self._given:
            self._given[value] = self._given[other]
        if other in self._fixed:
            self._fixed[value] = self._fixed[other]
        if other in self._known:
            self._known[value] = self._known[other]

    def __getitem__(self, value: str) -> Strided:
        """Find where a value lies: sizes and strides of a tensor are read when they are first asked for."""
        if value not in self._known:
            ((form, variable),) = list(self._tensors[value].items())[:1]
            axes, itemsize = self._given[value]
            places, fixed = [form.index(d) for d in range(len(axes))], self._fixed.get(value)
            sizes, strides = self._shown(variable, len(form), places, fixed)
            lengths = tuple(self._length(axis.space, text) for axis, text in zip(axes, sizes, strict=True))
            self._known[value] = Strided(variable, lengths, strides, itemsize)
        return self._known[value]

    def _shown(
        self, variable: str, ndim: int, places: Sequence[int], fixed: FixedLayout | None
    ) -> tuple[Sequence[str], tuple[str, ...]]:
        """Write what sizes and strides a tensor has at `places`: numbers where they are `fixed`, else as they are at each call."""
        sizes = {p: None if fixed is None else fixed.sizes[p] for p in places}
        strides = {p: None if fixed is None else fixed.strides[p] for p in places}
        read = {p: f"{variable}s{p}" for p, stride in strides.items() if stride is None}
        if read:
            self.lines.append(f"{tuple_of([read.get(p, '_') for p in range(ndim)])} = {variable}.stride()")
        shown = [f"{variable}.shape[{p}]" if size is None else str(size) for p, size in sizes.items()]
        return shown, tuple(read.get(p, str(stride)) for p, stride in strides.items())

    def _length(self, space: Space, text: str) -> str:
        """Name the size of a space, which `text` computes unless it is fixed or was asked for before."""
        if space.fixed is not None:
            return str(space.fixed)
        if space not in self._lengths:
            self._lengths[space] = self.number(text)
        return self._lengths[space]

    def dense(self, value: str) -> bool:
        """Tell whether a value is known to be contiguous."""
        return value in self._known and self._known[value].dense

    def tensor(self, value: str, form: ShownDims | None = None) -> str:
        """Name a tensor that shows a value in a form, its own where that is None; it is made where there is none."""
        if form is None:
            form = as_it_is(len(self._given[value][0] if value in self._given else self._known[value].sizes))
        made = self._tensors[value]
        if form not in made:
            text = self._seen(*next(iter(made.items())), form) if value in self._given else self.text(value, form)
            made[form] = self.variable()
            self.lines.append(f"{made[form]} = {text}")
        return made[form]

    def text(self, value: str, form: ShownDims | None = None) -> str:
        """Write a tensor that shows a value in a form, and leave it without a name."""
        lies = self[value]
        form = as_it_is(len(lies.sizes)) if form is None else form
        return self._tensors[value].get(form) or self._with_units(lies, form).tensor

    def _seen(self, before: ShownDims, variable: str, form: ShownDims) -> str:
        """Write how PyTorch shows in one form what a tensor shows in another."""
        if None in before:
            variable = f"{variable}[{', '.join('0' if d is None else ':' for d in before)}]"
        left, order = [d for d in before if d is not None], [d for d in form if d is not None]
        if left != order:
            variable = f"{variable}.permute({tuple_of([str(left.index(d)) for d in order])})"
        if None in form:
            variable = f"{variable}[{', '.join('None' if d is None else ':' for d in form)}]"
        return variable

    def view(self, view: View, sizes: Sequence[str]) -> Strided | None:
        """Find where a view of a value lies. None where it must be made: an index runs backwards, or its first element is one
        that a tensor without elements does not have.
        """
        source = self[view.source]
        filled = all(n.isdigit() and int(n) for n in source.sizes)
        if view.backwards or (any(not i.terms for i in view.index) and not filled):
            return None
        steps: dict[Axis, list[str]] = {axis: [] for axis in view.axes}
        start = [source.start]
        for dim, index in zip(view.dims, view.index, strict=True):
            stride = source.strides[dim]
            for axis, coefficient in index.terms:
                steps[axis].append(times(str(coefficient), stride))
            end = plus(source.sizes[dim], "-1") if index.from_end else "0"
            start.append(times(stride, plus(end, str(index.offset))))
        strides = tuple(plus(*terms) for terms in steps.values())
        return replace(source, sizes=tuple(sizes), strides=strides, start=plus(*start), dense=False)

    def dense_in(self, memory: str, sizes: Sequence[str], itemsize: int) -> Strided:
        """Find how a contiguous value lies at the beginning of `memory`."""
        strides = tuple(self.number(stride) for stride in contiguous(sizes))
        return Strided(memory, tuple(sizes), strides, itemsize, dense=True)

    def is_shown(self, value: str, variable: str, form: ShownDims) -> bool:
        """Tell whether a variable holds the tensor that shows a value in a form."""
        return self._tensors[value].get(form) == variable

    def allocated(
        self,
        sizes: Sequence[str],
        kind: str,
        itemsize: int,
        form: ShownDims | None,
        over: tuple[str, str] | None = None,
    ) -> Strided:
        """Allocate a value that a kernel is to write, contiguous.

        Args:
            sizes: of its dimensions.
            kind: its element type.
            itemsize: bytes of an element.
            form: of the tensor; None: the value's own dimensions.
            over: a tensor that may lie so already, and before it what gives that, if it has these strides, or None.
        """
        made = self.dense_in(self.variable(), sizes, itemsize)
        shown = made if form is None else self._with_units(made, form)
        given = f"{tuple_of(shown.sizes)}, {tuple_of(shown.strides)}, dtype={kind}, device=cpu"
        text = f"{made.memory} = allocate({given})"
        if over is not None:
            free, tensor = over
            there = f"{made.memory} = {free}({tensor}, {tuple_of(shown.strides)})"
            text = f"{there}\nif {made.memory} is None: {text}"
        self.lines.append(text)
        return made

    def _with_units(self, lies: Strided, form: ShownDims) -> Strided:
        """Return it in a form: PyTorch has the stride of a dimension of size 1 step over all that lies further in."""
        found: list[tuple[str, str]] = []
        for dim in reversed(form):
            size, stride = found[0] if found else ("1", "1")
            found.insert(
                0, ("1", self.number(times(size, stride))) if dim is None else (lies.sizes[dim], lies.strides[dim])
            )
        return replace(lies, sizes=tuple(size for size, _ in found), strides=tuple(stride for _, stride in found))


def derived(rule: Derived, size: str) -> str:
    """Write what `rule` makes of the size of its source, which has no others."""
    if size.isdigit():
        return str(rule.size(int(size)))
    start, stop, step = rule.start or None, rule.stop, rule.step
    match start, stop, step:
        case None, None, 1:
            part = size
        case None, None, int() if step > 0:
            part = f"-(-{size} // {step})"
        case None, int(), 1 if stop >= 0:
            part = f"({size} if {size} < {stop} else {stop})"
        case _:
            part = f"len(range({size})[{':'.join('' if n is None else str(n) for n in (start, stop, step))}])"
    return plus(times(str(rule.times), part), str(rule.plus))


def times(*factors: str) -> str:
    """Write a product, its numbers multiplied."""
    number = math.prod(int(factor) for factor in factors if factor.isdigit())
    others = [f if f.isidentifier() else f"({f})" for f in factors if not f.isdigit()]
    if number == 0:
        return "0"
    return " * ".join([*others, *([str(number)] if number != 1 or not others else [])])


def plus(*terms: str) -> str:
    """Write a sum, its numbers added up."""
    numbers = [int(term) for term in terms if term.lstrip("-").isdigit()]
    others = [term for term in terms if not term.lstrip("-").isdigit()]
    return " + ".join([*others, *([str(sum(numbers))] if sum(numbers) or not others else [])])
