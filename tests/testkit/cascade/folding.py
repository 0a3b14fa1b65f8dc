"""Runs a fold of a program as its state says, over any pieces of its axis, merged in any order and any tree.

It looks only at the fold's graphs: what lowering, schedules and emitters make of them has its own tests.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from weft.block.fold import Fold
from weft.block.program import BlockNode, Collapse, Dot, Extent, Graph, Pointwise
from weft.schedule import merging_together
from weft.tensor.axes import Axis
from weft.tensor.domain import Array, Domain, at, broadcast
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import aligned, evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Lit, Scalar

V = TypeVar("V")
Item = tuple[V, tuple[Axis, ...]]
"""An array, and the axis of each of its dimensions."""
State = tuple[Item[V], ...]


class Numbers(Fp64Domain):
    """Numbers of one numpy type, rounded to it after every operation."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def _carried(self, values: Array, dtype: DType) -> Array:
        found = super()._carried(values, dtype)
        return found.astype(self.dtype) if dtype.is_float else found

    def _scalar(self, expr: Scalar, args: Sequence[Array]) -> Array:
        if isinstance(expr, Lit) and isinstance(expr.value, float):
            return np.asarray(expr.value, self.dtype)
        return np.asarray(super()._scalar(expr, args))


class Folding(Generic[V]):
    """A fold, with what it reads of the program for some inputs.

    Attributes:
        wanted: what the evaluator gives for the values that the fold makes.
        length: of its axis.
    """

    def __init__(self, program: TensorProgram, fold: Fold, domain: Domain[V], inputs: Mapping[str, V]) -> None:
        self.fold, self.domain = fold, domain
        names = [use.value for _, use in fold.args]
        made = [value for value, _ in fold.makes]
        every = replace(program, outputs=(*names, *made), output_dims=())
        values = evaluate(every, inputs, domain)
        self.args = {name: (v, use.axes) for (name, use), v in zip(fold.args, values[: len(names)], strict=True)}
        self.wanted = dict(zip(made, values[len(names) :], strict=True))
        self.sizes: dict[Axis, int] = {}
        for v, axes in self.args.values():
            self.sizes.update(zip(axes, domain.shape(v), strict=True))
        (self.axis,) = fold.over
        space = self.axis.space
        self.length = self.sizes.get(self.axis, space.fixed or space.example or 1)
        self.own = {value: program.values()[value].axes for value in made}

    def graph(self, nodes: Sequence[BlockNode], values: Mapping[str, Item[V]], lanes: int = 0) -> dict[str, Item[V]]:
        """All values of a graph; items have `lanes` elements along the fold's axis."""
        found = dict(values)
        for node in nodes:
            found[node.name] = self._node(node, found, {**self.sizes, self.axis: lanes})
        return found

    def _node(self, node: BlockNode, values: Mapping[str, Item[V]], sizes: Mapping[Axis, int]) -> Item[V]:
        domain = self.domain
        match node:
            case Pointwise():
                args = [aligned(domain, *values[n], node.dims) for n in node.args]
                array = domain.elementwise(node.expr, args, node.dtype)
                return domain.lift(broadcast(tuple(sizes[a] for a in node.dims)), array), node.dims
            case Collapse():
                array, axes = values[node.arg]
                kept = tuple(a for a in axes if a != node.over)
                return domain.reduce(node.monoid, array, [axes.index(node.over)]), kept
            case Dot(acc=None):
                (left, first), (right, second) = values[node.left], values[node.right]
                label = {a: i for i, a in enumerate(dict.fromkeys((*first, *second)))}
                labels = ([label[a] for a in axes] for axes in (first, second, node.dims))
                mine, theirs, out = labels
                return domain.contract(left, mine, right, theirs, out), node.dims
            case Extent(_, _, dtype, axis) if axis is not None:
                return domain.full((), sizes[axis], dtype), ()
            case _:
                raise AssertionError(f"a fold has no {type(node).__name__}")

    def start(self) -> State[V]:
        """The state of no elements."""
        return tuple(
            (self.domain.full([self.sizes[a] for a in c.dims], c.init, c.dtype), c.dims)
            for c in self.fold.state.components
        )

    def after_block(self, state: State[V], start: int, stop: int) -> State[V]:
        """The state with the elements start .. stop - 1 too."""
        fed = {
            name: (
                self.domain.lift(at(tuple(slice(start, stop) if a == self.axis else slice(None) for a in axes)), v),
                axes,
            )
            for name, (v, axes) in self.args.items()
        }
        body = self.graph(self.fold.body, fed, stop - start)
        update = self.fold.state.update
        given = (*state, *(body[name] for name in self.fold.state.feeds))
        return self._outputs(update, dict(zip(update.inputs, given, strict=True)), stop - start)

    def segment(self, start: int, lengths: Sequence[int]) -> State[V]:
        """The state of some blocks, one after another."""
        state = self.start()
        for length in lengths:
            state = self.after_block(state, start, start + length)
            start += length
        return state

    def merged(self, left: State[V], right: State[V]) -> State[V]:
        """The state of the elements of both."""
        merge = self.fold.state.merge
        return self._outputs(merge, dict(zip(merge.inputs, (*left, *right), strict=True)))

    def together(self, left: State[V], parts: Sequence[State[V]]) -> State[V] | None:
        """The state of the elements of `left` and of all `parts`, met at once; None where its merge is none of a block."""
        axis = self.axis  # no component has it: it is the parts' here
        merge = merging_together(self.fold.state, axis)
        if merge is None:
            return None
        block: list[Item[V]] = []
        for own in zip(*parts, strict=True):
            array = self.domain.lift(lambda *each: np.stack(each), *(v for v, _ in own))
            block.append((array, (axis, *own[0][1])))
        return self._outputs(merge, dict(zip(merge.inputs, (*left, *block), strict=True)), len(parts))

    def _outputs(self, graph: Graph, given: Mapping[str, Item[V]], lanes: int = 0) -> State[V]:
        values = self.graph(graph.nodes, given, lanes)
        components = self.fold.state.components
        return tuple(
            (aligned(self.domain, *values[n], c.dims), c.dims) for n, c in zip(graph.outputs, components, strict=True)
        )

    def finished(self, state: State[V]) -> dict[str, V]:
        """Returns what the fold makes, by name, with the axes that the program's values have."""
        finish = self.fold.state.finish
        values = self.graph(finish.nodes, dict(zip(finish.inputs, state, strict=True)))
        whole = {name: (v, axes) for name, (v, axes) in self.args.items() if self.axis not in axes}
        names = (c.name for c in self.fold.state.components)
        after = self.graph(self.fold.after, whole | {n: values[o] for n, o in zip(names, finish.outputs, strict=True)})
        found: dict[str, V] = {}
        for value, made in self.fold.makes:
            named = {a.space: a for a in self.fold.axes}
            axes = [a if a in self.fold.axes else named[a.space] for a in self.own[value]]
            array = aligned(self.domain, *after[made], tuple(axes))
            found[value] = self.domain.lift(broadcast(tuple(self.sizes[a] for a in axes)), array)
        return found

    def over(self, segments: Sequence[Sequence[int]], rng: random.Random | None = None) -> dict[str, V]:
        """Runs the fold over its axis cut into segments, these into blocks; merged in any tree, or from the left without `rng`.

        Of a tree, about half of the nodes have more than two parts, where such a merge can be made.
        """
        states, start = list[State[V]](), 0
        for lengths in segments:
            states.append(self.segment(start, lengths))
            start += sum(lengths)
        assert start == self.length
        while len(states) > 1:
            count = 2 if rng is None else rng.choice((2, rng.randint(2, len(states))))
            first, *others = range(2) if rng is None else rng.sample(range(len(states)), count)
            parts = [states[i] for i in others]
            met = self.together(states[first], parts) if len(parts) > 1 else None
            met, taken = (self.merged(states[first], parts[0]), others[:1]) if met is None else (met, others)
            states = [met, *(s for i, s in enumerate(states) if i not in (first, *taken))]
        return self.finished(states[0])


def pieces(length: int, count: int, rng: random.Random) -> list[int]:
    """`length` as `count` summands, some of which may be 0."""
    ends = sorted(rng.randint(0, length) for _ in range(count - 1))
    return [b - a for a, b in zip([0, *ends], [*ends, length], strict=True)]


def cutting(length: int, segments: int, rng: random.Random, blocks: int = 4) -> list[list[int]]:
    """An axis of `length` in `segments` segments of up to `blocks` blocks; segments may be empty, blocks not."""
    found: list[list[int]] = []
    for part in pieces(length, segments, rng):
        cut = pieces(part, rng.randint(1, blocks), rng)
        found.append([n for n in cut if n])
    return found
