"""Outlines of recordings, to find out whether kernels for one graph can run another one.

PyTorch traces a function anew where a size is 1 or 0 that was a symbol before. The new graph is often the old one with a number in
the symbol's place; the old one's kernels, which take any size, run it then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import torch
from torch._ops import OpOverload  # no public name
from torch.utils import _pytree as pytree  # no public name

from weft.capture.captured import FixedLayout
from weft.capture.recording import Call, CallTarget, Recording, Slot

_SMALL = 4096
"""Elements of a tensor that a graph holds, up to which it is compared with another graph's."""
_LIKE = ("aten.full_like", "aten.ones_like", "aten.zeros_like")
"""Calls that read nothing of a tensor but what it looks like."""
_LOOKS = frozenset(f"aten.{name}" for name in ("alias", "detach", "expand", "reshape", "slice", "squeeze", "view"))
"""Calls that change nothing where they leave the shape as it is; PyTorch leaves some of them out where sizes are numbers."""
ArgumentPlace: TypeAlias = int | tuple[int, int]
"""Where an argument for one graph is found among those of another: its number; or that of a tensor whose size it is, and which."""
_Expr: TypeAlias = Any
"""Of SymPy, which is not fully known to type checkers."""
_Binding: TypeAlias = Mapping[_Expr, _Expr]


@dataclass(frozen=True, slots=True)
class _Value:
    """What a tensor looks like."""

    shape: tuple[_Expr, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A call: `leaves` are its arguments, sizes as expressions, and `form` how they go together."""

    packet: str
    target: CallTarget
    leaves: tuple[Any, ...]
    form: pytree.TreeSpec
    results: tuple[Slot | None, ...]
    rest: tuple[Any, ...]

    @staticmethod
    def of(call: Call) -> _Step:
        """Makes a step of a call as recorded."""
        leaves, form = pytree.tree_flatten((call.args, call.kwargs))
        whole = None if call.whole is None else str(call.whole.target)
        rest = call.into, call.random, call.pinned, whole, tuple(source.dim for source in call.sources)
        read = (*map(_plain, leaves), *(source.slot for source in call.sources))
        return _Step(call.packet, call.target, read, form, call.results, rest)


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """A recording without PyTorch's fake tensors.

    Attributes:
        inputs: per placeholder, its slot, or the number that it is.
        held: the slots of the tensors that the graph holds.
        values: by slot number.
        steps: the calls.
        outputs: of the graph, then what it writes into, each with its last value; sizes among them are expressions.
        constants: the tensors that the graph holds.
        guards: what must be true of its symbols, beside their ranges.
        ranges: of its symbols, the least and the largest value.
        layouts: of its arguments that are tensors.
    """

    inputs: tuple[Any, ...]
    held: tuple[Any, ...]
    values: tuple[_Value, ...]
    steps: tuple[_Step, ...]
    outputs: tuple[Any, ...]
    constants: tuple[torch.Tensor, ...]
    guards: frozenset[_Expr]
    ranges: Mapping[_Expr, tuple[_Expr, _Expr]]
    layouts: tuple[FixedLayout, ...]

    @staticmethod
    def of(recording: Recording) -> Outline:
        """Makes the outline of `recording`, with the guards that PyTorch has noted so far."""
        leaves = pytree.tree_leaves([recording.inputs, [tuple(fake.shape) for fake in recording.fakes]])
        symbolic: list[Any] = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
        shapes = symbolic[0].node.shape_env if symbolic else None
        guards: list[Any] = [] if shapes is None else shapes.guards
        ranges: Mapping[Any, Any] = {} if shapes is None else shapes.var_to_range
        inputs = tuple(map(_plain, recording.inputs))
        given = len(inputs) - len(recording.constants)
        return Outline(
            inputs[:given],
            inputs[given:],
            tuple(_Value(tuple(map(_plain, fake.shape)), fake.dtype, fake.device) for fake in recording.fakes),
            tuple(map(_Step.of, recording.calls)),
            tuple(map(_plain, (*recording.outputs, *_written_and_told(recording)))),
            recording.constants,
            frozenset(guard.expr for guard in guards),
            {symbol: (its.lower, its.upper) for symbol, its in ranges.items()},
            tuple(FixedLayout.of(recording.fakes[each.index]) for each in inputs[:given] if isinstance(each, Slot)),
        )

    @property
    def is_general(self) -> bool:
        """Tells whether a size of an input is a symbol."""
        return any(_is_symbol(expr) for value in self._given() for expr in value.shape)

    @property
    def is_short(self) -> bool:
        """Tells whether a size of an input is 1 or 0."""
        return any(expr in (0, 1) for value in self._given() for expr in value.shape)

    def _given(self) -> Iterator[_Value]:
        return (self.values[each.index] for each in self.inputs if isinstance(each, Slot))


def _written_and_told(recording: Recording) -> Iterator[Any]:
    """Yields what a recording writes into, each with its last value, and where numbers among its outputs are found."""
    for pair in recording.writes:
        yield from pair
    for source in recording.sources:
        yield from (source.slot, source.dim)


def serves(general: Outline, special: Outline) -> tuple[ArgumentPlace, ...] | None:
    """Finds how to call the first graph with the arguments of the second one, so that it computes the same; None where it may not.

    It may, where the second is the first with other numbers and symbols in the place of its symbols, call for call and shape for
    shape, and all is true of these that the first graph relies on; but that a size is at least 2, on which no kernel relies.
    """
    bound = _bound(general, special)
    if bound is None:
        return None
    binding, places = bound
    same = _lie_alike(general, special) and list(_numbered(general, binding)) == list(_numbered(special, {}))
    same = same and _alike(general.constants, special.constants) and _holds(general, special, binding)
    return places if same else None


def _lie_alike(general: Outline, special: Outline) -> bool:
    """Tells whether arguments that the first graph knows the layout of lie so in the second one."""
    pairs = zip(general.layouts, special.layouts, strict=True)
    return all(mine.holds(its) for mine, its in pairs)


def _bound(general: Outline, special: Outline) -> tuple[dict[_Expr, _Expr], tuple[ArgumentPlace, ...]] | None:
    """Finds what stands in `special` for each symbol of `general`, and where the latter's arguments are found."""
    binding: dict[_Expr, _Expr] = {}
    sizes: dict[_Expr, ArgumentPlace] = {}
    tensors = [i for i, each in enumerate(special.inputs) if isinstance(each, Slot)]
    own: list[Slot] = [each for each in general.inputs if isinstance(each, Slot)]
    if len(own) != len(tensors):
        return None
    for slot, number in zip(own, tensors, strict=True):
        its_slot: Slot = special.inputs[number]
        shape, other = general.values[slot.index].shape, special.values[its_slot.index].shape
        for dim, (mine, its) in enumerate(zip(shape, other, strict=False)):
            if _is_symbol(mine) and mine not in binding:
                binding[mine], sizes[mine] = its, (number, dim)
    seen = set(binding.values())
    for guard in general.guards:  # a symbol that equals another one is in no shape
        pair = guard.args if type(guard).__name__ == "Equality" and all(map(_is_symbol, guard.args)) else ()
        for one, other in (pair, pair[::-1]) if pair else ():
            if one in binding:
                binding.setdefault(other, binding[one])
    numbers = [i for i, each in enumerate(special.inputs) if _is_symbol(each) and each not in seen]
    rest, places = iter(tensors), list[ArgumentPlace]()
    for each in general.inputs:
        if isinstance(each, Slot):
            places.append(next(rest))
        elif _is_symbol(each) and each in sizes:
            places.append(sizes[each])
        elif _is_symbol(each) and numbers:
            places.append(numbers[0])
            binding[each] = special.inputs[numbers.pop(0)]
        else:
            return None
    return None if numbers else (binding, tuple(places))


@dataclass(eq=False)
class _Numbers:
    """New numbers for slots, in the order in which they appear."""

    outline: Outline
    binding: _Binding
    new: dict[int, int] = field(default_factory=dict[int, int])
    count: int = 0
    known: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])

    def folded(self, step: _Step) -> bool:
        """Tells whether the result of a step is the same at each call; what reads it reads its elements then."""
        result = step.results[0] if len(step.results) == 1 else None
        if result is None or not isinstance(step.target, OpOverload) or any(step.rest[:3]):
            return False
        shape, like = self.shape(result), step.packet in _LIKE
        tensors = [leaf for leaf in step.leaves if isinstance(leaf, Slot)]
        if not all(map(_is_number, shape)) or math.prod(map(int, shape)) > _SMALL:
            return False
        if not (like or all(slot.index in self.known for slot in tensors)):
            return False
        leaves = [self._here(leaf, like=like) for leaf in step.leaves[: step.form.num_leaves]]
        if any(getattr(leaf, "free_symbols", ()) for leaf in leaves):
            return False
        args, kwargs = pytree.tree_unflatten(leaves, step.form)
        self.known[result.index] = step.target(*args, **kwargs)
        return True

    def _here(self, leaf: Any, *, like: bool) -> Any:
        """Returns an argument of a step that is done here and now, on the CPU; with `like`, only the looks of tensors count."""
        if isinstance(leaf, Slot) and like:
            return torch.empty([int(n) for n in self.shape(leaf)], dtype=self.outline.values[leaf.index].dtype)
        if isinstance(leaf, Slot):
            return self.known[leaf.index]
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        found = _bound_in(leaf, self.binding)
        return int(found) if hasattr(found, "xreplace") and _is_number(found) else found

    def chosen(self, step: _Step) -> Slot | None:
        """Finds what the result of a step is, where that chooses one and the same tensor for all of its elements."""
        first = step.leaves[0] if step.leaves else None
        place = {"aten.where": 0, "aten.masked_fill": 1}.get(step.packet)
        condition = None if place is None else step.leaves[place]
        if not isinstance(first, Slot) or not isinstance(condition, Slot) or condition.index not in self.known:
            return None
        there = self.known[condition.index]
        if bool(there.all()) == bool(there.any()):
            sides = (step.leaves[2], step.leaves[1]) if place == 0 else (first, None)
            side, result = sides[int(there.any())], step.results[0]
            if isinstance(side, Slot) and result is not None and self._alike(side, result):
                return side
        return None

    def _alike(self, one: Slot, other: Slot) -> bool:
        kinds = [(self.shape(slot), self.outline.values[slot.index].dtype) for slot in (one, other)]
        return kinds[0] == kinds[1] and other not in self.outline.outputs

    def all(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Puts these slots and other numbers for symbols into `leaves`, each with its kind, since 1 is neither True nor 1.0."""
        return tuple(map(self._one, leaves))

    def same(self, result: Slot, source: Slot) -> None:
        """Notes that two tensors are one."""
        if source.index in self.known:
            self.known[result.index] = self.known[source.index]
        else:
            self.new[result.index] = self.new[source.index]

    def shape(self, slot: Slot) -> tuple[_Expr, ...]:
        """Gives the shape of a tensor."""
        return tuple(_bound_in(size, self.binding) for size in self.outline.values[slot.index].shape)

    def _one(self, leaf: Any) -> Any:
        if isinstance(leaf, Slot) and leaf.index in self.known:
            there = self.known[leaf.index]
            return "elements", there.dtype, self.shape(leaf), str(cast("Any", there).tolist())
        if isinstance(leaf, Slot):
            if leaf.index not in self.new:
                self.new[leaf.index], self.count = self.count, self.count + 1
            number, value = self.new[leaf.index], self.outline.values[leaf.index]
            return "tensor", number, self.shape(leaf), value.dtype, value.device
        if hasattr(leaf, "xreplace") or (isinstance(leaf, int) and not isinstance(leaf, bool)):
            return "size", _bound_in(leaf, self.binding)
        return type(leaf), leaf


def _numbered(outline: Outline, binding: _Binding) -> Iterator[tuple[Any, ...]]:
    """Yields all that `outline` says, with other numbers for its symbols; without calls that change nothing then."""
    numbers = _Numbers(outline, binding)
    tensors = [each for each in outline.inputs if isinstance(each, Slot)]
    yield numbers.all((*tensors, *outline.held))
    for step in outline.steps:
        if numbers.folded(step):
            continue
        read = numbers.all(step.leaves)
        chosen = numbers.chosen(step)
        if chosen is not None and step.results[0] is not None:
            numbers.same(step.results[0], chosen)
            continue
        match step.leaves[:1], step.results[:1]:
            case (Slot() as source,), (Slot() as result,) if numbers.shape(source) == numbers.shape(result):
                copies = (
                    step.packet == "aten.contiguous" and result not in outline.outputs
                )  # else it may be a view of an argument
                if copies or step.packet in _LOOKS:
                    numbers.same(result, source)
                    continue
            case _:
                pass
        yield step.target, step.form, read, numbers.all(step.results), numbers.all(step.rest)
    yield numbers.all(outline.outputs)


def _alike(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Tells whether the same tensors are held, or small ones with the same elements."""

    def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
        kinds = (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)
        return a is b or (kinds and a.numel() <= _SMALL and torch.equal(a, b))

    return len(one) == len(other) and all(map(alike, one, other))


def _holds(general: Outline, special: Outline, binding: _Binding) -> bool:
    """Tells whether what `general` relies on is true of all that `special` may be called with."""
    for guard in general.guards:
        found = _bound_in(guard, binding)
        if found != True and found not in special.guards:  # noqa: E712 - SymPy's own truth, or an expression
            return False
    for symbol, its in binding.items():
        if symbol not in general.ranges or (its not in special.ranges and not _is_number(its)):
            return False
        low, high = general.ranges[symbol]
        least, most = (its, its) if _is_number(its) else special.ranges[its]
        if not bool(most <= high) or not bool(low <= 2 or low <= least):
            return False
    return True


def _plain(leaf: Any) -> Any:
    """Returns `leaf`, as an expression of SymPy's if it depends on sizes."""
    symbolic = isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
    return cast("Any", leaf).node.expr if symbolic else leaf


def _bound_in(value: Any, binding: _Binding) -> Any:
    """Returns a size, or what is true of sizes, with other numbers in the place of symbols."""
    return value.xreplace(binding) if hasattr(value, "xreplace") else value


def _is_symbol(value: Any) -> bool:
    return bool(getattr(value, "is_Symbol", False))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or bool(getattr(value, "is_Integer", False))
