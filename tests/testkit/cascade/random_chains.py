"""Random chains: each reduction's element is made of data and of what earlier ones gave, mostly so that it separates."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from weft.pipeline import normalize
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply

ROWS, LENGTH, COLUMNS = 3, 6, 2
MONOIDS = (Monoid.sum, Monoid.sum, Monoid.sum, Monoid.max, Monoid.min, Monoid.prod)


@dataclass
class _Maker:
    rng: random.Random
    dtype: DType
    builder: Builder = field(default_factory=Builder)
    results: list[Ref] = field(default_factory=list[Ref])
    outputs: list[Ref] = field(default_factory=list[Ref])
    signs: bool = False
    repeated: bool = False

    def __post_init__(self) -> None:
        self.data = [self.builder.input(f"x{i}", (ROWS, LENGTH), self.dtype) for i in range(self.rng.randint(1, 3))]
        self.fixed = self.builder.input("f", (ROWS, 1), self.dtype)
        if self.repeated:
            self.data.append(self.builder.expand(self.fixed, [-1, self.data[0].dims[1] or LENGTH]))

    def __call__(self, op: str, *args: Ref | float) -> Ref:
        """An operation on values and numbers."""
        refs = [a for a in args if isinstance(a, Ref)]
        exprs: list[Scalar] = [Arg(refs.index(a)) if isinstance(a, Ref) else Lit(a) for a in args]
        return self.builder.elementwise(apply(op, *exprs), refs, DType.bool if op == "lt" else None)

    def atom(self) -> Ref:
        """Something of the data alone."""
        x, y = self.rng.choice(self.data), self.rng.choice(self.data)
        match self.rng.randrange(7):
            case 0:
                return self("mul", x, y)
            case 1:
                return self("mul", x, self.fixed)
            case 2:
                return self("abs", x)
            case 3:
                return self("where", self("lt", x, self.rng.choice((0.0, self.fixed))), y, 0.0)
            case _:
                return x

    def result(self) -> Ref:
        """Something of an earlier result alone."""
        found = self.rng.choice(self.results)
        match self.rng.randrange(6):
            case 0:
                return self("add", self("abs", found), 1.5)
            case 1:
                return self("sqrt", self("add", self("mul", found, found), 1.0))
            case 2:
                return self("div", found, self.fixed)
            case _:
                return found

    def part(self) -> Ref:
        """A factor of data and of an earlier result."""
        data, result = self.atom(), self.result()
        match self.rng.randrange(10):
            case 0 | 1:
                return self("mul", data, result)
            case 2:
                return self("div", data, result)
            case 3 | 4:
                return self("sub", *self.rng.sample((data, result), 2))
            case 5:
                apart = self("sub", data, result)
                return self("mul", apart, apart)
            case 6 | 7:
                return self("exp", self("sub", data, result))
            case 8:
                return self("div", self("sub", data, result), self.result())
            case _:
                return self("where", self("lt", data, self.fixed), self("sub", data, result), 0.0)

    def factor(self) -> Ref:
        """An element of a product: as a rule no 0 and not divided by 0, for in a field the sign of what is infinite is random."""
        data = self.rng.choice(self.data)
        if not self.results or self.rng.random() < 0.15:
            return data
        if self.rng.random() < 0.3:
            return self("sub", data, self.result())
        if self.rng.random() < 0.5:
            return self("div", data, self("add", self("abs", self.rng.choice(self.results)), 1.5))
        return self("mul", data, self.result())

    def reduction(self) -> None:
        """One more reduction."""
        monoid = self.rng.choice(MONOIDS)
        if monoid is Monoid.prod:
            element = self.factor()
        elif not self.results or self.rng.random() < 0.15:
            element = self.atom()
        elif monoid is not Monoid.sum:
            element = self("add", self.atom(), self.result()) if self.signs and self.rng.random() < 0.5 else self.atom()
        else:
            element = self.part()
            if self.rng.random() < 0.35:
                element = self("mul", element, self.rng.choice((self.atom, self.part))())
        mean = monoid is Monoid.sum and self.rng.random() < 0.4
        made = self.builder.mean(element, [1], True) if mean else self.builder.reduce(monoid, element, [1], True)
        self.results.append(made)

    def product(self) -> None:
        """The last reduction is a product with a matrix."""
        weights = self.builder.input("w", (LENGTH, COLUMNS), self.dtype)
        self.outputs.append(self.builder.matmul(self.part(), weights))


def random_chain(
    rng: random.Random, dtype: DType = DType.float32, *, extrema_of_sums: bool = False, repeated: bool = False
) -> TensorProgram:
    """A program of 2 to 4 reductions along one axis, of which the last results, and now and then others, are returned.

    Args:
        extrema_of_sums: whether an extremum may be of data plus an earlier result, whose law no field has.
        repeated: whether some data are the same all along the axis.
    """
    maker = _Maker(rng, dtype, signs=extrema_of_sums, repeated=repeated)
    for _ in range(rng.randint(2, 3)):
        maker.reduction()
    if rng.random() < 0.3:
        maker.product()
    maker.outputs += [r for r in maker.results[:-1] if rng.random() < 0.2]
    maker.outputs.append(maker.results[-1])
    if rng.random() < 0.2:
        maker.outputs.append(maker.part())
    return normalize(maker.builder.finish(maker.outputs))
