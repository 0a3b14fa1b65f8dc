"""Reindexings of inputs become inputs of their own: the same memory from another offset, with other strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.tensor.axes import Affine, Axis
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Input, Node, Reindex, TensorProgram


@dataclass(frozen=True, slots=True)
class View:
    """The input `name` is `source[index...]`: no copy, `source`'s memory.

    Attributes:
        name: the input that `views` added.
        source: the input whose memory it is.
        axes: one per dimension of the view, in order. Their sizes: `axis.space.size(sizes)`, where
            `sizes` is `program.sizes(sizes read off the other inputs)`.
        dims: the numbers of the dimensions of `source`, as the user passes it, that have an axis;
            the others have size 1, and index 0.
        index: per entry of `dims`, the index there as a function of `axes`.
    """

    name: str
    source: str
    axes: tuple[Axis, ...]
    dims: tuple[int, ...]
    index: tuple[Affine, ...]

    def offset(self, shape: Sequence[int], strides: Sequence[int]) -> int:
        """Counts the elements from `source`'s first to the view's.

        `shape` and `strides` (in elements) are those of `source`, of all its dimensions.
        """
        return sum(
            strides[dim] * (index.offset + (shape[dim] - 1 if index.from_end else 0))
            for dim, index in zip(self.dims, self.index, strict=True)
        )

    def strides(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Counts the elements from one index of each axis to the next, given `source`'s strides. Maybe negative or 0."""
        steps = dict.fromkeys(self.axes, 0)
        for dim, index in zip(self.dims, self.index, strict=True):
            for axis, coefficient in index.terms:
                steps[axis] += coefficient * strides[dim]
        return tuple(steps[axis] for axis in self.axes)

    @property
    def backwards(self) -> tuple[int, ...]:
        """The dimensions of `source` that run backwards."""
        return tuple(d for d, i in zip(self.dims, self.index, strict=True) if any(c < 0 for _, c in i.terms))

    def turned(self) -> View:
        """Returns the view of a copy of `source` in which those are turned round."""
        index = (_backwards(i) if d in self.backwards else i for d, i in zip(self.dims, self.index, strict=True))
        return replace(self, index=tuple(index))


def _backwards(index: Affine) -> Affine:
    """Counts the index of an element from the other end."""
    terms = tuple((axis, -coefficient) for axis, coefficient in index.terms)
    return Affine(terms, -index.offset, not index.from_end)


def views(program: TensorProgram) -> tuple[TensorProgram, tuple[View, ...]]:
    """Makes each reindexing of an input an input of its own, after all others.

        program(x): a[m] = x[m + 8]         ==>    program(x, a): b[m] = exp(a[m])
                    b[m] = exp(a[m])               View a: x's memory, 8 rows on

    Condition: none, an affine index into memory is an offset and strides. Conditioning: none.
    One of a view is a view of that, after it. Inputs that are no longer read stay, since sizes are read off them.
    """
    inputs = {node.name: node for node in program.inputs}
    found: list[View] = []
    made: list[Input] = []
    kept: list[Node] = []
    for node in program.nodes:
        if not isinstance(node, Reindex) or node.source not in inputs:
            kept.append(node)
            continue
        source = inputs[node.source]
        dims = tuple(i for i, d in enumerate(source.dims or source.axes) if d is not None)
        found.append(View(node.name, source.name, node.axes, dims, node.index))
        inputs[node.name] = Input(node.name, node.axes, node.dtype, node.axes)
        made.append(inputs[node.name])
    every = (*program.inputs, *made)
    return replace(program, inputs=every, nodes=tuple(kept)), tuple(found)


@tensor_pass()
def views_as_inputs(program: TensorProgram) -> TensorProgram:
    """Make each reindexing of an input an input of its own; as `views`. Its sizes are read from the view."""
    return replace(views(program)[0], derived=())
