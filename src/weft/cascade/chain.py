"""Chains: reductions along one axis of which later ones use the results of earlier ones (RedFuser, equation 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.cascade.algebra import text
from weft.errors import Location
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
    reads,
    reads_through,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Convert, Scalar, apply, arguments, occurrences, operations, substitute

MOST_OPERATIONS = 256
"""Between two reductions, each counted as often as it is read: expressions are trees, and what is done with them goes over each."""

Reducing: TypeAlias = Reduction | Contraction
"""A node that a chain may have: Table 1's reductions, a matrix product among them."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an earlier reduction of the chain: its number, d_i of the paper."""

    index: int


@dataclass(frozen=True, slots=True)
class Element:
    """What a reduction combines along the axis, as written: F_i of the paper.

    Attributes:
        sides: the factors: one, or the two operands of a product. Arguments are the chain's operands, by number.
        rounded: the type that the program rounds each side to before the product; None where it does not.
    """

    sides: tuple[Scalar, ...]
    rounded: tuple[DType | None, ...]

    @property
    def expr(self) -> Scalar:
        """The element as one expression."""
        return self.sides[0] if len(self.sides) == 1 else apply("mul", *self.sides)


@dataclass(frozen=True, slots=True)
class Link:
    """One reduction of a chain.

    Attributes:
        node: of the program.
        axes: of its result, in the chain's own axes.
        monoid: what it combines with.
        element: what it combines.
        dtype: what it is computed in.
        location: the user's line.
    """

    node: str
    axes: tuple[Axis, ...]
    monoid: Monoid
    element: Element
    dtype: DType
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Reductions along one axis, in an order in which each reads the results of earlier ones only.

    Attributes:
        over: the axis.
        axes: free axes of the whole.
        operands: what elements read: uses of values of the program, or results of earlier reductions.
        links: the reductions.
        wanted: (value of the program, number of the reduction that gives it).
        running: whether roundings may be made at the scale so far (`weft.cascade.rounding`).
        finished: (value of the program, what it is of results and of what is fixed along the axis).
    """

    over: Axis
    axes: tuple[Axis, ...]
    operands: tuple[Use | Result, ...]
    links: tuple[Link, ...]
    wanted: tuple[tuple[str, int], ...]
    running: bool = False
    finished: tuple[tuple[str, Scalar], ...] = ()

    def dependent(self, expr: Scalar) -> bool:
        """Tells whether `expr` reads the result of a reduction of the chain."""
        return any(isinstance(self.operands[i], Result) for i in arguments(expr))

    def varying(self, expr: Scalar) -> bool:
        """Tells whether `expr` varies along the axis."""
        return any(self.over in self.axes_of(i) for i in arguments(expr))

    def axes_of(self, operand: int) -> tuple[Axis, ...]:
        """Returns the axes of an operand."""
        found = self.operands[operand]
        return found.axes if isinstance(found, Use) else self.links[found.index].axes

    def names(self) -> tuple[str, ...]:
        """Returns the operands' names, for a reader: values of the program."""
        return tuple(str(o) if isinstance(o, Use) else self.links[o.index].node for o in self.operands)

    def show(self, expr: Scalar) -> str:
        """Writes `expr` as text."""
        return text(expr, self.names())


def argument(operand: int) -> str:
    """Names the chain's operand number `operand` as graphs call it."""
    return f"%{operand}"


class NoChainError(Exception):
    """A reduction that cannot be part of the chain as it stands; the message says why."""


@dataclass
class Gathering:
    """The chain that ends in some reductions, while it is put together.

    Attributes:
        program, values: where it is in.
        members: names of the reductions that may be links.
        after: names of values that depend on any of them.
        over: the chain's axis.
        sizes_seen: whether absolute values are seen through as arithmetic is: a scale is a maximum of them.
        inlined: how many operations each value stands for that is seen through.
    """

    program: TensorProgram
    values: Mapping[str, Node]
    members: frozenset[str]
    after: frozenset[str]
    over: Axis
    sizes_seen: bool = False

    def __post_init__(self) -> None:
        self.links: list[Link] = []
        self.operands: list[Use | Result] = []
        self.known: dict[tuple[str, tuple[Axis, ...]], int] = {}
        self.inlined: dict[str, int] = {}
        self.wide = any(self.values[name].dtype is DType.float64 for name in self.members)
        for node in self.program.nodes:
            if isinstance(node, Elementwise | Cast) and (node.name in self.after or self._light(node)):
                count = self._operations(node)
                if count <= MOST_OPERATIONS or node.name in self.after:
                    self.inlined[node.name] = count

    def _operations(self, node: Elementwise | Cast) -> int:
        """Counts the operations that `expression` would write for `node`, told from those before it: nothing is written
        to count them.
        """
        if isinstance(node, Cast):
            count = 1 + self.inlined.get(node.arg.value, 0)
        else:
            read = [self.inlined.get(use.value, 0) for use in node.args]
            count = operations(node.expr) + sum(read[i] for i in occurrences(node.expr))
        return min(count, MOST_OPERATIONS + 1)

    def link(self, node: Reducing, axes: tuple[Axis, ...]) -> int:
        """Returns the number of the reduction `node` with its result's axes bound to `axes`.

        Raises:
            NoChainError: it runs along other axes too, or its result would vary along the chain's axis.
        """
        if (node.name, axes) in self.known:
            return self.known[node.name, axes]
        if self.over in axes:
            raise NoChainError(
                f"{node.name} varies along {self.over}, along which a result of the chain must be constant"
            )
        (along,) = node.over
        bound = {**dict(zip(node.axes, axes, strict=True)), along: self.over}
        sides, rounded = list[Scalar](), list[DType | None]()
        for use in reads(node):
            through, dtype = self._unrounded(use.within(bound)) if isinstance(node, Contraction) else (None, None)
            sides.append(self.expression(through or use.within(bound)))
            rounded.append(dtype)
        monoid = node.monoid if isinstance(node, Reduction) else Monoid.sum
        self.links.append(
            Link(node.name, axes, monoid, Element(tuple(sides), tuple(rounded)), node.dtype.accumulator, node.location)
        )
        self.known[node.name, axes] = len(self.links) - 1
        return len(self.links) - 1

    def _unrounded(self, use: Use) -> tuple[Use, DType | None]:
        """Returns a product's operand as it is before it is rounded for the product, and the type that it is rounded to."""
        node = self.values[use.value]
        if isinstance(node, Cast) and not node.semantic and node.dtype.is_float:
            return reads_through(node, use)[0], node.dtype
        return use, None

    def expression(self, use: Use) -> Scalar:
        """Expresses what `use` reads in terms of operands: elementwise work between the reductions is inlined."""
        node = self.values[use.value]
        if use.value not in self.after and use.value not in self.inlined:
            return self._operand(use)
        if self.inlined.get(use.value, 0) > MOST_OPERATIONS:
            raise NoChainError(
                f"{use.value} takes more than {MOST_OPERATIONS} operations on earlier results, "
                "each counted as often as it is read"
            )
        match node:
            case Elementwise():
                args = [self.expression(u) for u in reads_through(node, use)]
                return substitute(node.expr, lambda i: args[i])
            case Cast():
                inner = self.expression(*reads_through(node, use))
                return Convert(node.dtype, inner) if node.semantic else inner
            case Reduction() | Contraction() if node.name in self.members:
                return self._operand(Result(self.link(node, use.axes)))
            case _:
                raise NoChainError(f"{use.value}, between two reductions, is not elementwise")

    def _light(self, node: Node) -> bool:
        """Tells whether `node` is arithmetic that is better seen through than read: products may be weights of a mean."""
        if isinstance(node, Cast):
            return not node.semantic and node.dtype.is_float and self.values[node.arg.value].dtype.is_float
        if self.wide and node.dtype is not DType.float64:
            return False  # it is rounded where it is read elsewhere, and would not be here
        return (
            isinstance(node, Elementwise)
            and self.over.space in {a.space for a in node.axes}
            and _arithmetic(node.expr, _SEEN | {"abs"} if self.sizes_seen else _SEEN, self._fixed(node))
        )

    def _fixed(self, node: Elementwise) -> frozenset[int]:
        """Returns the arguments of `node` that do not vary along the chain's space."""
        spaces = ({a.space for a in use.axes} for use in node.args)
        return frozenset(i for i, own in enumerate(spaces) if self.over.space not in own)

    def _operand(self, operand: Use | Result) -> Arg:
        if operand not in self.operands:
            self.operands.append(operand)
        return Arg(self.operands.index(operand))


_SEEN = frozenset(("add", "sub", "mul", "div", "neg"))


def _arithmetic(expr: Scalar, seen: frozenset[str], fixed: frozenset[int]) -> bool:
    """Tells whether `expr` is made by the operations `seen`, of arguments and of parts `fixed` along the axis, however
    these are made.
    """
    if arguments(expr) <= fixed:
        return True
    match expr:
        case Arg():
            return True
        case Apply(op, args) if op in seen:
            return all(_arithmetic(a, seen, fixed) for a in args)
        case _:
            return False


def depending(program: TensorProgram, on: frozenset[str]) -> frozenset[str]:
    """Returns the values that depend on any of `on`, and these."""
    found = set(on)
    for node in program.nodes:
        if found.intersection(uses(node)):
            found.add(node.name)
    return frozenset(found)


def scales_made_of(program: TensorProgram) -> frozenset[str]:
    """Returns the values that scales in `program` are made of, these among them: factors of fewer axes than what they scale.

    A matrix product is made of nothing but itself here: what it is the size of is not the size of either side. Scales of numbers of
    few bits, which are ordinary without them, do not count.
    """
    values = program.values()
    found: set[str] = set()
    pending = [n for node in program.nodes if isinstance(node, Elementwise) for n in _scales(values, node, node.expr)]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += () if isinstance(values[name], Contraction) else uses(values[name])
    return frozenset(found)


def _scales(values: Mapping[str, Node], node: Elementwise, expr: Scalar) -> Iterator[str]:
    """Yields the values in factors of `expr` that lack an axis of `node`."""
    match expr:
        case Apply(op, parts):
            read = [[node.args[i] for i in arguments(part)] for part in parts]
            scaled = op in ("mul", "div") and not any(
                each and all(_few_bits(values, use) for use in each) for each in read
            )
            for part, each in zip(parts, read, strict=True):
                if scaled and all(len(set(use.axes)) < len(node.axes) for use in each):
                    yield from (use.value for use in each)
                yield from _scales(values, node, part)
        case Convert(_, inner):
            yield from _scales(values, node, inner)
        case _:
            pass


def _few_bits(values: Mapping[str, Node], use: Use) -> bool:
    """Tells whether `use` reads integers or fp8 numbers, or such with a cast."""
    node = values[use.value]
    while isinstance(node, Cast):
        node = values[node.arg.value]
    return not node.dtype.is_float or node.dtype.bytes == 1
