"""Programs whose fixed sizes are symbols, so that they can be checked at small sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from weft.block.program import BlockProgram, Graph, Index, Literal, Pointwise
from weft.block.walk import every, spaces
from weft.tensor.axes import Space
from weft.tensor.program import Constant, Iota, Ranking, Reindex, TensorProgram
from weft.tensor.scalar import Lit, parts
from weft.verify.inputs import literals
from weft.verify.thresholds import of_symbols, thresholds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Freed:
    """A program and its schedule, with symbols for fixed sizes.

    Attributes:
        program, applied: over spaces without a fixed size where that can be.
        most: the numbers that these sizes were, by name of the space; no check need go beyond.
        reach: an index that a check must reach, by name of the space, for all to be seen that indices decide.
        unreached: the spaces along which indices decide something beyond `weft.verify.thresholds.FARTHEST`.
    """

    program: TensorProgram
    applied: BlockProgram
    most: Mapping[str, int]
    reach: Mapping[str, int]
    unreached: frozenset[str]


def freed(program: TensorProgram, applied: BlockProgram) -> Freed:
    """Puts a symbol in `program` and `applied`, which name spaces alike, for each fixed size that is just a number of elements.

    Nothing between capture and the emitters depends on such a number: loops have edges whether or not there are any at it. Numbers
    that are more stay: those of segments, rankings, and of spaces that a reindexing ties to others.
    """
    symbols = symbols_for(program)
    most = {s.name: s.fixed for s in symbols if s.fixed is not None}
    program, applied = over_spaces(program, symbols), over_spaces(applied, symbols)
    beyond, unreached = of_symbols(program, most)
    reach = thresholds(program, most) | beyond
    written = {float(n.value) for n in program.nodes if isinstance(n, Constant)} | set(map(float, literals(program)))
    foreign = set(_numbers(applied.graph, written))
    for name in _indexed(program, applied) & most.keys():
        # A number that only the schedule has is either worked out from others, or wrong: it must show.
        reach[name] = max(reach.get(name, 0), *(n for n in foreign if n < most[name]), 0)
    return Freed(program, applied, most, {name: index for name, index in reach.items() if index}, unreached)


def symbols_for(program: TensorProgram) -> dict[Space, Space]:
    """Makes a space without a fixed size for each space of `program` whose fixed size is just a number of elements."""
    tied = set(_tied(program))
    return {s: replace(s, fixed=None) for s in program.spaces() if s.fixed is not None and s not in tied}


def different_size(program: TensorProgram, applied: BlockProgram) -> str | None:
    """Names in words a space of which the two say different sizes."""
    said = {s.name: s.fixed for s in program.spaces()}
    for space in spaces(applied):
        if space.name in said and said[space.name] != space.fixed:
            return f"{space.name} has {space.fixed or 'any number of'} elements, not {said[space.name] or 'any number'}"
    return None


def _tied(program: TensorProgram) -> Iterator[Space]:
    """Yields spaces whose size must stay what it is beside those of others."""
    for rule in program.derived:
        yield from (rule.space, rule.source)
    values = program.values()
    for node in program.nodes:
        if isinstance(node, Ranking) and node.rank is not None:
            yield node.rank.space
        elif isinstance(node, Reindex):
            for source, index in zip(values[node.source].axes, node.index, strict=True):
                if index.axis is None or index.axis.space != source.space:
                    yield from (source.space, *(a.space for a, _ in index.terms))


def _indexed(program: TensorProgram, applied: BlockProgram) -> set[str]:
    """Returns the spaces along which an index is read, by name."""
    read = {n.axis.space.name for n in every(applied.graph.nodes) if isinstance(n, Index)}
    return read | {n.axes[0].space.name for n in program.nodes if isinstance(n, Iota)}


def _numbers(graph: Graph, known: set[float]) -> Iterator[int]:
    """Yields whole numbers in `graph` whose magnitude is not in `known`."""
    for node in every(graph.nodes):
        match node:
            case Literal():
                found = [node.value]
            case Pointwise():
                found = [part.value for part in parts(node.expr) if isinstance(part, Lit)]
            case _:
                found = []
        for value in map(float, found):
            if value.is_integer() and abs(value) < 2**31 and not {value, -value} & known:
                yield int(abs(value))


def over_spaces(thing: T, spaces_: Mapping[Space, Space]) -> T:
    """Puts `thing`, a program or a part of one, over other spaces."""
    made: dict[int, Any] = {}

    def over(part: Any) -> Any:
        if isinstance(part, Space):
            return spaces_.get(part, part)
        if not _has_parts(part):
            return part
        if id(part) not in made:
            made[id(part)] = parts_over(part)
        return made[id(part)]

    def parts_over(part: Any) -> Any:
        if type(part) is tuple:
            return tuple(map(over, cast("tuple[Any, ...]", part)))
        changed = {f.name: over(getattr(part, f.name)) for f in fields(part) if f.init}
        same = all(new is getattr(part, name) for name, new in changed.items())
        return part if same else replace(part, **changed)

    return over(thing) if spaces_ else thing


def _has_parts(part: object) -> bool:
    return type(part) is tuple or (is_dataclass(part) and not isinstance(part, Enum))
