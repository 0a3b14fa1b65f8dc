"""How values lie in memory, as the text of a runner says it.

A kernel on a CPU is told addresses, sizes and strides. A view, or a tensor without its dimensions of size 1, is those of another
tensor and a few sums: it is never made, unless PyTorch is to read it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

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
        whole: `memory` has just these dimensions.
        dense: it is known to be contiguous.
    """

    memory: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    itemsize: int
    start: str = "0"
    whole: bool = False
    dense: bool = False

    @property
    def address(self) -> str:
        """The address of its first element."""
        return plus(f"{self.memory}.data_ptr()", times(str(self.itemsize), self.start))

    @property
    def tensor(self) -> str:
        """A tensor that shows it."""
        if self.whole:
            return self.memory
        start = plus(f"{self.memory}.storage_offset()", self.start)
        return f"{self.memory}.as_strided({tuple_of(self.sizes)}, {tuple_of(self.strides)}, {start})"

    def flattened(self, first: int, last: int) -> Strided | None:
        """Return it with the dimensions from `first` to `last` as one; None where it is not known to be contiguous."""
        if not self.dense:
            return None
        sizes = *self.sizes[:first], times(*self.sizes[first : last + 1]), *self.sizes[last + 1 :]
        strides = *self.strides[:first], *self.strides[last:]
        return replace(self, sizes=sizes, strides=strides, whole=self.whole and first == last)

    def unflattened(self, dim: int, inner: Sequence[int]) -> Strided:
        """Return it with a dimension as one of the sizes that are left, and `inner`."""
        steps = [times(self.strides[dim], *map(str, inner[place:])) for place in range(len(inner) + 1)]
        sizes = *self.sizes[:dim], f"{self.sizes[dim]} // {math.prod(inner)}", *map(str, inner), *self.sizes[dim + 1 :]
        return replace(self, sizes=sizes, strides=(*self.strides[:dim], *steps, *self.strides[dim + 1 :]), whole=False)


@dataclass
class ValueText:
    """The values of a runner that is being written.

    Attributes:
        lines: of the runner; what is needed to find values is added.
    """

    lines: list[str]
    _tensors: dict[str, tuple[str, tuple[Axis | None, ...], int]] = field(
        default_factory=dict[str, "tuple[str, tuple[Axis | None, ...], int]"]
    )
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

    def length(self, space: Space, text: str) -> str:
        """Name the size of a space, which `text` computes unless it is fixed or was asked for before."""
        if space.fixed is not None:
            return str(space.fixed)
        if space not in self._lengths:
            self._lengths[space] = self.number(text)
        return self._lengths[space]

    def let(self, value: str, text: str, dims: Sequence[Axis | None], itemsize: int) -> str:
        """Compute the tensor of a value, and return its variable. Arguments as of `held`."""
        variable = self.variable()
        self.lines.append(f"{variable} = {text}")
        self.held(value, variable, dims, itemsize)
        return variable

    def held(self, value: str, variable: str, dims: Sequence[Axis | None], itemsize: int) -> None:
        """Say that a variable holds the tensor of a value, with `dims`, None for one of size 1 that the value does not have."""
        self._tensors[value] = variable, tuple(dims), itemsize

    def put(self, value: str, operand: Strided) -> None:
        """Say where a value lies."""
        self._known[value] = operand

    def __getitem__(self, value: str) -> Strided:
        """Find where a value lies: sizes and strides of a tensor are read when they are first asked for."""
        if value not in self._known:
            variable, dims, itemsize = self._tensors[value]
            own = [(d, axis) for d, axis in enumerate(dims) if axis is not None]
            sizes = tuple(self.length(axis.space, f"{variable}.shape[{d}]") for d, axis in own)
            strides = tuple(f"{variable}s{d}" for d, _ in own)
            if own:
                kept = dict(zip((d for d, _ in own), strides, strict=True))
                self.lines.append(f"{tuple_of([kept.get(d, '_') for d in range(len(dims))])} = {variable}.stride()")
            self._known[value] = Strided(variable, sizes, strides, itemsize, whole=len(own) == len(dims))
        return self._known[value]

    def dense(self, value: str) -> bool:
        """Tell whether a value is known to be contiguous."""
        return value in self._known and self._known[value].dense

    def tensor(self, value: str) -> str:
        """Name a tensor that is the value; it is made where there is none."""
        if value in self._tensors:
            variable, dims, itemsize = self._tensors[value]
            if None in dims:
                kept = [axis for axis in dims if axis is not None]
                variable = self.let(
                    value, f"{variable}[{', '.join('0' if axis is None else ':' for axis in dims)}]", kept, itemsize
                )
            return variable
        own = self._known[value]
        if not own.whole:
            variable = self.variable()
            self.lines.append(f"{variable} = {own.tensor}")
            self._known[value] = own = replace(own, memory=variable, start="0", whole=True)
        return own.memory

    def view(self, view: View, sizes: Sequence[str]) -> Strided | None:
        """Find where a view of a value lies. None where it must be made: an index runs backwards, or its first element is one
        that a tensor without elements does not have.
        """
        source = self[view.source]
        if view.backwards or (
            any(not i.terms for i in view.index) and not all(n.isdigit() and int(n) for n in source.sizes)
        ):
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
        return Strided(source.memory, tuple(sizes), strides, source.itemsize, plus(*start))

    def allocated(
        self,
        sizes: Sequence[str],
        kind: str,
        itemsize: int,
        axes: Sequence[Axis] = (),
        dims: Sequence[Axis | None] = (),
    ) -> Strided:
        """Allocate a value that a kernel is to write, contiguous.

        Args:
            sizes: of its dimensions.
            kind: its element type.
            itemsize: bytes of an element.
            axes: of its dimensions, and
            dims: those that the tensor shall have, None for one of size 1, where they are not just the axes.
        """
        strides = tuple(self.number(stride) for stride in contiguous(sizes))
        made = Strided(self.variable(), tuple(sizes), strides, itemsize, whole=True, dense=True)
        shown = self._with_units(made, axes, dims) if dims else made
        given = f"{tuple_of(shown.sizes)}, {tuple_of(shown.strides)}, dtype={kind}, device=cpu"
        self.lines.append(f"{made.memory} = allocate({given})")
        return replace(made, whole=shown == made)

    def with_dims(self, value: str, axes: Sequence[Axis], dims: Sequence[Axis | None]) -> str | None:
        """Write a tensor that is the value, whose dimensions are `axes`, with `dims`; None where PyTorch made it."""
        lies = self._known.get(value)
        if lies is None or value in self._tensors:
            return None
        return replace(self._with_units(lies, axes, dims), whole=False).tensor

    def _with_units(self, lies: Strided, axes: Sequence[Axis], dims: Sequence[Axis | None]) -> Strided:
        """Return it with `dims`, None for one of size 1, whose stride PyTorch has step over all that lies further in."""
        places = dict(zip(axes, zip(lies.sizes, lies.strides, strict=True), strict=True))
        found: list[tuple[str, str]] = []
        for axis in reversed(dims):
            size, stride = found[0] if found else ("1", "1")
            found.insert(0, ("1", self.number(times(size, stride))) if axis is None else places[axis])
        return replace(lies, sizes=tuple(size for size, _ in found), strides=tuple(stride for _, stride in found))


def derived(rule: Derived, size: str) -> str:
    """Write what `rule` makes of the size of its source, which has no others."""
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
