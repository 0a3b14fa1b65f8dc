"""The law of factors of 8 bits: a product of floats of 8 bits that were widened is the product of these floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.program import Cast, Contraction, Elementwise, Node, TensorProgram, Use
from weft.tensor.scalar import Arg, Convert

_EIGHT_BITS = frozenset({DType.float8_e4m3fn, DType.float8_e5m2})
_ROUNDED = frozenset({DType.bfloat16, DType.float16, *_EIGHT_BITS})


def multiply_in_eight_bits(program: TensorProgram) -> TensorProgram:
    """Has products read floats of 8 bits as they are, not widened, where all results are rounded to 16 bits or fewer.

        a = bfloat16(q)   q: float8
        b = float32(float8(x))           ==>     n = precision float8(b)
        c = sum over k of a * b                  c = sum over k of q * n

    Condition: both factors are such floats, widened, and every floating output of the program has 16 bits or fewer.
    Conditioning: every product of two is exact, and sums are as wide as the machine's unit for floats of 8 bits makes them: an
    NVIDIA GPU's adds up to 128 products with about 13 bits behind the point before it goes on in float32, which shows where a
    result has more bits than that, and nowhere else.
    """
    values = program.values()
    outputs = [values[name].dtype for name in program.outputs]
    if any(d.is_float and d not in _ROUNDED for d in outputs):
        return program
    nodes: list[Node] = []
    made: dict[str, Cast] = {}
    for node in program.nodes:
        if isinstance(node, Contraction):
            kinds = [_eight_bits(values[use.value], values) for use in (node.left, node.right)]
            if None not in kinds:
                uses = [
                    _narrowed(u, k, values, made, nodes) for u, k in zip((node.left, node.right), kinds, strict=True)
                ]
                nodes.append(replace(node, left=uses[0], right=uses[1]))
                continue
        nodes.append(node)
    return remove_dead(replace(program, nodes=tuple(nodes))) if tuple(nodes) != program.nodes else program


def _eight_bits(node: Node, values: Mapping[str, Node]) -> DType | None:
    """The type of 8 bits that has all numbers of a value, as far as it shows."""
    if node.dtype in _EIGHT_BITS:
        return node.dtype
    match node:
        case Cast(dtype=dtype, arg=arg):
            return _eight_bits(values[arg.value], values) if dtype.is_float else None
        case Elementwise(expr=expr, args=args):
            while isinstance(expr, Convert):
                if expr.dtype in _EIGHT_BITS:
                    return expr.dtype
                if not expr.dtype.is_float:
                    return None
                expr = expr.arg
            return _eight_bits(values[args[expr.index].value], values) if isinstance(expr, Arg) else None
        case _:
            return None


def _narrowed(
    use: Use, kind: DType | None, values: Mapping[str, Node], made: dict[str, Cast], nodes: list[Node]
) -> Use:
    """`use` as what it was widened from, or as a cast, which is added to `nodes`."""
    assert kind is not None
    node, source = values[use.value], use
    while isinstance(node, Cast) and node.dtype not in _EIGHT_BITS and set(node.arg.axes) == set(node.axes):
        bound = dict(zip(node.axes, source.axes, strict=True))
        source = Use(node.arg.value, tuple(bound[a] for a in node.arg.axes))
        node = values[source.value]
    if node.dtype in _EIGHT_BITS:
        return source
    if use.value not in made:
        wide, name = values[use.value], f"{use.value}_eighth"
        while name in values:
            name += "_"
        made[use.value] = Cast(name, wide.axes, kind, Use(use.value, wide.axes), semantic=False)
        nodes.append(made[use.value])
    return Use(made[use.value].name, use.axes)
