"""One-hot reductions: a loop along what is reduced goes to the one row that each element counts in, and combines it there.

for m, n: s[n] = max(s[n], i[m] == n ? e[m] : -inf)     becomes     for m: n = i[m];  if (n is a row) s[n] = max(s[n], e[m])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.block.one_hot import MadeOf, one_hot
from weft.block.program import Collapse
from weft.emit.cpp.plan import Nest, Put, gather
from weft.emit.cpp.values import Lazy, Panel, Value, resolved
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def nests_of(stores: Sequence[Put], reductions: Sequence[Lazy]) -> Iterator[Nest]:
    """Yield a nest for each one-hot reduction that `stores` and `reductions` need: it leaves its results in an array."""
    for work in gather(stores, reductions, lambda axes, _: axes):
        if work.lazy is not None and work.lazy.memory is None:
            found = _nest(work.lazy)
            if found is not None:
                yield found


def _nest(lazy: Lazy) -> Nest | None:
    """Return the nest of a one-hot reduction; None of anything else, and where it reads what needs loops of another order."""
    node, arg = lazy.node, lazy.args[0] if lazy.args else None
    if not isinstance(node, Collapse) or not isinstance(arg, Lazy):
        return None
    chosen = one_hot(resolved(arg), node.over, node.monoid, _element)
    if chosen is None:
        return None
    said = {a for value in chosen.read for a in _element(value).dims}
    before = [a for a in arg.dims if a in said and a != node.over]
    after = [a for a in arg.dims if a not in (*said, node.over, chosen.row)]
    order = (*before, node.over, chosen.row, *after)

    def arrange(axes: tuple[Axis, ...], _: Axis | None) -> tuple[Axis, ...]:
        return tuple(a for a in order if a in axes)

    nest = Nest(order, gather((), (lazy,), arrange), chosen)
    apart = [w for w in nest.works if w.lazy is not lazy and (w.collapsed is not None or not nest.holds(w.order))]
    return None if apart else nest


def _element(value: Value) -> MadeOf[Value]:
    """Say what a value is made of; a panel, which nothing but a matmul reads, is taken for one number."""
    value = resolved(value)
    match value:
        case Panel():
            return MadeOf((), DType.float32)
        case Lazy(counts=(axis, False)):
            return MadeOf(value.dims, value.dtype, counts=axis)
        case Lazy():
            return MadeOf(value.dims, value.dtype, value.expr, value.args)
        case _:
            return MadeOf(value.dims, value.dtype)
