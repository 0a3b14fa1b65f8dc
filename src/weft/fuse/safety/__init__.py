"""fuse.safety: numerical safety, after fusion (Blockbuster, appendix).

In: a fused block program with exponentials that may overflow. Out: the same program in which those whose factors cancel are
significand-exponent pairs: a running maximum appears in the state of each loop that adds them up, and what is known as
online softmax comes out. Nothing here knows what the program computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from weft.block.copies import without_unread
from weft.block.program import BlockProgram, BlockType, Graph, Pointwise
from weft.block.rename import rename_values
from weft.block.scope import Scope
from weft.block.walk import every, maps
from weft.errors import UnsupportedError
from weft.fuse.safety.graphs import Inputs, graph_of
from weft.fuse.safety.pairs import FIRST, Pair
from weft.fuse.safety.work import PairWork, Policy
from weft.tensor.dtypes import DType
from weft.tensor.passes import Bears, Conditioning, block_pass
from weft.tensor.scalar import applied

_NARROW_HEADROOM = 10.0
"""exp of it is 22026: a third of float16's largest number."""


@dataclass(frozen=True, slots=True)
class Safe:
    """What became of a program.

    Attributes:
        program: with pairs.
        converted: how many exponentials are pairs now.
        plain: how many stayed as written: something reads their plain value, which a pair would not keep from overflowing.
        harmless: how many stayed because what they raise is bounded, as tanh and clamp are.
        left: which stayed as written, by their numbers in the order of the program.
    """

    program: BlockProgram
    converted: int
    plain: int
    harmless: int
    left: frozenset[int]


def make_safe(program: BlockProgram) -> Safe:
    """Put significand-exponent pairs in `program` for the exponentials whose factors cancel.

    exp(x) is the pair (1, x); products, quotients, sums and contractions work on pairs; where elements are added up, they
    share an exponent: their maximum, of a row, since a block's would carry the NaN of one row into the others and lose rows
    far below the greatest. A loop's state carries the largest so far. Where a plain value is wanted and the
    exponents have not cancelled, the exponential stays as the user wrote it. Extrema want plain values: that a positive
    factor leaves the order as it is, no field can check.

    Args:
        program: fused, without places.

    Returns:
        The program: equal to `program` over the reals, whatever the exponents are; no significand exceeds the magnitude
        that 1 had before, so that nothing overflows that does not in exact arithmetic. Rows of -inf give what 0/0 gives; +inf
        and NaN give NaN in their row. `program` itself where no exponential becomes a pair.
    """
    plain, lists = frozenset[int](), dict[int, frozenset[int]]()
    if not _raises(program):
        return Safe(program, 0, 0, 0, plain)
    while True:
        policy = Policy(_headroom(program), lists, plain, _real(program))
        types: dict[str, BlockType] = dict(program.inputs)
        given = Inputs({name: Pair(name) for name, _ in program.inputs})
        work = graph_of(policy, program.graph, types, Scope({}, applied=False), given, frozenset(program.graph.outputs))
        if policy.exposed:
            plain |= policy.exposed
        elif lists or not any(policy.along.values()):
            break
        else:  # only now it is known how all sums run that lists are read for
            lists = policy.along
    left = frozenset(range(policy.count)) - policy.converted - policy.harmless
    if policy.converted:
        program = replace(program, graph=without_unread(_named(work, program.graph)))
    return Safe(program, len(policy.converted), len(left), len(policy.harmless), left)


@block_pass(Conditioning.rounding, Bears.checked, takes=("plain",))
def exponentials_as_pairs(program: BlockProgram, most: int | None = None) -> BlockProgram:
    """Represent exponentials that may overflow as pairs of significand and exponent; as `make_safe`.

    Raises:
        UnsupportedError: more than `most` exponentials stay as written, which shifts kept from overflowing.
    """
    safe = make_safe(program)
    if most is not None and safe.plain > most:
        raise UnsupportedError("an exponential lost its shift and would overflow where the program as written does not")
    return safe.program


def _named(work: PairWork, before: Graph) -> Graph:
    """Return the rewritten `before`, its outputs called as before: who runs it knows them by name.

    A number that is made after all loops, of a significand and its exponent, has a name of its own until here.
    """
    called: dict[str, str] = {}
    for output in before.outputs:
        made = work.values[output].significand or output
        if made != output and (made in called or made in before.outputs):  # two outputs that have become one value
            kind = work.types[made]
            work.nodes.append(Pointwise(copy := work.make(output), FIRST, (made,), kind.dims, kind.dtype))
            made = copy
        if made != output:
            called[made] = output
    called = {**{output: work.make(output) for output in called.values()}, **called}
    return replace(rename_values(Graph(before.inputs, tuple(work.nodes), ()), called), outputs=before.outputs)


def _raises(program: BlockProgram) -> bool:
    """Tell whether there is an exponential at all."""
    merges = (m.state.merge.nodes for m in maps(program.graph) if m.state is not None)
    nodes = chain(every(program.graph.nodes), *merges)
    return any(isinstance(node, Pointwise) and "exp" in applied(node.expr) for node in nodes)


def _headroom(program: BlockProgram) -> float:
    """Return how far exponents stay below the maximum: a narrow type underflows where it has range to spare above 1.

    Without narrow types there is no headroom: a difference of about 10 has fewer exact digits than one of about 0.
    """
    return _NARROW_HEADROOM if DType.float16 in _made(program) else 0.0


def _real(program: BlockProgram) -> DType:
    """Return the type in which exponents are computed: fp64 where anything is."""
    read = {kind.dtype for _, kind in program.inputs}
    return DType.float64 if DType.float64 in read | _made(program) else DType.float32


def _made(program: BlockProgram) -> set[DType]:
    """Return the element types of what the program computes."""
    return {n.dtype for m in maps(program.graph) for n in m.body.nodes if isinstance(n, Pointwise)}


__all__ = ["Safe", "exponentials_as_pairs", "make_safe"]
