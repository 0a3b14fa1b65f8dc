"""Random tensor programs, in which the patterns that fusion looks for are common, and how one that fails is made small.

The same generator state gives the same program. Inputs are meant to lie in -1 .. 1 (integers in -3 .. 3): every value then has a
known bound, exponentials stay small, and what is divided by is not near 0, so that a comparison in fp64 needs little tolerance.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from weft.tensor.axes import Axis, Space
from weft.tensor.builder.name import axis_of
from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Monoid,
    Node,
    Opaque,
    Reduction,
    TensorProgram,
    Use,
    uses,
)
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply

LARGEST_SIZE = 9
"""The bounds of sums are right up to this size of a space."""
_MOST = 1.0e4
_F32, _I64 = DType.float32, DType.int64
_LETTERS = ("M", "K", "N", "D")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the program: the spaces it runs over, and bounds: |v| <= most, v >= least where least is positive."""

    name: str
    spaces: tuple[Space, ...]
    dtype: DType
    most: float = 1.0
    least: float = 0.0


class _TooLargeError(Exception):
    """The value that was to be made could leave the bounds."""


def random_program(rng: random.Random, operations: int | None = None) -> TensorProgram:
    """Makes a well-formed program over 2 to 4 named axes.

    Args:
        rng: the only source of choices.
        operations: how many operations at least (a pattern is never cut short); drawn from 3 to 10 where None.
    """
    maker = _Maker(rng, _spaces(rng))
    wanted = operations or rng.randint(3, 10)
    first = _scaled_matmul if rng.random() < 0.5 else None  # before another order of the loops is set by something else
    while len(maker.nodes) < wanted:
        kept = len(maker.inputs), len(maker.nodes), len(maker.values)
        try:
            pattern = first or rng.choices(_PATTERNS, _WEIGHTS)[0]
            first = None
            pattern(maker)
        except _TooLargeError:
            del maker.inputs[kept[0] :], maker.nodes[kept[1] :], maker.values[kept[2] :]
    return without_dead(TensorProgram(tuple(maker.inputs), tuple(maker.nodes), _outputs(maker)))


def _spaces(rng: random.Random) -> tuple[Space, ...]:
    count = rng.choice((2, 3, 3, 4))
    return tuple(Space(name, rng.choice((2, 5)) if rng.random() < 0.04 else None) for name in _LETTERS[:count])


def _outputs(maker: _Maker) -> tuple[str, ...]:
    """Chooses what nothing reads, now and then something that is read too, or one value twice."""
    rng, read = maker.rng, {v for n in maker.nodes for v in uses(n)}
    made = [n.name for n in maker.nodes if not isinstance(n, Constant | Extent)]
    found = [n for n in made if n not in read]
    found += [n for n in made if n in read and rng.random() < 0.1]
    if rng.random() < 0.03:
        found.append(rng.choice(found))
    rng.shuffle(found)
    return tuple(found)


@dataclass
class _Maker:
    """A program that grows."""

    rng: random.Random
    spaces: tuple[Space, ...]
    inputs: list[Input] = field(default_factory=list[Input])
    nodes: list[Node] = field(default_factory=list[Node])
    values: list[_Value] = field(default_factory=list[_Value])
    short: bool = False

    def __post_init__(self) -> None:
        self.short = self.rng.random() < 0.25

    # Values

    def input(self, spaces: Sequence[Space], dtype: DType | None = None) -> _Value:
        """Adds a new input."""
        name = f"x{len(self.inputs)}"
        dtype = dtype or (DType.bfloat16 if self.short and self.rng.random() < 0.6 else _F32)
        axes = tuple(Axis(f"{name}.{d}", s) for d, s in enumerate(spaces))
        self.inputs.append(Input(name, axes, dtype))
        value = _Value(name, tuple(spaces), dtype, 1.0 if dtype.is_float else 3.0)
        if dtype.is_float:
            self.values.append(value)
        return value

    def pick(self, rank: int, *, least: int | None = None, fresh: float = 0.3) -> _Value:
        """Picks a float of `rank` axes (`least` or more, where given), the last made more likely than the first."""
        low = rank if least is None else least
        found = [v for v in self.values if low <= len(v.spaces) <= rank]
        if not found or self.rng.random() < fresh:
            spaces = [self.rng.choice(self.spaces) for _ in range(rank)]
            if len(set(spaces)) < rank and self.rng.random() < 0.9:
                spaces = self.rng.sample(self.spaces, min(rank, len(self.spaces)))
            return self.input(spaces)
        return self.rng.choices(found, range(1, len(found) + 1))[0]

    def add(self, node: Node, most: float, least: float = 0.0) -> _Value:
        """Adds `node` at the end of the program."""
        if most > _MOST:
            raise _TooLargeError
        self.nodes.append(node)
        value = _Value(node.name, tuple(a.space for a in node.axes), node.dtype, most, least)
        if node.dtype.is_float and not isinstance(node, Constant | Extent):
            self.values.append(value)
        return value

    def name(self) -> str:
        return f"t{len(self.nodes)}"

    # Uses

    def whole(self, value: _Value) -> Use:
        """Returns a use in which every dimension has an axis of its own: m, k, and m1 for a second one over M."""
        count: Counter[Space] = Counter()
        axes: list[Axis] = []
        for space in value.spaces:
            axes.append(axis_of(space, count[space]))
            count[space] += 1
        return Use(value.name, tuple(axes))

    def within(self, value: _Value, axes: Sequence[Axis]) -> Use:
        """Returns a use over `axes` where they have the spaces, over new axes where they have not."""
        bound: list[Axis] = []
        for space in value.spaces:
            found = [a for a in axes if a.space == space and a not in bound]
            if not found:
                number = len({a for a in (*axes, *bound) if a.space == space})
                found = [axis_of(space, number)]
            bound.append(self.rng.choice(found))
        return Use(value.name, tuple(bound))

    def ordered(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Returns `axes`, each once, now and then in another order."""
        found = list(dict.fromkeys(axes))
        if self.rng.random() < 0.15:
            self.rng.shuffle(found)
        return tuple(found)

    # Operations

    def elementwise(self, expr: Scalar, args: Sequence[Use], most: float, least: float = 0.0) -> _Value:
        axes = self.ordered([a for u in args for a in u.axes])
        if len(axes) > 3:
            raise _TooLargeError
        return self.add(Elementwise(self.name(), axes, _F32, expr, tuple(args)), most, least)

    def reduce(self, monoid: Monoid, value: _Value, over: Sequence[int]) -> _Value:
        use = self.whole(value)
        summed = tuple(use.axes[d] for d in over)
        kept = self.ordered([a for a in use.axes if a not in summed])
        times = LARGEST_SIZE ** len(summed) if monoid is Monoid.sum else 1
        node = Reduction(self.name(), kept, _F32, monoid, use, summed)
        return self.add(node, value.most * times, value.least)

    def contract(self, left: _Value, right: _Value, over: Space, *, batch: bool = False) -> _Value:
        """Multiplies left by right; `batch`: other axes over one space are one axis, else they are two."""
        left, right = self.alike(left, right)
        one = self.whole(left)
        summed = next(a for a in one.axes if a.space == over)
        bound: list[Axis] = []
        for space in right.spaces:
            if space == over and summed not in bound:
                bound.append(summed)
                continue
            shared = [a for a in one.axes if a.space == space and a not in bound and a != summed]
            number = len({a for a in (*one.axes, *bound) if a.space == space})
            bound.append(shared[0] if shared and batch else axis_of(space, number))
        axes = self.ordered([a for a in (*one.axes, *bound) if a != summed])
        if len(axes) > 3:
            raise _TooLargeError
        operands = (one, Use(right.name, tuple(bound)))
        if self.rng.random() < 0.2:
            operands = operands[::-1]
        node = Contraction(self.name(), axes, _F32, operands[0], operands[1], (summed,))
        return self.add(node, left.most * right.most * LARGEST_SIZE, 0.0)

    def alike(self, left: _Value, right: _Value) -> tuple[_Value, _Value]:
        """Converts both to one type, the narrower of the two, as eager demands of a matmul."""
        if left.dtype == right.dtype:
            return left, right
        narrow = min(left.dtype, right.dtype, key=lambda d: d.bytes)
        return self.narrowed(left, narrow), self.narrowed(right, narrow)

    def narrowed(self, value: _Value, dtype: DType) -> _Value:
        return value if value.dtype == dtype else self.cast(value, dtype)

    def cast(self, value: _Value, dtype: DType) -> _Value:
        use = self.whole(value)
        return self.add(Cast(self.name(), use.axes, dtype, use, semantic=False), value.most, value.least)


# Patterns: each adds a few operations that belong together.


def _unary(maker: _Maker, value: _Value) -> _Value:
    """Applies one function to one value."""
    x, most, least = Arg(0), value.most, value.least
    choices: list[tuple[Scalar, float, float]] = [
        (apply("maximum", x, Lit(0.0)), most, least),
        (apply("minimum", x, Lit(0.5)), max(most, 0.5), min(least, 0.5)),
        (apply("neg", x), most, 0.0),
        (apply("abs", x), most, least),
        (apply("mul", x, x), most * most, least * least),
        (apply("mul", x, Lit(0.5)), most / 2, least / 2),
        (apply("add", x, Lit(1.0)), most + 1, least + 1 if least else 0.0),
        (apply("tanh", x), 1.0, math.tanh(least)),
        (apply("sqrt", apply("add", apply("abs", x), Lit(0.5))), math.sqrt(most + 0.5), math.sqrt(least + 0.5)),
    ]
    if most <= 6.0:
        sigmoid = apply("div", Lit(1.0), apply("add", Lit(1.0), apply("exp", apply("neg", x))))
        choices += [(apply("exp", x), math.exp(most), math.exp(-most))] * 3
        choices += [(sigmoid, 1.0, 0.0), (apply("mul", x, sigmoid), most, 0.0)]
    expr, high, low = maker.rng.choice(choices)
    return maker.elementwise(expr, (maker.whole(value),), high, low)


def _chain(maker: _Maker) -> None:
    """Applies one function after the other (rule 9)."""
    value = maker.pick(2, least=1)
    for _ in range(maker.rng.randint(1, 3)):
        value = _unary(maker, value)


def _combine(maker: _Maker) -> None:
    """Adds, multiplies, subtracts or compares two values, one repeated along the axes that it lacks."""
    rng, one = maker.rng, maker.pick(2, least=1)
    other = maker.pick(2, least=0)
    use = maker.whole(one)
    uses_ = (use, maker.within(other, use.axes))
    op = rng.choice(("add", "add", "mul", "mul", "sub", "maximum", "minimum"))
    most = one.most * other.most if op == "mul" else one.most + other.most
    least = one.least * other.least if op == "mul" else one.least + other.least if op == "add" else 0.0
    order = (Arg(0), Arg(1)) if rng.random() < 0.7 else (Arg(1), Arg(0))
    maker.elementwise(Apply(op, order), uses_, most, least)


def _divide(maker: _Maker) -> None:
    """Divides by a positive value: one there is, or the exponentials or squares of one, often summed (softmax's shape)."""
    rng = maker.rng
    positive = [v for v in maker.values if v.least >= 0.05]
    below = rng.choice(positive) if positive and rng.random() < 0.5 else _positive(maker)
    above = below
    if below.spaces and rng.random() < 0.6:
        below = maker.reduce(Monoid.sum, below, (rng.randrange(len(below.spaces)),))
    if rng.random() < 0.4:
        above = maker.pick(2, least=1)
    use = maker.whole(above)
    args = (use, maker.within(below, use.axes))
    maker.elementwise(apply("div", Arg(0), Arg(1)), args, above.most / below.least)


def _positive(maker: _Maker) -> _Value:
    value = maker.pick(2, least=1)
    if value.most <= 2.0 and maker.rng.random() < 0.6:
        return maker.elementwise(
            apply("exp", Arg(0)), (maker.whole(value),), math.exp(value.most), math.exp(-value.most)
        )
    square = apply("add", apply("mul", Arg(0), Arg(0)), Lit(0.5))
    return maker.elementwise(square, (maker.whole(value),), value.most**2 + 0.5, 0.5)


def _reduce(maker: _Maker) -> None:
    """Adds one reduction, or several of one value along one axis (rules 3 and 2)."""
    rng, value = maker.rng, maker.pick(3, least=1)
    count = 2 if len(value.spaces) > 1 and rng.random() < 0.15 else 1
    over = rng.sample(range(len(value.spaces)), count)
    for _ in range(rng.choice((1, 1, 2))):
        maker.reduce(rng.choice((Monoid.sum, Monoid.sum, Monoid.max, Monoid.min)), value, over)


def _mean(maker: _Maker) -> None:
    """Divides a sum by the number of its terms, and often subtracts that mean from the value."""
    rng, value = maker.rng, maker.pick(2, least=1)
    place = rng.randrange(len(value.spaces))
    total = maker.reduce(Monoid.sum, value, (place,))
    size = maker.add(Extent(maker.name(), (), _F32, value.spaces[place]), LARGEST_SIZE)
    args = (maker.whole(total), Use(size.name, ()))
    mean = maker.elementwise(apply("div", Arg(0), Arg(1)), args, value.most, value.least)
    if rng.random() < 0.6:
        use = maker.whole(value)
        op = apply("sub", Arg(0), Arg(1)) if rng.random() < 0.5 else apply("add", Arg(0), apply("neg", Arg(1)))
        maker.elementwise(op, (use, maker.within(mean, use.axes)), 2 * value.most)


def _scaled_matmul(maker: _Maker) -> None:
    """Adds a row scale or shift, and one or more matmuls that read it (rules 4, 5 and 8)."""
    rng, block = maker.rng, maker.pick(2, fresh=0.5)
    rows = int(rng.random() < 0.15)
    vector = _row_vector(maker, block, rows)
    use = maker.whole(block)
    row = Use(vector.name, (use.axes[rows],) if vector.spaces else ())
    op = rng.choice(("mul", "mul", "add"))
    most = block.most * vector.most if op == "mul" else block.most + vector.most
    order = (Arg(0), Arg(1)) if rng.random() < 0.8 else (Arg(1), Arg(0))
    scaled = maker.elementwise(Apply(op, order), (use, row), most)
    if scaled.spaces != block.spaces:  # the axes came out in another order
        rows = 1 - rows
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        over = scaled.spaces[1 - rows]
        _matmul_over(maker, scaled, over)


def _row_vector(maker: _Maker, block: _Value, rows: int) -> _Value:
    """Returns a number for each row of `block`, or for all."""
    rng = maker.rng
    if rng.random() < 0.1:
        return maker.input(())
    if rng.random() < 0.5:
        return maker.input((block.spaces[rows],))
    found = maker.reduce(rng.choice((Monoid.sum, Monoid.max)), block, (1 - rows,))
    return _unary(maker, found) if rng.random() < 0.4 else found


def _matmul_over(maker: _Maker, left: _Value, over: Space) -> _Value:
    """Multiplies `left` by a matrix, or a vector, over the space `over`."""
    rng = maker.rng
    found = [v for v in maker.values if over in v.spaces and 1 <= len(v.spaces) <= 2]
    if found and rng.random() < 0.25:
        right = rng.choice(found)
    elif rng.random() < 0.2:
        right = maker.input((over,))
    else:
        spaces = [over, rng.choice([s for s in maker.spaces if s != over] if rng.random() < 0.9 else maker.spaces)]
        rng.shuffle(spaces)
        right = maker.input(spaces)
    return maker.contract(left, right, over)


def _matmul(maker: _Maker) -> None:
    """Adds a matmul, often of a matmul, a function in between now and then."""
    rng, value = maker.rng, maker.pick(2, least=1)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        if not value.spaces:
            return
        if rng.random() < 0.3:
            value = _unary(maker, value)
        value = _matmul_over(maker, value, rng.choice(value.spaces))


def _batched_matmul(maker: _Maker) -> None:
    """Adds a matmul for each element of a batch; or a vector with each row of a matrix."""
    rng = maker.rng
    if len(maker.spaces) < 3:
        raise _TooLargeError
    batch, rows, over, *rest = rng.sample(maker.spaces, len(maker.spaces))
    left, right = [batch, rows, over], [batch, over, *rest[: rng.randrange(2)]]
    rng.shuffle(right)
    matmul = maker.contract(maker.input(left), maker.input(right), over, batch=True)
    if rng.random() < 0.5:
        _unary(maker, matmul)


def _mask(maker: _Maker) -> None:
    """Selects elements by their indices, or by integers that are an input."""
    rng, value = maker.rng, maker.pick(2, least=1)
    use = maker.whole(value)
    axes = rng.sample(use.axes, min(len(use.axes), rng.choice((1, 2))))
    indices = [_indices(maker, axis) for axis in axes]
    second = Arg(2) if len(indices) == 2 else Lit(rng.choice((0, 1, 2, 4)))
    first = Arg(1) if rng.random() < 0.7 else apply("add", Arg(1), Lit(rng.choice((-1, 1, 2))))
    condition = Apply(rng.choice(_COMPARISONS), (first, second))
    other = Lit(rng.choice((0.0, 1.0, -0.5)))
    both = (Arg(0), other) if rng.random() < 0.7 else (other, Arg(0))
    maker.elementwise(Apply("where", (condition, *both)), (use, *indices), max(value.most, 1.0))


def _indices(maker: _Maker, axis: Axis) -> Use:
    if maker.rng.random() < 0.25:
        return Use(maker.input((axis.space,), _I64).name, (axis,))
    name = maker.name()
    maker.nodes.append(Iota(name, (Axis(f"{name}.0", axis.space),), _I64))
    return Use(name, (axis,))


def _precision(maker: _Maker) -> None:
    """Changes the precision, which nothing may notice."""
    value = maker.pick(2, least=1)
    dtype = DType.bfloat16 if value.dtype is _F32 else _F32
    maker.cast(value, dtype)


def _number(maker: _Maker) -> None:
    """Combines a value and a number that stands in the program."""
    rng, value = maker.rng, maker.pick(2, least=1)
    number = rng.choice((-1.0, 0.25, 0.5, 2.0))
    constant = maker.add(Constant(maker.name(), (), _F32, number), abs(number))
    op = rng.choice(("add", "mul"))
    most = value.most * abs(number) if op == "mul" else value.most + abs(number)
    maker.elementwise(apply(op, Arg(0), Arg(1)), (maker.whole(value), Use(constant.name, ())), most)


_PATTERNS: tuple[Callable[[_Maker], None], ...] = (
    _scaled_matmul, _matmul, _chain, _combine, _reduce, _divide, _mean, _batched_matmul, _mask, _precision, _number,
)  # fmt: skip
_WEIGHTS = (6, 4, 4, 4, 4, 3, 2, 2, 2, 1, 1)


# Smaller programs


def without_dead(program: TensorProgram) -> TensorProgram:
    """Removes the values and inputs that no output needs."""
    program = remove_dead(program)
    read = {*program.outputs, *(value for node in program.nodes for value in uses(node))}
    return replace(program, inputs=tuple(n for n in program.inputs if n.name in read))


def minimised(program: TensorProgram, fails: Callable[[TensorProgram], bool]) -> TensorProgram:
    """Takes away from `program` as many outputs and operations as it can lose and still fail.

    Args:
        program: fails.
        fails: whether a program does; asked for each candidate.
    """
    while True:
        found = next((smaller for smaller in _smaller(program) if fails(smaller)), None)
        if found is None:
            return program
        program = found


def _smaller(program: TensorProgram) -> Iterator[TensorProgram]:
    """Yields programs with one output less, with one operation made an input, or with what an operation reads in its place."""
    if len(program.outputs) > 1:
        for place in range(len(program.outputs)):
            outputs = program.outputs[:place] + program.outputs[place + 1 :]
            yield without_dead(replace(program, outputs=outputs))
    for node in program.nodes:
        yield from _without(program, node)


def _without(program: TensorProgram, node: Node) -> Iterator[TensorProgram]:
    nodes = tuple(n for n in program.nodes if n is not node)
    if node.name not in program.outputs and not isinstance(node, Constant | Extent | Opaque):
        given = Input(node.name, tuple(Axis(f"{node.name}.{d}", a.space) for d, a in enumerate(node.axes)), node.dtype)
        yield without_dead(replace(program, inputs=(*program.inputs, given), nodes=nodes))
    elif node.name in program.outputs:
        made = [n.name for n in nodes]
        inner = [name for name in dict.fromkeys(uses(node)) if name in made and name not in program.outputs]
        for name in inner:
            outputs = tuple(name if o == node.name else o for o in program.outputs)
            yield without_dead(replace(program, outputs=outputs))
