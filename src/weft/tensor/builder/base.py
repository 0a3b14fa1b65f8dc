"""What every operation of the builder stands on: refs, nodes, broadcasting, rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.errors import Location, ShapeError
from weft.tensor.axes import Axis, present
from weft.tensor.builder.merge import Merges, Ref
from weft.tensor.builder.promote import promote
from weft.tensor.builder.unify import Sliced
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Input,
    Iota,
    Opaque,
    Reindex,
    Use,
)
from weft.tensor.scalar import Arg, Number, Scalar

SizeOrAxis: TypeAlias = int | Axis
"""A number that stands in the program, or "as long as this axis of a Ref"."""

_Dims: TypeAlias = tuple[Axis | None, ...]


class Base(Merges):
    """Inputs, constants, elementwise operations and casts; and how nodes are made."""

    def mark(self) -> tuple[int, int]:
        """Return the numbers of nodes and of demands so far, for `made_since` and `undo`."""
        return len(self._nodes), self._spaces.unified

    def made_since(self, mark: tuple[int, int]) -> tuple[str, ...]:
        """Return the names of the values made since `mark`."""
        return tuple(n.name for n in self._nodes[mark[0] :])

    def undo(self, mark: tuple[int, int]) -> None:
        """Drop the constraints on sizes since then; the nodes that were made stay, unread."""
        self._spaces.undo(mark[1])

    def input(self, name: str, shape: Sequence[int], dtype: DType) -> Ref:
        """Add a tensor that the program is called with; each dimension is a space of its own.

        `shape` is that of the example.
        """
        dims = tuple(None if n == 1 else self._spaces.axis(self._spaces.space(n, shown=True)) for n in shape)
        node = Input(name, present(dims), dtype, dims)
        self._inputs.append(node)
        self._own[name] = node.axes
        return Ref(name, dims, dtype)

    def lies(self, ref: Ref, order: Sequence[int]) -> None:
        """Note that an input, or what PyTorch has just made, has its dimensions in memory in this order, outermost first.

        So it is in the example. What is computed of it element by element lies so too, as in eager.
        """
        turned = present(tuple(ref.dims[d] for d in order))
        if turned == self._own[ref.value]:
            return
        self._turned[ref.value] = turned
        if ref.value in self._made:  # the axes of an input are in the order of its dimensions
            node = replace(self._made[ref.value], axes=turned)
            assert self._nodes[-1].name == node.name, "nothing has read it"
            self._nodes[-1] = self._made[node.name] = node
            self._own[node.name] = turned

    def constant(self, value: Number, dtype: DType) -> Ref:
        """Add a number, rank 0."""
        return self._add(Constant(self._name(), (), dtype, value))

    def number(self, ref: Ref) -> Number | None:
        """Return the number that all elements of `ref` are; None where none is known."""
        node = self._made.get(ref.value)
        return node.value if isinstance(node, Constant) else None

    def iota(self, size: SizeOrAxis, dtype: DType = DType.int64) -> Ref:
        """Add the numbers 0, 1 .. size - 1, rank 1."""
        axis = self.axis(size)
        if axis is None:
            return replace(self.constant(0, dtype), dims=(None,))
        return self._add(Iota(self._name(), (axis,), dtype))

    def extent(self, axis: Axis | None, dtype: DType) -> Ref:
        """Add the number of elements of the axis's space, rank 0."""
        if axis is None:
            return self.constant(1, dtype)
        return self._add(Extent(self._name(), (), dtype, axis.space))

    def opaque(
        self,
        target: str,
        call: str,
        refs: Sequence[Ref],
        shape: Sequence[SizeOrAxis],
        dtype: DType,
        reason: str,
        location: Location | None = None,
        *,
        always: bool = False,
    ) -> Ref:
        """Add one result of an operation that runs in PyTorch; ints of `shape` are the example's.

        It reads the values of `refs` as they lie; one that is expanded must have been copied (`dense`).
        """
        uses = tuple(r.value for r in refs)
        dims = tuple(self.axis(s, shown=True) for s in shape)
        node = Opaque(self._name(), present(dims), dtype, target, call, uses, reason, location, always)
        return replace(self._add(node), dims=dims)

    def flatten(self, ref: Ref, run: tuple[int, int, Axis], call: str) -> Ref:
        """Return `ref` read through PyTorch's `call`, which makes one axis of those of a run (`last_run`)."""
        own, (first, last, merged) = self._own[ref.value], run
        axes: list[SizeOrAxis] = [*own[:first], merged, *own[last + 1 :]]
        made = self.opaque("aten.flatten", call, [ref], axes, ref.dtype, "a view for what reads merged dimensions")
        new = dict(zip((a for a in axes if isinstance(a, Axis)), present(made.dims), strict=True))
        if ref.value in self._turned:
            self._turned[made.value] = self._own[made.value]
        return self.over(replace(ref, value=made.value), new)

    def unflatten(self, ref: Ref, dim: int, parts: Sequence[Axis], call: str) -> Ref:
        """Return `ref` read through PyTorch's `call`, which splits dimension `dim` of its value into axes as long as `parts`."""
        axes: list[SizeOrAxis] = [*present(ref.dims[:dim]), *parts, *present(ref.dims[dim + 1 :])]
        return self.opaque("aten.unflatten", call, [ref], axes, ref.dtype, "a view for what PyTorch reads")

    def over(self, ref: Ref, new: Mapping[Axis, Axis]) -> Ref:
        """Return `ref` with its value's axes replaced by `new` ones."""
        return replace(ref, dims=tuple(None if d is None else self._over(d, new) for d in ref.dims))

    def rank(self, ref: Ref) -> int:
        """Count the axes that the value of `ref` has."""
        return len(self._own[ref.value])

    def axis(self, size: SizeOrAxis, *, shown: bool = False) -> Axis | None:
        """Make a fresh axis of that size, None for size 1.

        An int is the size for good, or if `shown` only the example's.
        """
        if isinstance(size, Axis):
            return self._spaces.axis(size.space)
        if size == 1:
            return None
        return self._spaces.axis(self._spaces.space(size, fixed=not shown, shown=shown))

    def longer_axis(self, axes: Sequence[Axis], plus: int) -> Axis | None:
        """Make a fresh axis with as many elements as all of `axes` have, and `plus` more; None for size 1."""
        read = [a.space for a in axes if not self.is_fixed(a)]
        plus += sum(self._size(a) for a in axes if self.is_fixed(a))
        if not read:
            return self.axis(plus)
        size = plus + sum(map(self._spaces.hint, read))
        rule = Sliced(read[0], plus=plus, others=tuple(read[1:]))
        return None if size == 1 else self._spaces.axis(self._spaces.space(size, sliced=rule))

    def is_fixed(self, axis: Axis) -> bool:
        """Tell whether the program alone says the size of `axis`."""
        return self._spaces.fixed(axis.space)

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Return the sizes in the example."""
        return tuple(self._size(d) for d in ref.dims)

    def elementwise(
        self,
        expr: Scalar,
        refs: Sequence[Ref],
        dtype: DType | None = None,
        location: Location | None = None,
    ) -> Ref:
        """Apply `expr` over the broadcast dimensions of `refs`; `Arg(i)` is `refs[i]`.

        dtype: eager's, by default that to which `refs` promote.
        """
        dtype = promote(*refs) if dtype is None else dtype
        refs = [self._in_double(ref, dtype, location) for ref in refs]
        return self._rounded(self._pointwise(expr, refs, dtype.accumulator, location), dtype, location)

    def cast(
        self,
        ref: Ref,
        dtype: DType,
        semantic: bool | None = None,
        location: Location | None = None,
    ) -> Ref:
        """Convert `ref` to another element type. By default precision between floats, else semantic.

        To and from float64 it is semantic too: who asks for fp64 wants its digits there, and its cost nowhere else. So it is to and
        from the fp8 numbers, which are so coarse that their rounding is what a program is about.
        """
        if dtype is ref.dtype:
            return ref
        if semantic is None:
            semantic = dtype.accumulator is not ref.dtype.accumulator or not dtype.is_float
            semantic = semantic or dtype.is_kept or ref.dtype.is_kept
        axes = self._own[ref.value]
        made = self._add_like(Cast(self._name(), axes, dtype, Use(ref.value, axes), semantic, location), ref, {})
        return replace(made, dims=ref.dims)

    def dense(self, ref: Ref) -> Ref:
        """Return the tensor as a value that has exactly its axes, in their order: a copy, if it is a view."""
        if self._own[ref.value] == self._atoms(ref.dims):
            return ref
        axes = self._atoms(ref.dims)
        use = Use(ref.value, self._own[ref.value])
        made = self._add(Elementwise(self._name(), axes, ref.dtype, Arg(0), (use,)))
        return replace(made, dims=ref.dims)

    def lies_in(self, ref: Ref, order: Sequence[int]) -> bool:
        """Tell whether the dimensions of `ref`, and nothing else, lie in memory in this order, outermost first."""
        axes = self._atoms(tuple(ref.dims[d] for d in order))
        return self._turned.get(ref.value, self._own[ref.value]) == axes

    def side_by_side(self, ref: Ref) -> Ref:
        """Return a copy of the tensor in which axes that are merged lie side by side, else in the order in which it lies.

        What is merged lies where its innermost axis does: heads and the elements of each lie innermost, as these elements do. A
        dimension that the value does not have, since it is expanded, lies within the one before it.
        """
        lies = self._turned.get(ref.value, self._own[ref.value])
        places, before = {axis: place for place, axis in enumerate(lies)}, -1
        atoms: list[tuple[int, tuple[Axis, ...]]] = []
        for axis in present(ref.dims):
            parts = self._atoms((axis,))
            before = next((places[a] for a in reversed(parts) if a in places), before)
            atoms.append((before, parts))
        axes = tuple(a for _, parts in sorted(atoms, key=lambda each: each[0]) for a in parts)
        use = Use(ref.value, self._own[ref.value])
        made = self._add(Elementwise(self._name(), axes, ref.dtype, Arg(0), (use,)))
        if ref.value in self._turned or axes != self._atoms(ref.dims):
            self._turned[made.value] = axes
        return replace(made, dims=ref.dims)

    def order(self, ref: Ref) -> tuple[int, ...] | None:
        """Tell which of its value's axes each dimension of `ref` not of size 1 is; None where the value has other axes too."""
        own, axes = self._own[ref.value], self._atoms(ref.dims)
        return tuple(own.index(a) for a in axes) if len(own) == len(axes) else None

    def packed(self, ref: Ref, memory: str) -> bool:
        """Tell whether `ref` is a value as a kernel writes it, row-major: no input, no look at another value, not PyTorch's.

        memory: the value whose memory it is, itself or what it is flattened of.
        """
        node = self._made.get(memory)
        return node is not None and not isinstance(node, Reindex | Opaque) and self._own[ref.value] == present(ref.dims)

    def _rounded(self, ref: Ref, dtype: DType, location: Location | None) -> Ref:
        return self.cast(ref, dtype, None, location)

    def _in_double(self, ref: Ref, dtype: DType, location: Location | None) -> Ref:
        """Return `ref` for an operation of type `dtype`: where one of the two is fp64, it is cast to what the other is
        computed in.
        """
        crossing = ref.dtype.is_float and dtype.is_float and DType.float64 in (ref.dtype, dtype)
        return self.cast(ref, dtype.accumulator, None, location) if crossing else ref

    def _expanded(self, ref: Ref) -> bool:
        return len(self._own[ref.value]) != len(self._atoms(ref.dims))

    def _use(self, ref: Ref, bound: Mapping[Axis, Axis]) -> Use:
        return Use(ref.value, tuple(bound[a] for a in self._own[ref.value]))

    def _broadcast(
        self,
        shapes: Sequence[_Dims],
        bound: Sequence[dict[Axis, Axis]],
        taken: set[Axis],
        location: Location | None,
    ) -> list[Axis | None]:
        """Broadcast `shapes` to their common dimensions; `bound[i]` gets the axis there for each axis of shape i."""
        rank = max((len(s) for s in shapes), default=0)
        dims: list[Axis | None] = []
        for position in reversed(range(rank)):  # the dimension that eager complains of is the last
            own: Axis | None = None
            for shape, binding in zip(shapes, bound, strict=True):
                place = position - rank + len(shape)
                axis = shape[place] if place >= 0 else None
                if axis is None:
                    continue
                own = self._free(axis, taken) if own is None else own
                self._demand(own, axis, position, location)
                binding[axis] = own
            dims.insert(0, own)
        return dims

    def _demand(self, a: Axis, b: Axis, position: int, location: Location | None) -> None:
        if not self._spaces.unify(a.space, b.space):
            raise ShapeError(
                f"The size of tensor a ({self._size(a)}) must match the size of tensor b"
                f" ({self._size(b)}) at non-singleton dimension {position}",
                where=location,
            )

    def _free(self, axis: Axis, taken: set[Axis]) -> Axis:
        """Return `axis`, or another one over its space where the operation has that already."""
        axis = self._spaces.axis(axis.space) if axis in taken else axis
        taken.add(axis)
        return axis

    def _pointwise(self, expr: Scalar, refs: Sequence[Ref], dtype: DType, location: Location | None) -> Ref:
        rank = max((len(r.dims) for r in refs), default=0)
        places = [[_place(d - rank + len(r.dims)) for r in refs] for d in range(rank)]
        refs, models = self._aligned(refs, places, location)
        bound: list[dict[Axis, Axis]] = [{} for _ in refs]
        dims = self._broadcast([r.dims for r in refs], bound, set(), location)
        args = tuple(self._use(r, b) for r, b in zip(refs, bound, strict=True))
        node = Elementwise(self._name(), present(dims), dtype, expr, args, location)
        # As in eager: in the order in which the first operand lies that has all dimensions.
        first = next((i for i, use in enumerate(args) if len(use.axes) == len(node.axes)), None)
        if first is None:
            made = self._add(node)
        else:
            made = self._add_like(node, refs[first], {own: (axis,) for own, axis in bound[first].items()})
        return replace(made, dims=self._merged(dims, models))


def _place(dim: int) -> int | None:
    return dim if dim >= 0 else None


def dim_of(dim: int, rank: int) -> int:
    """Return `dim` counted from the front."""
    return dim % max(rank, 1)
