"""The tensor program: what the user wrote, over named axes, before any thought of blocks.

Values are in single-assignment order. Every use of a value binds each of its dimensions to an axis of the using
operation, as the subscripts of an einsum do; so two uses of one value may run over its space with different axes, and
axes are never told apart, or taken for one, by their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, assert_never

from weft.errors import Location
from weft.tensor.axes import Affine, Axis, Space
from weft.tensor.derived import Derived, by_space
from weft.tensor.dtypes import DType
from weft.tensor.merge import Monoid, StateMerge
from weft.tensor.order import Order
from weft.tensor.scalar import Arg, ExactNumbers, Number, Scalar, show


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a value: `axes[d]` runs over the value's axis number d."""

    value: str
    axes: tuple[Axis, ...]

    def within(self, outer: Mapping[Axis, Axis]) -> Use:
        """Reads the same value over the axes that its own are bound to."""
        return Use(self.value, tuple(outer[a] for a in self.axes))

    def __str__(self) -> str:
        return self.value + (f"[{', '.join(map(str, self.axes))}]" if self.axes else "")


@dataclass(frozen=True, slots=True)
class _Value:
    """What every node gives: a value, with one dimension for each of `axes`."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Input(_Value):
    """A tensor that the program is called with.

    A dimension of size 1 has no axis: it is a class of its own, there is nothing to iterate.

    Attributes:
        axes: one per dimension that is not of size 1, in the tensor's order.
        dims: the tensor's dimensions, None for each of size 1; empty where that is just `axes`.
    """

    dims: tuple[Axis | None, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Constant(ExactNumbers, _Value):
    """A number, rank 0."""

    value: Number


@dataclass(frozen=True, slots=True)
class Iota(_Value):
    """The index along its one axis: 0, 1, 2 ..."""


@dataclass(frozen=True, slots=True)
class Extent(_Value):
    """The number of elements of `space`, rank 0: what a mean divides by."""

    space: Space


@dataclass(frozen=True, slots=True)
class Elementwise(_Value):
    """`expr` at every point of `axes`; argument i is `args[i]`. Computed in the accumulator type of `dtype`."""

    expr: Scalar
    args: tuple[Use, ...]
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Contraction(_Value):
    """`out[axes] = sum over `over` of left * right`; an axis of `axes` in both operands is a batch axis."""

    left: Use
    right: Use
    over: tuple[Axis, ...]
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Reduction(_Value):
    """`out[axes]` = `arg` combined by `monoid` over the axes `over`."""

    monoid: Monoid
    arg: Use
    over: tuple[Axis, ...]
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Scan(_Value):
    """`out[axes]` = component `result` of the states of the elements along `over`, each merged with all that come before it.

    Attributes:
        axes: those of `args`, `over` among them.
        merge: of two states.
        args: what the elements are.
        element: the state of one element alone, a component each; `Arg(i)` is what `args[i]` has there.
        kinds: the type of each component, of which this is number `result`.
    """

    merge: StateMerge
    args: tuple[Use, ...]
    element: tuple[Scalar, ...]
    kinds: tuple[DType, ...]
    result: int
    over: Axis
    location: Location | None = None

    @staticmethod
    def of(monoid: Monoid, name: str, axes: tuple[Axis, ...], dtype: DType, arg: Use, over: Axis) -> Scan:
        """Make the scan of numbers, `arg`, that `monoid` combines."""
        return Scan(name, axes, dtype, StateMerge.of(monoid), (arg,), (Arg(0),), (dtype,), 0, over)

    @property
    def monoid(self) -> Monoid | None:
        """The monoid, where the states are the numbers that are read; else None."""
        return self.merge.monoid if self.element == (Arg(0),) else None

    @property
    def whole(self) -> Scan:
        """The scan without its name and its choice of result: equal for all results of one scan."""
        return replace(self, name="", dtype=DType.int64, result=0, location=None)


@dataclass(frozen=True, slots=True)
class Ranking(_Value):
    """Of the elements of `arg` along `over` those that come first in `order`: their values, or where they are.

    The two results of one ranking, its values and its places, are two nodes that differ in nothing else.

    Attributes:
        axes: those of `arg` but `over`, and `rank`.
        rank: an axis over a space of fixed size, that of how many; None for the first one alone.
        places: the result is the indices along `over`, int64; else the values, in the accumulator type of `arg`'s.
    """

    arg: Use
    over: Axis
    rank: Axis | None
    order: Order
    places: bool
    location: Location | None = None

    @property
    def count(self) -> int:
        """The number of elements that are kept."""
        return 1 if self.rank is None else self.rank.space.size({})

    @property
    def both(self) -> Ranking:
        """The ranking without its name and its choice of result: equal for both results of one ranking."""
        return replace(self, name="", dtype=DType.int64, places=False, location=None)


@dataclass(frozen=True, slots=True)
class Reindex(_Value):
    """`out[axes] = source[index...]`: transpose, expand, slice, flip, diagonal: one affine index per source dimension."""

    source: str
    index: tuple[Affine, ...]
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Lookup(_Value):
    """`out[axes] = source[index...]`: for each dimension of `source` an axis, or the value of an integer tensor, which says where.

    A value that is no index of its dimension stands for the nearest that is one: what the call raises for it is no part of the
    program (`weft.plan.execute`).

    Attributes:
        index: at least one is a use; the axes among them are distinct.
        masked: where a value is no index nothing is read, and the result is 0: what lies beside a window, where tensors are joined.
    """

    source: str
    index: tuple[Axis | Use, ...]
    location: Location | None = None
    masked: bool = False

    @property
    def along(self) -> tuple[Axis | None, ...]:
        """For each dimension of `source` the axis that goes along it; None where a value says where."""
        return tuple(i if isinstance(i, Axis) else None for i in self.index)


@dataclass(frozen=True, slots=True)
class Cast(_Value):
    """A change of element type. Not `semantic`: precision, which a law may drop, keeping more bits."""

    arg: Use
    semantic: bool
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Opaque(_Value):
    """An operation that runs in PyTorch: one result of `target`, with the reason why it is not weft's.

    `call` names the node of the captured graph that computes it; `uses` are the values it reads, whole. `always`: it runs though
    nothing reads it, since it draws random numbers or does something besides.
    """

    target: str
    call: str
    uses: tuple[str, ...]
    reason: str
    location: Location | None = None
    always: bool = False


Node: TypeAlias = (
    Input
    | Constant
    | Iota
    | Extent
    | Elementwise
    | Contraction
    | Reduction
    | Scan
    | Ranking
    | Reindex
    | Lookup
    | Cast
    | Opaque
)


@dataclass(frozen=True)
class TensorProgram:
    """`nodes` in an order in which every value is defined before it is used; `outputs` name values.

    Attributes:
        inputs: the tensors it is called with, in call order (also found by name in `nodes`' uses).
        nodes: everything else.
        outputs: names of the values returned, in order; a name may occur twice.
        output_dims: the dimensions of each output as the user gets it, None for one of size 1; empty where each output has just its
            value's axes. They may be in another order than these: the user gets a permuted view, as from eager.
        derived: sizes that follow from others, in an order that can be followed; what is known of one otherwise must agree.
        rounded: values with the narrower float type that they have from one kernel to the next (`drop_precision_casts`).
    """

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    output_dims: tuple[tuple[Axis | None, ...], ...] = ()
    derived: tuple[Derived, ...] = ()
    rounded: tuple[tuple[str, DType], ...] = ()

    def __hash__(self) -> int:
        """Hash the names of the values, as a space does its own: programs are keys, and their nodes many."""
        return hash((tuple([n.name for n in self.inputs]), tuple([n.name for n in self.nodes]), self.outputs))

    def sizes(self, given: Mapping[str, int]) -> dict[str, int]:
        """Returns the sizes by name of all spaces that are `given`, fixed, or follow from these."""
        sizes = {**given, **{s.name: s.fixed for s in self.spaces() if s.fixed is not None}}
        self.follow(sizes)
        return sizes

    @cached_property
    def _rules(self) -> tuple[Derived, ...]:
        backwards = (rule.backwards for rule in self.derived)
        return (*self.derived, *(rule for rule in backwards if rule is not None and rule.space.fixed is None))

    def follow(self, sizes: dict[str, int]) -> None:
        """Adds the sizes that follow from those known by now, some of them by rules read backwards: n // 4 of n = 4 m."""
        rules = self._rules
        while rules:
            open_ones = [r for r in rules if r.space.name not in sizes]
            rules = [r for r in open_ones if any(s.fixed is None and s.name not in sizes for s in r.sources)]
            if len(rules) == len(open_ones):
                return
            for rule in open_ones:
                if all(s.fixed is not None or s.name in sizes for s in rule.sources):
                    sizes.setdefault(rule.space.name, rule.size_in(sizes))

    @cached_property
    def rules_by_space(self) -> Mapping[Space, Sequence[int]]:
        """Numbers for each space without a fixed size what `derived` says of it."""
        return by_space(self.derived)

    @cached_property
    def following(self) -> frozenset[str]:
        """Names the spaces whose sizes follow from those of other spaces of this program, as `derived` says."""
        found: set[str] = set()
        own = {s.name for s in self.spaces()}
        for rule in self.derived:
            if all(s.fixed is not None or s.name in own | found for s in rule.sources):
                found.add(rule.space.name)
        return frozenset(found)

    def consistent(self, sizes: Mapping[str, int]) -> bool:
        """Tells whether `sizes`, of all spaces of the program, agree with the rules in `derived` that speak of these alone."""
        rules = [r for r in self.derived if all(s.fixed is not None or s.name in sizes for s in (r.space, *r.sources))]
        return all(r.space.size(sizes) == r.size_in(sizes) for r in rules)

    def values(self) -> dict[str, Node]:
        """Returns every value by name."""
        return dict(self._values)

    @cached_property
    def _values(self) -> Mapping[str, Node]:
        return {n.name: n for n in (*self.inputs, *self.nodes)}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Numbers the values in order, inputs first."""
        return {n.name: i for i, n in enumerate((*self.inputs, *self.nodes))}

    @cached_property
    def dimensions(self) -> Mapping[Space, tuple[tuple[str, int], ...]]:
        """Lists for each space the values and their dimensions that run over it, in order, inputs first."""
        found: dict[Space, list[tuple[str, int]]] = {}
        for node in (*self.inputs, *self.nodes):
            for dim, axis in enumerate(node.axes):
                found.setdefault(axis.space, []).append((node.name, dim))
        return {space: tuple(places) for space, places in found.items()}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Node, ...]]:
        """Lists the nodes that read each value, of those that are read."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(uses(node)):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def tables(self) -> frozenset[str]:
        """Names what is looked up in, but for the numbers of an axis: what is found among these is the index itself."""
        counted = {node.name for node in self.nodes if isinstance(node, Iota)}
        return frozenset(node.source for node in self.nodes if isinstance(node, Lookup)) - counted

    @cached_property
    def turns(self) -> Mapping[str, tuple[str, ...]]:
        """Lists for each result of a call that runs in its turn (`Opaque.always`) the results of the call whose turn is before.
        It waits for these as for what it reads, though it reads them not: they draw from one generator.
        """
        calls: dict[str, list[str]] = {}
        for node in self.nodes:
            if isinstance(node, Opaque) and node.always:
                calls.setdefault(node.call, []).append(node.name)
        return {name: tuple(first) for first, second in pairwise(calls.values()) for name in second}

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Names what is made of numbers, sizes and indices alone, if it is no float or has no axes: a mask above all.

        A table of sines is not among them, nor what is looked up in (`tables`), which is to lie in memory.
        """
        from weft.tensor.made_again import numbers_of

        return numbers_of(self)

    @cached_property
    def local(self) -> frozenset[str]:
        """Names what each kernel makes for itself: `numbers`, and masks of rows of integers, as `ids[i] == ids[j]` is, with
        what only these read. To read the integers again takes less than to store the mask.
        """
        from weft.tensor.made_again import local_of

        return local_of(self)

    def spaces(self) -> tuple[Space, ...]:
        """Returns the spaces of all axes, in order of appearance."""
        return self._spaces

    @cached_property
    def _spaces(self) -> tuple[Space, ...]:
        seen: dict[Space, None] = {}
        for node in (*self.inputs, *self.nodes):
            for axis in axes_of(node):
                seen.setdefault(axis.space)
            if isinstance(node, Extent):
                seen.setdefault(node.space)
        return tuple(seen)

    def __str__(self) -> str:
        lines = [f"{n.name}: {_type(n)} = input" for n in self.inputs]
        lines += [f"{n.name}: {_type(n)} = {_show(n)}" for n in self.nodes]
        return "\n".join([*lines, f"return {', '.join(self.outputs)}"])


def reads(node: Node) -> tuple[Use, ...]:
    """Returns the uses of `node`, in order; what Reindex and Opaque read, and the source of a Lookup, is no `Use`."""
    match node:
        case Lookup():
            return tuple(i for i in node.index if isinstance(i, Use))
        case Elementwise() | Scan():
            return node.args
        case Contraction():
            return (node.left, node.right)
        case Reduction() | Ranking() | Cast():
            return (node.arg,)
        case Input() | Constant() | Iota() | Extent() | Reindex() | Opaque():
            return ()
        case _:
            assert_never(node)


def reads_through(node: Node, use: Use) -> tuple[Use, ...]:
    """Returns the uses of `node`, over the axes that `use`, which reads `node`, binds."""
    outer = dict(zip(node.axes, use.axes, strict=True))
    return tuple(u.within(outer) for u in reads(node))


def uses(node: Node) -> tuple[str, ...]:
    """Returns the names of the values that `node` reads, one entry per use."""
    match node:
        case Reindex():
            return (node.source,)
        case Lookup():
            return (node.source, *(u.value for u in reads(node)))
        case Opaque():
            return node.uses
        case _:
            return tuple(u.value for u in reads(node))


def expressions(node: Node) -> tuple[Scalar, ...]:
    """Returns what `node` computes of single elements, or of the states of two parts of a row."""
    match node:
        case Elementwise():
            return (node.expr,)
        case Scan():
            return (*node.element, *node.merge.parts)
        case _:
            return ()


def axes_of(node: Node) -> Iterator[Axis]:
    """Yields the axes that `node` runs over: those of its result, then those it sums over."""
    yield from node.axes
    if isinstance(node, Contraction | Reduction):
        yield from node.over
    elif isinstance(node, Ranking):
        yield node.over


def _type(node: Node) -> str:
    return f"{node.dtype}[{', '.join(f'{a}:{a.space.name}' for a in node.axes)}]"


def _show(node: Node) -> str:
    match node:
        case Input():
            return "input"
        case Constant():
            return repr(node.value)
        case Iota():
            return f"iota({node.axes[0]})"
        case Extent():
            return f"extent({node.space.name})"
        case Elementwise():
            return show(node.expr, tuple(str(u) for u in node.args))
        case Contraction():
            return f"contract over {', '.join(map(str, node.over))} of {node.left} * {node.right}"
        case Reduction() | Scan():
            return _reduced(node)
        case Ranking():
            return f"{'places' if node.places else 'values'} of the {node.count} {node.order} over {node.over} of {node.arg}"
        case Reindex() | Lookup():
            inside = " where inside" if isinstance(node, Lookup) and node.masked else ""
            return f"{node.source}[{', '.join(map(str, node.index))}]{inside}"
        case Cast():
            return f"{'semantic' if node.semantic else 'precision'} cast of {node.arg}"
        case Opaque():
            return f"opaque {node.target}({', '.join(node.uses)})  # {node.reason}"
        case _:
            assert_never(node)


def _reduced(node: Reduction | Scan) -> str:
    if isinstance(node, Reduction):
        return f"{node.monoid.name} over {', '.join(map(str, node.over))} of {node.arg}"
    what = node.merge if node.monoid is None else node.monoid.name
    element = ", ".join(show(e, tuple(map(str, node.args))) for e in node.element)
    return f"{what} along {node.over} up to each of {element}" + (f", component {node.result}" if node.result else "")
