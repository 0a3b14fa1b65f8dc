"""Rule 7: the first iteration of a map is done on its own, together with the operators that rule 6 would repeat in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.block.copies import continued, fresh_loops, loop_names
from weft.block.program import Final, Join, Map, Once, Stacked, sealed
from weft.block.ranges import First, Remainder
from weft.block.rename import fresh, values_of
from weft.block.walk import maps, operands, results
from weft.fuse.extend_map import extended, extensible
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(7, Conditioning.exact, kinds=("cpu",))
def peel_first_iteration(site: Site) -> Rewrite | None:
    """Peel the first iteration off the graph's last map, if that exposes a fusion.

        (a)  forall y: store(f(load(A[y])), I[y])              forall x in first(X):
             forall x:                                           forall y: store(f(load(A[y])), I[y])
               forall y: store(g(load(I[y])), B[x,y])     ->     forall y: store(g(load(I[y])), B[x,y])
                                                               forall x in rest(X):
                                                                 forall y: store(g(load(I[y])), B[x,y])

        (b)  forall y: store(f(load(A[y])), I[y])              forall x in first(X):
             c = h(I)                                            forall y: store(f(load(A[y])), I[y])
             forall x:                                    ->     c = h(I)
               forall y: store(g(load(A[y])), J[y])              forall y: store(g(load(A[y])), J[y])
               store(k(c,J), B[x])                               store(k(c,J), B[x])
                                                               forall x in rest(X):
                                                                 forall y: store(g(load(A[y])), J[y])
                                                                 store(k(c,J), B[x])

        (c)  as (b), where A is not an input of the graph but made in it

    Condition: that of rule 6 (`extensible`). What was done once is still done once: the rest reads what the first iteration
    hands out. Where the x-map carries state, the rest goes on from the state that the first leaves.
    """
    graph = site.graph
    found = extensible(graph)
    if found is None:
        return None
    node, before, behind = found
    make = fresh(values_of(graph))
    copy = fresh_loops(node, loop_names(site.program))
    axes = [(a.axis, b.axis) for a, b in zip((copy, *maps(copy.body)), (node, *maps(node.body)), strict=True)]
    first, names = extended(replace(before, nodes=tuple(copy if n is node else n for n in before.nodes)), copy)
    made = {name for n in before.nodes if n is not node for name in results(n)}
    handed = dict.fromkeys(name for name in operands(node) if name in made)
    firsts, rests, joins = dict[str, str](), dict[str, str](), list[Join]()
    types = site.types()
    for output in node.outputs:
        if isinstance(output, Stacked):
            name, kind = output.outer, types[output.outer]
            firsts[name], rests[name] = make(f"{name}_first"), make(f"{name}_rest")
            own = tuple((a, b) for a, b in axes if b in (*kind.lists, *kind.dims))
            joins.append(Join(name, firsts[name], rests[name], own))
    once = tuple(Once(name, names[name]) for name in handed)
    first = replace(first, range=First(), outputs=(*once, *_renamed(first, firsts)))
    rest = replace(node, range=Remainder(first.axis), outputs=_renamed(node, rests))
    first, rest = continued(sealed(first), rest, make)
    return Rewrite(replace(graph, nodes=(first, rest, *joins, *behind)))


def _renamed(node: Map, names: Mapping[str, str]) -> tuple[Stacked | Final | Once, ...]:
    return tuple(replace(o, outer=names.get(o.outer, o.outer)) for o in node.outputs)
