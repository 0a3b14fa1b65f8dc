"""Which of a launch's writes may lie where one of its reads does: each element is read before it is written, and by nobody else."""

from __future__ import annotations

from weft.block.program import BlockNode, Buffer, Graph, Load, Map, Store
from weft.block.ranges import EVERY_BLOCK
from weft.block.walk import every, operands
from weft.schedule.kernels import KernelNodes


def overwriting(part: KernelNodes) -> tuple[tuple[str, str], ...]:
    """List the (write, read) of a launch that may be one memory, both dense, alike in type and in the order of dimensions.

        forall m: forall n:
          t = load(X[m,n]);  store(f(t), O[m,n])           O may be X

    So it is where the launch is one nest of parallel maps without a loop, which stores once, at elements that all of its maps
    number, and loads X at these alone. What it loads besides must lie elsewhere.
    """
    nest = _nest(tuple(n for n in part.nodes if not isinstance(n, Buffer)))
    if nest is None:
        return ()
    loops, body, outer = nest
    stores = [n for n in body.nodes if isinstance(n, Store)]
    if len(stores) != 1 or outer.get(stores[0].memory) not in set(part.writes) - set(part.begun):
        return ()
    (store,) = stores
    numbered = [each.plain for each in store.at]
    if None in numbered or len(set(numbered)) != len(numbered) or set(numbered) != {loop.axis for loop in loops}:
        return ()
    loads = [n for n in body.nodes if isinstance(n, Load)]
    apart = {n.memory for n in loads if n.at != store.at or n.indices}
    alike = {outer[n.memory] for n in loads if n.memory not in apart} & set(part.reads)
    return tuple((outer[store.memory], name) for name in part.reads if name in alike)


def _nest(nodes: tuple[BlockNode, ...]) -> tuple[list[Map], Graph, dict[str, str]] | None:
    """Return the maps of `nodes`, each all that is in the one before it, outermost first, what the last one runs, and its names
    of what lies outside of all; None where they are no such nest.
    """
    loops, names = list[Map](), dict[str, str]()
    while len(nodes) == 1 and isinstance(loop := nodes[0], Map):
        if loop.state is not None or loop.range != EVERY_BLOCK or loop.guard is not None:
            return None
        names = {f.inner: names.get(f.outer, f.outer) for f in loop.inputs}
        loops.append(loop)
        nodes = loop.body.nodes
    inside = any(isinstance(n, Map | Buffer) for n in every(nodes))
    return None if inside or not loops or not _loads_alone(nodes, names) else (loops, loops[-1].body, names)


def _loads_alone(nodes: tuple[BlockNode, ...], names: dict[str, str]) -> bool:
    """Tell whether nothing but loads and the store touches what lies outside."""
    return all(isinstance(n, Load | Store) or names.keys().isdisjoint(operands(n)) for n in nodes)
