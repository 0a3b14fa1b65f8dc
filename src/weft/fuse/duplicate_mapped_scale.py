"""Rule 8: a row scale, or shift, that several matmuls read is done again for one of them."""

from __future__ import annotations

from dataclasses import replace

from weft.block.copies import fresh_loops
from weft.block.program import Graph
from weft.block.rename import fresh, values_of
from weft.block.walk import in_order
from weft.fuse.magnitudes import stays_in_range
from weft.fuse.mapped_matmul import SCALES, SHIFTS, MappedMatmul, MappedRows, mapped_rows, matmuls_of
from weft.fuse.rewire import reading
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(8, Conditioning.exact)
def duplicate_mapped_scale(site: Site) -> Rewrite | None:
    """Duplicate the first row scale or shift that several matmuls read, for the last of them.

        forall k: store(row_scale(load(I1[k]),c), I4[k])
        forall n: ... dot(load(I4[k]),load(I2[n,k])) ...
        forall p: ... dot(load(I4[k]),load(I3[p,k])) ...

    becomes

        forall k: store(row_scale(load(I1[k]),c), I4[k])
        forall n: ... dot(load(I4[k]),load(I2[n,k])) ...
        forall k: store(row_scale(load(I1[k]),c), I5[k])
        forall p: ... dot(load(I5[k]),load(I3[p,k])) ...

    Condition: two matmuls at least that rule 4 (rule 5 for a shift) could swap with it, were they its only readers. The
    work that is done twice is gone once both are swapped.
    """
    for ops in (SCALES, SHIFTS):
        for rows in mapped_rows(site, ops):
            matmuls = [p for p in matmuls_of(rows) if ops is SHIFTS or stays_in_range(site, rows, p)]
            if len(matmuls) > 1:
                return Rewrite(_duplicated(rows, matmuls[-1]))
    return None


def _duplicated(rows: MappedRows, matmul: MappedMatmul) -> Graph:
    graph = rows.graph
    result = fresh(values_of(graph))(f"{rows.result}.again")
    renamed = replace(rows.loop, outputs=tuple(replace(o, outer=result) for o in rows.loop.outputs))
    again = fresh_loops(renamed, rows.loops)
    reader = reading(matmul, rows, replace(rows, loop=again, result=result))
    nodes = [new for n in graph.nodes for new in ((again, reader) if n is matmul.loop else (n,))]
    return replace(graph, nodes=in_order(nodes, graph.inputs))
