"""Rule 5: a row shift before a matrix product becomes an outer product added after it."""

from __future__ import annotations

from dataclasses import replace

from weft.block.program import Graph
from weft.block.rename import fresh, values_of
from weft.block.walk import in_order
from weft.fuse.mapped_matmul import SHIFTS, MappedMatmul, MappedRows, mapped_rows, matmuls_of, read_once
from weft.fuse.rewire import column_sums, over_columns, plain_matmul
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.axes import Axis
from weft.tensor.passes import Bears, Conditioning
from weft.tensor.scalar import Arg, apply


@rule(5, Conditioning.cancels, Bears.checked)
def swap_shift_dot(site: Site) -> Rewrite | None:
    """Swap the first row shift and the matmul after it: (I1 + c 1') I2 = I1 I2 + c (1' I2).

        forall k: store(row_shift(load(I1[k]),c), I4[k])
        forall n:
          forall k: store(dot(load(I4[k]),load(I2[n,k])), I5[n,k])
          for k: t += load(I5[n,k])
          store(t, I3[n])

    becomes

        forall n:
          forall k: store(row_sum(load(I2[n,k])), I6[n,k])
          for k: t += load(I6[n,k])
          store(t, I7[n])
        forall n: store(outer(c,load(I7[n])), I8[n])
        forall n:
          forall k: store(dot(load(I1[k]),load(I2[n,k])), I5[n,k])
          for k: t += load(I5[n,k])
          store(t, I4[n])
        forall n: store(add(load(I8[n]),load(I4[n])), I3[n])

    Condition: as for rule 4, of a shift; for I1 - c 1' the outer product is subtracted. Where c takes away most of I1, as a
    mean does, the two terms are large and nearly cancel: right as algebra, and useless far from zero.
    """
    for rows in mapped_rows(site, SHIFTS):
        for matmul in matmuls_of(rows):
            if read_once(rows):
                return Rewrite(_swapped(rows, matmul))
    return None


def _swapped(rows: MappedRows, matmul: MappedMatmul) -> Graph:
    graph, loops, values = rows.graph, rows.loops, fresh(values_of(rows.graph))
    sums = column_sums(rows, matmul, values(f"{matmul.result}.sums"), loops)
    plain = plain_matmul(rows, matmul, values(f"{matmul.result}.plain"), loops)
    axis = Axis(loops(matmul.loop.axis.name), matmul.loop.axis.space)
    args = ((rows.vector.outer, None), (sums.outputs[0].outer, sums.axis))
    outer = over_columns(matmul, axis, apply("mul", Arg(0), Arg(1)), args, values(f"{matmul.result}.outer"))
    args = ((outer.outputs[0].outer, axis), (plain.outputs[0].outer, plain.axis))
    expr = apply("add", Arg(0), Arg(1)) if rows.op == "add" else apply("sub", Arg(1), Arg(0))
    total = over_columns(matmul, matmul.loop.axis, expr, args, matmul.result)
    nodes = [n for n in graph.nodes if n is not rows.loop]
    at = nodes.index(matmul.loop)
    added = (sums, outer, plain, total)
    return replace(graph, nodes=in_order([*nodes[:at], *added, *nodes[at + 1 :]], graph.inputs))
