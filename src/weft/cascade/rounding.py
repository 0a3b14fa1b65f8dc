"""Roundings inside a chain, made at the scaling factor so far (RedFuser, 3.4: per-token quantisation into a product).

    F(x, d) = R(G(x) * H(d)) * V(x)

The paper takes R, a cast to 8 bits, for the identity. As the function that it is it has no decomposition: rescaling a rounded value
is not rounding the rescaled value. So the loop that follows from the paper's is an approximation, for chains that are asked for it
(`Chain.running`), and only where it is a fair one: R rounds and cuts nothing off, since |G * H| is bounded, and H only shrinks as
the loop goes on, so that no error that was made grows. What is known of R is here, but for the running value of H
(`weft.cascade.state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.block.rename import fresh
from weft.cascade.algebra import Monomial, monomial
from weft.cascade.approximation import Approximation
from weft.cascade.chain import Chain, Result, depending
from weft.tensor.axes import Space
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.laws import remove_dead
from weft.tensor.program import Cast, Elementwise, Monoid, Node, TensorProgram, Use, reads_through
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, substitute

_SLACK = 1e-6
"""Relative: what bounds that are reached lack when numbers are rounded."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A rounded product of data and earlier results.

    Attributes:
        data: G.
        result: H, the scaling factor.
        around: R, of its argument 0.
    """

    data: Scalar
    result: Scalar
    around: Scalar


def peeled(expr: Scalar) -> tuple[Scalar, Scalar] | None:
    """Returns (R, what it rounds) if `expr` is casts, roundings to whole numbers and clamps around something."""
    shell: Scalar
    match expr:
        case Convert(dtype, inner) if dtype is not DType.bool:
            shell = Convert(dtype, Arg(0))
        case Apply("round" | "floor" | "ceil" | "trunc" as op, (inner,)):
            shell = Apply(op, (Arg(0),))
        case Apply("maximum" | "minimum" as op, (inner, Lit() as end)):
            shell = Apply(op, (Arg(0), end))
        case _:
            return None
    deeper = peeled(inner)
    if deeper is None:
        return shell, inner
    return substitute(shell, lambda _: deeper[0]), deeper[1]


def misfit(chain: Chain, scaling: Scaling) -> str | None:
    """Says why roundings at the running scale say little of those at the last one; None where they are a fair approximation."""
    most = _largest(chain, scaling)
    what = chain.show(scaling.data)
    if most is None:
        return f"{what} is rounded by a scale that is not known to follow a running maximum of its size"
    if _cuts(scaling.around, most):
        return f"{what} is rounded to at most {most:.6g} steps, and some of these are clipped"
    return None


def _largest(chain: Chain, scaling: Scaling) -> float | None:
    """Bounds |G * H|, where H is a number by something that only grows, and that is at least |G| times a number."""
    data, scale = monomial(scaling.data), monomial(scaling.result)
    if scale.exponent or len(scale.factors) != 1:
        return None
    (below, exponent), *_ = scale.factors
    least = _multiple(chain, below, data) if exponent == -1 else 0.0
    return abs(scale.number * data.number) / least if least > 0 else None


def _multiple(chain: Chain, expr: Scalar, data: Monomial) -> float:
    """Returns how many times |data|, its number aside, `expr` is at least, for each element; 0 where that is not known
    or may shrink.
    """
    match expr:
        case Arg(index):
            operand = chain.operands[index]
            link = chain.links[operand.index] if isinstance(operand, Result) else None
            if link is None or link.monoid is not Monoid.max:
                return 0.0
            match link.element.expr:
                case Apply("abs", (inner,)):
                    size = monomial(inner)
                    same = (set(size.factors), set(size.exponent)) == (set(data.factors), set(data.exponent))
                    return abs(size.number) if same else 0.0
                case _:
                    return 0.0
        case Apply("maximum", (inner, Lit())) | Apply("maximum", (Lit(), inner)):
            return _multiple(chain, inner, data)
        case Apply("add", (inner, Lit(value))) | Apply("add", (Lit(value), inner)) if value >= 0:
            return _multiple(chain, inner, data)
        case Apply("mul", (inner, Lit(value))) | Apply("mul", (Lit(value), inner)) if value > 0:
            return _multiple(chain, inner, data) * float(value)
        case Apply("div", (inner, Lit(value))) if value > 0:
            return _multiple(chain, inner, data) / float(value)
        case Convert(dtype, inner) if dtype.is_float and not dtype.is_kept:
            return _multiple(chain, inner, data) / (1 + dtype.eps)
        case _:
            return 0.0


def _cuts(around: Scalar, most: float) -> bool:
    """Tells whether a step of `around` may cut a number of size `most` off, as a clamp or a narrow type does."""
    match around:
        case Convert(dtype, inner):
            if dtype.is_float:
                lost = abs(float(rounded(np.asarray(most), dtype)) - most) > dtype.eps / 2 * most
            else:
                low, high = dtype.bounds
                lost = not low <= -most * (1 - _SLACK) <= most * (1 - _SLACK) <= high
            return lost or _cuts(inner, most)
        case Apply("maximum", (inner, Lit(low))):
            return -most * (1 - _SLACK) < low or _cuts(inner, most)
        case Apply("minimum", (inner, Lit(high))):
            return most * (1 - _SLACK) > high or _cuts(inner, most)
        case Apply(_, (inner,)):
            return _cuts(inner, most)
        case _:
            return False


def approximation(program: TensorProgram, chains: Sequence[tuple[Chain, Sequence[Scaling]]]) -> Approximation | None:
    """Returns the program that a loop for `chains` is checked against; each chain has the scalings of its terms. None
    where there are none.
    """
    for chain, scalings in chains:
        links = frozenset(link.node for link in chain.links)
        if scalings and links <= program.values().keys():
            program = _Removal(program, links, chain.over.space).program_without()
    roundings = tuple(dict.fromkeys(s.around for _, scalings in chains for s in scalings))
    return Approximation(program, roundings) if roundings else None


@dataclass
class _Removal:
    """Takes roundings along a space out of the way from some reductions to others.

    Attributes:
        links: names of the reductions.
        along: the space.
    """

    program: TensorProgram
    links: frozenset[str]
    along: Space
    added: list[Node] = field(default_factory=list[Node])

    def __post_init__(self) -> None:
        self.values: Mapping[str, Node] = self.program.values()
        self.after = depending(self.program, self.links)
        self.make = fresh(set(self.values))

    def program_without(self) -> TensorProgram:
        """Returns the program with its reductions reading what was to be rounded."""
        nodes: list[Node] = []
        for node in self.program.nodes:
            made = with_uses(node, self._read) if node.name in self.links else node
            nodes += (*self.added, made)
            self.added.clear()
        return remove_dead(replace(self.program, nodes=tuple(nodes)))

    def _read(self, use: Use) -> Use:
        """Returns `use` of the same value without its roundings."""
        node = self.values[use.value]
        if use.value not in self.after or all(a.space != self.along for a in node.axes):
            return use
        match node:
            case Cast():
                return self._read(*reads_through(node, use))
            case Elementwise():
                shell = peeled(node.expr)
                expr = node.expr if shell is None else shell[1]
                made = replace(with_uses(node, self._read), name=self.make(node.name), expr=expr)
                self.added.append(made)
                return Use(made.name, use.axes)
            case _:
                return use
