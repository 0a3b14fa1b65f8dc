"""Rule 4: a row scale before a matmul becomes one after it."""

from __future__ import annotations

from dataclasses import replace

from weft.block.program import Graph
from weft.block.rename import fresh, values_of
from weft.block.walk import in_order
from weft.fuse.magnitudes import stays_in_range
from weft.fuse.mapped_matmul import SCALES, MappedMatmul, MappedRows, mapped_rows, matmuls_of, read_once
from weft.fuse.rewire import over_columns, plain_matmul
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Bears, Conditioning
from weft.tensor.scalar import Arg, apply


@rule(4, Conditioning.rounding, Bears.checked)
def swap_scale_dot(site: Site) -> Rewrite | None:
    """Swap the first row scale and the matmul after it: diag(c) I1 I2 = diag(c) (I1 I2).

        forall k: store(row_scale(load(I1[k]),c), I4[k])
        forall n:
          forall k: store(dot(load(I4[k]),load(I2[n,k])), I5[n,k])
          for k: t += load(I5[n,k])
          store(t, I3[n])

    becomes

        forall n:
          forall k: store(dot(load(I1[k]),load(I2[n,k])), I5[n,k])
          for k: t += load(I5[n,k])
          store(t, I4[n])
        forall n: store(row_scale(load(I4[n]),c), I3[n])

    Condition: the scale is alone in its map, nothing else reads what it makes, and the matmul contracts the axis that the
    scale is mapped over, over which c does not vary. A division by c is a scale too, and stays one; a rounding of the matmul's
    operands stays at them; of a longer expression the scale is what it does last. Each matmul is rounded before it is scaled
    instead of after.

    Magnitudes: the matmul is of the size of I1, which c may be far from 1 for, times that of I2. So I2 is nothing that a scale of
    the program is made of, c or one of its own, unless I1 or I2 is an ordinary number for any inputs: an exponential, whose
    scale moves in attention, or a number of few bits.
    """
    for rows in mapped_rows(site, SCALES):
        for matmul in matmuls_of(rows):
            if read_once(rows) and stays_in_range(site, rows, matmul):
                return Rewrite(_swapped(rows, matmul))
    return None


def _swapped(rows: MappedRows, matmul: MappedMatmul) -> Graph:
    graph, loops, values = rows.graph, rows.loops, fresh(values_of(rows.graph))
    plain = plain_matmul(rows, matmul, values(f"{matmul.result}.plain"), loops)
    args = ((plain.outputs[0].outer, plain.axis), (rows.vector.outer, None))
    scale = over_columns(matmul, matmul.loop.axis, apply(rows.op, Arg(0), Arg(1)), args, matmul.result)
    nodes = [n for n in graph.nodes if n is not rows.loop]
    at = nodes.index(matmul.loop)
    return replace(graph, nodes=in_order([*nodes[:at], plain, scale, *nodes[at + 1 :]], graph.inputs))
