"""The fusion algorithm of section 4: rules in a fixed priority, graphs breadth first."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weft.block.check import check
from weft.block.program import BlockProgram, Graph, Map
from weft.fuse.fuse_consecutive_elementwise import FUSE_CONSECUTIVE_ELEMENTWISE
from weft.fuse.fuse_consecutive_maps import FUSE_CONSECUTIVE_MAPS
from weft.fuse.fuse_map_with_reduction import FUSE_MAP_WITH_REDUCTION
from weft.fuse.rule import Path, Rewrite, Rule, Step, apply_at, graph_at

# Section 4.1's order, of the rules that there are.
PRIORITY: tuple[Rule, ...] = (FUSE_CONSECUTIVE_ELEMENTWISE, FUSE_MAP_WITH_REDUCTION, FUSE_CONSECUTIVE_MAPS)


def fuse(
    program: BlockProgram, rules: Sequence[Rule] = PRIORITY, *, checked: bool = False
) -> tuple[BlockProgram, tuple[Step, ...]]:
    """Apply `rules` until none matches (section 4.1's bfs_fuse_no_extend), and say what was done.

    Args:
        program: a lowered block program.
        rules: in order of priority; the first that matches anywhere in a graph is applied, then all are tried again.
        checked: run the checker after every rewrite (tests do).

    Returns:
        The fused program, and one step per rewrite. Terminates: every rule removes an operator.

    Raises:
        InvalidProgramError: with `checked`, where a rewrite made a malformed program.
    """
    steps: list[Step] = []
    queue: deque[Path] = deque([()])
    while queue:
        path = queue.popleft()
        program = _fuse_graph(program, path, rules, steps, checked)
        queue.extend((*path, n.name) for n in graph_at(program.graph, path).nodes if isinstance(n, Map))
    return program, tuple(steps)


def _fuse_graph(
    program: BlockProgram, path: Path, rules: Sequence[Rule], steps: list[Step], checked: bool
) -> BlockProgram:
    while True:
        graph = graph_at(program.graph, path)
        found = _first_match(graph, rules)
        if found is None:
            return program
        rule, rewrite = found
        after = apply_at(program, path, rewrite)
        if checked:
            check(after)
        steps.append(Step(rule.name, path, program, after))
        program = after


def _first_match(graph: Graph, rules: Sequence[Rule]) -> tuple[Rule, Rewrite] | None:
    for rule in rules:
        rewrite = rule.rewrite(graph)
        if rewrite is not None:
            return rule, rewrite
    return None
