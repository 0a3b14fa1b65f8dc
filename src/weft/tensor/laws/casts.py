"""The law of precision: eager's roundings between two operations are dropped, keeping more bits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import past_casts
from weft.tensor.passes import Conditioning, tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
    uses,
)
from weft.tensor.rename import with_uses
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments


@tensor_pass(Conditioning.rounding)
def drop_precision_casts(program: TensorProgram) -> TensorProgram:
    """Removes precision casts between operations.

        a = x + y                        a = x + y
        b = precision bfloat16(a)  ==>   c = exp(a)
        c = exp(b)                       return semantic bfloat16(c)
        return precision bfloat16(c)

    Condition: the reader is a reduction, or an elementwise operation with no jump in that argument.
    What an output, a comparison (or floor, sign ..), a ranking, an integer, a bool, an fp8 number or an opaque operation
    reads stays and becomes semantic: there one rounding more or less can change all of a result.
    What a contraction reads stays, as precision: the matrix unit reads operands of that type, and
    would run many times slower on wider ones. It only reads past casts that lead back to the
    type it reads, as to bfloat16 and back.
    Conditioning: rounds less than eager, never more. A value beyond the narrow type's range,
    float16's 65504, stays finite where eager had infinity on the way.

    Results of elementwise operations and matmuls that the program reads through casts to one type alone are noted
    (`TensorProgram.rounded`): where one kernel writes them and another reads them they are rounded as the casts do
    (`round_between_kernels`), whether or not a cast is left for an operation that must read it.
    """
    dropping = _Dropping(program.values())
    nodes = [dropping.rewritten(node) for node in program.nodes]
    outputs = tuple(dropping.output(name) for name in program.outputs)
    done = [replace(n, semantic=True) if isinstance(n, Cast) and n.name in dropping.semantic else n for n in nodes]
    found = remove_dead(replace(program, nodes=tuple(done), outputs=outputs))
    return replace(found, rounded=_without_casts(program, found))


def _without_casts(before: TensorProgram, after: TensorProgram) -> tuple[tuple[str, DType], ...]:
    """Return the values of `after`, each with the type of the casts through which alone `before` read them.

    Results of `after` are not among them: they are written as they are whatever else reads them.
    """
    types: dict[str, set[DType | None]] = {name: {None} for name in before.outputs}
    values = before.values()
    for node in before.nodes:
        for value in uses(node):
            cast = isinstance(node, Cast) and _is_precision(node, values)
            types.setdefault(value, set()).add(node.dtype if cast else None)
    found: list[tuple[str, DType]] = []
    for node in after.nodes:
        (only, *more) = types.get(node.name, {None})
        if more or only is None or only.bytes >= node.dtype.bytes:
            continue
        if isinstance(node, Elementwise | Contraction) and node.name not in after.outputs:
            found.append((node.name, only))
    return tuple(found)


@dataclass
class _Dropping:
    """`values`: of the program before; `semantic`: names of casts that turned out to be so."""

    values: dict[str, Node]
    semantic: set[str] = field(default_factory=set[str])

    def rewritten(self, node: Node) -> Node:
        """Returns `node` reading past the precision casts that it may."""
        match node:
            case Elementwise():
                jumps = _jumps(node.expr) if node.dtype.is_float else arguments(node.expr)
                args = (self._exact(u) if i in jumps else self._past(u) for i, u in enumerate(node.args))
                return replace(node, args=tuple(args))
            case Contraction():
                return with_uses(node, self._operand)
            case Scan():
                return with_uses(node, self._past if all(kind.is_float for kind in node.kinds) else self._exact)
            case Reduction():
                return with_uses(node, self._past if node.dtype.is_float else self._exact)
            case Ranking():
                return with_uses(node, self._exact)
            case Lookup():
                self.semantic.add(node.source)
                return with_uses(node, self._exact)
            case Cast():
                return with_uses(node, self._past if node.dtype.is_float and not node.dtype.is_kept else self._exact)
            case Opaque():
                self.semantic.update(node.uses)
                return node
            case Input() | Constant() | Iota() | Extent() | Reindex():
                return node

    def output(self, name: str) -> str:
        """Returns the value to give back for `name`: a semantic cast, or the operand that the cast would not change."""
        node = self.values[name]
        operand = self._operand(Use(name, node.axes))
        past = self.values[operand.value]
        # What is returned is never an input's own memory, unless the program says so.
        if operand.axes == node.axes == past.axes and not isinstance(past, Input | Reindex):
            name = operand.value
        self.semantic.add(name)
        return name

    def _past(self, use: Use) -> Use:
        """Returns `use` without the precision casts that it went through."""
        *_, last = past_casts(use, self.values, lambda cast: _is_precision(cast, self.values))
        return last

    def _operand(self, use: Use) -> Use:
        """Returns `use` itself, unless the casts before it give back the type that there was."""
        past = self._past(use)
        same = self.values[past.value].dtype is self.values[use.value].dtype
        return past if same else use

    def _exact(self, use: Use) -> Use:
        """Returns what `_operand` does, and notes that the cast that it reads is semantic."""
        use = self._operand(use)
        self.semantic.add(use.value)
        return use


def _is_precision(cast: Cast, values: dict[str, Node]) -> bool:
    floats = cast.dtype.is_float and values[cast.arg.value].dtype.is_float
    return not cast.semantic and floats and set(cast.arg.axes) == set(cast.axes)


def _jumps(expr: Scalar) -> frozenset[int]:
    """Returns the arguments in which `expr`, of a float type, may jump."""
    match expr:
        case Arg() | Lit():
            return frozenset()
        case Apply(op, args):
            if optable.row(op).rounding == "steps" or optable.row(op).result == "bool":
                return arguments(expr)
            return frozenset[int]().union(*(_jumps(a) for a in args))
        case Convert(dtype, inner):
            return _jumps(inner) if dtype.is_float else arguments(inner)
