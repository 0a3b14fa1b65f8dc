"""The joint state of a chain's loop: what it carries, one iteration, and the merge of two parts (RedFuser, 3.2, 3.3, A.4).

Every sum is carried relative to running values (`weft.cascade.basis`). An iteration keeps the prior state, corrects it to the new
running values, and reduces the block beside them; where nothing moves there is nothing to correct.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.block.program import BlockNode, Component, Graph, State
from weft.block.references import Carrying, finite, joined, share
from weft.cascade.algebra import (
    ONE,
    ZERO,
    difference,
    finite_or,
    infinite_or,
    is_one,
    negative,
    power,
    product,
    quotient,
    repeatedly,
    total,
    where_invertible,
)
from weft.cascade.basis import Carried, expansion, squared
from weft.cascade.chain import Chain, argument
from weft.cascade.components import (
    LETTERS,
    SMALLEST,
    Centre,
    Combined,
    Exponent,
    Key,
    Logarithms,
    Multiplied,
    Reference,
    Scale,
    Single,
    StateLayout,
    extrema,
    monoid_of,
    scale_of,
)
from weft.cascade.graphing import Graphing
from weft.cascade.separate import Factor, Shift
from weft.errors import Location
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, Use
from weft.tensor.scalar import Arg, ArgumentTable, Lit, Scalar, apply, arguments, substitute


@dataclass
class StateWriter:
    """Writes the graphs of a state.

    Attributes:
        order: of axes in items.
        real: what is computed in.
        widened: whether that is wider than data are.
    """

    chain: Chain
    layout: StateLayout
    centres: Mapping[Shift, Reference]
    order: tuple[Axis, ...]
    real: DType
    widened: bool
    make: Callable[[str], str]
    locations: Mapping[Key, Location | None]

    def __post_init__(self) -> None:
        self.body = self._graphing()
        for i, operand in enumerate(self.chain.operands):
            if isinstance(operand, Use):
                self.body.dims[argument(i)] = frozenset(operand.axes)
        self.update = self._graphing()
        self.fed: dict[str, str] = {}

    def _graphing(self) -> Graphing:
        return Graphing(self.order, self.real, self.make)

    def state(self) -> tuple[tuple[BlockNode, ...], State]:
        """Returns the operators of an iteration, and the state."""
        names = self.layout.names
        components = tuple(
            Component(names[k], self.update.ordered(self.layout.axes[k]), self.real, self._initial(k))
            for k in self.layout.keys
        )
        update = self._update()
        merge = self._merge()
        own = tuple(names[k] for k in self.layout.keys)
        state = State(components, tuple(self.fed), update, merge, Graph(own, (), own))
        return tuple(self.body.nodes), state

    def _initial(self, key: Key) -> float:
        match key:
            case Carried() | Centre():
                return 0.0
            case Combined() | Logarithms() | Multiplied():
                return monoid_of(key).identity
            case Exponent():
                return self.real.lowest
            case Scale():
                return SMALLEST

    # One iteration.

    def _take(self, name: str) -> str:
        """Returns a value of the body, in the update."""
        if name not in self.fed:
            self.fed[name] = self.make(name.strip("%") if not name.startswith("%") else "x")
            self.update.dims[self.fed[name]] = self.body.dims[name]
        return self.fed[name]

    def _data(self, expr: Scalar, wish: str = "x") -> str:
        """Makes data in the body: elements, or one value that is the same for all of them."""
        names = [argument(i) for i in range(len(self.chain.operands))]
        if not arguments(expr):
            return self.body.point(wish, expr, names, dims=frozenset((self.chain.over,)))
        if self.widened:
            wide = {i: self.body.point("wide", Arg(0), (names[i],), self.real) for i in sorted(arguments(expr))}
            names = [wide.get(i, name) for i, name in enumerate(names)]
        return self.body.point(wish, expr, names)

    def _update(self) -> Graph:
        write, names = self.update, self.layout.names
        for key in self.layout.keys:
            write.dims[names[key]] = self.layout.axes[key]
        new = self._joined(write, names, self._of_block)
        blocks = {key: self._relative(key, new) for key in self._moving}
        new |= self._carrying(write).updated(self._moving, names, new, blocks.__getitem__).items()
        inputs = (*(names[k] for k in self.layout.keys), *self.fed.values())
        return Graph(inputs, tuple(write.nodes), tuple(new[k] for k in self.layout.keys))

    @property
    def _moving(self) -> tuple[Carried, ...]:
        """The sums that are relative to running values."""
        return tuple(key for key in self.layout.keys if isinstance(key, Carried) and key.moving)

    def _carrying(self, write: Graphing) -> Carrying[Carried, Key]:
        """Write sums with `write`."""

        def added(_: Carried, one: str, other: str) -> str:
            return write.point("s", apply("add", Arg(0), Arg(1)), (one, other))

        return Carrying(functools.partial(self._moved, write), added)

    def _of_block(self, key: Key) -> str:
        """Computes a block's part of a component that is relative to nothing; of a scale, the one before."""
        match key:
            case Exponent():
                return self._take(self._greatest(key))
            case Carried():
                return self._take(self._still(key))
            case Combined() | Logarithms() | Multiplied():
                return self._take(self._part(key))
            case Scale() | Centre():
                return self.layout.names[key]

    def _joined(self, write: Graphing, old: Mapping[Key, str], other: Callable[[Key], str]) -> dict[Key, str]:
        """Joins a state to `other` parts, all but what moves: exponents first, which others are relative to."""
        new: dict[Key, str] = {}
        for key in self.layout.keys:
            if isinstance(key, Exponent):
                new[key] = write.point("z", joined(Arg(0), Arg(1)), (old[key], other(key)))
        for key in self.layout.keys:
            match key:
                case Combined() | Logarithms() | Multiplied():
                    both = apply(monoid_of(key).value, Arg(0), Arg(1))
                    new[key] = write.point(LETTERS[type(key)], both, (old[key], other(key)))
                case Carried() if not key.moving:
                    new[key] = write.point("s", apply("add", Arg(0), Arg(1)), (old[key], other(key)))
                case Centre():
                    mean = write.point("mean", apply("div", Arg(0), Arg(1)), (new[key.above], new[key.below]))
                    new[key] = write.point("c", finite_or(Arg(0), Arg(1)), (mean, old[key]))
                case Scale():
                    larger = other(key)
                    if larger != old[key]:
                        larger = write.point("d", joined(Arg(0), Arg(1)), (old[key], larger))
                    new[key] = self._scale(write, key, new, larger)
                case Carried() | Exponent():
                    pass
        return new

    def _greatest(self, key: Exponent) -> str:
        """Finds the greatest data of a block, and finite."""
        self.body.location = None
        most = self.body.collapse("top", Monoid.max, self._data(key.data), self.chain.over)
        return self.body.point("top", finite(Arg(0), self.real.lowest), (most,))

    def _part(self, key: Single) -> str:
        """Computes a block's part."""
        self.body.location = self.locations.get(key)
        match key:
            case Combined():
                return self.body.collapse("part", key.monoid, self._data(key.data), self.chain.over)
            case Logarithms():
                return self._logarithms(key)
            case Multiplied():
                return self._multiplied(key)

    def _logarithms(self, key: Logarithms) -> str:
        """Computes a block's part of the sum of logarithms and exponents."""
        parts: list[str] = []
        if key.data is not None:
            logs, _ = self._sizes(key.data)
            parts.append(self.body.collapse("logs", Monoid.sum, logs, self.chain.over))
        if key.raised is not None:
            parts.append(self.body.collapse("part", Monoid.sum, self._data(key.raised), self.chain.over))
        return parts[0] if len(parts) == 1 else self.body.point("part", apply("add", Arg(0), Arg(1)), parts)

    def _multiplied(self, key: Multiplied) -> str:
        """Multiplies a block's data, each by the geometric mean of those that have a logarithm."""
        body, over = self.body, self.chain.over
        logs, there = self._sizes(key.data)
        mean = apply("div", Arg(0), apply("maximum", Arg(1), ONE))
        sums = (body.collapse("logs", Monoid.sum, logs, over), body.collapse("there", Monoid.sum, there, over))
        scale = body.point("scale", apply("exp", negative(mean)), sums)
        scaling = apply("mul", Arg(0), apply("where", apply("gt", Arg(2), ZERO), Arg(1), ONE))
        scaled = body.point("scaled", scaling, (self._data(key.data), scale, there))
        return body.collapse("part", Monoid.prod, scaled, over)

    def _sizes(self, data: Scalar) -> tuple[str, str]:
        """Returns the logarithms of a block's data, 0 where there is none; and 1 where there is one, else 0.

        In float32: any numbers near them would do.
        """
        write, narrow = self.body, DType.float32
        near = write.point("near", Arg(0), (self._data(data),), narrow)
        log = write.point("log", apply("log", apply("abs", Arg(0))), (near,), narrow)
        there = apply("where", apply("logical_or", apply("isnan", Arg(0)), apply("isinf", Arg(0))), ZERO, ONE)
        return write.point("log", finite_or(Arg(0), ZERO), (log,), narrow), write.point("there", there, (log,), narrow)

    def _still(self, key: Carried) -> str:
        """Computes a block's part of a sum that is relative to nothing."""
        self.body.location = self.locations.get(key)
        if all(f.trivial for f in key.factors):
            return self.body.extent("count", self.chain.over)
        each = [self.body.along(self._data(f.data), self.chain.over) for f in key.factors]
        sides = [self._rounded(self.body, side, r) for side, r in zip(each, key.rounded, strict=True)]
        return self._summed(self.body, sides)

    def _relative(self, key: Carried, new: Mapping[Key, str]) -> str:
        """Computes a block's part of a sum relative to the new running values."""
        self.update.location = self.locations.get(key)
        sides: list[str] = []
        for factor, dtype in zip(key.factors, key.rounded, strict=True):
            side = self.update.along(self._factor(factor, new), self.chain.over)
            sides.append(self._rounded(self.update, side, dtype))
        return self._summed(self.update, sides)

    def _factor(self, factor: Factor, new: Mapping[Key, str]) -> str:
        if not factor.powers and factor.raised is None and factor.scaled is None:
            return self._take(self._data(factor.data))
        write = self.update
        args = ArgumentTable[str]()

        def data(expr: Scalar) -> Arg:
            return args.arg(self._take(self._data(expr)))

        result = factor.data if is_one(factor.data) else data(factor.data)
        if factor.raised is not None:  # first: what it makes 0 may be far from a running value
            left = share(data(factor.raised.data), args.arg(new[Exponent(factor.raised.data)]))
            result = product(result, args.arg(write.point("e", left, args)))
        for shift, exponent in factor.powers:
            apart = apply("sub", data(shift.data), args.arg(new[self.centres[shift]]))
            result = product(result, power(args.arg(write.point("u", apart, args)), exponent))
        if factor.scaled is not None:
            scaled = quotient(data(factor.scaled.data), args.arg(new[scale_of(factor.scaled)]))
            result = product(result, substitute(factor.scaled.around, lambda _: scaled))
        return write.point("y", result, args)

    def _scale(self, write: Graphing, key: Scale, new: Mapping[Key, str], other: str) -> str:
        """Computes a scale of the extrema in `new`; where one cannot divide by it, `other`: any would do, what is
        divided is 0 or lost.

        That is the repair of A.1: its H has an inverse.
        """
        places = extrema(self.chain, key)
        args = [new[m] for m in places.values()]
        scale = write.point("d", substitute(key.of, lambda i: Arg(list(places).index(i))), args)
        return write.point("d", where_invertible(Arg(0), Arg(0), Arg(1)), (scale, other))

    def _rounded(self, write: Graphing, name: str, dtype: DType | None) -> str:
        return name if dtype is None else write.point("r", Arg(0), (name,), dtype)

    def _summed(self, write: Graphing, sides: list[str]) -> str:
        if len(sides) == 1:
            return write.collapse("part", Monoid.sum, sides[0], self.chain.over)
        return write.dot("part", sides[0], sides[1], self.chain.over)

    def _moved(self, write: Graphing, key: Carried, old: Mapping[Key, str], new: Mapping[Key, str]) -> str:
        """Moves the carried sum `key`, relative to the running values `old`, so that it is relative to `new`."""
        args = ArgumentTable[str]()
        shifts = frozenset(shift for shift, _ in key.shifts)
        result: Scalar = Lit(0.0)
        for coefficient, moves, part in expansion(key, shifts):
            summand: Scalar = args.arg(old[part])
            for shift, exponent in moves:
                by = self._by(write, self.centres[shift], old, new)
                summand = repeatedly(args.arg(by), exponent, summand)
            times = product(Lit(float(abs(coefficient))), summand)
            result = total(result, times) if coefficient > 0 else difference(result, times)
        result = infinite_or(args.arg(old[key]), result) if squared(key) else result
        for shift in key.raised:
            result = product(result, args.arg(self._fallen(write, Exponent(shift.data), old, new)))
        for scaling in key.scaled:
            scale = scale_of(scaling)
            factor = write.point("f", apply("div", Arg(0), Arg(1)), (old[scale], new[scale]))
            result = product(result, args.arg(factor))
        return write.point("kept", result, args)

    def _by(self, write: Graphing, reference: Reference, old: Mapping[Key, str], new: Mapping[Key, str]) -> str:
        """Computes by how much a running value has moved; an exponent that nothing has been relative to yet moves by nothing.

        Nor by any number where an exponent moves so far that what was relative to it is 0: times a sum, that could be infinite,
        and NaN times 0. An infinite move makes NaN there, as the difference times its exponential does.
        """
        moved: Scalar = apply("sub", Arg(0), Arg(1))
        if not isinstance(reference, Exponent):
            return write.point("by", moved, (new[reference], old[reference]))
        seen = apply("gt", Arg(1), Lit(self.real.lowest))
        near = apply("where", apply("eq", Arg(2), ZERO), ZERO, ONE)
        factor = self._fallen(write, reference, old, new)
        by = apply("where", seen, apply("mul", moved, near), ZERO)
        return write.point("by", by, (new[reference], old[reference], factor))

    def _fallen(self, write: Graphing, exponent: Exponent, old: Mapping[Key, str], new: Mapping[Key, str]) -> str:
        """Computes the share that is left, after a move, of what is relative to an exponent."""
        return write.point("f", share(Arg(0), Arg(1)), (old[exponent], new[exponent]))

    # Two parts.

    def _merge(self) -> Graph:
        """Merges the states of the elements of two parts."""
        write = self._graphing()
        sides: list[dict[Key, str]] = []
        for side in ("left", "right"):
            own = {key: self.make(f"{self.layout.names[key]}_{side}") for key in self.layout.keys}
            for key, name in own.items():
                write.dims[name] = self.layout.axes[key]
            sides.append(own)
        left, right = sides
        new = self._joined(write, left, right.__getitem__)
        new |= self._carrying(write).merged(self._moving, left, right, new).items()
        inputs = (*left.values(), *right.values())
        return Graph(inputs, tuple(write.nodes), tuple(new[k] for k in self.layout.keys))
