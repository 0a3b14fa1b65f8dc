"""The fusion algorithm of section 4: rules in a fixed priority, graphs breadth first, extension, snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.block.check import check
from weft.block.program import BlockProgram, Map
from weft.fuse.rule import Rewrite, Rule, Site, apply_at, graph_at
from weft.tensor.passes import Change, Path


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A program in which nothing is left to fuse without extending a map.

    Attributes:
        program: the program.
        steps: how many steps of the trace led to it.
    """

    program: BlockProgram
    steps: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A program to weigh against a snapshot that an extension led to: the first iteration is peeled off instead.

    Attributes:
        program: the program; nothing is left to fuse in it, and no map of it is extended.
        beside: the snapshot that it stands beside, a place in `Fusion.snapshots`; both come from the one before that.
        steps: the trace from the snapshot before to `program`.
    """

    program: BlockProgram
    beside: int
    steps: tuple[Change[BlockProgram], ...]


@dataclass(frozen=True, slots=True)
class Fusion:
    """What the algorithm found.

    Attributes:
        snapshots: at least one; each but the first extends the one before it.
        steps: the trace of the last.
        alternatives: to the snapshots after the first.
    """

    snapshots: tuple[Snapshot, ...]
    steps: tuple[Change[BlockProgram], ...]
    alternatives: tuple[Alternative, ...] = ()

    def ends(self) -> Iterator[tuple[str, BlockProgram, tuple[Change[BlockProgram], ...]]]:
        """Yield each snapshot and each alternative: its name, its program, and the trace to it."""
        for each in self.snapshots:
            yield f"snapshot after {each.steps} steps", each.program, self.steps[: each.steps]
        for other in self.alternatives:
            before = self.snapshots[other.beside - 1].steps
            trace = (*self.steps[:before], *other.steps)
            yield f"peeled instead of the extension after {before} steps", other.program, trace

    @property
    def last(self) -> BlockProgram:
        """The program of the last snapshot, the most aggressively fused."""
        return self.snapshots[-1].program


def fused_by(
    program: BlockProgram,
    rules: Sequence[Rule],
    extend: Sequence[Rule],
    instead: Sequence[Rule],
    *,
    checked: bool = False,
) -> Fusion:
    """Fuse until no rule matches, extend one map, and so on until none can be extended (section 4.3).

    Graphs are visited breadth first, as the paper's prose has it (its pseudocode's `queue.pop()` goes depth first).

    Args:
        program: a lowered block program.
        rules: in order of priority; the first that matches anywhere in a graph is applied, then all are tried again.
        extend: tried, in order of priority, where `rules` match nowhere any more.
        instead: for each of these that matches in a graph where `extend` does, there is an alternative.
        checked: run the checker after every rewrite (tests do).

    Returns:
        The snapshots and the trace. Terminates: rule 8 lowers the number of readers of a scale, rules 4 and 5 move one
        behind a matmul for good, the other `rules` remove an operator, and an extension moves operators a level deeper.

    Raises:
        InvalidProgramError: with `checked`, where a rewrite made a malformed program.
    """
    steps: list[Change[BlockProgram]] = []
    snapshots: list[Snapshot] = []
    alternatives: list[Alternative] = []
    while True:
        program = _fuse_all(program, rules, steps, checked)
        snapshots.append(Snapshot(program, len(steps)))
        path = _extensible(program, extend)
        found = None if path is None else _first_match(Site(program, path), extend)
        if path is None or found is None:
            return Fusion(tuple(snapshots), tuple(steps), tuple(alternatives))
        for rule in instead:
            other = _first_match(Site(program, path), (rule,))
            if other is not None:
                trace: list[Change[BlockProgram]] = []
                last = _fuse_all(_applied(program, path, *other, trace, checked), rules, trace, checked)
                alternatives.append(Alternative(last, len(snapshots), tuple(trace)))
        program = _applied(program, path, *found, steps, checked)


def _fuse_all(
    program: BlockProgram, rules: Sequence[Rule], steps: list[Change[BlockProgram]], checked: bool
) -> BlockProgram:
    """Apply the rules as section 4.1's bfs_fuse_no_extend does."""
    queue: deque[Path] = deque([()])
    while queue:
        path = queue.popleft()
        while (found := _first_match(Site(program, path), rules)) is not None:
            program = _applied(program, path, *found, steps, checked)
        queue.extend(_inner(program, path))
    return program


def _extensible(program: BlockProgram, extend: Sequence[Rule]) -> Path | None:
    """Return the first graph in which a map can be extended, found as by section 4.2's bfs_extend; None where there is none."""
    queue: deque[Path] = deque([()])
    while queue:
        path = queue.popleft()
        if _first_match(Site(program, path), extend) is not None:
            return path
        queue.extend(_inner(program, path))
    return None


def _inner(program: BlockProgram, path: Path) -> Iterator[Path]:
    return ((*path, n.name) for n in graph_at(program.graph, path).nodes if isinstance(n, Map))


def _first_match(site: Site, rules: Sequence[Rule]) -> tuple[Rule, Rewrite] | None:
    for rule in rules:
        rewrite = rule.rewrite(site)
        if rewrite is not None:
            return rule, rewrite
    return None


def _applied(
    program: BlockProgram, path: Path, rule: Rule, rewrite: Rewrite, steps: list[Change[BlockProgram]], checked: bool
) -> BlockProgram:
    after = apply_at(program, path, rewrite)
    if checked:
        check(after)
    steps.append(Change(rule.name, path, before=program, after=after))
    return after
