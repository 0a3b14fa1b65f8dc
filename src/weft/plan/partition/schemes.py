"""Fusion schemes: which operators of a program share a kernel, as a binary code (STOF, section 4.3).

The code has one bit for each operator, in the order of `operators`. Operators next to each other in one kernel have equal bits, and
where a kernel ends and the next begins the bit changes: of 13 operators in four kernels of 5, 3, 3 and 2 it is 0000011100011,
which is written 0x00e3. STOF's code ends there, since its kernels are stretches of a row. More words say what it cannot:

- Kernels whose stretches overlap are on rows of their own; each further word, behind a colon, is a bit of each operator's row.
- Behind a plus come the operators that have no kernel of their own: each kernel that reads such a value makes it.

Behind a tilde come the calls of the graph that PyTorch is to run although weft knows them, and behind an at sign six digits of a
hash of the program, equal for programs that differ in names alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import TypeAlias

from weft.errors import Location, SchemeError
from weft.options import SCHEME
from weft.plan.partition.partition import Region, Task, in_order, linear, partition, stage_of
from weft.tensor.forms import Forms
from weft.tensor.program import Cast, Elementwise, Lookup, Node, Opaque, Ranking, Reindex, TensorProgram, uses

Operator: TypeAlias = tuple[Node, ...]
"""What is in one kernel whatever the scheme: an operation; both results of a ranking, or all of a call into PyTorch."""

_TAG = 6
_ALONE = "put it in a kernel by itself"
SHOWN = (
    "without the option, explain() of a program of weft.optimize prints one that fits, and numbers the operators; so does "
    "WEFT_LOG=debug, for torch.compile and weft.compile too"
)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A fusion scheme.

    Attributes:
        words: the code: levels first, then each bit of the rows; as numbers, the first operator the highest bit.
        again: the operators that each kernel which reads them makes, likewise.
        left: the calls of the graph, by number, that PyTorch is to run although weft knows them.
        tag: of the program that it is for; empty: of any.
    """

    words: tuple[int, ...]
    again: int = 0
    left: tuple[int, ...] = ()
    tag: str = ""

    @staticmethod
    def read(text: str) -> Scheme:
        """Read what `text` says. Raises SchemeError where it is no scheme."""
        found = re.fullmatch(SCHEME, text)
        if found is None:
            raise SchemeError(f'"{text}" is no fusion scheme', todo=f'give one such as "0x00e3"; {SHOWN}')
        words, again, left, tag = found.groups()
        numbers = [int(word, 16) for word in words.split(":")]
        return Scheme(
            tuple(numbers), int(again or "0", 16), tuple(map(int, left.split(","))) if left else (), (tag or "").lower()
        )

    def text(self, count: int) -> str:
        """Write the scheme of `count` operators."""
        digits = max(1, -(-count // 4))
        code = "0x" + ":".join(f"{word:0{digits}x}" for word in self.words)
        again = f"+{self.again:0{digits}x}" if self.again else ""
        left = f"~{','.join(map(str, self.left))}" if self.left else ""
        return code + again + left + (f"@{self.tag}" if self.tag else "")


def encode(kernels: Sequence[int | None]) -> Scheme:
    """Make the code of `kernels`: for each operator the number of its kernel, None where each kernel that reads it makes it."""
    spans: dict[int, list[int]] = {}
    for place, kernel in enumerate(kernels):
        if kernel is not None:
            spans.setdefault(kernel, []).append(place)
    ends: list[int] = []  # of the last kernel of each row
    levels: list[int] = []
    of: dict[int, tuple[int, int]] = {}
    for kernel, places in spans.items():  # by their first operators
        row = next((row for row, end in enumerate(ends) if end < places[0]), len(ends))
        if row == len(ends):
            ends.append(0)
            levels.append(1)
        ends[row] = places[-1]
        levels[row] = 1 - levels[row]
        of[kernel] = levels[row], row
    each = [(0, 0) if kernel is None else of[kernel] for kernel in kernels]
    words = [_number([level for level, _ in each])]
    planes = range(max(0, len(ends) - 1).bit_length())
    words += [_number([row >> bit & 1 for _, row in each]) for bit in planes]
    return Scheme(tuple(words), _number([int(kernel is None) for kernel in kernels]))


def decode(scheme: Scheme, count: int) -> tuple[int | None, ...]:
    """Number the kernel of each of `count` operators, kernels in the order of their first operators; None as in `encode`.

    Raises:
        SchemeError: it has bits for more operators.
    """
    longest = max(word.bit_length() for word in (*scheme.words, scheme.again))
    if longest > count:
        raise SchemeError(
            f"the fusion scheme {scheme.text(count)} has {longest} bits, and the graph {count} operators", todo=SHOWN
        )
    level, *rows = ([word >> (count - 1 - i) & 1 for i in range(count)] for word in scheme.words)
    found: list[int | None] = []
    last: dict[int, tuple[int, int]] = {}  # of each row: level and number of the kernel that it is in
    kernels = 0
    for place in range(count):
        if scheme.again >> (count - 1 - place) & 1:
            found.append(None)
            continue
        row = sum(bits[place] << i for i, bits in enumerate(rows))
        if row not in last or last[row][0] != level[place]:
            last[row] = level[place], kernels
            kernels += 1
        found.append(last[row][1])
    return tuple(found)


def _number(bits: Sequence[int]) -> int:
    return int("".join(map(str, bits)) or "0", 2)


def operators(program: TensorProgram) -> tuple[Operator, ...]:
    """List the operators of `program` in the order of their bits: stages of the partition in a row, operations in their order.

    What is made of numbers, sizes and indices alone is none, since each kernel makes it for itself, unless it is returned or
    PyTorch reads it.
    """
    values, local = program.values(), program.local
    found: list[Operator] = []
    for stage in linear(partition(program)):
        if not isinstance(stage, Region):
            found.append(tuple(values[name] for name in stage.results))
            continue
        own = [n for n in stage.program.nodes if n.name not in local] or list(stage.program.nodes[-1:])
        rankings: dict[Ranking, list[Node]] = {}
        for node in own:
            if isinstance(node, Ranking):
                rankings.setdefault(node.both, []).append(node)
        for node in own:
            if not isinstance(node, Ranking):
                found.append((node,))
            elif rankings[node.both][0] is node:
                found.append(tuple(rankings[node.both]))
    return tuple(found)


def tag_of(program: TensorProgram, forms: Forms | None = None) -> str:
    """Hash what programs have in common that differ in names alone, of values, axes, spaces and users' lines, and in reasons why
    PyTorch runs a call; `forms` knows some of their nodes.
    """
    nodes = tuple(replace(n, reason="") if isinstance(n, Opaque) else n for n in program.nodes)
    return sha256(repr((forms or Forms()).of(replace(program, nodes=nodes))[0]).encode()).hexdigest()[:_TAG]


def scheme_of(
    program: TensorProgram, stages: Sequence[Task], left: Sequence[int] = (), forms: Forms | None = None
) -> Scheme:
    """Return the scheme that cuts `program` into `stages`, with the calls that were `left` to PyTorch before.

    `forms` knows some of the program's nodes.
    """
    of = _kernels_of(program, stages)
    numbers = [of[operator[0].name] for operator in operators(program)]
    kernels = [own[0] if len(own) == 1 else None for own in numbers]
    return replace(encode(kernels), left=tuple(sorted(left)), tag=tag_of(program, forms))


def _kernels_of(program: TensorProgram, stages: Sequence[Task]) -> dict[str, list[int]]:
    """Return, for the name of each operation, the numbers of the stages that make it."""
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        names = stage.results
        if isinstance(stage, Region):
            nodes = [n.name for n in stage.program.nodes]
            names = tuple(name for name in nodes if name not in program.local) or tuple(nodes[-1:])
        for name in names:
            found.setdefault(name, []).append(number)
    return found


def as_launched(program: TensorProgram, stages: Sequence[Task]) -> tuple[Task, ...]:
    """Sort the `stages` that `program` is cut into: by their last operators, each after those whose values it waits for."""
    of = _kernels_of(program, stages)
    last = [0] * len(stages)
    for place, operator in enumerate(operators(program)):
        for number in of.get(operator[0].name, ()):
            last[number] = place
    return in_order([stages[i] for i in sorted(range(len(stages)), key=last.__getitem__)])


def cut_by(scheme: Scheme, program: TensorProgram) -> tuple[Task, ...]:
    """Cut `program` as `scheme` says; returned are the stages in the order in which they run.

    Raises:
        SchemeError: the scheme is for another program, or no kernels can be so: a call into PyTorch shares a kernel, kernels wait
            for each other, what is looked up in or seen in part is made in the same kernel, or what is made again is no elementwise
            value of the graph's inside.
    """
    row = operators(program)
    if scheme.tag not in ("", tag_of(program)):
        given = scheme.text(len(row))
        raise SchemeError(
            f"the fusion scheme {given} is for another graph than this one, {tag_of(program)}", todo=SHOWN
        )
    kernels = decode(scheme, len(row))
    parts: dict[int, list[int]] = {}
    again = set[str]()
    for place, kernel in enumerate(kernels):
        if kernel is None:
            _demand_again(program, row, place)
            again.add(row[place][0].name)
        else:
            parts.setdefault(kernel, []).append(place)
    for places in parts.values():
        _demand_one_kernel(program, row, places)
    _demand_order(program, row, parts, again)
    stages = [stage_of(program, [n for i in places for n in row[i]], again) for places in parts.values()]
    return as_launched(program, stages)


def told(row: Sequence[Operator], place: int) -> str:
    """Name operator number `place` of `row` for a user: `#3 (exp2, layers.py:12: return x.exp())`."""
    where = _where(row[place])
    return f"#{place + 1} ({', '.join([row[place][0].name, *([str(where)] if where else [])])})"


def _where(operator: Operator) -> Location | None:
    found = getattr(operator[0], "location", None)
    return found if isinstance(found, Location) else None


def _refused(what: str, operator: Operator, todo: str) -> SchemeError:
    return SchemeError(f"the fusion scheme is not possible: {what}", where=_where(operator), todo=f"{todo}; {SHOWN}")


def _demand_again(program: TensorProgram, row: Sequence[Operator], place: int) -> None:
    """Raise SchemeError where operator number `place` must be made once."""
    (node, *_) = row[place]
    readers = program.readers.get(node.name, ())
    inside = node.name not in program.outputs and readers and not any(isinstance(r, Opaque) for r in readers)
    if not inside or not isinstance(node, Elementwise | Cast):
        what = f"{told(row, place)} is to be made by each kernel that reads it, as only elementwise values inside the graph can be"
        raise _refused(what, row[place], "clear its bit behind the plus")


def _demand_one_kernel(program: TensorProgram, row: Sequence[Operator], places: Sequence[int]) -> None:
    """Raise SchemeError where the operators at `places` of `row` cannot share a kernel."""
    if len(places) == 1:
        return
    maker = {node.name: i for i in places for node in row[i]}
    values = program.values()
    for place in places:
        for node in row[place]:
            if isinstance(node, Opaque):
                raise _refused(f"PyTorch runs {told(row, place)}, which has no kernel to share", row[place], _ALONE)
            if node.name in program.local:
                what = (
                    f"{told(row, place)} is made of numbers alone: who reads it makes it, and what returns it is apart"
                )
                raise _refused(what, row[place], _ALONE)
            source = node.source if isinstance(node, Reindex | Lookup) else ""
            if source in maker and not (isinstance(node, Reindex) and isinstance(values[source], Reindex)):
                what = f"{told(row, place)} reads places of what {told(row, maker[source])} makes, which must be in memory by then"
                raise _refused(what, row[place], "end a kernel between them")


def _demand_order(
    program: TensorProgram, row: Sequence[Operator], parts: Mapping[int, Sequence[int]], again: set[str]
) -> None:
    """Raise SchemeError where kernels wait for each other."""
    kernel = {node.name: number for number, places in parts.items() for i in places for node in row[i]}
    values = program.values()
    waits: dict[int, dict[int, tuple[str, str]]] = {}
    for number, places in parts.items():
        own: dict[int, tuple[str, str]] = {}
        waiting = [(node.name, v) for i in places for node in row[i] for v in _waits(program, node)]
        seen = set[str]()
        while waiting:
            reader, value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in again or (value in program.local and value not in kernel):
                waiting += [(reader, v) for v in uses(values[value])]
            elif kernel.get(value, number) != number and value not in program.local:
                own.setdefault(kernel[value], (value, reader))
        waits[number] = own
    cycle = _cycle(waits)
    if cycle:
        place = {node.name: i for i, operator in enumerate(row) for node in operator}
        pairs = [waits[late][early] for late, early in pairwise(cycle)]
        turns = [
            value in program.turns.get(reader, ()) and value not in uses(values[reader]) for value, reader in pairs
        ]
        said = "; ".join(
            f"{told(row, place[reader])} {'has its turn after' if turn else 'reads'} {told(row, place[value])}"
            for turn, (value, reader) in zip(turns, pairs, strict=True)
        )
        what = f"the kernels {', '.join(str(number + 1) for number in cycle[:-1])} wait for each other: {said}"
        raise _refused(what, row[place[pairs[0][1]]], "put these operators in one kernel, or in more")


def _waits(program: TensorProgram, node: Node) -> tuple[str, ...]:
    """Return the values that `node` reads, and those of a call whose turn is before its own."""
    return (*uses(node), *program.turns.get(node.name, ()))


def _cycle(waits: Mapping[int, Mapping[int, object]]) -> list[int]:
    """Find kernels of which each waits for the next, the first one again at the end; an empty list where there are none."""
    rest = dict(waits)
    while ready := [number for number, own in rest.items() if not any(other in rest for other in own)]:
        for number in ready:
            del rest[number]
    if not rest:
        return []
    path = [next(iter(rest))]
    while path[-1] not in path[:-1]:
        path.append(next(other for other in rest[path[-1]] if other in rest))
    return path[path.index(path[-1]) :]
