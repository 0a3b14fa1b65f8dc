"""Which ATen calls of a captured graph a region, or a value of it, came from."""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.capture import Captured
from weft.errors import Location, WeftError
from weft.plan.partition.partition import Region
from weft.tensor.program import Contraction, Node, Opaque, uses

_SUFFIX = re.compile(r"[._]\d+$")


def calls_of(captured: Captured, region: Region, error: Exception) -> frozenset[int]:
    """Finds the ATen calls, by number, that PyTorch must run so that `region`, which failed with `error`, goes.

    Those on the line that the error names, where it names one of the region's; else all that a node of the region comes from;
    where laws have left no node with a name that capture gave, all that the region's values depend on.
    """
    assert captured.program is not None
    written = captured.program.values()
    roots = [_root(n.name, written) for n in region.program.nodes]
    own = frozenset(captured.made_by[r] for r in roots if r in captured.made_by)
    where = error.where if isinstance(error, WeftError) and isinstance(error.where, Location) else None
    named = frozenset(
        captured.made_by[r] for r in roots if r in captured.made_by and getattr(written[r], "location", None) == where
    )
    left = {captured.made_by[n.name] for n in written.values() if isinstance(n, Opaque) and n.name in captured.made_by}
    for found in (named if where is not None else own, own):
        if found - left:
            return found - left
    waiting, seen = list(roots), set[str]()
    while waiting:
        name = waiting.pop()
        if name in written and name not in seen:
            seen.add(name)
            waiting += uses(written[name])
    return frozenset(captured.made_by[n] for n in seen if n in captured.made_by) - left


def lone_matmuls(captured: Captured, region: Region) -> frozenset[int]:
    """Finds the ATen calls, by number, that the matmuls of `region` come from, if none of its matmuls reads another
    one's result.

    What a library does as well. A matmul of a matmul's result gains from the fusion that made the region.
    """
    assert captured.program is not None
    written = captured.program.values()
    made_of = set[str]()  # values that depend on a matmul of the region
    matmuls: list[str] = []
    for node in region.program.nodes:
        depends = not made_of.isdisjoint(uses(node))
        if isinstance(node, Contraction):
            if depends:
                return frozenset()
            matmuls.append(_root(node.name, written))
        if depends or isinstance(node, Contraction):
            made_of.add(node.name)
    return frozenset(captured.made_by[name] for name in matmuls if name in captured.made_by)


def call_of(captured: Captured, name: str) -> int | None:
    """Finds the number of the ATen call that `name`, a value of the program after the laws, is a part of; None: no call
    is known.
    """
    assert captured.program is not None
    return captured.made_by.get(_root(name, captured.program.values()))


def _root(name: str, written: Mapping[str, Node]) -> str:
    """Finds the value of the program as written that a law made `name` of: laws add a number to a name."""
    while name not in written:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return name
        name = shorter
    return name
