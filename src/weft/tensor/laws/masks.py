"""The law of masks over indices: however a mask is written, its readers compare the indices themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.finite import is_raised
from weft.tensor.passes import tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Iota,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
    reads_through,
)
from weft.tensor.scalar import (
    Apply,
    Arg,
    ArgumentTable,
    Convert,
    Lit,
    Scalar,
    applied,
    arguments,
    operations,
    substitute,
)

_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_LARGEST = 8
"""The most operations of a mask that each of its readers computes for itself."""


@tensor_pass()
def masks_in_place(program: TensorProgram) -> TensorProgram:
    """Computes masks that depend on indices alone where they are read.

        m[i, j] = where(j <= i, 1.0, 0.0)
        a[i, j] = where(m[i, j] == 0.0, -inf, x[i, j])    ==>    a[i, j] = where(j <= i, x[i, j], -inf)

        m[i, j] = where(j >= i + 1, -inf, 0.0)
        a[i, j] = x[i, j] + m[i, j]                       ==>    a[i, j] = where(j >= i + 1, -inf, x[i, j])

        m[i, j] = not keep[i, j]
        a[i, j] = where(m[i, j], -inf, x[i, j])           ==>    a[i, j] = where(keep[i, j], x[i, j], -inf)

        m[i, j] = float32(keep[i, j])
        a[i, j] = e[i, j] * m[i, j]                       ==>    a[i, j] = where(keep[i, j], e[i, j], 0)

    Condition: the mask is made of comparisons of integers, and of conditions, that nothing but iotas, constants, sizes and inputs
    of integers and bools decide, and has at most two values, both literals; the reader is elementwise, others keep the tensor.
    What is multiplied by a mask is made of exponentials alone, as e[i, j] = exp(s[i, j]), of what no shift keeps in range, as
    exp(s[i, j] - max s[i]) is.
    Conditioning: none; but where -inf was added, a NaN or inf at an excluded place is excluded too, and where an exponential is
    multiplied by 0, it is excluded though it overflows (docs/decisions/0069-products-with-masks.md).
    """
    return remove_dead(_Masks().run(program))


@dataclass
class _Masks:
    """What is known of the values so far.

    Attributes:
        nodes: the new program's.
        indices: names of values that indices, sizes and inputs without fractions alone decide, with their types.
        literals: the constants, as literals.
        masks: the expression of each mask, over uses of `indices`.
        reduced: names of reductions, and of what is made of them element by element.
        shifted: names of sums and differences of something that lacks one of their axes, and is made of reductions.
        raised: names of values that are made of exponentials alone, but not of what is shifted.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    indices: dict[str, DType] = field(default_factory=dict[str, DType])
    literals: dict[str, Lit] = field(default_factory=dict[str, Lit])
    masks: dict[str, Elementwise] = field(default_factory=dict[str, Elementwise])
    reduced: set[str] = field(default_factory=set[str])
    shifted: set[str] = field(default_factory=set[str])
    raised: set[str] = field(default_factory=set[str])

    def run(self, program: TensorProgram) -> TensorProgram:
        self.indices |= {n.name: n.dtype for n in program.inputs if n.dtype.kind != "float" and not n.dtype.is_foreign}
        for node in program.nodes:
            self.add(node)
        return replace(program, nodes=tuple(self.nodes))

    def add(self, node: Node) -> None:
        """Appends `node`, masks in place where it reads some; notes whether it is one."""
        match node:
            case Constant():
                self.literals[node.name] = Lit(bool(node.value) if node.dtype is DType.bool else node.value)
                self.indices[node.name] = node.dtype
            case Iota() | Extent():
                self.indices[node.name] = node.dtype
            case Elementwise():
                made = self.simplified(node)
                self.note(made)
                self.note_exponentials(made)
                node = (
                    made
                    if any(u.value in self.masks for u in node.args) or _is_mask(made.expr, self.bools(made))
                    else node
                )
            case Cast():
                counted = self.indices.get(node.arg.value) is DType.bool
                self.note_exponentials(node)
                expr = Convert(node.dtype, Arg(0)) if node.semantic or counted else Arg(0)
                self.note(self.simplified(Elementwise(node.name, node.axes, node.dtype, expr, (node.arg,))))
            case Reduction(monoid=Monoid.max | Monoid.min):  # a sum keeps nothing in range
                self.reduced.add(node.name)
            case _:
                pass
        self.nodes.append(node)

    def note(self, made: Elementwise) -> None:
        if not all(u.value in self.indices for u in made.args):
            return
        self.indices[made.name] = made.dtype
        if 0 < operations(made.expr) <= _LARGEST and _is_mask(made.expr, self.bools(made)):
            self.masks[made.name] = made

    def note_exponentials(self, made: Elementwise | Cast) -> None:
        """Notes what a mask that is multiplied with `made` is to select from, and what is not, since a shift keeps it in range."""
        uses, expr = (made.args, made.expr) if isinstance(made, Elementwise) else ((made.arg,), Arg(0))
        reduced = [use for use in uses if use.value in self.reduced]
        if len(reduced) == len(uses):
            self.reduced.add(made.name)
        operators = set(applied(expr))
        differs = operators & {"add", "sub"} and operators <= {"add", "sub", "mul", "div", "neg"}
        if differs and any(len(use.axes) < len(made.axes) for use in reduced):
            self.shifted.add(made.name)
        if "exp" not in operators and any(use.value in self.shifted for use in uses):
            self.shifted.add(made.name)
        if made.dtype.is_float and is_raised(expr, self.of_raised(uses)) and not self.raises_shifted(expr, uses):
            self.raised.add(made.name)

    def raises_shifted(self, expr: Scalar, uses: Sequence[Use]) -> bool:
        """Tells whether the expression raises something that a shift keeps in range."""
        return "exp" in applied(expr) and any(uses[i].value in self.shifted for i in arguments(expr))

    def bools(self, node: Elementwise) -> set[int]:
        """Returns the arguments of `node` that are conditions."""
        return {i for i, use in enumerate(node.args) if self.indices.get(use.value) is DType.bool}

    def of_raised(self, args: Iterable[Use]) -> set[int]:
        """Returns the arguments that are made of exponentials alone."""
        return {i for i, use in enumerate(args) if use.value in self.raised}

    def simplified(self, node: Elementwise) -> Elementwise:
        """Returns `node` with masks and constants in place of their uses, in the simplest form."""
        args = ArgumentTable[Use]()

        def inlined(index: int) -> Scalar:
            use = node.args[index]
            if use.value in self.literals:
                return self.literals[use.value]
            mask = self.masks.get(use.value)
            if mask is None:
                return args.arg(use)
            inner = reads_through(mask, use)
            return substitute(mask.expr, lambda i: args.arg(inner[i]))

        expr = substitute(node.expr, inlined)
        integers = {i for i, use in enumerate(args) if self.indices.get(use.value, DType.float32).kind == "int"}
        bools = {i for i, use in enumerate(args) if self.indices.get(use.value) is DType.bool}
        expr = simplify(expr, _Kinds(integers, bools, self.of_raised(args)))
        used = ArgumentTable[Use]()
        expr = substitute(expr, lambda i: used.arg(args[i]))
        return replace(node, expr=expr, args=tuple(used))


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The arguments of an expression that are integers, never NaN, those that are conditions, and those that exponentials make."""

    integers: set[int]
    bools: set[int]
    raised: set[int]


def _is_mask(expr: Scalar, bools: set[int]) -> bool:
    """Tells whether the expression is a condition, or selects one of two literals; arguments in `bools` are conditions."""
    match expr:
        case Apply("where", (condition, Lit(), Lit())):
            return _is_mask(condition, bools)
        case _:
            return _is_condition(expr, bools)


def _is_condition(expr: Scalar, bools: set[int]) -> bool:
    match expr:
        case Arg(index):
            return index in bools
        case Apply(op, args) if op.startswith("logical_"):
            return all(_is_mask(a, bools) for a in args)
        case Apply(op):
            return op in _OPPOSITE
        case _:
            return False


def simplify(expr: Scalar, kinds: _Kinds) -> Scalar:
    """Returns the expression with selections of literals folded."""
    match expr:
        case Arg() | Lit():
            return expr
        case Convert(dtype, inner):
            inner = simplify(inner, kinds)
            if _is_condition(inner, kinds.bools) and dtype is not DType.bool:
                inner = Apply("where", (inner, Lit(value=True), Lit(value=False)))
            return _folded(inner, lambda lit: _converted(lit, dtype)) or Convert(dtype, inner)
        case Apply(op, args):
            return _applied(op, [simplify(a, kinds) for a in args], kinds)
        case _:
            assert_never(expr)


def _applied(op: str, args: list[Scalar], kinds: _Kinds) -> Scalar:
    """Applies the row `op` to simple arguments, in the simplest form."""
    match op, args:
        case "where", (Lit(value), yes, no):
            return yes if value else no
        case "where", (condition, Lit(True), Lit(False)):
            return condition
        case "where", (condition, Lit(False), Lit(True)):
            return _applied("logical_not", [condition], kinds)
        case "where", (Apply("logical_not", (inner,)), yes, no):
            return _applied("where", [inner, no, yes], kinds)
        case "logical_not", (Apply("logical_not", (inner,)),):
            return inner
        case "logical_not", (Apply(name, compared),) if name in _OPPOSITE and all(
            _is_integer(a, kinds.integers) for a in compared
        ):
            return Apply(_OPPOSITE[name], compared)
        case (("logical_and" | "logical_or"), (one, Lit(bool(value))) | (Lit(bool(value)), one)):
            return one if value == (op == "logical_and") else Lit(value)
        case "add", (Apply("where", (condition, Lit() as yes, Lit() as no)), x) | (
            x,
            Apply("where", (condition, Lit() as yes, Lit() as no)),
        ) if {yes.value, no.value} == {0.0, -math.inf} and not isinstance(x, Lit):
            picked = (x, Lit(-math.inf)) if yes.value == 0.0 else (Lit(-math.inf), x)
            return Apply("where", (condition, *picked))
        case "mul", (left, right):
            return _multiplied(left, right, kinds) or _selected(op, args, kinds)
        case _:
            return _selected(op, args, kinds)


def _multiplied(left: Scalar, right: Scalar, kinds: _Kinds) -> Scalar | None:
    """Chooses between the product and 0 where one factor is a mask, and the other a mask or of exponentials; else returns None."""
    one, other = _kept(left, kinds), _kept(right, kinds)
    if one is not None and other is not None:
        number = _value("mul", [one[1].value, other[1].value])
        both = Apply("logical_and", (one[0], other[0]))
        return None if number is None else Apply("where", (both, number, Lit(0 * number.value)))
    for mask, x in ((one, right), (other, left)):
        if mask is not None and is_raised(x, kinds.raised):
            condition, number = mask
            product = x if number.value == 1 else Apply("mul", (x, number))
            return _applied("where", [condition, product, Lit(0.0)], kinds)
    return None


def _kept(expr: Scalar, kinds: _Kinds) -> tuple[Scalar, Lit] | None:
    """Returns where a choice between a number and 0 is the number, and which; None if it is none, or floats decide it."""
    match expr:
        case Apply("where", (condition, Lit() as yes, Lit() as no)) if 0 in (yes.value, no.value):
            number = yes if no.value == 0 else no
            kept = condition if number is yes else _applied("logical_not", [condition], kinds)
            decided = all(i in kinds.integers | kinds.bools for i in arguments(condition))
            return (kept, number) if decided and number.value and math.isfinite(number.value) else None
        case _:
            return None


def _selected(op: str, args: list[Scalar], kinds: _Kinds) -> Scalar:
    """Applies a row to a selection of two literals and to literals: a selection of its values if it can be, else just the row."""
    places = [i for i, a in enumerate(args) if not isinstance(a, Lit)]
    if len(places) != 1:
        return Apply(op, tuple(args))
    place = places[0]

    def folded(lit: Lit) -> Lit | None:
        literals = [*args[:place], lit, *args[place + 1 :]]
        return _value(op, [a.value for a in literals if isinstance(a, Lit)])

    found = _folded(args[place], folded)
    if not isinstance(found, Apply):
        return Apply(op, tuple(args)) if found is None else found
    return _applied(found.op, list(found.args), kinds)


def _folded(expr: Scalar, change: Callable[[Lit], Lit | None]) -> Scalar | None:
    """Returns a selection of two literals with both changed; None where it is none, or one cannot be changed."""
    match expr:
        case Apply("where", (condition, Lit() as yes, Lit() as no)):
            one, other = change(yes), change(no)
            return None if one is None or other is None else Apply("where", (condition, one, other))
        case _:
            return None


def _value(op: str, values: Sequence[float]) -> Lit | None:
    """Computes the row's meaning on numbers; None where that is NaN, or rounded: then no field can tell that it is the same."""
    with np.errstate(all="ignore"):
        found = _literal(optable.row(op).meaning(*(np.asarray(v) for v in values)))
    if found is None or not isinstance(found.value, float) or math.isinf(found.value):
        return found
    domain = FieldDomain(seed=0)
    exact = domain.elementwise(Apply(op, tuple(map(Lit, values))), (), DType.float64)
    return found if domain.equal(exact, domain.full((), found.value, DType.float64)) else None


def _converted(literal: Lit, dtype: DType) -> Lit | None:
    return _literal(Fp64Domain().convert(np.asarray(literal.value), dtype, semantic=True))


def _literal(value: npt.NDArray[Any]) -> Lit | None:
    found: float | int | bool = value.item()
    return None if found != found else Lit(found)  # noqa: PLR0124 - NaN


def _is_integer(expr: Scalar, integers: set[int]) -> bool:
    """Tells whether the expression is of integers."""
    match expr:
        case Arg(index):
            return index in integers
        case Lit(value):
            return isinstance(value, int)
        case Apply("add" | "sub" | "mul", args):
            return all(_is_integer(a, integers) for a in args)
        case _:
            return False
