"""Laws that give elementwise work one form, however it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import Draft
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Cast, Elementwise, Extent, Node, TensorProgram, Use, reads_through
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments, substitute


@tensor_pass()
def split_elementwise(program: TensorProgram) -> TensorProgram:
    """Make one node for each operation of the table.

        y[m, n] = x[m, n] / (1 + exp(-x[m, n]))     ==>     a = -x;  b = exp(a);  c = b + 1;  y = x / c

    so that a function that PyTorch has a name for and the same function spelled out are one program. A part that lacks
    an axis is computed without it. Operands of commutative operations come in the order in which they were made, literals
    last. Condition: none. Conditioning: none, the same operations in the same order on the same
    values; nothing is rounded in between, since parts have the type that the whole is computed in.
    """
    split = _Splitting(program)
    return split.made_by(split.add)


@dataclass
class _Splitting(Draft):
    made_at: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made_at = {node.name: number for number, node in enumerate(self.program.inputs)}

    def append(self, node: Node) -> Use:
        """Append the next node of the new program."""
        self.made_at[node.name] = len(self.made_at)
        return super().append(node)

    def add(self, node: Node) -> None:
        """Append `node`, its parts first."""
        if isinstance(node, Elementwise) and isinstance(node.expr, Apply):
            parts = [self.part(node, arg) for arg in node.expr.args]
            if optable.row(node.expr.op).commutative:
                parts.sort(key=lambda p: self.made_at[p[1][0].value] if p[1] else len(self.made_at))
            node = self.whole(node, Apply(node.expr.op, tuple(p[0] for p in parts)), [u for p in parts for u in p[1]])
        self.append(node)

    def part(self, node: Elementwise, expr: Scalar) -> tuple[Scalar, list[Use]]:
        """Return an expression over fresh arguments that stands for `expr`, and those arguments."""
        read = sorted(arguments(expr))
        if isinstance(expr, Lit) or not read:
            return expr, []
        if isinstance(expr, Arg):
            return Arg(0), [node.args[expr.index]]
        uses = [node.args[i] for i in read]
        axes = tuple(a for a in node.axes if any(a in u.axes for u in uses))
        name = self.fresh(node.name)
        if isinstance(expr, Convert):
            _, (arg,) = self.part(node, expr.arg)  # one value: a literal reads nothing
            self.append(Cast(name, axes, expr.dtype, arg, semantic=True, location=node.location))
        else:
            dtype = self.dtype(expr, [self.values[u.value].dtype for u in node.args], node.dtype)
            self.add(replace(node, name=name, axes=axes, dtype=dtype, expr=_over(expr, read), args=tuple(uses)))
        return Arg(0), [Use(name, axes)]

    def whole(self, node: Elementwise, expr: Apply, uses: list[Use]) -> Elementwise:
        """Return `node` with `expr`, whose parts each count their arguments from 0, over `uses`, each once."""
        distinct = list(dict.fromkeys(uses))
        position = iter([distinct.index(u) for u in uses])
        args = tuple(substitute(a, lambda _: Arg(next(position))) for a in expr.args)
        return replace(node, expr=Apply(expr.op, args), args=tuple(distinct))

    def dtype(self, expr: Scalar, given: list[DType], computed: DType) -> DType:
        """Return the type that `expr` is computed in; `given` are the arguments' types, `computed` that of the whole.

        A comparison is a bool whatever it compares, so the whole's type says nothing of its operands: numbers that stand in
        the program decide where nothing else does, as in `j < where(m, 100, 5)`.
        """
        match expr:
            case Apply(op, args) if optable.row(op).result == "same":
                values = args[1 if op == "where" else 0 :]
                kinds = [self.dtype(a, given, computed).accumulator for a in values if arguments(a)]
                return _promoted(kinds, [v for a in values if not arguments(a) for v in _literals(a)], computed)
            case Apply():
                return DType.bool
            case Arg(index):
                return given[index].accumulator
            case Convert(dtype, _):
                return dtype
            case Lit(value):
                return _promoted([], [value], computed)


def _rank(dtype: DType) -> int:
    """Order kinds of types as promotion does: bools, integers, floats."""
    return ("bool", "int", "float").index(dtype.kind)


def _literals(expr: Scalar) -> Iterator[float | int | bool]:
    """Yield the numbers in `expr`, which reads no argument."""
    match expr:
        case Lit(value):
            yield value
        case Apply(_, args):
            for arg in args:
                yield from _literals(arg)
        case _:
            pass


def _promoted(kinds: Sequence[DType], literals: Sequence[float], computed: DType) -> DType:
    """Return the type of an operation on operands of types `kinds` and on `literals`, in a whole of type `computed`.

    A number of the program changes the type where it is of a higher kind than all operands, as eager's scalars do.
    """
    if not kinds and computed is not DType.bool:
        return computed
    own = [
        DType.bool if isinstance(v, bool) else DType.int64 if isinstance(v, int) else DType.float32 for v in literals
    ]
    widest = max(map(_rank, kinds), default=-1)
    higher = [computed if _rank(computed) == _rank(k) else k for k in own if _rank(k) > widest]
    return max([*kinds, *higher], key=lambda k: (_rank(k), k.bytes), default=computed)


def _over(expr: Scalar, read: list[int]) -> Scalar:
    return substitute(expr, lambda i: Arg(read.index(i)))


@tensor_pass()
def sizes_in_place(program: TensorProgram) -> TensorProgram:
    """Compute functions of sizes alone where they are read.

        s = sqrt(extent(K));  y[m, n] = x[m, n] / s     ==>     y[m, n] = x[m, n] / sqrt(extent(K))

    so that no kernel is needed for a number that every kernel knows. Condition: elementwise readers; others keep the value.
    Conditioning: none, the same operations on the same values.
    """
    known: dict[str, Elementwise] = {}
    sizes = {n.name for n in program.nodes if isinstance(n, Extent)}
    nodes: list[Node] = []
    for old in program.nodes:
        node = _with_inlined(old, known) if isinstance(old, Elementwise) else old
        of_sizes = isinstance(node, Elementwise) and node.args and sizes.issuperset(u.value for u in node.args)
        if isinstance(node, Elementwise) and of_sizes and node.dtype.is_float:
            known[node.name] = node
        nodes.append(node)
    return remove_dead(replace(program, nodes=tuple(nodes))) if known else program


@tensor_pass()
def choices_in_place(program: TensorProgram) -> TensorProgram:
    """Choose between two numbers where they are read, if that has more axes.

        c[m, n] = where(keep[m, n], 1, 0)
        y[h, m, n] = x[h, m, n] * c[m, n]     ==>     y[h, m, n] = x[h, m, n] * where(keep[m, n], 1, 0)

    so that no kernel stores the numbers, and a loop over x reads the mask itself, and leaves out blocks in which that is False
    everywhere. Condition: elementwise readers; others keep the value. Conditioning: none, the same operations on the same values.
    """
    known: dict[str, Elementwise] = {}
    nodes: list[Node] = []
    for old in program.nodes:
        read = {u.value: known[u.value] for u in old.args if u.value in known} if isinstance(old, Elementwise) else {}
        fewer = {name: node for name, node in read.items() if len(node.axes) < len(old.axes)}
        node = _with_inlined(old, fewer) if isinstance(old, Elementwise) else old
        match node:
            case Elementwise(expr=Apply("where", (Arg(), Lit(), Lit()))) if node.dtype.is_float:
                known[node.name] = node
            case _:
                pass
        nodes.append(node)
    return remove_dead(replace(program, nodes=tuple(nodes))) if known else program


def _with_inlined(node: Elementwise, known: Mapping[str, Elementwise]) -> Elementwise:
    if not any(u.value in known for u in node.args):
        return node
    read = [(u, *reads_through(known[u.value], u)) if u.value in known else (u, u) for u in node.args]
    args = list(dict.fromkeys(inner for _, *all_inner in read for inner in all_inner))

    def inlined(index: int) -> Scalar:
        use, *inner = read[index]
        if use.value not in known:
            return Arg(args.index(use))
        return substitute(known[use.value].expr, lambda i: Arg(args.index(inner[i])))

    return replace(node, expr=substitute(node.expr, inlined), args=tuple(args))
