"""How large values of a program may be: what they are made of, and whether they are ordinary numbers whatever that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.block.program import Collapse, Dot, Final, Graph, Map, Pointwise
from weft.block.walk import operands, results
from weft.fuse.mapped_matmul import MappedMatmul, MappedRows
from weft.fuse.rule import Site
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments

_WIDE = frozenset({DType.float64, DType.float32, DType.bfloat16})
_AT_MOST_1 = frozenset({"exp", "decay", "sigmoid", "tanh", "erf", "sin", "cos", "sign"})
"""An exponential is one below the maximum, or safety makes it that."""
_OF_ORDINARY = frozenset({"add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where"})


@dataclass(frozen=True, slots=True)
class Magnitude:
    """What is known of a value.

    Attributes:
        made_of: the inputs and the matmuls, by name, whose sizes its own depends on.
        ordinary: whether it, and its product with another such value, is far from the ends of fp32 for any inputs.
        rank: of its items.
    """

    made_of: frozenset[str]
    ordinary: bool
    rank: int


def stays_in_range(site: Site, rows: MappedRows, matmul: MappedMatmul) -> bool:
    """Tells whether `matmul` may be computed of what `rows` scales, and scaled afterwards.

    Data of any size are brought to about 1 by such a scale, a norm say. Times ordinary numbers, or data that nothing scales, they
    stay about what they are. Times other data that a scale is made of, with or without it, they may be a square of that.
    """
    sizes = _Sizes()
    known = sizes.at(site, rows.graph)
    if known[rows.block.outer].ordinary or known[matmul.columns.outer].ordinary:
        return True
    return not known[matmul.columns.outer].made_of & sizes.scaling


@dataclass
class _Sizes:
    """Goes over programs.

    Attributes:
        scaling: what the scales that were met are made of: factors of fewer axes than what they scale, which is no ordinary number.
    """

    scaling: set[str] = field(default_factory=set[str])

    def at(self, site: Site, graph: Graph) -> Mapping[str, Magnitude]:
        """Finds the magnitudes of the values of `graph`, which is that of `site` or made of it; meets all scales of the program."""
        given = {
            name: Magnitude(frozenset({name}), kind.dtype not in _WIDE, len(kind.dims))
            for name, kind in site.program.inputs
        }
        outer, place = site.program.graph, ""
        for name in site.path:
            known = self.of(outer, given, place)
            loop = next(n for n in outer.nodes if isinstance(n, Map) and n.name == name)
            outer, given, place = loop.body, _given(loop, known), name
        return self.of(graph, given, place)

    def of(self, graph: Graph, given: Mapping[str, Magnitude], place: str) -> dict[str, Magnitude]:
        """Finds the magnitudes of the values of a graph, that of the loop `place`."""
        known = dict(given)
        for node in graph.nodes:
            read = [known[name] for name in operands(node)]
            made_of = frozenset[str]().union(*(each.made_of for each in read))
            rank = max((each.rank for each in read), default=0)
            match node:
                case Pointwise():
                    args = [known[name] for name in node.args]
                    ordinary = node.dtype not in _WIDE or _ordinary(node.expr, args)
                    known[node.name] = Magnitude(made_of, ordinary, len(node.dims))
                    self.scales(node.expr, args, len(node.dims))
                case Dot():
                    known[node.name] = Magnitude(
                        frozenset({f"{node.name} in {place}"}), ordinary=False, rank=len(node.dims)
                    )
                case Collapse():
                    ordinary = node.monoid in (Monoid.max, Monoid.min) and known[node.arg].ordinary
                    known[node.name] = Magnitude(made_of, ordinary, rank - 1)
                case Map():
                    known |= self.of_map(node, known)
                case _:
                    known |= dict.fromkeys(results(node), Magnitude(made_of, ordinary=not read, rank=rank))
        return known

    def of_map(self, loop: Map, known: Mapping[str, Magnitude]) -> dict[str, Magnitude]:
        """Finds the magnitudes of what a map gives."""
        inner = self.of(loop.body, _given(loop, known), loop.name)
        state = loop.state
        carried = () if state is None else (*(inner[n] for n in state.feeds), *(inner[n] for n in state.resume or ()))
        made_of = frozenset[str]().union(*(each.made_of for each in carried))
        rank = 0 if state is None else max((len(c.dims) for c in state.components), default=0)
        return {
            o.outer: Magnitude(made_of, ordinary=False, rank=rank) if isinstance(o, Final) else inner[o.inner]
            for o in loop.outputs
        }

    def scales(self, expr: Scalar, args: Sequence[Magnitude], rank: int) -> None:
        """Notes what the factors of fewer axes are made of, but of ordinary numbers."""
        match expr:
            case Apply(op, parts):
                scaled = op in ("mul", "div") and not any(_ordinary(part, args) for part in parts)
                for part in parts:
                    read = [args[i] for i in arguments(part)]
                    if scaled and all(each.rank < rank for each in read):
                        self.scaling.update(*(each.made_of for each in read))
                    self.scales(part, args, rank)
            case Convert(_, inner):
                self.scales(inner, args, rank)
            case _:
                pass


def _given(loop: Map, known: Mapping[str, Magnitude]) -> dict[str, Magnitude]:
    """Finds the magnitudes of what the body of `loop` starts from; what is shown of a state may be of any."""
    found = {f.inner: known[f.outer] for f in loop.inputs}
    state = loop.state
    components = {} if state is None else {c.name: c for c in state.components}
    for name, inner in () if state is None else state.shown:
        made_of = frozenset({f"{name} in {loop.name}"})
        found[inner] = Magnitude(made_of, ordinary=False, rank=len(components[name].dims))
    return found


def _ordinary(expr: Scalar, args: Sequence[Magnitude]) -> bool:
    match expr:
        case Arg(index):
            return args[index].ordinary
        case Lit():
            return True
        case Convert(dtype, inner):
            return dtype not in _WIDE or _ordinary(inner, args)
        case Apply("where", (_, one, other)):
            return _ordinary(one, args) and _ordinary(other, args)
        case Apply(op, parts):
            return op in _AT_MOST_1 or (op in _OF_ORDINARY and all(_ordinary(part, args) for part in parts))
