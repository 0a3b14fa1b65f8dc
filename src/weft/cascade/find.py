"""Finding the chains of a program, and what can be done with each."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.block.fold import Fold
from weft.cascade.algebra import ZERO
from weft.cascade.approximation import Approximation
from weft.cascade.centres import Decomposition
from weft.cascade.chain import Chain, Gathering, NoChainError, Reducing, depending, scales_made_of
from weft.cascade.fold import fold
from weft.cascade.interchange import sums_outside
from weft.cascade.rounding import approximation
from weft.cascade.separate import (
    Factor,
    NotSeparableError,
    Term,
    factored,
    far_apart,
    freed_of_both,
    overflowing,
    separated,
)
from weft.cascade.several import joined, over_each
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.laws import decays_below_maxima, sizes_in_place
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
    uses,
)


@dataclass(frozen=True, slots=True)
class RefusedReduction:
    """A reduction that starts anew, after the loop of those before it: `reason` says what it does not fulfil."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FoundChains:
    """The chains of a program.

    Attributes:
        decompositions: of those that one loop computes.
        folds: these loops.
        refused: the reductions that could not join the chain of those whose results they use.
    """

    decompositions: tuple[Decomposition, ...]
    folds: tuple[Fold, ...]
    refused: tuple[RefusedReduction, ...]


@dataclass(frozen=True, slots=True)
class Chains:
    """What became of a program's chains.

    Attributes:
        program: what the folds are loops of, the same function as the one asked about.
        found: the folds.
        approximation: what they compute instead, where some round at the scale so far.
    """

    program: TensorProgram
    found: FoundChains
    approximation: Approximation | None = None


@functools.lru_cache(maxsize=256)
def chains(program: TensorProgram, *, running: bool = False) -> Chains:
    """Finds the chains of `program`, sums within sums the other way round where that makes one; worked out once for each program.

    Args:
        running: with roundings at the scale so far, where they are at a scale that is a result of the chain.
    """
    asked = program
    program = decays_below_maxima(sums_outside(program))
    whole = joined(program)
    found = folds(sizes_in_place(whole.program), running=running)
    made = tuple(fold for fold in (over_each(fold, whole) for fold in found.folds) if fold is not None)
    program = _sizes_in_place(program, frozenset(use.value for fold in made for _, use in fold.args))
    found = replace(found, folds=made)
    scaled = [(d.chain, d.scaled) for d in found.decompositions]
    return Chains(program, found, approximation(asked, scaled) if running else None)


def _sizes_in_place(program: TensorProgram, read: frozenset[str]) -> TensorProgram:
    """Compute functions of sizes where they are read, but for those that a fold reads: of joined axes they are one size."""
    kept = tuple(n.name for n in program.nodes if n.name in read and n.name not in program.outputs)
    inside = sizes_in_place(replace(program, outputs=(*program.outputs, *kept)))
    return replace(inside, outputs=program.outputs)


def folds(program: TensorProgram, *, running: bool = False) -> FoundChains:
    """Finds the folds of `program`: one for each chain, and for each set of free axes that its results have.

    Every value that a fold makes is what `program` says it is, over the reals; only where it is computed changes. With `running`
    that is so but for roundings (`weft.cascade.rounding`).
    """
    refused: list[RefusedReduction] = []
    made: list[Decomposition] = []
    loops: list[Fold] = []
    values = program.values()
    for members in _chains(program, refused, running):
        for wanted, ends in _with_ends(program, members) if running else _wanted(program, members):
            try:
                found = decompose(program, members, wanted, ends, running=running)
                if any(found.chain.dependent(link.element.expr) for link in found.chain.links):
                    loops.append(fold(found, values))
                    made.append(found)
            except (NoChainError, NotSeparableError) as error:
                refused.append(RefusedReduction(wanted[-1].name, str(error)))
    return FoundChains(tuple(made), tuple(loops), tuple(refused))


@dataclass(frozen=True, slots=True)
class Ends:
    """What is made of a chain's results where its loop ends.

    Attributes:
        nodes: elementwise operations over the axes of the loop.
        beside: the reductions, by name, whose results something else reads too.
    """

    nodes: tuple[Elementwise, ...]
    beside: frozenset[str]


def decompose(
    program: TensorProgram,
    members: frozenset[str],
    wanted: Sequence[Reducing],
    ends: Ends | None = None,
    *,
    running: bool = False,
) -> Decomposition:
    """Takes apart the chain of `members` that ends in `wanted`, and those uses of its results that are to follow the loop.

    Raises:
        NoChainError, NotSeparableError: with the condition that does not hold.
    """
    first = max(wanted, key=lambda node: len(node.axes))
    after = depending(program, members)
    gathering = Gathering(program, program.values(), members, after, first.over[0], sizes_seen=running)

    def in_loop(node: Reducing | Elementwise) -> tuple[Axis, ...]:
        return tuple(_same_space(axis, first.axes) for axis in node.axes)

    results = [(node.name, gathering.link(node, in_loop(node))) for node in wanted]
    finished = [(e.name, gathering.expression(Use(e.name, in_loop(e)))) for e in (ends.nodes if ends else ())]
    made = tuple(r for r in results if ends is None or r[0] in ends.beside)
    operands, links = tuple(gathering.operands), tuple(gathering.links)
    chain = Chain(first.over[0], first.axes, operands, links, made, running, tuple(finished))
    if any(chain.varying(expr) for _, expr in finished):
        raise NoChainError(f"the work after the reductions varies along {chain.over}")
    scaling = scales_made_of(program) if any(len(link.element.sides) > 1 for link in links) else frozenset[str]()
    return Decomposition(chain, tuple(_terms(chain, i, scaling) for i in range(len(links))))


def _same_space(axis: Axis, among: tuple[Axis, ...]) -> Axis:
    found = [a for a in among if a.space == axis.space]
    if axis in among:
        return axis
    if len(found) != 1:
        raise NoChainError(f"{axis} is ambiguous: several axes here run over its space, or none")
    return found[0]


def _terms(chain: Chain, index: int, scaling: frozenset[str]) -> tuple[Term, ...]:
    link = chain.links[index]
    if link.monoid is Monoid.sum:
        terms = separated(chain, link.element.sides)
        for reason in (
            *(overflowing(chain, term) for term in terms),
            freed_of_both(chain, link.element.sides, scaling),
        ):
            if reason is not None:
                raise NotSeparableError(f"{chain.show(link.element.expr)}: {reason}")
        if link.dtype is DType.float64 and any(far_apart(chain, term) for term in terms):
            text = chain.show(link.element.expr)
            raise NotSeparableError(f"{text}: unscaled it may be out of range, and float64 has no wider type")
        return terms
    if chain.dependent(link.element.expr):
        text = chain.show(link.element.expr)
        if link.monoid is not Monoid.prod:
            raise NotSeparableError(
                f"{text}: it uses an earlier result, and a finite field cannot check an extremum of that"
            )
        if link.dtype is DType.float64:
            raise NotSeparableError(f"{text}: the rounding errors of n factors add up, and float64 has no wider type")
        return (factored(chain, link.element.expr),)
    return (Term(ZERO, (Factor(link.element.expr),)),)


def _chains(program: TensorProgram, refused: list[RefusedReduction], running: bool) -> list[frozenset[str]]:
    """Groups the reductions of `program` into chains: each joins those whose results it uses, where they can be one loop."""
    groups: list[frozenset[str]] = []
    for node in program.nodes:
        if not isinstance(node, Reduction | Contraction) or not _may_join(node):
            continue
        used = [g for g in groups if node.name in depending(program, g) and _space(program, g) == node.over[0].space]
        joined = _joined(program, used, node, refused, running)
        groups = [g for g in groups if not g <= joined] + [joined]
    return [g for g in groups if len(g) > 1]


def _may_join(node: Reducing) -> bool:
    """Tells whether a reduction runs along one axis, of floating-point numbers, and both operands of a product have it."""
    if len(node.over) != 1 or not node.dtype.is_float:
        return False
    return isinstance(node, Reduction) or (node.over[0] in node.left.axes and node.over[0] in node.right.axes)


def _space(program: TensorProgram, group: frozenset[str]) -> Space:
    node = next(n for n in program.nodes if n.name in group)
    assert isinstance(node, Reduction | Contraction)
    return node.over[0].space


def _joined(
    program: TensorProgram, used: list[frozenset[str]], node: Reducing, refused: list[RefusedReduction], running: bool
) -> frozenset[str]:
    """Returns the chain of `node`: with all of `used`, or the last of them, or none; why not all is noted."""
    alone = frozenset((node.name,))
    reason = ""
    for parts in dict.fromkeys((tuple(used), tuple(used[-1:]))):
        if parts:
            members = alone.union(*parts)
            try:
                decompose(program, members, (node,), running=running)
            except (NoChainError, NotSeparableError) as error:
                reason = reason or str(error)
                continue
            return members
    if reason:
        refused.append(RefusedReduction(node.name, reason))
    return alone


_Wanted = tuple[list[Reducing], Ends | None]


def _wanted(program: TensorProgram, members: frozenset[str], ends: Sequence[Elementwise] = ()) -> list[_Wanted]:
    """Returns the reductions whose results something else than the chain and `ends` reads, in groups with the same free axes."""
    seen = _seen(program, members.union(n.name for n in ends))
    groups: dict[tuple[str, ...], list[Reducing]] = {}
    for node in program.nodes:
        if node.name in seen and node.name in members:
            assert isinstance(node, Reduction | Contraction)
            groups.setdefault(_free(node), []).append(node)
    return [(group, None) for group in groups.values()]


def _with_ends(program: TensorProgram, members: frozenset[str]) -> list[_Wanted]:
    """Groups as `_wanted` does; results of fewer axes only read beside those of more, as scales are, are read where the
    loop ends.
    """
    groups = _wanted(program, members)
    if len(groups) != 2:
        return groups
    (fewer, _), (more, _) = sorted(groups, key=lambda group: len(group[0][0].axes))
    ends = _ends(program, members, [n.name for n in fewer], _free(more[0]))
    beside = frozenset(node.name for group, _ in _wanted(program, members, ends) for node in group)
    if not ends or not set(_free(fewer[0])) < set(_free(more[0])) or any(n.name in beside for n in fewer):
        return groups
    return [(more, Ends(tuple(ends), beside))]


def _ends(
    program: TensorProgram, members: frozenset[str], results: Sequence[str], axes: tuple[str, ...]
) -> list[Elementwise]:
    """Returns the elementwise operations over `axes` that all readers of `results` outside the chain come to; none
    where some do not.
    """
    seen, found, todo = _seen(program, members), list[Elementwise](), list(results)
    while todo:
        name = todo.pop()
        if name in program.outputs:
            return []
        for node in program.nodes:
            if node.name not in seen or node.name in members or name not in uses(node) or node in found:
                continue
            if not isinstance(node, Elementwise) or node.dtype.accumulator is not node.dtype:
                return []
            if _free(node) == axes:
                found.append(node)
            else:
                todo.append(node.name)
    return found


def _free(node: Reducing | Elementwise) -> tuple[str, ...]:
    return tuple(sorted(a.space.name for a in node.axes))


def _seen(program: TensorProgram, until: frozenset[str]) -> set[str]:
    """Returns the values that outputs are made of, as far as `until`."""
    values: Mapping[str, Node] = program.values()
    seen: set[str] = set()
    todo = list(program.outputs)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += () if name in until else uses(values[name])
    return seen
